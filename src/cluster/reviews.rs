//! Questions to the API server about a caller: may it (SubjectAccessReview), and who is it (TokenReview). Only asks;
//! what is remembered, and what an answer leads to, is decided where the caller is served.

use std::collections::BTreeMap;
use std::time::Duration;

use http::header::CONTENT_TYPE;
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Limited};
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec};
use k8s_openapi::api::authorization::v1::{
    NonResourceAttributes, ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use kube::client::Body;
use kube::core::Status;
use tokio::time::{sleep, timeout};

/// Longest wait for an answer: what aggregated API servers wait.
const REVIEW_TIMEOUT: Duration = Duration::from_secs(10);

/// The wait before an overloaded API server (429) is asked again: what its own `Retry-After` says.
const OVERLOAD_BACKOFF: Duration = Duration::from_secs(1);
/// How often it is asked in all: within the 5 s that a caller is kept waiting.
const MAX_TRIES: u32 = 3;

/// Why a question could not be asked.
type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The largest answer that is read: a user in ten thousand groups.
const MAX_ANSWER: usize = 1024 * 1024;

/// Who is asking.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Subject {
    /// User name.
    pub user: String,
    /// Unique id; empty when unknown.
    pub uid: String,
    /// Groups.
    pub groups: Vec<String>,
    /// Extra attributes.
    pub extra: BTreeMap<String, Vec<String>>,
}

/// What is asked for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Access {
    /// A resource of an API group.
    Resource {
        /// Empty for all namespaces.
        namespace: String,
        /// `get`, `list`, …
        verb: String,
        /// API group.
        group: String,
        /// API version.
        version: String,
        /// Resource, e.g. the metric's name.
        resource: String,
        /// Subresource; empty for none.
        subresource: String,
        /// Object name; empty for none.
        name: String,
    },
    /// A path such as `/metrics`.
    Path {
        /// The path.
        path: String,
        /// `get`, …
        verb: String,
    },
}

/// The answer to an access question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// True when access is granted.
    pub allowed: bool,
    /// Why, for people; may be empty.
    pub reason: String,
}

/// A question that got no answer.
#[derive(Debug, thiserror::Error)]
pub enum ReviewError {
    /// No answer in time.
    #[error("{what}: the API server did not answer within {} s", REVIEW_TIMEOUT.as_secs())]
    Timeout {
        /// Which question.
        what: &'static str,
    },
    /// The API server cannot be reached, or what it said cannot be read.
    #[error("{what} failed: {cause}")]
    Broken {
        /// Which question.
        what: &'static str,
        /// Why.
        cause: String,
    },
    /// The API server said no to the question itself.
    #[error(
        "{what} failed: {message} ({code}); check that the service account is bound to ClusterRole \
         system:auth-delegator"
    )]
    Refused {
        /// Which question.
        what: &'static str,
        /// The status.
        code: u16,
        /// What the API server said.
        message: String,
    },
}

impl ReviewError {
    /// True when the API server could have decided and did not take the question, false when it is in trouble itself.
    #[must_use]
    pub fn is_about_the_question(&self) -> bool {
        matches!(self, Self::Refused { code, .. } if *code < 500)
    }

    /// Without `secret`, wherever the API server or a proxy before it may have repeated it.
    fn without(mut self, secret: &str) -> Self {
        match &mut self {
            Self::Broken { cause: text, .. } | Self::Refused { message: text, .. } if !secret.is_empty() => {
                *text = text.replace(secret, "…");
            }
            _ => {}
        }
        self
    }
}

/// Asks whether `subject` may do `access`.
///
/// # Errors
/// When the API server does not answer.
pub async fn may(client: &kube::Client, subject: &Subject, access: &Access) -> Result<Verdict, ReviewError> {
    let text = |text: &String| Some(text).filter(|text| !text.is_empty()).cloned();
    let mut spec = SubjectAccessReviewSpec {
        user: text(&subject.user),
        uid: text(&subject.uid),
        groups: Some(subject.groups.clone()),
        extra: Some(subject.extra.clone()),
        ..SubjectAccessReviewSpec::default()
    };
    match access {
        Access::Resource { namespace, verb, group, version, resource, subresource, name } => {
            spec.resource_attributes = Some(ResourceAttributes {
                namespace: text(namespace),
                verb: text(verb),
                group: text(group),
                version: text(version),
                resource: text(resource),
                subresource: text(subresource),
                name: text(name),
                ..ResourceAttributes::default()
            });
        }
        Access::Path { path, verb } => {
            spec.non_resource_attributes = Some(NonResourceAttributes { path: text(path), verb: text(verb) });
        }
    }
    let review = SubjectAccessReview { spec, ..SubjectAccessReview::default() };
    let status = ask("SubjectAccessReview", client, &review).await?.status.unwrap_or_default();
    let allowed = status.allowed && status.denied != Some(true);
    Ok(Verdict { allowed, reason: status.reason.or(status.evaluation_error).unwrap_or_default() })
}

