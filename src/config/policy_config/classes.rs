//! The legacy solver's two ConfigMaps: classes of service, and what accelerators cost.

use wva_core::model::{ClassTarget, ServiceClass, UnitCost};
use wva_core::units::Cost;

use super::fields::{Fields, Range};
use super::queueing::targets;

/// A class, one a key. Its author may leave out its name, as in WVA, and a priority that is none counts as the lowest.
pub(super) fn class(fields: &mut Fields<'_>) -> ServiceClass {
    let name = fields.text("name").unwrap_or(ServiceClass::UNNAMED).into();
    let any = Range::from(-1e9, 1e9, "a number, 1 to 100");
    let priority = fields.number("priority", any);
    let lowest = ServiceClass::LOWEST;
    let legal = priority.and_then(|given| (1..=lowest).find(|one| (f64::from(*one) - given).abs() < 1e-9));
    if legal.is_none() && priority.is_some() {
        fields.note("priority", "is not a whole number from 1 to 100: it counts as 100, the lowest");
    }
    let targets = fields.each("data", |fields| {
        let model = fields.text("model");
        if model.is_none() {
            fields.refuse_all("model is missing");
        }
        let latency = targets(fields, "slo-ttft", "slo-tpot");
        if latency.is_none() {
            fields.note("slo-ttft", "and slo-tpot are not both given: nothing is promised for this model");
        }
        Some(ClassTarget { model: model?.into(), latency: latency? })
    });
    let targets = targets.into_iter().flatten().flatten().collect();
    ServiceClass { name, priority: legal.unwrap_or(lowest), targets }
}

/// An accelerator, one a key, which is its name.
pub(super) fn accelerator(fields: &mut Fields<'_>) -> Option<UnitCost> {
    let device = fields.text("device").unwrap_or_default().into();
    let cost = fields.needed("cost", Range::from(0.0, 1e9, "a number, 0 to 1e9"));
    Some(UnitCost { device, cost: Cost::new(cost?).ok()? })
}
