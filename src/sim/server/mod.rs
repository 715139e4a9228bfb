//! A model server with continuous batching: in every step each decoding sequence gets its tokens, prompts are computed
//! in chunks with what is left of the step's token budget, and memory decides which requests enter and which must leave.
//!
//! Steps without a scheduling decision between them are done at once ([`StepSpan`]), so the cost of a simulation grows
//! with its requests, not with its steps.

mod readings;
mod sequence;
mod step_span;

use std::collections::VecDeque;

use wva_core::units::truncated_u32;

use self::sequence::{Decoding, Prefilling, Progress, Waiting};
use self::step_span::StepSpan;
use super::load::Request;
use super::physics::{Deviations, Physics};
use super::recorder::{Recorder, ServedRequest, TokenGaps};
use super::rng::Rng;

pub use readings::{Histogram, Readings};

/// A request enters while the KV cache stays below this share.
const ADMISSION_SHARE: f64 = 0.99;
/// Requests that may wait in one server: 2.5 MB, hours of backlog at any realistic rate.
const MAX_WAITING: usize = 65_536;
/// Weight of a queued request in the routing pressure, relative to a whole KV cache as 1.
const QUEUED_WEIGHT: f64 = 0.2;
/// Weight of a full set of running sequences in the routing pressure.
const SLOTS_WEIGHT: f64 = 0.5;
/// A step takes at least this long, so that it always ends later than it began, whatever the parameters: 0.1 µs, which
/// an f64 clock of seconds can resolve for 25 years.
const MIN_STEP_S: f64 = 1e-7;

/// What becomes of a request that is sent to a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Admission {
    Admitted,
    /// The server holds as many requests as it may. Its client can send it again.
    Refused,
    /// It will never be served: it has more tokens than the memory holds, or the simulation has no room for more requests.
    Failed,
}

/// One model server. Times are seconds after the simulation's start.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ModelServer {
    physics: Physics,
    deviations: Deviations,
    rng: Rng,
    now_s: f64,
    waiting: VecDeque<Waiting>,
    /// Prompt tokens of all waiting requests.
    waiting_tokens: u64,
    /// In the order of admission.
    prefilling: VecDeque<Prefilling>,
    /// In the order in which they finish.
    decoding: VecDeque<Decoding>,
    /// Admissions so far.
    admissions: u64,
    /// Steps done.
    steps: u64,
    /// KV tokens held after these steps.
    kv_tokens: f64,
    /// The steps under way.
    current: Option<StepSpan>,
    /// Steps before the next one that stalls.
    steps_to_stall: u64,
    /// How long clients wait for a first token, seconds.
    patience_s: f64,
    /// Requests whose clients gave up, until they are taken.
    abandoned: Vec<Request>,
    readings: Readings,
}

impl ModelServer {
    /// An empty server. Its clients wait for a first token for at most `patience_s` seconds.
    pub(super) fn new(
        physics: Physics,
        deviations: Deviations,
        mut rng: Rng,
        now_s: f64,
        patience_s: f64,
    ) -> Self {
        Self {
            physics,
            deviations,
            steps_to_stall: steps_to_stall(deviations.stalls, &mut rng),
            patience_s,
            abandoned: Vec::new(),
            rng,
            now_s,
            waiting: VecDeque::new(),
            waiting_tokens: 0,
            prefilling: VecDeque::new(),
            decoding: VecDeque::new(),
            admissions: 0,
            steps: 0,
            kv_tokens: 0.0,
            current: None,
            readings: Readings::new(u64::from(physics.kv_tokens), physics.block_size),
        }
    }

    pub(super) const fn readings(&self) -> &Readings {
        &self.readings
    }

    /// Requests in it: waiting and running.
    pub(super) fn in_flight(&self) -> usize {
        self.waiting.len() + self.running()
    }

    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    fn running(&self) -> usize {
        self.prefilling.len() + self.decoding.len()
    }

