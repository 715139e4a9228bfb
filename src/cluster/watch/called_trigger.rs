//! What the triggers of a ScaledObject say about the variant that it is to be. Pure.

use serde_json::Value;
use smol_str::{SmolStr, format_smolstr};
use wva_core::units::Cost;

use super::convert::{cost, model};

/// Metadata of a trigger of the external scaler that makes its ScaledObject a variant when KEDA calls: the model, and the cost.
const MODEL_METADATA: &str = "modelID";
const COST_METADATA: &str = "variantCost";
/// Metadata by which a trigger names a variant that there is.
const OF_OTHERS: [&str; 2] = ["variantName", "scaleTarget"];

/// Where the external scaler is addressed.
const ADDRESS_METADATA: &str = "scalerAddress";

/// The Service of this program, by which KEDA reaches its external scaler.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScalerService {
    /// Its namespace.
    pub namespace: SmolStr,
    /// Its name.
    pub name: SmolStr,
}

impl ScalerService {
    /// Whether an address, `HOST:PORT`, is that of another Service. Addresses of other forms, such as those of a load balancer, may lead here.
    fn is_another(&self, address: &str) -> bool {
        let host = address.rsplit_once(':').map_or(address, |(host, _)| host).trim_end_matches('.');
        let labels: Vec<&str> = host.split('.').collect();
        match labels[..] {
            // In the namespace of KEDA, whichever that is.
            [name] => name != self.name && name != "localhost",
            [name, namespace] | [name, namespace, "svc", ..] => {
                name != self.name || namespace != self.namespace
            }
            _ => false,
        }
    }
}

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

/// What the triggers of the external scaler set in the spec of a ScaledObject.
///
/// # Errors
/// Says why none makes it a variant.
pub(super) fn called_settings(
    spec: &Value,
    service: Option<&ScalerService>,
) -> Result<Result<Settings, String>, SmolStr> {
    let is_another = |address: &String| service.is_some_and(|service| service.is_another(address));
    let of_others =
        naming_triggers(spec).find_map(|metadata| text(metadata, ADDRESS_METADATA).filter(is_another));
    let mut named = naming_triggers(spec).filter_map(|metadata| {
        let is_ours = !text(metadata, ADDRESS_METADATA).is_some_and(|address| is_another(&address));
        is_ours.then(|| Some((text(metadata, MODEL_METADATA)?, text(metadata, COST_METADATA))))?
    });
    let (model, cost) = named.next().ok_or_else(|| no_model(of_others.as_deref(), service))?;
    if named.any(|(second, _)| second != model) {
        let problem =
            format!("its triggers name several models ({MODEL_METADATA}), and a variant has one: name one");
        return Ok(Err(problem));
    }
    let field = |key: &str| format!("{key} of its trigger");
    Ok(Ok(Settings { model: (field(MODEL_METADATA), Some(model)), cost: (field(COST_METADATA), cost) }))
}

/// The address of another external scaler to which alone the triggers give a model, if that is so.
pub(crate) fn another_scaler(spec: &Value, service: &ScalerService) -> Option<String> {
    called_settings(spec, Some(service)).err()?;
    naming_triggers(spec).find_map(|metadata| text(metadata, ADDRESS_METADATA))
}

/// The metadata of the triggers of external scalers that name a model and no variant, whose number they would read.
fn naming_triggers(spec: &Value) -> impl Iterator<Item = &Value> {
    let triggers = spec.get("triggers").and_then(Value::as_array).into_iter().flatten();
    let metadata =
        triggers.filter(|trigger| is_external(trigger)).filter_map(|trigger| trigger.get("metadata"));
    metadata.filter(|metadata| {
        text(metadata, MODEL_METADATA).is_some() && OF_OTHERS.iter().all(|key| text(metadata, key).is_none())
    })
}

fn no_model(of_others: Option<&str>, service: Option<&ScalerService>) -> SmolStr {
    match (of_others, service) {
        (Some(address), Some(ScalerService { namespace, name })) => format_smolstr!(
            "the trigger with {MODEL_METADATA} has the {ADDRESS_METADATA} of another scaler, {address:.100}: set it to {name}.{namespace}.svc and \
             the port, or call that one"
        ),
        _ => format_smolstr!(
            "none of its triggers of the type external-push or external has {MODEL_METADATA} in its metadata: add it there"
        ),
    }
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
        let settings = called_settings(&json!({ "triggers": triggers }), None).ok()?;
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
    fn a_trigger_of_another_scaler_made_its_object_a_variant() {
        let service = ScalerService { namespace: "wva-system".into(), name: "wva".into() };
        let of = |address: &str, model: &str| {
            trigger("external", json!({ "modelID": model, "scalerAddress": address }))
        };
        for (address, is_ours) in [
            ("wva.wva-system.svc:9443", true),
            ("wva.wva-system.svc.cluster.local.:9443", true),
            ("wva.wva-system:9443", true),
            ("wva:9443", true),
            ("10.0.0.1:9443", true),
            ("scaler.corp.example.com:9443", true),
            ("fork.wva-system.svc:9443", false),
            ("wva.elsewhere.svc:9443", false),
            ("fork.elsewhere:9443", false),
            ("fork:9443", false),
        ] {
            let spec = json!({ "triggers": [of(address, "m")] });
            let named = called_settings(&spec, Some(&service));
            assert_eq!(named.is_ok(), is_ours, "{address}");
            assert_eq!(another_scaler(&spec, &service).is_none(), is_ours, "{address}");
        }
        let both = json!({ "triggers": [of("fork.x.svc:1", "other"), of("wva.wva-system.svc:9443", "m")] });
        let settings = called_settings(&both, Some(&service)).unwrap().unwrap();
        assert_eq!(settings.model.1.as_deref(), Some("m"));
        let cause =
            called_settings(&json!({ "triggers": [of("fork.x.svc:1", "m")] }), Some(&service)).unwrap_err();
        assert!(cause.contains("of another scaler, fork.x.svc:1: set it to wva.wva-system.svc"), "{cause}");
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
