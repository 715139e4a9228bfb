//! Which metrics there are now: the rules of the file, read again when it changes, and the names of the series that they select, listed anew
//! from time to time. What is wrong in a rule, cannot be listed, or is too much costs only that rule; what was known of it stays.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures::stream::{self, StreamExt as _};
use jiff::Timestamp;
use smol_str::SmolStr;
use tokio::io::AsyncReadExt as _;
use tokio::time::Instant;
use tracing::{info, warn};

use super::config::{MAX_BYTES, RulesFile};
use super::rule::ExternalRule;
use crate::collect::PrometheusApi;
use crate::engine::SourceError;
use crate::serve::LabelRequirement;

/// Lists that are requested at a time.
const CONCURRENT_LISTS: usize = 8;
/// How often what is known is published while lists arrive.
const PUBLISH_INTERVAL: Duration = Duration::from_secs(1);
/// Most metrics, of which each rule has its share: series of one tenant do not crowd out the metrics of others.
const MAX_METRICS: usize = 10_000;
/// The least share of a rule.
const MIN_METRICS_OF_RULE: usize = 10;

/// How rules are used.
#[derive(Debug, Clone)]
pub struct RuleSettings {
    /// The file.
    pub file: PathBuf,
    /// How often series are listed.
    pub relist_interval: Duration,
    /// A series without a sample for so long makes no metric.
    pub max_age: Duration,
}

/// The metrics at one time.
#[derive(Debug)]
pub(super) struct Registry {
    metrics: BTreeMap<SmolStr, Metric>,
    /// By their names in lower case, in which an HPA asks for them; `None` where several differ only in that.
    lower_case: HashMap<SmolStr, Option<SmolStr>>,
    pub(super) names: Arc<[SmolStr]>,
    /// Why metrics may be missing that the rules make; `None` once each list was read.
    pub(super) unlisted: Option<String>,
    /// The queries of the rules that make more than their share.
    crowded: BTreeSet<String>,
}

/// What makes a metric.
#[derive(Debug)]
pub(super) struct Metric {
    series: String,
    rule: Arc<ExternalRule>,
}

impl Registry {
    /// The metrics that `rules` make of the series which each of them has selected. Of several that make one metric, the last counts, and of
    /// several series of a rule the last by name, which is the usual order of Prometheus.
    fn new(
        rules: &[Arc<ExternalRule>],
        series: &HashMap<String, Vec<String>>,
        unlisted: Option<String>,
    ) -> Self {
        let share = (MAX_METRICS / rules.len().max(1)).max(MIN_METRICS_OF_RULE);
        let mut metrics = BTreeMap::new();
        let mut crowded = BTreeSet::new();
        for rule in rules {
            let series = series.get(&rule.series_query).into_iter().flatten();
            let mut made: BTreeMap<SmolStr, Metric> = BTreeMap::new();
            for series in series {
                if let Some(name) = rule.metric(series) {
                    made.insert(name.into(), Metric { series: series.clone(), rule: Arc::clone(rule) });
                }
            }
            if made.len() > share {
                crowded.insert(rule.series_query.clone());
            }
            metrics.extend(made.into_iter().take(share));
        }
        let names: Arc<[SmolStr]> = metrics.keys().cloned().collect();
        let mut lower_case: HashMap<SmolStr, Option<SmolStr>> = HashMap::new();
        for name in names.iter() {
            let known = lower_case.entry(name.to_lowercase().into());
            known.and_modify(|known| *known = None).or_insert_with(|| Some(name.clone()));
        }
        Self { metrics, lower_case, names, unlisted, crowded }
    }

    /// Logs what is new in comparison with the last one.
    pub(super) fn log(&self, last: &Self) {
        if self.names != last.names {
            info!(metrics = self.names.len(), "the metrics of rules have changed");
        }
        for series_query in self.crowded.difference(&last.crowded) {
            warn!(
                series_query,
                "a rule makes more metrics than its share of {MAX_METRICS}; the rest is left out: narrow its seriesQuery"
            );
        }
    }

    /// A metric with its own name; `None` if there is none of that name.
    pub(super) fn find(&self, name: &str) -> Option<(&SmolStr, &Metric)> {
        let own = || self.metrics.get_key_value(self.lower_case.get(name)?.as_ref()?);
        self.metrics.get_key_value(name).or_else(own)
    }
}

