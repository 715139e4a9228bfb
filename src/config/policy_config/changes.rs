//! What a new policy changes, for the log.

use serde_json::Value;
use wva_core::Policy;

use super::super::ranged::shorten;

/// Changes that are named; of more, the number.
const MAX_NAMED: usize = 20;
/// Changes that are looked for: of more, nobody reads the number.
const MAX_CHANGES: usize = 1000;
/// Characters that are shown of a value.
const MAX_VALUE_CHARS: usize = 120;

/// Each field that differs, as `path: before → now`.
#[must_use]
pub fn changes(before: &Policy, now: &Policy) -> Vec<String> {
    // A policy that could not be written as JSON would be no reason to keep it from the engine.
    let value = |policy| serde_json::to_value(policy).unwrap_or_default();
    let mut changes = Vec::new();
    compare(String::new(), &value(before), &value(now), &mut changes);
    let more = changes.len().saturating_sub(MAX_NAMED);
    changes.truncate(MAX_NAMED);
    if more > 0 {
        changes.push(format!("and {more} more"));
    }
    changes
}

fn compare(path: String, before: &Value, now: &Value, changes: &mut Vec<String>) {
    match (before, now) {
        _ if before == now || changes.len() > MAX_CHANGES => {}
        (Value::Object(old), Value::Object(new)) => {
            for (name, was) in old {
                compare(join(&path, name), was, new.get(name).unwrap_or(&Value::Null), changes);
            }
            for (name, is) in new.iter().filter(|(name, _)| !old.contains_key(*name)) {
                compare(join(&path, name), &Value::Null, is, changes);
            }
        }
        _ => changes.push(format!("{path}: {} → {}", shown(before), shown(now))),
    }
}

fn join(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}

fn shown(value: &Value) -> String {
    if value.is_null() { "none".to_owned() } else { shorten(&value.to_string(), MAX_VALUE_CHARS) }
}
