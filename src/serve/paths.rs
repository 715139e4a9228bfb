//! API groups, versions, URL paths and header names. A leaf: every other module of `serve` may use it.

use http::{HeaderName, HeaderValue};

/// The group of metrics that belong to no object.
pub(crate) const EXTERNAL_GROUP: &str = "external.metrics.k8s.io";

/// The only version of [`EXTERNAL_GROUP`].
pub(crate) const EXTERNAL_VERSION: &str = "v1beta1";

/// The group of metrics of objects, for HPAs of type Object.
pub(crate) const CUSTOM_GROUP: &str = "custom.metrics.k8s.io";

/// The versions of [`CUSTOM_GROUP`], the preferred one first.
pub(crate) const CUSTOM_VERSIONS: [&str; 2] = ["v1beta2", "v1beta1"];

/// The group of processor time and memory.
pub(crate) const USAGE_GROUP: &str = "metrics.k8s.io";

/// The only version of [`USAGE_GROUP`].
pub(crate) const USAGE_VERSION: &str = "v1beta1";

/// Prefix of every read of [`USAGE_GROUP`].
pub(crate) const USAGE_PREFIX: &str = "/apis/metrics.k8s.io/v1beta1/";

/// The group of explanations: one of its own, because a CustomResourceDefinition serves the group of variants.
pub(crate) const EXPLANATIONS_GROUP: &str = "decisions.wva.llmd.ai";

/// The only version of [`EXPLANATIONS_GROUP`].
pub(crate) const EXPLANATIONS_VERSION: &str = "v1alpha1";

/// The only resource of [`EXPLANATIONS_GROUP`].
pub(crate) const EXPLANATIONS: &str = "explanations";

/// The resource of variants, with its group.
pub(crate) const VARIANTS: &str = "variantautoscalings.llmd.ai";

/// The resources of scale targets, with their groups.
pub(crate) const DEPLOYMENTS: &str = "deployments.apps";
pub(crate) const STATEFUL_SETS: &str = "statefulsets.apps";
pub(crate) const LEADER_WORKER_SETS: &str = "leaderworkersets.leaderworkerset.x-k8s.io";

/// The resources that metrics of [`CUSTOM_GROUP`] describe.
pub(crate) const DESCRIBED_RESOURCES: [&str; 4] = [VARIANTS, DEPLOYMENTS, STATEFUL_SETS, LEADER_WORKER_SETS];

/// Prefix of every read of an external metric; [`EXTERNAL_METRIC`] follows.
pub(crate) const EXTERNAL_NAMESPACES: &str = "/apis/external.metrics.k8s.io/v1beta1/namespaces/";

/// The route behind [`EXTERNAL_NAMESPACES`].
pub(crate) const EXTERNAL_METRIC: &str = "{namespace}/{metric}";

/// Prefix of every path of [`CUSTOM_GROUP`].
pub(crate) const CUSTOM_PREFIX: &str = "/apis/custom.metrics.k8s.io/";

/// The route behind [`CUSTOM_PREFIX`]: one metric of one object, or of all objects that a selector matches.
pub(crate) const CUSTOM_OBJECT: &str = "{version}/namespaces/{namespace}/{resource}/{name}/{metric}";

/// Prefix of every path of [`EXPLANATIONS_GROUP`].
pub(crate) const EXPLANATIONS_PREFIX: &str = "/apis/decisions.wva.llmd.ai/v1alpha1/";

/// The routes behind [`EXPLANATIONS_PREFIX`]: the list of one namespace, and one explanation.
pub(crate) const EXPLANATION_LIST: &str = "namespaces/{namespace}/explanations";
pub(crate) const EXPLANATION: &str = "namespaces/{namespace}/explanations/{name}";

/// Prefix under which the leader answers other instances about explanations.
pub(crate) const INTERNAL_EXPLANATIONS: &str = "/internal/v1/explanations/";

/// Prefix under which the leader answers other instances about external metrics.
pub(crate) const INTERNAL_EXTERNAL: &str = "/internal/v1/external/";

/// Prefix under which the leader answers other instances about metrics of objects.
pub(crate) const INTERNAL_CUSTOM: &str = "/internal/v1/custom/";

/// Prefix under which an installation answers another one about external metrics.
pub(crate) const INSTALLATION_EXTERNAL: &str = "/installations/v1/external/";

/// Prefix under which an installation answers another one about metrics of objects.
pub(crate) const INSTALLATION_CUSTOM: &str = "/installations/v1/custom/";

