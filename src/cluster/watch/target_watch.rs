//! Scale targets of kinds other than Deployment, each once a variant names one: StatefulSets and LeaderWorkerSets are watched,
//! objects of any other kind are read (`target_reads`). A kind may be absent, arrive later or go; nothing else waits for it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;

use futures::stream::{self, BoxStream, SelectAll};
use futures::{Stream, StreamExt, future};
use kube::Resource;
use kube::api::Api;
use kube::core::ApiResource;
use kube::runtime::watcher::{self, watcher};
use serde::de::DeserializeOwned;
use smol_str::{SmolStr, format_smolstr};
use tokio::sync::watch;
use tokio::time::Instant;
use wva_core::model::TargetRef;
use wva_core::snapshot::VariantState;

use super::kind_store::StoreEvent;
use super::known_targets::{KnownTarget, OptionalTargets, TargetKey, WatchProblem};
use super::object_store::ClusterStore;
use super::partial_objects::{ParseGuard, PartialTarget};
use super::scale_target::{ScaleTarget, TargetKind, leader_worker_sets, stateful_sets};
use super::store_events::{Change, guarded, store_event};
use super::target_api::{problem, scale_target, target_api};
use super::target_reads::{MAX_TARGETS_OF_NAMESPACE, TargetReader};
use super::watch_health::{watch_config, watch_results};

/// What to check when the API server refuses a list.
const RBAC_HINT: &str = "allow the service account to list and watch them (the chart's ClusterRole does)";
/// What to check when there are no LeaderWorkerSets.
const INSTALL_HINT: &str = "install LeaderWorkerSet, and allow the service account to list and watch them (the chart's ClusterRole does)";

/// The watches that variants need.
pub(super) struct TargetWatches {
    client: kube::Client,
    /// Only this namespace; all of them when `None`.
    namespace: Option<String>,
    /// The kinds that are watched. A watch that has begun stays, so that nobody can restart it again and again.
    watched: BTreeSet<TargetKind>,
    changes: SelectAll<BoxStream<'static, Change>>,
    /// The objects of other kinds.
    scalables: watch::Sender<BTreeSet<TargetKey>>,
}

impl TargetWatches {
    /// Nothing is watched yet.
    pub(super) fn new(client: kube::Client, namespace: Option<String>) -> Self {
        let (scalables, wanted) = watch::channel(BTreeSet::new());
        let changes = SelectAll::from_iter([TargetReader::new(client.clone(), wanted).changes()]);
        Self { client, namespace, watched: BTreeSet::new(), changes, scalables }
    }

    /// Watches or reads the targets of `variants`, and forgets those that were read for others. True when something visible of
    /// `store` changed.
    pub(super) fn follow(&mut self, variants: &[VariantState], store: &mut ClusterStore) -> bool {
        let mut scalables: BTreeMap<SmolStr, BTreeSet<&TargetRef>> = BTreeMap::new();
        for VariantState { variant, .. } in variants {
            match TargetKind::of(&variant.target) {
                TargetKind::Deployment => {}
                TargetKind::StatefulSet => self.begin(TargetKind::StatefulSet),
                TargetKind::LeaderWorkerSet => {
                    self.begin(TargetKind::LeaderWorkerSet);
                    // Its pods are found through these.
                    self.begin(TargetKind::StatefulSet);
                }
                TargetKind::Scalable => {
                    scalables.entry(variant.id.namespace.clone()).or_default().insert(&variant.target);
                }
            }
        }
        let (wanted, excess) = first_of_each_namespace(scalables);
        store.scalables.retain(|key, _| wanted.contains(key) || excess.contains(key));
        let mut is_changed = false;
        for key in excess {
            let cause = format_smolstr!(
                "namespace {} has more than {MAX_TARGETS_OF_NAMESPACE} scale targets of kinds that are read one by one, and \
                 only the first {MAX_TARGETS_OF_NAMESPACE} are read: use another namespace",
                key.namespace
            );
            let unread = KnownTarget::Unknown(cause);
            if store.scalables.get(&key) != Some(&unread) {
                store.scalables.insert(key, unread);
                is_changed = true;
            }
        }
        self.scalables.send_if_modified(|known| {
            let is_new = *known != wanted;
            *known = wanted;
            is_new
        });
        is_changed
    }

