//! Which of the kinds that variants name the API server serves with a scale subresource. It is asked rarely, whatever tenants
//! name, and no text of a tenant is in a request: a group is asked for only if the API server has named it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use k8s_openapi::api::apps::v1::Deployment;
use kube::core::ApiResource;
use kube::discovery::{self, ApiGroup, Scope};
use smol_str::{SmolStr, format_smolstr};
use tokio::time::Instant;
use wva_core::model::TargetRef;

use super::known_targets::WatchProblem;
use super::scale_target::{TargetKind, leader_worker_sets, stateful_sets};
use crate::cluster::requests::bounded;
use wva_core::text::first_names;

/// How often the API server is asked about kinds that it did not serve.
const LOOKUP_INTERVAL: Duration = Duration::from_secs(30);
/// How often about new ones.
const MIN_LOOKUP_INTERVAL: Duration = Duration::from_secs(5);
/// How often the log says which kinds are missing: tenants may name others all the time.
const LOG_INTERVAL: Duration = Duration::from_secs(300);
/// Kinds that the log names; the rest are counted.
const MAX_NAMED: usize = 4;

/// Group and kind.
pub(super) type GroupKind = (SmolStr, SmolStr);

/// What the API server has said of kinds. One that it did not speak about is absent.
pub(super) type Lookup = BTreeMap<GroupKind, Option<ApiResource>>;

/// What the API server serves of the kinds that variants name.
#[derive(Default)]
pub(super) struct ServedKinds {
    /// `None` where the API server serves no such kind with a scale.
    resources: Lookup,
    looked_up: Option<Instant>,
    /// An object was not found because its kind does not exist any more.
    is_doubtful: bool,
    /// The missing kinds that were logged last, and when.
    logged: Option<(String, Instant)>,
}

impl ServedKinds {
    /// How to read a target of this kind; `None` before the API server has spoken about the kind.
    pub(super) fn find(&self, target: &TargetRef) -> Option<Result<&ApiResource, WatchProblem>> {
        let TargetRef { group, kind, .. } = target;
        let resource = self.resources.get(&(group.clone(), kind.clone()))?;
        Some(resource.as_ref().ok_or_else(|| not_served(target)))
    }

    /// Asks again about all kinds: one of them seems to be gone.
    pub(super) fn doubt(&mut self) {
        self.is_doubtful = true;
    }

    /// When the API server is to be asked about the kinds in `named`, at `now` the first time; `None` while all are known.
    pub(super) fn due(&self, named: &BTreeSet<GroupKind>, now: Instant) -> Option<Instant> {
        let is_new = named.iter().any(|kind| !self.resources.contains_key(kind));
        let is_open = self.is_doubtful
            || named.iter().any(|kind| self.resources.get(kind).is_some_and(Option::is_none));
        let interval = match (is_new, is_open) {
            (true, _) => MIN_LOOKUP_INTERVAL,
            (false, true) => LOOKUP_INTERVAL,
            (false, false) => return None,
        };
        Some(self.looked_up.map_or(now, |at| at + interval))
    }

    /// Notes that the API server is being asked.
    pub(super) fn begin(&mut self, now: Instant) {
        self.looked_up = Some(now);
        self.is_doubtful = false;
    }

    /// Takes in what the API server has said about the kinds in `named`, and returns those about which it said something new.
    pub(super) fn apply(&mut self, lookup: Lookup, named: &BTreeSet<GroupKind>) -> BTreeSet<GroupKind> {
        self.resources.retain(|kind, _| named.contains(kind));
        let mut changed = BTreeSet::new();
        for (kind, resource) in lookup.into_iter().filter(|(kind, _)| named.contains(kind)) {
            if self.resources.get(&kind) != Some(&resource) {
                changed.insert(kind.clone());
                self.resources.insert(kind, resource);
            }
        }
        self.log_missing();
        changed
    }

    fn log_missing(&mut self) {
        let missing = self.resources.iter().filter(|(_, resource)| resource.is_none());
        let missing: Vec<_> = missing.map(|((group, kind), _)| name(group, kind)).collect();
        let is_recent = |(_, at): &(String, Instant)| at.elapsed() < LOG_INTERVAL;
        if missing.is_empty() || self.logged.as_ref().is_some_and(is_recent) {
            return;
        }
        let kinds = first_names(missing.into_iter(), MAX_NAMED, ", ");
        if self.logged.as_ref().is_none_or(|(logged, _)| *logged != kinds) {
            tracing::warn!(
                kinds,
                "variants name scale targets of kinds that the API server does not serve with a scale subresource: install \
                 their definitions, or correct spec.scaleTargetRef"
            );
            self.logged = Some((kinds, Instant::now()));
        }
    }
}

