//! Reviews by the API server, remembered and shared: many callers asking the same cause one review. Bounded in number
//! and time. An error is no decision, and is not remembered; while an API server is overloaded or away, what it has
//! permitted stands for a while.

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

use super::identity::{MASTERS, Token, User};
use super::reviewer::{Access, Attributes, ReviewError, Reviewer};

/// How long permission is remembered: four of an HPA's syncs (15 s), so that reading costs no review; and not longer
/// than an administrator waits for a permission to end.
const ALLOWED_FOR: Duration = Duration::from_secs(60);

/// How old a permission may be that the API server does not decide anew, being overloaded or away: as old as one of a
/// webhook that a kube-apiserver or a kubelet asks, by default, even of a webhook that answers
/// (`--authorization-webhook-cache-authorized-ttl`, `cacheAuthorizedTTL`). An HPA so outlives a restart of the control plane.
const ALLOWED_AT_MOST: Duration = Duration::from_secs(300);

/// How long a refusal is remembered, as Go servers do: a new RoleBinding works soon.
const DENIED_FOR: Duration = Duration::from_secs(10);

/// How long a token is believed. Two scrapes of Prometheus at 15 s.
const KNOWN_FOR: Duration = Duration::from_secs(30);

/// The same bound for a token: theirs, again (`--authentication-token-webhook-cache-ttl`, `cacheTTL`).
const KNOWN_AT_MOST: Duration = Duration::from_secs(120);

/// A permission that is used so shortly before its end is reviewed anew in the background: whoever asks every 15 s, as
/// HPAs and scrapers do, does so once in this time and never waits for a review.
const REFRESH_WINDOW: Duration = Duration::from_secs(20);

/// After a review without a decision, what is remembered stands this long before the next one.
const RETRY_INTERVAL: Duration = Duration::from_secs(10);

/// How long an unknown token is refused without asking again.
const UNKNOWN_FOR: Duration = Duration::from_secs(5);

/// Bytes of questions remembered, for each kind: at the usual 1 KiB as many as Go servers remember, 8,192.
const REMEMBERED: u64 = 8 * 1024 * 1024;

/// What a remembered decision weighs besides its texts: the entry, its clocks and the answer.
const ENTRY: usize = 256;

/// A question above this many bytes is asked but not remembered, so that none displaces many.
const MAX_KEY: usize = 10_000;

/// A review that takes longer is given up; the aggregator waits 60 s, an HPA worker should not.
const REVIEW_TIMEOUT: Duration = Duration::from_secs(5);

/// Reviews of one kind under way at once. One takes milliseconds, so this is thousands a second. Each kind has its own:
/// anybody may show a token that nobody knows, and must not so keep callers who are known from their reviews.
const IN_FLIGHT: usize = 64;

/// No decision.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Undecided {
    /// Every place for a review is taken.
    #[error("{IN_FLIGHT} reviews are already waiting for the API server; ask again later")]
    Busy,
    /// The API server did not decide.
    #[error(transparent)]
    Failed(#[from] ReviewError),
}

impl Undecided {
    /// True when asking later may lead to a decision.
    const fn is_temporary(&self) -> bool {
        matches!(self, Self::Busy | Self::Failed(ReviewError::Unavailable(_)))
    }
}

/// The attribute that changes with every token of the same user: kept out of what is remembered, else a client that
/// renews its token would cause a review each time.
const CREDENTIAL_ID: &str = "authentication.kubernetes.io/credential-id";

/// Asks the reviewer and remembers.
#[derive(Clone)]
pub(crate) struct Reviews {
    reviewer: Arc<dyn Reviewer>,
    tokens: Cache<Token, Reviewed<Option<User>>>,
    access: Cache<Question, Reviewed<Access>>,
    tokens_in_flight: Arc<Semaphore>,
    access_in_flight: Arc<Semaphore>,
}

/// What is remembered: who wants to do what.
#[derive(PartialEq, Eq, Hash)]
struct Question {
    user: User,
    wanted: Attributes,
}

/// The same to look it up: what is remembered costs no copy. Hashes as [`Question`] does.
#[derive(Hash)]
struct Asked<'a> {
    user: &'a User,
    wanted: &'a Attributes,
}

impl Equivalent<Question> for Asked<'_> {
    fn equivalent(&self, known: &Question) -> bool {
        *self.user == known.user && *self.wanted == known.wanted
    }
}

/// How long a decision is used.
#[derive(Debug, Clone, Copy)]
struct Lifetime {
    /// While the API server decides when it is asked.
    usual: Duration,
    /// While it does not.
    at_most: Duration,
}

impl Lifetime {
    /// Of a refusal, which never outlasts its time.
    const fn of_refusal(usual: Duration) -> Self {
        Self { usual, at_most: usual }
    }
}

