//! Namespaces whose query failed for its size although it was for that namespace alone. Pure.

use std::collections::{BTreeMap, BTreeSet};

use tokio::time::Instant;

use super::window::MAX_WINDOW;

/// Namespaces whose answer was rejected, truncated or late although nothing else was queried with them. The only way left is to
/// query them separately and with the shortest window. They stay here as long as a window that did not help is not tried again.
#[derive(Debug, Default)]
pub(super) struct OversizedNamespaces(BTreeMap<String, Instant>);

impl OversizedNamespaces {
    /// Adds a namespace, for the next 10 min.
    pub(super) fn add(&mut self, namespace: &str, now: Instant) {
        self.0.insert(namespace.to_owned(), now + MAX_WINDOW);
    }

    /// The current ones.
    pub(super) fn namespaces(&mut self, now: Instant) -> BTreeSet<String> {
        self.0.retain(|_, until| now < *until);
        self.0.keys().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_namespace_is_oversized_for_the_longest_window() {
        let (mut oversized, now) = (OversizedNamespaces::default(), Instant::now());
        oversized.add("a", now);
        oversized.add("b", now + Duration::from_secs(60));
        let names = |oversized: &mut OversizedNamespaces, after: Duration| {
            oversized.namespaces(now + after).into_iter().collect::<Vec<_>>()
        };
        assert_eq!(names(&mut oversized, Duration::ZERO), ["a", "b"]);
        assert_eq!(names(&mut oversized, MAX_WINDOW), ["b"]);
        assert_eq!(names(&mut oversized, MAX_WINDOW * 2), Vec::<String>::new());
    }
}
