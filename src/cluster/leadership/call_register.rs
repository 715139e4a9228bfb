//! Notes KEDA's calls, and shares what they name with the other instances through a ConfigMap: a call reaches any instance, the leader
//! decides, and a restart forgets nothing.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, PostParams};
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};
use tokio_util::sync::CancellationToken;
use wva_core::VariantId;

use super::call_times::{CONFIRM_INTERVAL, CallTimes, ReachableTime, Refusal, Times, decode, encode};
use super::state_store::{ENTRIES_KEY, StateStore};
use crate::cluster::objects::{CalledObjects, ObjectKey};
use crate::cluster::requests::{LogOnce, RequestError, bounded};
use crate::cluster::watch::watch_health::{WatchHealth, watch_object};
use crate::engine::Clock;

/// How long calls are gathered before they are written: KEDA calls for all ScaledObjects when it starts.
const GATHER_WINDOW: Duration = Duration::from_millis(200);
/// Time after a write in which there is no other, so that instances which write at once all get their turn.
const WRITE_INTERVAL: Duration = Duration::from_secs(1);
/// Time after a failed write.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);
/// How often it is looked what is to be forgotten, or renewed.
const REVIEW_INTERVAL: Duration = Duration::from_secs(10);
/// What to check when the ConfigMap cannot be read or written.
const HINT: &str = "check that the service account may get, update, create, list and watch ConfigMaps in the release namespace (the chart's Role \
                    names them); until then the other instances do not learn which ScaledObjects are variants by KEDA's calls, and a restart \
                    forgets them";

/// Notes calls; cheap to clone.
#[derive(Clone)]
pub struct CallRegister {
    calls: Arc<Mutex<CallTimes>>,
    /// Locked before the calls, where both are.
    reachable: Arc<Mutex<ReachableTime>>,
    objects: watch::Sender<Option<Arc<BTreeSet<ObjectKey>>>>,
    is_new: Arc<Notify>,
    clock: Arc<dyn Clock>,
    /// Only this namespace.
    namespace: Option<String>,
}

