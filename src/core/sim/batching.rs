//! A server with continuous batching: in every step each decoding sequence gets one token, prompts are computed in
//! chunks with what is left of the step's token budget, and memory decides who may enter and who must leave.

use std::collections::VecDeque;
use std::time::Duration;

use super::load::Request;
use super::physics::Batching;
use super::server::Readings;
use super::stats::Stats;
use super::{Moment, span};

/// A request enters while the KV cache stays below this share.
const ADMISSION_SHARE: f64 = 0.99;
/// Requests that may wait in one server: 1.6 MB; at any sane rate hours of backlog.
const MAX_WAITING: usize = 65_536;
/// What a queued request weighs for the router, against a whole KV cache as 1.
const QUEUED_WEIGHT: f64 = 0.2;
/// What a full set of running sequences weighs for the router.
const SLOTS_WEIGHT: f64 = 0.5;

/// A server of [`Batching`] physics.
#[derive(Debug, Clone, PartialEq)]
pub struct BatchingServer {
    physics: Batching,
    now: Moment,
    waiting: VecDeque<Waiting>,
    /// Prompt tokens of all that wait.
    waiting_tokens: u64,
    /// In the order they were admitted: the youngest last.
    running: Vec<Sequence>,
    /// Running sequences whose prompt is computed.
    decoding: u32,
    /// Steps done; every decoding sequence got a token in each.
    steps: u64,
    /// The step at which the next sequence has its last token.
    next_finish: u64,
    kv_used: u64,
    step: Option<Step>,
    readings: Readings,
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct Waiting {
    request: Request,
    /// What it had done before it was preempted.
    before: Option<Before>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct Before {
    generated: u32,
    last_token: Moment,
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct Sequence {
    request: Request,
    before: Option<Before>,
    /// Tokens still to be computed before it decodes.
    prefill_left: u32,
    /// Of these, in the step that is under way.
    chunk: u32,
    /// Tokens generated when it began to decode, and the step of that.
    generated: u32,
    joined: u64,
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct Step {
    ends: Moment,
    takes_s: f64,
}

impl Sequence {
    fn is_decoding(&self) -> bool {
        self.prefill_left == 0
    }

    fn generated_at(&self, steps: u64) -> u32 {
        if self.is_decoding() { self.generated + (steps - self.joined) as u32 } else { self.restored() }
    }

    fn restored(&self) -> u32 {
        self.before.map_or(0, |before| before.generated)
    }

    /// KV tokens it holds: all of what it had to compute, and what it generated since.
    fn held(&self, steps: u64) -> u64 {
        let generated = self.generated_at(steps);
        u64::from(self.request.prompt) + u64::from(generated)
    }

    fn finishes_at(&self) -> u64 {
        self.joined + u64::from(self.request.output - self.generated)
    }
}

impl BatchingServer {
    pub(super) fn new(physics: Batching, now: Moment) -> Self {
        Self {
            physics,
            now,
            waiting: VecDeque::new(),
            waiting_tokens: 0,
            running: Vec::new(),
            decoding: 0,
            steps: 0,
            next_finish: u64::MAX,
            kv_used: 0,
            step: None,
            readings: Readings::new(u64::from(physics.kv_tokens), physics.block_size),
        }
    }

    pub(super) const fn readings(&self) -> &Readings {
        &self.readings
    }

    pub(super) fn in_flight(&self) -> usize {
        self.waiting.len() + self.running.len()
    }

    pub(super) fn oldest_wait_s(&self, now: Moment) -> f64 {
        let first = self.waiting.iter().filter(|waiting| waiting.before.is_none()).map(|w| w.request.arrived);
        first.min().map_or(0.0, |arrived| now.saturating_sub(arrived).as_secs_f64())
    }

    pub(super) fn pressure(&self) -> f64 {
        let prefilling = self.running.len() - self.decoding as usize;
        let queued = (self.waiting.len() + prefilling) as f64;
        let memory = (self.kv_used + self.waiting_tokens) as f64 / f64::from(self.physics.kv_tokens);
        QUEUED_WEIGHT * queued
            + memory
            + SLOTS_WEIGHT * self.running.len() as f64 / f64::from(self.physics.max_sequences)
    }

    pub(super) fn submit(&mut self, request: Request) -> Result<(), Request> {
        let whole = u64::from(request.prompt) + u64::from(request.output);
        if self.waiting.len() >= MAX_WAITING || whole > self.admission_limit() {
            return Err(request);
        }
        self.waiting_tokens += u64::from(request.prompt);
        self.waiting.push_back(Waiting { request, before: None });
        self.read_gauges();
        Ok(())
    }

    /// Works until `to`: steps follow each other without a gap while there is work.
    pub(super) fn advance(&mut self, to: Moment, stats: &mut Stats) {
        loop {
            match self.step {
                Some(step) if step.ends <= to => {
                    self.now = step.ends;
                    self.finish_step(step, stats);
                    self.step = None;
                }
                Some(_) => break,
                None if self.in_flight() > 0 && self.now < to => self.begin_step(stats),
                None => {
                    self.now = self.now.max(to);
                    break;
                }
            }
        }
        self.read_gauges();
    }

    fn admission_limit(&self) -> u64 {
        (ADMISSION_SHARE * f64::from(self.physics.kv_tokens)) as u64
    }

    fn begin_step(&mut self, stats: &mut Stats) {
        let preempted = self.make_room();
        let mut budget = self.physics.token_budget.saturating_sub(self.decoding);
        let mut prompt_tokens = self.continue_prompts(&mut budget);
        if !preempted {
            prompt_tokens += self.admit(&mut budget, stats);
        }
        let takes_s = self.physics.base_s
            + self.physics.per_prompt_token_s * f64::from(prompt_tokens)
            + self.physics.per_sequence_s * self.running.len() as f64
            + self.physics.per_kv_token_s * self.kv_used as f64;
        // At least a nanosecond, so that a step always ends later than it began, whatever the parameters.
        self.step = Some(Step { ends: self.now + span(takes_s).max(Duration::from_nanos(1)), takes_s });
    }

    /// Sends the youngest back to the queue until every running sequence has room for one more token.
    fn make_room(&mut self) -> bool {
        let mut preempted = false;
        while self.kv_used + self.running.len() as u64 > u64::from(self.physics.kv_tokens) {
            let Some(youngest) = self.running.pop() else { break };
            preempted = true;
            let generated = youngest.generated_at(self.steps);
            self.kv_used -= youngest.held(self.steps);
            let before = if youngest.is_decoding() {
                self.decoding -= 1;
                Some(Before { generated, last_token: self.now })
            } else {
                // Between its prompt's chunks: it has begun, so its wait is not counted again.
                youngest.before.or(Some(Before { generated: 0, last_token: self.now }))
            };
            self.waiting_tokens += u64::from(youngest.request.prompt);
            self.waiting.push_front(Waiting { request: youngest.request, before });
            self.readings.preemptions += 1.0;
        }
        if preempted {
            self.find_next_finish();
        }
        preempted
    }

    /// Gives budget to prompts that are under way, first come first served.
    fn continue_prompts(&mut self, budget: &mut u32) -> u32 {
        let mut given = 0;
        if self.decoding as usize == self.running.len() {
            return given;
        }
        for sequence in self.running.iter_mut().filter(|sequence| !sequence.is_decoding()) {
            sequence.chunk = sequence.prefill_left.min(*budget);
            *budget -= sequence.chunk;
            given += sequence.chunk;
        }
        given
    }

    /// Lets waiting requests in while there is budget, a free slot and memory for their whole prompt.
    fn admit(&mut self, budget: &mut u32, stats: &mut Stats) -> u32 {
        let mut given = 0;
        while *budget > 0 && self.running.len() < self.physics.max_sequences as usize {
            let Some(&Waiting { request, before }) = self.waiting.front() else { break };
            let to_compute = request.prompt + before.map_or(0, |before| before.generated);
            if self.kv_used + u64::from(to_compute) > self.admission_limit() {
                break;
            }
            self.waiting.pop_front();
            self.waiting_tokens -= u64::from(request.prompt);
            if before.is_none() {
                stats.started(self.now.saturating_sub(request.arrived).as_secs_f64());
            }
            self.kv_used += u64::from(to_compute);
            let chunk = to_compute.min(*budget);
            *budget -= chunk;
            given += chunk;
            self.running.push(Sequence {
                request,
                before,
                prefill_left: to_compute,
                chunk,
                generated: 0,
                joined: 0,
            });
        }
        given
    }

    fn finish_step(&mut self, step: Step, stats: &mut Stats) {
        self.steps += 1;
        self.kv_used += u64::from(self.decoding);
        self.readings.generation_tokens += f64::from(self.decoding);
        self.readings.inter_token.observe(step.takes_s, f64::from(self.decoding));
        if (self.decoding as usize) < self.running.len() {
            self.finish_prompts(stats);
        }
        if self.steps >= self.next_finish {
            self.finish_requests(stats);
        }
    }

    /// The step that computes the last of a prompt also gives its first token.
    fn finish_prompts(&mut self, stats: &mut Stats) {
        let (now, steps) = (self.now, self.steps);
        for sequence in self.running.iter_mut().filter(|sequence| !sequence.is_decoding()) {
            sequence.prefill_left -= sequence.chunk;
            sequence.chunk = 0;
            if sequence.prefill_left > 0 {
                continue;
            }
            let restored = sequence.restored();
            sequence.generated = restored + 1;
            sequence.joined = steps;
            self.decoding += 1;
            self.kv_used += 1;
            self.readings.generation_tokens += 1.0;
            match sequence.before {
                Some(before) if restored > 0 => {
                    let gap = now.saturating_sub(before.last_token).as_secs_f64();
                    self.readings.inter_token.observe(gap, 1.0);
                }
                _ => {
                    let after_s = now.saturating_sub(sequence.request.arrived).as_secs_f64();
                    self.readings.prompt_tokens += f64::from(sequence.request.prompt);
                    self.readings.first_token.observe(after_s, 1.0);
                    stats.first_token(now, after_s, 1.0);
                }
            }
            self.next_finish = self.next_finish.min(sequence.finishes_at());
        }
    }

    fn finish_requests(&mut self, stats: &mut Stats) {
        let (steps, readings) = (self.steps, &mut self.readings);
        let (kv_used, decoding) = (&mut self.kv_used, &mut self.decoding);
        self.running.retain(|sequence| {
            let done = sequence.is_decoding() && sequence.finishes_at() <= steps;
            if done {
                *kv_used -= sequence.held(steps);
                *decoding -= 1;
                stats.finished += 1.0;
                readings.request_prompt.observe(f64::from(sequence.request.prompt), 1.0);
                readings.request_generation.observe(f64::from(sequence.request.output), 1.0);
            }
            !done
        });
        self.find_next_finish();
    }

    fn find_next_finish(&mut self) {
        let decoding = self.running.iter().filter(|sequence| sequence.is_decoding());
        self.next_finish = decoding.map(Sequence::finishes_at).min().unwrap_or(u64::MAX);
    }

    fn read_gauges(&mut self) {
        self.readings.kv_usage = (self.kv_used as f64 / f64::from(self.physics.kv_tokens)).min(1.0);
        self.readings.waiting = self.waiting.len() as f64;
        self.readings.running = self.running.len() as f64;
    }
}
