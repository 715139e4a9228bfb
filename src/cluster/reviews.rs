//! Access reviews: whether a caller may do something (SubjectAccessReview), and who it is (TokenReview). `serve` caches and
//! applies the answers, and bounds the time of a review.

use std::time::Duration;

use http::header::CONTENT_TYPE;
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Limited};
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, UserInfo};
use k8s_openapi::api::authorization::v1::{SubjectAccessReview, SubjectAccessReviewSpec};
use kube::client::Body;
use kube::core::Status;
use tokio::time::sleep;

/// The wait before a request that an overloaded API server rejected (429) is repeated: its own `Retry-After`.
const OVERLOAD_BACKOFF: Duration = Duration::from_secs(1);
/// Attempts in all: they fit into the 5 s after which `serve` gives a review up.
const MAX_ATTEMPTS: u32 = 3;

/// Largest answer that is read: a user in ten thousand groups.
const MAX_ANSWER_BYTES: usize = 1024 * 1024;

/// Why a request could not be sent.
type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The answer to a SubjectAccessReview.
#[derive(Debug)]
pub(crate) struct AccessDecision {
    pub(crate) allowed: bool,
    /// Why, for people.
    pub(crate) reason: Option<String>,
}

/// A review without an answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReviewError {
    /// The API server cannot be reached, or its answer cannot be parsed.
    #[error("{review} failed: {cause}")]
    Failed { review: &'static str, cause: String },
    /// The API server rejected the review itself.
    #[error(
        "{review} failed: {message} ({code}); check that the service account is bound to ClusterRole \
         system:auth-delegator"
    )]
    Refused { review: &'static str, code: u16, message: String },
}

impl ReviewError {
    /// True when a working API server rejected the review, false when it could not answer.
    pub(crate) fn is_rejection(&self) -> bool {
        matches!(self, Self::Refused { code, .. } if *code < 500)
    }

    /// Without `secret`, which the API server or a proxy may have repeated.
    fn without(mut self, secret: &str) -> Self {
        match &mut self {
            Self::Failed { cause: text, .. } | Self::Refused { message: text, .. } if !secret.is_empty() => {
                *text = text.replace(secret, "…");
            }
            _ => {}
        }
        self
    }
}

/// Reviews whether the caller in `spec` has the access in it.
///
/// # Errors
/// When the API server does not answer.
pub(crate) async fn check_access(
    client: &kube::Client,
    spec: SubjectAccessReviewSpec,
) -> Result<AccessDecision, ReviewError> {
    let review = SubjectAccessReview { spec, ..SubjectAccessReview::default() };
    let status = create("SubjectAccessReview", client, &review).await?.status.unwrap_or_default();
    let reason = status.reason.or(status.evaluation_error).filter(|reason| !reason.is_empty());
    Ok(AccessDecision { allowed: status.allowed && status.denied != Some(true), reason })
}

/// The user with `token`, who has a name; `None` when it is invalid.
///
/// # Errors
/// When the API server does not answer. Never contains the token.
pub(crate) async fn review_token(
    client: &kube::Client,
    token: &str,
) -> Result<Option<UserInfo>, ReviewError> {
    let spec = TokenReviewSpec { token: Some(token.to_owned()), audiences: None };
    let review = TokenReview { spec, ..TokenReview::default() };
    let answer = create("TokenReview", client, &review).await.map_err(|error| error.without(token))?;
    let status = answer.status.unwrap_or_default();
    let user = status.user.filter(|_| status.authenticated == Some(true));
    Ok(user.filter(|user| user.username.as_ref().is_some_and(|name| !name.is_empty())))
}

