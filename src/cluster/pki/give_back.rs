//! Writes the APIService that was taken over, and gives it back once, as before the program is removed.

use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;
use kube::api::{Api, ListParams, Patch, PatchParams};
use serde_json::{Value, json};

use super::apiservice::{NAME, apply_patch, is_of_chart};
use super::taken::{Problem, given_back, is_at, note_of_another, taken_by, what_to_give_back};
use crate::cluster::requests::{RequestError, bounded};

/// The field manager of all that is written here.
const FIELD_MANAGER: &str = "wva-take-over";

/// Writes a merge patch of the object as it is known: it fails if somebody has changed it since.
pub(super) async fn write(
    client: &kube::Client,
    object: &APIService,
    patch: &Value,
) -> Result<(), RequestError> {
    let api: Api<APIService> = Api::all(client.clone());
    let mut patch = patch.clone();
    patch["metadata"]["uid"] = json!(object.metadata.uid);
    patch["metadata"]["resourceVersion"] = json!(object.metadata.resource_version);
    let parameters = PatchParams { field_manager: Some(FIELD_MANAGER.into()), ..PatchParams::default() };
    bounded(api.patch(NAME, &parameters, &Patch::Merge(patch))).await.map(drop)
}

/// Makes `conditions` the only ones of ours.
pub(super) async fn apply_conditions(
    client: &kube::Client,
    object: &APIService,
    conditions: Value,
) -> Result<(), RequestError> {
    let api: Api<APIService> = Api::all(client.clone());
    let (name, patch) = apply_patch(object, "status", &json!({ "conditions": conditions }));
    let parameters = PatchParams::apply(FIELD_MANAGER).force();
    bounded(api.patch_status(&name, &parameters, &patch)).await.map(drop)
}

/// Gives the APIService of external metrics back once, as before the program is removed. `only`: if it was taken over by this Service,
/// `namespace/name`. What was done, for people.
///
/// # Errors
/// Why it could not be given back, and what to do.
pub async fn give_back_once(client: &kube::Client, only: Option<&str>) -> Result<String, String> {
    let api: Api<APIService> = Api::all(client.clone());
    // A list, because the program itself may list this name, and not get it.
    let named = ListParams::default().fields(&format!("metadata.name={NAME}"));
    let listed = bounded(api.list(&named)).await;
    let listed = listed.map_err(|error| {
        format!("APIService {NAME} cannot be read: {}", error.with_hint("check that you may list it by name"))
    })?;
    let Some(object) = listed.items.into_iter().next() else {
        return Ok(format!("APIService {NAME} does not exist: nothing to give back"));
    };
    let of_object = |problem: Problem| format!("APIService {NAME}: {}", problem.message);
    let Some(owner) = taken_by(&object) else {
        if let Some(only) = only.filter(|only| is_at(&object, only)) {
            return Err(format!(
                "APIService {NAME} points to Service {only}, and nothing says to what it did before (its annotations \
                 wva.llmd.ai/before-take-over and wva.llmd.ai/service are missing): let it point to its owner by hand, or delete it; while \
                 it points to a Service that is gone, namespaces cannot be deleted"
            ));
        }
        return Ok(format!("APIService {NAME} was not taken over by wva: nothing to give back"));
    };
    if only.is_some_and(|only| only != owner) {
        return Ok(format!("APIService {NAME} was taken over by Service {owner}: it is left alone"));
    }
    // What somebody else has let it point to meanwhile stays.
    let back = what_to_give_back(&object, is_of_chart(&object)).map_err(of_object)?;
    write(client, &object, &given_back(back.as_ref(), note_of_another(&object, owner))).await.map_err(
        |error| {
            let hint = "check that you may patch it by name, and try again";
            format!("APIService {NAME} was not given back: {}", error.with_hint(hint))
        },
    )?;
    // The condition says what is true no longer, and nobody may be left to say so. Without the right to remove it, it stays.
    if let Err(error) = apply_conditions(client, &object, json!([])).await {
        tracing::debug!(%error, "the condition of APIService {NAME} was not removed");
    }
    Ok(match back {
        None => format!("APIService {NAME} points to another program already: nothing to give back"),
        Some(back) => format!("APIService {NAME} points to {} again", back.service()),
    })
}
