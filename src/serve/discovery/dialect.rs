//! The versions of OpenAPI.

use serde_json::{Value, json};

/// The version of OpenAPI.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Dialect {
    V2,
    V3,
}

/// The schema of a text.
pub(super) fn text(description: &str) -> Value {
    json!({"type": "string", "description": description})
}
