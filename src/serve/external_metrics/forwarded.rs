//! Reads that other installations answer too: what a read is about, and values on their way between installations. Values travel
//! as data, and each installation writes the answers for its own clients. What arrives is treated like any input.

use std::cell::OnceCell;
use std::collections::BTreeSet;
use std::future::Future;
use std::sync::Arc;

use axum::Json;
use axum::response::{IntoResponse, Response};
use http::request::Parts;
use jiff::{SignedDuration, Timestamp};
use serde::de::{self, DeserializeOwned};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use smol_str::SmolStr;
use wva_core::VariantId;
use wva_core::text::is_plain;
use wva_core::units::Replicas;

use super::answer::{ExternalMetricValue, ForwardedOrigin, ValueOrigin};
use super::metric::{Labels, Quantity};
use super::query::VariantSelector;
use crate::engine::{ClusterView, Published};
use crate::serve::auth::Attributes;
use crate::serve::data_read::ReadState;
use crate::serve::encoding::{Reason, Status, one_line};
use crate::serve::middleware::AuditId;
use crate::serve::paths::MAX_NAME_BYTES;

/// Bytes of each text of a value, which people read in tables.
const MAX_TEXT_BYTES: usize = 512;

/// The oldest evidence that an installation may answer with.
const MAX_AGE: SignedDuration = SignedDuration::from_hours(24);

/// How far the clock of another installation may be ahead.
const MAX_CLOCK_DIFFERENCE: SignedDuration = SignedDuration::from_mins(5);

/// A valid read of a metric of variants, in either API group.
pub(crate) trait MetricRead: Sized + Send + Sync {
    /// The path parameters.
    type Path: DeserializeOwned + Send + Sync;

    /// What is authorised.
    fn attributes(path: &Self::Path, request: &Parts) -> Result<Attributes, Status>;

    fn parse(request: &Parts, path: Self::Path) -> Result<Self, Status>;

    /// The answer about a metric that is not of variants: by the rules, or by the fallback server. `None` for a metric of variants, or where
    /// there is neither. Every instance answers by itself.
    fn beside_variants(
        request: (&Parts, &AuditId),
        path: &Self::Path,
        state: &ReadState,
    ) -> impl Future<Output = Option<Result<Response, Status>>> + Send;

    /// The answer of this installation alone.
    fn render(&self, state: &ReadState, published: &Published) -> Result<Response, Status>;

    /// The same for an installation that forwarded the read.
    fn render_values(&self, state: &ReadState, published: &Published) -> Result<Response, Status>;

    /// The answer from the values of several installations, at least one, in their order.
    fn render_merged(&self, state: &ReadState, values: &[ForwardedValue]) -> Result<Response, Status>;

    fn scope(&self, state: &ReadState) -> ReadScope<'_>;

    /// Why `value`, which another installation sent, is not one that the read asks for.
    fn mismatch(&self, value: &ForwardedValue) -> Option<&'static str>;

    /// True when the error of an installation says that it has nothing which the read selects. Without a number of a variant that is
    /// selected, the values of others would be a wrong sum.
    fn selects_nothing(&self, error: &Status) -> bool;

    /// An error about what was requested, with its cause.
    fn error(&self, reason: Reason, cause: &str) -> Status;
}

/// What a read is about.
pub(crate) struct ReadScope<'a> {
    pub(crate) namespace: &'a str,
    pub(crate) selector: VariantSelector<'a>,
    pub(crate) ours: Ours,
    pub(crate) now: Timestamp,
}

/// How much of what a read is about belongs to this installation, as far as its watches know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ours {
    Nothing,
    Part,
    All,
}

impl<'a> ReadScope<'a> {
    /// The scope of a read that selects variants by `selector`.
    pub(crate) fn of_selector(state: &ReadState, namespace: &'a str, selector: VariantSelector<'a>) -> Self {
        let names = selector.names();
        let ours = if !selector.allows_instance(state.controller_instance.as_deref()) {
            Ours::Nothing
        } else if names.is_empty() {
            Ours::Part
        } else {
            let known = Known::new(state, namespace);
            let ours = names.iter().filter(|name| known.is_ours(name)).count();
            let all = if ours == names.len() { Ours::All } else { Ours::Part };
            known.unless_unknown((ours > 0).then_some(all))
        };
        Self { namespace, selector, ours, now: state.reader.now() }
    }

    /// The scope of a read of the object that `is_ours` looks up.
    pub(crate) fn of_object(
        state: &ReadState,
        namespace: &'a str,
        selector: VariantSelector<'a>,
        is_ours: impl FnOnce(&Known<'_>) -> bool,
    ) -> Self {
        let known = Known::new(state, namespace);
        let ours = if selector.allows_instance(state.controller_instance.as_deref()) {
            known.unless_unknown(is_ours(&known).then_some(Ours::All))
        } else {
            Ours::Nothing
        };
        Self { namespace, selector, ours, now: state.reader.now() }
    }
}

/// The variants of a namespace that this instance knows.
pub(crate) struct Known<'a> {
    namespace: &'a str,
    pub(crate) view: Arc<ClusterView>,
    newest: Arc<Published>,
    /// The invalid ones, collected once, when a name is found nowhere else: a selector may name thousands.
    invalid: OnceCell<BTreeSet<SmolStr>>,
}

impl<'a> Known<'a> {
    fn new(state: &ReadState, namespace: &'a str) -> Self {
        Self { namespace, view: state.reader.view(), newest: state.reader.newest(), invalid: OnceCell::new() }
    }

