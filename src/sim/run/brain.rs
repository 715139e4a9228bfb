//! Who decides: from what is seen to a number for each variant.

use std::time::Duration;

use super::bed::Bed;
use super::eyes::Eyes;
use crate::controller::NAMESPACE;
use crate::scenario::{Scenario, SimVariant};
use wva_core::decision::Verdict;
use wva_core::memory::Memory;
use wva_core::model::{Policy, VariantId};
use wva_core::units::Replicas;
use wva_core::{decide, observe};

/// What is asked for of each variant; `None` is no answer.
pub(super) type Numbers = Vec<Option<Replicas>>;

/// The program's core, between two decisions.
#[derive(Debug)]
pub(super) struct Core<'a> {
    policy: &'a Policy,
    memory: Memory,
    ids: Vec<VariantId>,
    /// Decisions at which something that an engine showed was not believed.
    pub(super) doubted: u32,
}

impl<'a> Core<'a> {
    pub(super) fn new(scenario: &Scenario, policy: &'a Policy) -> Self {
        let id = |name: &smol_str::SmolStr| VariantId::new(NAMESPACE, name.clone());
        let ids = scenario.variants.iter().map(|variant| id(&variant.name)).collect();
        Self { policy, memory: Memory::default(), ids, doubted: 0 }
    }

    /// Decides from what `eyes` see by now.
    pub(super) fn decide(&mut self, eyes: &mut Eyes, bed: &Bed<'_>, now_s: f64) -> Numbers {
        eyes.look_around(bed, now_s);
        eyes.take_in(now_s);
        let memory = observe(&eyes.snapshot, std::mem::take(&mut self.memory));
        let outcome = decide(&eyes.snapshot, &memory, self.policy);
        debug_assert!(outcome.report.failed.is_empty(), "{:?}", outcome.report.failed);
        self.memory = outcome.memory;
        let mut evidence = self.memory.groups.values().filter_map(|group| group.evidence.as_ref());
        self.doubted += u32::from(evidence.any(|evidence| evidence.has_doubts()));
        let verdict = |id| outcome.decisions.get(id).map(|decision| &decision.verdict);
        let number = |id| match verdict(id) {
            Some(Verdict::Target(target)) => Some(target.desired),
            Some(Verdict::Unknown(_)) | None => None,
        };
        self.ids.iter().map(number).collect()
    }
}

/// The numbers of a script at `now_s`, for `variants`.
pub(super) fn scripted(script: &[(Duration, Vec<Replicas>)], now_s: f64, scenario: &Scenario) -> Numbers {
    let reached = script.iter().rev().find(|(from, _)| from.as_secs_f64() <= now_s);
    let number = |(place, variant): (usize, &SimVariant)| match reached {
        Some((_, numbers)) => numbers.get(place).or(numbers.last()).copied(),
        None => Some(variant.replicas),
    };
    scenario.variants.iter().enumerate().map(number).collect()
}

/// What KEDA's metrics say of the pool: requests in all pods, and those that wait.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Pool {
    pub(super) in_pods: f64,
    pub(super) waiting: f64,
}

impl Pool {
    /// As it is now.
    pub(super) fn look(bed: &mut Bed<'_>, now_s: f64) -> Self {
        let held = bed.held().requests;
        let mut pool = Self { in_pods: held, waiting: held };
        for place in 0..bed.pods().len() {
            if bed.pods()[place].open().is_none() {
                continue;
            }
            if let Some((running, waiting)) = bed.look(place, now_s, |_, seen| (seen.running, seen.waiting)) {
                pool.in_pods += running + waiting;
                pool.waiting += waiting;
            }
        }
        pool
    }
}
