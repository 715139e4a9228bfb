//! State objects: ConfigMaps by which a new holder starts warm and the others answer while the holder is away. Written
//! by the holder, read by all. What is in them is in `shards`; nothing here decides.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, ListParams, PostParams, Preconditions};
use kube::core::{ObjectList, PartialObjectMeta};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{Event, watcher};
use smol_str::{SmolStr, format_smolstr};
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use wva_core::memory::{GroupMemory, Memory, other_version};
use wva_core::{GroupId, Report};

use super::state_encoding::{Decoded, Header, Kept, SHARDS_MAX, Shard, VERSION, decode};
use crate::cluster::watch::watch_health::{Told, Trouble, backoff, config, said};
use crate::engine::{Board, Clock, Holder, Leadership, Origin, Published, Restored, Term};

/// Longest wait for one answer of the API server.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// Tries to write one object: a conflict is read again once, a second one means that another holder writes.
const WRITE_TRIES: u32 = 2;
/// Label of a state object: what it keeps.
const KIND_LABEL: &str = "wva.llmd.ai/state";
/// Label of a state object: which installation it belongs to, where several share a namespace.
const INSTALLATION_LABEL: &str = "wva.llmd.ai/installation";
/// Data key: who wrote it.
const HEADER_KEY: &str = "header";
/// Data key: the entries, one JSON value a line.
const LINES_KEY: &str = "entries";

/// What a state object keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Decisions,
    Memory,
}

impl Kind {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Decisions => "decisions",
            Self::Memory => "memory",
        }
    }

    /// The layout of its lines that this build writes and reads.
    const fn version(self) -> u32 {
        match self {
            Self::Decisions => VERSION,
            Self::Memory => Memory::VERSION,
        }
    }
}

/// State objects that cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// No answer in time.
    #[error("state objects: the API server did not answer within {} s", REQUEST_TIMEOUT.as_secs())]
    Timeout,
    /// Refused.
    #[error(
        "state objects: {}; check that the service account may list, create and update ConfigMaps in the \
             release namespace",
        said(.0)
    )]
    Api(#[source] Box<kube::Error>),
    /// This instance is not the holder any more.
    #[error("ConfigMap {name} was written by {holder}, who holds a newer lease")]
    Deposed {
        /// The object.
        name: String,
        /// Who wrote it.
        holder: String,
    },
    /// Another writer keeps changing it.
    #[error("ConfigMap {0} changes under our hands: is a second installation using its name?")]
    Conflict(String),
}

impl From<kube::Error> for StateError {
    fn from(error: kube::Error) -> Self {
        Self::Api(Box::new(error))
    }
}

/// The state objects of one installation.
#[derive(Clone)]
pub struct StateStore {
    api: Api<ConfigMap>,
    names: Api<PartialObjectMeta<ConfigMap>>,
    prefix: String,
    clock: Arc<dyn Clock>,
}

impl StateStore {
    /// The state objects in `namespace` whose names begin with `prefix` (e.g. `wva`, or `wva-<controller instance>`).
    #[must_use]
    pub fn new(client: kube::Client, namespace: &str, prefix: &str, clock: Arc<dyn Clock>) -> Self {
        let names = Api::namespaced(client.clone(), namespace);
        Self { api: Api::namespaced(client, namespace), names, prefix: prefix.into(), clock }
    }

    /// Everything that is kept. What is damaged or of another version is left out; the memory says of what, so that the
    /// first report tells it.
    ///
    /// # Errors
    /// When the API server does not answer.
    pub async fn load(&self) -> Result<Restored, StateError> {
        let mut dropped = Vec::new();
        let decisions = self.entries(Kind::Decisions, &mut dropped).await?;
        let groups: BTreeMap<GroupId, GroupMemory> = self.entries(Kind::Memory, &mut dropped).await?;
        Ok(Restored { decisions, memory: Memory { groups, dropped, ..Memory::default() } })
    }

    /// What the objects of one kind hold, and in words what of it cannot be used.
    async fn entries<V: Kept>(
        &self,
        kind: Kind,
        unusable: &mut Vec<SmolStr>,
    ) -> Result<BTreeMap<V::Id, V>, StateError> {
        let mut shards = Vec::new();
        for map in &self.objects(kind).await?.items {
            match read(map) {
                Ok((_, shard)) => shards.push(shard),
                Err(why) => unusable.push(why),
            }
        }
        Ok(self.decoded(kind, &shards, |why| unusable.push(why.into())))
    }

    /// The objects of one kind as they are.
    async fn objects(&self, kind: Kind) -> Result<ObjectList<ConfigMap>, StateError> {
        let list = ListParams::default().labels(&self.selector(kind));
        within(self.api.list(&list)).await
    }

    /// The objects, of which only the metadata is read.
    pub(crate) fn names(&self) -> Api<PartialObjectMeta<ConfigMap>> {
        self.names.clone()
    }

    /// Selects the objects of both kinds.
    pub(crate) fn every_kind(&self) -> String {
        format!("{INSTALLATION_LABEL}={}", self.prefix)
    }

