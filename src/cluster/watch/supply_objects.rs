//! What is kept of a ResourceQuota, and of a LocalQueue of Kueue. Pure.

use kube::core::error_boundary::InvalidObject;
use serde::Deserialize;
use serde::de::IgnoredAny;
use smol_str::SmolStr;
use tracing::info;
use wva_core::text::plain;

use super::partial_objects::{PartialObject, PodCondition, Quantities};
use super::template::{GPU_RESOURCES, whole};
use crate::cluster::objects::ObjectKey;

/// Longest explanation of a queue that is kept, bytes.
const MAX_REASON_BYTES: usize = 128;
/// Before the name of a resource that a quota counts. It counts extended resources by requests alone.
const REQUESTS: &str = "requests.";

/// A ResourceQuota.
pub(super) type PartialQuota = PartialObject<QuotaSpec, QuotaStatus>;
/// A LocalQueue of any version.
pub(super) type PartialQueue = PartialObject<QueueSpec, QueueStatus>;

#[derive(Deserialize, Debug, Clone, Default)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct QuotaSpec {
    scopes: Vec<String>,
    scope_selector: Option<IgnoredAny>,
}

#[derive(Deserialize, Debug, Clone, Default)]
#[serde(default)]
pub(super) struct QuotaStatus {
    hard: Quantities,
    used: Quantities,
}

#[derive(Deserialize, Debug, Clone, Default)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct QueueSpec {
    stop_policy: Option<String>,
}

#[derive(Deserialize, Debug, Clone, Default)]
#[serde(default)]
pub(super) struct QueueStatus {
    conditions: Vec<PodCondition>,
}

/// The GPUs that a ResourceQuota allows its namespace, by resource in the order of `GPU_RESOURCES`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct WatchedQuota {
    pub(crate) gpus: [Option<QuotaGpus>; GPU_RESOURCES.len()],
}

/// GPUs of one resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct QuotaGpus {
    pub(crate) hard: u32,
    pub(crate) used: u32,
}

/// A LocalQueue that admits no workload, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ClosedQueue {
    pub(crate) reason: SmolStr,
}

/// Keeps of a ResourceQuota what it says about GPUs; `None` if that is nothing. One with scopes counts some pods only, and which of
/// a variant's these are is for the API server to say.
pub(super) fn watched_quota() -> impl FnMut(Result<PartialQuota, InvalidObject>) -> Option<WatchedQuota> {
    let mut has_told = false;
    move |quota| {
        let quota = quota.ok()?;
        // What nobody has counted yet is not known to be unused.
        let gpus = GPU_RESOURCES.map(|resource| {
            let count = |of: &Quantities| whole(of, &format!("{REQUESTS}{resource}"));
            Some(QuotaGpus { hard: count(&quota.status.hard)?, used: count(&quota.status.used)? })
        });
        let has_gpus = gpus.iter().any(Option::is_some);
        if !quota.spec.scopes.is_empty() || quota.spec.scope_selector.is_some() {
            if has_gpus && !std::mem::replace(&mut has_told, true) {
                let ObjectKey { namespace, name } = ObjectKey::of(&quota.metadata);
                info!(
                    %namespace,
                    %name,
                    "a ResourceQuota with scopes counts some pods only and is no limit; further ones are not logged"
                );
            }
            return None;
        }
        has_gpus.then_some(WatchedQuota { gpus })
    }
}

/// Why a LocalQueue admits nothing; `None` while it does.
pub(super) fn closed_queue(queue: Result<PartialQueue, InvalidObject>) -> Option<ClosedQueue> {
    let queue = queue.ok()?;
    let stopped = queue.spec.stop_policy.filter(|policy| !matches!(policy.as_str(), "" | "None"));
    if let Some(policy) = stopped {
        let reason = format!("stopPolicy {}", plain(&policy, MAX_REASON_BYTES)).into();
        return Some(ClosedQueue { reason });
    }
    let active = queue.status.conditions.into_iter().find(|condition| condition.type_ == "Active")?;
    let reason = active.reason.unwrap_or_default();
    (active.status == "False").then(|| ClosedQueue { reason: plain(&reason, MAX_REASON_BYTES).into() })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn quota(spec: Value, status: Value) -> Option<WatchedQuota> {
        let object =
            json!({ "metadata": { "name": "q", "namespace": "team" }, "spec": spec, "status": status });
        watched_quota()(Ok(serde_json::from_value(object).unwrap()))
    }

    #[test]
    fn a_quota_is_what_it_has_counted_of_gpus() {
        let of = |hard: Value, used: Value| quota(json!({}), json!({ "hard": hard, "used": used }));
        let gpus = |quota: Option<WatchedQuota>| {
            quota.map(|quota| quota.gpus.map(|gpus| gpus.map(|gpus| (gpus.hard, gpus.used))))
        };
        let hard = json!({ "requests.nvidia.com/gpu": "8", "requests.amd.com/gpu": "0", "pods": "50" });
        let used = json!({ "requests.nvidia.com/gpu": "3", "requests.amd.com/gpu": "0", "pods": "9" });
        assert_eq!(gpus(of(hard.clone(), used)), Some([Some((8, 3)), Some((0, 0)), None]));
        assert_eq!(gpus(of(hard, json!({}))), None, "nobody has counted yet");
        assert_eq!(gpus(of(json!({ "cpu": "8" }), json!({ "cpu": "1" }))), None);
        let suffixed =
            of(json!({ "requests.nvidia.com/gpu": "1k" }), json!({ "requests.nvidia.com/gpu": "20" }));
        assert_eq!(gpus(suffixed), Some([Some((1000, 20)), None, None]), "as the API server writes 1000");
    }

    #[test]
    fn a_quota_with_scopes_is_no_limit() {
        let counts = json!({ "requests.nvidia.com/gpu": "8" });
        let status = json!({ "hard": counts, "used": counts });
        assert!(quota(json!({}), status.clone()).is_some());
        assert_eq!(quota(json!({ "scopes": ["BestEffort"] }), status.clone()), None);
        let selector =
            json!({ "matchExpressions": [{ "scopeName": "PriorityClass", "operator": "Exists" }] });
        assert_eq!(quota(json!({ "scopeSelector": selector }), status), None);
    }

    #[test]
    fn a_queue_is_closed_while_it_is_stopped_or_not_active() {
        let reason = |spec: Value, active: &[(&str, &str)]| {
            let conditions: Vec<_> = active
                .iter()
                .map(|(status, reason)| json!({ "type": "Active", "status": status, "reason": reason }))
                .collect();
            let object =
                json!({ "metadata": { "name": "q" }, "spec": spec, "status": { "conditions": conditions } });
            closed_queue(Ok(serde_json::from_value(object).unwrap())).map(|queue| queue.reason.to_string())
        };
        assert_eq!(reason(json!({}), &[("True", "Ready")]), None);
        assert_eq!(reason(json!({ "stopPolicy": "None" }), &[]), None);
        let stopped = Some("stopPolicy HoldAndDrain".to_owned());
        assert_eq!(reason(json!({ "stopPolicy": "HoldAndDrain" }), &[("True", "Ready")]), stopped);
        let inactive = Some("ClusterQueueIsInactive".to_owned());
        assert_eq!(reason(json!({}), &[("False", "ClusterQueueIsInactive")]), inactive);
    }
}
