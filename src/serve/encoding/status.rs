//! Kubernetes `Status`: the body of every error. Clients switch on `reason` and `code`; the HPA copies `message` verbatim
//! into its condition.

use std::fmt;

use axum::response::{IntoResponse, Response};
use http::header::{CONNECTION, CONTENT_TYPE};
use http::{HeaderValue, StatusCode};
use prost::Message;
use serde::{Deserialize, Serialize};

use super::negotiation::Encoding;
use super::object::{TypedMessage, encode};
use super::protobuf::ListMeta;
use super::text::one_line;

/// Bytes of each text of an error that is received: the longest of our own messages has about 1 KiB.
const MAX_RECEIVED_BYTES: usize = 2 * 1024;

/// An error for the client.
///
/// Never carries `Retry-After`: client-go would repeat the request ten times and block an HPA worker meanwhile.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Status(Box<Content>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Content {
    reason: Reason,
    object: TypedMessage<StatusMessage>,
    /// Closes the connection, so that the client's next request may reach an instance that has an answer.
    closes_connection: bool,
}

/// `k8s.io.apimachinery.pkg.apis.meta.v1.Status`
#[derive(Clone, PartialEq, Eq, Message, Serialize)]
struct StatusMessage {
    #[prost(message, optional, tag = "1")]
    metadata: Option<ListMeta>,
    #[prost(string, tag = "2")]
    status: String,
    #[prost(string, tag = "3")]
    message: String,
    #[prost(string, tag = "4")]
    reason: String,
    #[prost(message, optional, tag = "5")]
    details: Option<Details>,
    #[prost(int32, tag = "6")]
    code: i32,
}

/// `StatusDetails`
#[derive(Clone, PartialEq, Eq, Message, Serialize, Deserialize)]
struct Details {
    #[prost(string, tag = "1")]
    #[serde(default, skip_serializing_if = "String::is_empty")]
    name: String,
    #[prost(string, tag = "2")]
    #[serde(default, skip_serializing_if = "String::is_empty")]
    group: String,
    #[prost(string, tag = "3")]
    #[serde(default, skip_serializing_if = "String::is_empty")]
    kind: String,
}

/// The reasons that this server gives, in the spelling of Kubernetes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reason {
    BadRequest,
    Unauthorized,
    Forbidden,
    NotFound,
    MethodNotAllowed,
    NotAcceptable,
    /// Only between instances. Kubernetes has no reason for it.
    NotLeader,
    Invalid,
    TooManyRequests,
    InternalError,
    ServiceUnavailable,
}

impl Reason {
    /// Those of errors that installations pass on.
    const PASSED_ON: [Self; 6] = [
        Self::BadRequest,
        Self::NotFound,
        Self::MethodNotAllowed,
        Self::Invalid,
        Self::InternalError,
        Self::ServiceUnavailable,
    ];

    const fn as_str(self) -> &'static str {
        self.name_and_code().0
    }

    /// The HTTP status that belongs to the reason.
    const fn code(self) -> StatusCode {
        self.name_and_code().1
    }

    const fn name_and_code(self) -> (&'static str, StatusCode) {
        match self {
            Self::BadRequest => ("BadRequest", StatusCode::BAD_REQUEST),
            Self::Unauthorized => ("Unauthorized", StatusCode::UNAUTHORIZED),
            Self::Forbidden => ("Forbidden", StatusCode::FORBIDDEN),
            Self::NotFound => ("NotFound", StatusCode::NOT_FOUND),
            Self::MethodNotAllowed => ("MethodNotAllowed", StatusCode::METHOD_NOT_ALLOWED),
            Self::NotAcceptable => ("NotAcceptable", StatusCode::NOT_ACCEPTABLE),
            Self::NotLeader => ("NotTheHolder", StatusCode::MISDIRECTED_REQUEST),
            Self::Invalid => ("Invalid", StatusCode::UNPROCESSABLE_ENTITY),
            Self::TooManyRequests => ("TooManyRequests", StatusCode::TOO_MANY_REQUESTS),
            Self::InternalError => ("InternalError", StatusCode::INTERNAL_SERVER_ERROR),
            Self::ServiceUnavailable => ("ServiceUnavailable", StatusCode::SERVICE_UNAVAILABLE),
        }
    }
}

impl Status {
    /// An error with its message.
    pub(crate) fn new(reason: Reason, message: impl Into<String>) -> Self {
        let message = StatusMessage {
            metadata: Some(ListMeta {}),
            status: "Failure".into(),
            message: message.into(),
            reason: reason.as_str().into(),
            details: Some(Details::default()),
            code: reason.code().as_u16().into(),
        };
        let object = TypedMessage::new("v1", "Status", message);
        Self(Box::new(Content { reason, object, closes_connection: false }))
    }

