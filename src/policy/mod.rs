//! The policy follows the ConfigMaps: read as they change, understood, given to the engine, and told.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::cluster::watch::config_maps::{ConfigMaps, Settings};
use crate::cluster::{ClusterReader, ConfigMapReader, Events};
use crate::config::Config;
use crate::config::policy_config::{Maps, Names, PolicyLoader, Problem, Problems, changes};
use crate::engine::{Engine, Leadership};
use crate::telemetry::ConfigMetrics;

/// How long the start waits for the ConfigMaps: a third of what readiness waits for all it has to learn.
const LEARNING: Duration = Duration::from_secs(10);
/// Changes are looked at once in this time, however often somebody writes: so much is logged at most.
const PACE: Duration = Duration::from_secs(1);
/// Lines logged at a time.
const TOLD: usize = 20;
/// What stays wrong is told again as an event after this, since the API server forgets events.
const AGAIN: Duration = Duration::from_secs(1800);

/// What the policy is made from, and who is told.
pub(crate) struct Parts {
    pub(crate) maps: ConfigMapReader,
    pub(crate) cluster: ClusterReader,
    pub(crate) engine: Arc<Engine>,
    pub(crate) events: Events,
    pub(crate) leadership: watch::Receiver<Leadership>,
    pub(crate) metrics: ConfigMetrics,
    /// Told whether a limit is what the nodes have.
    pub(crate) inventory: watch::Sender<bool>,
    /// Told once the engine has the policy to start with.
    pub(crate) ready: watch::Sender<bool>,
}

/// What to watch for `config`.
pub(crate) fn settings(config: &Config) -> Settings {
    let names = |local: bool| {
        let of = config.config_maps.iter().filter(|(kind, _)| kind.may_be_local() == local);
        of.map(|(_, name)| name.clone()).collect()
    };
    Settings {
        home: config.namespace.clone(),
        namespace: config.watch_namespace.clone(),
        at_home: names(false),
        anywhere: names(true),
    }
}

/// Keeps the engine's policy.
pub(crate) struct PolicyKeeper {
    parts: Parts,
    models: PolicyLoader,
    names: Names,
    home: String,
    namespaces: BTreeSet<String>,
    /// What was there and what was wrong with it, as last told.
    seen: Arc<ConfigMaps>,
    told: Problems,
}

impl PolicyKeeper {
    pub(crate) fn new(parts: Parts, config: &Config) -> Self {
        let (names, home) = (config.config_maps.clone(), config.namespace.clone());
        let models = PolicyLoader::new(config.policy.clone(), names.clone(), home.clone());
        let (seen, told) = (Arc::default(), Problems::default());
        Self { parts, models, names, home, namespaces: BTreeSet::new(), seen, told }
    }

    pub(crate) async fn run(mut self, stop: CancellationToken) {
        stop.run_until_cancelled(self.follow()).await;
        stop.cancelled().await;
    }

    async fn follow(&mut self) {
        let mut maps = self.parts.maps.clone();
        if timeout(LEARNING, maps.wait_for(|maps| maps.listed)).await.is_err() {
            warn!(
                "not all ConfigMaps were listed within {} s: starting with those that were, and with defaults",
                LEARNING.as_secs()
            );
        }
        let mut cluster = self.parts.cluster.subscribe();
        if cluster.wait_for(|observed| observed.view.synced).await.is_err() {
            return;
        }
        loop {
            self.look();
            self.parts.ready.send_replace(true);
            sleep(PACE).await;
            let again = sleep(AGAIN);
            tokio::pin!(again);
            // Variants come and go all the time; it is new namespaces that matter.
            while self.namespaces() == self.namespaces {
                tokio::select! {
                    changed = maps.changed() => match changed {
                        Ok(()) => break,
                        Err(_) => return,
                    },
                    changed = cluster.changed() => match changed {
                        Ok(()) => sleep(PACE).await,
                        Err(_) => return,
                    },
                    () = &mut again => break,
                }
            }
        }
    }

    /// The namespaces that have variants.
    fn namespaces(&self) -> BTreeSet<String> {
        let observed = self.parts.cluster.observed();
        let mut namespaces = BTreeSet::new();
        for id in observed.objects.keys() {
            if namespaces.last().is_none_or(|last: &String| *last != id.namespace) {
                namespaces.insert(id.namespace.to_string());
            }
        }
        namespaces
    }

    /// The ConfigMaps as they are now, to the engine.
    fn look(&mut self) {
        let now = self.parts.maps.borrow().clone();
        self.namespaces = self.namespaces();
        let (policy, problems) = self.models.take(&self.maps(&now), &self.namespaces);
        self.tell_deleted(&now);
        self.seen = now;
        let before = self.parts.engine.policy();
        if *before != policy {
            let changes = changes(&before, &policy).join("; ");
            info!(changes, "new policy, from the next evaluation on");
            self.parts.inventory.send_if_modified(|wanted| {
                std::mem::replace(wanted, policy.limits.inventory) != policy.limits.inventory
            });
            self.parts.engine.set_policy(policy);
        }
        self.tell(problems);
    }

    /// What counts of what was found.
    fn maps(&self, now: &ConfigMaps) -> Maps {
        let mut maps = Maps::new();
        for ((namespace, name), found) in &now.found {
            let kind = self.names.iter().find(|(_, own)| *own == name).map(|(kind, _)| *kind);
            if let Some(kind) = kind.filter(|kind| *namespace == self.home || kind.may_be_local()) {
                maps.insert((namespace.clone(), kind), found.entries.clone());
            }
        }
        maps
    }

    fn tell_deleted(&self, now: &ConfigMaps) {
        let gone = self.seen.found.keys().filter(|key| !now.found.contains_key(*key));
        for (namespace, name) in gone.take(TOLD) {
            let instead =
                if *namespace == self.home { "defaults" } else { "the ConfigMap of our own namespace" };
            info!(namespace, name, "ConfigMap deleted: what it said is forgotten, {instead} in force");
        }
    }

    /// Each problem once in the log, for as long as it lasts as a metric, and by the holder as an event.
    fn tell(&mut self, problems: Problems) {
        let refused = || problems.iter().filter(|problem| problem.refused);
        self.parts.metrics.invalid(refused().map(entry));
        let news: Vec<_> = problems.iter().filter(|one| !self.told.iter().any(|old| old == *one)).collect();
        for problem in news.iter().take(TOLD) {
            if problem.refused { warn!("{problem}") } else { info!("{problem}") }
        }
        if news.len() > TOLD {
            warn!("and {} more", news.len() - TOLD);
        }
        let left_out = problems.left_out();
        if left_out > self.told.left_out() {
            warn!(
                "{left_out} more things are wrong with ConfigMaps: correct those that are named, and see again"
            );
        }
        if self.parts.leadership.borrow().is_mine() {
            for problem in refused().take(TOLD) {
                let key = (problem.namespace.clone(), problem.config_map.clone());
                if let Some(found) = self.seen.found.get(&key) {
                    self.parts.events.refused(found, problem.to_string());
                }
            }
        }
        let over = self.told.iter().any(|one| one.refused) && refused().next().is_none();
        if over {
            info!("every entry of the ConfigMaps is right again");
        }
        self.told = problems;
    }
}

/// Namespace, ConfigMap and key.
fn entry(problem: &Problem) -> (&str, &str, &str) {
    (&problem.namespace, &problem.config_map, &problem.key)
}
