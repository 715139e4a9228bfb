//! The limited solver: who gets which of too few accelerators (algorithm reference §6.4).

use std::cmp::Ordering;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::allocation::Allocation;
use crate::analyze::queueing::model::of;
use crate::units::Replicas;
use smol_str::SmolStr;

/// What a server would take, and what that takes.
#[derive(Debug, Clone, PartialEq)]
pub struct Choice {
    /// The allocation.
    pub allocation: Allocation,
    /// The type of accelerator it counts against; `None` where the accelerator is unknown or none.
    pub kind: Option<SmolStr>,
    /// Accelerators of the type that one replica takes, multiplicity included.
    pub units: u64,
}

/// A server and its choices.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    /// The server's name.
    pub server: SmolStr,
    /// Its class's priority, 1 the highest.
    pub priority: u32,
    /// In any order.
    pub choices: Vec<Choice>,
}

/// What happens with accelerators that are left while servers went without.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum BestEffort {
    /// They stay free.
    #[default]
    None,
    /// As many replicas as fit, server by server.
    PriorityExhaustive,
    /// One replica a turn within each priority.
    PriorityRoundRobin,
    /// One replica a turn over all.
    RoundRobin,
}

impl BestEffort {
    /// By its name in the configuration; an unknown one is none.
    #[must_use]
    pub fn named(name: &str) -> Self {
        match name {
            "PriorityExhaustive" => Self::PriorityExhaustive,
            "PriorityRoundRobin" => Self::PriorityRoundRobin,
            "RoundRobin" => Self::RoundRobin,
            _ => Self::None,
        }
    }
}

/// What each server got, by name, and what is left of each type. A server without is not there.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Granted {
    /// By server.
    pub allocations: BTreeMap<SmolStr, Allocation>,
    /// By type.
    pub left: BTreeMap<SmolStr, u64>,
}

impl Granted {
    fn left(&self, kind: &str) -> u64 {
        self.left.get(kind).copied().unwrap_or(0)
    }

    fn take(&mut self, kind: &str, accelerators: u64) {
        if let Some(left) = self.left.get_mut(kind) {
            *left = left.saturating_sub(accelerators);
        }
    }
}

/// A server in the queue for accelerators.
#[derive(Debug, Clone)]
struct Entry<'a> {
    server: &'a str,
    priority: u32,
    /// By value, the smallest first.
    choices: Vec<&'a Choice>,
    /// The one it asks for.
    index: usize,
}

impl Entry<'_> {
    fn value(&self, index: usize) -> f32 {
        self.choices.get(index).map_or(f32::MAX, |choice| choice.allocation.value)
    }

    /// What is lost by the next choice instead of this one; without a next one all.
    fn delta(&self) -> f32 {
        let last = self.index + 1 >= self.choices.len();
        if last { f32::MAX } else { self.value(self.index + 1) - self.value(self.index) }
    }

    /// Priority, then the larger loss, then the larger value.
    fn order(&self, other: &Self) -> Ordering {
        let larger = |own: f32, other: f32| compare(other, own);
        self.priority
            .cmp(&other.priority)
            .then_with(|| larger(self.delta(), other.delta()))
            .then_with(|| larger(self.value(self.index), other.value(other.index)))
    }
}

/// By size, the two zeros alike.
fn compare(a: f32, b: f32) -> Ordering {
    (a + 0.0).total_cmp(&(b + 0.0))
}

/// Gives accelerators out: to all and then as best effort what is left if `delayed`, else priority by priority.
#[must_use]
pub fn solve(
    requests: &[Request],
    available: &BTreeMap<SmolStr, u64>,
    policy: BestEffort,
    delayed: bool,
) -> Granted {
    let mut granted = Granted { allocations: BTreeMap::new(), left: available.clone() };
    let with_choices = requests.iter().filter(|request| !request.choices.is_empty());
    let mut entries: Vec<Entry<'_>> = with_choices
        .map(|request| {
            let mut choices: Vec<&Choice> = request.choices.iter().collect();
            choices.sort_by(|a, b| compare(a.allocation.value, b.allocation.value));
            Entry { server: &request.server, priority: request.priority, choices, index: 0 }
        })
        .collect();
    entries.sort_by(Entry::order);
    let groups = if delayed { vec![entries] } else { by_priority(entries) };
    for group in groups {
        let without = allocate(group, &mut granted);
        match policy {
            BestEffort::None => {}
            BestEffort::PriorityExhaustive => exhaust(&without, &mut granted),
            BestEffort::RoundRobin => take_turns(&without, &mut granted),
            BestEffort::PriorityRoundRobin => {
                by_priority(without).iter().for_each(|group| take_turns(group, &mut granted));
            }
        }
    }
    granted
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

/// Full allocations only. Returns the servers none of whose choices fits, in the order they ran out of choices.
fn allocate<'a>(entries: Vec<Entry<'a>>, granted: &mut Granted) -> Vec<Entry<'a>> {
    let mut waiting = std::collections::VecDeque::from(entries);
    let mut without = Vec::new();
    while let Some(mut first) = waiting.pop_front() {
        // The allocation of nothing, or of an accelerator nobody knows, is skipped with its server.
        let Some(choice) = first.choices.get(first.index).copied() else { continue };
        let Some(kind) = choice.kind.as_deref() else { continue };
        let need = u64::from(choice.allocation.replicas.get()).saturating_mul(choice.units);
        if granted.left(kind) >= need {
            granted.take(kind, need);
            granted.allocations.insert(first.server.into(), choice.allocation.clone());
            continue;
        }
        first.index += 1;
        if first.index == first.choices.len() {
            without.push(first);
        } else {
            let place = waiting.partition_point(|other| other.order(&first) == Ordering::Less);
            waiting.insert(place, first);
        }
    }
    without
}