impl CallRegister {
    /// A register that knows nothing yet. `namespace`: the only one that is watched, if it is only one.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>, namespace: Option<String>) -> Self {
        let objects = watch::Sender::new(None);
        Self {
            calls: Arc::default(),
            reachable: Arc::default(),
            objects,
            is_new: Arc::default(),
            clock,
            namespace,
        }
    }

    /// Which ScaledObjects are noted.
    #[must_use]
    pub fn subscribe(&self) -> CalledObjects {
        CalledObjects(self.objects.subscribe())
    }

    /// Notes the call of an authorised caller, from now on for an hour. Where there is no room, `idle` are forgotten first: those noted that make
    /// no variant, such as names that somebody made up.
    ///
    /// # Errors
    /// Says why the ScaledObject cannot become a variant.
    pub fn note(
        &self,
        namespace: &str,
        name: &str,
        idle: impl FnOnce() -> Vec<VariantId>,
    ) -> Result<(), String> {
        if let Some(watched) = self.namespace.as_deref().filter(|watched| *watched != namespace) {
            return Err(format!("only namespace {watched} is watched (--watch-namespace)"));
        }
        let (key, at) = (ObjectKey::new(namespace, name), self.time_of_call());
        let mut calls = self.calls.lock();
        let noted = calls.note(key.clone(), at).or_else(|refusal| {
            if refusal == Refusal::Name {
                return Err(refusal);
            }
            calls.remove(idle().iter().map(|id| ObjectKey::new(&id.namespace, &id.name)));
            calls.note(key, at)
        });
        drop(calls);
        if noted.map_err(|refusal| refusal.to_string())? {
            self.is_new.notify_one();
        }
        Ok(())
    }

    /// Notes a call of a ScaledObject that is noted already.
    pub fn renew(&self, namespace: &str, name: &str) {
        let at = self.time_of_call();
        self.calls.lock().renew(&ObjectKey::new(namespace, name), at);
    }

    fn time_of_call(&self) -> Duration {
        self.reachable.lock().of_call(Instant::now())
    }

    fn counted(&self) -> Duration {
        self.reachable.lock().counted()
    }

    /// Shares the calls with the other instances until cancelled.
    pub async fn run(self, store: StateStore, cancel: CancellationToken) {
        let (api, name) = (store.api(), store.calls_name());
        let mut maps = watch_object(api.clone(), &name).boxed();
        let (mut health, mut errors) =
            (WatchHealth::new("the ConfigMap of KEDA's calls", HINT), LogOnce::default());
        let (mut review_at, mut not_before) = (Instant::now() + REVIEW_INTERVAL, Instant::now());
        let mut confirmations = interval(CONFIRM_INTERVAL);
        confirmations.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = cancel.cancelled() => return,
                Some(map) = maps.next() => match map {
                    Ok(map) => {
                        health.report_recovery();
                        self.merge(map.as_ref());
                    }
                    Err(error) => health.report_failure(&error),
                },
                () = self.is_new.notified() => {
                    not_before = not_before.max(Instant::now() + GATHER_WINDOW);
                    review_at = not_before;
                }
                _ = confirmations.tick() => self.confirm(&api, &name).await,
                () = sleep_until(review_at) => review_at = Instant::now() + REVIEW_INTERVAL,
            }
            self.publish();
            if Instant::now() < not_before {
                review_at = review_at.min(not_before);
                continue;
            }
            let Some(wait) = self.write(&store, &api, &mut errors).await else { continue };
            not_before = Instant::now() + wait;
        }
    }

    /// Confirms that the API server answers, and with it that calls can arrive. A watch says nothing for minutes, whether or not it does.
    async fn confirm(&self, api: &Api<ConfigMap>, name: &str) {
        match bounded(api.get_opt(name)).await {
            Ok(map) => {
                self.reachable.lock().confirm(Instant::now());
                self.merge(map.as_ref());
            }
            // The watch says so too, and why.
            Err(_) => self.reachable.lock().interrupt(),
        }
    }

    fn merge(&self, map: Option<&ConfigMap>) {
        let at = self.time_of_call();
        self.calls.lock().merge(map.map(times), at);
    }

    /// Forgets what is old, and tells which ScaledObjects there are.
    fn publish(&self) {
        let objects = {
            let at = self.counted();
            let mut calls = self.calls.lock();
            calls.expire(at);
            calls.objects()
        };
        self.objects.send_if_modified(|known| {
            let is_changed = known.as_deref() != objects.as_ref();
            if is_changed {
                *known = objects.map(Arc::new);
            }
            is_changed
        });
    }

    /// Writes what has changed, and says how long to wait before the next write; `None` if nothing has.
    async fn write(
        &self,
        store: &StateStore,
        api: &Api<ConfigMap>,
        errors: &mut LogOnce,
    ) -> Option<Duration> {
        self.calls.lock().to_store(self.clock.now())?;
        let written = self.exchange(store, api).await;
        Some(match written {
            Ok(()) => {
                errors.clear();
                WRITE_INTERVAL
            }
            // Another instance was faster: what it has written is read first.
            Err(error) if error.is_conflict() => WRITE_INTERVAL.mul_f64(0.5 + fastrand::f64()),
            Err(error) => {
                let text = error.to_string();
                if errors.is_new(&text) {
                    tracing::warn!(error = text, "the ConfigMap of KEDA's calls cannot be written: {HINT}");
                }
                RETRY_INTERVAL
            }
        })
    }

    /// Reads the ConfigMap, and writes it with what is known here.
    async fn exchange(&self, store: &StateStore, api: &Api<ConfigMap>) -> Result<(), RequestError> {
        let name = store.calls_name();
        let old = bounded(api.get_opt(&name)).await?;
        self.merge(old.as_ref());
        let Some(entries) = self.calls.lock().to_store(self.clock.now()) else { return Ok(()) };
        let version = old.as_ref().and_then(|map| map.metadata.resource_version.clone());
        let map = store.calls_object(version, encode(&entries));
        let parameters = PostParams::default();
        match old {
            Some(_) => bounded(api.replace(&name, &parameters, &map)).await?,
            None => bounded(api.create(&parameters, &map)).await?,
        };
        let at = self.time_of_call();
        self.calls.lock().note_stored(entries, at);
        Ok(())
    }
}

fn times(map: &ConfigMap) -> Times {
    map.data.as_ref().and_then(|data| data.get(ENTRIES_KEY)).map(|text| decode(text)).unwrap_or_default()
}
