//! KEDA's external scaler: `externalscaler.ExternalScaler` over gRPC, on a port of its own. KEDA asks it for the number of a variant
//! instead of Prometheus, and is told at once when a model wakes.
//!
//! Every number is read through the route of external metrics, as by an HPA: with the caller's certificate, its authorisation, from the
//! leader, and with the same errors. So it is the same number, and what is not known is an error, for which KEDA has `fallback`.

mod activity;
mod messages;
mod number;
mod reference;

use std::future::{Future, ready};
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, Request, State};
use axum::response::Response;
use axum::routing::post;
use futures::stream::{self, Stream, StreamExt as _};
use prost::Message;
use tonic::Status;
use tonic::server::Grpc;
use tonic_prost::ProstCodec;
use tower::service_fn;

use self::activity::activity;
use self::messages::{
    GetMetricSpecResponse, GetMetricsRequest, GetMetricsResponse, IsActiveResponse, MetricSpec, MetricValue,
    ScaledObjectRef,
};
pub(super) use self::number::Numbers;
use self::number::{Caller, METRIC};

/// Bytes of a request: the metadata of a trigger is a few lines.
const MAX_REQUEST_BYTES: usize = 64 << 10;

/// The routes of the port.
pub(super) fn router(numbers: Arc<Numbers>) -> Router {
    Router::new().route("/externalscaler.ExternalScaler/{method}", post(call)).with_state(numbers)
}

async fn call(State(numbers): State<Arc<Numbers>>, Path(method): Path<String>, request: Request) -> Response {
    let caller = Caller::of(&request);
    match method.as_str() {
        "IsActive" => unary(request, |scaled| is_active(numbers.clone(), caller.clone(), scaled)).await,
        "GetMetricSpec" => unary(request, |_: ScaledObjectRef| ready(Ok(metric_spec()))).await,
        "GetMetrics" => unary(request, |asked| metrics(numbers.clone(), caller.clone(), asked)).await,
        "StreamIsActive" => {
            streaming(request, |scaled| activity(numbers.clone(), caller.clone(), scaled)).await
        }
        "StreamMetricSpec" => streaming(request, |_: ScaledObjectRef| metric_specs(numbers.clone())).await,
        _ => Status::unimplemented(format!("there is no method {method}")).into_http(),
    }
}

async fn is_active(
    numbers: Arc<Numbers>,
    caller: Caller,
    scaled: ScaledObjectRef,
) -> Result<IsActiveResponse, Status> {
    Ok(IsActiveResponse { result: numbers.read(&caller, &scaled).await? > 0 })
}

async fn metrics(
    numbers: Arc<Numbers>,
    caller: Caller,
    asked: GetMetricsRequest,
) -> Result<GetMetricsResponse, Status> {
    let number = numbers.read(&caller, &asked.scaled_object.unwrap_or_default()).await?;
    let value = MetricValue { name: asked.name, value: number.into(), value_float: number.into() };
    Ok(GetMetricsResponse { values: vec![value] })
}

/// The number is the number of replicas: a replica takes 1 of it.
fn metric_spec() -> GetMetricSpecResponse {
    let spec = MetricSpec { name: METRIC.to_owned(), target: 1, target_float: 1.0 };
    GetMetricSpecResponse { specs: vec![spec] }
}

/// The spec, which never changes, and then nothing until the server stops.
fn metric_specs(numbers: Arc<Numbers>) -> impl Stream<Item = Result<GetMetricSpecResponse, Status>> {
    let end = stream::once(async move { numbers.stopped().await }).filter_map(|()| ready(None));
    stream::iter([Ok(metric_spec())]).chain(end)
}

async fn unary<M, R, F>(request: Request, mut method: impl FnMut(M) -> F) -> Response
where
    M: Message + Default + 'static,
    R: Message + Default + 'static,
    F: Future<Output = Result<R, Status>>,
{
    let service = service_fn(move |request: tonic::Request<M>| {
        let answer = method(request.into_inner());
        async move { answer.await.map(tonic::Response::new) }
    });
    grpc::<R, M>().unary(service, request).await.map(Body::new)
}

async fn streaming<M, R, S>(request: Request, mut method: impl FnMut(M) -> S) -> Response
where
    M: Message + Default + 'static,
    R: Message + Default + 'static,
    S: Stream<Item = Result<R, Status>> + Send + 'static,
{
    let service = service_fn(move |request: tonic::Request<M>| {
        ready(Ok(tonic::Response::new(method(request.into_inner()))))
    });
    grpc::<R, M>().server_streaming(service, request).await.map(Body::new)
}

fn grpc<R, M>() -> Grpc<ProstCodec<R, M>>
where
    M: Message + Default + 'static,
    R: Message + Default + 'static,
{
    Grpc::new(ProstCodec::default()).max_decoding_message_size(MAX_REQUEST_BYTES)
}
