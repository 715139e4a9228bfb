//! A server with continuous batching: in every step each decoding sequence gets its tokens, prompts are computed in
//! chunks with what is left of the step's token budget, and memory decides who may enter and who must leave.
//!
//! Steps between which nothing is decided are done in one go ([`Stretch`]), so its cost is by request, not by step.

mod sequence;
mod stretch;

use std::collections::VecDeque;

use self::sequence::{Before, Decoding, Prefilling, Waiting};
use self::stretch::Stretch;
use super::load::Request;
use super::physics::{Batching, Rough};
use super::rng::Rng;
use super::server::Readings;
use super::stats::{Gaps, Served, Witness};

/// A request enters while the KV cache stays below this share.
const ADMISSION_SHARE: f64 = 0.99;
/// Requests that may wait in one server: 2.5 MB; at any sane rate hours of backlog.
const MAX_WAITING: usize = 65_536;
/// What a queued request weighs for the router, against a whole KV cache as 1.
const QUEUED_WEIGHT: f64 = 0.2;
/// What a full set of running sequences weighs for the router.
const SLOTS_WEIGHT: f64 = 0.5;
/// A step takes this at least, so that it always ends later than it began, whatever the parameters: 0.1 µs, which a
/// clock of seconds can tell apart for 25 years.
const SHORTEST_STEP_S: f64 = 1e-7;

/// A server of [`Batching`] physics. Times are seconds after the simulation's start.
#[derive(Debug, Clone, PartialEq)]
pub struct BatchingServer {
    physics: Batching,
    rough: Rough,
    rng: Rng,
    now_s: f64,
    waiting: VecDeque<Waiting>,
    /// Prompt tokens of all that wait.
    waiting_tokens: u64,
    /// In the order they were admitted.
    prefilling: VecDeque<Prefilling>,
    /// In the order they finish.
    decoding: VecDeque<Decoding>,
    /// Admissions so far.
    tickets: u64,
    /// Steps done.
    steps: u64,
    /// KV tokens held after them.
    kv: f64,
    stretch: Option<Stretch>,
    readings: Readings,
}

impl BatchingServer {
    pub(super) fn new(physics: Batching, now_s: f64) -> Self {
        Self::rough(physics, Rough::default(), Rng::new(0), now_s)
    }

    /// A server that is `rough`, with its own chance.
    pub(super) fn rough(physics: Batching, rough: Rough, rng: Rng, now_s: f64) -> Self {
        Self {
            physics,
            rough,
            rng,
            now_s,
            waiting: VecDeque::new(),
            waiting_tokens: 0,
            prefilling: VecDeque::new(),
            decoding: VecDeque::new(),
            tickets: 0,
            steps: 0,
            kv: 0.0,
            stretch: None,
            readings: Readings::new(u64::from(physics.kv_tokens), physics.block_size),
        }
    }

    pub(super) const fn readings(&self) -> &Readings {
        &self.readings
    }

    pub(super) fn in_flight(&self) -> usize {
        self.waiting.len() + self.running()
    }

    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    pub(super) fn running(&self) -> usize {
        self.prefilling.len() + self.decoding.len()
    }

    pub(super) fn oldest_wait_s(&self, now_s: f64) -> f64 {
        let first = self.waiting.iter().filter(|one| one.before.is_none()).map(|one| one.request.arrived_s);
        first.min_by(f64::total_cmp).map_or(0.0, |arrived_s| (now_s - arrived_s).max(0.0))
    }

    /// The requests without a first token.
    pub(super) fn unanswered(&self) -> impl Iterator<Item = Request> {
        let prefilling = self.prefilling.iter().map(|one| one.waited);
        let all = self.waiting.iter().copied().chain(prefilling);
        all.filter(|one| one.before.is_none_or(|before| before.generated == 0)).map(|one| one.request)
    }

    /// How full it is for the router at `now_s`: lower is better.
    pub(super) fn pressure(&self, now_s: f64) -> f64 {
        let queued = (self.waiting.len() + self.prefilling.len()) as f64;
        let memory = (self.kv_at(now_s) + self.waiting_tokens as f64) / f64::from(self.physics.kv_tokens);
        QUEUED_WEIGHT * queued
            + memory
            + SLOTS_WEIGHT * self.running() as f64 / f64::from(self.physics.max_sequences)
    }

