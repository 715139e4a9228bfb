//! Partial structs: the fields of a struct of the core's policy that an entry sets, with the ranges of their values.

use std::fmt;
use std::marker::PhantomData;
use std::time::Duration;

use serde::de::value::MapAccessDeserializer;
use serde::de::{DeserializeOwned, Deserializer, Error, IntoDeserializer, MapAccess, Visitor};
use serde::{Deserialize, de};
use smol_str::SmolStr;
use wva_core::model::{RatePolicy, ScaleToZero, Scoring, Stability, StepLimit};
use wva_core::units::{Replicas, Seconds, truncated_u32};

use super::super::ranged::{Number, Time, ranged};

/// The longest window. A longer one would outlast the daily pattern of any load.
const DAY: Duration = Duration::from_secs(86_400);
/// The longest idle time before a model is scaled to zero.
const MAX_RETENTION: Duration = Duration::from_secs(30 * 86_400);
/// The time after which a pod no longer counts as starting.
const MAX_START_UP: Duration = Duration::from_secs(1800);

ranged! {
    /// A fraction, or 0.
    pub(super) Fraction: f64 in Number::between(0.0, 1.0);
    /// A fraction above 0.
    pub(super) PositiveFraction: f64 in Number::above(0.0, 1.0);
    /// A number of requests in a queue.
    pub(super) QueueLength: f64 in Number::between(0.0, 1e15);
    /// A relative weight.
    pub(super) Weight: f64 in Number::above(0.0, 1e6);
    /// Spare capacity in multiples of the demand's square root: 10 triples the fleet of any load.
    pub(super) Headroom: f64 in Number::between(0.0, 10.0);
    /// A percentage of the current replicas.
    pub(super) Percent: f64 in Number::between(0.0, 10_000.0);
    /// A latency, at most one hour.
    pub(super) Latency: f64 in Number::above(0.0, 3.6e6).with_note("milliseconds");
    /// A multiple of the latency of an idle replica.
    pub(super) SloMultiplier: f64 in Number::above(1.0, 1000.0);
    /// Watts, or a cost per hour. The maximum is more than any cluster needs.
    pub(super) Budget: f64 in Number::between(0.0, 1e9);
    /// A priority, which is checked later.
    pub(super) AnyPriority: f64 in Number::between(-1e9, 1e9);
    /// Replicas that are added or removed at once. The maximum is more than any Deployment has.
    pub(super) ReplicaStep: f64 in Number::whole(1.0, 10_000.0);
    /// A number of GPUs of one type.
    pub(super) GpuQuota: f64 in Number::whole(-1.0, 1_048_576.0).with_note("-1 is unlimited");
    /// A window of time.
    pub(super) Window: Duration in Time::between(Duration::ZERO, DAY);
    /// The time in which a backlog is to be processed.
    pub(super) DrainTime: Duration in Time::between(Duration::from_secs(1), DAY);
    /// The start-up time of a pod.
    pub(super) StartUpTime: Duration in Time::between(Duration::ZERO, MAX_START_UP);
    /// The idle time before a model is scaled to zero.
    pub(super) Retention: Duration in Time::between(Duration::from_secs(1), MAX_RETENTION);
}

impl From<PositiveFraction> for Fraction {
    fn from(fraction: PositiveFraction) -> Self {
        Self(fraction.get())
    }
}

/// Settings that are applied to a policy `P`, or to a field of one.
pub(super) trait Overlay<P> {
    /// Changes what is set here, and leaves the rest of `policy` as it is.
    fn apply_to(&self, policy: &mut P);
}

impl<T: Overlay<P>, P> Overlay<P> for Option<T> {
    fn apply_to(&self, policy: &mut P) {
        if let Some(overlay) = self {
            overlay.apply_to(policy);
        }
    }
}

macro_rules! values {
    ($($plain:ty: $($name:ident)*, |$value:ident| $convert:expr;)*) => {$($(
        impl Overlay<$plain> for $name {
            fn apply_to(&self, policy: &mut $plain) {
                let $value = self.get();
                *policy = $convert;
            }
        }
    )*)*};
}

values! {
    f64: Fraction PositiveFraction QueueLength Headroom Percent SloMultiplier, |value| value;
    Option<f64>: Latency QueueLength, |value| Some(value);
    Replicas: ReplicaStep, |count| Replicas::new(truncated_u32(count));
    Seconds: Window DrainTime StartUpTime Retention, |duration| seconds(duration);
    bool: Switch, |value| value;
}

fn seconds(duration: Duration) -> Seconds {
    Seconds::new(duration.as_secs_f64()).unwrap_or_default()
}

