//! The scorecard of a model.

use super::forecasts::DemandForecasts;
use super::replicas::ReplicaPredictions;
use crate::learn::knowledge::{ModelKnowledge, RoleKnowledge};
use crate::model::Role;
use crate::moment::Moment;
use crate::report::Scorecard;

impl ModelKnowledge {
    /// Compares the forecasts that are due with the arrivals that were counted.
    pub(crate) fn match_forecasts(&mut self, now: Moment) {
        for role in self.roles.values_mut() {
            let RoleKnowledge { forecasts, arrivals, .. } = &mut **role;
            forecasts.match_due(arrivals.bins(), now);
        }
    }

    /// What became of the predictions about the variant called `variant`, and about its `role`.
    pub(crate) fn scorecard(&self, variant: &str, role: Role) -> Scorecard {
        let demand = self.roles.get(&role).map(|known| &known.forecasts);
        let replicas = self.variants.get(variant).map(|known| &known.predictions);
        Scorecard {
            demand: demand.map(DemandForecasts::figures).unwrap_or_default(),
            seconds_ahead: demand.and_then(DemandForecasts::seconds_ahead),
            capacity: replicas.map(ReplicaPredictions::capacity).unwrap_or_default(),
            start_up: replicas.map(ReplicaPredictions::start_up).unwrap_or_default(),
        }
    }
}
