//! A limit on GPUs where it is not known how many there are.

use crate::tests::support::prelude::*;
use crate::tests::support::scenarios::{Scenario, scenario};
use crate::tests::support::strategies::later;
use wva_core::model::LimitPolicy;
use wva_core::name_map::NameMap;
use wva_core::report::LimitGap;
use wva_core::snapshot::VariantLimit;

/// A fleet of one replica that needs more, and a limit of 2 GPUs of H100 of which one is used.
fn needy() -> Scenario {
    scenario("gpus-that-are-not-there-hold-additions-back")
}

/// The same where these GPUs are known.
fn with_gpus(gpus: Option<&[(&str, u32)]>) -> Scenario {
    let mut scenario = needy();
    let known = |gpus: &[(&str, u32)]| gpus.iter().map(|(name, gpus)| ((*name).into(), *gpus)).collect();
    scenario.snapshot.inventory = gpus.map(known);
    scenario
}

/// The number and why a limit is not in force, which the report says too.
fn decided(scenario: &Scenario) -> (u32, Option<LimitGap>) {
    let outcome = decide(&scenario.snapshot, &scenario.memory, &scenario.policy);
    assert_eq!(outcome.report.violations, []);
    let report = &outcome.report.groups[&group_id()];
    let gap = report.limit_gaps.get("llama").cloned();
    let is_reported = report.steps.iter().any(|step| step.to_string().contains("is not in force"));
    assert_eq!(is_reported, gap.is_some());
    (target_of(&outcome, "llama").desired.get(), gap)
}

#[test]
fn a_limit_on_gpus_that_nobody_can_list_denies_nothing() {
    let mut free = needy();
    free.policy.limits.inventory = false;
    let (needed, gap) = decided(&free);
    assert!(needed > 2 && gap.is_none(), "{needed}");
    assert_eq!(decided(&with_gpus(None)), (needed, Some(LimitGap::NoInventory)));
    let unlabelled = decided(&with_gpus(Some(&[])));
    assert_eq!(unlabelled, (needed, Some(LimitGap::NoInventory)), "no node names its accelerator");
    let accelerator = "H100".into();
    let unlisted = decided(&with_gpus(Some(&[("A100", 8)])));
    assert_eq!(unlisted, (needed, Some(LimitGap::NotInInventory { accelerator })));
    assert_eq!(decided(&needy()), (2, None), "and where it is known, it limits");
}

#[test]
fn a_node_without_a_label_takes_the_limit_out_of_force() {
    let mut free = needy();
    free.policy.limits.inventory = false;
    let (needed, _) = decided(&free);
    let mut scenario = needy();
    assert_eq!(decided(&scenario), (2, None), "every node names its accelerator");
    scenario.snapshot.unlabelled = Some("gpu-7".into());
    let node = "gpu-7".into();
    assert_eq!(decided(&scenario), (needed, Some(LimitGap::UnlabelledNode { node })));
    let node = "gpu-7".into();
    let message = LimitGap::UnlabelledNode { node }.to_string();
    assert!(message.contains("not in force") && message.contains("the node gpu-7"), "{message}");
    scenario.policy.limits.fail_closed = true;
    assert_eq!(decided(&scenario), (2, None), "the nodes that are labelled count");
}

#[test]
fn a_snapshot_recorded_before_unlabelled_nodes_were_reported_is_still_read() {
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
        let mut scenario = with_gpus(gpus);
        scenario.policy.limits.fail_closed = true;
        assert_eq!(decided(&scenario), (1, None), "{gpus:?}");
    }
}

#[test]
fn an_inventory_that_nobody_can_read_any_longer_denies_where_it_is_to_fail_closed() {
    let mut scenario = needy();
    scenario.snapshot.is_inventory_stale = true;
    assert_eq!(decided(&scenario), (2, None), "what the nodes had limits as before");
    scenario.policy.limits.fail_closed = true;
    assert_eq!(decided(&scenario), (1, None));
}