    /// The error that another installation has sent; `None` when it is none. Its text is cut to one line.
    pub(crate) fn from_json(body: &[u8]) -> Option<Self> {
        #[derive(Deserialize)]
        struct Received {
            kind: String,
            reason: String,
            message: String,
            #[serde(default)]
            details: Option<Details>,
        }
        let Received { kind, reason, message, details } = serde_json::from_slice(body).ok()?;
        let reason = Reason::PASSED_ON.into_iter().find(|known| known.as_str() == reason);
        let line = |text: &str| one_line(text, MAX_RECEIVED_BYTES);
        let mut status = Self::new(reason.filter(|_| kind == "Status")?, line(&message));
        let details = details.unwrap_or_default();
        let details = [&details.name, &details.group, &details.kind].map(|text| line(text));
        let [name, group, kind] = details;
        status.0.object.message.details = Some(Details { name, group, kind });
        Some(status)
    }

    /// Sets the object that the error is about.
    pub(crate) fn about(
        mut self,
        group: &'static str,
        kind: impl Into<String>,
        name: impl Into<String>,
    ) -> Self {
        let details = Details { name: name.into(), group: group.into(), kind: kind.into() };
        self.0.object.message.details = Some(details);
        self
    }

    /// Appends a note to the message, in brackets.
    pub(crate) fn with_note(mut self, note: &dyn fmt::Display) -> Self {
        let message = &mut self.0.object.message.message;
        *message = format!("{message} ({note})");
        self
    }

    /// Puts `prefix` and a colon before the message.
    pub(crate) fn with_prefix(mut self, prefix: &str) -> Self {
        let message = &mut self.0.object.message.message;
        *message = format!("{prefix}: {message}");
        self
    }

    /// Makes this the last answer on its connection, so that the client's next request may reach another instance.
    pub(crate) fn closing_connection(mut self) -> Self {
        self.0.closes_connection = true;
        self
    }

    #[cfg(test)]
    pub(crate) fn message(&self) -> &str {
        &self.0.object.message.message
    }

    /// The reason for programs.
    pub(crate) fn reason(&self) -> Reason {
        self.0.reason
    }

    /// The name of the object that the error is about; empty when it is about none.
    pub(crate) fn name(&self) -> &str {
        self.0.object.message.details.as_ref().map_or("", |details| &details.name)
    }

    /// The answer to a method other than GET.
    pub(crate) fn method_not_allowed() -> Self {
        Self::new(Reason::MethodNotAllowed, "the server does not allow this method on the requested resource")
    }

    /// The answer to a path that is not UTF-8 once decoded.
    pub(crate) fn invalid_path() -> Self {
        Self::new(Reason::BadRequest, "invalid request path")
    }

    /// The answer to an unknown path below a served API group.
    pub(crate) fn no_such_resource() -> Self {
        Self::new(Reason::NotFound, "the server could not find the requested resource")
    }

    /// The error in `encoding`.
    pub(crate) fn encoded(&self, encoding: Encoding) -> Response {
        // Strings and numbers always encode. If they did not, an empty body would still carry the code.
        let body = encode(encoding, &self.0.object).unwrap_or_default();
        let media_type = HeaderValue::from_static(encoding.media_type());
        (self.0.reason.code(), [(CONTENT_TYPE, media_type)], body).into_response()
    }
}

/// Answers in JSON and keeps the error in the extensions: the outermost layer encodes it again for a client that accepts
/// something else.
impl IntoResponse for Status {
    fn into_response(self) -> Response {
        let mut response = self.encoded(Encoding::Json);
        if self.0.closes_connection {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        response.extensions_mut().insert(self);
        response
    }
}

/// The answer after a bug of this server. The cause goes to the log: it is of no use to a caller.
pub(crate) fn internal_error(error: &dyn std::error::Error) -> Status {
    tracing::error!(%error, "an answer could not be built; this is a bug");
    Status::new(
        Reason::InternalError,
        "the answer could not be built: this is a bug of the server, and its log has the cause",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_reads_as_client_go_expects_it() {
        let status = Status::new(Reason::NotFound, "gone").about("external.metrics.k8s.io", "m", "");
        let text = serde_json::to_string(&status.0.object).unwrap();
        let expected =
            r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"gone","#
                .to_owned()
                + r#""reason":"NotFound","details":{"group":"external.metrics.k8s.io","kind":"m"},"code":404}"#;
        assert_eq!(text, expected);
    }
}
