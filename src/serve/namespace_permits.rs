//! A limit of concurrent reads, of which each namespace has a part.

use std::collections::HashMap;

use parking_lot::Mutex;

use super::tls::{AnswerPermit, Permits};

/// Permits of which one namespace has a part at most, so that its slow answers leave some to the others.
pub(crate) struct NamespacePermits {
    all: Permits,
    limit: usize,
    /// Of namespaces that have some.
    used: Mutex<HashMap<String, Permits>>,
}

impl NamespacePermits {
    /// `limit` in all, `of_namespace` of one namespace.
    pub(crate) fn new(limit: usize, of_namespace: usize) -> Self {
        Self { all: Permits::new(limit), limit: of_namespace, used: Mutex::default() }
    }

    /// `None` when all permits, or those of this namespace, are in use.
    pub(crate) fn acquire(&self, namespace: &str) -> Option<[AnswerPermit; 2]> {
        let mut used = self.used.lock();
        used.retain(|_, permits| permits.is_used());
        let own = used.entry(namespace.to_owned()).or_insert_with(|| Permits::new(self.limit));
        Some([own.acquire()?, self.all.acquire()?])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_answers_of_one_namespace_took_all_permits() {
        let permits = NamespacePermits::new(3, 2);
        let hanging: Vec<_> =
            std::iter::repeat_with(|| permits.acquire("tenant")).map_while(|own| own).collect();
        assert_eq!(hanging.len(), 2);
        let of_llm = permits.acquire("llm");
        assert!(of_llm.is_some() && permits.acquire("third").is_none());
        drop((hanging, of_llm));
        assert!(permits.acquire("tenant").is_some());
        assert_eq!(permits.used.lock().len(), 1, "a namespace without reads takes no place");
    }
}