    /// KV tokens held at `now_s`, as if they grew evenly during a stretch.
    fn kv_at(&self, now_s: f64) -> f64 {
        let Some(stretch) = &self.stretch else { return self.kv };
        let share = ((now_s - stretch.start_s) / stretch.lasts_s(stretch.steps)).clamp(0.0, 1.0);
        self.kv + self.gain() * stretch.steps as f64 * share
    }

    /// KV tokens that a step adds.
    fn gain(&self) -> f64 {
        self.decoding.len() as f64 * self.physics.tokens_per_step
    }

    /// Gives it a request at `now_s`, not before what it has been advanced to; `Err` when it refuses it.
    pub(super) fn submit(&mut self, request: Request, now_s: f64) -> Result<(), Request> {
        let whole = f64::from(request.prompt) + f64::from(request.output);
        if self.waiting.len() >= MAX_WAITING || whole > self.admission_limit() {
            return Err(request);
        }
        match &mut self.stretch {
            // It may enter as soon as the step under way is done. Who waits already could not, and that stays so.
            Some(stretch) if self.waiting.is_empty() => {
                stretch.steps = stretch.steps.min(stretch.done(now_s) + 1);
            }
            Some(_) => {}
            None => self.now_s = self.now_s.max(now_s),
        }
        self.waiting_tokens += u64::from(request.prompt);
        self.waiting.push_back(Waiting { request, before: None });
        self.readings.waiting = self.waiting.len() as f64;
        Ok(())
    }

    /// When something happens to it next, if nobody comes; `None` when it has nothing to do.
    pub(super) fn next_s(&self) -> Option<f64> {
        self.stretch.map(|stretch| stretch.end_s()).or_else(|| (self.in_flight() > 0).then_some(self.now_s))
    }

    /// Works until `to_s`: steps follow each other without a gap while there is work.
    pub(super) fn advance(&mut self, to_s: f64, witness: &mut impl Witness) {
        self.advance_whole(to_s, witness);
        if let Some(stretch) = self.stretch {
            let done = stretch.done(to_s);
            if done > 0 && done < stretch.steps {
                self.count(stretch, done, witness);
                self.stretch = Some(stretch.after(done));
            }
        }
        self.read_gauges();
    }

    /// Does what is decided until `to_s`; of a stretch that goes on beyond, nothing is counted yet.
    pub(super) fn advance_whole(&mut self, to_s: f64, witness: &mut impl Witness) {
        loop {
            match self.stretch {
                Some(stretch) if stretch.end_s() <= to_s => {
                    self.stretch = None;
                    self.count(stretch, stretch.steps, witness);
                    self.now_s = stretch.end_s();
                    self.finish_prompts(witness);
                    self.finish_requests(witness);
                }
                Some(_) => break,
                None if self.in_flight() > 0 && self.now_s < to_s => self.begin(witness),
                None => break,
            }
        }
        self.now_s = self.now_s.max(to_s);
    }

    /// Begins to work on what has come by now.
    pub(super) fn begin_now(&mut self, witness: &mut impl Witness) {
        if self.stretch.is_none() && self.in_flight() > 0 {
            self.begin(witness);
        }
    }

    fn admission_limit(&self) -> f64 {
        (ADMISSION_SHARE * f64::from(self.physics.kv_tokens)).floor()
    }

    fn begin(&mut self, witness: &mut impl Witness) {
        let preempted = self.make_room();
        let decoding = (self.decoding.len() as f64 * self.physics.tokens_per_step).ceil();
        let mut budget = wva_core::units::whole(f64::from(self.physics.token_budget) - decoding);
        let mut prompt_tokens = self.continue_prompts(&mut budget);
        if !preempted {
            prompt_tokens += self.admit(&mut budget, witness);
        }
        let single = preempted || !self.prefilling.is_empty() || self.rough != Rough::default();
        let steps = if single { 1 } else { self.steps_alike() };
        let first_s = self.step_s(prompt_tokens).max(SHORTEST_STEP_S);
        let growth_s = if single { 0.0 } else { self.physics.per_kv_token_s * self.gain() };
        self.stretch = Some(Stretch { start_s: self.now_s, steps, first_s, growth_s });
    }

