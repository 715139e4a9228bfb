//! The APIServices that may point to us: watched each by its name. What is to be written or checked is decided elsewhere.

use std::collections::BTreeMap;

use futures::StreamExt;
use futures::stream::{SelectAll, select_all};
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;
use kube::api::Api;
use kube::runtime::watcher;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::cluster::watch::watch_health::{Trouble, watch_one};

/// The APIService of the external metrics API.
pub const NAME: &str = "v1beta1.external.metrics.k8s.io";
/// All of the metrics APIs that we may serve. Those of custom metrics are often not installed, or another program's.
pub const NAMES: [&str; 3] = [NAME, "v1beta1.custom.metrics.k8s.io", "v1beta2.custom.metrics.k8s.io"];

/// Which Service is ours.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub service: String,
}

impl Settings {
    /// The name by which the API server verifies us.
    #[must_use]
    pub fn server_name(&self) -> String {
        format!("{}.{}.svc", self.service, self.namespace)
    }

    /// Whose an APIService is, when it is not ours.
    pub(crate) fn other_owner(&self, object: &APIService) -> Option<String> {
        let target = object.spec.as_ref().and_then(|spec| spec.service.as_ref());
        let target = target.map(|target| (target.namespace.as_deref(), target.name.as_deref()));
        let ours = (Some(self.namespace.as_str()), Some(self.service.as_str()));
        (target != Some(ours)).then(|| {
            target.map_or("the API server".to_owned(), |(namespace, name)| {
                format!("Service {}/{}", namespace.unwrap_or_default(), name.unwrap_or_default())
            })
        })
    }
}

/// What is known of an APIService.
#[derive(Debug, Clone, Default, PartialEq)]
pub enum Seen {
    /// Nothing yet.
    #[default]
    Unknown,
    /// There is none.
    Absent,
    /// The object.
    There(Box<APIService>),
}

/// What is known of all of them, by name.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ApiServices(BTreeMap<&'static str, Seen>);

impl ApiServices {
    /// Those that point to us.
    pub(crate) fn ours<'a>(
        &'a self,
        settings: &'a Settings,
    ) -> impl Iterator<Item = (&'static str, &'a APIService)> {
        self.there().filter(|(_, object)| settings.other_owner(object).is_none())
    }

    /// Those that exist.
    pub(crate) fn there(&self) -> impl Iterator<Item = (&'static str, &APIService)> {
        self.0.iter().filter_map(|(name, seen)| match seen {
            Seen::There(object) => Some((*name, &**object)),
            Seen::Unknown | Seen::Absent => None,
        })
    }

    /// True when every one has been looked for.
    fn all_known(&self) -> bool {
        NAMES.iter().all(|name| self.0.get(name).is_some_and(|seen| *seen != Seen::Unknown))
    }

    /// True when none points to us: nobody is sent to us.
    pub(crate) fn none_is_ours(&self, settings: &Settings) -> bool {
        self.all_known() && self.ours(settings).next().is_none()
    }

    /// True when there is no APIService of external metrics, nor any other that points to us.
    fn nothing_is_installed(&self, settings: &Settings) -> bool {
        self.0.get(NAME) == Some(&Seen::Absent) && self.none_is_ours(settings)
    }

    /// True when every one that points to us verifies by exactly this bundle, or not at all.
    pub(crate) fn carry(&self, settings: &Settings, bundle: &str) -> bool {
        self.all_known()
            && self.ours(settings).all(|(_, object)| {
                ca_bundle(object).is_some_and(|carried| carried == bundle.as_bytes()) || unverified(object)
            })
    }
}

/// The bundle of an APIService; `None` when it is empty.
pub(crate) fn ca_bundle(object: &APIService) -> Option<&[u8]> {
    let bundle = object.spec.as_ref().and_then(|spec| spec.ca_bundle.as_ref());
    bundle.map(|bundle| &bundle.0[..]).filter(|bundle| !bundle.is_empty())
}

/// True when the API server verifies nothing.
pub(crate) fn unverified(object: &APIService) -> bool {
    object.spec.as_ref().is_some_and(|spec| spec.insecure_skip_tls_verify == Some(true))
}

/// Follows them. [`ApiServiceWatch::run`] it in a task.
pub struct ApiServiceWatch {
    client: kube::Client,
    settings: Settings,
    publish: watch::Sender<ApiServices>,
}

impl ApiServiceWatch {
    /// A watch that has not started, and where to read what it sees.
    #[must_use]
    pub fn new(client: kube::Client, settings: Settings) -> (Self, watch::Receiver<ApiServices>) {
        let (publish, known) = watch::channel(ApiServices::default());
        (Self { client, settings, publish }, known)
    }

    /// Watches until cancelled.
    pub async fn run(self, cancel: CancellationToken) {
        let hint = "check that the service account may list and watch it by name";
        let mut trouble = Trouble::new("the APIService", hint);
        let follow = |name| {
            let api: Api<APIService> = Api::all(self.client.clone());
            watch_one(api, name).map(move |state| (name, state)).boxed()
        };
        let (mut states, mut told): (SelectAll<_>, _) = (select_all(NAMES.map(follow)), false);
        while let Some(Some((name, state))) = cancel.run_until_cancelled(states.next()).await {
            match state {
                Ok(Some(object)) => {
                    if name == NAME {
                        trouble.over();
                    }
                    self.take(name, Seen::There(Box::new(object)));
                }
                Ok(None) => {
                    if name == NAME {
                        trouble.over();
                    }
                    self.take(name, Seen::Absent);
                }
                Err(error) if name == NAME => trouble.tell(&error),
                // An installation without custom metrics need not grant them.
                Err(error) if is_forbidden(&error) => self.take(name, Seen::Absent),
                Err(error) => tracing::debug!(%error, name, "watch of an APIService interrupted"),
            }
            let missing = self.publish.borrow().nothing_is_installed(&self.settings);
            if missing && !told {
                tracing::warn!(
                    "APIService {NAME} does not exist: install the chart, or nobody is sent to us"
                );
            }
            told = missing;
        }
    }

    fn take(&self, name: &'static str, seen: Seen) {
        self.publish.send_if_modified(|known| {
            let changed = known.0.get(name) != Some(&seen);
            known.0.insert(name, seen);
            changed
        });
    }
}

fn is_forbidden(error: &watcher::Error) -> bool {
    use watcher::Error::{InitialListFailed, WatchStartFailed};
    matches!(error, InitialListFailed(kube::Error::Api(status)) | WatchStartFailed(kube::Error::Api(status))
        if status.code == 403)
}
