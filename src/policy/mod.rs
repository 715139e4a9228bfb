//! Turns the watched ConfigMaps into a policy, passes it to the engine, and reports what is wrong with them.

mod selection;
mod variants;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};
use wva_core::Policy;

use crate::cluster::watch::config_maps::{ConfigMapSelection, ConfigMaps};
use crate::cluster::writers::events::REPEAT_INTERVAL;
use crate::cluster::{ClusterReader, ConfigMapReader, EventRecorder};
use crate::config::Config;
use crate::config::policy_config::{
    ConfigMapKind, ConfigMapNames, ConfigMapTexts, PolicyLoader, Problem, Problems, VariantsByModel, changes,
};
use crate::engine::{Engine, Leadership, LearnedModels};
use crate::telemetry::ConfigMetrics;
use variants::FindingReports;

pub(crate) use selection::{Selection, select};
pub(crate) use variants::with_settings;

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
    // Of several installations in one namespace, none can tell whose a ConfigMap with such a name is.
    let is_alone = config.controller_instance.is_none();
    let has_default_name =
        config.config_maps.iter().filter(|(kind, name)| is_alone && *name == kind.names().default);
    ConfigMapSelection {
        release_namespace: config.namespace.clone(),
        watch_namespace: config.watch_namespace.clone(),
        release_names: names(false),
        names: names(true),
        found_by_known_names: has_default_name.map(|(kind, _)| *kind).collect(),
    }
}

/// Updates the engine's policy. [`PolicyUpdater::run`] it in a task.
pub(crate) struct PolicyUpdater {
    parts: PolicyParts,
    loader: PolicyLoader,
    names: ConfigMapNames,
    /// Those in the release namespace, which may have a name that WVA gave them.
    release_names: ConfigMapNames,
    release_namespace: String,
    /// The namespaces that have variants.
    namespaces: BTreeSet<String>,
    /// The variants with settings of their own, as last read.
    variants: VariantsByModel,
    /// The models of variants that name none, as last read.
    models: Arc<LearnedModels>,
    /// Those in force in the release namespace without being configured.
    adopted: BTreeMap<ConfigMapKind, Adoption>,
    /// As last reported.
    maps: Arc<ConfigMaps>,
    problems: Problems,
    findings: FindingReports,
    /// Whether they were reported as events too, which only the leader does.
    is_recorded: bool,
}

/// A ConfigMap that is in force without being configured, because it has a name that WVA gave it.
struct Adoption {
    name: String,
    /// What it decides, and the next step.
    note: String,
    is_recorded: bool,
}