    /// How long the longest-waiting request that has never run has waited until `now_s`, seconds.
    pub(super) fn oldest_wait_s(&self, now_s: f64) -> f64 {
        let never_ran = self.waiting.iter().filter(|waiting| waiting.progress.is_none());
        let oldest = never_ran.map(|waiting| waiting.request.arrived_s).min_by(f64::total_cmp);
        oldest.map_or(0.0, |arrived_s| (now_s - arrived_s).max(0.0))
    }

    /// The requests without a first token.
    pub(super) fn unanswered(&self) -> impl Iterator<Item = Request> {
        let prefilling = self.prefilling.iter().map(|prefilling| prefilling.waited);
        self.waiting
            .iter()
            .copied()
            .chain(prefilling)
            .filter(|waiting| waiting.progress.is_none_or(|progress| progress.generated == 0))
            .map(|waiting| waiting.request)
    }

    /// Load as the router sees it at `now_s`; lower is better. Aware of queue and memory like the scorers of the llm-d
    /// endpoint picker: 0.2 per queued request, plus the share of the KV cache including queued prompts, plus half the
    /// share of slots in use.
    pub(super) fn pressure(&self, now_s: f64) -> f64 {
        let queued = (self.waiting.len() + self.prefilling.len()) as f64;
        let kv_tokens = self.kv_tokens_at(now_s) + self.waiting_tokens as f64;
        QUEUED_WEIGHT * queued
            + kv_tokens / f64::from(self.physics.kv_tokens)
            + SLOTS_WEIGHT * self.running() as f64 / f64::from(self.physics.max_sequences)
    }

    /// KV tokens held at `now_s`, as if they grew evenly during the steps under way.
    fn kv_tokens_at(&self, now_s: f64) -> f64 {
        let Some(span) = &self.current else { return self.kv_tokens };
        let share = ((now_s - span.start_s) / span.duration_s(span.steps)).clamp(0.0, 1.0);
        self.kv_tokens + self.tokens_per_step() * span.steps as f64 * share
    }

    /// Tokens that all decoding sequences together gain in a step.
    fn tokens_per_step(&self) -> f64 {
        self.decoding.len() as f64 * self.physics.tokens_per_step
    }

    /// Takes a request at `now_s`, which must not be before the time it has been advanced to, or refuses it.
    #[must_use]
    pub(super) fn submit(&mut self, request: Request, now_s: f64) -> Admission {
        let tokens = f64::from(request.prompt) + f64::from(request.output);
        if self.waiting.len() >= MAX_WAITING || tokens > self.admission_limit() {
            return Admission::Failed;
        }
        if self.in_flight() >= self.physics.max_in_flight as usize {
            self.readings.refused += 1.0;
            return Admission::Refused;
        }
        match &mut self.current {
            // It may enter once the step under way is done. Requests that already wait could not enter, and still cannot.
            Some(span) if self.waiting.is_empty() => {
                span.steps = span.steps.min(span.done(now_s) + 1);
            }
            Some(_) => {}
            None => self.now_s = self.now_s.max(now_s),
        }
        self.waiting_tokens += u64::from(request.prompt);
        self.waiting.push_back(Waiting { request, progress: None });
        self.readings.waiting = self.waiting.len() as f64;
        Admission::Admitted
    }

    /// When its next event is due if no request arrives; `None` while it is idle.
    pub(super) fn next_event_s(&self) -> Option<f64> {
        self.current.map(|span| span.end_s()).or_else(|| (self.in_flight() > 0).then_some(self.now_s))
    }

    /// Works until `to_s` and brings all readings up to date.
    pub(super) fn advance(&mut self, to_s: f64, recorder: &mut impl Recorder) {
        self.advance_to_decision(to_s, recorder);
        if let Some(span) = self.current {
            let done = span.done(to_s);
            if done > 0 && done < span.steps {
                self.count_steps(span, done, recorder);
                self.current = Some(span.after(done));
            }
        }
        self.update_gauges();
    }

