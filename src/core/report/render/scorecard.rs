//! The text of a scorecard.

use std::fmt::{Display, Formatter};

use smol_str::{SmolStr, ToSmolStr};

use super::{Text, counted, percent};
use crate::report::{Prediction, PredictionError, Scorecard};

/// A smaller bias is none: it would be shown as 0 %.
const MIN_SHOWN_BIAS: f64 = 0.005;

impl Scorecard {
    /// A sentence for each quantity of which a prediction was due, after its name.
    #[must_use]
    pub fn sentences(&self) -> Vec<(&'static str, SmolStr)> {
        let ahead = self.seconds_ahead.unwrap_or_default();
        let demand = format_args!("Forecasts of demand {ahead:.0} s ahead were").to_smolstr();
        let parts = [
            ("demand", &*demand, self.demand, "forecast", ["high", "low"]),
            (
                "capacity",
                "Claimed capacity of saturated engines was",
                self.capacity,
                "comparison",
                ["high", "low"],
            ),
            ("start-up", "Expected start-up times were", self.start_up, "start", ["long", "short"]),
        ];
        let is_due = |prediction: &Prediction| prediction.matched > 0 || prediction.unmatched > 0;
        let due = parts.into_iter().filter(|(_, _, prediction, _, _)| is_due(prediction));
        due.map(|(name, subject, prediction, noun, sides)| {
            (name, sentence(subject, prediction, noun, sides).to_smolstr())
        })
        .collect()
    }
}

/// `subject` with what became of it. `sides` say what a prediction above the measured value is too, and one below.
fn sentence(
    subject: &str,
    prediction: Prediction,
    noun: &'static str,
    [above, below]: [&'static str; 2],
) -> impl Display {
    Text(move |f: &mut Formatter<'_>| {
        let Prediction { matched, unmatched, error } = prediction;
        match error {
            None => write!(f, "{subject} not comparable: nothing above 0 was measured")?,
            Some(PredictionError { mean_absolute, bias }) => {
                let count = counted(matched, noun);
                write!(f, "{subject} off by {} on average over {count}", percent(mean_absolute))?;
                if bias.abs() >= MIN_SHOWN_BIAS {
                    let side = if bias > 0.0 { above } else { below };
                    write!(f, " ({} too {side})", percent(bias.abs()))?;
                }
            }
        }
        if unmatched > 0 {
            write!(f, "; {} without a measured outcome", counted(unmatched, noun))?;
        }
        Ok(())
    })
}