impl PolicyUpdater {
    pub(crate) fn new(parts: PolicyParts, config: &Config) -> Self {
        let names = config.config_maps.clone();
        let release_namespace = config.namespace.clone();
        Self {
            parts,
            loader: PolicyLoader::new(config.policy.clone(), names.clone(), release_namespace.clone()),
            release_names: names.clone(),
            names,
            release_namespace,
            namespaces: BTreeSet::new(),
            variants: VariantsByModel::new(),
            models: Arc::default(),
            adopted: BTreeMap::new(),
            maps: Arc::default(),
            problems: Problems::default(),
            findings: FindingReports::default(),
            is_recorded: false,
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
        let mut leadership = self.parts.leadership.clone();
        let mut models = self.parts.engine.models().learned();
        loop {
            self.update();
            self.parts.ready.send_replace(true);
            sleep(MIN_UPDATE_INTERVAL).await;
            let events_due = sleep(if self.findings.is_waiting() { REPEAT_INTERVAL } else { EVENT_INTERVAL });
            tokio::pin!(events_due);
            // Variants change all the time; only a new namespace may have ConfigMaps of its own, and few variants have settings.
            while !self.variants_changed() {
                tokio::select! {
                    changed = maps.changed() => match changed {
                        Ok(()) => break,
                        Err(_) => return,
                    },
                    changed = cluster.changed() => match changed {
                        Ok(()) => sleep(MIN_UPDATE_INTERVAL).await,
                        Err(_) => return,
                    },
                    // The loop ends if they are others than at the last update.
                    changed = models.changed() => if changed.is_err() { return },
                    () = &mut events_due => break,
                    // Problems of the start, when nobody leads yet, become events too.
                    () = until_mine(&mut leadership), if !self.is_recorded => break,
                }
            }
        }
    }

    /// Whether the namespaces with variants, or the models or settings of variants, are others than at the last update.
    fn variants_changed(&self) -> bool {
        *self.parts.engine.models().learned().borrow() != self.models
            || self.variant_namespaces() != self.namespaces
            || with_settings(&self.parts.cluster.state(), &self.models) != self.variants
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
        self.models = self.parts.engine.models().learned().borrow().clone();
        let state = self.parts.cluster.state();
        self.variants = with_settings(&state, &self.models);
        self.loader.set_variants(self.variants.clone());
        let Selection { texts, release_names } =
            select(&now, &self.names, &self.release_namespace, &self.release_names);
        self.loader.set_release_names(release_names.clone());
        self.release_names = release_names;
        let (policy, mut problems) = self.loader.load(&texts, &self.namespaces);
        self.findings.update(problems.take_variants(), &self.models, &state);
        self.adopt(&texts, &policy);
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
        self.parts.engine.models().put_in_force(self.models.clone());
        self.report(problems);
    }

    /// Names each ConfigMap that is newly in force without being configured: it may be a leftover, and what it changes was decided
    /// otherwise before.
    fn adopt(&mut self, texts: &ConfigMapTexts, policy: &Policy) {
        let mut known = std::mem::take(&mut self.adopted);
        for (kind, name) in &self.release_names {
            let key = (self.release_namespace.clone(), *kind);
            let known = known.remove(kind).filter(|adoption| adoption.name == *name);
            let adoption = match (known, texts.get(&key), self.names.get(kind)) {
                (Some(known), Some(_), _) => known,
                (None, Some(Ok(_)), Some(configured)) if configured != name => {
                    let mut others = texts.clone();
                    others.remove(&key);
                    let (without, _) = self.loader.clone().load(&others, &self.namespaces);
                    let changes = changes(&without, policy).join("; ");
                    let (flag, purpose) = (kind.flag(), kind.purpose());
                    let note = format!(
                        "it decides about {purpose}, because WVA names it so and there is no {configured}: set {flag}={name} to \
                         confirm that, or delete it. It changes {}",
                        if changes.is_empty() { "nothing" } else { &changes }
                    );
                    warn!("ConfigMap {}/{name}: {note}", self.release_namespace);
                    Adoption { name: name.clone(), note, is_recorded: false }
                }
                _ => continue,
            };
            self.adopted.insert(*kind, adoption);
        }
        let names = self.adopted.values().map(|adoption| adoption.name.as_str());
        self.parts.metrics.set_adopted(&self.release_namespace, names);
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

    /// Records an event on each ConfigMap that is in force without being configured, once.
    fn record_adopted(&mut self) {
        for adoption in self.adopted.values_mut().filter(|adoption| !adoption.is_recorded) {
            let map = self.maps.maps.get(&(self.release_namespace.clone(), adoption.name.clone()));
            adoption.is_recorded = map.is_some_and(|map| {
                self.parts.events.record_config_map(map, "ConfigMapAdopted", adoption.note.clone())
            });
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
        self.is_recorded = self.parts.leadership.borrow().is_mine();
        if self.is_recorded {
            for problem in rejected().take(MAX_REPORTED) {
                let key = (problem.namespace.clone(), problem.config_map.clone());
                if let Some(map) = self.maps.maps.get(&key) {
                    self.parts.events.record_config_map(map, "InvalidConfiguration", problem.to_string());
                }
            }
            self.record_adopted();
            // Those of variants are recorded a few at a time, each time in another update.
            self.is_recorded = self.findings.record(EVENT_INTERVAL, &self.parts.events);
        }
        let had_rejected = self.problems.iter().any(|problem| problem.is_rejected);
        if had_rejected && rejected().next().is_none() {
            info!("every entry of the ConfigMaps is valid again");
        }
        self.problems = problems;
    }
}

/// Resolves once this instance leads.
async fn until_mine(leadership: &mut watch::Receiver<Leadership>) {
    if leadership.wait_for(Leadership::is_mine).await.is_err() {
        std::future::pending().await
    }
}

/// Namespace, ConfigMap and key.
fn entry(problem: &Problem) -> (&str, &str, &str) {
    (&problem.namespace, &problem.config_map, &problem.key)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::config::ServeArgs;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        args: ServeArgs,
    }

    #[test]
    fn two_installations_in_one_namespace_do_not_adopt_the_configmaps_of_each_other() {
        let found = |flags: &[&str]| {
            let args = Cli::parse_from(["serve"].iter().chain(flags)).args;
            config_map_selection(&Config::try_from(args).unwrap()).found_by_known_names.len()
        };
        assert_eq!(found(&[]), ConfigMapKind::ALL.len());
        assert_eq!(found(&["--saturation-config-map", "mine"]), ConfigMapKind::ALL.len() - 1);
        assert_eq!(found(&["--controller-instance", "blue"]), 0);
    }
}
