//! Text that is never shown.

use std::fmt;

/// Text that is a secret, or may contain one, such as the password in a URL. It is left out of debug output.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl From<String> for Secret {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("…")
    }
}

impl Secret {
    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The text.
    #[must_use]
    pub fn into_text(self) -> String {
        self.0
    }

    /// `text`, unless it is empty: manifests set variables to the empty string.
    pub(super) fn non_empty(text: Option<Self>) -> Option<Self> {
        text.filter(|text| !text.0.is_empty())
    }
}
