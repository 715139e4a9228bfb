//! A listener that goes on: what fails for one connection is passed over, what fails for all is waited out.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::time::sleep;

use super::ledger::{Ledger, Loss};

/// The wait after a failed accept (no file handles, mostly), doubled up to the second value.
const BACK_OFF: Duration = Duration::from_millis(5);
const BACK_OFF_MOST: Duration = Duration::from_secs(1);

/// Where connections come from.
pub(crate) trait Listens {
    /// What a connection is made of.
    type Stream;

    /// The next connection.
    fn accept(&self) -> impl Future<Output = io::Result<(Self::Stream, SocketAddr)>> + Send;
}

impl Listens for TcpListener {
    type Stream = TcpStream;

    async fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        Self::accept(self).await
    }
}

/// The next connection, however long it takes.
pub(crate) async fn next<L: Listens>(listener: &L, ledger: &Ledger) -> (L::Stream, SocketAddr) {
    let mut back_off = BACK_OFF;
    loop {
        match listener.accept().await {
            // A dual-stack socket says ::ffff:10.0.0.1; people and logs know 10.0.0.1.
            Ok((stream, from)) => return (stream, SocketAddr::new(from.ip().to_canonical(), from.port())),
            Err(error) if is_of_one_connection(&error) => {}
            Err(error) => {
                ledger.note(Loss::Refused("accept_failed"), &"this listener", &error);
                sleep(back_off).await;
                back_off = (back_off * 2).min(BACK_OFF_MOST);
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

    /// Fails so many times, in this way, and then has a connection.
    struct Failing {
        times: u32,
        with: fn() -> io::Error,
        asked: AtomicU32,
    }

    impl Listens for Failing {
        type Stream = ();

        async fn accept(&self) -> io::Result<((), SocketAddr)> {
            if self.asked.fetch_add(1, Ordering::Relaxed) < self.times {
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
    async fn without_file_handles_it_tries_about_once_a_second_and_goes_on_when_there_are_some() {
        let failing = Failing { times: u32::MAX, with: no_file_handles, asked: AtomicU32::new(0) };
        let ledger = Ledger::default();
        assert!(timeout(Duration::from_secs(60), next(&failing, &ledger)).await.is_err());
        // 5 + 10 + … + 640 ms, then once a second.
        let tries = failing.asked.load(Ordering::Relaxed);
        assert!((60..=70).contains(&tries), "{tries}");
        let mended = Failing { times: 3, with: no_file_handles, asked: AtomicU32::new(0) };
        let began = Instant::now();
        let ((), from) = next(&mended, &ledger).await;
        assert_eq!(from.to_string(), "10.0.0.1:1");
        assert_eq!(began.elapsed(), BACK_OFF * 7);
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_its_peer_took_back_costs_the_next_one_no_wait() {
        let reset = || io::ErrorKind::ConnectionAborted.into();
        let began = Instant::now();
        let failing = Failing { times: 1000, with: reset, asked: AtomicU32::new(0) };
        next(&failing, &Ledger::default()).await;
        assert_eq!(began.elapsed(), Duration::ZERO);
    }
}
