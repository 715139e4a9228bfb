//! The names that most tests need.

pub(crate) use std::collections::{BTreeMap, BTreeSet};

pub(crate) use jiff::{SignedDuration, Timestamp};
pub(crate) use smol_str::SmolStr;
pub(crate) use wva_core::decision::{Cause, Decision, Reason, Target, Verdict};
pub(crate) use wva_core::memory::{GroupMemory, Learned, Memory, VariantMemory};
pub(crate) use wva_core::model::{
    Analyzer, Bounds, ClassTarget, Compat, LatencyTargets, Quota, Role, ScaleToZero, SecondaryAnalyzer,
    ServiceClass, TargetRef, Variant,
};
pub(crate) use wva_core::report::Rule;
pub(crate) use wva_core::snapshot::{
    Engine, EngineParameters, ModelGroup, Phase, Pod, Sample, Scale, Signal, Signals, SourceHealth, Template,
    VariantState,
};
pub(crate) use wva_core::units::{Cost, Replicas, Seconds, count};
pub(crate) use wva_core::{GroupId, Outcome, Policy, Snapshot, VariantId, decide, observe};

pub(crate) use super::fixture::{
    World, at, count_ready, engines_mut, evaluate, group_id, group_of, id, model_group, number_of,
    numbers_of, policy_of, premium, promised, ready_pod, retain, snapshot_of, states, states_mut, target_of,
    variant_state,
};