/// Prefix under which the leader answers other instances about [`INSTALLATION_EXTERNAL`].
pub(crate) const INTERNAL_EXTERNAL_VALUES: &str = "/internal/v1/values/external/";

/// Prefix under which the leader answers other instances about [`INSTALLATION_CUSTOM`].
pub(crate) const INTERNAL_CUSTOM_VALUES: &str = "/internal/v1/values/custom/";

/// This server's own metrics.
pub(crate) const METRICS: &str = "/metrics";

/// The desired replicas of all variants as text, from any instance.
pub(crate) const DECISIONS: &str = "/metrics/decisions";

/// Where the leader answers other instances about [`DECISIONS`].
pub(crate) const INTERNAL_DECISIONS: &str = "/internal/v1/decisions";

/// Lists the kept evaluations; with `?at=` returns the evaluation of that moment.
pub(crate) const SNAPSHOTS: &str = "/debug/snapshots";

/// The newest evaluation.
pub(crate) const LATEST_SNAPSHOT: &str = "/debug/snapshots/latest";

/// All kept evaluations, the oldest first.
pub(crate) const ALL_SNAPSHOTS: &str = "/debug/snapshots/all";

/// The longest name of a Kubernetes object, in bytes.
pub(crate) const MAX_NAME_BYTES: usize = 253;

/// Identifies one request in the logs of all servers that it passes.
pub(crate) const AUDIT_ID: HeaderName = HeaderName::from_static("audit-id");

/// Set by the leader on an answer to another instance, so that no error of a proxy in between is passed on as the
/// leader's answer.
pub(crate) const ANSWERED_BY: HeaderName = HeaderName::from_static("wva-answered-by");

/// Value of [`ANSWERED_BY`]: the answer may be passed on.
pub(crate) const LEADER: HeaderValue = HeaderValue::from_static("holder");

/// Value of [`ANSWERED_BY`]: the leader has neither evaluated nor restored anything yet.
pub(crate) const LEADER_WITHOUT_RESULT: HeaderValue = HeaderValue::from_static("holder-without-anything");

/// Value of [`ANSWERED_BY`]: an installation answered another one.
pub(crate) const INSTALLATION: HeaderValue = HeaderValue::from_static("installation");

/// Set on what is passed on to the fallback server, so that two servers that pass on to each other notice it.
pub(crate) const PASSED_ON: HeaderName = HeaderName::from_static("wva-passed-on");

/// Whether a text can be the name of a metric, or of a namespace, in a path that is sent to another server: one segment that means nothing
/// else there, whoever decodes it.
pub(crate) fn is_segment(text: &str) -> bool {
    let is_part = |byte: u8| byte.is_ascii_graphic() && !b"/%?#\"\\".contains(&byte);
    !text.is_empty()
        && text.len() <= MAX_NAME_BYTES
        && text.bytes().all(is_part)
        && !matches!(text, "." | "..")
}

/// The leader's path for a read of `path_and_query`; empty for anything that is no read.
pub(crate) fn internal_path(path_and_query: &str) -> String {
    let paths = [
        (EXTERNAL_NAMESPACES, INTERNAL_EXTERNAL),
        (CUSTOM_PREFIX, INTERNAL_CUSTOM),
        (EXPLANATIONS_PREFIX, INTERNAL_EXPLANATIONS),
        (DECISIONS, INTERNAL_DECISIONS),
        (INSTALLATION_EXTERNAL, INTERNAL_EXTERNAL_VALUES),
        (INSTALLATION_CUSTOM, INTERNAL_CUSTOM_VALUES),
    ];
    with_prefix(path_and_query, &paths)
}

/// The path at another installation for a read of the public `path_and_query`; empty for anything that is not a read of metrics.
pub(crate) fn installation_path(path_and_query: &str) -> String {
    let paths = [(EXTERNAL_NAMESPACES, INSTALLATION_EXTERNAL), (CUSTOM_PREFIX, INSTALLATION_CUSTOM)];
    with_prefix(path_and_query, &paths)
}

/// The path with the second prefix of a pair in place of the first.
fn with_prefix(path_and_query: &str, prefixes: &[(&str, &str)]) -> String {
    for (from, to) in prefixes {
        if let Some(rest) = path_and_query.strip_prefix(from) {
            return format!("{to}{rest}");
        }
    }
    String::new()
}
