//! YAML and JSON documents that people write. Every mistake is found at once, each with its field, its value and what is allowed.

use std::fmt;

use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_path_to_error::{Path, Segment};
use serde_saphyr::options::NonFiniteFloatPolicy;

use super::ranged::{LEFT_OUT, quote, shorten};

/// Deeper documents than this are refused: the deepest field has four levels.
const MAX_DEPTH: usize = 16;
/// Documents of more values than this are refused, aliases counted as often as they are used: an entry has some dozens.
const MAX_NODES: usize = 20_000;
/// Mistakes that are looked for in one document. Each costs another pass over it.
const MAX_MISTAKES: usize = 100;
/// Characters that are shown of what the parser says of a document.
const MAX_SYNTAX_CHARS: usize = 200;

/// What is wrong with a document, for its author.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Diagnostics {
    /// Why the document does not count.
    pub(super) errors: Vec<String>,
    /// What its author should know; the document counts.
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

/// Parses one document. An empty one is null.
///
/// # Errors
/// Where and why it is not one.
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

/// Reads all of `document`. After a mistake what is wrong is taken out and the rest is read again, so that its author sees
/// all mistakes at once. `None` when there was no way to read the rest.
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
        if !take_out(&mut document, &path) {
            return None;
        }
    }
    diagnostics.error(format!("more than {MAX_MISTAKES} values are wrong"));
    None
}

/// The value at the end of a path.
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

/// Takes the value at the end of `path` out; in a list null takes its place, so that the others keep theirs. False when nothing
/// is left to take out.
fn take_out(document: &mut Value, path: &Path) -> bool {
    let mut outer = path.iter();
    let Some(last) = outer.next_back() else { return false };
    match (find(document, outer), last) {
        (Some(Value::Object(fields)), Segment::Map { key }) => fields.remove(key).is_some(),
        (Some(Value::Array(items)), Segment::Seq { index }) => {
            items.get_mut(*index).is_some_and(|item| !item.take().is_null())
        }
        _ => false,
    }
}

/// A mistake in words: the ranged types say value and range themselves, of all others serde says what it expected.
fn describe(path: &Path, value: Option<&mut Value>, message: &str) -> String {
    let place = if path.iter().next().is_none() { "the entry".to_owned() } else { path.to_string() };
    match message.rsplit_once(", expected ") {
        Some((what, expected)) if what.starts_with("unknown field") => {
            let known = expected.trim_start_matches("one of ").replace("` or `", "`, `").replace('`', "");
            format!("{place} is not a field: must be one of {known}")
        }
        Some((_, expected)) => {
            let expected = match expected {
                "f64" => "a number".to_owned(),
                "u32" | "u64" | "i64" => "a whole number".to_owned(),
                "a sequence" => "a list".to_owned(),
                "a map" => "a mapping".to_owned(),
                _ => expected.replace('`', ""),
            };
            format!("{place} is {}: must be {expected}", Shown(value.as_deref().unwrap_or(&Value::Null)))
        }
        None => format!("{place} {message}"),
    }
}

/// A value as its author sees it.
struct Shown<'a>(&'a Value);

impl fmt::Display for Shown<'_> {
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

/// Lays `over` on `base`: mappings are merged, everything else is replaced.
pub(super) fn lay_over(base: &mut Value, over: Value) {
    match (base, over) {
        (Value::Object(base), Value::Object(over)) => {
            for (key, value) in over {
                lay_over(base.entry(key).or_insert(Value::Null), value);
            }
        }
        (base, over) => *base = over,
    }
}