fn token_lifetime(user: &Option<User>) -> Lifetime {
    match user {
        Some(_) => Lifetime { usual: KNOWN_FOR, at_most: KNOWN_AT_MOST },
        None => Lifetime::of_refusal(UNKNOWN_FOR),
    }
}

fn access_lifetime(access: &Access) -> Lifetime {
    match access {
        Access::Allowed => Lifetime { usual: ALLOWED_FOR, at_most: ALLOWED_AT_MOST },
        Access::Denied { .. } => Lifetime::of_refusal(DENIED_FOR),
    }
}

/// What a review led to. Without a decision it is shared by those who wait for it, and not remembered.
type Reviewed<V> = Result<Decided<V>, Undecided>;

/// A decision, and until when it is used.
#[derive(Debug, Clone)]
struct Decided<V> {
    value: V,
    lifetime: Lifetime,
    made: Instant,
    /// From here on it is reviewed anew when it is used.
    refresh_at: Instant,
    until: Instant,
    /// Its review has begun.
    is_refreshing: Arc<AtomicBool>,
}

impl<V: Clone> Decided<V> {
    fn now(value: V, lifetime: Lifetime) -> Self {
        let (made, Lifetime { usual, at_most }) = (Instant::now(), lifetime);
        let window = if at_most > usual { REFRESH_WINDOW } else { Duration::ZERO };
        let (refresh_at, until) = (made + usual.saturating_sub(window), made + usual);
        Self { value, lifetime, made, refresh_at, until, is_refreshing: Arc::default() }
    }

    /// The same after a review without a decision; `None` when it is too old for that.
    fn standing(&self) -> Option<Self> {
        let (now, end) = (Instant::now(), self.made + self.lifetime.at_most);
        let until = end.min(now + self.lifetime.usual);
        let standing =
            Self { refresh_at: now + RETRY_INTERVAL, until, is_refreshing: Arc::default(), ..self.clone() };
        (now < end && self.lifetime.at_most > self.lifetime.usual).then_some(standing)
    }
}

impl Reviews {
    pub(crate) fn new(reviewer: Arc<dyn Reviewer>) -> Self {
        Self {
            reviewer,
            tokens: Cache::builder()
                .weigher(|token: &Token, _| bytes(token.secret().len()))
                .max_capacity(REMEMBERED)
                .time_to_live(KNOWN_AT_MOST)
                .build(),
            access: Cache::builder()
                .weigher(|asked: &Question, _| bytes(weight(&asked.user, &asked.wanted)))
                .max_capacity(REMEMBERED)
                .time_to_live(ALLOWED_AT_MOST)
                .build(),
            tokens_in_flight: Arc::new(Semaphore::new(IN_FLIGHT)),
            access_in_flight: Arc::new(Semaphore::new(IN_FLIGHT)),
        }
    }

    /// The user a token stands for.
    pub(crate) async fn token(&self, token: Token) -> Result<Option<User>, Undecided> {
        let review = || {
            let (this, asked) = (self.clone(), token.clone());
            async move { bounded(&this.tokens_in_flight, this.reviewer.token(&asked)).await }
        };
        shared(&self.tokens, &token, || token.clone(), review, token_lifetime).await
    }

    /// Whether a user may do something.
    pub(crate) async fn access(&self, user: &User, attributes: &Attributes) -> Result<Access, Undecided> {
        if user.is_in(MASTERS) {
            return Ok(Access::Allowed);
        }
        if weight(user, attributes) > MAX_KEY {
            return bounded(&self.access_in_flight, self.reviewer.access(user, attributes)).await;
        }
        let mut known_as = Cow::Borrowed(user);
        if user.extra.contains_key(CREDENTIAL_ID) {
            known_as.to_mut().extra.remove(CREDENTIAL_ID);
        }
        let review = || {
            let (this, user, asked) = (self.clone(), user.clone(), attributes.clone());
            async move { bounded(&this.access_in_flight, this.reviewer.access(&user, &asked)).await }
        };
        let asked = Asked { user: &known_as, wanted: attributes };
        let question = || Question { user: known_as.clone().into_owned(), wanted: attributes.clone() };
        shared(&self.access, &asked, question, review, access_lifetime).await
    }
}

async fn bounded<V>(
    places: &Semaphore,
    review: impl Future<Output = Result<V, ReviewError>>,
) -> Result<V, Undecided> {
    let Ok(_permit) = places.try_acquire() else { return Err(Undecided::Busy) };
    let late = |_| {
        let seconds = REVIEW_TIMEOUT.as_secs();
        ReviewError::Unavailable(format!("the API server did not answer within {seconds} s"))
    };
    Ok(timeout(REVIEW_TIMEOUT, review).await.map_err(late)??)
}

