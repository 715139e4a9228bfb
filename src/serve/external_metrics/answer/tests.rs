//! Numbers that no autoscaler could read never leave, and errors name the real cause.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::response::IntoResponse;
use wva_core::decision::{Reason as DecisionReason, Verdict};

use super::super::context::{ReadContext, WaitingFor};
use super::super::query::VariantSelector;
use super::super::selector::LabelSelector;
use super::*;
use crate::engine::{ClusterView, ValueTargets};
use crate::serve::encoding::Reason;

const NOW: &str = "2026-11-21T10:00:10Z";

fn decision(accelerator: &str) -> Decision {
    let verdict = Verdict::Target(Target {
        desired: Replicas::new(5),
        reason: DecisionReason::SourceDown,
        explanation: "held".into(),
        evidence: "2026-11-21T10:00:05Z".parse().unwrap(),
    });
    let model = "llama".into();
    let accelerator = Some(accelerator.into());
    Decision { model, accelerator, current: Some(Replicas::new(2)), verdict, gap: None }
}

/// The values of variants a and b in namespace llm, computed by `value`.
fn values(
    metric: &str,
    selector: &str,
    value: impl Fn(Metric, Replicas, Option<Replicas>) -> Option<f64>,
) -> Result<Vec<String>, Status> {
    values_in(ClusterView::default(), metric, selector, value)
}

/// The same while the watches know `view`.
fn values_in(
    view: ClusterView,
    metric: &str,
    selector: &str,
    value: impl Fn(Metric, Replicas, Option<Replicas>) -> Option<f64>,
) -> Result<Vec<String>, Status> {
    let decisions = [("a", "A100"), ("b", "H100")];
    let decisions = decisions.map(|(name, accelerator)| (VariantId::new("llm", name), decision(accelerator)));
    let published = Published { origin: Origin::Computed, decisions: decisions.into(), ..Published::empty() };
    let now = NOW.parse().unwrap();
    let labels = [LabelSelector::parse(selector).unwrap()];
    let query = MetricQuery {
        group: "external.metrics.k8s.io",
        namespace: "llm",
        metric,
        selector: VariantSelector { labels: &labels, fields: &[] },
        target_kind: None,
        no_annotated: false,
        context: &ReadContext {
            controller_instance: None,
            now,
            max_stale: Seconds::whole(300),
            started: now,
            waiting_for: WaitingFor::Evaluation,
            view: Arc::new(view),
        },
    };
    let items = items_with(&published, &query, value)?;
    Ok(items.iter().map(|item| item.value.to_string()).collect())
}

#[test]
fn a_number_that_all_hpas_multiply_is_divided_by_their_ready_pods() {
    let read = |targets: Option<ValueTargets>, metric: &str| {
        let view = ClusterView { value_targets: targets, ..ClusterView::default() };
        values_in(view, metric, "", Metric::thousandths)
    };
    let of_b = |pods: u32| {
        let multipliers = [(VariantId::new("llm", "b"), pods)].into();
        Some(ValueTargets { are_known: true, multipliers })
    };
    let values = |values: [&str; 2]| values.map(str::to_owned).to_vec();
    assert_eq!(read(None, "wva_desired_replicas").unwrap(), values(["5", "5"]));
    assert_eq!(read(of_b(3), "wva_desired_replicas").unwrap(), values(["5", "1666m"]));
    assert_eq!(read(of_b(3), "wva_desired_ratio").unwrap(), values(["2500m", "2500m"]));
    let error = read(of_b(0), "wva_desired_replicas").unwrap_err();
    assert!(
        error.message().contains("variant llm/b is withheld: it is 5")
            && error.message().contains("no pod is Ready"),
        "{}",
        error.message()
    );
    let unlisted = ValueTargets { are_known: false, multipliers: BTreeMap::new() };
    let error = read(Some(unlisted), "wva_desired_replicas").unwrap_err();
    assert!(error.message().contains("it is not known which HPAs"), "{}", error.message());
}

#[test]
fn an_invalid_number_is_an_error_that_names_the_variant_and_what_to_do() {
    for (value, why) in [
        (-1.0, "it is negative, -1 thousandths"),
        (-1e-9, "it is negative, -0.000000001 thousandths"),
        (f64::NAN, "it is not a number"),
        (f64::INFINITY, "it is infinite"),
        (f64::NEG_INFINITY, "it is infinite"),
        (
            9_223_372_036_854_775_808.0,
            "it is 9223372036854775808 thousandths, and the largest value that an autoscaler can read is \
             9223372036854775",
        ),
    ] {
        for (metric, _) in Metric::NAMES {
            let error = values(metric, "variant_name=a", |_, _, _| Some(value)).unwrap_err();
            let expected = format!(
                "{metric} of variant llm/a is withheld: {why}; its newest evidence is 5s old (from \
                 2026-11-21T10:00:05Z); this is a bug of this server: report it with the variant, `kubectl get \
                 variantautoscaling a -n llm -o yaml`"
            );
            assert_eq!((error.reason(), error.message()), (Reason::InternalError, expected.as_str()));
            assert_eq!(error.into_response().status().as_u16(), 500);
        }
    }
}

#[test]
fn one_invalid_number_makes_the_whole_answer_an_error() {
    assert_eq!(
        values("wva_desired_ratio", "", Metric::thousandths),
        Ok(vec!["2500m".into(), "2500m".into()])
    );
    let calls = std::cell::Cell::new(0);
    let second_is_none = |metric: Metric, desired, current| {
        calls.set(calls.get() + 1);
        if calls.get() == 2 { Some(f64::NAN) } else { metric.thousandths(desired, current) }
    };
    let error = values("wva_desired_ratio", "", second_is_none).unwrap_err();
    assert!(error.message().contains("llm/b is withheld: it is not a number"), "{}", error.message());
}

#[test]
fn an_error_names_only_requirements_that_nothing_meets() {
    let labels = "(labels are accelerator_type, exported_namespace, namespace, variant, variant_name)";
    for (selector, why) in [
        ("!foo,variant_name=nope", "this installation has no variant nope there".into()),
        ("variant_name in (y,x),!foo", "this installation has no variant x or y there".into()),
        ("!variant_name", "none of its 2 variants matches: nothing meets \"!variant_name\"".into()),
        ("foo!=1,pod=x", format!("none of its 2 variants matches: there is no label pod {labels}")),
        ("pod,zone notin (a),rack>3", format!("there is no label pod, rack {labels}")),
        ("foo=", format!("there is no label foo {labels}")),
        (
            "variant_name=a,accelerator_type=H100,!foo",
            "variant a does not match: nothing meets \"accelerator_type=H100\"".into(),
        ),
        (
            "variant_name=a,variant=b",
            "none of these variants matches: each requirement is met by some of them, but none meets all"
                .into(),
        ),
        (
            "pod=x,namespace=other",
            format!("there is no label pod {labels}; nothing meets \"namespace=other\""),
        ),
    ] {
        let error = values("wva_desired_replicas", selector, Metric::thousandths).unwrap_err();
        let end = format!("{why}; compare the selector with `kubectl get variantautoscalings -n llm`");
        assert_eq!(error.reason(), Reason::NotFound);
        assert!(error.message().ends_with(&end), "{selector}: {}", error.message());
    }
}
