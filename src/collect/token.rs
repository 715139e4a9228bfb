//! The value of a header, such as a bearer token, from the settings or from a file. It is never shown. The file is read at every
//! evaluation, because projected service-account tokens are replaced while the program runs; the read takes microseconds.

use std::fmt;
use std::path::{Path, PathBuf};

use http::{HeaderName, HeaderValue};
use parking_lot::Mutex;
use tokio::io::AsyncReadExt as _;

/// The longest token or other value. Service-account tokens have 1–2 KiB, and servers reject headers above 16 KiB.
const MAX_TOKEN_BYTES: u64 = 16 * 1024;

/// What precedes a bearer token in its header.
pub(super) const BEARER_PREFIX: &str = "Bearer ";

/// Where a bearer token, or the value of another header, comes from.
#[derive(Clone, Default)]
pub enum Token {
    /// No token.
    #[default]
    None,
    /// The token itself.
    Inline(String),
    /// A file with the token; surrounding white space is ignored.
    File(PathBuf),
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("None"),
            Self::Inline(_) => f.write_str("Inline(…)"),
            Self::File(path) => f.debug_tuple("File").field(path).finish(),
        }
    }
}

/// Why the value of a header cannot be used. Names the header, and never shows a value.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HeaderError {
    #[error("cannot read the file {path} with the {what}: {cause}; check that it is mounted and readable")]
    Unreadable { what: String, path: PathBuf, cause: std::io::Error },
    #[error("the {what} {origin} is empty, longer than 16 KiB or not one line of text; put one value there")]
    Malformed { what: String, origin: String },
}

/// A source of the value of one header.
pub(crate) struct HeaderSource {
    token: Token,
    /// What precedes the token in the value.
    prefix: &'static str,
    /// The token, for people.
    what: String,
    /// The last value that the file held.
    last: Mutex<Option<HeaderValue>>,
}

impl HeaderSource {
    /// The `Authorization` header with a bearer token.
    pub(crate) fn bearer(token: Token) -> Self {
        Self { token, prefix: BEARER_PREFIX, what: "bearer token".into(), last: Mutex::new(None) }
    }

    /// The header `name`, of which the token is the whole value.
    pub(super) fn named(name: &HeaderName, token: Token) -> Self {
        Self { token, prefix: "", what: format!("value of the header {name}"), last: Mutex::new(None) }
    }

    /// The value; `None` without a token. When the file cannot be read any more, the last value is used: it may still be valid,
    /// and if it is not, the server's answer says so.
    pub(crate) async fn value(&self) -> Result<Option<HeaderValue>, HeaderError> {
        let path = match &self.token {
            Token::None => return Ok(None),
            Token::Inline(text) => return self.header(text, "given as text").map(Some),
            Token::File(path) => path,
        };
        let read = self.read(path).await;
        let mut last = self.last.lock();
        match read {
            Ok(value) => *last = Some(value),
            Err(error) if last.is_none() => return Err(error),
            Err(error) => tracing::warn!(%error, "using the last {}", self.what),
        }
        Ok(last.clone())
    }

    async fn read(&self, path: &Path) -> Result<HeaderValue, HeaderError> {
        let unreadable =
            |cause| HeaderError::Unreadable { what: self.what.clone(), path: path.to_owned(), cause };
        let file = tokio::fs::File::open(path).await.map_err(unreadable)?;
        let mut text = String::new();
        // One byte more than allowed, so that a longer file is detected instead of truncated.
        file.take(MAX_TOKEN_BYTES + 1).read_to_string(&mut text).await.map_err(unreadable)?;
        self.header(&text, &format!("in {}", path.display()))
    }

    fn header(&self, text: &str, origin: &str) -> Result<HeaderValue, HeaderError> {
        let malformed = || HeaderError::Malformed { what: self.what.clone(), origin: origin.to_owned() };
        let token = text.trim();
        if token.is_empty() || token.len() as u64 > MAX_TOKEN_BYTES {
            return Err(malformed());
        }
        let value = HeaderValue::from_str(&format!("{}{token}", self.prefix));
        let mut value = value.map_err(|_| malformed())?;
        value.set_sensitive(true);
        Ok(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_never_shown() {
        let token = Token::Inline("s3cret".into());
        assert!(!format!("{token:?}").contains("s3cret"));
        let source = HeaderSource::bearer(token);
        assert!(!format!("{:?}", source.header("s3cret", "x").unwrap()).contains("s3cret"));
    }

    #[test]
    fn an_unusable_token_is_an_error_that_says_where_it_is_and_not_what_it_is() {
        for bad in ["", "  \n", "two\nlines"] {
            let source = HeaderSource::named(&HeaderName::from_static("x-scope-orgid"), Token::None);
            let error = source.header(bad, "in /run/token").unwrap_err().to_string();
            assert!(error.contains("x-scope-orgid in /run/token") && !error.contains("two"), "{error}");
        }
    }
}
