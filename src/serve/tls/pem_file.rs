//! A file with CA certificates that is read again and again, so that renewed ones are used without a restart.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::time::sleep;

use super::certificates::read;
use super::pem;

/// The file and its newest valid content.
pub(crate) struct PemFile {
    path: PathBuf,
    recheck_interval: Duration,
    content: ArcSwap<Content>,
}

/// The text, or why there has been none yet.
type Content = Result<Arc<str>, String>;

impl PemFile {
    /// A file that has not been read yet.
    pub(crate) fn new(path: PathBuf, recheck_interval: Duration) -> Self {
        let content = Err(format!("{} has not been read yet", path.display()));
        Self { path, recheck_interval, content: ArcSwap::from_pointee(content) }
    }

    /// The newest valid text.
    ///
    /// # Errors
    /// Names the file and why it has not been usable yet.
    pub(crate) fn text(&self) -> Content {
        Content::clone(&self.content.load())
    }

    /// Reads the file for ever. What cannot be used is logged once, and what could be used before stays in use.
    pub(crate) async fn follow(&self) {
        let mut logged = None;
        loop {
            let error = self.refresh().await.err();
            if let Some(error) = error.as_ref().filter(|error| logged.as_ref() != Some(*error)) {
                tracing::warn!(error, "CA certificates cannot be used");
            }
            logged = error;
            sleep(self.recheck_interval).await;
        }
    }

    /// Reads the file once.
    async fn refresh(&self) -> Result<(), String> {
        let newest = self.read().await;
        match newest {
            Ok(text) if self.text().as_ref() != Ok(&text) => self.content.store(Arc::new(Ok(text))),
            Ok(_) => {}
            Err(error) => {
                if self.text().is_err() {
                    self.content.store(Arc::new(Err(error.clone())));
                }
                return Err(error);
            }
        }
        Ok(())
    }

    async fn read(&self) -> Content {
        let failed = |cause: &dyn std::fmt::Display| format!("{}: {cause}", self.path.display());
        let bytes = read(&self.path).await.map_err(|error| failed(&error))?;
        pem::roots(&bytes).map_err(|error| failed(&error))?;
        String::from_utf8(bytes).map(Arc::from).map_err(|error| failed(&error))
    }
}
