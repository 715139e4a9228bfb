//! The accept loop. Every wait has a timeout, every number of connections a limit, and a failing connection costs the others
//! nothing: errors of a single connection are skipped, errors of the listener are retried with back-off. Knows no route.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::connection::{self, Service, Shared};
use super::connection_errors::{ConnectionErrors, Failure};

/// The first wait after a failed accept, which mostly means that there are no file handles; doubled up to
/// [`MAX_ACCEPT_BACKOFF`].
const MIN_ACCEPT_BACKOFF: Duration = Duration::from_millis(5);
const MAX_ACCEPT_BACKOFF: Duration = Duration::from_secs(1);

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
        let (tcp, address) = next_connection(|| listener.accept(), &shared.service.errors).await;
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

/// The next connection, however long it takes.
async fn next_connection<S, F>(mut accept: impl FnMut() -> F, errors: &ConnectionErrors) -> (S, SocketAddr)
where
    F: Future<Output = io::Result<(S, SocketAddr)>>,
{
    let mut backoff = MIN_ACCEPT_BACKOFF;
    loop {
        match accept().await {
            // A dual-stack socket reports ::ffff:10.0.0.1; people and logs know 10.0.0.1.
            Ok((stream, from)) => return (stream, SocketAddr::new(from.ip().to_canonical(), from.port())),
            Err(error) if is_of_one_connection(&error) => {}
            Err(error) => {
                errors.record(Failure::Refused("accept_failed"), &"this listener", &error);
                sleep(backoff).await;
                backoff = (backoff * 2).min(MAX_ACCEPT_BACKOFF);
            }
        }
    }
}

fn is_of_one_connection(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset)
}

#[cfg(test)]
mod tests {
    use std::future::ready;
    use std::sync::atomic::{AtomicU32, Ordering};

    use tokio::time::{Instant, timeout};

    use super::*;

    /// Accepts a connection after `failures` errors that `error` makes; counts the attempts.
    async fn accept_after(failures: u32, error: fn() -> io::Error, attempts: &AtomicU32) -> SocketAddr {
        let accept = || {
            let has_failed = attempts.fetch_add(1, Ordering::Relaxed) < failures;
            ready(if has_failed { Err(error()) } else { Ok(((), "[::ffff:10.0.0.1]:1".parse().unwrap())) })
        };
        next_connection(accept, &ConnectionErrors::default()).await.1
    }

    /// EMFILE: too many open files.
    fn no_file_handles() -> io::Error {
        io::Error::from_raw_os_error(24)
    }

    #[tokio::test(start_paused = true)]
    async fn without_file_handles_accept_is_retried_about_once_a_second() {
        let attempts = AtomicU32::new(0);
        let accept = accept_after(u32::MAX, no_file_handles, &attempts);
        assert!(timeout(Duration::from_secs(60), accept).await.is_err());
        // 5 + 10 + … + 640 ms, then once a second.
        let attempts = attempts.into_inner();
        assert!((60..=70).contains(&attempts), "{attempts}");
        let began = Instant::now();
        let from = accept_after(3, no_file_handles, &AtomicU32::new(0)).await;
        assert_eq!(from.to_string(), "10.0.0.1:1");
        assert_eq!(began.elapsed(), MIN_ACCEPT_BACKOFF * 7);
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_its_peer_aborted_does_not_delay_the_next_one() {
        let began = Instant::now();
        accept_after(1000, || io::ErrorKind::ConnectionAborted.into(), &AtomicU32::new(0)).await;
        assert_eq!(began.elapsed(), Duration::ZERO);
    }
}
