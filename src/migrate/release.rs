//! The releases of Helm, from the Secrets in which it stores them: `helm uninstall` deletes what the newest one lists, except for
//! objects with the annotation `helm.sh/resource-policy: keep` *in the stored manifest*. Annotations of the live objects do not count.

use std::io::Read;

use flate2::read::GzDecoder;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Deserialize;
use serde_json::Value;

use super::documents;
use super::report::ObjectName;

/// The type of the Secrets.
pub(super) const SECRET_TYPE: &str = "helm.sh/release.v1";
/// The first bytes of a compressed release; older ones are not compressed.
const GZIP: [u8; 3] = [0x1f, 0x8b, 0x08];
/// Largest release. A Secret has at most 1 MiB, which text compresses to a tenth.
const MAX_RELEASE_BYTES: u64 = 32 * 1024 * 1024;

/// What is stored of a release.
#[derive(Debug, Clone)]
pub(super) struct Release {
    /// Its revision.
    pub(super) version: u64,
    /// Name and version of its chart.
    pub(super) chart: (String, String),
    /// The objects that `helm uninstall` deletes, and those that it keeps.
    pub(super) objects: Vec<ReleaseObject>,
    /// The documents of its manifest that cannot be read, and why.
    pub(super) unread: Vec<String>,
}

/// An object of a release.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ReleaseObject {
    pub(super) kind: String,
    pub(super) name: ObjectName,
    pub(super) is_kept: bool,
}

/// The part of a stored release that is read.
#[derive(Deserialize)]
struct StoredRelease {
    version: u64,
    #[serde(default)]
    manifest: String,
    #[serde(default)]
    chart: StoredChart,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct StoredChart {
    metadata: ChartMetadata,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct ChartMetadata {
    name: String,
    version: String,
}

impl Release {
    /// Decodes the Secret of a release in `namespace`.
    pub(super) fn decode(secret: &Secret, namespace: &str) -> Result<Self, String> {
        let data = secret.data.as_ref().and_then(|data| data.get("release"));
        let data = data.ok_or("it has no key release")?;
        // Helm encodes what the API server encodes again.
        let text = String::from_utf8(data.0.clone()).map_err(|_| "its release is no text")?;
        let ByteString(bytes) = serde_json::from_value(Value::String(text))
            .map_err(|error| format!("its release is not base64: {error}"))?;
        let json = if bytes.starts_with(&GZIP) { unzip(&bytes)? } else { bytes };
        let stored: StoredRelease = serde_json::from_slice(&json)
            .map_err(|error| format!("its release is no JSON of Helm: {error}"))?;
        let (mut objects, mut unread) = (Vec::new(), Vec::new());
        for (number, document) in documents::objects(&stored.manifest) {
            match document {
                Ok(document) => objects.extend(ReleaseObject::of(&document, namespace)),
                Err(cause) => unread.push(format!("document {number} of its manifest: {cause}")),
            }
        }
        let ChartMetadata { name, version } = stored.chart.metadata;
        Ok(Self { version: stored.version, chart: (name, version), objects, unread })
    }

    /// What `helm uninstall` deletes.
    pub(super) fn deleted(&self) -> impl Iterator<Item = &ReleaseObject> {
        self.objects.iter().filter(|object| !object.is_kept)
    }
}

impl ReleaseObject {
    fn of(document: &Value, namespace: &str) -> Option<Self> {
        let text = |path: &str| document.pointer(path).and_then(Value::as_str);
        let policy = text("/metadata/annotations/helm.sh~1resource-policy");
        let namespace = text("/metadata/namespace").unwrap_or(namespace);
        Some(Self {
            kind: text("/kind")?.into(),
            name: ObjectName::new(namespace, text("/metadata/name")?),
            // Helm ignores case and spaces.
            is_kept: policy.is_some_and(|policy| policy.trim().eq_ignore_ascii_case("keep")),
        })
    }
}

/// The release that an object names as its owner.
pub(super) fn owner(metadata: &ObjectMeta) -> Option<ObjectName> {
    let annotations = metadata.annotations.as_ref()?;
    let (namespace, name) =
        (annotations.get("meta.helm.sh/release-namespace")?, annotations.get("meta.helm.sh/release-name")?);
    (is_name(namespace) && is_name(name)).then(|| ObjectName::new(namespace, name))
}

/// True for an RFC 1123 subdomain, which a shell takes for one word.
pub(super) fn is_name(name: &str) -> bool {
    let is_alphanumeric = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let bytes = name.as_bytes();
    bytes.len() <= 253
        && bytes.first().is_some_and(is_alphanumeric)
        && bytes.last().is_some_and(is_alphanumeric)
        && bytes.iter().all(|byte| is_alphanumeric(byte) || matches!(byte, b'-' | b'.'))
}

fn unzip(bytes: &[u8]) -> Result<Vec<u8>, String> {
    let mut json = Vec::new();
    let read = GzDecoder::new(bytes).take(MAX_RELEASE_BYTES + 1).read_to_end(&mut json);
    read.map_err(|error| format!("its release cannot be decompressed: {error}"))?;
    if u64::try_from(json.len()).is_ok_and(|bytes| bytes > MAX_RELEASE_BYTES) {
        return Err(format!("its release has more than {MAX_RELEASE_BYTES} bytes"));
    }
    Ok(json)
}
