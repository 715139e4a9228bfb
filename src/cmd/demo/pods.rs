//! One HTTP endpoint a pod, each on its own loopback port, as a model server would have. Plain http: real vLLM pods
//! serve `/metrics` so.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::DemoError;
use super::stage::{LOOPBACK, Stage};
use crate::cmd::fleet::CONTENT_TYPE;

/// How often new pods get their endpoint, in wall time: well below a virtual second at any speed one can watch.
const LOOK: Duration = Duration::from_millis(20);

/// A pod's endpoint; dropping it closes it.
struct Open {
    port: u16,
    _guard: DropGuard,
}

/// The endpoints of all pods that exist.
#[derive(Default)]
pub(super) struct PodServers {
    open: BTreeMap<String, Open>,
    /// Bounded by the pods that exist: the HPA's maximum and those that drain.
    tasks: JoinSet<()>,
}

impl PodServers {
    /// Opens and closes endpoints as pods come and go, until `stop`.
    pub(super) async fn follow(mut self, stage: Stage, stop: CancellationToken) -> Result<(), DemoError> {
        while !stop.is_cancelled() {
            self.sync(&stage).await?;
            tokio::select! {
                () = tokio::time::sleep(LOOK) => {}
                () = stop.cancelled() => {}
            }
        }
        Ok(())
    }

    /// Brings the endpoints in step with the pods that exist now.
    pub(super) async fn sync(&mut self, stage: &Stage) -> Result<(), DemoError> {
        let (pods, before) = (stage.pods(), self.open.len());
        self.open.retain(|pod, _| pods.contains(pod));
        let mut changed = self.open.len() != before;
        for pod in pods {
            if !self.open.contains_key(&pod) {
                self.open.insert(pod.clone(), listen(stage.clone(), pod, &mut self.tasks).await?);
                changed = true;
            }
        }
        if changed {
            stage.set_ports(self.open.iter().map(|(pod, open)| (pod.clone(), open.port)).collect());
        }
        while self.tasks.try_join_next().is_some() {}
        Ok(())
    }
}

async fn listen(stage: Stage, pod: String, tasks: &mut JoinSet<()>) -> Result<Open, DemoError> {
    let listener = TcpListener::bind((LOOPBACK, 0)).await.map_err(DemoError::PodListener)?;
    let port = listener.local_addr().map_err(DemoError::PodListener)?.port();
    let routes = Router::new().route("/metrics", get(metrics)).with_state((stage, pod));
    let stop = CancellationToken::new();
    let stopped = stop.clone();
    tasks.spawn(async move {
        // Ends at once when the pod goes, like a process that is killed; an error has nobody left to read it.
        tokio::select! {
            _ = axum::serve(listener, routes) => {}
            () = stopped.cancelled() => {}
        }
    });
    Ok(Open { port, _guard: stop.drop_guard() })
}

async fn metrics(State((stage, pod)): State<(Stage, String)>) -> Response {
    match stage.page(&pod) {
        Some(page) => ([(header::CONTENT_TYPE, CONTENT_TYPE)], page).into_response(),
        None => (StatusCode::SERVICE_UNAVAILABLE, "the model is loading\n").into_response(),
    }
}