/// Creates a review; `kind` is for errors. An API server that is overloaded (429) gets [`MAX_ATTEMPTS`] requests in all.
async fn create<K>(kind: &'static str, client: &kube::Client, review: &K) -> Result<K, ReviewError>
where
    K: kube::Resource<DynamicType = ()> + serde::Serialize + serde::de::DeserializeOwned,
{
    let failed = |cause: BoxError| ReviewError::Failed { review: kind, cause: cause.to_string() };
    let mut attempt = 1;
    let (code, body) = loop {
        let answer = post(client, review).await.map_err(failed)?;
        if answer.0 != StatusCode::TOO_MANY_REQUESTS || attempt == MAX_ATTEMPTS {
            break answer;
        }
        attempt += 1;
        sleep(OVERLOAD_BACKOFF).await;
    };
    if (200..300).contains(&code) {
        return serde_json::from_slice(&body)
            .map_err(|cause| failed(format!("unreadable answer: {cause}").into()));
    }
    if code == StatusCode::TOO_MANY_REQUESTS {
        return Err(failed(
            format!("the API server is overloaded: it answered 429 {MAX_ATTEMPTS} times").into(),
        ));
    }
    let status = serde_json::from_slice(&body).map(|status: Status| status.message);
    let message = status.unwrap_or_else(|_| "the answer is not a Status".into());
    Err(ReviewError::Refused { review: kind, code, message: message.trim_end().into() })
}

/// The HTTP status and the body. Without `Api`, which logs answers that it cannot parse: that of a TokenReview repeats the
/// token.
async fn post<K>(client: &kube::Client, review: &K) -> Result<(u16, Vec<u8>), BoxError>
where
    K: kube::Resource<DynamicType = ()> + serde::Serialize,
{
    let request = Request::post(K::url_path(&(), None)).header(CONTENT_TYPE, "application/json");
    let answer = client.send(request.body(Body::from(serde_json::to_vec(review)?))?).await?;
    let code = answer.status().as_u16();
    Ok((code, Limited::new(answer.into_body(), MAX_ANSWER_BYTES).collect().await?.to_bytes().to_vec()))
}

#[cfg(test)]
mod tests {
    use http::Response;
    use serde_json::json;
    use tokio::time::Instant;

    use super::*;

    /// The answer of an API server that rejects the first `overloaded` requests with 429, and how long it took.
    async fn decision(overloaded: u32) -> (Result<AccessDecision, ReviewError>, Duration) {
        let (service, mut handle) = tower_test::mock::pair::<Request<Body>, Response<Body>>();
        let client = kube::Client::new(service, "default");
        let answering = async {
            let mut count = 0;
            while let Some((_, answer)) = handle.next_request().await {
                count += 1;
                let allowed = json!({ "spec": {}, "status": { "allowed": true } });
                let (code, body) = if count > overloaded {
                    (201, allowed.to_string())
                } else {
                    (429, "Too many requests, please try again later.\n".into())
                };
                let body = Body::from(body.into_bytes());
                answer.send_response(Response::builder().status(code).body(body).unwrap());
            }
        };
        let began = Instant::now();
        tokio::select! {
            decision = check_access(&client, SubjectAccessReviewSpec::default()) => (decision, began.elapsed()),
            () = answering => unreachable!("the client outlives the review"),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_review_is_repeated_while_the_api_server_is_overloaded_for_a_moment() {
        let (decision, after) = decision(2).await;
        assert!(decision.unwrap().allowed);
        assert!(after >= 2 * OVERLOAD_BACKOFF && after < Duration::from_secs(5), "{after:?}");
    }

    #[test]
    fn only_a_working_api_server_rejects_a_review() {
        let refused = |code| ReviewError::Refused { review: "TokenReview", code, message: String::new() };
        let failed = ReviewError::Failed { review: "TokenReview", cause: "429".into() };
        let errors = [refused(403), refused(422), refused(500), refused(503), failed];
        let rejections = errors.each_ref().map(ReviewError::is_rejection);
        assert_eq!(rejections, [true, true, false, false, false]);
    }

    #[tokio::test(start_paused = true)]
    async fn overload_is_not_reported_as_a_missing_right() {
        let error = decision(u32::MAX).await.0.unwrap_err();
        assert_eq!(
            error.to_string(),
            "SubjectAccessReview failed: the API server is overloaded: it answered 429 3 times"
        );
    }
}
