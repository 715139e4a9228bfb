//! `custom.metrics.k8s.io`, both versions: the same numbers as `external_metrics`, as metrics of the objects that they are
//! decided for. For HPAs of type Object, where another program owns the external metrics.

mod answer;
mod label_selector;
mod resource;
mod show;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request};
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, Uri};

use self::answer::{Asked, answer, selection};
use self::label_selector::LabelSelector;
use self::resource::Resource;
pub(crate) use self::resource::{ObjectPath, Version};
use super::accept::Representation;
pub(crate) use super::discovery::CUSTOM_GROUP as GROUP;
use super::external_metrics::Question;
use super::external_metrics::query::{self, Options};
use super::external_metrics::selector::Selector;
use super::observe::AuditId;
use super::state::AppState;
use super::status::{Reason, Status};
use super::{reading, represent};
use crate::engine::Published;

/// Where every path of the group begins.
pub(crate) const PREFIX: &str = "/apis/custom.metrics.k8s.io/";

/// What is served behind [`PREFIX`]: one metric of one object, or of all that a selector matches.
pub(crate) const PATTERN: &str = "{version}/namespaces/{namespace}/{resource}/{name}/{metric}";

/// The longest part of a path that is told back.
const MAX_PART: usize = 253;

/// `GET /apis/custom.metrics.k8s.io/{version}/namespaces/{namespace}/{resource}/{name}/{metric}`
pub(crate) async fn get(
    state: &AppState,
    path: &ObjectPath,
    audit: &AuditId,
    request: Request,
) -> Result<Response, Status> {
    let read = Read::of(request.headers(), request.uri(), path)?;
    reading::answer(state, request.uri(), request.headers(), audit, &read).await
}

/// A read that can be answered.
pub(crate) struct Read<'a> {
    representation: Representation,
    path: &'a ObjectPath,
    version: Version,
    resource: Resource,
    /// Which objects, when all are asked for.
    objects: Options,
    /// Which series of them.
    series: Selector,
    /// The same, to be told back; `None` when none was given, or one that cannot be.
    echo: Option<LabelSelector>,
}

impl<'a> Read<'a> {
    /// Understands a request, or says why not.
    pub(crate) fn of(headers: &HeaderMap, uri: &Uri, path: &'a ObjectPath) -> Result<Self, Status> {
        let representation = represent::asked(headers)?;
        let version = Version::named(&path.version).ok_or_else(Status::no_such_resource)?;
        let objects = query::options(GROUP, uri)?;
        let series = query::series_selector(uri)?;
        let resource = Resource::named(&path.resource)
            .ok_or_else(|| not_served(&path.metric, &path.resource, &path.name))?;
        let echo = Some(&series).filter(|series| !series.is_empty()).and_then(LabelSelector::of);
        Ok(Self { representation, path, version, resource, objects, series, echo })
    }
}

impl reading::Read for Read<'_> {
    fn render(&self, state: &AppState, published: &Published) -> Result<Response, Status> {
        let (view, beginning) = (state.view(), state.beginning());
        let asked = Asked {
            path: self.path,
            version: self.version,
            resource: self.resource,
            objects: &self.objects.labels,
            fields: &self.objects.fields,
            series: &self.series,
            echo: self.echo.as_ref(),
        };
        let now = state.now();
        let selector = selection(&view, &beginning, now, &asked)?;
        let question = Question {
            group: GROUP,
            namespace: &self.path.namespace,
            metric: &self.path.metric,
            selector: &selector,
            controller_instance: state.controller_instance(),
            now,
            max_stale: state.max_stale(),
            beginning: &beginning,
            view: &|| view.clone(),
        };
        let list = answer(published, &view, &question, &asked)?;
        let response = represent::show(self.representation, &list)?;
        state.freshness().observe(GROUP, list.ages());
        Ok(response)
    }
}

/// Everything else below a version: a path that is too short, or of objects that have no metrics here.
pub(crate) async fn elsewhere(path: Result<Path<(String, String)>, PathRejection>) -> Response {
    let Ok(Path((version, rest))) = path else { return Status::invalid_path().into_response() };
    let parts: Vec<_> = rest.split('/').collect();
    let known = Version::named(&version).is_some() && parts.iter().all(|part| part.len() <= MAX_PART);
    let refusal = match parts[..] {
        ["namespaces", namespace, "metrics", metric] if known => not_served(metric, "namespaces", namespace),
        ["namespaces", _, _] | ["namespaces", _, _, _] if known => {
            let message = format!("invalid request path: what is served is {PREFIX}{PATTERN}");
            Status::new(Reason::BadRequest, message)
        }
        [resource, name, metric] if known => not_served(metric, resource, name),
        _ => Status::no_such_resource(),
    };
    refusal.into_response()
}

/// The refusal of a metric of an object that has none here.
fn not_served(metric: &str, resource: &str, name: &str) -> Status {
    let message = format!(
        "{}: metrics are served of {}, in their namespaces",
        could_not_find(metric, resource, name),
        Resource::SERVED
    );
    Status::new(Reason::NotFound, message).about(GROUP, metric, name)
}

/// How every 404 for a metric begins.
fn could_not_find(metric: &str, resource: &str, name: &str) -> String {
    format!("the server could not find the metric {metric} for {resource} {name}")
}
