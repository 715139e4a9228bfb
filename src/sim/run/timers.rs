//! What happens by the clock: scrapes, decisions, publications, the HPAs' looks, and the points of the series.

use std::collections::VecDeque;
use std::time::Duration;

use super::bed::Bed;
use super::brain::{Core, Numbers, Pool, scripted};
use super::eyes::{Eyes, moment};
use super::results::{Answer, Point, Run};
use super::scaler::Scaler;
use crate::controller::{Brain, Controller, Path};
use crate::rng::Rng;
use crate::scenario::Scenario;
use wva_core::hpa::{Kind, MetricTarget, combine, milli, propose};
use wva_core::units::Replicas;

/// The program decides at least this often.
const EVALUATE_S: f64 = 5.0;
/// The program answers a read from an evaluation that is at most this old.
const MAX_AGE_S: f64 = 2.0;
/// The program waits this long for an evaluation before it answers with the last number.
const READ_WAIT_S: f64 = 1.0;
/// KEDA looks this often whether a target at zero should wake.
const KEDA_POLL_S: f64 = 30.0;
/// KEDA puts a target to zero after this long without activity.
const KEDA_COOLDOWN_S: f64 = 300.0;
/// What a run's chance is used for.
const PHASES: u64 = 4;

/// Something that happens again and again.
#[derive(Debug, Clone, Copy)]
struct Tick {
    next_s: f64,
    every_s: f64,
}

impl Tick {
    const NEVER: Self = Self { next_s: f64::INFINITY, every_s: f64::INFINITY };

    /// At a phase that chance draws.
    fn drawn(every_s: f64, rng: &mut Rng) -> Self {
        Self { next_s: rng.unit() * every_s, every_s }
    }

    /// True when it is time, and then for the next.
    fn is_due(&mut self, now_s: f64) -> bool {
        let due = self.next_s <= now_s;
        if due {
            self.next_s += self.every_s;
        }
        due
    }
}

/// Who decides, with what is seen.
#[derive(Debug)]
enum Mind<'a> {
    Core { core: Box<Core<'a>>, eyes: Box<Eyes> },
    Keda { pool: Pool, in_pod: f64, waiting: f64, active_s: f64 },
    Script,
}

/// Everything that happens by the clock.
#[derive(Debug)]
pub(super) struct Timers<'a> {
    scenario: &'a Scenario,
    controller: &'a Controller,
    mind: Mind<'a>,
    rng: Rng,
    /// What the HPAs see, and what they will see.
    numbers: Numbers,
    /// What they could see, where it changed.
    answers_kept: Vec<Answer>,
    publishing: VecDeque<(f64, Numbers)>,
    /// Of all pods at once, or of the scheduler alone.
    scrapes: Tick,
    decisions: Tick,
    decided_s: f64,
    polls: Tick,
    points: Tick,
    end_s: f64,
    scalers: Vec<Scaler>,
    syncs: Vec<Tick>,
    /// When a read that waits for an evaluation is answered.
    answers: Vec<f64>,
    next_s: f64,
}

impl<'a> Timers<'a> {
    pub(super) fn new(scenario: &'a Scenario, controller: &'a Controller, seed: u64) -> Self {
        let mut rng = Rng::stream(seed, PHASES);
        let variants = &scenario.variants;
        let sync_s = scenario.hpa.sync.as_secs_f64();
        let syncs: Vec<Tick> = variants.iter().map(|_| Tick::drawn(sync_s, &mut rng)).collect();
        let end_s = scenario.duration.as_secs_f64();
        let step_s = (end_s / Run::MOST_POINTS as f64).max(1.0);
        let mut timers = Self {
            scenario,
            controller,
            mind: mind(scenario, controller, seed),
            numbers: vec![None; variants.len()],
            answers_kept: Vec::new(),
            publishing: VecDeque::new(),
            scrapes: Tick::NEVER,
            decisions: Tick::NEVER,
            decided_s: f64::NEG_INFINITY,
            polls: Tick::NEVER,
            points: Tick { next_s: step_s, every_s: step_s },
            end_s,
            scalers: variants.iter().map(|one| Scaler::new(scenario, controller, one)).collect(),
            answers: vec![f64::INFINITY; syncs.len()],
            syncs,
            next_s: 0.0,
            rng,
        };
        timers.set();
        timers
    }