    /// Steps until somebody finishes or the memory is full.
    fn steps_alike(&self) -> u64 {
        let finish = self.decoding.front().map_or(1, |next| next.finish.saturating_sub(self.steps));
        let room = (f64::from(self.physics.kv_tokens) - self.kv) / self.gain().max(1.0);
        finish.min(room as u64).max(1)
    }

    /// Seconds that the step takes that begins now.
    fn step_s(&mut self, prompt_tokens: u32) -> f64 {
        let (physics, rough, prompt) = (&self.physics, &self.rough, f64::from(prompt_tokens));
        let share = self.kv / f64::from(physics.kv_tokens);
        let step_s = physics.base_s
            + physics.per_prompt_token_s * prompt * (1.0 + rough.per_prompt_token * prompt)
            + physics.per_sequence_s * self.running() as f64
            + physics.per_kv_token_s * self.kv * (1.0 + rough.per_kv_share * share);
        if !rough.by_chance() {
            return step_s;
        }
        let step_s = self.rng.around(step_s, rough.noise);
        if self.rng.unit() < rough.stalls { step_s + rough.stall_s } else { step_s }
    }

    /// Sends the youngest back to the queue until every running sequence has room for what a step gives it.
    fn make_room(&mut self) -> bool {
        let mut preempted = false;
        let room = f64::from(self.physics.kv_tokens);
        while self.kv + self.running() as f64 * self.physics.tokens_per_step > room {
            let Some(youngest) = self.preempt() else { break };
            preempted = true;
            self.waiting_tokens += u64::from(youngest.request.prompt);
            self.waiting.push_front(youngest);
            self.readings.preemptions += 1.0;
        }
        preempted
    }

    /// Takes out the youngest: one whose prompt is being computed was admitted after all that decode.
    fn preempt(&mut self) -> Option<Waiting> {
        let now_s = self.now_s;
        if let Some(youngest) = self.prefilling.pop_back() {
            self.kv -= f64::from(youngest.waited.to_hold());
            // Between its prompt's chunks: it has begun, so its wait is not counted again.
            let begun = Before { generated: 0, first_token_s: now_s, last_token_s: now_s };
            return Some(Waiting { before: youngest.waited.before.or(Some(begun)), ..youngest.waited });
        }
        let youngest = self.decoding.iter().enumerate().max_by_key(|(_, one)| one.ticket);
        let youngest = youngest.map(|(at, _)| at).and_then(|at| self.decoding.remove(at))?;
        let per_step = self.physics.tokens_per_step;
        self.kv -= youngest.held(self.steps, per_step);
        let generated = wva_core::units::whole(youngest.generated_at(self.steps, per_step));
        let before = Before { generated, first_token_s: youngest.first_token_s, last_token_s: now_s };
        Some(Waiting { request: youngest.request, before: Some(before) })
    }

    /// Gives budget to prompts that are under way, first come first served.
    fn continue_prompts(&mut self, budget: &mut u32) -> u32 {
        let mut given = 0;
        for sequence in &mut self.prefilling {
            sequence.chunk = sequence.left.min(*budget);
            *budget -= sequence.chunk;
            given += sequence.chunk;
        }
        given
    }

    /// Lets waiting requests in while there is budget, a free slot and memory for their whole prompt.
    fn admit(&mut self, budget: &mut u32, witness: &mut impl Witness) -> u32 {
        let (mut given, limit) = (0, self.admission_limit());
        while *budget > 0 && self.running() < self.physics.max_sequences as usize {
            let Some(&waited) = self.waiting.front() else { break };
            let hold = f64::from(waited.to_hold());
            if self.kv + hold > limit {
                break;
            }
            self.waiting.pop_front();
            self.waiting_tokens -= u64::from(waited.request.prompt);
            self.readings.prefix_queries += hold;
            self.readings.prefix_hits += f64::from(waited.to_hold() - waited.to_compute());
            if waited.before.is_none() {
                witness.started((self.now_s - waited.request.arrived_s).max(0.0));
            }
            self.kv += hold;
            let left = waited.to_compute();
            let chunk = left.min(*budget);
            *budget -= chunk;
            given += chunk;
            self.tickets += 1;
            self.prefilling.push_back(Prefilling { waited, left, chunk, ticket: self.tickets });
        }
        given
    }

