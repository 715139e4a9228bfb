//! What was listed of Prometheus, by the query that selects it. What cannot be listed leaves what was known.

use std::collections::{BTreeMap, HashMap, HashSet};

use tracing::{info, warn};

use crate::engine::SourceError;

/// The last list of each query.
#[derive(Debug)]
pub(super) struct Lists<T> {
    pub(super) series: HashMap<String, Vec<T>>,
    /// The queries whose last list failed, with the cause.
    failing: BTreeMap<String, String>,
}

impl<T> Default for Lists<T> {
    fn default() -> Self {
        Self { series: HashMap::new(), failing: BTreeMap::new() }
    }
}

impl<T> Lists<T> {
    /// Forgets all other queries.
    pub(super) fn retain(&mut self, queries: &HashSet<String>) {
        self.series.retain(|query, _| queries.contains(query));
        self.failing.retain(|query, _| queries.contains(query));
    }

    pub(super) fn take(&mut self, query: String, series: Result<Vec<T>, SourceError>) {
        match series {
            Ok(series) => {
                if self.failing.remove(&query).is_some() {
                    info!(series_query = query, "the series of a rule can be listed again");
                }
                self.series.insert(query, series);
            }
            Err(error) => {
                if !self.failing.contains_key(&query) {
                    let error = error.message.as_str();
                    warn!(
                        series_query = query,
                        error, "the series of a rule cannot be listed; its metrics of before stay"
                    );
                }
                self.failing.insert(query, error.message);
            }
        }
    }

    /// How many queries could not be listed the last time.
    pub(super) fn failing(&self) -> usize {
        self.failing.len()
    }

    /// Why the metrics of some of these queries may not be known.
    pub(super) fn unlisted<'a>(&self, mut queries: impl Iterator<Item = &'a String>) -> Option<String> {
        let query = queries.find(|query| !self.series.contains_key(*query))?;
        let cause = self.failing.get(query).map_or("that takes a moment", String::as_str);
        Some(format!("the series of {query:.100} are not listed yet: {cause}"))
    }
}
