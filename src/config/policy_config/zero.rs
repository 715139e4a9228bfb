//! An entry of the ConfigMap of scaling to zero.

use smol_str::SmolStr;
use wva_core::model::ScaleToZero;
use wva_core::units::Seconds;

use super::fields::Fields;
use super::last_good::DEFAULT;

/// How long a model must have been idle: from a second to a month.
pub(super) const RETENTION: (Seconds, Seconds) = (Seconds::whole(1), Seconds::whole(30 * 86_400));
/// Longer than this is legal, and rarely meant.
const LONG: Seconds = Seconds::whole(86_400);

/// An entry as written.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Entry {
    pub(super) model: Option<SmolStr>,
    enabled: Option<bool>,
    retention: Option<Seconds>,
}

impl Entry {
    pub(super) fn read(fields: &mut Fields<'_>, key: &str) -> Self {
        let model = fields.text("model_id").map(SmolStr::from);
        match (key == DEFAULT, &model) {
            (true, Some(_)) => {
                fields.note("model_id", "has no effect here: the entry default is about every model")
            }
            (false, None) => {
                fields.refuse_all("model_id is missing: must be the modelID of the model's variants")
            }
            _ => {}
        }
        if fields.text("namespace").is_some() {
            fields.note("namespace", "has no effect: an entry is about its model in all namespaces");
        }
        let enabled = fields.switch("enable_scale_to_zero");
        let (least, most) = RETENTION;
        let retention = fields.duration("retention_period", least, most);
        if retention.is_some_and(|time| time > LONG) {
            fields.note("retention_period", "is more than a day");
        }
        Self { model, enabled, retention }
    }

    /// What this leaves open is as `below` says.
    pub(super) fn over(&self, below: ScaleToZero) -> ScaleToZero {
        ScaleToZero {
            enabled: self.enabled.unwrap_or(below.enabled),
            retention: self.retention.unwrap_or(below.retention),
        }
    }
}