    /// Draws the phases of what the controller does.
    fn set(&mut self) {
        let rng = &mut self.rng;
        match (&self.mind, self.controller.path) {
            (Mind::Core { .. }, Path::Direct) => {
                self.scrapes = Tick::drawn(self.scenario.scrape.interval.as_secs_f64(), rng);
                self.decisions = Tick { next_s: EVALUATE_S, every_s: EVALUATE_S };
            }
            (Mind::Core { .. }, Path::Prometheus { scrape, reconcile, .. }) => {
                self.scrapes = Tick::drawn(scrape.as_secs_f64(), rng);
                self.decisions = Tick::drawn(reconcile.as_secs_f64(), rng);
            }
            (Mind::Keda { .. }, path) => {
                let every = match path {
                    Path::Direct => self.scenario.scrape.interval,
                    Path::Prometheus { scrape, .. } => scrape,
                };
                self.scrapes = Tick::drawn(every.as_secs_f64(), rng);
                self.polls = Tick::drawn(KEDA_POLL_S, rng);
            }
            (Mind::Script, _) => {}
        }
    }

    /// When something happens by the clock next.
    pub(super) const fn next_s(&self) -> f64 {
        self.next_s
    }

    fn find_next(&mut self, bed: &Bed<'_>) {
        let ticks = [&self.scrapes, &self.decisions, &self.polls, &self.points];
        let ticks = ticks.into_iter().chain(&self.syncs).map(|tick| tick.next_s);
        let published = self.publishing.front().map(|(at_s, _)| *at_s);
        let usable = match (&self.mind, self.controller.path) {
            (Mind::Core { eyes, .. }, Path::Direct) => Some(eyes.usable_s()),
            _ => None,
        };
        let pods = bed.pods().iter().map(|pod| pod.scrape_s);
        let all = ticks.chain(published).chain(usable).chain(self.answers.iter().copied()).chain(pods);
        self.next_s = all.fold(f64::INFINITY, f64::min);
    }

    /// Does what is due at `now_s`. True when a point of the series was made.
    pub(super) fn ring(&mut self, now_s: f64, bed: &mut Bed<'_>) -> bool {
        self.see(now_s, bed);
        self.think(now_s, bed);
        while self.publishing.front().is_some_and(|(at_s, _)| *at_s <= now_s) {
            if let Some((_, numbers)) = self.publishing.pop_front() {
                self.numbers = numbers;
            }
        }
        self.keep_answer(now_s);
        for place in 0..self.syncs.len() {
            self.sync(place, now_s, bed);
        }
        if self.polls.is_due(now_s) {
            self.poll(now_s, bed);
        }
        // The last one is made at the very end.
        let point = self.points.is_due(now_s) && now_s + self.points.every_s / 2.0 < self.end_s;
        if point {
            make_point(now_s, bed);
        }
        self.find_next(bed);
        point
    }

    /// Keeps what the HPAs can read from now on, where it is something new.
    fn keep_answer(&mut self, now_s: f64) {
        let known = self.answers_kept.last().map(|answer| answer.numbers.as_slice());
        let new = self.numbers.iter().map(|number| number.map(Replicas::get));
        let same = known.map_or_else(
            || new.clone().all(|number| number.is_none()),
            |known| new.clone().eq(known.iter().copied()),
        );
        if !same && self.answers_kept.len() < Run::MOST_WRITES {
            let numbers = new.collect();
            self.answers_kept.push(Answer { at_s: now_s, numbers });
        }
    }

    /// Decisions at which something that an engine showed was not believed.
    pub(super) fn doubted(&self) -> u32 {
        match &self.mind {
            Mind::Core { core, .. } => core.doubted,
            Mind::Keda { .. } | Mind::Script => 0,
        }
    }

