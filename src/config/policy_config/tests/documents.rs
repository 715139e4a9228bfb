//! The documentation: the page has every field, and its example is valid.

use serde_json::Value;

use super::{RELEASE, load, messages};
use crate::config::policy_config::ConfigMapKind;

const PAGE: &str = include_str!("../../../../docs/configuration.md");
const EXAMPLE: &str = include_str!("../../../../manifests/samples/configmaps.yaml");

/// The fields that the message about an unknown one lists.
fn fields(kind: ConfigMapKind, text: &str) -> Vec<String> {
    let (_, problems) = load(&[(RELEASE, kind, &[("default", text)])]);
    let messages = messages(&problems).join(";");
    let (_, list) = messages
        .split_once("is not a field: must be one of ")
        .unwrap_or_else(|| panic!("{text}: {messages}"));
    list.split(';').next().unwrap().split(", ").map(str::to_owned).collect()
}

#[test]
fn the_page_has_every_field() {
    let saturation =
        |within: &str, text: &str| (ConfigMapKind::Saturation, within.to_owned(), text.to_owned());
    let objects = [
        saturation("", "x: 1"),
        saturation("analyzers[].", "analyzers: [{name: throughput, x: 1}]"),
        saturation("scaleToZero.", "scaleToZero: {x: 1}"),
        saturation("stability.", "stability: {x: 1}"),
        saturation("stability.upStep.", "stability: {upStep: {x: 1}}"),
        saturation("limiters[].", "limiters: [{type: inventory, x: 1}]"),
        saturation("power.", "power: {x: 1, watts: 1, perGpu: {a: 1}}"),
        (ConfigMapKind::ScaleToZero, String::new(), "x: 1".to_owned()),
        (ConfigMapKind::QueueingModel, String::new(), "x: 1".to_owned()),
        (ConfigMapKind::ServiceClasses, String::new(), "x: 1".to_owned()),
        (
            ConfigMapKind::ServiceClasses,
            String::new(),
            "data: [{model: m, slo-ttft: 1, slo-tpot: 1, x: 1}]".to_owned(),
        ),
        (ConfigMapKind::AcceleratorCosts, String::new(), "{cost: 1, x: 1}".to_owned()),
    ];
    for (kind, within, text) in objects {
        for field in fields(kind, &text) {
            let alone = within == "analyzers[]." && field == "type";
            let mentions =
                [format!("`{within}{field}`"), format!("`{within}{field}[]`"), format!("`{within}{field}.")];
            let known = alone || mentions.iter().any(|mention| PAGE.contains(mention));
            assert!(known, "docs/configuration.md does not have {within}{field}");
        }
    }
}

#[test]
fn the_example_is_valid_and_its_default_is_that_of_the_program() {
    let documents: Vec<Value> = serde_saphyr::from_multiple(EXAMPLE).unwrap();
    let of = |name: &str| -> Vec<(&str, &str)> {
        let document = documents.iter().find(|document| document["metadata"]["name"] == name).unwrap();
        let entries = document["data"].as_object().unwrap().iter();
        entries.map(|(key, text)| (key.as_str(), text.as_str().unwrap())).collect()
    };
    let (saturation, zero) = (of("wva-saturation-scaling-config"), of("wva-model-scale-to-zero-config"));
    let (policy, problems) = load(&[
        (RELEASE, ConfigMapKind::Saturation, &saturation),
        (RELEASE, ConfigMapKind::ScaleToZero, &zero),
    ]);
    assert_eq!(messages(&problems), [""; 0]);
    assert_eq!(policy.global.default, load(&[]).0.global.default);
    let model = policy.of(&wva_core::GroupId::new("llm", "meta-llama/Llama-3.1-8B"));
    assert_eq!((model.rate.surge_headroom, model.priority), (1.0, 5.0));
}
