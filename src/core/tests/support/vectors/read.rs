//! Reads values out of a vector's inputs.

use serde_json::{Map, Value};
use wva_core::model::{Bounds, Role, Variant};
use wva_core::units::{Cost, Replicas};

pub(super) fn text_of(value: &Value) -> Result<String, String> {
    value.as_str().map(str::to_owned).ok_or_else(|| format!("{value} is not a text"))
}

pub(super) fn list(value: &Value) -> Result<&Vec<Value>, String> {
    value.as_array().ok_or_else(|| format!("{value} is not a list"))
}

pub(super) fn object(value: &Value) -> Result<&Map<String, Value>, String> {
    value.as_object().ok_or_else(|| format!("{value} is not an object"))
}

pub(super) fn float(value: &Value) -> Result<f64, String> {
    value.as_f64().ok_or_else(|| format!("{value} is not a number"))
}

pub(super) fn single(value: &Value) -> Result<f32, String> {
    float(value).map(|value| value as f32)
}

/// A number that may be left out.
pub(super) fn float_or(value: &Value, default: f64) -> Result<f64, String> {
    if value.is_null() { Ok(default) } else { float(value) }
}

pub(super) fn integer(value: &Value) -> Result<u32, String> {
    let whole = value.as_u64().and_then(|whole| u32::try_from(whole).ok());
    // A queue may come as 3.0; it counts without its fraction.
    let found =
        whole.or_else(|| value.as_f64().filter(|value| *value >= 0.0).map(wva_core::units::truncated_u32));
    found.ok_or_else(|| format!("{value} is not a count"))
}

pub(super) fn replicas(value: &Value) -> Result<Replicas, String> {
    integer(value).map(Replicas::new)
}

pub(super) fn optional_replicas(value: &Value) -> Result<Option<Replicas>, String> {
    if value.is_null() { Ok(None) } else { replicas(value).map(Some) }
}

pub(super) fn or_zero(value: &Value) -> Result<Replicas, String> {
    // Upstream reads a maximum of 0 or less as none.
    if value.is_null() || value.as_i64().is_some_and(|value| value < 0) {
        Ok(Replicas::ZERO)
    } else {
        replicas(value)
    }
}

pub(super) fn cost(value: &Value) -> Result<Cost, String> {
    let given = if value.is_null() { Variant::DEFAULT_COST } else { float(value)? };
    Cost::new(given).map_err(|error| error.to_string())
}

/// A number that may be missing: 0 then.
pub(super) fn number(value: &Value) -> Result<f64, String> {
    float_or(value, 0.0)
}

pub(super) fn role(value: &Value) -> Result<Role, String> {
    match value.as_str().unwrap_or_default() {
        "" | "both" => Ok(Role::Both),
        "decode" => Ok(Role::Decode),
        "prefill" => Ok(Role::Prefill),
        other => Err(format!("unknown role {other}")),
    }
}

pub(super) fn bounds(value: &Value) -> Result<Bounds, String> {
    let max = or_zero(&value["max"])?;
    Ok(Bounds { min: or_zero(&value["min"])?, max: (max > Replicas::ZERO).then_some(max) })
}
