//! State objects: ConfigMaps from which a new leader starts warm, and from which the other instances answer while the leader
//! is unreachable. Written by the leader, read by all. Their content is in `state_encoding`; nothing here decides.

use std::collections::BTreeMap;
use std::sync::Arc;

use aws_lc_rs::digest::{SHA256, digest};
use futures::StreamExt;
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, ListParams, PostParams, Preconditions};
use kube::core::{ObjectList, PartialObjectMeta};
use kube::runtime::watcher::{Event, watcher};
use smol_str::{SmolStr, format_smolstr};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use wva_core::GroupId;
use wva_core::memory::{GroupMemory, Memory, other_version};

use super::state_encoding::{
    DECISIONS_VERSION, DecodedShards, MAX_SHARDS, Shard, ShardHeader, StateValue, decode,
};
use crate::cluster::objects::STATE_LABEL;
use crate::cluster::requests::{LogOnce, MANAGED_BY, RequestError, bounded};
use crate::cluster::watch::watch_health::{watch_config, watch_events};
use crate::engine::{Board, Clock, Holder, Leadership, Origin, Published, Restored, Term};

/// Attempts to write one object: after a conflict it is read again once; a second one means that another holder writes.
const MAX_WRITE_ATTEMPTS: u32 = 2;
/// The beginning of the names of state objects.
const PREFIX: &str = "wva";
/// Longest controller instance in names: with the prefix, it is the value of a label too.
const MAX_INSTANCE_BYTES: usize = 59;
/// Label of a state object: which installation it belongs to, where several share a namespace.
const INSTALLATION_LABEL: &str = "wva.llmd.ai/installation";
/// Data key of the header.
const HEADER_KEY: &str = "header";
/// Data key of the entries, one JSON value a line.
pub(super) const ENTRIES_KEY: &str = "entries";
/// The kind of the object that `call_register` writes.
const CALLS: &str = "calls";

/// What a state object keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StateKind {
    Decisions,
    Memory,
}

impl StateKind {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Decisions => "decisions",
            Self::Memory => "memory",
        }
    }

    /// The format of its lines that this build writes and reads.
    const fn version(self) -> u32 {
        match self {
            Self::Decisions => DECISIONS_VERSION,
            Self::Memory => Memory::VERSION,
        }
    }
}

/// State objects that cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// The request failed.
    #[error(
        "state objects: {}",
        .0.with_hint(
            "check that the service account may list, create and update ConfigMaps in the release namespace"
        )
    )]
    Request(#[from] RequestError),
    /// This instance is no longer the leader.
    #[error("ConfigMap {name} was written by {holder}, which holds a newer lease")]
    Superseded {
        /// The object.
        name: String,
        /// Identity of the newer leader.
        holder: String,
    },
    /// Another writer keeps changing it.
    #[error("ConfigMap {0} is changed by another writer: check that no second installation uses this name")]
    Conflict(String),
}

/// The state objects of one installation.
#[derive(Clone)]
pub struct StateStore {
    api: Api<ConfigMap>,
    metadata_api: Api<PartialObjectMeta<ConfigMap>>,
    prefix: String,
    clock: Arc<dyn Clock>,
}

impl StateStore {
    /// The state objects in `namespace` whose names begin with `prefix` (e.g. `wva`, or `wva-<controller instance>`).
    #[must_use]
    pub fn new(client: kube::Client, namespace: &str, prefix: &str, clock: Arc<dyn Clock>) -> Self {
        let metadata_api = Api::namespaced(client.clone(), namespace);
        Self { api: Api::namespaced(client, namespace), metadata_api, prefix: prefix.into(), clock }
    }

    /// All decisions and memories. What is damaged or of another version is left out, and named in the memory, so that the
    /// first report says so.
    ///
    /// # Errors
    /// When the API server does not answer.
    pub async fn load(&self) -> Result<Restored, StateError> {
        let mut dropped = Vec::new();
        let decisions = self.entries(StateKind::Decisions, &mut dropped).await?;
        let groups: BTreeMap<GroupId, GroupMemory> = self.entries(StateKind::Memory, &mut dropped).await?;
        Ok(Restored { decisions, memory: Memory { groups, dropped, ..Memory::default() } })
    }

