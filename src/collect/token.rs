//! A bearer token from the settings or from a file. It is never shown. The file is read at every evaluation, because projected
//! service-account tokens are replaced while the program runs; the read takes microseconds.

use std::fmt;
use std::path::{Path, PathBuf};

use http::HeaderValue;
use parking_lot::Mutex;
use tokio::io::AsyncReadExt as _;

/// The longest token. Service-account tokens have 1–2 KiB, and servers reject headers above 16 KiB.
const MAX_TOKEN_BYTES: u64 = 16 * 1024;

/// Where a bearer token comes from.
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

/// Why a token cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum TokenError {
    #[error("cannot read the bearer token file {path}: {cause}; check that it is mounted and readable")]
    Unreadable { path: PathBuf, cause: std::io::Error },
    #[error(
        "the bearer token {origin} is empty, longer than 16 KiB or not one line of text; put one token there"
    )]
    Malformed { origin: String },
}

/// A source of the `Authorization` header.
pub(super) struct Bearer {
    token: Token,
    /// The last token that the file held.
    last: Mutex<Option<HeaderValue>>,
}

impl Bearer {
    pub(super) fn new(token: Token) -> Self {
        Self { token, last: Mutex::new(None) }
    }

    /// The header; `None` without a token. When the file cannot be read any more, the last token is used: it may still be valid,
    /// and if it is not, the server's answer says so.
    pub(super) async fn header(&self) -> Result<Option<HeaderValue>, TokenError> {
        let path = match &self.token {
            Token::None => return Ok(None),
            Token::Inline(text) => return header(text, "given as text").map(Some),
            Token::File(path) => path,
        };
        let read = read(path).await;
        let mut last = self.last.lock();
        match read {
            Ok(value) => *last = Some(value),
            Err(error) if last.is_none() => return Err(error),
            Err(error) => tracing::warn!(%error, "using the last bearer token"),
        }
        Ok(last.clone())
    }
}

async fn read(path: &Path) -> Result<HeaderValue, TokenError> {
    let unreadable = |cause| TokenError::Unreadable { path: path.to_owned(), cause };
    let file = tokio::fs::File::open(path).await.map_err(unreadable)?;
    let mut text = String::new();
    // One byte more than allowed, so that a longer file is detected instead of truncated.
    file.take(MAX_TOKEN_BYTES + 1).read_to_string(&mut text).await.map_err(unreadable)?;
    header(&text, &format!("in {}", path.display()))
}

fn header(text: &str, origin: &str) -> Result<HeaderValue, TokenError> {
    let malformed = || TokenError::Malformed { origin: origin.to_owned() };
    let token = text.trim();
    if token.is_empty() || token.len() as u64 > MAX_TOKEN_BYTES {
        return Err(malformed());
    }
    let mut value = HeaderValue::from_str(&format!("Bearer {token}")).map_err(|_| malformed())?;
    value.set_sensitive(true);
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_never_shown() {
        let token = Token::Inline("s3cret".into());
        assert!(!format!("{token:?}").contains("s3cret"));
        assert!(!format!("{:?}", header("s3cret", "x").unwrap()).contains("s3cret"));
    }

    #[test]
    fn an_unusable_token_is_an_error_that_says_where_it_is_and_not_what_it_is() {
        for bad in ["", "  \n", "two\nlines"] {
            let error = header(bad, "in /run/token").unwrap_err().to_string();
            assert!(error.contains("/run/token") && !error.contains("two"), "{error}");
        }
    }
}
