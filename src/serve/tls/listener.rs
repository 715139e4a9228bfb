//! Accepts connections for ever: errors of a single connection are skipped, errors of the listener are retried with back-off.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::time::sleep;

use super::connection_errors::{ConnectionErrors, Failure};

/// The first wait after a failed accept, which mostly means that there are no file handles; doubled up to
/// [`MAX_ACCEPT_BACKOFF`].
const ACCEPT_BACKOFF: Duration = Duration::from_millis(5);
const MAX_ACCEPT_BACKOFF: Duration = Duration::from_secs(1);

/// A source of connections.
pub(crate) trait Listener {
    type Stream;

    /// The next connection.
    fn accept(&self) -> impl Future<Output = io::Result<(Self::Stream, SocketAddr)>> + Send;
}

impl Listener for TcpListener {
    type Stream = TcpStream;

    async fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        Self::accept(self).await
    }
}

/// The next connection, however long it takes.
pub(crate) async fn accept<L: Listener>(listener: &L, errors: &ConnectionErrors) -> (L::Stream, SocketAddr) {
    let mut backoff = ACCEPT_BACKOFF;
    loop {
        match listener.accept().await {
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
    use std::sync::atomic::{AtomicU32, Ordering};

    use tokio::time::{Instant, timeout};

    use super::*;

    /// Fails `times` times with the error that `with` makes, then returns a connection.
    struct Failing {
        times: u32,
        with: fn() -> io::Error,
        calls: AtomicU32,
    }

    impl Listener for Failing {
        type Stream = ();

        async fn accept(&self) -> io::Result<((), SocketAddr)> {
            if self.calls.fetch_add(1, Ordering::Relaxed) < self.times {
                return Err((self.with)());
            }
            Ok(((), "[::ffff:10.0.0.1]:1".parse().unwrap()))
        }
    }

    /// EMFILE: too many open files.
    fn no_file_handles() -> io::Error {
        io::Error::from_raw_os_error(24)
    }

    #[tokio::test(start_paused = true)]
    async fn without_file_handles_accept_is_retried_about_once_a_second() {
        let failing = Failing { times: u32::MAX, with: no_file_handles, calls: AtomicU32::new(0) };
        let errors = ConnectionErrors::default();
        assert!(timeout(Duration::from_secs(60), accept(&failing, &errors)).await.is_err());
        // 5 + 10 + … + 640 ms, then once a second.
        let tries = failing.calls.load(Ordering::Relaxed);
        assert!((60..=70).contains(&tries), "{tries}");
        let recovering = Failing { times: 3, with: no_file_handles, calls: AtomicU32::new(0) };
        let began = Instant::now();
        let ((), from) = accept(&recovering, &errors).await;
        assert_eq!(from.to_string(), "10.0.0.1:1");
        assert_eq!(began.elapsed(), ACCEPT_BACKOFF * 7);
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_its_peer_aborted_does_not_delay_the_next_one() {
        let reset = || io::ErrorKind::ConnectionAborted.into();
        let began = Instant::now();
        let failing = Failing { times: 1000, with: reset, calls: AtomicU32::new(0) };
        accept(&failing, &ConnectionErrors::default()).await;
        assert_eq!(began.elapsed(), Duration::ZERO);
    }
}