    fn selector(&self, kind: Kind) -> String {
        format!("{KIND_LABEL}={},{INSTALLATION_LABEL}={}", kind.name(), self.prefix)
    }

    /// What `shards` hold, and in words what of it counts for nothing or for something else.
    fn decoded<V: Kept>(
        &self,
        kind: Kind,
        shards: &[Shard],
        mut tell: impl FnMut(String),
    ) -> BTreeMap<V::Id, V> {
        let Decoded { entries, dropped, ahead } = decode::<V>(shards, self.clock.now());
        told(kind, &dropped).into_iter().for_each(&mut tell);
        if ahead > 0 {
            tell(format!(
                "{ahead} entries of the state objects for {} are from the future and count as of now: the clock of the \
                 instance that wrote them is ahead of ours, or ours is behind; check the time of both nodes",
                kind.name()
            ));
        }
        entries
    }

    pub(crate) fn name(&self, kind: Kind, index: usize) -> String {
        format!("{}-state-{}-{index}", self.prefix, kind.name())
    }

    pub(crate) fn header(&self, kind: Kind, holder: &Holder) -> Header {
        Header {
            version: kind.version(),
            holder: holder.identity.clone(),
            lease: holder.lease.clone(),
            epoch: holder.epoch,
            written: self.clock.now(),
        }
    }

    /// Looks whether a newer holder has written decisions: every holder does so first.
    ///
    /// # Errors
    /// When one has, or nobody answers.
    pub(crate) async fn still_ours(&self, holder: &Holder) -> Result<(), StateError> {
        let name = self.name(Kind::Decisions, 0);
        let found = within(self.api.get_opt(&name)).await?;
        let written = found.as_ref().and_then(parsed).map(|(_, shard)| shard.header);
        match written.filter(|header| header.deposes(&self.header(Kind::Decisions, holder))) {
            Some(newer) => Err(StateError::Deposed { name, holder: newer.holder }),
            None => Ok(()),
        }
    }

    /// Writes one object, unless a newer holder has.
    ///
    /// # Errors
    /// When it cannot be written, or not by us.
    pub(crate) async fn put(&self, kind: Kind, index: usize, shard: &Shard) -> Result<(), StateError> {
        let name = self.name(kind, index);
        for _ in 0..WRITE_TRIES {
            let old = within(self.api.get_opt(&name)).await?;
            let written = old.as_ref().and_then(parsed).map(|(_, shard)| shard.header);
            if let Some(newer) = written.filter(|header| header.deposes(&shard.header)) {
                return Err(StateError::Deposed { name, holder: newer.holder });
            }
            let version = old.as_ref().and_then(|map| map.metadata.resource_version.clone());
            let map = self.object(kind, &name, version, shard);
            let parameters = PostParams::default();
            let written = match old {
                Some(_) => within(self.api.replace(&name, &parameters, &map)).await,
                None => within(self.api.create(&parameters, &map)).await,
            };
            match written {
                Err(StateError::Api(error)) if is_conflict(&error) => {}
                other => return other.map(drop),
            }
        }
        Err(StateError::Conflict(name))
    }

    /// Removes objects that a larger layout left behind, and damaged ones: those from `first` on, as they were listed,
    /// while `may_write`.
    pub(crate) async fn remove_from(
        &self,
        kind: Kind,
        first: usize,
        holder: &Holder,
        may_write: impl Fn() -> bool,
    ) -> Result<(), StateError> {
        let kept: Vec<_> = (0..first).map(|index| self.name(kind, index)).collect();
        let ours = self.header(kind, holder);
        for map in self.objects(kind).await?.items {
            let written = parsed(&map).map(|(_, shard)| shard.header);
            let ObjectMeta { name: Some(name), uid, resource_version, .. } = map.metadata else { continue };
            if kept.contains(&name) {
                continue;
            }
            if let Some(newer) = written.filter(|header| header.deposes(&ours)) {
                return Err(StateError::Deposed { name, holder: newer.holder });
            }
            if !may_write() {
                return Ok(());
            }
            // Whoever wrote it since has a use for it.
            let as_listed = DeleteParams::default().preconditions(Preconditions { uid, resource_version });
            match within(self.api.delete(&name, &as_listed)).await {
                Err(StateError::Api(error)) if is_conflict(&error) || is_gone(&error) => {}
                other => other.map(drop)?,
            }
        }
        Ok(())
    }