    /// The next change of the store.
    pub(super) async fn next(&mut self) -> Option<Change> {
        self.changes.next().await
    }

    fn begin(&mut self, kind: TargetKind) {
        if !self.watched.insert(kind) {
            return;
        }
        let namespace = self.namespace.as_deref();
        let events = |name, hint, resource: &ApiResource| {
            optional_events(name, hint, target_api(&self.client, namespace, resource))
        };
        self.changes.push(if kind == TargetKind::StatefulSet {
            let events = events("StatefulSets", RBAC_HINT, &stateful_sets());
            optional_changes(events, |store| &mut store.stateful_sets)
        } else {
            let events = events("LeaderWorkerSets", INSTALL_HINT, &leader_worker_sets());
            optional_changes(events, |store| &mut store.leader_worker_sets)
        });
    }
}

/// The targets that are read, and those that are too many of their namespace.
fn first_of_each_namespace(
    scalables: BTreeMap<SmolStr, BTreeSet<&TargetRef>>,
) -> (BTreeSet<TargetKey>, BTreeSet<TargetKey>) {
    let (mut wanted, mut excess) = (BTreeSet::new(), BTreeSet::new());
    for (namespace, targets) in scalables {
        for (index, target) in targets.into_iter().enumerate() {
            let keys = if index < MAX_TARGETS_OF_NAMESPACE { &mut wanted } else { &mut excess };
            keys.insert(TargetKey { namespace: namespace.clone(), target: target.clone() });
        }
    }
    (wanted, excess)
}

/// A watch that lists again after each failure. kube's own goes on from where it was, without an event that says so; its kind may
/// have been removed and installed again meanwhile, with other objects.
pub(super) fn relisting_watcher<K: Resource + Clone + DeserializeOwned + Debug + Send + 'static>(
    api: Api<ParseGuard<K>>,
    config: watcher::Config,
) -> impl Stream<Item = watcher::Result<watcher::Event<ParseGuard<K>>>> + Send {
    let begin = move || watcher(api.clone(), config.clone()).boxed();
    stream::unfold((begin(), begin), |(mut events, begin)| async move {
        let event = events.next().await?;
        if let Err(watcher::Error::InitialListFailed(_) | watcher::Error::WatchStartFailed(_)) = event {
            events = begin();
        }
        Some((event, (events, begin)))
    })
}

/// The events of a kind that may be absent, and why there are none.
fn optional_events(
    resource: &'static str,
    hint: &'static str,
    api: Api<ParseGuard<PartialTarget>>,
) -> impl Stream<Item = Result<StoreEvent<ScaleTarget>, WatchProblem>> + Send + use<> {
    let mut convert = guarded(resource, scale_target);
    watch_results(relisting_watcher(api, watch_config()), resource, hint).filter_map(move |event| {
        future::ready(match event {
            Ok(event) => Some(Ok(store_event(event, &mut convert))),
            Err(watcher::Error::InitialListFailed(error) | watcher::Error::WatchStartFailed(error)) => {
                Some(Err(problem(&error, resource, hint)))
            }
            Err(_) => None,
        })
    })
}

fn optional_changes(
    events: impl Stream<Item = Result<StoreEvent<ScaleTarget>, WatchProblem>> + Send + 'static,
    targets: fn(&mut ClusterStore) -> &mut OptionalTargets,
) -> BoxStream<'static, Change> {
    events
        .map(move |event| {
            Box::new(move |store: &mut ClusterStore| targets(store).apply(event, Instant::now())) as Change
        })
        .boxed()
}
