//! Numbers that every part of learning needs.

/// Share of a sum that is left after `seconds`, when it decays by a factor e in `time_constant` seconds.
pub(super) fn decay(seconds: f64, time_constant: f64) -> f64 {
    (-seconds.max(0.0) / time_constant).exp()
}

/// `value` rounded to six significant digits: more are not worth their bytes in a state object.
pub(super) fn six_digits(value: f64) -> f64 {
    let scale = 10_f64.powf(5.0 - value.abs().log10().floor());
    let rounded = (value * scale).round() / scale;
    if rounded.is_finite() { rounded } else { value }
}

pub(super) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}