/// Asks the API server about the kinds in `named`.
pub(super) async fn look_up(client: kube::Client, named: BTreeSet<GroupKind>) -> Lookup {
    let mut lookup = Lookup::new();
    let groups: BTreeSet<String> = match bounded(client.list_api_groups()).await {
        Ok(list) => list.groups.into_iter().map(|group| group.name).chain([String::new()]).collect(),
        Err(error) => {
            tracing::debug!(%error, "cannot list the API groups; retrying");
            return lookup;
        }
    };
    let named: Vec<_> = named.into_iter().collect();
    for kinds in named.chunk_by(|(left, _), (right, _)| left == right) {
        let Some((group, _)) = kinds.first() else { continue };
        let served = if groups.contains(group.as_str()) {
            match bounded(discovery::group(&client, group)).await {
                Ok(served) => scalable_kinds(&served),
                Err(error) => {
                    tracing::debug!(%group, %error, "cannot list the kinds of an API group; retrying");
                    continue;
                }
            }
        } else {
            BTreeMap::new()
        };
        lookup.extend(kinds.iter().map(|kind| (kind.clone(), served.get(kind.1.as_str()).cloned())));
    }
    lookup
}

/// The resources of a group that are in namespaces and have a scale, by kind; of several versions the most stable.
fn scalable_kinds(group: &ApiGroup) -> BTreeMap<String, ApiResource> {
    let scalable = group.resources_by_stability().into_iter().filter(|(_, capabilities)| {
        let mut subresources = capabilities.subresources.iter();
        capabilities.scope == Scope::Namespaced
            && subresources.any(|(resource, _)| resource.plural == "scale")
    });
    scalable.map(|(resource, _)| (resource.kind.clone(), resource)).collect()
}

/// That the API server does not serve the kind of `target`, and what to do.
pub(super) fn not_served(target: &TargetRef) -> WatchProblem {
    let cause = format_smolstr!(
        "the API server serves no {} with a scale subresource in a namespace: install its definition, or correct \
         spec.scaleTargetRef",
        name(&target.group, &target.kind)
    );
    WatchProblem { cause, is_not_served: true }
}

/// How to read and write the scale of a target of any kind; `None` where the API server serves none.
pub(crate) async fn scale_resource(client: &kube::Client, target: &TargetRef) -> Option<ApiResource> {
    match TargetKind::of(target) {
        TargetKind::Deployment => Some(ApiResource::erase::<Deployment>(&())),
        TargetKind::StatefulSet => Some(stateful_sets()),
        TargetKind::LeaderWorkerSet => Some(leader_worker_sets()),
        TargetKind::Scalable => {
            let kind = (target.group.clone(), target.kind.clone());
            look_up(client.clone(), [kind].into()).await.into_values().flatten().next()
        }
    }
}

fn name(group: &str, kind: &str) -> String {
    if group.is_empty() { format!("{kind} (core)") } else { format!("{kind} ({group})") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kinds(names: &[&str]) -> BTreeSet<GroupKind> {
        names.iter().map(|name| ("example.com".into(), (*name).into())).collect()
    }

    fn nothing_served(named: &BTreeSet<GroupKind>) -> Lookup {
        named.iter().map(|kind| (kind.clone(), None)).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn a_tenant_who_names_new_kinds_all_the_time_causes_a_look_up_in_five_seconds_and_one_log_line() {
        let mut served = ServedKinds::default();
        let (mut lookups, mut logged) = (0, BTreeSet::new());
        for second in 0..60 {
            let named = kinds(&[&format!("Kind{second}")]);
            if served.due(&named, Instant::now()).is_some_and(|due| due <= Instant::now()) {
                lookups += 1;
                served.begin(Instant::now());
                assert_eq!(served.apply(nothing_served(&named), &named), named);
                assert_eq!(served.resources.len(), 1, "what nobody names is forgotten");
            }
            logged.extend(served.logged.as_ref().map(|(kinds, _)| kinds.clone()));
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        assert_eq!((lookups, logged.len()), (12, 1));
    }

    #[test]
    fn the_first_look_up_was_never_due_because_the_clock_had_moved_on() {
        let now = Instant::now();
        assert_eq!(ServedKinds::default().due(&kinds(&["Rollout"]), now), Some(now));
    }

    #[tokio::test(start_paused = true)]
    async fn the_api_server_is_asked_about_kinds_that_are_missing_or_in_doubt_only() {
        let mut served = ServedKinds::default();
        let (named, now) = (kinds(&["Rollout"]), Instant::now());
        served.begin(now);
        served.apply(nothing_served(&named), &named);
        assert_eq!(served.due(&named, now), Some(now + LOOKUP_INTERVAL));
        let resource = ApiResource::erase::<Deployment>(&());
        let found: Lookup = named.iter().map(|kind| (kind.clone(), Some(resource.clone()))).collect();
        assert_eq!(served.apply(found.clone(), &named), named, "it has arrived");
        assert_eq!((served.due(&named, now), served.apply(found, &named)), (None, kinds(&[])));
        served.doubt();
        assert_eq!(served.due(&named, now), Some(now + LOOKUP_INTERVAL));
    }
}
