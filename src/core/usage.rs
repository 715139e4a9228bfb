//! What the Ready pods of variants use, for metrics. Nothing is decided by it: analyzers have readings of their own.

use std::collections::BTreeMap;

use crate::analyze::threshold::{ThresholdObservation, ThresholdSettings, score};
use crate::model::{Policy, Role, VariantId};
use crate::quality::{EngineReading, Freshness, judged_engines, read_engine, used_tokens};
use crate::snapshot::{Phase, Pod, Signal, Signals, Snapshot, VariantState};
use crate::units::{Seconds, to_f64, truncated_i64, truncated_u32};

/// What is measured of the Ready pods of one variant. What is not measured is `None`, never 0.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Usage {
    /// Its role.
    pub role: Role,
    /// Its Ready pods, by the age of their samples.
    pub pods: PodAges,
    /// Mean KV-cache usage of the measured engines, 0 to 1: of each its peak of the last minute.
    pub kv: Option<f64>,
    /// Mean saturation of the measured engines, 0 to 1: of each its KV-cache usage or its queue as a share of a full one, whichever is more.
    pub saturation: Option<f64>,
    /// Tokens in the KV caches of all Ready pods; `None` if those of one pod are not known.
    pub tokens: Option<KvTokens>,
}

/// Counts of pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PodAges {
    /// With recent samples of every engine.
    pub fresh: u32,
    /// With an engine whose samples are stale.
    pub stale: u32,
    /// With an engine whose samples are older than the age at which a number is no longer published.
    pub unavailable: u32,
    /// With an engine without samples, or without engines.
    pub missing: u32,
}

impl PodAges {
    /// Pods that show samples of each engine, of whatever age.
    #[must_use]
    pub const fn with_samples(self) -> u32 {
        self.fresh + self.stale + self.unavailable
    }
}

/// Tokens of KV caches.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct KvTokens {
    /// In use, at most `capacity`.
    pub used: f64,
    /// That fit.
    pub capacity: f64,
}

/// What every variant of `snapshot` uses. The policy says which queue is full and which samples are too old.
#[must_use]
pub fn usage(snapshot: &Snapshot, policy: &Policy) -> BTreeMap<VariantId, Usage> {
    let of_group = snapshot.groups.iter().flat_map(|(id, group)| {
        let settings = ThresholdSettings::default();
        let queue_limit = policy.of(id).scoring.queue_limit.unwrap_or(settings.queue_limit);
        let reader = Reader {
            snapshot,
            max_stale: policy.max_stale,
            settings: ThresholdSettings { queue_limit, ..settings },
        };
        group.variants.iter().map(move |state| (state.variant.id.clone(), reader.variant(state)))
    });
    of_group.collect()
}

#[derive(Clone, Copy)]
struct Reader<'a> {
    snapshot: &'a Snapshot,
    max_stale: Seconds,
    settings: ThresholdSettings,
}

impl Reader<'_> {
    fn variant(&self, state: &VariantState) -> Usage {
        let (mut pods, mut kv, mut saturation) = (PodAges::default(), Mean::default(), Mean::default());
        let mut tokens = Some(KvTokens::default());
        let ready = state.pods.iter().filter(|pod| pod.phase == Phase::Ready);
        for pod in ready.clone() {
            *self.age(pod, &mut pods) += 1;
            for (_, signals) in judged_engines(pod) {
                let recent = self.read(pod, signals).recent;
                let peak = |signal| recent.get(signal).highest();
                let (usage, queue) = (peak(Signal::KvUsage), peak(Signal::Waiting));
                kv.extend(usage);
                saturation.extend(usage.zip(queue).map(|(kv, queue)| {
                    score(ThresholdObservation { kv, queue: truncated_u32(queue) }, &self.settings)
                }));
                tokens = tokens.zip(usage).zip(signals.newest(Signal::KvCapacity)).map(
                    |((sum, usage), capacity)| {
                        let capacity = truncated_i64(capacity.value);
                        let used = to_f64(used_tokens(usage, capacity));
                        KvTokens { used: sum.used + used, capacity: sum.capacity + to_f64(capacity) }
                    },
                );
            }
        }
        let is_complete = pods.fresh > 0 && ready.count() == usize::try_from(pods.fresh).unwrap_or_default();
        Usage {
            role: state.variant.role,
            pods,
            kv: kv.value(),
            saturation: saturation.value(),
            tokens: tokens.filter(|_| is_complete),
        }
    }

    fn read<'s>(&self, pod: &Pod, signals: &'s Signals) -> EngineReading<'s> {
        read_engine(signals, pod.ready_or_created(), self.snapshot.now)
    }

    /// The count that `pod` belongs to.
    fn age<'p>(&self, pod: &Pod, pods: &'p mut PodAges) -> &'p mut u32 {
        let readings = judged_engines(pod).map(|(_, signals)| self.read(pod, signals));
        let oldest = readings
            .map(|reading| (reading.freshness, reading.newest))
            .max_by_key(|(freshness, _)| *freshness);
        match oldest {
            None | Some((Freshness::Absent, _)) => &mut pods.missing,
            Some((Freshness::Stale, newest)) => {
                let is_recent = |at| Seconds::between(at, self.snapshot.now) <= self.max_stale;
                if newest.is_some_and(is_recent) { &mut pods.stale } else { &mut pods.unavailable }
            }
            Some((Freshness::Fresh | Freshness::Aging, _)) => &mut pods.fresh,
        }
    }
}

