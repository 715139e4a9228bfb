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

/// Opens and closes endpoints as pods come and go, until `stop`.
pub(super) async fn serve_pods(stage: Stage, stop: CancellationToken) -> Result<(), DemoError> {
    let mut open: BTreeMap<String, Open> = BTreeMap::new();
    // Bounded by the pods that exist: the HPA's maximum and those that drain.
    let mut tasks = JoinSet::new();
    while !stop.is_cancelled() {
        sync(&stage, &mut open, &mut tasks).await?;
        while tasks.try_join_next().is_some() {}
        tokio::select! {
            () = tokio::time::sleep(LOOK) => {}
            () = stop.cancelled() => {}
        }
    }
    Ok(())
}

async fn sync(
    stage: &Stage,
    open: &mut BTreeMap<String, Open>,
    tasks: &mut JoinSet<()>,
) -> Result<(), DemoError> {
    let pods = stage.pods();
    let before = open.len();
    open.retain(|pod, _| pods.contains(pod));
    let mut changed = open.len() != before;
    for pod in pods {
        if !open.contains_key(&pod) {
            open.insert(pod.clone(), listen(stage.clone(), pod, tasks).await?);
            changed = true;
        }
    }
    if changed {
        stage.set_ports(open.iter().map(|(pod, open)| (pod.clone(), open.port)).collect());
    }
    Ok(())
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