/// Asks who has `token`; `None` when it is nobody's.
///
/// # Errors
/// When the API server does not answer. Never contains the token.
pub async fn who(client: &kube::Client, token: &str) -> Result<Option<Subject>, ReviewError> {
    let spec = TokenReviewSpec { token: Some(token.to_owned()), audiences: None };
    let review = TokenReview { spec, ..TokenReview::default() };
    let answer = ask("TokenReview", client, &review).await.map_err(|error| error.without(token))?;
    let status = answer.status.unwrap_or_default();
    let user = status.user.filter(|_| status.authenticated == Some(true));
    Ok(user.filter(|user| user.username.as_ref().is_some_and(|name| !name.is_empty())).map(|user| Subject {
        user: user.username.unwrap_or_default(),
        uid: user.uid.unwrap_or_default(),
        groups: user.groups.unwrap_or_default(),
        extra: user.extra.unwrap_or_default(),
    }))
}

async fn ask<K>(what: &'static str, client: &kube::Client, review: &K) -> Result<K, ReviewError>
where
    K: kube::Resource<DynamicType = ()> + serde::Serialize + serde::de::DeserializeOwned,
{
    let asking = timeout(REVIEW_TIMEOUT, post_again(client, review)).await;
    let (code, answer) = asking
        .map_err(|_| ReviewError::Timeout { what })?
        .map_err(|cause| ReviewError::Broken { what, cause: cause.to_string() })?;
    if (200..300).contains(&code) {
        let read = serde_json::from_slice(&answer);
        return read
            .map_err(|cause| ReviewError::Broken { what, cause: format!("unreadable answer: {cause}") });
    }
    if code == StatusCode::TOO_MANY_REQUESTS {
        let cause = format!("the API server has too much to do: {MAX_TRIES} times 429");
        return Err(ReviewError::Broken { what, cause });
    }
    let said = serde_json::from_slice(&answer).map(|status: Status| status.message);
    let message = said.unwrap_or_else(|_| "an answer that is no Status".into());
    Err(ReviewError::Refused { what, code, message: message.trim_end().into() })
}

/// The status and the body. An API server that is overloaded (429) is asked [`MAX_TRIES`] times in all.
async fn post_again<K>(client: &kube::Client, review: &K) -> Result<(u16, Vec<u8>), BoxError>
where
    K: kube::Resource<DynamicType = ()> + serde::Serialize,
{
    for _ in 1..MAX_TRIES {
        let answered = post(client, review).await?;
        if answered.0 != StatusCode::TOO_MANY_REQUESTS {
            return Ok(answered);
        }
        sleep(OVERLOAD_BACKOFF).await;
    }
    post(client, review).await
}

/// The status and the body. Not by way of `Api`: it logs answers that it cannot read, and that of a TokenReview repeats
/// the token.
async fn post<K>(client: &kube::Client, review: &K) -> Result<(u16, Vec<u8>), BoxError>
where
    K: kube::Resource<DynamicType = ()> + serde::Serialize,
{
    let request = Request::post(K::url_path(&(), None)).header(CONTENT_TYPE, "application/json");
    let answer = client.send(request.body(Body::from(serde_json::to_vec(review)?))?).await?;
    let code = answer.status().as_u16();
    Ok((code, Limited::new(answer.into_body(), MAX_ANSWER).collect().await?.to_bytes().to_vec()))
}

#[cfg(test)]
mod tests {
    use http::Response;
    use serde_json::json;
    use tokio::time::Instant;

    use super::*;

    /// What is said of a review by an API server that answers the first `overloaded` requests with 429, and after how long.
    async fn asked(overloaded: u32) -> (Result<Verdict, ReviewError>, Duration) {
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
        let (subject, access) =
            (Subject::default(), Access::Path { path: "/metrics".into(), verb: "get".into() });
        tokio::select! {
            verdict = may(&client, &subject, &access) => (verdict, began.elapsed()),
            () = answering => unreachable!("the client outlives the question"),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_api_server_that_is_overloaded_for_a_moment_is_asked_again() {
        let (verdict, after) = asked(2).await;
        assert!(verdict.unwrap().allowed);
        assert!(after >= 2 * OVERLOAD_BACKOFF && after < Duration::from_secs(5), "{after:?}");
    }

    #[test]
    fn an_api_server_in_trouble_says_nothing_about_the_question() {
        let refused = |code| ReviewError::Refused { what: "TokenReview", code, message: String::new() };
        let broken = ReviewError::Broken { what: "TokenReview", cause: "429".into() };
        let errors = [refused(403), refused(422), refused(500), refused(503), broken];
        let about = errors.each_ref().map(ReviewError::is_about_the_question);
        assert_eq!(about, [true, true, false, false, false]);
    }

    #[tokio::test(start_paused = true)]
    async fn overload_is_not_told_as_a_missing_right() {
        let error = asked(u32::MAX).await.0.unwrap_err();
        assert_eq!(
            error.to_string(),
            "SubjectAccessReview failed: the API server has too much to do: 3 times 429"
        );
    }
}