    /// The entries of one kind. Adds to `dropped` what of them is unusable, and why.
    async fn entries<V: StateValue>(
        &self,
        kind: StateKind,
        dropped: &mut Vec<SmolStr>,
    ) -> Result<BTreeMap<V::Id, V>, StateError> {
        let mut shards = Vec::new();
        for map in &self.objects(kind).await?.items {
            match parse(map) {
                Ok((_, shard)) => shards.push(shard),
                Err(problem) => dropped.push(problem),
            }
        }
        Ok(self.decode(kind, &shards, |problem| dropped.push(problem.into())))
    }

    async fn objects(&self, kind: StateKind) -> Result<ObjectList<ConfigMap>, StateError> {
        let list = ListParams::default().labels(&self.selector(kind));
        Ok(bounded(self.api.list(&list)).await?)
    }

    /// The objects, of which only the metadata is read.
    pub(crate) fn metadata_api(&self) -> Api<PartialObjectMeta<ConfigMap>> {
        self.metadata_api.clone()
    }

    /// Selects the objects of both kinds.
    pub(crate) fn selector_of_all(&self) -> String {
        format!("{INSTALLATION_LABEL}={}", self.prefix)
    }

    fn selector(&self, kind: StateKind) -> String {
        format!("{STATE_LABEL}={},{INSTALLATION_LABEL}={}", kind.name(), self.prefix)
    }

    /// The entries of `shards`. Reports what of them is dropped, or counts as of now.
    fn decode<V: StateValue>(
        &self,
        kind: StateKind,
        shards: &[Shard],
        mut report: impl FnMut(String),
    ) -> BTreeMap<V::Id, V> {
        let DecodedShards { entries, dropped, ahead } = decode::<V>(shards, self.clock.now());
        let kind = kind.name();
        if let Some(first) = dropped.first() {
            let count = dropped.len();
            report(format!(
                "{count} damaged entries of the state objects for {kind} are dropped, the first: {first}"
            ));
        }
        if ahead > 0 {
            report(format!(
                "{ahead} entries of the state objects for {kind} are from the future and count as of now: the clock of the \
                 instance that wrote them is ahead of ours, or ours is behind; check the time of both nodes"
            ));
        }
        entries
    }

    pub(crate) fn name(&self, kind: StateKind, index: usize) -> String {
        object_name(&self.prefix, kind, index)
    }

    pub(crate) fn header(&self, kind: StateKind, holder: &Holder) -> ShardHeader {
        ShardHeader {
            version: kind.version(),
            holder: holder.identity.clone(),
            lease: holder.lease.clone(),
            epoch: holder.epoch,
            written: self.clock.now(),
        }
    }

    /// Checks that no newer leader has written decisions, which every leader does first.
    ///
    /// # Errors
    /// When one has, or the API server does not answer.
    pub(crate) async fn ensure_current(&self, holder: &Holder) -> Result<(), StateError> {
        let name = self.name(StateKind::Decisions, 0);
        let object = bounded(self.api.get_opt(&name)).await?;
        match superseding(object.as_ref(), &self.header(StateKind::Decisions, holder)) {
            Some(newer) => Err(StateError::Superseded { name, holder: newer.holder }),
            None => Ok(()),
        }
    }

    /// Writes one object, unless a newer leader has.
    ///
    /// # Errors
    /// When it cannot be written, or this instance is no longer the leader.
    pub(crate) async fn put(&self, kind: StateKind, index: usize, shard: &Shard) -> Result<(), StateError> {
        let name = self.name(kind, index);
        for _ in 0..MAX_WRITE_ATTEMPTS {
            let old = bounded(self.api.get_opt(&name)).await?;
            if let Some(newer) = superseding(old.as_ref(), &shard.header) {
                return Err(StateError::Superseded { name, holder: newer.holder });
            }
            let version = old.as_ref().and_then(|map| map.metadata.resource_version.clone());
            let map = self.object(kind, &name, version, shard);
            let parameters = PostParams::default();
            let written = match old {
                Some(_) => bounded(self.api.replace(&name, &parameters, &map)).await,
                None => bounded(self.api.create(&parameters, &map)).await,
            };
            match written {
                Err(error) if error.is_conflict() => {}
                written => return Ok(written.map(drop)?),
            }
        }
        Err(StateError::Conflict(name))
    }

