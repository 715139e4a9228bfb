//! Whom the cluster trusts to authenticate callers: the data of ConfigMap `kube-system/extension-apiserver-authentication`,
//! parsed and validated, and replaced as a whole when the ConfigMap changes. The identity headers of the front proxy are read
//! only when the peer is the front proxy, and always removed. Pure.

use std::collections::BTreeMap;

use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderName};
use percent_encoding::percent_decode_str;

use super::reviewer::{Token, User};
use crate::serve::tls::pem::{ClientCas, PemError};

/// The name of the ConfigMap, for messages.
pub(crate) const CONFIG_MAP: &str = "ConfigMap kube-system/extension-apiserver-authentication";

/// The prefix of all default identity headers.
const REMOTE_PREFIX: &str = "x-remote-";

/// The longest token that is reviewed, in bytes: a service-account token has about 1 KiB, an OIDC token rarely 4 KiB.
const MAX_TOKEN_BYTES: usize = 16 * 1024;

/// A ConfigMap that cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TrustError {
    #[error(
        "{CONFIG_MAP}: key {key} is not a JSON array of strings ({source}); the last valid version stays in use"
    )]
    List { key: &'static str, source: serde_json::Error },
    #[error("{CONFIG_MAP}: key {key}: {source}; the last valid version stays in use")]
    Bundle { key: &'static str, source: PemError },
}

/// The CAs and names by which callers are authenticated.
#[derive(Debug, Default)]
pub(crate) struct Trust {
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
    pub(crate) fn parse(data: &BTreeMap<String, String>) -> Result<Self, TrustError> {
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

/// The user that the proxy names; `None` when it names nobody or a value is not UTF-8, which two parties could read
/// differently.
pub(crate) fn remote_user(headers: &HeaderMap, names: &HeaderNames) -> Option<User> {
    let name = first(headers, &names.user)?;
    let mut user = User::named(name);
    user.uid = first(headers, &names.uid);
    for header in &names.group {
        for value in headers.get_all(header.as_str()) {
            user.groups.push(text(value)?);
        }
    }
    for (header, value) in headers {
        let prefixes = names.extra_prefix.iter().filter(|prefix| !prefix.is_empty());
        if let Some(key) =
            prefixes.into_iter().find_map(|prefix| header.as_str().strip_prefix(prefix.as_str()))
        {
            let key = percent_decode_str(key).decode_utf8().ok()?.to_lowercase();
            user.extra.entry(key).or_default().push(text(value)?);
        }
    }
    Some(user)
}

/// The first value that is not empty, in the order of `names`.
fn first(headers: &HeaderMap, names: &[String]) -> Option<String> {
    let values = names.iter().flat_map(|name| headers.get_all(name.as_str()));
    values.filter_map(text).find(|value| !value.is_empty())
}

fn text(value: &http::HeaderValue) -> Option<String> {
    String::from_utf8(value.as_bytes().to_vec()).ok()
}

/// The bearer token, if there is a valid one.
pub(crate) fn bearer(headers: &HeaderMap) -> Option<Token> {
    let value = headers.get(AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = value.split_once(' ')?;
    let token = token.trim();
    let is_valid =
        scheme.eq_ignore_ascii_case("bearer") && !token.is_empty() && token.len() <= MAX_TOKEN_BYTES;
    is_valid.then(|| Token::new(token))
}

/// Removes every credential and identity header, so that no handler can mistake one for verified.
pub(crate) fn strip(headers: &mut HeaderMap, names: Option<&HeaderNames>) {
    headers.remove(AUTHORIZATION);
    let is_configured = |header: &str| {
        names.is_some_and(|names| {
            let exact =
                [&names.user, &names.uid, &names.group].into_iter().flatten().any(|name| name == header);
            exact || names.extra_prefix.iter().any(|prefix| !prefix.is_empty() && header.starts_with(prefix))
        })
    };
    let removed: Vec<HeaderName> = headers
        .keys()
        .filter(|name| name.as_str().starts_with(REMOTE_PREFIX) || is_configured(name.as_str()))
        .cloned()
        .collect();
    for name in removed {
        headers.remove(name);
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn names() -> HeaderNames {
        HeaderNames {
            user: vec!["x-remote-user".into(), "x-other-user".into()],
            uid: Vec::new(),
            group: vec!["x-remote-group".into()],
            extra_prefix: vec!["x-remote-extra-".into()],
        }
    }

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        pairs
            .iter()
            .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)))
            .collect()
    }

    #[test]
    fn a_group_that_is_not_utf8_invalidates_the_whole_identity() {
        let mut map = headers(&[("x-remote-user", "alice")]);
        map.insert("x-remote-group", HeaderValue::from_bytes(b"\xff").unwrap());
        assert_eq!(remote_user(&map, &names()), None);
    }

    #[test]
    fn bearer_reads_only_bearer_tokens() {
        let token = |value| bearer(&headers(&[("authorization", value)]));
        assert_eq!(token("bearer  t "), Some(Token::new("t")));
        assert_eq!(token("Basic dTpw"), None);
        assert_eq!(token("Bearer "), None);
        assert_eq!(format!("{:?}", Token::new("secret")), "Token(…)");
    }
}
