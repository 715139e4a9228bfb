//! Reviews by the API server, cached and shared: many callers with the same question cause one review. Bounded in number and
//! time. An error is not cached, and while an API server is overloaded or away, earlier permissions hold for some minutes.

use std::borrow::Cow;
use std::hash::Hash;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use moka::Equivalent;
use moka::future::Cache;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

use super::reviewer::{Access, Attributes, MASTERS, ReviewError, Reviewer, Token, User};

/// How long a permission is used: four syncs of an HPA (15 s each), so that reads cause few reviews, and no longer than an
/// administrator expects a revoked permission to last.
const ALLOWED_TTL: Duration = Duration::from_secs(60);

/// How long a permission is used while the API server, overloaded or away, does not decide anew. kube-apiserver and kubelet
/// use the permissions of an authorisation webhook as long by default, even of one that answers
/// (`--authorization-webhook-cache-authorized-ttl`, `cacheAuthorizedTTL`). HPAs survive a restart of the control plane.
const MAX_ALLOWED_TTL: Duration = Duration::from_secs(300);

/// How long a denial is used, as in the API servers written in Go: a new RoleBinding takes effect soon.
const DENIED_TTL: Duration = Duration::from_secs(10);

/// How long a valid token is accepted: two scrapes of Prometheus at 15 s.
const VALID_TOKEN_TTL: Duration = Duration::from_secs(30);

/// How long a valid token is accepted while the API server does not decide anew, again by the defaults of Kubernetes
/// (`--authentication-token-webhook-cache-ttl`, `cacheTTL`).
const MAX_VALID_TOKEN_TTL: Duration = Duration::from_secs(120);

/// A decision that is used within this time before its end is reviewed anew in the background. A client that asks every 15 s,
/// as HPAs and scrapers do, asks once within it and so never waits for a review.
const REFRESH_WINDOW: Duration = Duration::from_secs(20);

/// How long an earlier decision is used after a failed review, before the next review.
const RETRY_INTERVAL: Duration = Duration::from_secs(10);

/// How long an invalid token is rejected without another review.
const INVALID_TOKEN_TTL: Duration = Duration::from_secs(5);

/// Bytes of each cache: at the usual 1 KiB for an entry as many as the API servers written in Go keep, 8,192.
const CACHE_BYTES: u64 = 8 * 1024 * 1024;

/// Bytes of a cache entry besides the texts of its key.
const ENTRY_BYTES: usize = 256;

/// Questions with more bytes are reviewed but not cached, so that a large one does not displace many others.
const MAX_KEY_BYTES: usize = 10_000;

/// A review that takes longer is given up. The aggregator would wait 60 s; an HPA worker should not.
const REVIEW_TIMEOUT: Duration = Duration::from_secs(5);

/// Concurrent reviews of one kind. A review takes milliseconds, so this is thousands per second. Tokens and permissions have
/// separate limits: anybody can present an invalid token, and must not thereby keep authenticated callers waiting.
const MAX_REVIEWS: usize = 64;

/// The user attribute that changes with every token of the same user. It is not part of a cache key: otherwise a client that
/// renews its token would cause a review each time.
const CREDENTIAL_ID: &str = "authentication.kubernetes.io/credential-id";

/// The review led to no decision.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ReviewUnavailable {
    /// The limit of concurrent reviews is reached.
    #[error("{MAX_REVIEWS} reviews are already waiting for the API server; retry later")]
    Busy,
    /// The API server did not decide.
    #[error(transparent)]
    Failed(#[from] ReviewError),
}

impl ReviewUnavailable {
    /// True when a later review may lead to a decision.
    const fn is_temporary(&self) -> bool {
        matches!(self, Self::Busy | Self::Failed(ReviewError::Unavailable(_)))
    }
}

/// Reviews and their cached decisions.
#[derive(Clone)]
pub(crate) struct Reviews {
    reviewer: Arc<dyn Reviewer>,
    tokens: Cache<Token, ReviewResult<Option<User>>>,
    access: Cache<AccessKey, ReviewResult<Access>>,
    token_permits: Arc<Semaphore>,
    access_permits: Arc<Semaphore>,
}

/// The cache key of a permission.
#[derive(PartialEq, Eq, Hash)]
struct AccessKey {
    user: User,
    attributes: Attributes,
}

/// A borrowed [`AccessKey`], so that a cache hit copies nothing. Must hash like `AccessKey`.
#[derive(Hash)]
struct AccessKeyRef<'a> {
    user: &'a User,
    attributes: &'a Attributes,
}

impl Equivalent<AccessKey> for AccessKeyRef<'_> {
    fn equivalent(&self, key: &AccessKey) -> bool {
        *self.user == key.user && *self.attributes == key.attributes
    }
}

/// How long a decision is used.
#[derive(Debug, Clone, Copy)]
struct Lifetime {
    /// While the API server decides anew.
    ttl: Duration,
    /// While it does not.
    max_ttl: Duration,
}

impl Lifetime {
    /// The lifetime of a negative decision, which is never extended.
    const fn of_denial(ttl: Duration) -> Self {
        Self { ttl, max_ttl: ttl }
    }
}