#[test]
fn a_limit_that_an_object_of_the_cluster_sets_is_named_whatever_the_policy_is() {
    let mut free = needy();
    free.policy.limits = LimitPolicy::default();
    free.snapshot.inventory = None;
    let (needed, _) = decided(&free);
    assert!(needed > 2, "{needed}");
    let id = group_of(&mut free.snapshot).variants[0].variant.id.clone();
    let quota = VariantLimit {
        limit: VariantLimit::RESOURCE_QUOTA.into(),
        key: "nvidia.com/gpu in default/gpus".into(),
        gpus: 3,
        elsewhere: 1,
        variants: [id].into(),
    };
    free.snapshot.limits = vec![quota.clone()];
    assert_eq!(decided(&free), (2, None));
    let outcome = decide(&free.snapshot, &free.memory, &free.policy);
    let constraint = target_of(&outcome, "llama").explanation.capacity_constraint().unwrap();
    let text = constraint.to_string();
    assert_eq!(constraint.as_str(), "LimitReached");
    assert!(text.contains("ResourceQuota of nvidia.com/gpu in default/gpus: 0.0 of 3.0 free"), "{text}");
    free.snapshot.limits = vec![VariantLimit { gpus: 0, elsewhere: 0, ..quota }];
    assert_eq!(decided(&free), (1, None), "what runs stays");
}

/// A limit that an object of the cluster sets for the only variant of `needy`.
fn of_needy(limit: &str, gpus: u32) -> VariantLimit {
    let id = group_of(&mut needy().snapshot).variants[0].variant.id.clone();
    VariantLimit {
        limit: limit.into(),
        key: "of an object".into(),
        gpus,
        elsewhere: 0,
        variants: [id].into(),
    }
}

#[test]
fn a_quota_of_one_namespace_kept_every_model_from_growing_with_upstreams_optimizer() {
    let mut scenario = needy();
    scenario.policy = Policy { compat: Compat::Upstream, ..policy_of(Analyzer::Saturation) };
    let (needed, _) = decided(&scenario);
    assert!(needed > 2, "{needed}");
    let own = of_needy(VariantLimit::RESOURCE_QUOTA, 2);
    let of_others = VariantLimit { variants: [VariantId::new("team", "v")].into(), ..own.clone() };
    scenario.snapshot.limits = vec![of_others];
    assert_eq!(decided(&scenario), (needed, None));
    scenario.snapshot.limits = vec![own];
    assert_eq!(decided(&scenario), (2, None));
}

#[test]
fn a_quota_of_one_namespace_changed_how_models_of_others_are_decided() {
    let decided = |limits: Vec<VariantLimit>| {
        let snapshot = Snapshot { limits, ..busy_and_calm(false) };
        decide(&snapshot, &Memory::default(), &policy_of(Analyzer::Threshold))
    };
    let own = of_needy(VariantLimit::RESOURCE_QUOTA, 2);
    let of_others = VariantLimit { variants: [VariantId::new("team", "v")].into(), ..own };
    assert_eq!(decided(vec![of_others]), decided(vec![]));
}

#[test]
fn nodes_that_a_node_autoscaler_would_add_were_never_asked_for() {
    let mut scenario = needy();
    scenario.snapshot.inventory = Some(BTreeMap::from([("H100".into(), 16)]));
    let (needed, _) = decided(&scenario);
    assert!(needed > 2, "{needed}");
    scenario.snapshot.limits = vec![of_needy(VariantLimit::SUITABLE_NODES, 2)];
    assert_eq!(decided(&scenario), (2, None), "there are some, and they are full");
    scenario.snapshot.unlabelled = Some("gpu-7".into());
    assert_eq!(decided(&scenario).0, needed, "nobody knows what the node has");
    scenario.snapshot.unlabelled = None;
    scenario.snapshot.limits = vec![of_needy(VariantLimit::SUITABLE_NODES, 0)];
    assert_eq!(decided(&scenario), (needed, None), "none is there yet");
    scenario.policy.limits.fail_closed = true;
    assert_eq!(decided(&scenario), (1, None));
    scenario.policy.limits.inventory = false;
    assert_eq!(decided(&scenario), (needed, None), "nodes are no limit");
}

