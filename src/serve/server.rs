//! The listening server: binds, serves, drains.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::router::router;
use super::state::AppState;
use super::tls::{CertificateError, accept};

/// A server that cannot start.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The address cannot be bound.
    #[error("cannot listen on {address}: {source}; check --bind-address and --secure-port")]
    Bind {
        /// Where.
        address: SocketAddr,
        /// The cause.
        source: io::Error,
    },
    /// The certificate given by flags cannot be used.
    #[error(transparent)]
    Certificate(#[from] CertificateError),
}

/// A bound server that does not accept yet.
pub struct Server {
    listener: TcpListener,
    address: SocketAddr,
    state: AppState,
}

impl Server {
    /// Binds `address`, and reads the certificates that are there already.
    ///
    /// # Errors
    /// When the address cannot be bound, or certificate files that flags name cannot be used.
    pub async fn bind(address: SocketAddr, state: AppState) -> Result<Self, ServeError> {
        let failed = |source| ServeError::Bind { address, source };
        let listener = TcpListener::bind(address).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        state.load_certificates().await?;
        Ok(Self { listener, address, state })
    }

    /// Where it listens, the port chosen by the system included.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until `shutdown`; then closes the door, lets requests finish for at most `drain`, and cuts the rest.
    pub async fn serve(self, shutdown: CancellationToken, drain: Duration) {
        let Self { listener, state, .. } = self;
        let certificates = state.certificates().clone();
        let stopping = state.stopping().clone();
        let announce = async {
            shutdown.cancelled().await;
            stopping.cancel();
        };
        let accepting = accept::serve(listener, certificates, router(state.clone()), shutdown.clone(), drain);
        tokio::select! {
            ((), ()) = async { tokio::join!(accepting, announce) } => {}
            () = state.follow() => {}
        }
    }
}
