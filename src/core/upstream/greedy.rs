//! The legacy solver's distribution of scarce accelerators, for comparison with upstream only: here a decision has an unlimited supply, and the
//! limits that all analyzers share hold back what is proposed. Source: WVA until v0.5, `pkg/solver/greedy.go`.

use std::cmp::Ordering;
use std::collections::{BTreeMap, VecDeque};

use smol_str::SmolStr;

use crate::analyze::inferno::allocation::{Allocation, AllocationChoice, AllocationRequest};
use crate::analyze::queueing::model::single_count;
use crate::units::Replicas;

/// What happens to accelerators that are left over while some servers got nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum BestEffort {
    /// They stay free.
    #[default]
    None,
    /// As many replicas as fit, server by server.
    PriorityExhaustive,
    /// One replica per round within each priority.
    PriorityRoundRobin,
    /// One replica per round over all.
    RoundRobin,
}

impl BestEffort {
    /// By its name in the configuration; an unknown name is none.
    pub(crate) fn from_name(name: &str) -> Self {
        match name {
            "PriorityExhaustive" => Self::PriorityExhaustive,
            "PriorityRoundRobin" => Self::PriorityRoundRobin,
            "RoundRobin" => Self::RoundRobin,
            _ => Self::None,
        }
    }
}

/// What each server got, and what is left of each type. A server that got nothing is not listed.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct GreedySolution {
    pub allocations: BTreeMap<SmolStr, Allocation>,
    pub left: BTreeMap<SmolStr, u64>,
}

impl GreedySolution {
    fn left(&self, kind: &str) -> u64 {
        self.left.get(kind).copied().unwrap_or(0)
    }

    fn take(&mut self, kind: &str, accelerators: u64) {
        if let Some(left) = self.left.get_mut(kind) {
            *left = left.saturating_sub(accelerators);
        }
    }
}

#[derive(Debug, Clone)]
struct Entry<'a> {
    server: &'a str,
    priority: u32,
    /// By value, the smallest first.
    choices: Vec<&'a AllocationChoice>,
    index: usize,
}

impl Entry<'_> {
    fn value(&self, index: usize) -> f32 {
        self.choices.get(index).map_or(f32::MAX, |choice| choice.allocation.value)
    }

    /// What the next choice loses compared with this one; without a next one, everything.
    fn loss(&self) -> f32 {
        let is_last = self.index + 1 >= self.choices.len();
        if is_last { f32::MAX } else { self.value(self.index + 1) - self.value(self.index) }
    }

    /// Priority, then the larger loss, then the larger value.
    fn order(&self, rival: &Self) -> Ordering {
        self.priority
            .cmp(&rival.priority)
            .then_with(|| compare(rival.loss(), self.loss()))
            .then_with(|| compare(rival.value(rival.index), self.value(self.index)))
    }
}

/// By size. Adding 0 turns the negative zero into the positive one, so that both are equal.
fn compare(left: f32, right: f32) -> Ordering {
    (left + 0.0).total_cmp(&(right + 0.0))
}

/// Hands out accelerators. A server that needs nothing gets no allocation. If `delayed`, best effort follows after all priorities, else after each.
pub(crate) fn solve(
    requests: &[AllocationRequest],
    available: &BTreeMap<SmolStr, u64>,
    policy: BestEffort,
    delayed: bool,
) -> GreedySolution {
    let mut solution = GreedySolution { allocations: BTreeMap::new(), left: available.clone() };
    let with_choices = requests.iter().filter(|request| !request.choices.is_empty());
    let mut entries: Vec<Entry<'_>> = with_choices
        .map(|request| {
            let mut choices: Vec<&AllocationChoice> = request.choices.iter().collect();
            choices.sort_by(|left, right| compare(left.allocation.value, right.allocation.value));
            Entry { server: &request.server, priority: request.priority, choices, index: 0 }
        })
        .collect();
    entries.sort_by(Entry::order);
    let groups = if delayed { vec![entries] } else { by_priority(entries) };
    for group in groups {
        let without = allocate(group, &mut solution);
        match policy {
            BestEffort::None => {}
            BestEffort::PriorityExhaustive => exhaust(&without, &mut solution),
            BestEffort::RoundRobin => round_robin(&without, &mut solution),
            BestEffort::PriorityRoundRobin => {
                by_priority(without).iter().for_each(|group| round_robin(group, &mut solution));
            }
        }
    }
    solution
}

