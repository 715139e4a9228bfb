//! Handshakes under way: bounded, and the oldest gives way to the newest. Who has not shown a certificate yet may be
//! anybody; a peer that means it needs milliseconds, so one that waits longest is the one that doesn't.

use std::collections::BTreeMap;

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

/// The handshakes of one listener.
#[derive(Debug)]
pub(crate) struct Handshakes {
    most: usize,
    open: Mutex<Open>,
}

/// By the order in which they began.
#[derive(Debug, Default)]
struct Open {
    begun: u64,
    displaced: BTreeMap<u64, CancellationToken>,
}

/// One handshake; dropping it gives its place back.
pub(crate) struct Handshake<'a> {
    all: &'a Handshakes,
    number: u64,
    displaced: CancellationToken,
}

impl Handshakes {
    /// At most `most` at once; at least one.
    pub(crate) fn new(most: usize) -> Self {
        Self { most: most.max(1), open: Mutex::default() }
    }

    /// Begins a handshake, in the place of the oldest when all are taken.
    pub(crate) fn begin(&self) -> Handshake<'_> {
        let mut open = self.open.lock();
        while open.displaced.len() >= self.most {
            if let Some((_, oldest)) = open.displaced.pop_first() {
                oldest.cancel();
            }
        }
        open.begun += 1;
        let (number, displaced) = (open.begun, CancellationToken::new());
        open.displaced.insert(number, displaced.clone());
        Handshake { all: self, number, displaced }
    }
}

impl Handshake<'_> {
    /// What `handshake` comes to; `None` when it had to give way.
    pub(crate) async fn unless_displaced<F: Future>(&self, handshake: F) -> Option<F::Output> {
        self.displaced.run_until_cancelled(handshake).await
    }
}

impl Drop for Handshake<'_> {
    fn drop(&mut self) {
        self.all.open.lock().displaced.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use super::*;

    #[tokio::test]
    async fn the_oldest_gives_way_and_the_newest_goes_on() {
        let all = Handshakes::new(2);
        let (first, second) = (all.begin(), all.begin());
        let third = all.begin();
        assert_eq!(first.unless_displaced(pending::<()>()).await, None);
        assert_eq!(second.unless_displaced(ready(2)).await, Some(2));
        drop(second);
        let fourth = all.begin();
        assert_eq!(third.unless_displaced(ready(3)).await, Some(3), "there was a place again");
        assert_eq!(fourth.unless_displaced(ready(4)).await, Some(4));
        drop((first, third, fourth));
        assert!(all.open.lock().displaced.is_empty());
    }
}
