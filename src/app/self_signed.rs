//! A certificate directory without a certificate gets one, as with any API server: self-signed, for the Service's names.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use anyhow::Context;
use tracing::warn;

use crate::cluster::pki::certificates::self_signed;
use crate::config::Certificate;
use crate::engine::Clock;

/// Who may read a key: its owner.
const KEY_MODE: u32 = 0o600;
/// Who may read a certificate: everybody.
const CERTIFICATE_MODE: u32 = 0o644;

/// Writes `files` into `directory` when neither is there. One of the two alone is an error of whoever put it there, which
/// reading them names.
///
/// # Errors
/// When they cannot be made or written.
pub(super) fn ensure(
    directory: &Path,
    files: &Certificate,
    names: &[String],
    clock: &dyn Clock,
) -> anyhow::Result<()> {
    let is_there = |path: &Path| fs::symlink_metadata(path).is_ok();
    if is_there(&files.chain) || is_there(&files.key) {
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
        "made a self-signed certificate: put the last certificate of tls.crt, its CA, into spec.caBundle of the APIServices"
    );
    Ok(())
}

/// Never replaces what somebody else has written meanwhile.
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
    fn a_certificate_directory_without_a_certificate_gets_one_that_is_kept() {
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
        assert!(!files.chain.exists(), "half a pair is somebody's mistake, and reading it says so");
        fs::remove_dir_all(&directory).unwrap();
        fs::write(&directory, "").unwrap();
        let error = ensure(&directory, &files, &names, &SystemClock).unwrap_err();
        assert!(error.to_string().contains("put a pair into it"), "{error:#}");
        fs::remove_file(&directory).unwrap();
    }
}
