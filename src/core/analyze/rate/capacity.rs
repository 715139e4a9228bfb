//! What one replica carries, from how long its steps take and how large the requests are.
//!
//! A replica makes 1/T steps a second, and each gives every one of n sequences a token: n/T tokens a second. A request needs O
//! of them, and its prompt of I tokens is computed once, so that each step computes P = λ·I·T prompt tokens. Put into
//! `T = a + b·P + c·n + d·u`, the load it carries with n sequences is
//!
//! ```text
//! X(n) = n / (A + n·g)     A = O·a     g = b·I + O·(c + d·k)     k: share of the KV cache that a sequence holds
//! ```
//!
//! and the other way round a load λ keeps `n(λ) = A·λ / (1 − g·λ)` of them running. A process that only computes prompts
//! makes one step for each; one that only decodes has no b·I.

use crate::learn::{StepTime, VariantKnowledge};
use crate::model::{RatePolicy, Role};
use crate::moment::Moment;

/// Share of the KV cache that may be planned with: above it, running sequences have no room to grow and preempt each other.
const CACHE: f64 = 0.9;
/// What sequences hold is measured, and believed when it is this much above what mean sizes say: the mean of a large request
/// is held longer.
const HEAVIER: f64 = 1.1;
/// Tokens generated, as long as nothing has finished: corrected within the time one request takes.
const OUTPUT: f64 = 200.0;
/// A variant that never ran is taken for this much slower than its cost says: it may disappoint.
const UNSEEN: f64 = 0.8;
/// 95 of 100 waits with an exponential tail are below so many means.
const TAIL: f64 = 3.0;
/// Halvings that find a load: a share of 10⁻⁹.
const ROUNDS: u32 = 30;

/// The mean request.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Request {
    /// Prompt tokens that are computed.
    pub prompt: f64,
    /// Tokens generated; `None` while none has finished.
    pub output: Option<f64>,
}

/// What one replica carries.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Replica {
    /// Sequences it runs at most.
    pub most: f64,
    /// A: seconds that a request takes alone, but for what `each` counts.
    pub fixed: f64,
    /// g: seconds of the replica that each request takes.
    pub each: f64,
    /// Requests a second that it may be asked: its share of utilisation, or what keeps the time to first token.
    pub allowed: f64,
}

/// A serving process, as far as its capacity depends on it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Process {
    /// How long its steps take.
    pub step: StepTime,
    /// Tokens that its KV cache holds, when known.
    pub cache: Option<f64>,
    /// Share of it that a running sequence was seen to hold.
    pub held: Option<f64>,
    /// Tokens that a step gives a sequence, at least 1.
    pub tokens: f64,
    /// Sequences it runs at most.
    pub sequences: f64,
}

impl Process {
    /// What is known of a process of `role`; `None` before it was seen working. `argument` is what its arguments say it
    /// runs at once: nothing learned beats it. `default` is what its device runs when nobody says and no limit has shown. What was
    /// learned too long before `now` counts where a replica carries less with it.
    #[must_use]
    pub fn of(
        role: Role,
        known: &VariantKnowledge,
        argument: Option<f64>,
        default: f64,
        now: Moment,
    ) -> Option<Self> {
        // A process that computes prompts and nothing else has no gaps between tokens.
        let by_prompts = || known.first_token.filter(|_| role == Role::Prefill).map(StepTime::of_prompts);
        Some(Self {
            step: known.fit.solve(known.recent_first_token(now)).or_else(by_prompts)?,
            cache: known.capacity,
            held: known.occupancy.share(),
            tokens: known.steps.each(),
            sequences: argument.unwrap_or_else(|| known.sequences(default, now)),
        })
    }
}

/// How a process of some role works on a request.
struct Work {
    fixed: f64,
    each: f64,
    /// Share of the KV cache that it holds.
    share: f64,
    /// Seconds of its prompt, computed alone.
    prompt: f64,
    /// Steps it takes.
    steps: f64,
}

