//! `custom.metrics.k8s.io`: the metrics of `external_metrics` as metrics of the objects that they are decided for. For HPAs of
//! type Object, where another server owns the external metrics.

mod answer;
mod encode;
mod label_selector;
mod object_path;
mod read;

pub(crate) use self::object_path::ObjectPath;
pub(crate) use self::read::{get, get_for_instance, unknown_path};
