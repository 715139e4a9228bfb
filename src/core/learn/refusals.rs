//! Requests that model servers refuse because their queues are full. They have arrived, so the demand contains them, and nothing else
//! shows them: an engine counts first tokens and waiting requests of those that it has admitted.
//!
//! Whatever a pod claims, between two readings at most as many refused requests count as it has admitted. So refusals at most double what
//! arrived at each engine, and with it the demand of a model:
//!
//! - *A pod that lies* is one of the model's own, and doubles the number of the model's replicas at worst. The next reading starts from what
//!   is admitted again, which does not grow with the claim.
//! - *A client that tries again* is refused again, and counts each time. So does a request that one replica refuses and another one
//!   admits. What was ordered for these tries cannot cause more of them: what is admitted is bounded by the requests that there are, the
//!   count by twice that, and with more replicas no queue is full. Then no refusal is counted, and what is too much is removed as after
//!   any peak.
//! - *An overload by more than twice* shows in steps: replicas that were ordered for it admit more, and as many refusals more count.
//!
//! A counter that was not read at both ends has grown by an unknown amount. That adds nothing, and admitted requests stay as well known as
//! they are. Refusals of an engine that has lost the counters of what it admits add nothing either, because their bound is not counted.

use super::arrivals::{Arrivals, EngineArrivals};
use super::counter_snapshot::Growth;
use crate::snapshot::SignalSet;

/// The share of refused requests is that of the last minute, seconds: four scrapes of 15 s.
const SHARE_WINDOW: f64 = 60.0;

impl EngineArrivals {
    /// With the requests that it says to have refused, as far as these count.
    fn with_refused(admitted: f64, refused: Option<f64>) -> Self {
        let refused = refused.unwrap_or(0.0).clamp(0.0, admitted.max(0.0));
        Self { all: admitted + refused, refused }
    }
}

impl Growth {
    /// Requests that arrived, admitted ones by signals that are not `lacking`. `None` when these are not known.
    pub(super) fn all_arrivals(&self, lacking: SignalSet) -> Option<EngineArrivals> {
        Some(EngineArrivals::with_refused(self.arrivals(lacking)?, self.refused))
    }
}

