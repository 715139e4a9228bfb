//! `--what-if spare=N`: every policy a second time with N warm spares; their cost and benefit.

use std::fmt::Write as _;
use std::str::FromStr;

use wva_sim::{Controller, Run};

/// Warm spares on top of every number of replicas.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct WhatIf {
    spare: u32,
}

impl FromStr for WhatIf {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let count = text.strip_prefix("spare=").and_then(|count| count.parse::<u32>().ok());
        let spare = count.filter(|count| (1..=1000).contains(count));
        spare
            .map(|spare| Self { spare })
            .ok_or_else(|| "give spare=N with N from 1 to 1000, as spare=1".into())
    }
}

impl WhatIf {
    /// The same controller with the spares.
    pub(super) fn with_spares(self, controller: &Controller) -> Controller {
        let name = self.name(&controller.name);
        Controller { name: name.into(), spares: self.spare, ..controller.clone() }
    }

    /// The name of a policy with the spares.
    pub(super) fn name(self, policy: &str) -> String {
        format!("{policy}+spare={}", self.spare)
    }

    /// Cost and benefit of the spares in a scenario of `hours`: a sentence per policy.
    pub(super) fn sentences(self, hours: f64, runs: &[&Run]) -> Vec<String> {
        let mut policies: Vec<&str> = Vec::new();
        runs.iter().for_each(|run| {
            if !policies.contains(&run.policy.as_str()) {
                policies.push(&run.policy);
            }
        });
        let means = |name: &str| Means::new(hours, runs.iter().copied().filter(|run| run.policy == name));
        let pairs = policies.iter().filter_map(|name| Some((*name, means(name)?, means(&self.name(name))?)));
        pairs.map(|(name, without, with)| self.sentence(name, &without, &with)).collect()
    }

    fn sentence(self, policy: &str, without: &Means, with: &Means) -> String {
        let spares = if self.spare == 1 { "1 spare".into() } else { format!("{} spares", self.spare) };
        let price = with.cost - without.cost;
        let saved = without.outside_per_hour - with.outside_per_hour;
        let before = 100.0 * without.outside;
        let after = 100.0 * with.outside;
        let mut text = format!("{policy}: {spares} for {price:.2} an hour, {saved:.1} more requests an hour");
        let _ = write!(text, " within the objectives ({before:.2} % → {after:.2} % outside)");
        if saved > 0.05 {
            let _ = write!(text, ", {:.4} a request", (price / saved).max(0.0));
        }
        text
    }
}

/// Means over the seeds.
struct Means {
    cost: f64,
    /// Share of requests outside the objectives.
    outside: f64,
    outside_per_hour: f64,
}

impl Means {
    fn new<'a>(hours: f64, runs: impl Iterator<Item = &'a Run>) -> Option<Self> {
        let mut cost = 0.0;
        let mut requests = 0.0;
        let mut outside = 0.0;
        let mut count = 0.0;
        for run in runs {
            cost += run.cost_avg;
            requests += run.requests as f64;
            outside += (1.0 - run.slo_attainment) * run.requests as f64;
            count += 1.0;
        }
        (count > 0.0).then(|| Self {
            cost: cost / count,
            outside: outside / f64::max(requests, 1.0),
            outside_per_hour: outside / f64::max(hours * count, 1e-9),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_number_of_spares_is_accepted() {
        assert_eq!("spare=2".parse(), Ok(WhatIf { spare: 2 }));
        for wrong in ["spare=0", "spare=", "spares=1", "spare=-1", "spare=1.5"] {
            assert!(wrong.parse::<WhatIf>().unwrap_err().contains("as spare=1"), "{wrong}");
        }
    }

    #[test]
    fn the_price_is_the_difference_of_cost_and_the_gain_that_of_violations() {
        let what_if = WhatIf { spare: 1 };
        let without = Means { cost: 3.0, outside: 0.05, outside_per_hour: 200.0 };
        let with = Means { cost: 4.0, outside: 0.0, outside_per_hour: 0.0 };
        let expected = "rate: 1 spare for 1.00 an hour, 200.0 more requests an hour within the objectives \
                        (5.00 % → 0.00 % outside), 0.0050 a request";
        assert_eq!(what_if.sentence("rate", &without, &with), expected);
    }
}
