//! Types of values with a range. A value outside is rejected with an error that contains the value and the range.

use std::fmt;
use std::time::Duration;

use jiff::SignedDuration;
use schemars::{Schema, json_schema};
use serde::de::{Error, Visitor};

/// The error for a zero that counts as an unset value.
pub(super) const LEFT_OUT: &str = "0 counts as left out";
/// Characters of a value that are shown.
const MAX_VALUE_CHARS: usize = 60;

/// At most `max` characters of a text, on one line.
pub(super) fn shorten(text: &str, max: usize) -> String {
    let mut chars = text.chars().map(|char| if char.is_control() { ' ' } else { char });
    let mut short: String = chars.by_ref().take(max).collect();
    if chars.next().is_some() {
        short.push('…');
    }
    short
}

/// A text in quotes, for a message.
pub(super) fn quote(text: &str) -> String {
    format!("{:?}", shorten(text, MAX_VALUE_CHARS))
}

/// The range of a number.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Number {
    min: f64,
    max: f64,
    is_whole: bool,
    /// Whether `min` itself is out of range. Then 0 counts as left out, because upstream's controllers write 0 for unset fields.
    is_above: bool,
    note: &'static str,
}

impl Number {
    /// `min` to `max`.
    pub(crate) const fn between(min: f64, max: f64) -> Self {
        Self { min, max, is_whole: false, is_above: false, note: "" }
    }

    /// Above `min`, and at most `max`; 0 counts as left out.
    pub(crate) const fn above(min: f64, max: f64) -> Self {
        Self { min, max, is_whole: false, is_above: true, note: "" }
    }

    /// A whole number, `min` to `max`.
    pub(crate) const fn whole(min: f64, max: f64) -> Self {
        Self { min, max, is_whole: true, is_above: false, note: "" }
    }

    /// The same range, with a unit or another note.
    pub(crate) const fn with_note(self, note: &'static str) -> Self {
        Self { note, ..self }
    }

    /// The range for a JSON schema.
    pub(crate) fn schema(self) -> Schema {
        let kind = if self.is_whole { "integer" } else { "number" };
        let min = if self.is_above { "exclusiveMinimum" } else { "minimum" };
        json_schema!({ "type": kind, min: self.min, "maximum": self.max })
    }

    fn check<E: Error>(self, value: f64) -> Result<f64, E> {
        if self.is_above && value == 0.0 {
            return Err(E::custom(LEFT_OUT));
        }
        let is_at_least = if self.is_above { value > self.min } else { value >= self.min };
        if is_at_least && value <= self.max && (!self.is_whole || value.fract() == 0.0) {
            return Ok(value);
        }
        Err(E::custom(format!("{value} is out of range: must be {self}")))
    }

    /// What to write before the range, which itself names whole numbers.
    fn kind(self) -> &'static str {
        if self.is_whole { "" } else { "a number, " }
    }
}

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (min, max) = (Brief(self.min), Brief(self.max));
        match (self.is_whole, self.is_above) {
            (true, _) => write!(f, "a whole number, {min} to {max}")?,
            (false, true) => write!(f, "above {min} and at most {max}")?,
            (false, false) => write!(f, "{min} to {max}")?,
        }
        if self.note.is_empty() { Ok(()) } else { write!(f, " ({})", self.note) }
    }
}

/// A number in short form: 1e9 instead of 1000000000.
struct Brief(f64);

impl fmt::Display for Brief {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let exponential = format!("{:e}", self.0);
        if self.0 >= 1e9 && exponential.len() < 5 { f.write_str(&exponential) } else { self.0.fmt(f) }
    }
}

impl Visitor<'_> for Number {
    type Value = f64;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{self}", self.kind())
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<f64, E> {
        self.check(value)
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<f64, E> {
        self.check(wva_core::units::to_f64(value))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<f64, E> {
        self.check(wva_core::units::to_f64(i64::try_from(value).unwrap_or(i64::MAX)))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<f64, E> {
        Err(E::custom(format!("{} is not a number: must be {}{self}", quote(text), self.kind())))
    }
}

/// The range of a duration.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Time {
    min: Duration,
    max: Duration,
}

impl Time {
    /// `min` to `max`.
    pub(crate) const fn between(min: Duration, max: Duration) -> Self {
        Self { min, max }
    }

    /// The duration of a text outside of a document; `None` if it is none, or out of range.
    pub(crate) fn parse(self, text: &str) -> Option<Duration> {
        self.visit_str::<serde::de::value::Error>(text).ok()
    }

    /// The format of a duration, for a JSON schema.
    pub(crate) fn schema(self) -> Schema {
        json_schema!({
            "type": "string",
            "pattern": "^([0-9]+(\\.[0-9]+)?(h|m|s|ms))( ?[0-9]+(\\.[0-9]+)?(h|m|s|ms))*$",
            "examples": ["90s", "10m", "1h30m"],
        })
    }

    fn check<E: Error>(self, text: &str, span: Option<Duration>) -> Result<Duration, E> {
        match span {
            Some(span) if (self.min..=self.max).contains(&span) => Ok(span),
            Some(_) => Err(E::custom(format!("{text} is out of range: must be {self}"))),
            None => Err(E::custom(format!("{text} is not a duration: must be {self}"))),
        }
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} to {}, such as 90s, 10m or 1h30m", DisplayDuration(self.min), DisplayDuration(self.max))
    }
}

impl Visitor<'_> for Time {
    type Value = Duration;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a duration, {self}")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Duration, E> {
        let given = text.trim();
        if given == "0" {
            return self.check("0", Some(Duration::ZERO));
        }
        let span = given.parse::<SignedDuration>().ok();
        match span.map(Duration::try_from) {
            Some(Err(_)) => Err(E::custom(format!("{} is out of range: must be {self}", quote(text)))),
            span => self.check(&quote(text), span.and_then(Result::ok)),
        }
    }

    /// Zero needs no unit.
    fn visit_f64<E: Error>(self, value: f64) -> Result<Duration, E> {
        if value == 0.0 {
            return self.check("0", Some(Duration::ZERO));
        }
        Err(E::custom(format!("{value} has no unit: must be {self}")))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Duration, E> {
        self.visit_f64(wva_core::units::to_f64(value))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Duration, E> {
        self.visit_f64(wva_core::units::to_f64(i64::try_from(value).unwrap_or(i64::MAX)))
    }
}

/// Displays a duration as people write it, such as 1h 30m.
pub(crate) struct DisplayDuration(pub(crate) Duration);

impl fmt::Display for DisplayDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match SignedDuration::try_from(self.0) {
            Ok(span) if !span.is_zero() => write!(f, "{span:#}"),
            _ => f.write_str("0s"),
        }
    }
}

/// Defines types of values in a range: `vis Name: f64 in Number::between(…);` or `vis Name: Duration in Time::between(…);`.
macro_rules! ranged {
    ($($(#[$doc:meta])* $vis:vis $name:ident: $plain:ident in $range:expr;)*) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
        $vis struct $name($plain);

        impl $name {
            /// The plain value.
            #[must_use]
            $vis const fn get(self) -> $plain {
                self.0
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                from.deserialize_any($range).map(Self)
            }
        }

        impl schemars::JsonSchema for $name {
            fn inline_schema() -> bool {
                true
            }

            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($name).into()
            }

            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                $range.schema()
            }
        }
    )*};
}

pub(crate) use ranged;