    fn object(&self, kind: Kind, name: &str, resource_version: Option<String>, shard: &Shard) -> ConfigMap {
        let labels = [
            (KIND_LABEL, kind.name()),
            (INSTALLATION_LABEL, self.prefix.as_str()),
            ("app.kubernetes.io/managed-by", "wva"),
        ];
        let header = serde_json::to_string(&shard.header).unwrap_or_default();
        let data = [(HEADER_KEY, header), (LINES_KEY, shard.lines.clone())];
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

    /// Publishes what the holder wrote into `board`, while this instance is not the holder. Until cancelled.
    pub async fn follow(
        &self,
        board: &Board,
        mut leadership: watch::Receiver<Leadership>,
        cancel: CancellationToken,
    ) {
        let config = config().labels(&self.selector(Kind::Decisions));
        let mut events = watcher(self.api.clone(), config).backoff(backoff()).boxed();
        let hint = "check that the service account may list and watch ConfigMaps in the release namespace";
        let mut trouble = Trouble::new("state objects", hint);
        let mut shards = BTreeMap::new();
        let (mut was_mine, mut told) = (false, Told::default());
        loop {
            let complete = tokio::select! {
                () = cancel.cancelled() => return,
                Ok(()) = leadership.changed() => std::mem::replace(&mut was_mine, leadership.borrow().is_mine()),
                Some(event) = events.next() => match event {
                    Ok(event) => {
                        trouble.over();
                        take(&mut shards, event)
                    }
                    Err(error) => {
                        trouble.tell(&error);
                        false
                    }
                },
            };
            was_mine = leadership.borrow().is_mine();
            if complete && !was_mine {
                self.publish(board, &shards, &mut told);
            }
        }
    }

    fn publish(&self, board: &Board, shards: &BTreeMap<String, Shard>, told: &mut Told) {
        let shards: Vec<_> = shards.values().cloned().collect();
        let Some(last) = shards.iter().map(|shard| &shard.header).max_by_key(|header| header.written) else {
            return;
        };
        let (at, term) = (last.written, Term { lease: last.lease.clone(), epoch: last.epoch });
        let newest = board.newest();
        if newest.origin == Origin::Computed && newest.at > at {
            // We were the holder and know better than what we last wrote down.
            return;
        }
        let mut unusable = Vec::new();
        let decisions = self.decoded(Kind::Decisions, &shards, |why| unusable.push(why));
        // Once, and not again every two seconds for as long as it lasts.
        match unusable.join("; ") {
            why if why.is_empty() => drop(told.over()),
            why if told.is_news(&why) => tracing::warn!("{why}"),
            _ => {}
        }
        board.publish(Published {
            sequence: newest.sequence + 1,
            at,
            took: Duration::ZERO,
            origin: Origin::Restored,
            term: Some(term),
            decisions,
            report: Report::default(),
            victims: BTreeMap::new(),
        });
    }
}

/// Takes a step of the watch; true when what is known is complete and may have changed.
fn take(shards: &mut BTreeMap<String, Shard>, event: Event<ConfigMap>) -> bool {
    match event {
        Event::Init => {
            shards.clear();
            false
        }
        Event::InitDone => true,
        Event::InitApply(map) => {
            shards.extend(parsed(&map));
            false
        }
        Event::Apply(map) => {
            let Some((name, shard)) = parsed(&map) else { return false };
            // An older epoch is a holder that has been replaced and does not know it yet.
            if shards.get(&name).is_some_and(|known| known.header.deposes(&shard.header)) {
                return false;
            }
            shards.insert(name, shard);
            true
        }
        Event::Delete(map) => shards.remove(map.metadata.name.as_deref().unwrap_or_default()).is_some(),
    }
}

/// The shard in an object; `None` with a warning when it cannot be read.
fn parsed(map: &ConfigMap) -> Option<(String, Shard)> {
    let found = read(map);
    if let Err(why) = &found {
        tracing::warn!("{why}");
    }
    found.ok()
}

/// The shard in an object, with the object's name.
///
/// # Errors
/// In words, when its header cannot be read or its lines have another layout.
fn read(map: &ConfigMap) -> Result<(String, Shard), SmolStr> {
    let name = map.metadata.name.clone().unwrap_or_default();
    let data = map.data.as_ref();
    let header = data.and_then(|data| data.get(HEADER_KEY)).map_or("", String::as_str);
    let kind = map.labels().get(KIND_LABEL).map_or("", String::as_str);
    let kind = if kind == Kind::Memory.name() { Kind::Memory } else { Kind::Decisions };
    match serde_json::from_str::<Header>(header) {
        Ok(header) if header.version == kind.version() => {
            let lines = data.and_then(|data| data.get(LINES_KEY)).cloned().unwrap_or_default();
            Ok((name, Shard { header, lines }))
        }
        Ok(header) => Err(other_version(&format!("the state object {name}"), header.version, kind.version())),
        Err(error) => Err(format_smolstr!("the state object {name} is damaged and dropped: {error}")),
    }
}

/// How many entries are damaged, and what is wrong with the first of them.
fn told(kind: Kind, damaged: &[String]) -> Option<String> {
    let first = damaged.first()?;
    let (count, kind) = (damaged.len(), kind.name());
    Some(format!("{count} damaged entries of the state objects for {kind} are dropped, the first: {first}"))
}

/// Names of all objects that an installation may have, for those who grant rights by name.
#[must_use]
pub fn object_names(prefix: &str) -> Vec<String> {
    let names =
        |kind: Kind| (0..SHARDS_MAX).map(move |index| format!("{prefix}-state-{}-{index}", kind.name()));
    names(Kind::Decisions).chain(names(Kind::Memory)).collect()
}

fn is_conflict(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 409)
}

fn is_gone(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 404)
}

async fn within<T>(request: impl Future<Output = kube::Result<T>>) -> Result<T, StateError> {
    Ok(timeout(REQUEST_TIMEOUT, request).await.map_err(|_| StateError::Timeout)??)
}