    /// What was kept of that.
    pub(super) fn into_answers(self) -> Vec<Answer> {
        self.answers_kept
    }

    /// Scrapes.
    fn see(&mut self, now_s: f64, bed: &mut Bed<'_>) {
        let due = self.scrapes.is_due(now_s);
        match (&mut self.mind, self.controller.path) {
            (Mind::Core { eyes, .. }, Path::Direct) => {
                if due {
                    eyes.scrape(bed, now_s, self.scenario.scrape.delay.as_secs_f64());
                }
            }
            (Mind::Core { eyes, .. }, Path::Prometheus { scrape, .. }) => {
                plan_scrapes(bed, now_s, scrape.as_secs_f64(), &mut self.rng);
                eyes.scrape_due(bed, now_s, scrape.as_secs_f64(), due);
            }
            (Mind::Keda { pool, active_s, .. }, _) => {
                if due {
                    *pool = Pool::look(bed, now_s);
                    if pool.in_pods > 0.0 {
                        *active_s = now_s;
                    }
                }
            }
            (Mind::Script, _) => {}
        }
    }

    /// Decides when it is time, or when there is something new to decide from.
    fn think(&mut self, now_s: f64, bed: &Bed<'_>) {
        let due = self.decisions.is_due(now_s);
        let Mind::Core { core, eyes } = &mut self.mind else { return };
        match self.controller.path {
            Path::Direct => {
                if due || eyes.usable_s() <= now_s {
                    self.numbers = core.decide(eyes, bed, now_s);
                    self.decided_s = now_s;
                    self.decisions.next_s = now_s + EVALUATE_S;
                }
            }
            Path::Prometheus { publish, .. } => {
                if due {
                    let numbers = core.decide(eyes, bed, now_s);
                    self.publishing.push_back((now_s + publish.as_secs_f64(), numbers));
                }
            }
        }
    }

    /// The HPA of one variant looks, or gets the answer it waits for.
    fn sync(&mut self, place: usize, now_s: f64, bed: &mut Bed<'_>) {
        if self.syncs[place].is_due(now_s) {
            let delay_s = self.scenario.scrape.delay.as_secs_f64();
            let old = now_s - self.decided_s > MAX_AGE_S && delay_s <= READ_WAIT_S;
            match (&mut self.mind, self.controller.path) {
                (Mind::Core { eyes, .. }, Path::Direct) if old => {
                    eyes.scrape(bed, now_s, delay_s);
                    self.answers[place] = now_s + delay_s;
                }
                _ => self.answers[place] = now_s,
            }
        }
        if self.answers[place] <= now_s && !self.waits(now_s) {
            self.answers[place] = f64::INFINITY;
            let proposal = self.proposal(place, now_s, bed);
            self.scalers[place].step(place, bed, (now_s, moment(now_s)), proposal);
        }
    }

    /// Something that was scraped for a read can be used now, but no decision has been made from it yet.
    fn waits(&self, now_s: f64) -> bool {
        matches!((&self.mind, self.controller.path), (Mind::Core { eyes, .. }, Path::Direct) if eyes.usable_s() <= now_s)
    }

    /// What the HPA makes of the numbers it sees.
    fn proposal(&self, place: usize, now_s: f64, bed: &Bed<'_>) -> Option<Replicas> {
        let (counts, tolerance) = (bed.counts(place), self.scenario.hpa.tolerance);
        let average = |value: f64, target: f64| {
            let target = MetricTarget { kind: Kind::AverageValue, milli: milli(target) };
            propose(&[milli(value)], target, counts, tolerance)
        };
        let number = match &self.mind {
            Mind::Keda { pool, in_pod, waiting, .. } => {
                let asked = [average(pool.in_pods, *in_pod), average(pool.waiting, *waiting)];
                return combine(&asked, counts.spec);
            }
            Mind::Script => match &self.controller.brain {
                Brain::Script(script) => scripted(script, now_s, self.scenario).get(place).copied().flatten(),
                Brain::Core(_) | Brain::KedaEpp { .. } => None,
            },
            Mind::Core { .. } => self.numbers.get(place).copied().flatten(),
        };
        let number = number?.get().saturating_add(self.spare(place));
        average(f64::from(number), 1.0)
    }

