//! Reviews by the API server, remembered and shared: many callers asking the same cause one review. Bounded in number
//! and time. An error is no decision, and is not remembered.

use std::borrow::Cow;
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use moka::Equivalent;
use moka::future::Cache;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout};

use super::identity::{MASTERS, Token, User};
use super::reviewer::{Access, Attributes, ReviewError, Reviewer};

/// How long permission is remembered: four of an HPA's syncs (15 s), so that reading costs no review; and not longer
/// than an administrator waits for a permission to end.
const ALLOWED_FOR: Duration = Duration::from_secs(60);

/// How long a refusal is remembered, as Go servers do: a new RoleBinding works soon.
const DENIED_FOR: Duration = Duration::from_secs(10);

/// How long a token is believed. Two scrapes of Prometheus at 15 s.
const KNOWN_FOR: Duration = Duration::from_secs(30);

/// How long an unknown token is refused without asking again.
const UNKNOWN_FOR: Duration = Duration::from_secs(5);

/// Bytes of questions remembered, for each kind: at the usual 1 KiB as many as Go servers remember, 8,192.
const REMEMBERED: u64 = 8 * 1024 * 1024;

/// What a remembered decision weighs besides its texts: the entry, its clocks and the answer.
const ENTRY: usize = 256;

/// A question above this many bytes is asked but not remembered, so that none displaces many.
const MAX_KEY: usize = 10_000;

/// A review that takes longer is given up; the aggregator waits 60 s, an HPA worker should not.
const PATIENCE: Duration = Duration::from_secs(5);

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

/// The attribute that changes with every token of the same user: kept out of what is remembered, else a client that
/// renews its token would cause a review each time.
const CREDENTIAL_ID: &str = "authentication.kubernetes.io/credential-id";

/// Asks the reviewer and remembers.
#[derive(Clone)]
pub(crate) struct Reviews {
    reviewer: Arc<dyn Reviewer>,
    tokens: Cache<Token, Decided<Option<User>>>,
    access: Cache<Question, Decided<Access>>,
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

/// A decision, and until when it is used. Yes and no are remembered apart.
#[derive(Debug, Clone)]
struct Decided<V> {
    value: V,
    until: Instant,
}

impl<V> Decided<V> {
    fn now(value: V, lasts: impl FnOnce(&V) -> Duration) -> Self {
        let until = Instant::now() + lasts(&value);
        Self { value, until }
    }
}

fn known_for(user: &Option<User>) -> Duration {
    if user.is_some() { KNOWN_FOR } else { UNKNOWN_FOR }
}

fn lasts(access: &Access) -> Duration {
    if *access == Access::Allowed { ALLOWED_FOR } else { DENIED_FOR }
}

impl Reviews {
    pub(crate) fn new(reviewer: Arc<dyn Reviewer>) -> Self {
        Self {
            reviewer,
            tokens: Cache::builder()
                .weigher(|token: &Token, _| bytes(token.secret().len()))
                .max_capacity(REMEMBERED)
                .time_to_live(KNOWN_FOR.max(UNKNOWN_FOR))
                .build(),
            access: Cache::builder()
                .weigher(|asked: &Question, _| bytes(weight(&asked.user, &asked.wanted)))
                .max_capacity(REMEMBERED)
                .time_to_live(ALLOWED_FOR.max(DENIED_FOR))
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
        shared(&self.tokens, &token, || token.clone(), review, known_for).await
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
        shared(&self.access, &asked, question, review, lasts).await
    }
}

async fn bounded<V>(
    places: &Semaphore,
    review: impl Future<Output = Result<V, ReviewError>>,
) -> Result<V, Undecided> {
    let Ok(_permit) = places.try_acquire() else { return Err(Undecided::Busy) };
    let late = |_| ReviewError(format!("the API server did not answer within {} s", PATIENCE.as_secs()));
    Ok(timeout(PATIENCE, review).await.map_err(late)??)
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

/// One review for all who ask the same at the same time; `review` is called only when nothing is remembered.
async fn shared<Q, K, V, R>(
    cache: &Cache<K, Decided<V>>,
    asked: &Q,
    key: impl FnOnce() -> K,
    review: impl FnOnce() -> R,
    lasts: fn(&V) -> Duration,
) -> Result<V, Undecided>
where
    Q: Equivalent<K> + Hash,
    K: Hash + Eq + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    R: Future<Output = Result<V, Undecided>> + Send + 'static,
{
    match cache.get(asked).await {
        Some(known) if Instant::now() < known.until => return Ok(known.value),
        Some(_) => cache.invalidate(asked).await,
        None => {}
    }
    let (cache, key, review) = (cache.clone(), key(), review());
    #[expect(
        clippy::disallowed_methods,
        reason = "ends within PATIENCE; a caller that hangs up must not abort the review that others wait for"
    )]
    let review = tokio::spawn(async move {
        cache.try_get_with(key, async { Ok(Decided::now(review.await?, lasts)) }).await
    });
    match review.await {
        Ok(result) => result.map(|decided| decided.value).map_err(|error: Arc<Undecided>| (*error).clone()),
        Err(_) => Err(ReviewError("the review was cancelled: the server is stopping".into()).into()),
    }
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