fn token_lifetime(user: &Option<User>) -> Lifetime {
    match user {
        Some(_) => Lifetime { ttl: VALID_TOKEN_TTL, max_ttl: MAX_VALID_TOKEN_TTL },
        None => Lifetime::of_denial(INVALID_TOKEN_TTL),
    }
}

fn access_lifetime(access: &Access) -> Lifetime {
    match access {
        Access::Allowed => Lifetime { ttl: ALLOWED_TTL, max_ttl: MAX_ALLOWED_TTL },
        Access::Denied { .. } => Lifetime::of_denial(DENIED_TTL),
    }
}

/// The result of a review. An error goes to all who wait for the review, and is not cached.
type ReviewResult<V> = Result<Decision<V>, ReviewUnavailable>;

/// A decision of the API server.
#[derive(Debug, Clone)]
struct Decision<V> {
    value: V,
    lifetime: Lifetime,
    made: Instant,
    /// From here on, its next use starts a new review in the background.
    refresh_at: Instant,
    expires: Instant,
    is_refreshing: Arc<AtomicBool>,
}

impl<V: Clone> Decision<V> {
    fn new(value: V, lifetime: Lifetime) -> Self {
        let made = Instant::now();
        let window = if lifetime.max_ttl > lifetime.ttl { REFRESH_WINDOW } else { Duration::ZERO };
        Self {
            value,
            lifetime,
            made,
            refresh_at: made + lifetime.ttl.saturating_sub(window),
            expires: made + lifetime.ttl,
            is_refreshing: Arc::default(),
        }
    }

    /// The same decision after a failed review; `None` when it is too old.
    fn extended(&self) -> Option<Self> {
        let now = Instant::now();
        let end = self.made + self.lifetime.max_ttl;
        let is_extendable = now < end && self.lifetime.max_ttl > self.lifetime.ttl;
        is_extendable.then(|| Self {
            refresh_at: now + RETRY_INTERVAL,
            expires: end.min(now + self.lifetime.ttl),
            is_refreshing: Arc::default(),
            ..self.clone()
        })
    }
}

impl Reviews {
    pub(crate) fn new(reviewer: Arc<dyn Reviewer>) -> Self {
        Self {
            reviewer,
            tokens: Cache::builder()
                .weigher(|token: &Token, _| entry_bytes(token.secret().len()))
                .max_capacity(CACHE_BYTES)
                .time_to_live(MAX_VALID_TOKEN_TTL)
                .build(),
            access: Cache::builder()
                .weigher(|key: &AccessKey, _| entry_bytes(text_bytes(&key.user, &key.attributes)))
                .max_capacity(CACHE_BYTES)
                .time_to_live(MAX_ALLOWED_TTL)
                .build(),
            token_permits: Arc::new(Semaphore::new(MAX_REVIEWS)),
            access_permits: Arc::new(Semaphore::new(MAX_REVIEWS)),
        }
    }

    /// The token's user; `None` for an invalid token.
    pub(crate) async fn token(&self, token: Token) -> Result<Option<User>, ReviewUnavailable> {
        let review = || {
            let this = self.clone();
            let token = token.clone();
            async move { limited(&this.token_permits, this.reviewer.token(&token)).await }
        };
        cached(&self.tokens, &token, || token.clone(), review, token_lifetime).await
    }

    /// Whether there has been a decision about exactly these `attributes` lately.
    pub(crate) fn has_answered(&self, user: &User, attributes: &Attributes) -> bool {
        self.access.contains_key(&AccessKeyRef { user: &key_user(user), attributes })
    }

    /// Whether `user` may do what `attributes` describe.
    pub(crate) async fn access(
        &self,
        user: &User,
        attributes: &Attributes,
    ) -> Result<Access, ReviewUnavailable> {
        if user.is_in(MASTERS) {
            return Ok(Access::Allowed);
        }
        if text_bytes(user, attributes) > MAX_KEY_BYTES {
            return limited(&self.access_permits, self.reviewer.access(user, attributes)).await;
        }
        let key_user = key_user(user);
        let review = || {
            let this = self.clone();
            let user = user.clone();
            let attributes = attributes.clone();
            async move { limited(&this.access_permits, this.reviewer.access(&user, &attributes)).await }
        };
        let key_ref = AccessKeyRef { user: &key_user, attributes };
        let key = || AccessKey { user: key_user.clone().into_owned(), attributes: attributes.clone() };
        cached(&self.access, &key_ref, key, review, access_lifetime).await
    }
}

/// The user as part of a cache key: without [`CREDENTIAL_ID`].
fn key_user(user: &User) -> Cow<'_, User> {
    let mut key_user = Cow::Borrowed(user);
    if user.extra.contains_key(CREDENTIAL_ID) {
        key_user.to_mut().extra.remove(CREDENTIAL_ID);
    }
    key_user
}