    /// Warm spares are of the cheapest variant.
    fn spare(&self, place: usize) -> u32 {
        let costs = self.scenario.variants.iter().map(|variant| variant.cost.get()).enumerate();
        let cheapest = costs.min_by(|(_, a), (_, b)| a.total_cmp(b)).map(|(at, _)| at);
        if cheapest == Some(place) { self.controller.spare } else { 0 }
    }

    /// KEDA's own part: to zero and back.
    fn poll(&mut self, now_s: f64, bed: &mut Bed<'_>) {
        let Mind::Keda { pool, active_s, .. } = &self.mind else { return };
        let (active, idle_s) = (pool.in_pods > 0.0, now_s - active_s);
        for (place, scaler) in self.scalers.iter_mut().enumerate() {
            let (min, spec) = (self.scenario.variants[place].bounds.min, bed.counts(place).spec);
            if spec == Replicas::ZERO && active {
                scaler.write(place, bed, now_s, min.max(Replicas::ONE));
            } else if min == Replicas::ZERO && !active && idle_s >= KEDA_COOLDOWN_S {
                scaler.write(place, bed, now_s, Replicas::ZERO);
            }
        }
    }

    /// Ends the series and the accounts.
    pub(super) fn finish(&mut self, bed: &mut Bed<'_>) {
        let end_s = self.end_s;
        make_point(end_s, bed);
        for (place, scaler) in self.scalers.iter_mut().enumerate() {
            scaler.finish(place, bed, end_s);
        }
    }

    /// What was asked for, in the mean.
    pub(super) fn spent(&self) -> Run {
        let spent = self.scalers.iter().map(Scaler::spent);
        let (asked_s, cost) = spent.fold((0.0, 0.0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
        Run { replicas_avg: asked_s / self.end_s, cost_avg: cost / self.end_s, ..Run::default() }
    }
}

fn mind<'a>(scenario: &'a Scenario, controller: &'a Controller, seed: u64) -> Mind<'a> {
    match &controller.brain {
        Brain::Core(policy) => {
            let slack = match controller.path {
                Path::Direct => Duration::ZERO,
                Path::Prometheus { scrape, .. } => scrape,
            };
            let eyes = Box::new(Eyes::new(scenario, policy, seed, slack));
            Mind::Core { core: Box::new(Core::new(scenario, policy)), eyes }
        }
        Brain::KedaEpp { in_pod, waiting } => {
            Mind::Keda { pool: Pool::default(), in_pod: *in_pod, waiting: *waiting, active_s: 0.0 }
        }
        Brain::Script(_) => Mind::Script,
    }
}

/// Gives pods that have become ready their first scrape by Prometheus.
fn plan_scrapes(bed: &mut Bed<'_>, now_s: f64, every_s: f64, rng: &mut Rng) {
    for pod in bed.pods_mut() {
        if pod.scrape_s.is_infinite() && pod.server().is_some() {
            pod.scrape_s = now_s + rng.unit() * every_s;
        }
    }
}

fn make_point(now_s: f64, bed: &mut Bed<'_>) {
    let mut point = Point { at_s: now_s, asked: bed.asked().to_vec(), ..Point::default() };
    point.waiting = bed.held().requests;
    for place in 0..bed.pods().len() {
        let seen = bed.look(place, now_s, |pod, seen| {
            (pod.open().is_some(), seen.waiting, seen.running, seen.kv_usage)
        });
        let Some((ready, waiting, running, kv)) = seen else {
            point.starting += 1;
            continue;
        };
        point.waiting += waiting;
        point.running += running;
        if ready {
            point.ready += 1;
            point.kv_usage += kv;
        }
    }
    point.kv_usage /= f64::from(point.ready.max(1));
    bed.tally.point(point);
}
