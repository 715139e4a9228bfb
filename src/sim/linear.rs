//! The fluid server: a rate flows in, a fixed rate is served, the rest waits. No single requests.

use super::Moment;
use super::physics::Linear;
use super::server::Readings;
use super::stats::{Stats, Witness};

/// A server of [`Linear`] physics.
#[derive(Debug, Clone, PartialEq)]
pub struct LinearServer {
    physics: Linear,
    now: Moment,
    offered_rps: f64,
    waiting: f64,
    readings: Readings,
}

impl LinearServer {
    pub(super) fn new(physics: Linear, now: Moment) -> Self {
        let readings = Readings::new(physics.kv_tokens().round() as u64, physics.block_size);
        Self { physics, now, offered_rps: 0.0, waiting: 0.0, readings }
    }

    pub(super) const fn readings(&self) -> &Readings {
        &self.readings
    }

    pub(super) fn offer(&mut self, rps: f64) {
        self.offered_rps = rps;
    }

    pub(super) fn pour(&mut self, requests: f64) {
        self.waiting += requests;
    }

    /// What waits; what runs leaves no trace when it is cut off, because a fluid is served the moment it runs.
    pub(super) const fn in_flight(&self) -> f64 {
        self.waiting
    }

    pub(super) fn wait_s(&self) -> f64 {
        self.waiting / self.physics.rps
    }

    pub(super) fn advance(&mut self, to: Moment, stats: &mut Stats) {
        let dt = to.saturating_sub(self.now).as_secs_f64();
        self.now = self.now.max(to);
        if dt <= 0.0 {
            return;
        }
        let available = self.waiting + self.offered_rps * dt;
        let served = available.min(self.physics.rps * dt);
        self.waiting = available - served;
        self.read(served, dt);
        let after_s = self.physics.first_token_s + self.wait_s();
        self.readings.first_token.observe(after_s, served);
        stats.finished += served;
        if served > 0.0 {
            stats.started(self.wait_s());
            stats.first_token(self.now.as_secs_f64(), after_s, served);
        }
    }

    /// Brings counters and gauges in step with `served` requests in `dt` seconds.
    fn read(&mut self, served: f64, dt: f64) {
        let (prompt, output) = (f64::from(self.physics.tokens.prompt), f64::from(self.physics.tokens.output));
        let readings = &mut self.readings;
        readings.kv_usage = (self.physics.kv_at_capacity * self.offered_rps / self.physics.rps).min(1.0);
        readings.waiting = self.waiting;
        readings.running = self.physics.residence_s * (served / dt);
        readings.prompt_tokens += prompt * served;
        readings.generation_tokens += output * served;
        // A fluid is served all the time while there is any, with one step a token of those that run.
        readings.steps += if served > 0.0 { dt / self.physics.inter_token_s() } else { 0.0 };
        readings.inter_token.observe(self.physics.inter_token_s(), (output - 1.0) * served);
        readings.request_prompt.observe(prompt, served);
        readings.request_generation.observe(output, served);
    }
}

#[cfg(test)]
mod tests {
    use super::super::presets::LINEAR4;
    use super::*;
    use std::time::Duration;

    fn after(server: &mut LinearServer, stats: &mut Stats, seconds: u64, rps: f64) -> (f64, f64, f64) {
        server.offer(rps);
        for _ in 0..seconds * 10 {
            let to = server.now + Duration::from_millis(100);
            server.advance(to, stats);
        }
        (server.readings.kv_usage, server.readings.waiting, server.readings.running)
    }

    #[test]
    fn it_behaves_as_the_published_emulation_says() {
        let (mut server, mut stats) = (LinearServer::new(LINEAR4, Duration::ZERO), Stats::default());
        let near = |a: (f64, f64, f64), b: (f64, f64, f64)| {
            assert!(
                (a.0 - b.0).abs() < 1e-6 && (a.1 - b.1).abs() < 1e-6 && (a.2 - b.2).abs() < 1e-6,
                "{a:?}"
            );
        };
        near(after(&mut server, &mut stats, 10, 2.0), (0.45, 0.0, 8.0));
        near(after(&mut server, &mut stats, 10, 14.0), (1.0, 100.0, 16.0));
        near(after(&mut server, &mut stats, 10, 3.0), (0.675, 90.0, 16.0));
        near(after(&mut server, &mut stats, 100, 3.0), (0.675, 0.0, 12.0));
        let served = 20.0 + 140.0 + 330.0;
        assert!((server.readings.prompt_tokens - 1000.0 * served).abs() < 1e-3);
        assert!((stats.finished() - served).abs() < 1e-6);
        assert!((stats.longest_wait_s() - 25.0).abs() < 1e-6);
    }
}