fn by_priority(entries: Vec<Entry<'_>>) -> Vec<Vec<Entry<'_>>> {
    let mut groups: Vec<Vec<Entry<'_>>> = Vec::new();
    for entry in entries {
        match groups.last_mut() {
            Some(group) if group.first().is_some_and(|first| first.priority == entry.priority) => {
                group.push(entry)
            }
            _ => groups.push(vec![entry]),
        }
    }
    groups
}

/// Full allocations only. Returns the servers none of whose choices fits, in the order in which they ran out of choices.
fn allocate<'a>(entries: Vec<Entry<'a>>, solution: &mut GreedySolution) -> Vec<Entry<'a>> {
    let mut waiting = VecDeque::from(entries);
    let mut without = Vec::new();
    while let Some(mut first) = waiting.pop_front() {
        // A server that asks for nothing, or for an unknown accelerator, is skipped.
        let Some(choice) = first.choices.get(first.index).copied() else { continue };
        let Some(kind) = choice.kind.as_deref() else { continue };
        let need = u64::from(choice.allocation.replicas.get()).saturating_mul(choice.units);
        if solution.left(kind) >= need {
            solution.take(kind, need);
            solution.allocations.insert(first.server.into(), choice.allocation.clone());
            continue;
        }
        first.index += 1;
        if first.index == first.choices.len() {
            without.push(first);
        } else {
            let position = waiting.partition_point(|entry| entry.order(&first) == Ordering::Less);
            waiting.insert(position, first);
        }
    }
    without
}

/// `replicas` of a choice, with cost and value in proportion.
fn part(choice: &AllocationChoice, replicas: u64) -> Allocation {
    let full = &choice.allocation;
    let replicas = Replicas::new(u32::try_from(replicas).unwrap_or(u32::MAX)).min(full.replicas);
    let factor = single_count(replicas.get()) / single_count(full.replicas.get());
    Allocation { replicas, cost: full.cost * factor, value: full.value * factor, ..full.clone() }
}

fn exhaust(without: &[Entry<'_>], solution: &mut GreedySolution) {
    for entry in without {
        let fitting = entry.choices.iter().find_map(|choice| {
            let kind = choice.kind.as_deref()?;
            let room = solution.left(kind).checked_div(choice.units)?;
            let replicas = room.min(u64::from(choice.allocation.replicas.get()));
            (replicas > 0).then_some((choice, kind, replicas))
        });
        if let Some((choice, kind, replicas)) = fitting {
            solution.take(kind, replicas.saturating_mul(choice.units));
            solution.allocations.insert(entry.server.into(), part(choice, replicas));
        }
    }
}

struct Participant<'a> {
    server: &'a str,
    choice: &'a AllocationChoice,
    kind: &'a str,
    replicas: u64,
}

impl Participant<'_> {
    /// Takes one more replica; false if there is no room.
    fn take(&mut self, solution: &mut GreedySolution) -> bool {
        let has_room = solution.left(self.kind) >= self.choice.units
            && self.replicas < u64::from(self.choice.allocation.replicas.get());
        if has_room {
            solution.take(self.kind, self.choice.units);
            self.replicas += 1;
        }
        has_room
    }
}

/// One replica per server and round. Each server stays on the first choice that had room in its first round.
fn round_robin(without: &[Entry<'_>], solution: &mut GreedySolution) {
    let mut active = Vec::new();
    for entry in without {
        let first = entry.choices.iter().find_map(|&choice| {
            let kind = choice.kind.as_deref()?;
            let has_room = choice.units > 0 && solution.left(kind) >= choice.units;
            has_room.then_some(Participant { server: entry.server, choice, kind, replicas: 0 })
        });
        if let Some(mut participant) = first
            && participant.take(solution)
        {
            active.push(participant);
        }
    }
    while !active.is_empty() {
        take_full_rounds(&mut active, solution);
        let (still, done): (Vec<_>, Vec<_>) = active
            .into_iter()
            .map(|mut participant| (participant.take(solution), participant))
            .partition(|(took, _)| *took);
        for (_, Participant { server, choice, replicas, .. }) in done {
            solution.allocations.insert(server.into(), part(choice, replicas));
        }
        active = still.into_iter().map(|(_, participant)| participant).collect();
    }
}

/// Takes all rounds in which every participant gets one more, at once: round by round would take as long as there are accelerators.
fn take_full_rounds(active: &mut [Participant<'_>], solution: &mut GreedySolution) {
    let mut units_per_round: BTreeMap<&str, u64> = BTreeMap::new();
    for participant in active.iter() {
        let units = units_per_round.entry(participant.kind).or_default();
        *units = units.saturating_add(participant.choice.units);
    }
    let room = units_per_round.iter().filter_map(|(kind, units)| solution.left(kind).checked_div(*units));
    let missing = |participant: &Participant<'_>| {
        let full = u64::from(participant.choice.allocation.replicas.get());
        full.saturating_sub(participant.replicas)
    };
    let rounds = room.chain(active.iter().map(missing)).min().unwrap_or(0);
    for participant in active {
        solution.take(participant.kind, rounds.saturating_mul(participant.choice.units));
        participant.replicas = participant.replicas.saturating_add(rounds);
    }
}
