//! Reads values out of a vector's inputs. What is neither as it should be nor may be left out is a panic.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};
use smol_str::SmolStr;
use wva_core::model::{Bounds, Role, Variant};
use wva_core::units::{Cost, Replicas, Requests, truncated_i64, truncated_u32};
use wva_core::upstream::Tree;

pub(super) fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("{value} is not a text"))
}

/// A text that may be left out.
pub(super) fn text_or_empty(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

pub(super) fn list(value: &Value) -> &[Value] {
    value.as_array().unwrap_or_else(|| panic!("{value} is not a list"))
}

/// A list that may be left out.
pub(super) fn list_or_empty(value: &Value) -> &[Value] {
    if value.is_null() { &[] } else { list(value) }
}

/// The elements of a list, as `read` reads them.
pub(super) fn all<'v, T, C: FromIterator<T>>(value: &'v Value, read: impl FnMut(&'v Value) -> T) -> C {
    list(value).iter().map(read).collect()
}

/// The element of a list that has this name, or null.
pub(super) fn named<'v>(states: &'v [Value], name: &str) -> &'v Value {
    states.iter().find(|state| state["name"] == name).unwrap_or(&Value::Null)
}

pub(super) fn object(value: &Value) -> &Map<String, Value> {
    value.as_object().unwrap_or_else(|| panic!("{value} is not an object"))
}

pub(super) fn float(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is not a number"))
}

/// A number that may be left out.
pub(super) fn float_or(value: &Value, default: f64) -> f64 {
    if value.is_null() { default } else { float(value) }
}

pub(super) fn float_or_zero(value: &Value) -> f64 {
    float_or(value, 0.0)
}

pub(super) fn single(value: &Value) -> f32 {
    float(value) as f32
}

pub(super) fn single_or_zero(value: &Value) -> f32 {
    float_or_zero(value) as f32
}

/// A queue may come as 3.0; it counts without its fraction.
pub(super) fn integer(value: &Value) -> u32 {
    let whole = value.as_u64().and_then(|whole| u32::try_from(whole).ok());
    let truncated = || value.as_f64().filter(|value| *value >= 0.0).map(truncated_u32);
    whole.or_else(truncated).unwrap_or_else(|| panic!("{value} is not a count"))
}

pub(super) fn integer_or(value: &Value, default: u32) -> u32 {
    if value.is_null() { default } else { integer(value) }
}

/// A count that may be left out; upstream reads a maximum of 0 or less as none.
pub(super) fn integer_or_zero(value: &Value) -> u32 {
    if value.as_i64().is_some_and(|value| value < 0) { 0 } else { integer_or(value, 0) }
}

/// A whole number, also when written as 3.0; too large is the largest.
pub(super) fn whole(value: &Value) -> i64 {
    let truncated = || value.as_f64().map(truncated_i64);
    value.as_i64().or_else(truncated).unwrap_or_else(|| panic!("{value} is not a whole number"))
}

pub(super) fn whole_or_zero(value: &Value) -> i64 {
    if value.is_null() { 0 } else { whole(value) }
}

pub(super) fn replicas(value: &Value) -> Replicas {
    Replicas::new(integer(value))
}

pub(super) fn replicas_or_zero(value: &Value) -> Replicas {
    Replicas::new(integer_or_zero(value))
}

pub(super) fn optional_replicas(value: &Value) -> Option<Replicas> {
    (!value.is_null()).then(|| replicas(value))
}

pub(super) fn bounds(value: &Value) -> Bounds {
    let max = replicas_or_zero(&value["max"]);
    Bounds { min: replicas_or_zero(&value["min"]), max: (max > Replicas::ZERO).then_some(max) }
}

pub(super) fn cost(value: &Value) -> Cost {
    Cost::new(float_or(value, Variant::DEFAULT_COST)).unwrap()
}

pub(super) fn requests(value: f64) -> Requests {
    Requests::new(value).unwrap()
}

pub(super) fn role(value: &Value) -> Role {
    match text_or_empty(value) {
        "" | "both" => Role::Both,
        "decode" => Role::Decode,
        "prefill" => Role::Prefill,
        unknown => panic!("unknown role {unknown}"),
    }
}

/// The tree of upstream whose arithmetic a vector shows, where it says so.
pub(super) fn tree(inputs: &Value) -> Option<Tree> {
    match inputs["tree"].as_str() {
        None => None,
        Some("526ce85") => Some(Tree::June),
        Some("late") => Some(Tree::August),
        Some(unknown) => panic!("unknown tree {unknown}"),
    }
}

/// Counts by name, if there are any.
pub(super) fn counts(value: &Value) -> BTreeMap<SmolStr, i64> {
    let counts = (!value.is_null()).then(|| object(value));
    counts.into_iter().flatten().map(|(name, count)| (name.into(), whole(count))).collect()
}

/// The names of a list.
pub(super) fn names(value: &Value) -> BTreeSet<SmolStr> {
    list_or_empty(value).iter().map(|name| text(name).into()).collect()
}