/// Defines a struct of optional fields. Those before `with` are applied to the fields of the same names of the core's policy.
macro_rules! overlay {
    (
        $(#[$doc:meta])* $name:ident over $policy:ty { $($(#[$meta:meta])* $field:ident: $type:ty,)* }
        $(with { $($(#[$other_meta:meta])* $other:ident: $other_type:ty,)* })?
    ) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Default, serde::Deserialize)]
        #[serde(rename_all = "camelCase", default, deny_unknown_fields)]
        pub(super) struct $name {
            $($(#[$meta])* pub(super) $field: Option<$type>,)*
            $($($(#[$other_meta])* pub(super) $other: Option<$other_type>,)*)?
        }

        impl Overlay<$policy> for $name {
            fn apply_to(&self, policy: &mut $policy) {
                $(self.$field.apply_to(&mut policy.$field);)*
            }
        }
    };
}

pub(super) use overlay;

overlay! {
    /// Settings of the rate policy.
    RateOverlay over RatePolicy {
        surge_headroom: Headroom,
        utilisation: PositiveFraction,
        #[serde(rename = "targetTTFT")]
        ttft_ms: Latency,
        #[serde(rename = "targetITL")]
        itl_ms: Latency,
        dwell: Window,
        drain: DrainTime,
        start_up: StartUpTime,
    }
}

overlay! {
    /// Settings of the analyzers `threshold` and `weighted`. Their thresholds are fields of the entry.
    ScoringOverlay over Scoring {
        more: ReplicaStep,
        fewer: ReplicaStep,
        queue_limit: QueueLength,
    }
}

overlay! {
    /// Settings of how fast numbers change.
    StabilityOverlay over Stability {
        up_window: Window,
        down_window: Window,
        up_step: Section<StepOverlay>,
        down_step: Section<StepOverlay>,
        dwell: Window,
        tolerance: Fraction,
    }
}

overlay! {
    /// Settings of the largest change at once.
    StepOverlay over StepLimit {
        replicas: ReplicaStep,
        percent: Percent,
    }
}

/// An empty section sets no limit.
impl Overlay<Option<StepLimit>> for StepOverlay {
    fn apply_to(&self, policy: &mut Option<StepLimit>) {
        if *self != Self::default() {
            self.apply_to(policy.get_or_insert_default());
        }
    }
}

overlay! {
    /// Settings of scaling to zero.
    ScaleToZeroOverlay over ScaleToZero {
        enabled: Switch,
        #[serde(rename = "retentionPeriod")]
        retention: Retention,
    }
}

/// A mapping of fields. A derived `Deserialize` alone would also accept a list of the field values in order.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Section<T>(pub(super) T);

impl<T: Overlay<P>, P> Overlay<P> for Section<T> {
    fn apply_to(&self, policy: &mut P) {
        self.0.apply_to(policy);
    }
}

impl<'de, T: Deserialize<'de> + Default> Deserialize<'de> for Section<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(Mapping(PhantomData)).map(Self)
    }
}

struct Mapping<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de> + Default> Visitor<'de> for Mapping<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a mapping of fields")
    }

    fn visit_unit<E>(self) -> Result<T, E> {
        Ok(T::default())
    }

    fn visit_map<A: MapAccess<'de>>(self, fields: A) -> Result<T, A::Error> {
        T::deserialize(MapAccessDeserializer::new(fields))
    }
}

/// True or false, also as a YAML 1.1 word such as `yes`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Switch(bool);

impl Switch {
    pub(super) const fn get(self) -> bool {
        self.0
    }
}

impl<'de> Deserialize<'de> for Switch {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct SwitchVisitor;

        impl Visitor<'_> for SwitchVisitor {
            type Value = bool;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("true or false")
            }

            fn visit_bool<E>(self, value: bool) -> Result<bool, E> {
                Ok(value)
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<bool, E> {
                match text.to_ascii_lowercase().as_str() {
                    "y" | "yes" | "on" => Ok(true),
                    "n" | "no" | "off" => Ok(false),
                    _ => Err(E::invalid_value(de::Unexpected::Str(text), &self)),
                }
            }
        }

        from.deserialize_any(SwitchVisitor).map(Self)
    }
}

/// A string. Unlike in YAML, a number or a switch is not converted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Text(SmolStr);

impl Text {
    pub(super) fn get(&self) -> SmolStr {
        self.0.clone()
    }

    /// The text of a field; `None` if it is empty.
    pub(super) fn non_empty(field: &Option<Self>) -> Option<&SmolStr> {
        field.as_ref().map(|text| &text.0).filter(|text| !text.is_empty())
    }
}

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct TextVisitor;

        impl Visitor<'_> for TextVisitor {
            type Value = SmolStr;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("text: put it in quotes")
            }

            fn visit_str<E>(self, text: &str) -> Result<SmolStr, E> {
                Ok(text.into())
            }
        }

        from.deserialize_any(TextVisitor).map(Self)
    }
}

/// An optional field with one of the names of `T`; an empty one is not set.
pub(super) fn name<'de, D: Deserializer<'de>, T: DeserializeOwned>(from: D) -> Result<Option<T>, D::Error> {
    let text = Option::<Text>::deserialize(from)?;
    Text::non_empty(&text).map(|name| T::deserialize(name.as_str().into_deserializer())).transpose()
}
