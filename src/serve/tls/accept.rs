//! The accept loop. Every wait has a timeout, every number of connections a limit, and a failing connection costs the others
//! nothing. Knows no route.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::connection::{self, Service, Shared};
use super::listener;

/// Accepts until `stop`; then lets connections finish for `drain`, and cuts those that are left. A peer may ignore every
/// request to leave (hyper#4170), so the end does not depend on it.
pub(crate) async fn serve(listener: TcpListener, service: Service, stop: CancellationToken, drain: Duration) {
    let shared = Arc::new(Shared::new(service, stop.clone()));
    let mut connections = JoinSet::new();
    let accepting = accept(&listener, &shared, &mut connections);
    tokio::select! {
        () = accepting => {}
        () = shared.service.errors.summarise() => {}
        () = stop.cancelled() => {}
    }
    drop(listener);
    let open = connections.len();
    let finished = async { while connections.join_next().await.is_some() {} };
    if timeout(drain, finished).await.is_err() {
        tracing::warn!(open, left = connections.len(), "connections did not drain in time and are cut");
    }
    connections.shutdown().await;
}

async fn accept(listener: &TcpListener, shared: &Arc<Shared>, connections: &mut JoinSet<()>) {
    let permits = Arc::new(Semaphore::new(shared.service.max_connections));
    loop {
        while connections.try_join_next().is_some() {}
        let Ok(permit) = permits.clone().acquire_owned().await else { return };
        let (tcp, address) = listener::accept(listener, &shared.service.errors).await;
        let shared = shared.clone();
        connections.spawn(async move {
            run(tcp, address, &shared).await;
            drop(permit);
        });
    }
}

/// Serves one connection to its end and records how it failed, if it did.
async fn run(tcp: TcpStream, address: SocketAddr, shared: &Shared) {
    let Err(error) = connection::run(tcp, address, shared).await else { return };
    match error.failure() {
        Some(failure) => shared.service.errors.record(failure, &address, &error),
        None => tracing::debug!(%address, %error, "connection ended"),
    }
}
