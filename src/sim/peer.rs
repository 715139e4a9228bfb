//! Other autoscalers: what each computes, from its public documentation, with the defaults published there. Their own code runs
//! nowhere here, and what surrounds their formula (webhooks, activators, fallbacks) is left out.

use std::time::Duration;

use smol_str::{SmolStr, format_smolstr};

/// An autoscaler of the field. All read the pods directly and live, so that none suffers from a slow scrape, except
/// [`Peer::RunningRequests`], which an HPA reads through a Prometheus.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Peer {
    /// An HPA on the running requests of a variant's pods, with an average value: the commonest recipe for vLLM.
    RunningRequests {
        /// Requests of a pod, above 0.
        per_pod: f64,
    },
    /// Knative's pod autoscaler (knative.dev, "Configuring concurrency", "Autoscaling config"): mean concurrency of 60 s by its
    /// target; in panic that of 6 s, from twice the ready pods on and until 60 s after it, and never down. Every 2 s; at most
    /// 1000 times as many pods, at least half as many.
    KnativeKpa {
        /// Concurrent requests of a pod, above 0. Knative's default: 70 % of 100.
        concurrency: f64,
    },
    /// `AIBrix`'s APA (aibrix.readthedocs.io, "Metric-based autoscaling"): mean KV-cache usage of 60 s against a target, with a
    /// tolerance of 10 % up and down, at most twice and at least half of the pods, every 10 s.
    AibrixApa {
        /// KV-cache usage of a pod, above 0 and at most 1. The documentation's example: 0.5.
        kv_usage: f64,
    },
    /// Kthena (volcano-sh/kthena, user guide of its autoscaler): waiting requests of a pod against a target with a tolerance of
    /// 10 %; up by the least proposal of a minute, down by the largest of five; from 1.5 times the target on, it panics for five
    /// minutes: up at once and never down. Every 15 s.
    Kthena {
        /// Waiting requests of a pod, above 0. The guide's example: 10.
        waiting: f64,
    },
    /// KEDA in NVIDIA's Planner Gym: an HPA on two averages of the ready pods, 5 queued requests and 90 % of the KV cache, with a
    /// tolerance of 10 %; up at once, down by the largest proposal of five minutes. Every 15 s.
    ArenaKeda,
    /// The reactive scaler of the same: a replica more above 4 queued requests a pod or 80 % of the KV cache, one fewer below 1
    /// and 30 %. Every 15 s.
    ArenaReactive,
    /// A planner that divides the load of its last interval by the profiled throughput of a replica, as NVIDIA Dynamo's planner
    /// does in its throughput mode (docs.nvidia.com/dynamo, "SLA planner"; adjustment interval of 180 s). Its profile is perfect
    /// here, and its prediction is that the load stays.
    LoadPlanner {
        /// Time between two decisions, above 0.
        interval: Duration,
        /// Share of the profiled throughput that is used, above 0.
        utilisation: f64,
    },
}

impl Peer {
    /// Its name in tables, with its setting.
    #[must_use]
    pub fn name(self) -> SmolStr {
        match self {
            Self::RunningRequests { per_pod } => format_smolstr!("hpa-running:{per_pod}"),
            Self::KnativeKpa { concurrency } => format_smolstr!("kpa:{concurrency}"),
            Self::AibrixApa { kv_usage } => format_smolstr!("aibrix-apa:{kv_usage}"),
            Self::Kthena { waiting } => format_smolstr!("kthena:{waiting}"),
            Self::ArenaKeda => SmolStr::new_static("arena-keda"),
            Self::ArenaReactive => SmolStr::new_static("arena-reactive"),
            Self::LoadPlanner { interval, .. } => format_smolstr!("load-planner:{}", interval.as_secs()),
        }
    }

    /// The peer of a name of [`Self::name`]'s form; without a setting, at its published default.
    #[must_use]
    pub fn named(word: &str) -> Option<Self> {
        let (name, setting) =
            word.split_once(':').map_or((word, None), |(name, setting)| (name, Some(setting)));
        let setting = |default: f64| {
            let value = setting.map_or(Ok(default), str::parse::<f64>);
            value.ok().filter(|value| (0.01..=100_000.0).contains(value))
        };
        Some(match name {
            "hpa-running" => Self::RunningRequests { per_pod: setting(16.0)? },
            "kpa" => Self::KnativeKpa { concurrency: setting(70.0)? },
            "aibrix-apa" => Self::AibrixApa { kv_usage: setting(0.5)? },
            "kthena" => Self::Kthena { waiting: setting(10.0)? },
            "arena-keda" => Self::ArenaKeda,
            "arena-reactive" => Self::ArenaReactive,
            // Shorter intervals are for those who tune it, who then leave room as well.
            "load-planner" => {
                let seconds = setting(180.0)?;
                let utilisation = if seconds < 180.0 { 0.8 } else { 1.0 };
                Self::LoadPlanner { interval: Duration::from_secs_f64(seconds), utilisation }
            }
            _ => return None,
        })
    }

    /// Time between two decisions of those who write replicas themselves; `None` where an HPA writes them.
    pub(super) const fn period(self) -> Option<Duration> {
        match self {
            Self::RunningRequests { .. } => None,
            Self::KnativeKpa { .. } => Some(Duration::from_secs(2)),
            Self::AibrixApa { .. } => Some(Duration::from_secs(10)),
            Self::Kthena { .. } | Self::ArenaKeda | Self::ArenaReactive => Some(Duration::from_secs(15)),
            Self::LoadPlanner { interval, .. } => Some(interval),
        }
    }
}
