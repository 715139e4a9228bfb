//! The kubeconfig of the demo. It is JSON, which is also YAML, and only its owner may read it.

use std::fs::{OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

use anyhow::anyhow;
use k8s_openapi::ByteString;
use serde_json::{Value, json};
use tempfile::TempPath;

use super::pki::{Pki, USER};

/// The file contains a private key, so only its owner may read and write it.
const OWNER_ONLY: u32 = 0o600;

/// Writes the kubeconfig for the server at `address`: to `chosen`, which is kept, else to a temporary file, which is removed when
/// the returned path is dropped.
pub(super) fn write(address: &str, pki: &Pki, chosen: Option<&Path>) -> anyhow::Result<TempPath> {
    let text = format!("{:#}\n", content(address, pki));
    let Some(path) = chosen else {
        let mut file = tempfile::Builder::new().prefix("wva-demo-").suffix(".kubeconfig").tempfile()?;
        file.write_all(text.as_bytes())?;
        return Ok(file.into_temp_path());
    };
    write_chosen(path, &text).map_err(|error| {
        anyhow!("{}: {error}; choose a writable file with --kubeconfig-out", path.display())
    })?;
    let mut path = TempPath::try_from_path(path)?;
    path.disable_cleanup(true);
    Ok(path)
}

fn write_chosen(path: &Path, text: &str) -> io::Result<()> {
    let mut options = OpenOptions::new();
    let mut file = options.write(true).create(true).truncate(true).mode(OWNER_ONLY).open(path)?;
    // The mode above has no effect on an existing file.
    file.set_permissions(Permissions::from_mode(OWNER_ONLY))?;
    file.write_all(text.as_bytes())
}

fn content(address: &str, pki: &Pki) -> Value {
    let data = |pem: &str| json!(ByteString(pem.as_bytes().to_vec()));
    json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{
            "name": "wva-demo",
            "cluster": { "server": format!("https://{address}"), "certificate-authority-data": data(&pki.ca) },
        }],
        "users": [{
            "name": USER,
            "user": {
                "client-certificate-data": data(&pki.client.certificate),
                "client-key-data": data(&pki.client.key),
            },
        }],
        "contexts": [{ "name": "wva-demo", "context": { "cluster": "wva-demo", "user": USER } }],
        "current-context": "wva-demo",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kubernetes_client_reads_it_and_only_its_owner_may() {
        let pki = Pki::generate("127.0.0.1").unwrap();
        let path = {
            let written = write("127.0.0.1:8443", &pki, None).unwrap();
            let mode = std::fs::metadata(&written).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600);
            let read = kube::config::Kubeconfig::read_from(&written).unwrap();
            let cluster = read.clusters[0].cluster.as_ref().unwrap();
            assert_eq!(cluster.server.as_deref(), Some("https://127.0.0.1:8443"));
            assert!(cluster.certificate_authority_data.is_some());
            assert!(read.auth_infos[0].auth_info.as_ref().unwrap().client_certificate_data.is_some());
            written.to_path_buf()
        };
        assert!(!path.exists(), "the temporary file is removed");
    }
}