    /// Deletes objects that a larger layout left behind, and damaged ones: those from index `first` on, as they were listed,
    /// while `may_write`.
    pub(crate) async fn remove_from(
        &self,
        kind: StateKind,
        first: usize,
        holder: &Holder,
        may_write: impl Fn() -> bool,
    ) -> Result<(), StateError> {
        let in_use: Vec<_> = (0..first).map(|index| self.name(kind, index)).collect();
        let own_header = self.header(kind, holder);
        for map in self.objects(kind).await?.items {
            let newer = superseding(Some(&map), &own_header);
            let ObjectMeta { name: Some(name), uid, resource_version, .. } = map.metadata else { continue };
            if in_use.contains(&name) {
                continue;
            }
            if let Some(newer) = newer {
                return Err(StateError::Superseded { name, holder: newer.holder });
            }
            if !may_write() {
                return Ok(());
            }
            // With preconditions: an object that was written since is in use.
            let as_listed = DeleteParams::default().preconditions(Preconditions { uid, resource_version });
            match bounded(self.api.delete(&name, &as_listed)).await {
                Err(error) if error.is_conflict() || error.is_not_found() => {}
                deleted => deleted.map(drop)?,
            }
        }
        Ok(())
    }

    fn object(
        &self,
        kind: StateKind,
        name: &str,
        resource_version: Option<String>,
        shard: &Shard,
    ) -> ConfigMap {
        let header = serde_json::to_string(&shard.header).unwrap_or_default();
        let data = [(HEADER_KEY, header), (ENTRIES_KEY, shard.lines.clone())];
        self.labelled(kind.name(), name, resource_version, data)
    }

    /// The objects of all kinds.
    pub(super) fn api(&self) -> Api<ConfigMap> {
        self.api.clone()
    }

    /// The name of the object that keeps which ScaledObjects KEDA's calls have made variants. Every instance writes it.
    pub(super) fn calls_name(&self) -> String {
        named_object(&self.prefix, CALLS, 0)
    }

    /// This object with these lines.
    pub(super) fn calls_object(&self, resource_version: Option<String>, lines: String) -> ConfigMap {
        self.labelled(CALLS, &self.calls_name(), resource_version, [(ENTRIES_KEY, lines)])
    }

    fn labelled<const N: usize>(
        &self,
        kind: &str,
        name: &str,
        resource_version: Option<String>,
        data: [(&str, String); N],
    ) -> ConfigMap {
        let labels = [(STATE_LABEL, kind), (INSTALLATION_LABEL, self.prefix.as_str()), MANAGED_BY];
        ConfigMap {
            metadata: ObjectMeta {
                name: Some(name.into()),
                labels: Some(labels.map(|(key, value)| (key.into(), value.into())).into()),
                resource_version,
                ..ObjectMeta::default()
            },
            data: Some(data.map(|(key, value)| (key.into(), value)).into()),
            ..ConfigMap::default()
        }
    }

    /// Publishes the leader's decisions to `board` while this instance is not the leader. Until cancelled.
    pub async fn follow(
        &self,
        board: &Board,
        mut leadership: watch::Receiver<Leadership>,
        cancel: CancellationToken,
    ) {
        let config = watch_config().labels(&self.selector(StateKind::Decisions));
        let hint = "check that the service account may list and watch ConfigMaps in the release namespace";
        let mut events = watch_events(watcher(self.api.clone(), config), "state objects", hint).boxed();
        let mut logged = LogOnce::default();
        let mut shards = BTreeMap::new();
        let mut was_leader = false;
        loop {
            let has_changed = tokio::select! {
                () = cancel.cancelled() => return,
                Ok(()) = leadership.changed() => {
                    std::mem::replace(&mut was_leader, leadership.borrow().is_mine())
                }
                Some(event) = events.next() => apply(&mut shards, event),
            };
            was_leader = leadership.borrow().is_mine();
            if has_changed && !was_leader {
                self.publish(board, &shards, &mut logged);
            }
        }
    }

    fn publish(&self, board: &Board, shards: &BTreeMap<String, Shard>, logged: &mut LogOnce) {
        let shards: Vec<_> = shards.values().cloned().collect();
        let Some(last) = shards.iter().map(|shard| &shard.header).max_by_key(|header| header.written) else {
            return;
        };
        let newest = board.newest();
        if newest.origin == Origin::Computed && newest.at > last.written {
            // We were the leader, and our last evaluation is newer than what we wrote.
            return;
        }
        let mut problems = Vec::new();
        let decisions = self.decode(StateKind::Decisions, &shards, |problem| problems.push(problem));
        // Objects are written every two seconds: a lasting problem is logged once.
        match problems.join("; ") {
            text if text.is_empty() => drop(logged.clear()),
            text if logged.is_new(&text) => tracing::warn!("{text}"),
            _ => {}
        }
        board.publish(Published {
            sequence: newest.sequence + 1,
            at: last.written,
            origin: Origin::Restored,
            term: Some(Term { lease: last.lease.clone(), epoch: last.epoch }),
            decisions,
            ..Published::empty()
        });
    }
}