#[test]
fn accelerators_of_variants_and_nodes_match_whatever_their_case() {
    assert_eq!(decided(&with_gpus(Some(&[("h100", 2)]))), (2, None));
    assert_eq!(decided(&with_gpus(Some(&[("h100", 1), ("H100", 2)]))), (3, None), "nodes differ too");
    let mut scenario = with_gpus(Some(&[("h100", 4)]));
    scenario.snapshot.elsewhere = BTreeMap::from([("H100".into(), 2)]);
    assert_eq!(decided(&scenario), (2, None), "and pods of others are on them");
}

/// Two variants whose pods run all they can, each on its own: the first of four busy replicas, the other of two calm ones, of
/// which one has long been trying to start unless both are `ready`.
fn busy_and_calm(ready: bool) -> Snapshot {
    let engine = EngineParameters { max_sequences: 1, ..EngineParameters::defaults(Engine::Vllm) };
    let [mut snapshot, mut calm] = [(4, 0.85), (2, 0.1)].map(|(running, kv)| {
        let mut snapshot = World::with_load(running, (kv, 1.0)).snapshot();
        states_mut(&mut snapshot).for_each(|state| state.template.engine = Some(engine.clone()));
        snapshot
    });
    let mut calm = group_of(&mut calm).variants.remove(0);
    calm.variant.id.name = "other".into();
    if !ready {
        (calm.pods[1].phase, calm.pods[1].ready_since) = (Phase::Starting, None);
        calm.pods[1].engines = NameMap::default();
        count_ready(&mut calm);
    }
    group_of(&mut snapshot).variants.push(calm);
    snapshot
}

/// The numbers of both, with a limit on GPUs of which no inventory is known, or without.
fn numbers(ready: bool, limited: bool) -> Vec<u32> {
    let mut policy = policy_of(Analyzer::Threshold);
    policy.limits.inventory = limited;
    let outcome = decide(&busy_and_calm(ready), &Memory::default(), &policy);
    assert_eq!(outcome.report.violations, []);
    numbers_of(&outcome)
}

#[test]
fn a_limit_not_in_force_keeps_no_replica_whose_place_another_variant_takes() {
    assert_eq!(numbers(false, false), [5, 1]);
    assert_eq!(numbers(false, true), [5, 1], "nothing can be denied");
}

#[test]
fn a_replica_that_serves_does_not_go_for_one_of_another_variant_that_does_not() {
    // Each of the six runs the one request that it can, and another one waits.
    assert_eq!(numbers(true, false), [5, 2]);
    assert_eq!(numbers(true, true), [5, 2]);
}

#[test]
fn a_limit_that_has_just_denied_replicas_was_said_to_grant_every_one() {
    let outcome = scenario("rate-asks-the-next-variant-where-a-quota-is-full").decided();
    let constraint = target_of(&outcome, "cheap").explanation.capacity_constraint().unwrap();
    assert_eq!((constraint.as_str(), constraint.is_earlier()), ("LimitReached", true), "five seconds ago");
}

#[test]
fn a_quota_that_fell_below_a_promise_was_taken_for_a_removal_from_a_busy_model() {
    let policy = policy_of(Analyzer::Threshold);
    let snapshot = busy_and_calm(true);
    let before = decide(&snapshot, &Memory::default(), &policy);
    assert_eq!(numbers_of(&before), [5, 2]);
    let limits = vec![of_needy(VariantLimit::RESOURCE_QUOTA, 4)];
    let later = later(&Snapshot { limits, ..snapshot }, SignedDuration::from_mins(1));
    let outcome = decide(&later, &before.memory, &policy);
    assert_eq!(outcome.report.violations, []);
    assert_eq!(numbers_of(&outcome), [4, 2]);
}
