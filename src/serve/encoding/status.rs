//! Kubernetes `Status` errors: what every refusal looks like on the wire. Clients switch on `reason` and `code`; the
//! HPA copies `message` word for word into its condition. Knows nothing of variants.

use std::fmt;

use axum::response::{IntoResponse, Response};
use http::header::{CONNECTION, CONTENT_TYPE};
use http::{HeaderValue, StatusCode};
use serde::Serialize;

use super::accept::Encoding;
use super::represent::protobuf::{ListMeta, fields, status as wire};
use super::represent::{self, Show};

/// The media type of every JSON answer.
pub(crate) const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// A refusal with its cause.
///
/// Never carries `Retry-After`: client-go would repeat the request ten times and block an HPA worker meanwhile.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Status(Box<Content>);

/// The fields, in the order of the wire.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Content {
    kind: &'static str,
    #[serde(rename = "apiVersion")]
    api_version: &'static str,
    metadata: Empty,
    status: &'static str,
    message: String,
    reason: Reason,
    details: Details,
    code: u16,
    /// The peer is asked to leave: its next request may reach an instance that has an answer.
    #[serde(skip)]
    closes: bool,
}

/// The reasons that this server gives, spelled as Kubernetes spells them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// 400.
    BadRequest,
    /// 401.
    Unauthorized,
    /// 403.
    Forbidden,
    /// 404.
    NotFound,
    /// 405.
    MethodNotAllowed,
    /// 406.
    NotAcceptable,
    /// 421: only between instances. Not a reason of Kubernetes', which has none for it.
    NotTheHolder,
    /// 422.
    Invalid,
    /// 429.
    TooManyRequests,
    /// 500.
    InternalError,
    /// 503.
    ServiceUnavailable,
}

impl Serialize for Reason {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl Reason {
    /// As programs compare it.
    const fn as_str(self) -> &'static str {
        match self {
            Self::BadRequest => "BadRequest",
            Self::Unauthorized => "Unauthorized",
            Self::Forbidden => "Forbidden",
            Self::NotFound => "NotFound",
            Self::MethodNotAllowed => "MethodNotAllowed",
            Self::NotAcceptable => "NotAcceptable",
            Self::NotTheHolder => "NotTheHolder",
            Self::Invalid => "Invalid",
            Self::TooManyRequests => "TooManyRequests",
            Self::InternalError => "InternalError",
            Self::ServiceUnavailable => "ServiceUnavailable",
        }
    }

    /// The HTTP status that belongs to the reason.
    #[must_use]
    pub const fn code(self) -> StatusCode {
        match self {
            Self::BadRequest => StatusCode::BAD_REQUEST,
            Self::Unauthorized => StatusCode::UNAUTHORIZED,
            Self::Forbidden => StatusCode::FORBIDDEN,
            Self::NotFound => StatusCode::NOT_FOUND,
            Self::MethodNotAllowed => StatusCode::METHOD_NOT_ALLOWED,
            Self::NotAcceptable => StatusCode::NOT_ACCEPTABLE,
            Self::NotTheHolder => StatusCode::MISDIRECTED_REQUEST,
            Self::Invalid => StatusCode::UNPROCESSABLE_ENTITY,
            Self::TooManyRequests => StatusCode::TOO_MANY_REQUESTS,
            Self::InternalError => StatusCode::INTERNAL_SERVER_ERROR,
            Self::ServiceUnavailable => StatusCode::SERVICE_UNAVAILABLE,
        }
    }
}

/// An empty object.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Empty {}

/// What the refusal is about.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
struct Details {
    #[serde(skip_serializing_if = "String::is_empty")]
    name: String,
    #[serde(skip_serializing_if = "str::is_empty")]
    group: &'static str,
    #[serde(skip_serializing_if = "String::is_empty")]
    kind: String,
}

impl Status {
    /// A refusal for `reason`.
    #[must_use]
    pub fn new(reason: Reason, message: impl Into<String>) -> Self {
        Self(Box::new(Content {
            kind: "Status",
            api_version: "v1",
            metadata: Empty {},
            status: "Failure",
            message: message.into(),
            reason,
            details: Details::default(),
            code: reason.code().as_u16(),
            closes: false,
        }))
    }

    /// Says which object the refusal is about.
    #[must_use]
    pub fn about(mut self, group: &'static str, kind: impl Into<String>, name: impl Into<String>) -> Self {
        self.0.details = Details { name: name.into(), group, kind: kind.into() };
        self
    }

    /// Adds a circumstance to the message.
    #[must_use]
    pub fn with_note(mut self, note: &dyn fmt::Display) -> Self {
        self.0.message = format!("{} ({note})", self.0.message);
        self
    }

    /// Puts what the refusal is about before its message.
    #[must_use]
    pub fn with_beginning(mut self, beginning: &str) -> Self {
        self.0.message = format!("{beginning}: {}", self.0.message);
        self
    }

    /// The same, as the last answer on its connection: another instance may have what this one refuses.
    #[must_use]
    pub fn closing(mut self) -> Self {
        self.0.closes = true;
        self
    }

    /// The text for people.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// The reason for programs.
    #[must_use]
    pub fn reason(&self) -> Reason {
        self.0.reason
    }

    /// The answer to a method other than GET.
    #[must_use]
    pub fn method_not_allowed() -> Self {
        Self::new(Reason::MethodNotAllowed, "the server does not allow this method on the requested resource")
    }

    /// The answer to a path that is no text when it is decoded.
    #[must_use]
    pub fn invalid_path() -> Self {
        Self::new(Reason::BadRequest, "invalid request path")
    }

    /// The answer below a group that this server serves, where nothing is.
    #[must_use]
    pub fn no_such_resource() -> Self {
        Self::new(Reason::NotFound, "the server could not find the requested resource")
    }
}

impl Show for Status {
    fn type_meta(&self) -> (&'static str, &'static str) {
        (self.0.api_version, self.0.kind)
    }

    fn protobuf(&self, to: &mut Vec<u8>) {
        let Content { status, message, reason, details, code, .. } = &*self.0;
        let Details { name, group, kind } = details;
        let details = wire::Details { name: name.clone(), group: (*group).to_owned(), kind: kind.clone() };
        let status = wire::Status {
            metadata: Some(ListMeta {}),
            status: (*status).to_owned(),
            message: message.clone(),
            reason: reason.as_str().to_owned(),
            details: Some(details),
            code: i32::from(*code),
        };
        fields(&status, to);
    }
}

impl Status {
    /// The refusal in `encoding`.
    pub(crate) fn encoded(&self, encoding: Encoding) -> Response {
        // Plain strings and numbers: writing them cannot fail, and an empty body would still carry the code.
        let body = represent::encoded(encoding, self).unwrap_or_default();
        let media = HeaderValue::from_static(encoding.media());
        (self.0.reason.code(), [(CONTENT_TYPE, media)], body).into_response()
    }
}

/// JSON, and the refusal itself beside it: the outermost layer writes it anew for a client that takes something else.
impl IntoResponse for Status {
    fn into_response(self) -> Response {
        let mut response = self.encoded(Encoding::Json);
        if self.0.closes {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        response.extensions_mut().insert(self);
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_reads_as_client_go_expects_it() {
        let status = Status::new(Reason::NotFound, "gone").about("external.metrics.k8s.io", "m", "");
        let text = serde_json::to_string(&status).unwrap();
        let want = r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"gone","#
            .to_owned()
            + r#""reason":"NotFound","details":{"group":"external.metrics.k8s.io","kind":"m"},"code":404}"#;
        assert_eq!(text, want);
    }
}
