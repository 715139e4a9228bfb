//! Turns the watched ConfigMaps into a policy, passes it to the engine, and reports what is wrong with them.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::cluster::watch::config_maps::{ConfigMapSelection, ConfigMaps};
use crate::cluster::{ClusterReader, ConfigMapReader, EventRecorder};
use crate::config::Config;
use crate::config::policy_config::{
    ConfigMapNames, ConfigMapTexts, PolicyLoader, Problem, Problems, changes,
};
use crate::engine::{Engine, Leadership};
use crate::telemetry::ConfigMetrics;

/// How long the start waits for the ConfigMaps: a third of the time that readiness waits for everything.
const FIRST_LIST_TIMEOUT: Duration = Duration::from_secs(10);
/// Shortest time between two updates, however often somebody writes: this bounds the log.
const MIN_UPDATE_INTERVAL: Duration = Duration::from_secs(1);
/// Most problems that are logged or recorded as events at a time.
const MAX_REPORTED: usize = 20;
/// How often the event of a lasting problem is repeated: the API server deletes events after an hour.
const EVENT_INTERVAL: Duration = Duration::from_secs(1800);

/// What the policy is made from, and where problems are reported.
pub(crate) struct PolicyParts {
    pub(crate) maps: ConfigMapReader,
    pub(crate) cluster: ClusterReader,
    pub(crate) engine: Arc<Engine>,
    pub(crate) events: EventRecorder,
    pub(crate) leadership: watch::Receiver<Leadership>,
    pub(crate) metrics: ConfigMetrics,
    /// Set to true while a limit depends on the nodes.
    pub(crate) needs_inventory: watch::Sender<bool>,
    /// Set to true once the engine has its first policy.
    pub(crate) ready: watch::Sender<bool>,
}

/// The ConfigMaps to watch for `config`.
pub(crate) fn config_map_selection(config: &Config) -> ConfigMapSelection {
    let names = |is_local: bool| {
        let names = config.config_maps.iter().filter(|(kind, _)| kind.may_be_local() == is_local);
        names.map(|(_, name)| name.clone()).collect()
    };
    ConfigMapSelection {
        release_namespace: config.namespace.clone(),
        watch_namespace: config.watch_namespace.clone(),
        release_names: names(false),
        names: names(true),
    }
}

/// Updates the engine's policy. [`PolicyUpdater::run`] it in a task.
pub(crate) struct PolicyUpdater {
    parts: PolicyParts,
    loader: PolicyLoader,
    names: ConfigMapNames,
    release_namespace: String,
    /// The namespaces that have variants.
    namespaces: BTreeSet<String>,
    /// As last reported.
    maps: Arc<ConfigMaps>,
    problems: Problems,
}

impl PolicyUpdater {
    pub(crate) fn new(parts: PolicyParts, config: &Config) -> Self {
        let names = config.config_maps.clone();
        let release_namespace = config.namespace.clone();
        Self {
            parts,
            loader: PolicyLoader::new(config.policy.clone(), names.clone(), release_namespace.clone()),
            names,
            release_namespace,
            namespaces: BTreeSet::new(),
            maps: Arc::default(),
            problems: Problems::default(),
        }
    }

    pub(crate) async fn run(mut self, stop: CancellationToken) {
        stop.run_until_cancelled(self.follow()).await;
        stop.cancelled().await;
    }

    async fn follow(&mut self) {
        let mut maps = self.parts.maps.clone();
        if timeout(FIRST_LIST_TIMEOUT, maps.wait_for(|maps| maps.listed)).await.is_err() {
            warn!(
                "not all ConfigMaps were listed within {} s: starting with those that were, and with defaults",
                FIRST_LIST_TIMEOUT.as_secs()
            );
        }
        let mut cluster = self.parts.cluster.subscribe();
        if cluster.wait_for(|observed| observed.view.synced).await.is_err() {
            return;
        }
        loop {
            self.update();
            self.parts.ready.send_replace(true);
            sleep(MIN_UPDATE_INTERVAL).await;
            let events_due = sleep(EVENT_INTERVAL);
            tokio::pin!(events_due);
            // Variants change all the time; only a new namespace may have ConfigMaps of its own.
            while self.variant_namespaces() == self.namespaces {
                tokio::select! {
                    changed = maps.changed() => match changed {
                        Ok(()) => break,
                        Err(_) => return,
                    },
                    changed = cluster.changed() => match changed {
                        Ok(()) => sleep(MIN_UPDATE_INTERVAL).await,
                        Err(_) => return,
                    },
                    () = &mut events_due => break,
                }
            }
        }
    }

