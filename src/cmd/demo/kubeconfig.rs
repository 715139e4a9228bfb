//! The file that lets kubectl ask the demo. JSON, which every YAML reader reads; its key is readable by its owner only.

use std::fs::{File, OpenOptions, Permissions};
use std::io::Write as _;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use k8s_openapi::ByteString;
use serde_json::{Value, json};

use super::DemoError;
use super::pki::{Pki, USER};

/// It holds a private key: read and written by its owner, by nobody else.
const OWNER_ONLY: u32 = 0o600;

/// The file; removed at the end when nobody chose its name.
pub(super) struct Written {
    path: PathBuf,
    ours: bool,
}

impl Written {
    /// Where it is.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Written {
    fn drop(&mut self) {
        if self.ours {
            // Certificates of a dead process: if it stays it is litter, not harm.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Writes the kubeconfig for the server at `address`: to `chosen`, else to a new file among the temporary ones.
pub(super) fn write(address: &str, pki: &Pki, chosen: Option<&Path>) -> Result<Written, DemoError> {
    let written = match chosen {
        Some(path) => Written { path: path.to_owned(), ours: false },
        None => {
            let name = format!("wva-demo-{}.kubeconfig", std::process::id());
            Written { path: std::env::temp_dir().join(name), ours: true }
        }
    };
    let failed = |source| DemoError::Kubeconfig { path: written.path.clone(), source };
    let mut file = create(&written).map_err(failed)?;
    let text = format!("{:#}\n", content(address, pki));
    file.write_all(text.as_bytes()).map_err(failed)?;
    Ok(written)
}

fn create(written: &Written) -> std::io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).mode(OWNER_ONLY);
    if written.ours {
        // Never through somebody else's link in a directory that everybody may write to.
        options.create_new(true);
    } else {
        options.create(true).truncate(true);
    }
    let file = options.open(&written.path)?;
    // A file that was there before may be open to all.
    file.set_permissions(Permissions::from_mode(OWNER_ONLY))?;
    Ok(file)
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
            let mode = std::fs::metadata(written.path()).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600);
            let read = kube::config::Kubeconfig::read_from(written.path()).unwrap();
            let cluster = read.clusters[0].cluster.as_ref().unwrap();
            assert_eq!(cluster.server.as_deref(), Some("https://127.0.0.1:8443"));
            assert!(cluster.certificate_authority_data.is_some());
            assert!(read.auth_infos[0].auth_info.as_ref().unwrap().client_certificate_data.is_some());
            written.path().to_owned()
        };
        assert!(!path.exists(), "a file that nobody asked for does not stay");
    }
}
