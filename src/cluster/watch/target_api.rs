//! Requests for scale targets of any kind, and why one failed.

use kube::api::Api;
use kube::core::ApiResource;
use kube::core::error_boundary::InvalidObject;
use smol_str::{SmolStr, format_smolstr};

use super::known_targets::WatchProblem;
use super::partial_objects::{ParseGuard, PartialTarget};
use super::scale_target::ScaleTarget;
use crate::cluster::requests::error_text;
use wva_core::text::plain;

/// Longest message about a request that failed: that of the API server names the right that is missing.
const MAX_CAUSE_BYTES: usize = 512;

/// The scale targets of a kind; in one namespace, or in all.
pub(super) fn target_api(
    client: &kube::Client,
    namespace: Option<&str>,
    resource: &ApiResource,
) -> Api<ParseGuard<PartialTarget>> {
    match namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, resource),
        None => Api::all_with(client.clone(), resource),
    }
}

/// An object that is being deleted is no longer a scale target.
pub(super) fn scale_target(object: Result<PartialTarget, InvalidObject>) -> Option<ScaleTarget> {
    let target = object.ok().filter(|target| target.metadata.deletion_timestamp.is_none());
    target.as_ref().map(ScaleTarget::from)
}

/// True if there is no object `name`. A 404 that does not name it is about its kind, or comes from something in between.
pub(super) fn is_missing(error: &kube::Error, name: &str) -> bool {
    let kube::Error::Api(status) = error else { return false };
    status.code == 404 && status.details.as_ref().is_some_and(|details| details.name == name)
}

/// Why a request of the API server failed. `hint` is what to do where it refused the request.
pub(super) fn problem(error: &kube::Error, resource: &str, hint: &str) -> WatchProblem {
    let code = if let kube::Error::Api(status) = error { status.code } else { 0 };
    let text = plain(&error_text(error), MAX_CAUSE_BYTES);
    let cause = match code {
        404 => format_smolstr!("the API server serves no {resource}: {hint}"),
        401 | 403 => format_smolstr!("{text}: {hint}"),
        _ => SmolStr::from(text),
    };
    WatchProblem { cause, is_not_served: code == 404 }
}