    fn variant_namespaces(&self) -> BTreeSet<String> {
        let state = self.parts.cluster.state();
        let mut namespaces = BTreeSet::new();
        // Sorted by namespace: the name of each is copied once, not for every variant.
        for id in state.objects.keys() {
            if namespaces.last().is_none_or(|last: &String| *last != id.namespace) {
                namespaces.insert(id.namespace.to_string());
            }
        }
        namespaces
    }

    /// Passes the policy of the current ConfigMaps to the engine.
    fn update(&mut self) {
        let now = self.parts.maps.borrow().clone();
        self.namespaces = self.variant_namespaces();
        let (policy, problems) = self.loader.load(&self.known_texts(&now), &self.namespaces);
        self.log_deleted(&now);
        self.maps = now;
        self.parts.metrics.set_policy(&policy);
        let before = self.parts.engine.policy();
        if *before != policy {
            let changes = changes(&before, &policy).join("; ");
            info!(changes, "new policy, from the next evaluation on");
            self.parts.needs_inventory.send_if_modified(|needed| {
                std::mem::replace(needed, policy.limits.inventory) != policy.limits.inventory
            });
            self.parts.engine.set_policy(policy);
        }
        self.report(problems);
    }

    /// The ConfigMaps that count, by namespace and kind.
    fn known_texts(&self, now: &ConfigMaps) -> ConfigMapTexts {
        let mut maps = ConfigMapTexts::new();
        for ((namespace, name), map) in &now.maps {
            let kind = self.names.iter().find(|(_, known)| *known == name).map(|(kind, _)| *kind);
            if let Some(kind) =
                kind.filter(|kind| *namespace == self.release_namespace || kind.may_be_local())
            {
                maps.insert((namespace.clone(), kind), map.entries.clone());
            }
        }
        maps
    }

    fn log_deleted(&self, now: &ConfigMaps) {
        let deleted = self.maps.maps.keys().filter(|key| !now.maps.contains_key(*key));
        for (namespace, name) in deleted.take(MAX_REPORTED) {
            let instead = if *namespace == self.release_namespace {
                "defaults are"
            } else {
                "the ConfigMap of the release namespace is"
            };
            info!(namespace, name, "ConfigMap deleted: its entries no longer count; {instead} in force");
        }
    }

    /// Reports each problem: once in the log, as a metric while it lasts, and, by the leader, as an event.
    fn report(&mut self, problems: Problems) {
        let rejected = || problems.iter().filter(|problem| problem.is_rejected);
        self.parts.metrics.set_invalid(rejected().map(entry));
        let new: Vec<_> =
            problems.iter().filter(|problem| !self.problems.iter().any(|known| known == *problem)).collect();
        self.parts.metrics.rejected(new.iter().filter(|problem| problem.is_rejected).count());
        for problem in new.iter().take(MAX_REPORTED) {
            if problem.is_rejected { warn!("{problem}") } else { info!("{problem}") }
        }
        if new.len() > MAX_REPORTED {
            warn!("and {} more", new.len() - MAX_REPORTED);
        }
        let left_out = problems.left_out();
        if left_out > self.problems.left_out() {
            warn!(
                "{left_out} more problems with ConfigMaps are not shown: fix those that are, then check again"
            );
        }
        if self.parts.leadership.borrow().is_mine() {
            for problem in rejected().take(MAX_REPORTED) {
                let key = (problem.namespace.clone(), problem.config_map.clone());
                if let Some(map) = self.maps.maps.get(&key) {
                    self.parts.events.record_invalid_config(map, problem.to_string());
                }
            }
        }
        let had_rejected = self.problems.iter().any(|problem| problem.is_rejected);
        if had_rejected && rejected().next().is_none() {
            info!("every entry of the ConfigMaps is valid again");
        }
        self.problems = problems;
    }
}

/// Namespace, ConfigMap and key.
fn entry(problem: &Problem) -> (&str, &str, &str) {
    (&problem.namespace, &problem.config_map, &problem.key)
}
