//! The number of a ScaledObject's variant, read as an HPA reads it.

use std::sync::Arc;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::Request;
use http::header::{ACCEPT, AUTHORIZATION, CONNECTION};
use http::{HeaderValue, StatusCode};
use serde::Deserialize;
use tokio::sync::{Semaphore, watch};
use tokio_util::sync::CancellationToken;
use tonic::{Code, Status};
use tower::ServiceExt as _;
use wva_core::VariantId;

use super::leader_activity::LeaderActivity;
use super::messages::ScaledObjectRef;
use super::reference::{METRIC, check_names, names_model, not_yet, variant_of};
use crate::engine::{Leadership, Published};
use crate::serve::paths::EXTERNAL_NAMESPACES;
use crate::serve::ports::{PublishedReader, ScaledObjectCalls};
use crate::serve::tls::{AnswerPermit, ConnectionEnd, PeerChain, Permits};

/// No variant has this name, which no object can have.
const NO_VARIANT: &str = "NONE";
/// Why there is no number at the first call.
const FIRST_CALL: &str = "it is one from this call on, and is being read; wait a few seconds";
/// Bytes of an answer: one item, or an error.
const MAX_ANSWER_BYTES: usize = 64 << 10;

/// Reads numbers for KEDA.
pub(in crate::serve) struct Numbers {
    /// All other routes.
    pub(in crate::serve) routes: Router,
    pub(in crate::serve) reader: Arc<dyn PublishedReader>,
    pub(in crate::serve) calls: Option<Arc<dyn ScaledObjectCalls>>,
    pub(in crate::serve) published: watch::Receiver<Arc<Published>>,
    pub(in crate::serve) leadership: watch::Receiver<Leadership>,
    /// What the leader has decided, while this instance is another one and has streams.
    pub(in crate::serve) leader: watch::Sender<Option<Arc<LeaderActivity>>>,
    pub(in crate::serve) stopping: CancellationToken,
    /// For requests whose message has not arrived.
    pub(in crate::serve) waiting: Permits,
    /// For open streams.
    pub(in crate::serve) streams: Permits,
    /// For the reads of all streams, which leave the others' reads room.
    pub(in crate::serve) stream_reads: Semaphore,
}

/// Who asks.
#[derive(Clone)]
pub(super) struct Caller {
    chain: Option<PeerChain>,
    token: Option<HeaderValue>,
    closing: ConnectionEnd,
}

/// An answer of the route, as far as it is read.
#[derive(Deserialize)]
struct Answer {
    #[serde(default)]
    items: Vec<Item>,
    /// Of an error.
    #[serde(default)]
    message: String,
}

#[derive(Deserialize)]
struct Item {
    value: String,
    timestamp: String,
}

/// A number as it is answered.
pub(super) struct Number {
    pub(super) value: u32,
    /// The time of the oldest measurement that it rests on, RFC 3339.
    pub(super) evidence: String,
}

impl Caller {
    /// `None` for one without credentials.
    pub(super) fn of(request: &Request) -> Option<Self> {
        let chain: Option<PeerChain> = request.extensions().get().cloned();
        let chain = chain.filter(|chain| !chain.is_empty());
        let token = request.headers().get(AUTHORIZATION).cloned();
        let closing: ConnectionEnd = request.extensions().get().cloned()?;
        (chain.is_some() || token.is_some()).then_some(Self { chain, token, closing })
    }

    /// Waits until its connection is about to be closed.
    pub(super) async fn closed(&self) {
        self.closing.0.cancelled().await;
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closing.0.is_cancelled()
    }
}

