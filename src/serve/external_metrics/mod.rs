//! `external.metrics.k8s.io/v1beta1`: what the HPA controller reads. Renders published decisions and computes nothing.

mod answer;
mod candidates;
mod context;
mod encode;
mod errors;
pub(crate) mod field_selector;
mod lexer;
mod metric;
pub(crate) mod quantity;
pub(crate) mod query;
mod read;
pub(crate) mod selector;
mod variant_selector;

pub(crate) use self::answer::{Item, items};
pub(crate) use self::context::{MetricQuery, ReadContext, WaitingFor, WholeSeconds};
pub(crate) use self::errors::unknown_metric;
pub(crate) use self::metric::Metric;
pub(crate) use self::read::{MetricPath, get, get_for_instance};
pub(crate) use self::variant_selector::VariantSelector;
