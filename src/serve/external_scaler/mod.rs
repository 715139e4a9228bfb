//! KEDA's external scaler: `externalscaler.ExternalScaler` over gRPC, on a port of its own. KEDA asks it for the number of a variant
//! instead of Prometheus, and is told at once when a model wakes.
//!
//! Every number is read through the route of external metrics, as by an HPA: with the caller's certificate, its authorisation, from the
//! leader, and with the same errors. So it is the same number, and what is not known is an error, for which KEDA has `fallback`.

mod activity;
mod leader_activity;
mod messages;
mod number;
mod reference;

use std::future::{Future, ready};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, Request as HttpRequest, State};
use axum::response::Response;
use axum::routing::post;
use futures::stream::{self, Stream};
use prost::Message;
use tokio::time::timeout;
use tonic::Status;
use tonic::server::Grpc;
use tonic_prost::ProstCodec;
use tower::service_fn;

use self::activity::activity;
pub(super) use self::leader_activity::{ReadLeader, follow_leader};
use self::messages::{
    GetMetricSpecResponse, GetMetricsRequest, GetMetricsResponse, IsActiveResponse, MetricSpec, MetricValue,
    ScaledObjectRef,
};
pub(super) use self::number::Numbers;
use self::number::{Caller, Number, busy, is_denied};
use self::reference::METRIC;
use super::tls::AnswerPermit;

/// Bytes of a request: the metadata of a trigger is a few lines.
const MAX_REQUEST_BYTES: usize = 64 << 10;
/// The longest wait for a request, and for its answer or the beginning of that.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Metadata of the answer to `GetMetrics`: the time of the oldest measurement that the number rests on, RFC 3339.
const EVIDENCE_TIMESTAMP: &str = "wva-evidence-timestamp";
/// Requests whose message has not arrived: anybody with a certificate can begin them.
pub(super) const MAX_WAITING: usize = 256;
/// Open streams of all connections: two for each of 10,000 ScaledObjects, one for its activity and one for its metric spec.
pub(super) const MAX_STREAMS: usize = 20_000;
/// Reads of all streams at a time.
pub(super) const MAX_STREAM_READS: usize = 32;

/// The routes of the port.
pub(super) fn router(numbers: Arc<Numbers>) -> Router {
    Router::new().route("/externalscaler.ExternalScaler/{method}", post(call)).with_state(numbers)
}

async fn call(
    State(numbers): State<Arc<Numbers>>,
    Path(method): Path<String>,
    request: HttpRequest,
) -> Response {
    let Some(caller) = Caller::of(&request) else {
        let message = "present a certificate of the cluster's client CA, by tlsClientCert and tlsClientKey of the TriggerAuthentication";
        return Status::unauthenticated(message).into_http();
    };
    let Some(waiting) = numbers.waiting.acquire() else { return busy("requests").into_http() };
    let answer = answer(numbers, &method, caller, Request { waiting, http: request });
    let timely = timeout(REQUEST_TIMEOUT, answer).await;
    timely.unwrap_or_else(|_| Status::deadline_exceeded("the request did not arrive in time").into_http())
}

/// A request, and the permit that it holds until its message has arrived.
struct Request {
    waiting: AnswerPermit,
    http: HttpRequest,
}

async fn answer(numbers: Arc<Numbers>, method: &str, caller: Caller, request: Request) -> Response {
    match method {
        "IsActive" => unary(request, |scaled| is_active(numbers.clone(), caller.clone(), scaled)).await,
        "GetMetricSpec" => {
            unary(request, |_: ScaledObjectRef| ready(Ok(tonic::Response::new(metric_spec())))).await
        }
        "GetMetrics" => unary(request, |asked| metric_values(numbers.clone(), caller.clone(), asked)).await,
        "StreamIsActive" => {
            let open = |scaled| Ok(activity(numbers.clone(), caller.clone(), scaled, numbers.open_stream()?));
            streaming(request, open).await
        }
        "StreamMetricSpec" => {
            let open =
                |scaled| Ok(metric_specs(numbers.clone(), caller.clone(), scaled, numbers.open_stream()?));
            streaming(request, open).await
        }
        _ => Status::unimplemented(format!("there is no method {method}")).into_http(),
    }
}