/// The header of `object`, if it was written by a later holder of the lease than `ours`.
fn superseding(object: Option<&ConfigMap>, ours: &ShardHeader) -> Option<ShardHeader> {
    let (_, shard) = parse_or_warn(object?)?;
    Some(shard.header).filter(|header| header.supersedes(ours))
}

/// Applies an event of the watch; true when the shards are complete and may have changed.
fn apply(shards: &mut BTreeMap<String, Shard>, event: Event<ConfigMap>) -> bool {
    match event {
        Event::Init => {
            shards.clear();
            false
        }
        Event::InitDone => true,
        Event::InitApply(map) => {
            shards.extend(parse_or_warn(&map));
            false
        }
        Event::Apply(map) => {
            let Some((name, shard)) = parse_or_warn(&map) else { return false };
            // An older epoch was written by a former leader that does not know it has been replaced.
            if shards.get(&name).is_some_and(|known| known.header.supersedes(&shard.header)) {
                return false;
            }
            shards.insert(name, shard);
            true
        }
        Event::Delete(map) => shards.remove(map.metadata.name.as_deref().unwrap_or_default()).is_some(),
    }
}

/// The name and shard of an object; `None`, with a warning, when it cannot be used.
fn parse_or_warn(map: &ConfigMap) -> Option<(String, Shard)> {
    parse(map).inspect_err(|problem| tracing::warn!("{problem}")).ok()
}

/// The name and shard of an object.
///
/// # Errors
/// A message, when its header cannot be parsed or its lines have another format.
fn parse(map: &ConfigMap) -> Result<(String, Shard), SmolStr> {
    let name = map.metadata.name.clone().unwrap_or_default();
    let data = map.data.as_ref();
    let header = data.and_then(|data| data.get(HEADER_KEY)).map_or("", String::as_str);
    let kind = map.labels().get(STATE_LABEL).map_or("", String::as_str);
    let kind = if kind == StateKind::Memory.name() { StateKind::Memory } else { StateKind::Decisions };
    match serde_json::from_str::<ShardHeader>(header) {
        Ok(header) if header.version == kind.version() => {
            let lines = data.and_then(|data| data.get(ENTRIES_KEY)).cloned().unwrap_or_default();
            Ok((name, Shard { header, lines }))
        }
        Ok(header) => Err(other_version(&format!("the state object {name}"), header.version, kind.version())),
        Err(error) => Err(format_smolstr!("the state object {name} is damaged and dropped: {error}")),
    }
}

/// What the names of an installation's state objects begin with, and the value of their label. `instance` is its controller
/// instance, the value of a label. If that cannot be part of a name, 16 digits of its SHA-256 digest stand for it, as in the chart.
#[must_use]
pub fn installation_name(instance: Option<&str>) -> String {
    match instance {
        None => PREFIX.into(),
        Some(instance) if is_part_of_names(instance) => format!("{PREFIX}-{instance}"),
        Some(instance) => {
            let digest = digest(&SHA256, instance.as_bytes());
            let digits = digest.as_ref().iter().take(8).map(|byte| format!("{byte:02x}"));
            format!("{PREFIX}-{}", digits.collect::<String>())
        }
    }
}

/// Whether the names of objects may contain it: a DNS label that fits into the value of a label with the prefix.
fn is_part_of_names(instance: &str) -> bool {
    let is_end = |byte: Option<&u8>| byte.is_some_and(|byte| *byte != b'-');
    let bytes = instance.as_bytes();
    instance.len() <= MAX_INSTANCE_BYTES
        && bytes.iter().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-'))
        && is_end(bytes.first())
        && is_end(bytes.last())
}

fn object_name(prefix: &str, kind: StateKind, index: usize) -> String {
    named_object(prefix, kind.name(), index)
}

fn named_object(prefix: &str, kind: &str, index: usize) -> String {
    format!("{prefix}-state-{kind}-{index}")
}

/// Names of all objects that an installation may have, to grant access to them by name.
#[must_use]
pub fn object_names(prefix: &str) -> Vec<String> {
    let kinds = [StateKind::Decisions, StateKind::Memory];
    kinds
        .iter()
        .flat_map(|kind| (0..MAX_SHARDS).map(move |index| object_name(prefix, *kind, index)))
        .chain([named_object(prefix, CALLS, 0)])
        .collect()
}
