//! The times of the Lease that elects the leader.

use std::time::Duration;

use jiff::SignedDuration;

use super::args::ClusterArgs;
use super::error::ConfigError;

/// The times of the Lease. The defaults are those of most Kubernetes controllers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaseTimes {
    /// How long the Lease stays valid without a renewal.
    pub duration: Duration,
    /// How long the leader acts without a renewal. Shorter, so that it stops before another instance starts.
    pub renew_deadline: Duration,
    /// How often the leader renews, and the others look.
    pub retry_period: Duration,
}

impl Default for LeaseTimes {
    fn default() -> Self {
        Self {
            duration: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            retry_period: Duration::from_secs(2),
        }
    }
}

impl LeaseTimes {
    /// The times of the flags. Zero, of an empty variable, is the default.
    pub(super) fn of(args: &ClusterArgs) -> Result<Self, ConfigError> {
        let given = |time: Duration, default: Duration| if time.is_zero() { default } else { time };
        let Self { duration, renew_deadline, retry_period } = Self::default();
        let times = Self {
            duration: given(args.lease_duration, duration),
            renew_deadline: given(args.lease_renew_deadline, renew_deadline),
            retry_period: given(args.lease_retry_period, retry_period),
        };
        let Self { duration, renew_deadline, retry_period } = times;
        // The delay until an attempt varies by a fifth in other controllers, which may share the Lease.
        let longest_retry = retry_period.mul_f64(1.2);
        if renew_deadline >= duration || longest_retry >= renew_deadline {
            let shown = |time: Duration| SignedDuration::try_from(time).unwrap_or(SignedDuration::MAX);
            return Err(ConfigError::LeaseTimes {
                duration: shown(duration),
                renew_deadline: shown(renew_deadline),
                retry_period: shown(retry_period),
            });
        }
        Ok(times)
    }
}
