//! Writes a self-signed certificate for the Service's names into a certificate directory that has none, as any API server does.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use anyhow::Context;
use tracing::warn;

use crate::cluster::pki::certificates::self_signed;
use crate::config::Certificate;
use crate::engine::Clock;

/// A key is readable by its owner only.
const KEY_MODE: u32 = 0o600;
/// A certificate is readable by everybody.
const CERTIFICATE_MODE: u32 = 0o644;

/// Writes `files` into `directory` when neither exists. If only one does, nothing is written, and reading them reports it.
///
/// # Errors
/// When they cannot be issued or written.
pub(super) fn ensure(
    directory: &Path,
    files: &Certificate,
    names: &[String],
    clock: &dyn Clock,
) -> anyhow::Result<()> {
    let exists = |path: &Path| fs::symlink_metadata(path).is_ok();
    if exists(&files.chain) || exists(&files.key) {
        return Ok(());
    }
    let (chain, key) = self_signed(names, clock.now())?;
    let written = fs::create_dir_all(directory)
        .and_then(|()| write(&files.key, KEY_MODE, &key))
        .and_then(|()| write(&files.chain, CERTIFICATE_MODE, &chain));
    let shown = directory.display();
    written.with_context(|| {
        format!(
            "--cert-dir {shown} has no tls.crt and tls.key, and a self-signed pair cannot be written there: put a pair into it, \
             make it writable, or leave the flag out"
        )
    })?;
    warn!(
        directory = shown.to_string().as_str(),
        "wrote a self-signed certificate: put the last certificate of tls.crt, its CA, into spec.caBundle of the APIServices"
    );
    Ok(())
}

/// Never replaces a file that was written meanwhile.
fn write(path: &Path, mode: u32, text: &str) -> io::Result<()> {
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(path)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::engine::SystemClock;

    #[test]
    fn an_empty_certificate_directory_gets_a_pair_that_is_kept() {
        let directory = std::env::temp_dir().join(format!("wva-self-signed-{}", std::process::id()));
        let files = Certificate { chain: directory.join("tls.crt"), key: directory.join("tls.key") };
        let names = ["wva.x.svc".to_owned()];
        ensure(&directory, &files, &names, &SystemClock).unwrap();
        let (chain, key) =
            (fs::read_to_string(&files.chain).unwrap(), fs::read_to_string(&files.key).unwrap());
        assert_eq!(chain.matches("BEGIN CERTIFICATE").count(), 2, "the certificate and its CA");
        assert!(key.contains("PRIVATE KEY"));
        assert_eq!(fs::metadata(&files.key).unwrap().permissions().mode() & 0o777, KEY_MODE);
        ensure(&directory, &files, &names, &SystemClock).unwrap();
        assert_eq!(fs::read_to_string(&files.chain).unwrap(), chain);
        fs::remove_file(&files.chain).unwrap();
        ensure(&directory, &files, &names, &SystemClock).unwrap();
        assert!(!files.chain.exists(), "half a pair is a mistake that reading it reports");
        fs::remove_dir_all(&directory).unwrap();
        fs::write(&directory, "").unwrap();
        let error = ensure(&directory, &files, &names, &SystemClock).unwrap_err();
        assert!(error.to_string().contains("put a pair into it"), "{error:#}");
        fs::remove_file(&directory).unwrap();
    }
}
