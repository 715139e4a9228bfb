//! Whether external metrics come from this program at all.

use super::input::ExternalMetrics;
use super::metric::Read;
use super::words::{Severity, Words};

/// What lets HPAs read the number where another program owns the API.
pub(crate) const OWNER_FIX: &str = "# let HPAs read the number as a metric of the variant (manifests/samples/hpa-object.yaml, chart value \
                                    apiService.custom.enabled),\n# or let the chart own it (apiService.enabled), after its owner gave it up: docs/migration.md";
/// What makes this program the owner of an API that nobody owns.
pub(crate) const INSTALL_FIX: &str = "# helm upgrade … --set apiService.enabled=true";

/// The APIService of external metrics.
const API_SERVICE: &str = "v1beta1.external.metrics.k8s.io";

/// An HPA reads external metrics, which this program does not serve.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiIssue {
    /// Who does.
    owner: ExternalMetrics,
}

/// Whether an HPA with these reads asks another program for the number.
pub(super) fn judge(external: Option<&ExternalMetrics>, reads: &[Read]) -> Option<ApiIssue> {
    let is_external = reads.iter().any(|read| matches!(read, Read::External(_)));
    let owner = external.filter(|_| is_external)?.clone();
    Some(ApiIssue { owner })
}

impl ApiIssue {
    pub(super) fn words(&self) -> Words {
        let effect = "it gets no number, and keeps its replicas whatever the load is";
        match &self.owner {
            ExternalMetrics::Nobody => Words::new(
                (Severity::Error, "ApiServiceMissing"),
                format!("it reads an external metric, and APIService {API_SERVICE} does not exist"),
                effect,
                INSTALL_FIX,
            ),
            ExternalMetrics::Another(owner) => Words::new(
                (Severity::Warning, "ApiServiceOfAnother"),
                format!(
                    "it reads an external metric, and APIService {API_SERVICE} points at {owner}, which is not this program"
                ),
                format!(
                    "unless that program reads the number from here, as prometheus-adapter can, {effect}"
                ),
                OWNER_FIX,
            ),
        }
    }
}