    /// Works until the last scheduling decision before `to_s`. Steps under way then are not counted yet: this is what
    /// makes [`Self::advance`] expensive when it is called often.
    pub(super) fn advance_to_decision(&mut self, to_s: f64, recorder: &mut impl Recorder) {
        loop {
            match self.current {
                Some(span) if span.end_s() <= to_s => {
                    self.current = None;
                    self.count_steps(span, span.steps, recorder);
                    self.now_s = span.end_s();
                    self.finish_prompts(recorder);
                    self.finish_requests(recorder);
                }
                Some(_) => break,
                None if self.in_flight() > 0 && self.now_s < to_s => self.begin_step(recorder),
                None => break,
            }
        }
        self.now_s = self.now_s.max(to_s);
    }

    /// Begins to work on what has arrived by now, if it is idle.
    pub(super) fn begin_if_idle(&mut self, recorder: &mut impl Recorder) {
        if self.current.is_none() && self.in_flight() > 0 {
            self.begin_step(recorder);
        }
    }

    /// Takes the requests whose clients gave up.
    pub(super) fn take_abandoned(&mut self) -> Vec<Request> {
        std::mem::take(&mut self.abandoned)
    }

    /// Clients that have waited too long go, the oldest first. A request that has begun stays.
    fn drop_impatient(&mut self) {
        let patience_s = self.patience_s;
        let now_s = self.now_s;
        let gives_up =
            |waiting: &mut Waiting| waiting.progress.is_none() && now_s - waiting.request.sent_s > patience_s;
        while let Some(gone) = self.waiting.pop_front_if(gives_up) {
            self.waiting_tokens -= u64::from(gone.request.prompt);
            self.abandoned.push(gone.request);
        }
    }

    fn admission_limit(&self) -> f64 {
        (ADMISSION_SHARE * f64::from(self.physics.kv_tokens)).floor()
    }

    fn begin_step(&mut self, recorder: &mut impl Recorder) {
        if self.patience_s.is_finite() {
            self.drop_impatient();
            if self.in_flight() == 0 {
                return;
            }
        }
        let preempted = self.preempt_until_all_fit();
        let decoding = self.tokens_per_step().ceil();
        let mut budget = truncated_u32(f64::from(self.physics.token_budget) - decoding);
        let mut prompt_tokens = self.continue_prompts(&mut budget);
        if !preempted {
            prompt_tokens += self.admit(&mut budget, recorder);
        }
        let is_single = preempted || !self.prefilling.is_empty() || self.deviations.differs_by_step();
        let single = is_single || self.steps_to_stall == 0;
        let steps = if single { 1 } else { self.steps_to_decision().min(self.steps_to_stall) };
        let first_s = self.step_s(prompt_tokens).max(MIN_STEP_S);
        let growth_s = if single { 0.0 } else { self.physics.per_kv_token_s * self.tokens_per_step() };
        self.current = Some(StepSpan { start_s: self.now_s, steps, first_s, growth_s });
    }

    /// Steps until a request finishes or the memory is full.
    fn steps_to_decision(&self) -> u64 {
        let finish = self.decoding.front().map_or(1, |next| next.last_step.saturating_sub(self.steps));
        let fitting = (f64::from(self.physics.kv_tokens) - self.kv_tokens) / self.tokens_per_step().max(1.0);
        finish.min(fitting as u64).max(1)
    }

    /// Seconds that the step which begins now takes.
    fn step_s(&mut self, prompt_tokens: u32) -> f64 {
        let physics = &self.physics;
        let deviations = &self.deviations;
        let prompt = f64::from(prompt_tokens);
        let kv_share = self.kv_tokens / f64::from(physics.kv_tokens);
        let step_s = physics.base_s
            + physics.per_prompt_token_s * prompt * (1.0 + deviations.per_prompt_token * prompt)
            + physics.per_sequence_s * self.running() as f64
            + deviations.experts_s(prompt + self.tokens_per_step())
            + physics.per_kv_token_s * self.kv_tokens * (1.0 + deviations.per_kv_share * kv_share);
        let stall_s = if self.steps_to_stall == 0 { deviations.stall_s } else { 0.0 };
        let noise = deviations.noise;
        let step_s = if noise > 0.0 { self.rng.around(step_s, noise) } else { step_s };
        step_s + stall_s
    }

