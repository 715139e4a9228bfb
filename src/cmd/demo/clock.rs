//! Time that runs faster than the wall: fleet, cycles and the HPA live by it; sockets do not.

use std::time::Duration;

use futures::future::BoxFuture;
use jiff::Timestamp;
use tokio::time::Instant;

use crate::engine::Clock;

/// A clock that started at a wall-clock moment and has run `speed` times as fast since.
#[derive(Debug, Clone, Copy)]
pub(super) struct VirtualClock {
    epoch: Timestamp,
    began: Instant,
    speed: f64,
}

impl VirtualClock {
    /// Starts now, as `epoch`. `speed` is above 0 (checked by the command line).
    pub(super) fn start(epoch: Timestamp, speed: f64) -> Self {
        Self { epoch, began: Instant::now(), speed }
    }

    /// Virtual time since the start.
    pub(super) fn elapsed(&self) -> Duration {
        self.began.elapsed().mul_f64(self.speed)
    }

    /// The virtual moment `after` the start.
    pub(super) fn at(&self, after: Duration) -> Timestamp {
        // Out of range only after thousands of years: then time stands still.
        self.epoch.checked_add(after).unwrap_or(Timestamp::MAX)
    }
}

impl Clock for VirtualClock {
    fn now(&self) -> Timestamp {
        self.at(self.elapsed())
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        Box::pin(tokio::time::sleep(duration.div_f64(self.speed)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn ten_times_as_fast_means_a_tenth_of_the_waiting() {
        let (clock, began) = (VirtualClock::start(Timestamp::UNIX_EPOCH, 100.0), Instant::now());
        clock.sleep(Duration::from_secs(5)).await;
        let (wall, seen) = (began.elapsed(), clock.now().duration_since(Timestamp::UNIX_EPOCH).as_secs_f64());
        assert!(wall < Duration::from_secs(2) && wall >= Duration::from_millis(50), "{wall:?}");
        assert!(seen >= 5.0, "{seen}");
    }
}