#[derive(Default)]
struct Mean {
    sum: f64,
    count: f64,
}

impl Mean {
    fn extend(&mut self, value: Option<f64>) {
        if let Some(value) = value {
            self.sum += value;
            self.count += 1.0;
        }
    }

    fn value(&self) -> Option<f64> {
        (self.count > 0.0).then(|| self.sum / self.count)
    }
}

#[cfg(test)]
mod tests {
    use jiff::{SignedDuration, Timestamp};

    use super::*;
    use crate::fixture::variant_state;
    use crate::model::GroupId;
    use crate::snapshot::{ModelGroup, Sample, SourceHealth};

    const NOW: Timestamp = Timestamp::constant(1_800_000_000, 0);

    /// A Ready pod whose engine shows these newest values, `age` seconds ago and every 15 s before.
    fn pod(age: i64, values: &[(Signal, f64)]) -> Pod {
        let mut signals = Signals::default();
        for (signal, value) in values {
            let at = |back: i64| NOW - SignedDuration::from_secs(age + 15 * back);
            signals.add(*signal, (0..6).map(|back| Sample { at: at(back), value: *value }));
        }
        let created = NOW - SignedDuration::from_secs(900);
        let engines = [("".into(), signals)].into_iter().collect();
        Pod { name: "p".into(), phase: Phase::Ready, created, ready_since: Some(created), engines }
    }

    fn of(pods: Vec<Pod>, policy: &Policy) -> Usage {
        let group = ModelGroup {
            source: SourceHealth::Complete,
            variants: vec![variant_state(pods)],
            scheduler: Signals::default(),
        };
        let snapshot = Snapshot::new(NOW, BTreeMap::from([(GroupId::new("default", "m"), group)]));
        usage(&snapshot, policy)[&VariantId::new("default", "llama")]
    }

    fn engine(kv: f64, queue: f64) -> [(Signal, f64); 3] {
        [(Signal::KvUsage, kv), (Signal::Waiting, queue), (Signal::KvCapacity, 1000.0)]
    }

    #[test]
    fn usage_is_the_mean_of_engines_and_the_sum_of_their_tokens() {
        let pods = || vec![pod(0, &engine(0.25, 5.0)), pod(0, &engine(0.75, 0.0))];
        let both = of(pods(), &Policy::default());
        assert_eq!(
            (both.kv, both.saturation),
            (Some(0.5), Some(0.625)),
            "a queue of 5 is half of a full one"
        );
        assert_eq!(both.tokens, Some(KvTokens { used: 1000.0, capacity: 2000.0 }));
        assert_eq!(both.pods, PodAges { fresh: 2, ..PodAges::default() });
        let mut policy = Policy::default();
        policy.global.default.scoring.queue_limit = Some(5.0);
        assert_eq!(of(pods(), &policy).saturation, Some(0.875), "unless the policy says what is full");
    }

    #[test]
    fn what_is_not_measured_is_no_number() {
        let nothing = of(Vec::new(), &Policy::default());
        assert_eq!((nothing.kv, nothing.saturation, nothing.tokens), (None, None, None));
        let [kv, queue, capacity] = engine(0.5, 2.0);
        let cases = [
            ("no series", Vec::new(), (None, None, false)),
            ("no queue", vec![kv, capacity], (Some(0.5), None, true)),
            ("no usage", vec![queue, capacity], (None, None, false)),
            ("no capacity", vec![kv, queue], (Some(0.5), Some(0.5), false)),
        ];
        for (what, signals, (usage, saturation, has_tokens)) in cases {
            let own = of(vec![pod(0, &signals)], &Policy::default());
            assert_eq!(
                (own.kv, own.saturation, own.tokens.is_some()),
                (usage, saturation, has_tokens),
                "{what}"
            );
        }
        let partly = of(vec![pod(0, &engine(0.5, 0.0)), pod(0, &[])], &Policy::default());
        assert_eq!((partly.kv, partly.tokens), (Some(0.5), None), "a sum without one pod would be too small");
    }

    #[test]
    fn pods_are_counted_by_the_age_of_their_samples() {
        let pods = [0, 45, 90, 301].map(|age| pod(age, &engine(0.5, 0.0))).into_iter().chain([pod(0, &[])]);
        let ages = of(pods.collect(), &Policy::default()).pods;
        assert_eq!(ages, PodAges { fresh: 2, stale: 1, unavailable: 1, missing: 1 });
        assert_eq!(ages.with_samples(), 4);
        let starting = Pod { phase: Phase::Starting, ..pod(0, &engine(0.5, 0.0)) };
        assert_eq!(of(vec![starting], &Policy::default()).pods, PodAges::default(), "Ready pods only");
    }
}