impl Replica {
    /// What a process of `role` carries of such requests.
    #[must_use]
    pub fn of(role: Role, process: &Process, request: Request, policy: &RatePolicy) -> Option<Self> {
        let work = Work::of(role, process, request);
        let room = if work.share > 0.0 { CACHE / work.share } else { f64::INFINITY };
        let calm = |itl: f64| (work.steps * itl / 1000.0 - work.fixed) / work.each;
        let calm = policy.itl_ms.map_or(f64::INFINITY, calm);
        let most = process.sequences.min(room).min(calm).max(1.0);
        let mut own = Self { most, fixed: work.fixed, each: work.each, allowed: 0.0 };
        own.allowed = own.rate() * policy.utilisation;
        let prompt = policy.ttft_ms.and_then(|ttft| own.keeping(&work, ttft / 1000.0));
        own.allowed = prompt.map_or(own.allowed, |prompt| own.allowed.min(prompt));
        (own.rate() > 0.0 && own.rate().is_finite()).then_some(own)
    }

    /// X: the requests a second that it carries for long.
    #[must_use]
    pub fn rate(&self) -> f64 {
        self.at(self.most)
    }

    /// X(n): the requests a second that it works off with `running` sequences.
    #[must_use]
    pub fn at(&self, running: f64) -> f64 {
        let running = running.clamp(0.0, self.most);
        if running > 0.0 { running / (self.fixed + running * self.each) } else { 0.0 }
    }

    /// n(λ): the sequences that run at `load` requests a second, at most as many as may.
    #[must_use]
    pub fn running(&self, load: f64) -> f64 {
        let left = 1.0 - self.each * load;
        if left > 0.0 { (self.fixed * load / left).min(self.most) } else { self.most }
    }

    /// A pod of several such processes.
    #[must_use]
    pub fn times(self, processes: f64) -> Self {
        Self {
            most: self.most * processes,
            each: self.each / processes,
            allowed: self.allowed * processes,
            ..self
        }
    }

    /// A replica that never ran, by one that did and by how much more it costs.
    #[must_use]
    pub fn unseen(self, cost_ratio: f64) -> Self {
        self.times(UNSEEN * cost_ratio)
    }

    /// The load at which 95 of 100 first tokens come within `limit` seconds; `None` when they do not even without load.
    ///
    /// A prompt waits for those before it, `ρ / (2 (1 − ρ))` prompts on average (M/D/1) at ρ = λ·b·I, and for the step that
    /// is under way; it is computed in the one after.
    fn keeping(&self, work: &Work, limit: f64) -> Option<f64> {
        let first = |load: f64| {
            let busy = (load * work.prompt).min(1.0 - 1e-9);
            let step = (self.fixed + self.running(load) * self.each) / work.steps;
            step + work.prompt * (1.0 + TAIL * busy / (2.0 * (1.0 - busy)))
        };
        if first(0.0) > limit {
            return None;
        }
        let (mut low, mut high) = (0.0, self.rate());
        for _ in 0..ROUNDS {
            let middle = f64::midpoint(low, high);
            if first(middle) <= limit { low = middle } else { high = middle }
        }
        Some(low)
    }
}

impl Work {
    fn of(role: Role, process: &Process, request: Request) -> Self {
        let Request { prompt: tokens, output } = request;
        let output = output.unwrap_or(OUTPUT);
        let nominal = if role == Role::Prefill { tokens } else { tokens + output / 2.0 };
        let nominal = process.cache.map_or(0.0, |cache| nominal / cache);
        let share = process.held.filter(|held| *held > HEAVIER * nominal).unwrap_or(nominal);
        let StepTime { base, prompt_token, sequence, full_cache } = process.step;
        let steps = if role == Role::Prefill { 1.0 } else { output / process.tokens };
        let prompt = if role == Role::Decode { 0.0 } else { prompt_token * tokens };
        let each = prompt + steps * (sequence + full_cache * share);
        Self { fixed: steps * base, each, share, prompt, steps }
    }
}
