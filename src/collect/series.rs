//! The names of series, for people who look for one that is missing.

use std::collections::BTreeSet;

use wva_core::snapshot::Signal;

use super::signals::names;

/// The name under which each engine, or scheduler, shows a signal today: of several that one engine had over time the newest.
#[must_use]
pub fn series_of(signal: Signal) -> Vec<String> {
    let mut engines = BTreeSet::new();
    let newest =
        |name: &&str| name.split_once(':').is_none_or(|(engine, _)| engines.insert(engine.to_owned()));
    names(signal).into_iter().map(|name| name.text).filter(newest).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_engine_has_one_name_of_today() {
        assert_eq!(series_of(Signal::KvUsage), ["vllm:kv_cache_usage_perc", "sglang:token_usage"]);
        assert!(Signal::ALL.into_iter().all(|signal| !series_of(signal).is_empty()));
    }
}