impl Arrivals {
    /// The share of the requests of the last minute, or of the last `seconds` if that is less, that was refused: 0 to 0.5.
    #[must_use]
    pub(crate) fn refused_share(&self, seconds: f64) -> f64 {
        let Some(last) = self.bins().last() else { return 0.0 };
        let from = last.end.plus(-seconds.min(SHARE_WINDOW));
        let recent = || self.bins().iter().rev().take_while(|bin| bin.end > from);
        let all: f64 = recent().map(|bin| bin.known).sum();
        let refused: f64 = recent().map(|bin| bin.refused).sum();
        // While the queue of the gateway shrinks, fewer requests arrive than engines count.
        if refused > 0.0 { refused / all.max(2.0 * refused) } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::learn::ArrivalBin;
    use crate::learn::counter_snapshot::{CounterSnapshot, Counters, Gauges};
    use crate::moment::Moment;
    use crate::snapshot::Signal;

    fn at(second: f64) -> Moment {
        Moment::from(jiff::Timestamp::UNIX_EPOCH).plus(second)
    }

    /// A reading of an engine that has given so many first tokens and says to have refused so many requests, 5 s after the one before.
    fn reading(index: usize, firsts: f64, refused: Option<f64>) -> CounterSnapshot {
        let counters = Counters { firsts, ..Counters::default() };
        CounterSnapshot { at: at(5.0 * index as f64), counters, gauges: Gauges::default(), refused }
    }

    /// What arrived between each reading and the next.
    fn arrived(readings: &[(f64, Option<f64>)]) -> Vec<EngineArrivals> {
        let readings: Vec<CounterSnapshot> = readings
            .iter()
            .enumerate()
            .map(|(index, (firsts, refused))| reading(index, *firsts, *refused))
            .collect();
        let growths = readings.windows(2).map(|pair| pair[1].since(&pair[0]));
        growths.map(|growth| growth.all_arrivals(SignalSet::NONE).unwrap()).collect()
    }

    fn all(readings: &[(f64, Option<f64>)]) -> Vec<f64> {
        arrived(readings).iter().map(|arrivals| arrivals.all).collect()
    }

    #[test]
    fn refused_requests_arrive_too_and_an_unknown_number_of_them_adds_nothing() {
        assert_eq!(
            all(&[(0.0, Some(0.0)), (20.0, Some(12.0)), (40.0, Some(12.0))]),
            [32.0, 20.0],
            "and a frozen one nothing"
        );
        let comes_and_goes =
            [(0.0, None), (20.0, Some(500.0)), (40.0, None), (60.0, Some(515.0)), (80.0, Some(525.0))];
        assert_eq!(all(&comes_and_goes), [20.0, 20.0, 20.0, 30.0]);
        assert_eq!(
            all(&[(100.0, Some(900.0)), (110.0, Some(3.0))]),
            [13.0],
            "a counter that was restarted counts from 0"
        );
        assert_eq!(all(&[(100.0, Some(900.0)), (10.0, Some(3.0))]), [13.0], "and so does that of an engine");
    }

    #[test]
    fn refusals_of_an_engine_whose_admitted_requests_are_not_counted_add_nothing() {
        let growth = reading(1, 20.0, Some(10.0)).since(&reading(0, 0.0, Some(0.0)));
        let lacking = SignalSet::new(&[Signal::TimeToFirstTokenCount, Signal::RequestGenerationTokensCount]);
        assert_eq!(growth.all_arrivals(lacking), None);
    }

    #[test]
    fn the_share_is_that_of_the_last_minute_and_of_the_level() {
        let mut arrivals = Arrivals::default();
        arrivals.begin(at(0.0));
        for index in 0..40_u8 {
            let (from, to) = (at(5.0 * f64::from(index)), at(5.0 * f64::from(index + 1)));
            let refused = if index < 34 { 0.0 } else { 10.0 };
            arrivals.add(from, to, EngineArrivals { all: 30.0, refused });
            arrivals.close(to, None, None, |from, to| from.until(to));
        }
        assert!((arrivals.refused_share(600.0) - 1.0 / 6.0).abs() < 1e-9, "for half of the minute a third");
        assert!((arrivals.refused_share(20.0) - 1.0 / 3.0).abs() < 1e-9);
        assert!(Arrivals::default().refused_share(600.0).abs() < 1e-9);
    }

    #[test]
    fn arrivals_that_an_earlier_version_stored_are_read_and_stay_as_they_were() {
        let stored = r#"{"bins":[[1795261825000,5.0,20.0,1.0,1.0,0.0]]}"#;
        let arrivals: Arrivals = serde_json::from_str(stored).unwrap();
        assert_eq!(serde_json::to_string(&arrivals).unwrap(), stored);
        let snapshot = r#"{"at":1795261825000,"counters":[1,2,3,4,5,6,7,8,9,10],"gauges":[1,2,3]}"#;
        let snapshot: CounterSnapshot = serde_json::from_str(snapshot).unwrap();
        assert_eq!(snapshot.refused, None, "what it refused is not known");
        let bin = ArrivalBin { refused: 7.0, ..arrivals.bins()[0] };
        let stored = serde_json::to_string(&bin).unwrap();
        assert_eq!(serde_json::from_str::<ArrivalBin>(&stored).unwrap(), bin);
    }

    proptest! {
        #[test]
        fn whatever_is_claimed_at_most_doubles_what_was_admitted(
            readings in vec((0.0..40.0_f64, proptest::option::of(0.0..1e12_f64)), 2..30),
        ) {
            let mut firsts = 0.0;
            let counted: Vec<(f64, Option<f64>)> = readings
                .into_iter()
                .map(|(more, refused)| {
                    firsts += more;
                    (firsts, refused)
                })
                .collect();
            let silent: Vec<(f64, Option<f64>)> = counted.iter().map(|(firsts, _)| (*firsts, None)).collect();
            for (claimed, admitted) in arrived(&counted).iter().zip(arrived(&silent)) {
                prop_assert!(claimed.all >= admitted.all && claimed.all <= 2.0 * admitted.all + 1e-9);
                prop_assert!((claimed.all - claimed.refused - admitted.all).abs() < 1e-9);
            }
        }
    }
}