impl Metric {
    /// # Errors
    /// Says why there is no query for this read.
    pub(super) fn query(
        &self,
        namespace: &str,
        requirements: &[LabelRequirement<'_>],
    ) -> Result<String, String> {
        self.rule.query(&self.series, namespace, requirements)
    }
}

/// What the next registry is made of.
#[derive(Debug, Default)]
pub(super) struct RuleBook {
    /// The file, or why it cannot be read.
    text: Option<Result<String, String>>,
    rules: Vec<Arc<ExternalRule>>,
    /// The names of series by the query that selects them.
    series: HashMap<String, Vec<String>>,
    /// The queries whose last list failed, with the cause.
    failing: BTreeMap<String, String>,
}

impl RuleBook {
    pub(super) fn registry(&self) -> Registry {
        let unlisted = match &self.text {
            None => Some("the rules are not read yet".to_owned()),
            Some(Err(cause)) if self.rules.is_empty() => {
                Some(format!("the file of the rules cannot be read: {cause}"))
            }
            Some(_) => {
                self.rules.iter().find(|rule| !self.series.contains_key(&rule.series_query)).map(|rule| {
                    let cause =
                        self.failing.get(&rule.series_query).map_or("that takes a moment", String::as_str);
                    format!("the series of {:.100} are not listed yet: {cause}", rule.series_query)
                })
            }
        };
        Registry::new(&self.rules, &self.series, unlisted)
    }

    /// Reads the file; true if the rules have changed.
    pub(super) async fn reload(&mut self, settings: &RuleSettings) -> bool {
        let text = read(&settings.file).await;
        if self.text.as_ref() == Some(&text) {
            return false;
        }
        let file = settings.file.display();
        let parsed = text.as_ref().map_err(Clone::clone).and_then(|text| RulesFile::parse(text));
        self.text = Some(text);
        match parsed {
            Ok(parsed) => {
                self.rules = valid_rules(&parsed);
                info!(%file, external_rules = self.rules.len(), "rules are in force");
                report_unserved(&parsed);
                true
            }
            Err(cause) => {
                let rules = self.rules.len();
                warn!(%file, cause, rules, "the rules cannot be read; those of before stay in force");
                false
            }
        }
    }

    /// Lists the series that the rules select. `publish` gets what is known after each list: one that is slow delays no other.
    pub(super) async fn relist(
        &mut self,
        api: &PrometheusApi,
        (max_age, now): (Duration, Timestamp),
        mut publish: impl FnMut(Registry),
    ) {
        let queries: HashSet<String> = self.rules.iter().map(|rule| rule.series_query.clone()).collect();
        // Not earlier: a file that is written in place may be empty for a moment.
        self.series.retain(|query, _| queries.contains(query));
        self.failing.retain(|query, _| queries.contains(query));
        let lists = queries.into_iter().map(async |query| {
            let names = api.series_names(&query, max_age, now).await;
            (query, names)
        });
        let mut lists = stream::iter(lists).buffer_unordered(CONCURRENT_LISTS);
        let mut published = Instant::now();
        while let Some((query, names)) = lists.next().await {
            self.take_list(query, names);
            if published.elapsed() >= PUBLISH_INTERVAL {
                publish(self.registry());
                published = Instant::now();
            }
        }
        publish(self.registry());
    }