    /// Sends the youngest requests back to the queue until every running sequence has memory for its next tokens.
    /// Returns whether any was sent back.
    fn preempt_until_all_fit(&mut self) -> bool {
        let mut preempted = false;
        let capacity = f64::from(self.physics.kv_tokens);
        while self.kv_tokens + self.running() as f64 * self.physics.tokens_per_step > capacity {
            let Some(youngest) = self.preempt() else { break };
            preempted = true;
            self.waiting_tokens += u64::from(youngest.request.prompt);
            self.waiting.push_front(youngest);
            self.readings.preemptions += 1.0;
        }
        preempted
    }

    /// Takes out the youngest request. A prompt that is still being computed was admitted after all decoding requests.
    fn preempt(&mut self) -> Option<Waiting> {
        let now_s = self.now_s;
        if let Some(youngest) = self.prefilling.pop_back() {
            self.kv_tokens -= f64::from(youngest.waited.tokens_to_hold());
            // It has begun, so its wait must not be counted again.
            let begun = Progress { generated: 0, first_token_s: now_s, last_token_s: now_s };
            return Some(Waiting { progress: youngest.waited.progress.or(Some(begun)), ..youngest.waited });
        }
        let youngest = self.decoding.iter().enumerate().max_by_key(|(_, decoding)| decoding.admission);
        let youngest = youngest.map(|(index, _)| index).and_then(|index| self.decoding.remove(index))?;
        let per_step = self.physics.tokens_per_step;
        self.kv_tokens -= youngest.kv_tokens(self.steps, per_step);
        let generated = truncated_u32(youngest.generated_at(self.steps, per_step));
        let progress = Progress { generated, first_token_s: youngest.first_token_s, last_token_s: now_s };
        Some(Waiting { request: youngest.request, progress: Some(progress) })
    }

    /// Gives budget to prompts under way, first come first served. Returns the tokens given.
    fn continue_prompts(&mut self, budget: &mut u32) -> u32 {
        let mut given = 0;
        for prefilling in &mut self.prefilling {
            prefilling.chunk = prefilling.remaining.min(*budget);
            *budget -= prefilling.chunk;
            given += prefilling.chunk;
        }
        given
    }

    /// Admits waiting requests while there is budget, a free slot and memory for the whole prompt. Returns the prompt
    /// tokens of this step.
    fn admit(&mut self, budget: &mut u32, recorder: &mut impl Recorder) -> u32 {
        let limit = self.admission_limit();
        let mut given = 0;
        while *budget > 0 && self.running() < self.physics.max_sequences as usize {
            let Some(&waited) = self.waiting.front() else { break };
            let hold = f64::from(waited.tokens_to_hold());
            if self.kv_tokens + hold > limit {
                break;
            }
            self.waiting.pop_front();
            self.waiting_tokens -= u64::from(waited.request.prompt);
            self.readings.prefix_queries += hold;
            self.readings.prefix_hits += f64::from(waited.tokens_to_hold() - waited.tokens_to_compute());
            if waited.progress.is_none() {
                recorder.started((self.now_s - waited.request.arrived_s).max(0.0));
            }
            self.kv_tokens += hold;
            let remaining = waited.tokens_to_compute();
            let chunk = remaining.min(*budget);
            *budget -= chunk;
            given += chunk;
            self.admissions += 1;
            self.prefilling.push_back(Prefilling { waited, remaining, chunk, admission: self.admissions });
        }
        given
    }

    /// Counts what the first `done` steps of `span` gave the decoding requests.
    fn count_steps(&mut self, span: StepSpan, done: u64, recorder: &mut impl Recorder) {
        self.steps += done;
        self.readings.steps += done as f64;
        self.steps_to_stall = match self.steps_to_stall.checked_sub(done) {
            Some(left) => left,
            None => steps_to_stall(self.deviations.stalls, &mut self.rng),
        };
        if self.decoding.is_empty() {
            return;
        }
        let tokens = self.tokens_per_step() * done as f64;
        self.kv_tokens += tokens;
        self.readings.generation_tokens += tokens;
        let gaps = TokenGaps {
            first_s: span.first_s,
            growth_s: span.growth_s,
            steps: done,
            requests: self.decoding.len() as f64,
        };
        self.readings.inter_token.observe_gaps(gaps);
        recorder.token_gaps(gaps);
    }

