//! What the triggers of a ScaledObject say about the variant that it is to be. Pure.

use serde_json::Value;
use smol_str::SmolStr;
use wva_core::units::Cost;

use super::convert::{cost, model};

/// Metadata of a trigger of the external scaler that makes its ScaledObject a variant when KEDA calls: the model, and the cost.
const MODEL_METADATA: &str = "modelID";
const COST_METADATA: &str = "variantCost";
/// Metadata by which a trigger names a variant that there is.
const OF_OTHERS: [&str; 2] = ["variantName", "scaleTarget"];

/// What makes an autoscaler a variant, each with where it is written, for people.
#[derive(Debug, Default)]
pub(super) struct Settings {
    pub(super) model: (String, Option<String>),
    pub(super) cost: (String, Option<String>),
}

impl Settings {
    /// The model; its pods say which one it is where it is not named.
    pub(super) fn model(&self) -> Result<Option<SmolStr>, String> {
        let (field, id) = &self.model;
        id.as_deref().filter(|id| !id.is_empty()).map(|id| model(field, id)).transpose()
    }

    pub(super) fn cost(&self) -> Result<Cost, String> {
        cost(&self.cost.0, self.cost.1.as_deref())
    }
}

/// What the triggers of the external scaler set in the spec of a ScaledObject; `None` where none names a model.
pub(super) fn called_settings(spec: &Value) -> Option<Result<Settings, String>> {
    let triggers = spec.get("triggers").and_then(Value::as_array).into_iter().flatten();
    let mut named = triggers.filter(|trigger| is_external(trigger)).filter_map(|trigger| {
        let metadata = trigger.get("metadata")?;
        // It reads the number of a variant that it names.
        if OF_OTHERS.iter().any(|key| text(metadata, key).is_some()) {
            return None;
        }
        Some((text(metadata, MODEL_METADATA)?, text(metadata, COST_METADATA)))
    });
    let (model, cost) = named.next()?;
    if named.any(|(second, _)| second != model) {
        let problem =
            format!("its triggers name several models ({MODEL_METADATA}), and a variant has one: name one");
        return Some(Err(problem));
    }
    let field = |key: &str| format!("{key} of its trigger");
    Some(Ok(Settings { model: (field(MODEL_METADATA), Some(model)), cost: (field(COST_METADATA), cost) }))
}

fn is_external(trigger: &Value) -> bool {
    let type_ = trigger.get("type").and_then(Value::as_str);
    matches!(type_, Some("external" | "external-push"))
}

/// A value of the metadata; `None` for an empty one.
fn text(metadata: &Value, key: &str) -> Option<String> {
    let text = metadata.get(key).and_then(Value::as_str).map(str::trim).filter(|text| !text.is_empty());
    text.map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn settings(triggers: Value) -> Option<Result<(String, f64), String>> {
        let settings = called_settings(&json!({ "triggers": triggers }))?;
        Some(settings.and_then(|settings| {
            Ok((settings.model()?.unwrap_or_default().to_string(), settings.cost()?.get()))
        }))
    }

    fn trigger(type_: &str, metadata: Value) -> Value {
        json!({ "type": type_, "metadata": metadata })
    }

    #[test]
    fn a_trigger_of_the_external_scaler_names_model_and_cost() {
        for type_ in ["external", "external-push"] {
            let metadata = json!({ "modelID": " org/m ", "variantCost": "2.5", "scalerAddress": "wva:9443" });
            assert_eq!(settings(json!([trigger(type_, metadata)])), Some(Ok(("org/m".into(), 2.5))));
        }
        let cheap = trigger("external-push", json!({ "modelID": "m" }));
        let cron = trigger("cron", json!({ "modelID": "other" }));
        assert_eq!(settings(json!([cron, cheap, cheap])), Some(Ok(("m".into(), 10.0))));
    }

    #[test]
    fn a_trigger_that_names_no_model_makes_no_variant() {
        for triggers in [
            json!(null),
            json!("x"),
            json!([7, {}, { "type": "external" }]),
            json!([trigger("prometheus", json!({ "modelID": "m" }))]),
            json!([trigger("external-push", json!({ "modelID": "  " }))]),
            json!([trigger("external-push", json!({ "modelID": ["m"] }))]),
        ] {
            assert_eq!(settings(triggers.clone()), None, "{triggers}");
        }
    }

    #[test]
    fn a_mistake_names_the_field_of_the_trigger() {
        let problem = |triggers| settings(triggers).unwrap().unwrap_err();
        let of = |metadata| trigger("external", metadata);
        let two = problem(json!([of(json!({ "modelID": "a" })), of(json!({ "modelID": "b" }))]));
        assert!(two.starts_with("its triggers name several models (modelID)"), "{two}");
        let cost = problem(json!([of(json!({ "modelID": "a", "variantCost": "-1" }))]));
        assert!(cost.starts_with("variantCost of its trigger \"-1\" is not a cost"), "{cost}");
        let model = problem(json!([of(json!({ "modelID": "a\u{7}b" }))]));
        assert!(model.starts_with("modelID of its trigger"), "{model}");
    }
}