    fn take_list(&mut self, query: String, names: Result<Vec<String>, SourceError>) {
        match names {
            Ok(names) => {
                if self.failing.remove(&query).is_some() {
                    info!(series_query = query, "the series of a rule can be listed again");
                }
                self.series.insert(query, names);
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
}

/// The text of a file, or why there is none.
async fn read(path: &std::path::Path) -> Result<String, String> {
    let mut text = String::new();
    let limit = MAX_BYTES as u64 + 1;
    let file = tokio::fs::File::open(path).await.map_err(|error| error.to_string())?;
    file.take(limit).read_to_string(&mut text).await.map_err(|error| error.to_string())?;
    Ok(text)
}

/// The external rules that are valid; the others are logged.
fn valid_rules(file: &RulesFile) -> Vec<Arc<ExternalRule>> {
    let valid = |(index, rule)| match ExternalRule::new(rule) {
        Ok(valid) => Some(Arc::new(valid)),
        Err(cause) => {
            warn!(
                index,
                series_query = rule.series_query,
                cause,
                "a rule of externalRules is wrong and makes no metrics"
            );
            None
        }
    };
    file.external_rules.iter().enumerate().filter_map(valid).collect()
}

/// Logs what is in the file and has no effect.
fn report_unserved(file: &RulesFile) {
    if !file.rules.is_empty() || file.resource_rules.is_some() {
        warn!(
            rules = file.rules.len(),
            resource_rules = file.resource_rules.is_some(),
            "rules of custom.metrics.k8s.io and metrics.k8s.io are not served: only externalRules are; keep prometheus-adapter or \
             metrics-server for the others"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(yaml: &str) -> Vec<Arc<ExternalRule>> {
        valid_rules(&RulesFile::parse(yaml).unwrap())
    }

    fn registry(rules: &[Arc<ExternalRule>], series: &[(&str, &[&str])]) -> Registry {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        Registry::new(
            rules,
            &series.iter().map(|(query, own)| ((*query).to_owned(), names(own))).collect(),
            None,
        )
    }

    const TWO: &str = r#"
externalRules:
- {seriesQuery: a, name: {matches: "^(.*)_total$"}, resources: {namespaced: false}, metricsQuery: "first(<<.Series>>)"}
- {seriesQuery: a, name: {as: Other}, resources: {namespaced: false}, metricsQuery: "other(<<.Series>>)"}
- {seriesQuery: b, resources: {namespaced: false}, metricsQuery: "last(<<.Series>>)"}
"#;

    #[test]
    fn the_last_rule_that_makes_a_metric_counts() {
        let registry = registry(&rules(TWO), &[("a", &["jobs_total", "waits"]), ("b", &["jobs"])]);
        assert_eq!(registry.names.iter().map(SmolStr::as_str).collect::<Vec<_>>(), ["Other", "jobs"]);
        let query = |name: &str| registry.find(name).map(|(_, metric)| metric.query("llm", &[]).unwrap());
        assert_eq!(query("jobs").as_deref(), Some("last(jobs)"));
        assert_eq!(query("Other").as_deref(), Some("other(waits)"), "the last series by name");
        assert_eq!(query("other"), query("Other"), "an HPA asks in lower case");
        assert_eq!(query("waits"), None);
    }

    #[test]
    fn a_rule_that_makes_too_many_metrics_leaves_those_of_others() {
        let many: Vec<String> = (0..MAX_METRICS).map(|index| format!("a{index}_total")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        let registry = registry(&rules(TWO), &[("a", &many), ("b", &["jobs"])]);
        assert_eq!(registry.names.len(), MAX_METRICS / 3 + 2);
        assert!(registry.find("jobs").is_some() && registry.crowded.contains("a"));
    }

    #[test]
    fn a_name_in_lower_case_is_not_that_of_two() {
        let yaml =
            "externalRules: [{seriesQuery: b, resources: {namespaced: false}, metricsQuery: <<.Series>>}]";
        let registry = registry(&rules(yaml), &[("b", &["Orders", "ORDERS", "Jobs"])]);
        assert!(registry.find("orders").is_none() && registry.find("Orders").is_some());
        assert!(registry.find("jobs").is_some());
    }

    #[test]
    fn a_rule_that_is_wrong_costs_itself() {
        let wrong =
            "externalRules:\n- {seriesQuery: a, metricsQuery: '<<'}\n- {seriesQuery: b, metricsQuery: b}\n";
        assert_eq!(rules(wrong).len(), 1);
    }

    #[test]
    fn a_list_that_fails_leaves_what_was_known() {
        let mut book = RuleBook { text: Some(Ok(TWO.to_owned())), rules: rules(TWO), ..RuleBook::default() };
        assert!(book.registry().unlisted.unwrap().contains("that takes a moment"));
        book.take_list("b".into(), Ok(vec!["jobs".into()]));
        book.take_list("b".into(), Err(SourceError { kind: "timeout", message: "no answer".into() }));
        assert_eq!(book.registry().names.len(), 1);
        assert_eq!(book.failing["b"], "no answer");
        book.take_list("b".into(), Ok(Vec::new()));
        assert!(book.failing.is_empty() && book.registry().names.is_empty());
        book.take_list("a".into(), Err(SourceError { kind: "timeout", message: "no answer".into() }));
        assert_eq!(
            book.registry().unlisted.as_deref(),
            Some("the series of a are not listed yet: no answer")
        );
        book.take_list("a".into(), Ok(Vec::new()));
        assert_eq!(book.registry().unlisted, None);
    }

    #[tokio::test]
    async fn a_file_that_became_wrong_leaves_the_rules_of_before() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("config.yaml");
        let settings = RuleSettings {
            file: file.clone(),
            relist_interval: Duration::from_secs(60),
            max_age: Duration::from_secs(60),
        };
        let mut book = RuleBook::default();
        assert!(!book.reload(&settings).await, "it is not there yet");
        std::fs::write(&file, TWO).unwrap();
        assert!(book.reload(&settings).await);
        assert!(!book.reload(&settings).await, "it is the same");
        book.take_list("b".into(), Ok(vec!["jobs".into()]));
        for wrong in ["externalRules: 3", "externalRule: []"] {
            std::fs::write(&file, wrong).unwrap();
            assert!(!book.reload(&settings).await);
            assert_eq!((book.rules.len(), book.registry().names.len()), (3, 1));
        }
        std::fs::write(&file, TWO.replace("seriesQuery: b", "seriesQuery: c")).unwrap();
        assert!(book.reload(&settings).await);
        assert!(book.registry().names.is_empty(), "the new series are not listed yet");
    }
}
