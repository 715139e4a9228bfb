//! The differences between two policies, for the log.

use serde_json::Value;
use wva_core::Policy;

use super::super::ranged::shorten;

/// Most changes that are listed; the others are counted.
const MAX_LISTED: usize = 20;
/// Most changes that are counted.
const MAX_CHANGES: usize = 1000;
/// Characters of a value that are shown.
const MAX_VALUE_CHARS: usize = 120;

/// Each field that differs, as `path: before → after`.
#[must_use]
pub fn changes(before: &Policy, after: &Policy) -> Vec<String> {
    // If a policy could not be serialised, only the log would be incomplete.
    let value = |policy| serde_json::to_value(policy).unwrap_or_default();
    let mut changes = Vec::new();
    compare(String::new(), &value(before), &value(after), &mut changes);
    let more = changes.len().saturating_sub(MAX_LISTED);
    changes.truncate(MAX_LISTED);
    if more > 0 {
        changes.push(format!("and {more} more"));
    }
    changes
}

fn compare(path: String, before: &Value, after: &Value, changes: &mut Vec<String>) {
    match (before, after) {
        _ if before == after || changes.len() > MAX_CHANGES => {}
        (Value::Object(old), Value::Object(new)) => {
            for (name, value) in old {
                compare(join(&path, name), value, new.get(name).unwrap_or(&Value::Null), changes);
            }
            for (name, value) in new.iter().filter(|(name, _)| !old.contains_key(*name)) {
                compare(join(&path, name), &Value::Null, value, changes);
            }
        }
        _ => changes.push(format!("{path}: {} → {}", display(before), display(after))),
    }
}

fn join(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}

fn display(value: &Value) -> String {
    if value.is_null() { "none".to_owned() } else { shorten(&value.to_string(), MAX_VALUE_CHARS) }
}