    /// True for a variant of this installation, by any of its names.
    pub(crate) fn is_ours(&self, name: &str) -> bool {
        let id = VariantId::new(self.namespace, name);
        self.newest.decisions.contains_key(&id)
            || self.view.variant(&id).is_some()
            || self.view.aliases.contains_key(&id)
            || self.invalid.get_or_init(|| self.invalid_names()).contains(name)
    }

    fn invalid_names(&self) -> BTreeSet<SmolStr> {
        let invalid = self.view.invalid.iter().map(|invalid| &invalid.id);
        invalid.filter(|id| id.namespace == self.namespace).map(|id| id.name.clone()).collect()
    }

    /// Before the first listing, what is not known to be ours may still be.
    fn unless_unknown(&self, ours: Option<Ours>) -> Ours {
        let nothing = if self.view.synced { Ours::Nothing } else { Ours::Part };
        ours.unwrap_or(nothing)
    }
}

/// The value of one variant, on its way between installations.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ForwardedValue {
    pub(crate) variant: VariantId,
    /// The name by which the read finds it: its own, or a further one.
    pub(crate) name: SmolStr,
    /// The object that the metric describes, in reads of metrics of objects.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) object: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    accelerator: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) controller_instance: Option<String>,
    timestamp: Timestamp,
    #[serde(
        rename = "thousandths",
        serialize_with = "serialize_quantity",
        deserialize_with = "deserialize_quantity"
    )]
    value: Quantity,
    #[serde(flatten)]
    origin: ForwardedOrigin,
}

fn serialize_quantity<S: Serializer>(value: &Quantity, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(value.thousandths())
}

/// One that no installation decides is an error: older HPAs cut it to 32 bits, and scale to the minimum.
fn deserialize_quantity<'a, D: Deserializer<'a>>(deserializer: D) -> Result<Quantity, D::Error> {
    let thousandths = u64::deserialize(deserializer)?;
    if thousandths > u64::from(Replicas::MAX.get()) * 1_000 {
        return Err(de::Error::custom(format!(
            "{thousandths} thousandths are more than {} replicas",
            Replicas::MAX
        )));
    }
    Quantity::from_milli(thousandths).map_err(de::Error::custom)
}

/// The values of an answer to an installation.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct ForwardedValues {
    pub(crate) values: Vec<ForwardedValue>,
}

impl ForwardedValues {
    pub(crate) fn into_response(self) -> Response {
        Json(self).into_response()
    }
}

impl ForwardedValue {
    /// `value` of the described `object`.
    pub(crate) fn new(value: &ExternalMetricValue<'_>, object: Option<&str>) -> Self {
        let label = |key| value.metric_labels.get(key).map(str::to_owned);
        Self {
            variant: value.id.clone(),
            name: value.metric_labels.get("variant_name").unwrap_or_default().into(),
            object: object.map(str::to_owned),
            accelerator: label("accelerator_type"),
            controller_instance: label("controller_instance"),
            timestamp: value.timestamp,
            value: value.value,
            origin: ForwardedOrigin {
                reason: value.origin.reason().to_owned(),
                model: value.origin.model().to_owned(),
                message: one_line(&value.origin.message(), MAX_TEXT_BYTES),
            },
        }
    }

    /// The name by which the read counts the value, once: that of the described object, or that in its labels.
    pub(crate) fn key(&self) -> &str {
        self.object.as_deref().unwrap_or(&self.name)
    }

    pub(crate) fn labels(&self) -> Labels<'_> {
        let (accelerator, instance) = (self.accelerator.as_deref(), self.controller_instance.as_deref());
        Labels::new(&self.variant, accelerator, instance).with_name(&self.name)
    }

    /// The value of `metric_name` again.
    pub(crate) fn value(&self, metric_name: &'static str) -> ExternalMetricValue<'_> {
        ExternalMetricValue {
            metric_name,
            metric_labels: self.labels(),
            timestamp: self.timestamp,
            value: self.value,
            id: &self.variant,
            origin: ValueOrigin::Forwarded(&self.origin),
        }
    }

    /// What is wrong with a value that was received for a read of this `scope`; shortens what only people read.
    pub(crate) fn validate(&mut self, scope: &ReadScope<'_>) -> Result<(), &'static str> {
        if self.variant.namespace != scope.namespace {
            return Err("it has a variant of another namespace");
        }
        let age = scope.now.duration_since(self.timestamp);
        if age > MAX_AGE || -age > MAX_CLOCK_DIFFERENCE {
            return Err("its timestamp is in the future, or older than a day");
        }
        let optional = [&self.object, &self.accelerator, &self.controller_instance].map(Option::as_deref);
        let names = [self.variant.name.as_str(), self.name.as_str()];
        let is_name = |name: &str| name.len() <= MAX_NAME_BYTES && name.chars().all(is_plain);
        if names.iter().any(|name| name.is_empty())
            || !names.into_iter().chain(optional.into_iter().flatten()).all(is_name)
        {
            return Err("it has a name that no object has");
        }
        let ForwardedOrigin { reason, model, message } = &mut self.origin;
        for text in [reason, model, message] {
            *text = one_line(text, MAX_TEXT_BYTES);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_of_an_own_variant_scanned_the_invalid_ones_of_the_cluster() {
        let mut view = ClusterView::default();
        view.aliases.insert(VariantId::new("a", "own"), "x".into());
        let known = Known {
            namespace: "a",
            view: Arc::new(view),
            newest: Arc::new(Published::empty()),
            invalid: OnceCell::new(),
        };
        assert!(known.is_ours("own") && known.invalid.get().is_none());
        assert!(!known.is_ours("none") && known.invalid.get().is_some());
    }
}
