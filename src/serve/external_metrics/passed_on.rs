//! External metrics that are neither of variants nor of rules: the fallback server answers, if there is one. Its values are passed on as it
//! writes them, in the representation that the client accepts; its errors and those of reaching it name it.

use std::collections::BTreeMap;

use axum::response::Response;
use http::StatusCode;
use http::request::Parts;
use jiff::Timestamp;
use serde::Deserialize;

use super::by_rule::{Item, ValueList};
use super::errors::unreadable;
use crate::serve::data_read::FallbackReads;
use crate::serve::encoding::negotiation::Representation;
use crate::serve::encoding::response::respond;
use crate::serve::encoding::{Reason, Status, one_line};
use crate::serve::middleware::AuditId;
use crate::serve::paths::{EXTERNAL_NAMESPACES, PASSED_ON, is_segment};
use crate::serve::ports::{FallbackAnswer, FallbackError};

/// Bytes of a text of the fallback server in a message.
const MAX_TEXT_BYTES: usize = 512;

/// Bytes of a quantity; the longest that Kubernetes writes has about 30.
const MAX_QUANTITY_BYTES: usize = 64;

/// A read of an external metric that is not served here.
#[derive(Clone, Copy)]
pub(super) struct PassedOn<'a> {
    pub(super) namespace: &'a str,
    pub(super) metric: &'a str,
    pub(super) representation: Representation,
    pub(super) now: Timestamp,
}

/// `ExternalMetricValueList`
#[derive(Deserialize)]
struct ReceivedList {
    kind: String,
    items: Option<Vec<ReceivedValue>>,
}

/// `ExternalMetricValue`
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ReceivedValue {
    metric_name: String,
    #[serde(default)]
    metric_labels: Option<BTreeMap<String, String>>,
    #[serde(default)]
    timestamp: Option<Timestamp>,
    #[serde(default)]
    window: Option<i64>,
    value: String,
}

/// What is read of a `Status`.
#[derive(Deserialize)]
struct ReceivedStatus {
    #[serde(default)]
    message: String,
}

impl PassedOn<'_> {
    pub(super) async fn answer(
        self,
        reads: &FallbackReads,
        request: &Parts,
        audit: &AuditId,
    ) -> Result<Response, Status> {
        let service = reads.server.service();
        if request.headers.contains_key(PASSED_ON) {
            let cause = format!(
                "it was passed on to this server, which would pass it on to Service {service}: two servers have each other as \
                 --fallback-apiservice; remove it from one of them"
            );
            return Err(self.error(Reason::InternalError, &cause));
        }
        let Some(_permits) = reads.permits.acquire(self.namespace) else {
            let cause = format!(
                "too many reads of this namespace, or of all, wait for Service {service}; retry later"
            );
            return Err(self.error(Reason::TooManyRequests, &cause));
        };
        let Self { namespace, metric, .. } = self;
        // What was authorised, and nothing that the other server could decode to something else.
        if !is_segment(namespace) || !is_segment(metric) {
            return Err(self.error(Reason::NotFound, "no metric or namespace can have this name"));
        }
        let query = request.uri.query().map(|query| format!("?{query}")).unwrap_or_default();
        let path = format!("{EXTERNAL_NAMESPACES}{namespace}/{metric}{query}");
        match reads.server.get(&path, audit.header()).await {
            Ok(FallbackAnswer { status: StatusCode::OK, body }) => self.respond(service, &body),
            Ok(FallbackAnswer { status, body }) => Err(self.passed_error(service, status, &body)),
            Err(FallbackError(cause)) => Err(self.error(Reason::ServiceUnavailable, &cause)),
        }
    }

    fn respond(self, service: &str, body: &[u8]) -> Result<Response, Status> {
        let wrong = |problem: &str| {
            let problem = one_line(problem, MAX_TEXT_BYTES);
            let cause = format!("the answer of Service {service} is no ExternalMetricValueList: {problem}");
            self.error(Reason::InternalError, &cause)
        };
        let received: ReceivedList =
            serde_json::from_slice(body).map_err(|error| wrong(&error.to_string()))?;
        if received.kind != "ExternalMetricValueList" {
            return Err(wrong(&format!("its kind is {:?}", received.kind)));
        }
        let items = received.items.unwrap_or_default();
        if let Some(item) = items.iter().find(|item| !is_quantity(&item.value)) {
            return Err(wrong(&format!("{:?} is no quantity", item.value)));
        }
        let none = BTreeMap::new();
        let items = items.iter().map(|item| {
            let ReceivedValue { metric_name, metric_labels, timestamp, window, value } = item;
            Item {
                metric_name: metric_name.as_str(),
                metric_labels: metric_labels.as_ref().unwrap_or(&none),
                timestamp: *timestamp,
                window_seconds: *window,
                value: value.as_str(),
            }
        });
        respond(self.representation, &ValueList::new(items.collect(), self.namespace, self.now))
    }

    /// An error that the fallback server has answered. Its code stays, as far as it says what to do.
    fn passed_error(self, service: &str, status: StatusCode, body: &[u8]) -> Status {
        let reason = match status {
            StatusCode::BAD_REQUEST => Reason::BadRequest,
            StatusCode::NOT_FOUND => Reason::NotFound,
            StatusCode::METHOD_NOT_ALLOWED => Reason::MethodNotAllowed,
            StatusCode::UNPROCESSABLE_ENTITY => Reason::Invalid,
            StatusCode::TOO_MANY_REQUESTS => Reason::TooManyRequests,
            StatusCode::SERVICE_UNAVAILABLE | StatusCode::GATEWAY_TIMEOUT => Reason::ServiceUnavailable,
            _ => Reason::InternalError,
        };
        let message = serde_json::from_slice(body).map(|ReceivedStatus { message }| message);
        let message = message.ok().filter(|message| !message.is_empty());
        let message = one_line(message.as_deref().unwrap_or("it says no more"), MAX_TEXT_BYTES);
        let code = status.as_u16();
        let cause = format!(
            "it is no metric of this server, and Service {service}, which is asked for those, answered {code}: {message}"
        );
        self.error(reason, &cause)
    }

    fn error(self, reason: Reason, cause: &str) -> Status {
        unreadable(self.metric, self.namespace, reason, cause)
    }
}

/// Whether a text may be a quantity: what it says is the client's to judge.
fn is_quantity(text: &str) -> bool {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b".+-".contains(&byte);
    !text.is_empty() && text.len() <= MAX_QUANTITY_BYTES && text.bytes().all(is_part)
}
