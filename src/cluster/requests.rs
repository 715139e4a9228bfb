//! Requests to the API server: bounded in time, with errors that fit one line and are logged once.

use std::time::Duration;

use tokio::time::timeout;

/// Longest wait for one answer of the API server.
pub(crate) const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// The field manager of statuses and pod annotations, and the controller that events name.
pub(crate) const FIELD_MANAGER: &str = "wva";
/// Label of every object that is created here.
pub(crate) const MANAGED_BY: (&str, &str) = ("app.kubernetes.io/managed-by", "wva");

/// A request that was not answered, or refused.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// No answer in time.
    #[error("the API server did not answer within {} s", .0.as_secs())]
    Timeout(Duration),
    /// The API server refused the request or cannot be reached.
    #[error("{}", error_text(.0))]
    Api(Box<kube::Error>),
}

impl RequestError {
    /// The HTTP status, if the API server answered with one.
    pub(crate) fn code(&self) -> Option<u16> {
        match self {
            Self::Api(error) => match &**error {
                kube::Error::Api(status) => Some(status.code),
                _ => None,
            },
            Self::Timeout(_) => None,
        }
    }

    /// True when the object changed since it was read, or exists already.
    pub(crate) fn is_conflict(&self) -> bool {
        self.code() == Some(409)
    }

    /// True when there is no such object.
    pub(crate) fn is_not_found(&self) -> bool {
        self.code() == Some(404)
    }

    /// The error, and what to check when the API server refused the request.
    pub(crate) fn with_hint(&self, hint: &str) -> String {
        match self {
            Self::Timeout(_) => self.to_string(),
            Self::Api(_) => format!("{self}; {hint}"),
        }
    }
}

/// Waits for `request`, at most [`REQUEST_TIMEOUT`].
pub(crate) fn bounded<T>(
    request: impl Future<Output = kube::Result<T>>,
) -> impl Future<Output = Result<T, RequestError>> {
    bounded_by(REQUEST_TIMEOUT, request)
}

/// Waits for `request`, at most `limit`.
pub(crate) async fn bounded_by<T>(
    limit: Duration,
    request: impl Future<Output = kube::Result<T>>,
) -> Result<T, RequestError> {
    let answer = timeout(limit, request).await.map_err(|_| RequestError::Timeout(limit))?;
    answer.map_err(|error| RequestError::Api(Box::new(error)))
}

/// The message of a Status with its code, or why there is no answer. The client's own text spans several lines.
pub(crate) fn error_text(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => format!("{} ({})", status.message.trim_end(), status.code),
        other => other.to_string(),
    }
}

/// The error that was logged last, so that one that lasts is logged once.
#[derive(Default)]
pub(crate) struct LogOnce(Option<String>);

impl LogOnce {
    /// True when `text` was not the last error; it is from now on.
    pub(crate) fn is_new(&mut self, text: &str) -> bool {
        let is_new = self.0.as_deref() != Some(text);
        if is_new {
            self.0 = Some(text.to_owned());
        }
        is_new
    }

    /// True when there was an error; from now on there is none.
    pub(crate) fn clear(&mut self) -> bool {
        self.0.take().is_some()
    }
}
