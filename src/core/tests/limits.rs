//! A limit on GPUs where nobody knows how many there are.

use std::collections::BTreeMap;

use serde::Deserialize;
use wva_core::decision::Verdict;
use wva_core::model::Analyzer;
use wva_core::name_map::NameMap;
use wva_core::report::LimitGap;
use wva_core::snapshot::{Engine, EngineParameters, Phase, Scale};
use wva_core::units::Replicas;
use wva_core::{GroupId, Memory, Policy, Snapshot, VariantId, decide};

use crate::support::fixture::World;

#[derive(Deserialize)]
struct Scene {
    policy: Policy,
    memory: Memory,
    snapshot: Snapshot,
}

/// A fleet of one replica that needs more, and a limit of 2 GPUs of H100 of which one is used.
fn needy() -> Scene {
    let text = include_str!("../../../tests/scenarios/gpus-that-are-not-there-hold-additions-back.json");
    serde_json::from_str(text).unwrap()
}

impl Scene {
    fn with(gpus: Option<&[(&str, u32)]>) -> Self {
        let mut scene = needy();
        let known = |gpus: &[(&str, u32)]| gpus.iter().map(|(name, gpus)| ((*name).into(), *gpus)).collect();
        scene.snapshot.inventory = gpus.map(known);
        scene
    }

    fn decided(&self) -> (u32, Option<LimitGap>) {
        let outcome = decide(&self.snapshot, &self.memory, &self.policy);
        assert_eq!(outcome.report.violations, []);
        let Verdict::Target(target) = &outcome.decisions[&VariantId::new("default", "llama")].verdict else {
            panic!("no number")
        };
        let report = &outcome.report.groups[&GroupId::new("default", "m")];
        let gap = report.limit_gaps.get("llama").cloned();
        let told = report.steps.iter().any(|step| step.to_string().contains("is not in force"));
        assert_eq!(told, gap.is_some());
        (target.desired.get(), gap)
    }
}

#[test]
fn a_limit_on_gpus_without_the_right_to_list_nodes_once_denied_every_addition() {
    let mut free = needy();
    free.policy.limits.inventory = false;
    let (needed, gap) = free.decided();
    assert!(needed > 2 && gap.is_none(), "{needed}");
    assert_eq!(Scene::with(None).decided(), (needed, Some(LimitGap::NoInventory)));
    let unlabelled = Scene::with(Some(&[])).decided();
    assert_eq!(unlabelled, (needed, Some(LimitGap::NoInventory)), "no node names its accelerator");
    let accelerator = "H100".into();
    let others = Scene::with(Some(&[("A100", 8)])).decided();
    assert_eq!(others, (needed, Some(LimitGap::NotInInventory { accelerator })));
    assert_eq!(needy().decided(), (2, None), "and where it is known, it limits");
}

#[test]
fn a_node_without_a_label_once_made_the_limit_too_small_and_denied_additions() {
    let mut free = needy();
    free.policy.limits.inventory = false;
    let (needed, _) = free.decided();
    let mut scene = needy();
    assert_eq!(scene.decided(), (2, None), "every node names its accelerator");
    scene.snapshot.unlabelled = Some("gpu-7".into());
    let node = "gpu-7".into();
    assert_eq!(scene.decided(), (needed, Some(LimitGap::UnlabelledNode { node })));
    let node = "gpu-7".into();
    let message = LimitGap::UnlabelledNode { node }.to_string();
    assert!(message.contains("not in force") && message.contains("the node gpu-7"), "{message}");
    scene.policy.limits.fail_closed = true;
    assert_eq!(scene.decided(), (2, None), "the nodes that are labelled count");
}

#[test]
fn a_snapshot_that_was_recorded_before_unlabelled_nodes_were_told_is_still_read() {
    let mut written = serde_json::to_value(needy().snapshot).unwrap();
    assert!(
        written.as_object_mut().unwrap().remove("unlabelled").is_none(),
        "it takes no place where there is none"
    );
    assert_eq!(serde_json::from_value::<Snapshot>(written).unwrap(), needy().snapshot);
}

#[test]
fn a_limit_on_gpus_that_is_to_fail_closed_denies_where_it_is_not_known() {
    for gpus in [None, Some(&[][..]), Some(&[("A100", 8)][..])] {
        let mut scene = Scene::with(gpus);
        scene.policy.limits.fail_closed = true;
        assert_eq!(scene.decided(), (1, None), "{gpus:?}");
    }
}

#[test]
fn a_variant_and_a_node_that_differ_in_upper_and_lower_case_once_met_no_limit_of_each_other() {
    assert_eq!(Scene::with(Some(&[("h100", 2)])).decided(), (2, None));
    assert_eq!(Scene::with(Some(&[("h100", 1), ("H100", 2)])).decided(), (3, None), "nodes differ too");
    let mut scene = Scene::with(Some(&[("h100", 4)]));
    scene.snapshot.elsewhere = BTreeMap::from([("H100".into(), 2)]);
    assert_eq!(scene.decided(), (2, None), "and pods of others are on them");
}

/// Two variants whose pods run all they can, each on its own: the first of four busy replicas, the other of two calm ones, of
/// which one has long been trying to start unless both are `ready`.
fn busy_and_calm(ready: bool) -> Snapshot {
    let engine = EngineParameters { max_sequences: 1, ..EngineParameters::defaults(Engine::Vllm) };
    let [mut snapshot, mut calm] = [(4, 0.85), (2, 0.1)].map(|(running, kv)| {
        let mut snapshot = World { load: (kv, 1.0), ..World::new(running) }.snapshot();
        let group = snapshot.groups.values_mut().next().unwrap();
        group.variants.iter_mut().for_each(|state| state.template.engine = Some(engine.clone()));
        snapshot
    });
    let mut calm = calm.groups.values_mut().next().unwrap().variants.remove(0);
    calm.variant.id.name = "other".into();
    if !ready {
        (calm.replicas[1].phase, calm.replicas[1].ready_since) = (Phase::Starting, None);
        calm.replicas[1].engines = NameMap::default();
        calm.scale = calm.scale.map(|scale| Scale { ready: Replicas::ONE, ..scale });
    }
    snapshot.groups.values_mut().next().unwrap().variants.push(calm);
    snapshot
}

/// What is decided about them, with a limit on GPUs that nobody can apply or without.
fn numbers(ready: bool, limited: bool) -> Vec<u32> {
    let mut policy = Policy::default();
    policy.global.default.analyzer = Analyzer::Threshold;
    policy.limits.inventory = limited;
    let outcome = decide(&busy_and_calm(ready), &Memory::default(), &policy);
    assert_eq!(outcome.report.violations, []);
    let number = |verdict: &Verdict| match verdict {
        Verdict::Target(target) => target.desired.get(),
        Verdict::Unknown(unknown) => panic!("{}", unknown.explanation),
    };
    outcome.decisions.values().map(|decision| number(&decision.verdict)).collect()
}

#[test]
fn a_limit_on_gpus_that_is_not_in_force_once_kept_a_replica_whose_place_another_variant_takes() {
    assert_eq!(numbers(false, false), [5, 1]);
    assert_eq!(numbers(false, true), [5, 1], "nothing can be denied");
}

#[test]
fn a_replica_that_serves_once_went_for_one_of_another_variant_that_does_not_yet() {
    // Each of the six runs the one request that it can, and another one waits.
    assert_eq!(numbers(true, false), [5, 2]);
    assert_eq!(numbers(true, true), [5, 2]);
}