fn bytes(texts: usize) -> u32 {
    u32::try_from(texts + ENTRY).unwrap_or(u32::MAX)
}

/// Bytes of text in a question: all of it comes from the caller.
fn weight(user: &User, wanted: &Attributes) -> usize {
    let extra =
        user.extra.iter().map(|(key, values)| key.len() + values.iter().map(String::len).sum::<usize>());
    let wanted = match wanted {
        Attributes::Resource { resource, subresource, namespace, name, .. } => {
            resource.len() + subresource.len() + namespace.len() + name.len()
        }
        Attributes::Path { .. } => 0,
    };
    let uid = user.uid.as_ref().map_or(0, String::len);
    let groups = user.groups.iter().map(String::len).sum::<usize>();
    user.name.len() + uid + groups + extra.sum::<usize>() + wanted
}

/// One review for all who ask the same at the same time; `review` is called only when nothing is remembered, or not for long
/// any more.
async fn shared<Q, K, V, R>(
    cache: &Cache<K, Reviewed<V>>,
    asked: &Q,
    key: impl FnOnce() -> K,
    review: impl FnOnce() -> R,
    lifetime: fn(&V) -> Lifetime,
) -> Result<V, Undecided>
where
    Q: Equivalent<K> + Hash,
    K: Hash + Eq + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    R: Future<Output = Result<V, Undecided>> + Send + 'static,
{
    let (known, now) = (cache.get(asked).await.and_then(Result::ok), Instant::now());
    let begin = |known| begin_review(cache.clone(), key(), review(), lifetime, known);
    match known {
        Some(known) if now < known.until => {
            let value = known.value.clone();
            if now >= known.refresh_at && !known.is_refreshing.swap(true, Ordering::Relaxed) {
                drop(begin(Some(known)));
            }
            Ok(value)
        }
        known => match begin(known).await {
            Ok(reviewed) => reviewed.map(|decided| decided.value),
            Err(_) => {
                let stopping = "the review was cancelled: the server is stopping";
                Err(ReviewError::Unavailable(stopping.into()).into())
            }
        },
    }
}

/// Has a review made, or joins the one under way. `known` is what was remembered: it stands when there is no decision.
fn begin_review<K, V>(
    cache: Cache<K, Reviewed<V>>,
    key: K,
    review: impl Future<Output = Result<V, Undecided>> + Send + 'static,
    lifetime: fn(&V) -> Lifetime,
    known: Option<Decided<V>>,
) -> JoinHandle<Reviewed<V>>
where
    K: Hash + Eq + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
{
    let reviewed = async move {
        let undecided = match review.await {
            Ok(value) => {
                let lifetime = lifetime(&value);
                return Ok(Decided::now(value, lifetime));
            }
            Err(undecided) => undecided,
        };
        let standing = known.filter(|_| undecided.is_temporary()).and_then(|known| known.standing());
        if standing.is_some() {
            tracing::debug!(%undecided, "what the API server decided before stands");
        }
        standing.ok_or(undecided)
    };
    let is_due =
        |known: &Reviewed<V>| known.as_ref().map_or(true, |known| Instant::now() >= known.refresh_at);
    #[expect(
        clippy::disallowed_methods,
        reason = "ends within REVIEW_TIMEOUT; a caller that hangs up must not abort the review that others wait for"
    )]
    tokio::spawn(async move { cache.entry(key).or_insert_with_if(reviewed, is_due).await.into_value() })
}

#[cfg(test)]
mod tests {
    use super::super::reviewer::AllowAll;
    use super::*;

    fn wanted(resource: String) -> Attributes {
        let (verb, group, version, namespace) = ("list", "g", "v", "llm".into());
        let (subresource, name) = (String::new(), String::new());
        Attributes::Resource { verb, group, version, resource, subresource, namespace, name }
    }

    #[tokio::test]
    async fn what_the_url_says_counts_as_what_the_user_says() {
        let reviews = Reviews::new(Arc::new(AllowAll::default()));
        let user = User { uid: Some("12".into()), ..User::named("alice") };
        assert_eq!(weight(&user, &wanted("abc".into())), 5 + 2 + 3 + 3);
        for resource in ["m".into(), "m".repeat(MAX_KEY)] {
            assert_eq!(reviews.access(&user, &wanted(resource)).await, Ok(Access::Allowed));
        }
        reviews.access.run_pending_tasks().await;
        assert_eq!(reviews.access.entry_count(), 1, "a key that is too large is not remembered");
        assert_eq!(reviews.access.weighted_size(), (5 + 2 + 1 + 3 + ENTRY) as u64);
    }
}