/// Makes a review within the limit of concurrent ones and within [`REVIEW_TIMEOUT`].
async fn limited<V>(
    permits: &Semaphore,
    review: impl Future<Output = Result<V, ReviewError>>,
) -> Result<V, ReviewUnavailable> {
    let Ok(_permit) = permits.try_acquire() else { return Err(ReviewUnavailable::Busy) };
    let timed_out = |_| {
        let seconds = REVIEW_TIMEOUT.as_secs();
        ReviewError::Unavailable(format!("the API server did not answer within {seconds} s"))
    };
    Ok(timeout(REVIEW_TIMEOUT, review).await.map_err(timed_out)??)
}

fn entry_bytes(text: usize) -> u32 {
    u32::try_from(text + ENTRY_BYTES).unwrap_or(u32::MAX)
}

/// Bytes of text in a question, all of which the caller chooses.
fn text_bytes(user: &User, attributes: &Attributes) -> usize {
    let lengths = |texts: &[String]| texts.iter().map(String::len).sum::<usize>();
    let extra: usize = user.extra.iter().map(|(key, values)| key.len() + lengths(values)).sum();
    let attributes = match attributes {
        Attributes::Resource { resource, subresource, namespace, name, .. } => {
            resource.len() + subresource.len() + namespace.len() + name.len()
        }
        Attributes::Path { .. } => 0,
    };
    user.name.len() + user.uid.as_ref().map_or(0, String::len) + lengths(&user.groups) + extra + attributes
}

/// The cached decision for `key_ref`, or that of a review, which concurrent callers with the same key share. `review` is
/// called only when nothing is cached or the cached decision is about to expire.
async fn cached<Q, K, V, R>(
    cache: &Cache<K, ReviewResult<V>>,
    key_ref: &Q,
    key: impl FnOnce() -> K,
    review: impl FnOnce() -> R,
    lifetime: fn(&V) -> Lifetime,
) -> Result<V, ReviewUnavailable>
where
    Q: Equivalent<K> + Hash,
    K: Hash + Eq + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    R: Future<Output = Result<V, ReviewUnavailable>> + Send + 'static,
{
    let known = cache.get(key_ref).await.and_then(Result::ok);
    let now = Instant::now();
    let begin = |known| begin_review(cache.clone(), key(), review(), lifetime, known);
    match known {
        Some(known) if now < known.expires => {
            let value = known.value.clone();
            if now >= known.refresh_at && !known.is_refreshing.swap(true, Ordering::Relaxed) {
                drop(begin(Some(known)));
            }
            Ok(value)
        }
        known => match begin(known).await {
            Ok(result) => result.map(|decision| decision.value),
            Err(_) => {
                let stopping = "the review was cancelled, because this server is stopping";
                Err(ReviewError::Unavailable(stopping.into()).into())
            }
        },
    }
}

/// Starts a review or joins the one under way. The decision that is already `known` is extended when the review fails.
fn begin_review<K, V>(
    cache: Cache<K, ReviewResult<V>>,
    key: K,
    review: impl Future<Output = Result<V, ReviewUnavailable>> + Send + 'static,
    lifetime: fn(&V) -> Lifetime,
    known: Option<Decision<V>>,
) -> JoinHandle<ReviewResult<V>>
where
    K: Hash + Eq + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
{
    let result = async move {
        let error = match review.await {
            Ok(value) => {
                let lifetime = lifetime(&value);
                return Ok(Decision::new(value, lifetime));
            }
            Err(error) => error,
        };
        let extended = known.filter(|_| error.is_temporary()).and_then(|known| known.extended());
        if extended.is_some() {
            tracing::debug!(%error, "a review failed; the earlier decision is used");
        }
        extended.ok_or(error)
    };
    let is_due =
        |known: &ReviewResult<V>| known.as_ref().map_or(true, |known| Instant::now() >= known.refresh_at);
    #[expect(
        clippy::disallowed_methods,
        reason = "ends within REVIEW_TIMEOUT; a caller that hangs up must not abort the review that others wait for"
    )]
    tokio::spawn(async move { cache.entry(key).or_insert_with_if(result, is_due).await.into_value() })
}

#[cfg(test)]
mod tests {
    use super::super::reviewer::AllowAll;
    use super::*;

    fn attributes(resource: String) -> Attributes {
        Attributes::Resource {
            verb: "list",
            group: "g",
            version: "v",
            resource,
            subresource: String::new(),
            namespace: "llm".into(),
            name: String::new(),
        }
    }

    #[tokio::test]
    async fn texts_of_the_url_count_like_texts_of_the_user() {
        let reviews = Reviews::new(Arc::new(AllowAll::default()));
        let user = User { uid: Some("12".into()), ..User::named("alice") };
        assert_eq!(text_bytes(&user, &attributes("abc".into())), 5 + 2 + 3 + 3);
        for resource in ["m".into(), "m".repeat(MAX_KEY_BYTES)] {
            assert_eq!(reviews.access(&user, &attributes(resource)).await, Ok(Access::Allowed));
        }
        reviews.access.run_pending_tasks().await;
        assert_eq!(reviews.access.entry_count(), 1, "a key that is too large is not cached");
        assert_eq!(reviews.access.weighted_size(), (5 + 2 + 1 + 3 + ENTRY_BYTES) as u64);
    }
}