async fn is_active(
    numbers: Arc<Numbers>,
    caller: Caller,
    scaled: ScaledObjectRef,
) -> Result<tonic::Response<IsActiveResponse>, Status> {
    let number = numbers.read(&caller, &scaled).await?;
    Ok(tonic::Response::new(IsActiveResponse { result: number.value > 0 }))
}

/// With the age of the evidence, for which KEDA's messages have no place.
async fn metric_values(
    numbers: Arc<Numbers>,
    caller: Caller,
    asked: GetMetricsRequest,
) -> Result<tonic::Response<GetMetricsResponse>, Status> {
    let Number { value, evidence } = numbers.read(&caller, &asked.scaled_object.unwrap_or_default()).await?;
    let value = MetricValue { name: asked.name, value: value.into(), value_float: value.into() };
    let mut response = tonic::Response::new(GetMetricsResponse { values: vec![value] });
    if let Ok(evidence) = evidence.parse() {
        response.metadata_mut().insert(EVIDENCE_TIMESTAMP, evidence);
    }
    Ok(response)
}

/// The number is the number of replicas: a replica takes 1 of it.
fn metric_spec() -> GetMetricSpecResponse {
    let spec = MetricSpec { name: METRIC.to_owned(), target: 1, target_float: 1.0 };
    GetMetricSpecResponse { specs: vec![spec] }
}

/// The spec, which never changes, and then nothing until the connection is closed or the server stops.
fn metric_specs(
    numbers: Arc<Numbers>,
    caller: Caller,
    scaled: ScaledObjectRef,
    permit: AnswerPermit,
) -> impl Stream<Item = Result<GetMetricSpecResponse, Status>> {
    stream::try_unfold(
        (numbers, caller, scaled, permit, false),
        async |(numbers, caller, scaled, permit, is_sent)| {
            if is_sent {
                tokio::select! {
                    () = numbers.stopped() => {}
                    () = caller.closed() => {}
                }
                return Ok(None);
            }
            match numbers.read(&caller, &scaled).await {
                Err(error) if is_denied(error.code()) => Err(error),
                _ => Ok(Some((metric_spec(), (numbers, caller, scaled, permit, true)))),
            }
        },
    )
}

async fn unary<M, R, F>(request: Request, mut method: impl FnMut(M) -> F) -> Response
where
    M: Message + Default + 'static,
    R: Message + Default + 'static,
    F: Future<Output = Result<tonic::Response<R>, Status>>,
{
    let Request { waiting, http } = request;
    let mut waiting = Some(waiting);
    let service = service_fn(move |request: tonic::Request<M>| {
        drop(waiting.take());
        method(request.into_inner())
    });
    grpc::<R, M>().unary(service, http).await.map(Body::new)
}

async fn streaming<M, R, S>(request: Request, mut method: impl FnMut(M) -> Result<S, Status>) -> Response
where
    M: Message + Default + 'static,
    R: Message + Default + 'static,
    S: Stream<Item = Result<R, Status>> + Send + 'static,
{
    let Request { waiting, http } = request;
    let mut waiting = Some(waiting);
    let service = service_fn(move |request: tonic::Request<M>| {
        drop(waiting.take());
        ready(method(request.into_inner()).map(tonic::Response::new))
    });
    grpc::<R, M>().server_streaming(service, http).await.map(Body::new)
}

fn grpc<R, M>() -> Grpc<ProstCodec<R, M>>
where
    M: Message + Default + 'static,
    R: Message + Default + 'static,
{
    Grpc::new(ProstCodec::default()).max_decoding_message_size(MAX_REQUEST_BYTES)
}
