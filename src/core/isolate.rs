//! A panic in the computation of one model affects only that model. The computation is pure, so a panic leaves nothing half done that
//! other models see: it is caught and reported, and the model is held until it is tried again.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use smol_str::SmolStr;

use crate::model::GroupId;

/// A model that panicked is tried again after this long, then after twice as long: the cause may be a sample that is soon gone.
const FIRST_BACKOFF: SignedDuration = SignedDuration::from_secs(5);
/// It is tried again within this time, however often it panicked: six doublings of 5 s, and as long as its number is valid without new
/// evidence.
const MAX_BACKOFF: SignedDuration = SignedDuration::from_secs(300);
/// Doublings after which the longest backoff is reached: 5 s × 2⁶ = 320 s.
const MAX_DOUBLINGS: u32 = 6;
/// Characters of a panic's message that are kept.
const MAX_CAUSE: usize = 200;

/// A model that panicked, and when it is tried again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Failed {
    /// When it panicked last.
    pub at: Timestamp,
    /// How often in a row.
    pub count: u32,
    /// Until then it is held.
    pub retry_at: Timestamp,
    /// The message of the panic.
    pub cause: SmolStr,
}

impl Failed {
    /// After a panic at `now`; `before` is the last one, if the model has not worked since.
    pub(crate) fn after(before: Option<&Self>, now: Timestamp, cause: SmolStr) -> Self {
        let count = before.map_or(0, |before| before.count).saturating_add(1);
        let backoff = FIRST_BACKOFF * (1_i32 << (count - 1).min(MAX_DOUBLINGS));
        let retry_at = now.checked_add(backoff.min(MAX_BACKOFF)).unwrap_or(Timestamp::MAX);
        Self { at: now, count, retry_at, cause }
    }

    /// `cause` as it is kept.
    pub(crate) fn cut(cause: &str) -> SmolStr {
        cause.chars().take(MAX_CAUSE).collect()
    }

    /// The model is not tried yet. A clock that was set back does not prolong the wait.
    pub(crate) fn waits(&self, now: Timestamp) -> bool {
        now < self.retry_at && self.retry_at.duration_since(now) <= MAX_BACKOFF
    }
}

/// Returns the result of `work` on the model `id`, or the message of its panic. No caller reads what `work` was changing.
pub(crate) fn guarded<T>(id: &GroupId, work: impl FnOnce() -> T) -> Result<T, SmolStr> {
    guarded_together([id], work)
}

/// Returns the result of `work`, or the message of its panic. No caller reads what `work` was changing.
///
/// # Errors
/// When `work` panics.
pub fn caught<T>(work: impl FnOnce() -> T) -> Result<T, SmolStr> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|payload| panic_message(&*payload))
}

/// Returns the result of `work` on all models of `ids` together, or the message of its panic.
pub(crate) fn guarded_together<'i, T>(
    ids: impl IntoIterator<Item = &'i GroupId>,
    work: impl FnOnce() -> T,
) -> Result<T, SmolStr> {
    let work = || {
        #[cfg(test)]
        ids.into_iter().for_each(tests::break_down);
        #[cfg(not(test))]
        let _ = ids;
        work()
    };
    caught(work)
}

fn panic_message(payload: &(dyn Any + Send)) -> SmolStr {
    let text = payload.downcast_ref::<&str>().copied();
    let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    Failed::cut(text.unwrap_or("a panic without a message"))
}

#[cfg(test)]
pub(crate) mod tests {
    use std::cell::RefCell;

    use super::*;

    thread_local! {
        /// The model that breaks on this thread, and after how many guarded pieces of work on it.
        static BROKEN: RefCell<Option<(GroupId, u32)>> = const { RefCell::new(None) };
    }

    /// Breaks where a test wants it.
    pub(super) fn break_down(id: &GroupId) {
        let breaks = BROKEN.with_borrow_mut(|broken| match broken {
            Some((broken, 0)) => broken == id,
            Some((broken, left)) if broken == id => {
                *left -= 1;
                false
            }
            _ => false,
        });
        assert!(!breaks, "index out of bounds: the length is 0");
    }

    /// Has the model break, from the guarded piece of work on it that has this number, while `work` runs.
    pub(crate) fn with_broken<T>(id: &GroupId, after: u32, work: impl FnOnce() -> T) -> T {
        BROKEN.set(Some((id.clone(), after)));
        let done = work();
        BROKEN.set(None);
        done
    }

    #[test]
    fn a_model_that_keeps_breaking_is_tried_ever_more_rarely_but_for_ever() {
        let start: Timestamp = "2026-11-21T12:00:00Z".parse().unwrap();
        let (mut last, mut waits, mut now) = (None, Vec::new(), start);
        for _ in 0..40 {
            let failed = Failed::after(last.as_ref(), now, "x".into());
            assert!(failed.waits(now) && !failed.waits(failed.retry_at));
            assert!(!failed.waits(now - SignedDuration::from_hours(1)), "the clock was set back");
            waits.push(failed.retry_at.duration_since(now).as_secs());
            now = failed.retry_at;
            last = Some(failed);
        }
        assert_eq!(waits[..8], [5, 10, 20, 40, 80, 160, 300, 300]);
        assert_eq!(waits[39], 300);
    }
}
