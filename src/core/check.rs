//! The rules that no decision may break, derived a second time from the snapshot, the memory before and the policy. It shares no arithmetic with the
//! deciding stages, only accessors of these types, so that a mistake there is found here. It only reports; `decide` holds the previous number.

mod fits;

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use smol_str::SmolStr;

use self::fits::{RemainingVariant, awake, find_overflow, ready};
use crate::decision::{Decision, Verdict};
use crate::memory::{GroupMemory, Memory, VariantMemory};
use crate::model::{Analyzer, GroupId, Policy, Role, VariantId};
use crate::report::{Breach, Rule, Violation};
use crate::snapshot::{
    ModelGroup, Phase, Pod, Scale, Series, Signal, Signals, Snapshot, SourceHealth, VariantState,
};
use crate::units::Replicas;

type Decisions = BTreeMap<VariantId, Decision>;

/// Every broken rule of `decisions`, which were made from `snapshot`, what was remembered `before`, and `policy`.
#[must_use]
pub fn check(snapshot: &Snapshot, before: &Memory, policy: &Policy, decisions: &Decisions) -> Vec<Violation> {
    let mut found = one_decision_each(snapshot, decisions);
    let limited: BTreeSet<&VariantId> = snapshot.limits.iter().flat_map(|limit| &limit.variants).collect();
    for (id, group) in &snapshot.groups {
        let find = |id: &VariantId| decisions.get(id);
        let is_limited = group.variants.iter().any(|state| limited.contains(&state.variant.id));
        let before = before.groups.get(id);
        found.extend(check_group(snapshot.now, id, group, before, (policy, is_limited), find));
    }
    found
}

/// The broken rules of one group; `find` looks up its decisions. An object of the cluster limits one of its variants if `is_limited`.
pub(crate) fn check_group<'d>(
    now: Timestamp,
    id: &GroupId,
    group: &ModelGroup,
    before: Option<&GroupMemory>,
    (policy, is_limited): (&Policy, bool),
    find: impl Fn(&VariantId) -> Option<&'d Decision>,
) -> Vec<Violation> {
    let empty = GroupMemory::default();
    let model = ModelCheck { now, policy, is_limited, id, group, before: before.unwrap_or(&empty) };
    Role::ALL.into_iter().flat_map(|role| model.check_role(role, &find)).collect()
}

/// Variants without a decision, and decisions about variants that are not in the snapshot.
pub(crate) fn one_decision_each(snapshot: &Snapshot, decisions: &Decisions) -> Vec<Violation> {
    let states = snapshot.groups.values().flat_map(|group| &group.variants);
    let mut expected: Vec<&VariantId> = states
        .map(|state| &state.variant.id)
        .chain(snapshot.invalid.iter().map(|invalid| &invalid.id))
        .collect();
    let same = |expected: &[&VariantId]| expected.iter().copied().eq(decisions.keys());
    // Variants are often named after their models, and then they are in order already.
    if same(&expected) {
        return Vec::new();
    }
    expected.sort();
    expected.dedup();
    if same(&expected) {
        return Vec::new();
    }
    let missing =
        expected.iter().filter(|id| !decisions.contains_key(**id)).map(|id| (*id, Breach::NoDecision));
    let extra = decisions
        .keys()
        .filter(|id| expected.binary_search(id).is_err())
        .map(|id| (id, Breach::NotInSnapshot));
    missing.chain(extra).map(|(id, breach)| broken(id, Rule::OneDecision, breach)).collect()
}

fn broken(variant: &VariantId, rule: Rule, detail: Breach) -> Violation {
    Violation { variant: variant.clone(), rule, detail }
}

/// One group, and what its rules are derived from.
struct ModelCheck<'a> {
    now: Timestamp,
    policy: &'a Policy,
    /// An object of the cluster limits one of its variants.
    is_limited: bool,
    id: &'a GroupId,
    group: &'a ModelGroup,
    before: &'a GroupMemory,
}