/// The part of a choice that could be had: cost and value in proportion.
fn part(choice: &Choice, replicas: u64) -> Allocation {
    let wanted = &choice.allocation;
    let replicas = Replicas::new(u32::try_from(replicas).unwrap_or(u32::MAX)).min(wanted.replicas);
    let factor = of(replicas.get()) / of(wanted.replicas.get());
    Allocation { replicas, cost: wanted.cost * factor, value: wanted.value * factor, ..wanted.clone() }
}

fn exhaust(without: &[Entry<'_>], granted: &mut Granted) {
    for entry in without {
        let fitting = entry.choices.iter().find_map(|choice| {
            let kind = choice.kind.as_deref()?;
            let room = granted.left(kind).checked_div(choice.units)?;
            let replicas = room.min(u64::from(choice.allocation.replicas.get()));
            (replicas > 0).then_some((choice, kind, replicas))
        });
        if let Some((choice, kind, replicas)) = fitting {
            granted.take(kind, replicas.saturating_mul(choice.units));
            granted.allocations.insert(entry.server.into(), part(choice, replicas));
        }
    }
}

/// A server that takes part in the turns.
struct Turn<'a> {
    server: &'a str,
    choice: &'a Choice,
    kind: &'a str,
    replicas: u64,
}

impl Turn<'_> {
    /// One more replica, if there is room.
    fn take(&mut self, granted: &mut Granted) -> bool {
        let room = granted.left(self.kind) >= self.choice.units
            && self.replicas < u64::from(self.choice.allocation.replicas.get());
        if room {
            granted.take(self.kind, self.choice.units);
            self.replicas += 1;
        }
        room
    }
}

/// One replica a server and turn. Each stays on the first choice that had room when its first turn came.
fn take_turns(without: &[Entry<'_>], granted: &mut Granted) {
    let mut active = Vec::new();
    for entry in without {
        let first = entry.choices.iter().find_map(|&choice| {
            let kind = choice.kind.as_deref()?;
            let room = choice.units > 0 && granted.left(kind) >= choice.units;
            room.then_some(Turn { server: entry.server, choice, kind, replicas: 0 })
        });
        if let Some(mut turn) = first
            && turn.take(granted)
        {
            active.push(turn);
        }
    }
    while !active.is_empty() {
        full_turns(&mut active, granted);
        let (still, done): (Vec<_>, Vec<_>) =
            active.into_iter().map(|mut turn| (turn.take(granted), turn)).partition(|(more, _)| *more);
        for (_, turn) in done {
            granted.allocations.insert(turn.server.into(), part(turn.choice, turn.replicas));
        }
        active = still.into_iter().map(|(_, turn)| turn).collect();
    }
}

/// The turns in which all get one more, at once: a turn at a time would take as long as there are accelerators.
fn full_turns(active: &mut [Turn<'_>], granted: &mut Granted) {
    let mut each: BTreeMap<&str, u64> = BTreeMap::new();
    for turn in active.iter() {
        let units = each.entry(turn.kind).or_default();
        *units = units.saturating_add(turn.choice.units);
    }
    let room = each.iter().filter_map(|(kind, units)| granted.left(kind).checked_div(*units));
    let wants =
        |turn: &Turn<'_>| u64::from(turn.choice.allocation.replicas.get()).saturating_sub(turn.replicas);
    let turns = room.chain(active.iter().map(wants)).min().unwrap_or(0);
    for turn in active {
        granted.take(turn.kind, turns.saturating_mul(turn.choice.units));
        turn.replicas = turn.replicas.saturating_add(turns);
    }
}