    /// Counts what the first `done` steps of `stretch` gave those that decode.
    fn count(&mut self, stretch: Stretch, done: u64, witness: &mut impl Witness) {
        self.steps += done;
        self.readings.steps += done as f64;
        if self.decoding.is_empty() {
            return;
        }
        let tokens = self.gain() * done as f64;
        self.kv += tokens;
        self.readings.generation_tokens += tokens;
        let (first_s, growth_s) = (stretch.first_s, stretch.growth_s);
        let gaps = Gaps { first_s, growth_s, steps: done, each: self.decoding.len() as f64 };
        self.readings.inter_token.observe_gaps(gaps);
        witness.gaps(gaps);
    }

    /// The step that computes the last of a prompt also gives its first token.
    fn finish_prompts(&mut self, witness: &mut impl Witness) {
        for sequence in &mut self.prefilling {
            sequence.left -= sequence.chunk;
            sequence.chunk = 0;
        }
        while self.prefilling.front().is_some_and(|first| first.left == 0) {
            let Some(sequence) = self.prefilling.pop_front() else { break };
            self.kv += 1.0;
            self.readings.generation_tokens += 1.0;
            let first_token_s = self.first_or_next(&sequence, witness);
            self.decode(&sequence, first_token_s);
        }
    }

    /// Tells of the token that a finished prompt gives; when its request had its first one.
    fn first_or_next(&mut self, sequence: &Prefilling, witness: &mut impl Witness) -> f64 {
        let Waiting { request, before } = sequence.waited;
        let now_s = self.now_s;
        if let Some(before) = before.filter(|before| before.generated > 0) {
            let gap_s = (now_s - before.last_token_s).max(0.0);
            let gaps = Gaps { first_s: gap_s, growth_s: 0.0, steps: 1, each: 1.0 };
            self.readings.inter_token.observe_gaps(gaps);
            witness.gaps(gaps);
            return before.first_token_s;
        }
        let after_s = (now_s - request.arrived_s).max(0.0);
        self.readings.prompt_tokens += f64::from(request.prompt);
        self.readings.first_token.observe(after_s, 1.0);
        witness.first_token(now_s, after_s, 1.0);
        now_s
    }

    fn decode(&mut self, sequence: &Prefilling, first_token_s: f64) {
        let Waiting { request, before } = sequence.waited;
        let generated = before.map_or(0, |before| before.generated).saturating_add(1);
        let left = f64::from(request.output.saturating_sub(generated)) / self.physics.tokens_per_step;
        let finish = self.steps + left.ceil() as u64;
        let (joined, ticket) = (self.steps, sequence.ticket);
        let decoding = Decoding { request, first_token_s, joined, generated, finish, ticket };
        let place = self.decoding.partition_point(|other| other.finish <= finish);
        self.decoding.insert(place, decoding);
    }

    fn finish_requests(&mut self, witness: &mut impl Witness) {
        let per_step = self.physics.tokens_per_step;
        while self.decoding.front().is_some_and(|first| first.finish <= self.steps) {
            let Some(done) = self.decoding.pop_front() else { break };
            self.kv -= done.held(self.steps, per_step);
            let (prompt, output) = (f64::from(done.request.prompt), f64::from(done.request.output));
            self.readings.generation_tokens -= done.generated_at(self.steps, per_step) - output;
            self.readings.request_prompt.observe(prompt, 1.0);
            self.readings.request_generation.observe(output, 1.0);
            let Decoding { request, first_token_s, .. } = done;
            witness.finished(Served { request, first_token_s, finished_s: self.now_s });
        }
    }

    fn read_gauges(&mut self) {
        self.readings.kv_usage = (self.kv / f64::from(self.physics.kv_tokens)).clamp(0.0, 1.0);
        self.readings.waiting = self.waiting.len() as f64;
        self.readings.running = self.running() as f64;
    }
}
