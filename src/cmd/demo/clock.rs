//! A clock that runs faster than real time. Fleet, evaluations and HPA use it; sockets do not.

use std::time::Duration;

use futures::future::BoxFuture;
use jiff::{SignedDuration, Timestamp};
use tokio::time::Instant;

use crate::engine::Clock;

/// A clock that started at a wall-clock time and runs `speed` times as fast.
#[derive(Debug, Clone, Copy)]
pub(super) struct VirtualClock {
    epoch: Timestamp,
    started: Instant,
    speed: f64,
}

impl VirtualClock {
    /// Starts now, as `epoch`. `speed` is above 0 (checked by the command line).
    pub(super) fn start(epoch: Timestamp, speed: f64) -> Self {
        Self { epoch, started: Instant::now(), speed }
    }

    /// Virtual time since the start.
    pub(super) fn elapsed(&self) -> Duration {
        self.started.elapsed().mul_f64(self.speed)
    }

    /// The virtual time `seconds` after the start.
    pub(super) fn at(&self, seconds: f64) -> Timestamp {
        // Out of range only after thousands of years.
        let offset = SignedDuration::try_from_secs_f64(seconds).unwrap_or(SignedDuration::MAX);
        self.epoch.checked_add(offset).unwrap_or(Timestamp::MAX)
    }
}

impl Clock for VirtualClock {
    fn now(&self) -> Timestamp {
        self.at(self.elapsed().as_secs_f64())
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        Box::pin(tokio::time::sleep(duration.div_f64(self.speed)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn sleeps_shrink_by_the_speed() {
        let clock = VirtualClock::start(Timestamp::UNIX_EPOCH, 100.0);
        let started = Instant::now();
        clock.sleep(Duration::from_secs(5)).await;
        let wall = started.elapsed();
        let elapsed_s = clock.now().duration_since(Timestamp::UNIX_EPOCH).as_secs_f64();
        assert!(wall < Duration::from_secs(2) && wall >= Duration::from_millis(50), "{wall:?}");
        assert!(elapsed_s >= 5.0, "{elapsed_s}");
    }
}
