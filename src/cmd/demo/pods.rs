//! An HTTP endpoint for each pod on a loopback port of its own. Plain HTTP, as vLLM serves `/metrics`.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Context as _;
use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::fleet::{DemoFleet, LOOPBACK};
use crate::cmd::fleet::CONTENT_TYPE;

/// How often endpoints are opened and closed, in wall time: well below a virtual second at any speed one can watch.
const SYNC_INTERVAL: Duration = Duration::from_millis(20);

/// A pod's endpoint. Dropping it closes it.
struct PodEndpoint {
    port: u16,
    _guard: DropGuard,
}

/// The endpoints of all pods that exist.
#[derive(Default)]
pub(super) struct PodServers {
    open: BTreeMap<String, PodEndpoint>,
    /// Bounded by the pods that exist: the HPA's maximum and those that drain.
    tasks: JoinSet<()>,
}

impl PodServers {
    /// Opens and closes endpoints as pods come and go, until `stop`.
    pub(super) async fn follow(mut self, fleet: DemoFleet, stop: CancellationToken) -> anyhow::Result<()> {
        while !stop.is_cancelled() {
            self.sync(&fleet).await?;
            tokio::select! {
                () = tokio::time::sleep(SYNC_INTERVAL) => {}
                () = stop.cancelled() => {}
            }
        }
        Ok(())
    }

    /// Opens and closes endpoints so that each existing pod has one.
    pub(super) async fn sync(&mut self, fleet: &DemoFleet) -> anyhow::Result<()> {
        let pods = fleet.pods();
        let before = self.open.len();
        self.open.retain(|pod, _| pods.contains(pod));
        let mut changed = self.open.len() != before;
        for pod in pods {
            if !self.open.contains_key(&pod) {
                self.open.insert(pod.clone(), listen(fleet.clone(), pod, &mut self.tasks).await?);
                changed = true;
            }
        }
        if changed {
            fleet.set_ports(self.open.iter().map(|(pod, open)| (pod.clone(), open.port)).collect());
        }
        while self.tasks.try_join_next().is_some() {}
        Ok(())
    }
}

async fn listen(fleet: DemoFleet, pod: String, tasks: &mut JoinSet<()>) -> anyhow::Result<PodEndpoint> {
    let listener = TcpListener::bind((LOOPBACK, 0)).await;
    let listener = listener.context("no loopback port for a simulated pod; check the limit of open files")?;
    let port = listener.local_addr()?.port();
    let routes = Router::new().route("/metrics", get(metrics)).with_state((fleet, pod));
    let stop = CancellationToken::new();
    let stopped = stop.clone();
    tasks.spawn(async move {
        // Ends at once when the pod is deleted, like a process that is killed. An error would concern only its clients.
        tokio::select! {
            _ = axum::serve(listener, routes) => {}
            () = stopped.cancelled() => {}
        }
    });
    Ok(PodEndpoint { port, _guard: stop.drop_guard() })
}

async fn metrics(State((fleet, pod)): State<(DemoFleet, String)>) -> Response {
    match fleet.metrics(&pod) {
        Some(page) => ([(header::CONTENT_TYPE, CONTENT_TYPE)], page).into_response(),
        None => (StatusCode::SERVICE_UNAVAILABLE, "the model is loading\n").into_response(),
    }
}