/// A decided number.
struct CheckedTarget<'a> {
    state: &'a VariantState,
    scale: Scale,
    decided: u32,
    /// The number promised before, if any.
    promised: Option<u32>,
}

impl ModelCheck<'_> {
    fn check_role<'d>(
        &self,
        role: Role,
        find: &impl Fn(&VariantId) -> Option<&'d Decision>,
    ) -> Vec<Violation> {
        let of_role: Vec<&VariantState> =
            self.group.variants.iter().filter(|state| state.variant.role == role).collect();
        if of_role.is_empty() {
            return Vec::new();
        }
        let mut numbers: Vec<CheckedTarget<'_>> =
            of_role.iter().filter_map(|state| self.checked_target(state, find(&state.variant.id))).collect();
        numbers.sort_by(|left, right| left.id().cmp(right.id()));
        let is_measured = self.are_enough_measured(&of_role);
        let mut found = Vec::new();
        for number in &numbers {
            found.extend(number.find_out_of_bounds());
            found.extend(self.find_blind_decrease(number, is_measured));
            found.extend(self.find_unearned_zero(number, is_measured, &numbers));
        }
        if self.policy.of(self.id).analyzer == Analyzer::SaturationPercent {
            found.extend(self.find_larger_steps(&of_role, &numbers));
        }
        found.extend(self.find_removals_that_do_not_fit(&of_role, &numbers));
        found
    }

    fn checked_target<'s>(
        &self,
        state: &'s VariantState,
        decided: Option<&Decision>,
    ) -> Option<CheckedTarget<'s>> {
        let Verdict::Target(target) = &decided?.verdict else { return None };
        let remembered = self.remembered(state).and_then(|memory| memory.target).map(Replicas::get);
        let promised = remembered.or(state.last_status.map(Replicas::get).filter(|last| *last > 0));
        Some(CheckedTarget { state, scale: state.scale?, decided: target.desired.get(), promised })
    }

    fn remembered(&self, state: &VariantState) -> Option<&VariantMemory> {
        self.before.variants.get(&state.variant.id.name)
    }

    /// The source's answer is complete, and at least half of the serving pods of the role were measured recently. The others then count as
    /// loaded like the busiest of these.
    fn are_enough_measured(&self, of_role: &[&VariantState]) -> bool {
        let wanted = of_role.iter().filter(|state| state.scale.is_some_and(|scale| scale.spec.get() > 0));
        let (mut serving, mut measured, mut promised) = (0_u64, 0_u64, 0_u64);
        for state in wanted {
            promised += state.scale.map_or(0, |scale| u64::from(scale.ready.get()));
            for pod in state.pods.iter().filter(|pod| pod.phase == Phase::Ready) {
                serving += 1;
                measured += u64::from(is_measured_recently(pod, self.now));
            }
        }
        self.group.source == SourceHealth::Complete
            && serving > 0
            && serving >= promised
            && 2 * measured >= serving
    }

    /// No replica is requested, and the source's answer is complete.
    fn is_scaled_to_zero(&self, number: &CheckedTarget<'_>) -> bool {
        number.scale.spec.get() == 0 && self.group.source == SourceHealth::Complete
    }

    fn find_blind_decrease(&self, number: &CheckedTarget<'_>, is_measured: bool) -> Option<Violation> {
        let promised = number.promised?;
        let allowed = number.bounded(promised);
        if is_measured || self.is_scaled_to_zero(number) || number.decided >= allowed {
            return None;
        }
        let breach = Breach::BlindDecrease { decided: number.decided, promised };
        Some(broken(number.id(), Rule::NoBlindDecrease, breach))
    }

    /// The decisions leave fewer replicas than were promised (or run, if nothing was promised), or fewer serving ones, and the running requests
    /// do not fit into them. What a lowered maximum, a limit or a measured zero takes away does not count.
    fn find_removals_that_do_not_fit(
        &self,
        of_role: &[&VariantState],
        numbers: &[CheckedTarget<'_>],
    ) -> Vec<Violation> {
        let floor = |number: &CheckedTarget<'_>| self.removal_floor(number);
        if !reduces_capacity(numbers, floor) {
            return Vec::new();
        }
        let number_left = |state: &VariantState| {
            number_of(state, numbers).map_or(u32::MAX, |number| self.remaining_number(number))
        };
        let Some(breach) = find_overflow(&self.remaining_variants(of_role, number_left), self.now) else {
            return Vec::new();
        };
        let fewer = numbers.iter().filter(|number| number.decided < floor(number));
        fewer.map(|number| broken(number.id(), Rule::FitsRemaining, breach.clone())).collect()
    }

    /// What remains of a role with the `decided` number of each variant.
    fn remaining_variants<'s>(
        &self,
        of_role: &[&'s VariantState],
        decided: impl Fn(&VariantState) -> u32,
    ) -> Vec<RemainingVariant<'s>> {
        let there = of_role.iter().filter(|state| state.scale.is_some());
        let remembered = |state| self.remembered(state).map_or(0, |own| own.most_running.remembered(state));
        there
            .map(|state| RemainingVariant { state, decided: decided(state), most_running: remembered(state) })
            .collect()
    }

    /// An analyzer may go below this number only if the running requests fit.
    fn removal_floor(&self, number: &CheckedTarget<'_>) -> u32 {
        let promised = number.before();
        let kept =
            if self.has_shared_limit() { promised.min(number.bounded(number.base())) } else { promised };
        let is_at_rest = number.scale.spec.get() == 0 || (number.decided == 0 && self.is_idle());
        if is_at_rest { number.decided } else { kept }
    }

    /// The replicas of a variant that remain. What a limit took back of a promise does not count against a removal from another variant.
    fn remaining_number(&self, number: &CheckedTarget<'_>) -> u32 {
        match number.promised {
            Some(promised) if self.has_shared_limit() && number.decided >= self.removal_floor(number) => {
                number.decided.max(number.bounded(promised))
            }
            _ => number.decided,
        }
    }

    fn find_unearned_zero(
        &self,
        number: &CheckedTarget<'_>,
        is_measured: bool,
        of_role: &[CheckedTarget<'_>],
    ) -> Option<Violation> {
        let bounds = number.state.variant.bounds;
        let is_forced = bounds.max.is_some_and(|max| max.get() == 0);
        let do_others_serve = of_role.iter().any(|number| number.decided > 0 && number.serves());
        let is_optimized = self.policy.of(self.id).analyzer.is_of_capacity();
        let is_covered = is_optimized && do_others_serve && (is_measured || number.promised == Some(0));
        let is_earned = bounds.min.get() == 0
            && (number.scale.spec.get() == 0 || is_forced || is_covered || self.is_idle());
        if number.decided > 0 || is_earned {
            return None;
        }
        let breach = Breach::UnearnedZero { min: bounds.min, running: number.scale.current };
        Some(broken(number.id(), Rule::ZeroOnlyWhenIdle, breach))
    }

    /// The whole model may be scaled to zero, has been idle for the retention period, and shows no request now.
    fn is_idle(&self) -> bool {
        let policy = self.policy.scale_to_zero(self.id);
        let all = &self.group.variants;
        let has_been_idle =
            self.before.idle_since.is_some_and(|since| seconds(since, self.now) >= policy.retention.get());
        let is_idle = |engine: &Signals| {
            [Signal::Running, Signal::Waiting]
                .iter()
                .all(|signal| engine.newest(*signal).is_some_and(|sample| sample.value <= 0.0))
        };
        let ready = all.iter().flat_map(|state| &state.pods).filter(|pod| pod.phase == Phase::Ready);
        let are_pods_quiet =
            ready.into_iter().all(|pod| serving(pod).all(is_idle) && is_measured_recently(pod, self.now));
        // Where requests cannot be seen at the scheduler, something else must be known to start the model.
        let queue = self.group.scheduler.newest(Signal::SchedulerQueueSize);
        let is_woken_otherwise = all.iter().any(|state| state.variant.woken_by.is_some());
        let is_quiet = are_pods_quiet && queue.map_or(is_woken_otherwise, |sample| sample.value <= 0.0);
        let may_be_zero = all.iter().all(|state| state.variant.bounds.min.get() == 0);
        policy.enabled
            && self.group.source == SourceHealth::Complete
            && has_been_idle
            && is_quiet
            && may_be_zero
    }

    /// Between two cycles no number moves. In a cycle one variant of the role moves by one step, from its promise or from what runs.
    fn find_larger_steps(&self, of_role: &[&VariantState], numbers: &[CheckedTarget<'_>]) -> Vec<Violation> {
        let has_ended = |at| at > self.now || seconds(at, self.now) >= self.policy.cycle.get();
        let due = self.before.cycle_at.is_none_or(has_ended);
        let may_relieve = self.is_under_pressure(of_role);
        let is_relieved = |number: &CheckedTarget<'_>| may_relieve && number.is_relieved(of_role);
        let is_held = |number: &CheckedTarget<'_>| due && self.is_held(number, of_role, numbers);
        let moved = numbers
            .iter()
            .filter(|number| !self.is_unchanged(number, due) && !is_relieved(number) && !is_held(number));
        let moved: Vec<&CheckedTarget<'_>> = moved.collect();
        let is_allowed = due && moved.len() == 1 && moved.iter().all(|number| number.is_by_a_step());
        if moved.is_empty() || is_allowed {
            return Vec::new();
        }
        let names: Vec<SmolStr> = moved.iter().map(|number| number.id().name.clone()).collect();
        let breach = |number: &CheckedTarget<'_>| {
            let CheckedTarget { decided, promised, .. } = *number;
            Breach::Steps { decided, promised, running: number.base(), moved: names.clone() }
        };
        moved.iter().map(|number| broken(number.id(), Rule::OneStep, breach(number))).collect()
    }

    /// The analyzer did not choose the number: it was promised, or it runs; or a limit leaves less than was promised and at least what runs; or
    /// the variant goes to or comes from zero.
    fn is_unchanged(&self, number: &CheckedTarget<'_>, due: bool) -> bool {
        let decided = number.decided;
        // A requested replica without a pod yet counts as one: only a measured zero may take it, and that is no step.
        let current = number.bounded(number.base().max(u32::from(number.scale.spec.get() > 0)));
        let promised = number.promised.map(|promised| number.bounded(promised));
        let runs_and_may = due || promised.is_none() || promised == Some(0);
        let granted = due
            && self.has_shared_limit()
            && promised.is_some_and(|promised| (current..promised).contains(&decided));
        let woken = decided == 1 && (promised.unwrap_or(0) == 0 || number.scale.spec.get() == 0);
        let asleep = decided == number.bounded(0);
        promised == Some(decided)
            || (runs_and_may && decided == current)
            || granted
            || woken
            || (asleep && self.may_be_zero(number))
    }

    /// The removal guard holds as much of a promise as the running requests need: they fit, or no replica is removed in all, and with one
    /// replica fewer and nothing added elsewhere they would not.
    fn is_held(
        &self,
        number: &CheckedTarget<'_>,
        of_role: &[&VariantState],
        numbers: &[CheckedTarget<'_>],
    ) -> bool {
        let with = |own: u32, of_other: &dyn Fn(&CheckedTarget<'_>) -> u32| {
            let decided = |state: &VariantState| {
                number_of(state, numbers)
                    .map_or(u32::MAX, |found| if found.id() == number.id() { own } else { of_other(found) })
            };
            find_overflow(&self.remaining_variants(of_role, decided), self.now).is_some()
        };
        (1..number.before()).contains(&number.decided)
            && (!reduces_capacity(numbers, |number| number.before())
                || !with(number.decided, &|number| self.remaining_number(number)))
            && with(number.decided - 1, &|number| number.decided.min(number.before()))
    }

    /// The policy has a shared limit, or the cluster.
    fn has_shared_limit(&self) -> bool {
        let limits = &self.policy.limits;
        self.is_limited
            || limits.inventory
            || !limits.quotas.is_empty()
            || limits.power.is_some()
            || limits.spend.is_some()
    }

    /// The safety net may act, also between two cycles and by more than a step: five requests waited in a Ready pod of the role; or some with a
    /// full KV cache; or some at the scheduler; or a pod ran about as many as its argument allows, so that others may wait unseen.
    fn is_under_pressure(&self, of_role: &[&VariantState]) -> bool {
        let reached = |series: Series<'_>, least: f64| series.iter().any(|sample| sample.value >= least);
        let waited = |series: Series<'_>| series.iter().any(|sample| sample.value > 0.0);
        let full = |state: &VariantState, engine: &Signals| {
            let (waiting, argument) = (engine.get(Signal::Waiting), state.template.sequences());
            let runs_all =
                argument.is_some_and(|most| reached(engine.get(Signal::Running), 0.9 * f64::from(most)));
            runs_all
                || reached(waiting, 5.0)
                || (waited(waiting) && reached(engine.get(Signal::KvUsage), 0.95))
        };
        let any_full = |state: &VariantState| {
            let mut ready = state.pods.iter().filter(|pod| pod.phase == Phase::Ready);
            ready.any(|pod| serving(pod).any(|engine| full(state, engine)))
        };
        of_role.iter().any(|state| any_full(state))
            || waited(self.group.scheduler.get(Signal::SchedulerQueueSize))
    }

    fn may_be_zero(&self, number: &CheckedTarget<'_>) -> bool {
        number.scale.spec.get() == 0 || self.is_idle()
    }
}

impl CheckedTarget<'_> {
    fn id(&self) -> &VariantId {
        &self.state.variant.id
    }

    fn bounded(&self, number: u32) -> u32 {
        let bounds = self.state.variant.bounds;
        let highest = bounds.max.unwrap_or(Replicas::MAX).get();
        if number < bounds.min.get() || highest < bounds.min.get() {
            bounds.min.get()
        } else {
            number.min(highest)
        }
    }

    /// The promised number, or what runs where nothing was promised.
    fn before(&self) -> u32 {
        self.bounded(self.promised.unwrap_or(self.base()))
    }

    fn find_out_of_bounds(&self) -> Option<Violation> {
        let (decided, nearest) = (self.decided, self.bounded(self.decided));
        let breach = Breach::OutOfBounds { decided, nearest };
        (nearest != decided).then(|| broken(self.id(), Rule::WithinBounds, breach))
    }

    /// A ready pod of it has shown something.
    fn serves(&self) -> bool {
        let ready = self.state.pods.iter().filter(|pod| pod.phase == Phase::Ready);
        ready.into_iter().any(|pod| !pod.engines.is_empty())
    }

    /// The number is at least what was promised or runs, and exceeds that, or the next number that an HPA acts on, by at most half of what the
    /// role runs. For a variant that is scaled to 0, the number in its status does not count.
    fn is_relieved(&self, of_role: &[&VariantState]) -> bool {
        let base = |scale: Scale| scale.current.get().min(scale.spec.get());
        let running: u64 =
            of_role.iter().filter_map(|state| state.scale).map(|scale| u64::from(base(scale))).sum();
        let promised = if self.scale.spec.get() > 0 { self.promised.unwrap_or(0) } else { 0 };
        let least = self.bounded(promised.max(self.base()));
        let past = u64::from(self.base()) * 11 / 10 + 1;
        self.decided >= least && u64::from(self.decided) <= past.max(u64::from(least)) + running.div_ceil(2)
    }

    /// What a step starts from, without the pods that a rolling update adds for a while.
    fn base(&self) -> u32 {
        self.scale.current.get().min(self.scale.spec.get())
    }

    /// At most the next number that an HPA acts on (outside 9 to 11 tenths of what runs), or the bound on the way there.
    fn is_by_a_step(&self) -> bool {
        let reaches = |start: u32| {
            let ten = |tenths: u32| u64::from(start) * u64::from(tenths);
            let narrow = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
            let ends = [narrow(ten(11) / 10 + 1), narrow(ten(9).saturating_sub(1) / 10)];
            let [most, least] = ends.map(|end| self.bounded(end));
            (least..=most).contains(&self.decided)
        };
        reaches(self.base()) || self.promised.is_some_and(reaches)
    }
}

