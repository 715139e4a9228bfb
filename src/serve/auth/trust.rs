//! Whom the cluster trusts to authenticate callers: the data of ConfigMap
//! `kube-system/extension-apiserver-authentication`, parsed and validated. Replaced as a whole when the ConfigMap changes.

use std::collections::BTreeMap;

use crate::serve::tls::pem::{ClientCas, PemError};

/// The name of the ConfigMap, for messages.
pub(crate) const CONFIG_MAP: &str = "ConfigMap kube-system/extension-apiserver-authentication";

/// A ConfigMap that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TrustError {
    /// A list is not a JSON array of strings.
    #[error(
        "{CONFIG_MAP}: key {key} is not a JSON array of strings ({source}); the last valid version stays in use"
    )]
    List {
        /// The key.
        key: &'static str,
        /// The cause.
        source: serde_json::Error,
    },
    /// A bundle contains no usable certificate.
    #[error("{CONFIG_MAP}: key {key}: {source}; the last valid version stays in use")]
    Bundle {
        /// The key.
        key: &'static str,
        /// The cause.
        source: PemError,
    },
}

/// The CAs and names by which callers are authenticated.
#[derive(Debug, Default)]
pub struct Trust {
    pub(crate) front_proxy: Option<FrontProxy>,
    /// Verifies the certificates of ordinary users.
    pub(crate) users: Option<ClientCas>,
}

/// The proxy that authenticates callers on behalf of this server.
#[derive(Debug)]
pub(crate) struct FrontProxy {
    /// Verifies the proxy's certificate: its CA alone, never the users' CA.
    pub(crate) verifier: ClientCas,
    /// The common names that its certificate may have; empty allows any.
    pub(crate) allowed_names: Vec<String>,
    pub(crate) headers: HeaderNames,
}

/// The headers in which the proxy names the user, in lower case.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct HeaderNames {
    pub(crate) user: Vec<String>,
    pub(crate) uid: Vec<String>,
    pub(crate) group: Vec<String>,
    pub(crate) extra_prefix: Vec<String>,
}

impl Trust {
    /// Parses the ConfigMap's data. A missing key disables what it configures.
    ///
    /// # Errors
    /// When a key cannot be parsed.
    pub fn parse(data: &BTreeMap<String, String>) -> Result<Self, TrustError> {
        Ok(Self { front_proxy: front_proxy(data)?, users: bundle(data, "client-ca-file")? })
    }
}

fn front_proxy(data: &BTreeMap<String, String>) -> Result<Option<FrontProxy>, TrustError> {
    let Some(verifier) = bundle(data, "requestheader-client-ca-file")? else { return Ok(None) };
    let lower = |key| Ok(list(data, key)?.into_iter().map(|name| name.to_ascii_lowercase()).collect());
    Ok(Some(FrontProxy {
        verifier,
        allowed_names: list(data, "requestheader-allowed-names")?,
        headers: HeaderNames {
            user: lower("requestheader-username-headers")?,
            uid: lower("requestheader-uid-headers")?,
            group: lower("requestheader-group-headers")?,
            extra_prefix: lower("requestheader-extra-headers-prefix")?,
        },
    }))
}

fn list(data: &BTreeMap<String, String>, key: &'static str) -> Result<Vec<String>, TrustError> {
    match data.get(key).map(|text| text.trim()).filter(|text| !text.is_empty()) {
        None => Ok(Vec::new()),
        Some(text) => serde_json::from_str(text).map_err(|source| TrustError::List { key, source }),
    }
}

fn bundle(data: &BTreeMap<String, String>, key: &'static str) -> Result<Option<ClientCas>, TrustError> {
    match data.get(key).filter(|text| !text.trim().is_empty()) {
        None => Ok(None),
        Some(text) => match ClientCas::from_pem(text.as_bytes()) {
            Ok(verifier) => Ok(Some(verifier)),
            Err(source) => Err(TrustError::Bundle { key, source }),
        },
    }
}
