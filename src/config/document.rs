//! YAML and JSON documents written by people. All mistakes are found at once, each with its field, its value and what is valid.

use std::fmt;

use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_path_to_error::{Path, Segment};
use serde_saphyr::options::NonFiniteFloatPolicy;

use super::ranged::{LEFT_OUT, quote, shorten};

/// The deepest document. The deepest field has four levels.
const MAX_DEPTH: usize = 16;
/// Most values in a document; an alias counts each time it is used. An entry has a few dozen.
const MAX_NODES: usize = 20_000;
/// Most mistakes that are reported of one document. Each takes another pass over it.
const MAX_MISTAKES: usize = 100;
/// Characters of the parser's error that are shown.
const MAX_SYNTAX_CHARS: usize = 200;

/// What is wrong with a document, for its author.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Diagnostics {
    /// Why the document is rejected.
    pub(super) errors: Vec<String>,
    /// Hints for its author, without effect on the document.
    pub(super) notes: Vec<String>,
}

impl Diagnostics {
    pub(super) fn error(&mut self, text: impl Into<String>) {
        self.errors.push(text.into());
    }

    pub(super) fn note(&mut self, text: impl Into<String>) {
        self.notes.push(text.into());
    }
}

/// Parses a document. An empty one is null.
///
/// # Errors
/// The location and cause of a syntax error.
pub(super) fn parse(text: &str) -> Result<Value, String> {
    if text.trim().is_empty() {
        return Ok(Value::Null);
    }
    let budget = serde_saphyr::budget! {
        max_depth: MAX_DEPTH,
        max_nodes: MAX_NODES,
        max_events: 4 * MAX_NODES,
        max_documents: 1,
    };
    let options = serde_saphyr::options! {
        budget: budget,
        with_snippet: false,
        // A model may be called n or off.
        strict_booleans: true,
        // Shown as written, and then refused as not a number.
        non_finite_float_policy: NonFiniteFloatPolicy::AsString,
    };
    serde_saphyr::from_str_with_options(text, options)
        .map_err(|error| shorten(&error.to_string(), MAX_SYNTAX_CHARS))
}

/// Deserialises `document`. After a mistake, the wrong value is removed and the rest is read again, so that the author sees all
/// mistakes at once. `None` if the rest cannot be read.
pub(super) fn read<T: DeserializeOwned>(mut document: Value, diagnostics: &mut Diagnostics) -> Option<T> {
    for _ in 0..MAX_MISTAKES {
        let error = match serde_path_to_error::deserialize::<_, T>(&document) {
            Ok(read) => return Some(read),
            Err(error) => error,
        };
        let path = error.path().clone();
        let message = error.into_inner().to_string();
        if message == LEFT_OUT {
            diagnostics.note(format!("{path} {LEFT_OUT}"));
        } else {
            diagnostics.error(describe(&path, find(&mut document, path.iter()), &message));
        }
        if !remove(&mut document, &path) {
            return None;
        }
    }
    diagnostics.error(format!("more than {MAX_MISTAKES} values are wrong"));
    None
}

/// The value at a path.
fn find<'a, 'p>(
    document: &'a mut Value,
    mut path: impl Iterator<Item = &'p Segment>,
) -> Option<&'a mut Value> {
    path.try_fold(document, |value, segment| match segment {
        Segment::Map { key } => value.get_mut(key),
        Segment::Seq { index } => value.get_mut(index),
        Segment::Enum { .. } | Segment::Unknown => None,
    })
}

/// Removes the value at `path`. In a list it becomes null, so that the indices of the others do not change. Returns false if there
/// is nothing to remove.
fn remove(document: &mut Value, path: &Path) -> bool {
    let mut parent = path.iter();
    let Some(last) = parent.next_back() else { return false };
    match (find(document, parent), last) {
        (Some(Value::Object(fields)), Segment::Map { key }) => fields.remove(key).is_some(),
        (Some(Value::Array(items)), Segment::Seq { index }) => {
            items.get_mut(*index).is_some_and(|item| !item.take().is_null())
        }
        _ => false,
    }
}

/// Describes a mistake. Errors of ranged types contain the value and the range; for all others, serde says what it expected.
fn describe(path: &Path, value: Option<&mut Value>, message: &str) -> String {
    let field = if path.iter().next().is_none() { "the entry".to_owned() } else { path.to_string() };
    match message.rsplit_once(", expected ") {
        Some((error, expected)) if error.starts_with("unknown field") => {
            let known = expected.trim_start_matches("one of ").replace("` or `", "`, `").replace('`', "");
            format!("{field} is not a field: must be one of {known}")
        }
        Some((_, expected)) => {
            let expected = match expected {
                "f64" => "a number".to_owned(),
                "u32" | "u64" | "i64" => "a whole number".to_owned(),
                "a sequence" => "a list".to_owned(),
                "a map" => "a mapping".to_owned(),
                _ => expected.replace('`', ""),
            };
            format!(
                "{field} is {}: must be {expected}",
                ValueSummary(value.as_deref().unwrap_or(&Value::Null))
            )
        }
        None => format!("{field} {message}"),
    }
}

/// A value in a message.
struct ValueSummary<'a>(&'a Value);

impl fmt::Display for ValueSummary<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Value::Null => f.write_str("nothing"),
            Value::Array(items) => write!(f, "a list of {}", items.len()),
            Value::Object(fields) => write!(f, "a mapping of {}", fields.len()),
            Value::String(text) => f.write_str(&quote(text)),
            Value::Bool(_) | Value::Number(_) => self.0.fmt(f),
        }
    }
}

/// Merges `patch` into `base`: mappings are merged, everything else is replaced.
pub(super) fn merge(base: &mut Value, patch: Value) {
    match (base, patch) {
        (Value::Object(base), Value::Object(patch)) => {
            for (key, value) in patch {
                merge(base.entry(key).or_insert(Value::Null), value);
            }
        }
        (base, patch) => *base = patch,
    }
}