/// The number of a variant, in `numbers` that are in the order of their variants.
fn number_of<'n, 's>(
    state: &VariantState,
    numbers: &'n [CheckedTarget<'s>],
) -> Option<&'n CheckedTarget<'s>> {
    numbers.binary_search_by(|number| number.id().cmp(&state.variant.id)).ok().map(|at| &numbers[at])
}

/// The decisions leave fewer replicas in all than the sum of `floor`, or fewer Ready ones: what is added elsewhere does not serve yet.
fn reduces_capacity(numbers: &[CheckedTarget<'_>], floor: impl Fn(&CheckedTarget<'_>) -> u32) -> bool {
    let (decided, all) = numbers.iter().fold((0_u64, 0_u64), |(decided, all), number| {
        (decided + u64::from(number.decided), all + u64::from(floor(number)))
    });
    let takes_ready = |number: &CheckedTarget<'_>| {
        let [decided, floor] = [number.decided, floor(number)].map(|replicas| awake(number.state, replicas));
        decided < floor.min(ready(number.state))
    };
    decided < all || numbers.iter().any(takes_ready)
}

fn seconds(from: Timestamp, to: Timestamp) -> f64 {
    to.duration_since(from).as_secs_f64().max(0.0)
}

/// Every engine of the pod has shown both signals within two scrapes, or half a minute where scrapes are faster, and
/// its samples reach back a minute, or to when the pod began to serve, but for one scrape and 5 s.
fn is_measured_recently(pod: &Pod, now: Timestamp) -> bool {
    let served = seconds(pod.ready_or_created(), now);
    let is_recent = |engine: &Signals| {
        let (kv, waiting) = (engine.get(Signal::KvUsage), engine.get(Signal::Waiting));
        let within = |gap: f64| {
            let (newest, oldest) = ((2.0 * gap).max(30.0), served.min(60.0) - gap - 5.0);
            [kv, waiting].iter().all(|series| {
                series.last().is_some_and(|last| seconds(last.at, now) <= newest)
                    && series.first().is_some_and(|first| seconds(first.at, now) >= oldest)
            })
        };
        // A longer gap only allows more, so it is computed only if needed.
        within(0.0)
            || within(usual_gap(if waiting.iter().count() >= kv.iter().count() { waiting } else { kv }))
    };
    !pod.engines.is_empty() && serving(pod).all(is_recent)
}

fn usual_gap(series: Series<'_>) -> f64 {
    let pairs = series.iter().zip(series.iter().skip(1));
    let mut gaps: Vec<f64> = pairs.map(|(sample, next)| seconds(sample.at, next.at)).collect();
    gaps.sort_unstable_by(f64::total_cmp);
    gaps.get(gaps.len() / 2).copied().unwrap_or(0.0)
}

/// The engines of a pod, without those that show neither signal while others do.
fn serving(pod: &Pod) -> impl Iterator<Item = &Signals> {
    let shows = |engine: &Signals| {
        !(engine.get(Signal::KvUsage).is_empty() && engine.get(Signal::Waiting).is_empty())
    };
    let is_any_shown = pod.engines.values().any(shows);
    pod.engines.values().filter(move |engine| shows(engine) || !is_any_shown)
}