    /// The step that computes the last chunk of a prompt also gives its first token.
    fn finish_prompts(&mut self, recorder: &mut impl Recorder) {
        for prefilling in &mut self.prefilling {
            prefilling.remaining -= prefilling.chunk;
            prefilling.chunk = 0;
        }
        while self.prefilling.front().is_some_and(|first| first.remaining == 0) {
            let Some(prefilling) = self.prefilling.pop_front() else { break };
            self.kv_tokens += 1.0;
            self.readings.generation_tokens += 1.0;
            let first_token_s = self.record_prompt_token(&prefilling, recorder);
            self.decode(&prefilling, first_token_s);
        }
    }

    /// Records the token that a finished prompt gives. Returns when its request got its first token: now, or before it
    /// was preempted.
    fn record_prompt_token(&mut self, prefilling: &Prefilling, recorder: &mut impl Recorder) -> f64 {
        let Waiting { request, progress } = prefilling.waited;
        let now_s = self.now_s;
        if let Some(progress) = progress.filter(|progress| progress.generated > 0) {
            let gap_s = (now_s - progress.last_token_s).max(0.0);
            let gaps = TokenGaps { first_s: gap_s, growth_s: 0.0, steps: 1, requests: 1.0 };
            self.readings.inter_token.observe_gaps(gaps);
            recorder.token_gaps(gaps);
            return progress.first_token_s;
        }
        let ttft_s = (now_s - request.arrived_s).max(0.0);
        self.readings.prompt_tokens += f64::from(request.prompt);
        self.readings.first_token.observe(ttft_s, 1.0);
        recorder.first_token(now_s, ttft_s);
        now_s
    }

    fn decode(&mut self, prefilling: &Prefilling, first_token_s: f64) {
        let Waiting { request, progress } = prefilling.waited;
        let generated = progress.map_or(0, |progress| progress.generated).saturating_add(1);
        let remaining = f64::from(request.output.saturating_sub(generated)) / self.physics.tokens_per_step;
        let last_step = self.steps + remaining.ceil() as u64;
        let index = self.decoding.partition_point(|decoding| decoding.last_step <= last_step);
        let decoding = Decoding {
            request,
            first_token_s,
            start_step: self.steps,
            generated,
            last_step,
            admission: prefilling.admission,
        };
        self.decoding.insert(index, decoding);
    }

    fn finish_requests(&mut self, recorder: &mut impl Recorder) {
        let per_step = self.physics.tokens_per_step;
        while self.decoding.front().is_some_and(|first| first.last_step <= self.steps) {
            let Some(finished) = self.decoding.pop_front() else { break };
            self.kv_tokens -= finished.kv_tokens(self.steps, per_step);
            let Decoding { request, first_token_s, .. } = finished;
            let output = f64::from(request.output);
            // The last step of speculative decoding may have given more tokens than the request has.
            self.readings.generation_tokens -= finished.generated_at(self.steps, per_step) - output;
            self.readings.request_prompt.observe(f64::from(request.prompt), 1.0);
            self.readings.request_generation.observe(output, 1.0);
            recorder.finished(ServedRequest { request, first_token_s, finished_s: self.now_s });
        }
    }

    fn update_gauges(&mut self) {
        self.readings.kv_usage = (self.kv_tokens / f64::from(self.physics.kv_tokens)).clamp(0.0, 1.0);
        self.readings.waiting = self.waiting.len() as f64;
        self.readings.running = self.running() as f64;
    }
}

/// Draws the number of steps before the next one that stalls, of which a share of `stalls` does.
fn steps_to_stall(stalls: f64, rng: &mut Rng) -> u64 {
    if stalls > 0.0 { (rng.exponential() / -(-stalls).ln_1p()) as u64 } else { u64::MAX }
}