impl Numbers {
    /// The number of the variant that a ScaledObject means.
    pub(super) async fn read(&self, caller: &Caller, scaled: &ScaledObjectRef) -> Result<Number, Status> {
        let variant = self.variant(scaled)?;
        // Who may not read learns nothing about names: the right is asked for in any case.
        let name = match &variant {
            Ok(name) => name,
            Err(_) => NO_VARIANT,
        };
        let path =
            format!("{EXTERNAL_NAMESPACES}{}/{METRIC}?labelSelector=variant_name%3D{name}", scaled.namespace);
        let request = Request::get(path).header(ACCEPT, "application/json").body(Body::empty());
        let mut request = request.map_err(|error| Status::internal(error.to_string()))?;
        if let Some(chain) = &caller.chain {
            request.extensions_mut().insert(chain.clone());
        }
        if let Some(token) = &caller.token {
            request.headers_mut().insert(AUTHORIZATION, token.clone());
        }
        let answer = self.routes.clone().oneshot(request).await.unwrap_or_else(|never| match never {});
        let status = answer.status();
        if answer.headers().contains_key(CONNECTION) {
            // Another instance may know the number.
            caller.closing.0.cancel();
        }
        let body = to_bytes(answer.into_body(), MAX_ANSWER_BYTES).await;
        let body = body.map_err(|error| Status::internal(format!("the answer cannot be read: {error}")))?;
        let answer: Answer =
            serde_json::from_slice(&body).map_err(|error| Status::internal(error.to_string()))?;
        let code = code(status);
        self.note_call(scaled, code)?;
        match variant {
            Err(error) if matches!(code, Code::Ok | Code::NotFound) => return Err(error),
            _ if code != Code::Ok => return Err(Status::new(code, answer.message)),
            _ => {}
        }
        let [Item { value, timestamp }] = answer.items.as_slice() else {
            let message = format!("{} numbers match variant {name}, and not one", answer.items.len());
            return Err(Status::failed_precondition(message));
        };
        let number = value.parse().map(|value| Number { value, evidence: timestamp.clone() });
        number.map_err(|_| {
            let message = format!(
                "the number of variant {name} is served divided ({value}) to HPAs that multiply it (--serve-value-targets): change these HPAs, or read \
                 another variant"
            );
            Status::failed_precondition(message)
        })
    }

    /// The name of the variant that a ScaledObject means, or why none is known. Fails where that can only be a mistake.
    fn variant(&self, scaled: &ScaledObjectRef) -> Result<Result<String, Status>, Status> {
        check_names(scaled)?;
        let found = match &self.calls {
            Some(calls) if names_model(scaled) => {
                // By its own name only once it is read: before that, another workload may have the name.
                match calls.verdict(&scaled.namespace, &scaled.name) {
                    Some(Ok(())) => Ok(scaled.name.clone()),
                    Some(Err(cause)) => Err(not_yet(scaled, &cause)),
                    None => Err(not_yet(scaled, FIRST_CALL)),
                }
            }
            _ => variant_of(scaled, &self.reader.view()),
        };
        match found {
            Err(error) if error.code() == Code::InvalidArgument => Err(error),
            found => Ok(found),
        }
    }

    /// The variant that a ScaledObject means, by its own name.
    pub(super) fn variant_id(&self, scaled: &ScaledObjectRef) -> Result<Result<VariantId, Status>, Status> {
        let own = |name: String| {
            let id = VariantId::new(scaled.namespace.as_str(), name);
            self.reader.view().aliased(&id).unwrap_or(id)
        };
        Ok(self.variant(scaled)?.map(own))
    }

    /// Notes a call that makes a variant, of a caller who may read: `code` is the answer to that.
    fn note_call(&self, scaled: &ScaledObjectRef, code: Code) -> Result<(), Status> {
        let Some(calls) = self.calls.as_ref().filter(|_| names_model(scaled)) else { return Ok(()) };
        let ScaledObjectRef { namespace, name, .. } = scaled;
        match code {
            Code::Ok | Code::NotFound => {
                let noted = calls.note(namespace, name);
                noted.map_err(|cause| Status::resource_exhausted(not_yet(scaled, &cause).message()))
            }
            // Who is refused keeps nothing. Where no number is known, for however long, nothing is forgotten.
            Code::Unavailable | Code::Internal => {
                calls.renew(namespace, name);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// A permit for a stream.
    pub(super) fn open_stream(&self) -> Result<AnswerPermit, Status> {
        self.streams.acquire().ok_or_else(|| busy("streams"))
    }

    /// Waits until the server is about to stop.
    pub(super) async fn stopped(&self) {
        self.stopping.cancelled().await;
    }
}

/// The code for an answer of the route.
fn code(status: StatusCode) -> Code {
    match status {
        StatusCode::OK => Code::Ok,
        StatusCode::BAD_REQUEST => Code::InvalidArgument,
        StatusCode::UNAUTHORIZED => Code::Unauthenticated,
        StatusCode::FORBIDDEN => Code::PermissionDenied,
        StatusCode::NOT_FOUND => Code::NotFound,
        StatusCode::TOO_MANY_REQUESTS => Code::ResourceExhausted,
        StatusCode::SERVICE_UNAVAILABLE | StatusCode::GATEWAY_TIMEOUT => Code::Unavailable,
        _ => Code::Internal,
    }
}

/// Whether an error stays until somebody changes a right or a name.
pub(super) fn is_denied(code: Code) -> bool {
    matches!(code, Code::Unauthenticated | Code::PermissionDenied | Code::InvalidArgument)
}

/// The error where there are too many of something.
pub(super) fn busy(what: &str) -> Status {
    Status::resource_exhausted(format!("too many {what} at once; retry later"))
}
