//! Keeps what the metrics are made of: the rules of the file, read again when it changes, and the series that they select, listed anew from
//! time to time. What is wrong in a rule, cannot be listed, or is too much costs only that rule; what was known of it stays.

use std::collections::{BTreeSet, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use futures::stream::{self, StreamExt as _};
use jiff::Timestamp;
use tokio::io::AsyncReadExt as _;
use tokio::time::Instant;
use tracing::{info, warn};

use super::config::{DiscoveryRule, MAX_BYTES, RulesFile};
use super::kind_cache::KindCache;
use super::kinds::KindTable;
use super::lists::Lists;
use super::object_registry::ObjectRegistry;
use super::object_rule::ObjectRule;
use super::object_series::series_of;
use super::ports::ObjectApi;
use super::registry::{MAX_METRICS, Registry};
use super::rule::ExternalRule;
use super::usage_rule::UsageRule;
use crate::collect::{PrometheusApi, SeriesLabels};
use crate::engine::SourceError;
use crate::telemetry::{RuleCounts, RuleMetricFamilies};

/// Lists that are requested at a time.
const CONCURRENT_LISTS: usize = 8;
/// How often what is known is published while lists arrive.
const PUBLISH_INTERVAL: Duration = Duration::from_secs(1);

/// How rules are used.
#[derive(Debug, Clone)]
pub struct RuleSettings {
    /// The file.
    pub file: PathBuf,
    /// How often series are listed.
    pub relist_interval: Duration,
    /// A series without a sample for so long makes no metric.
    pub max_age: Duration,
    /// Whether the rules of processor time and memory are used.
    pub serves_usage: bool,
    /// What shows how they are.
    pub metrics: RuleMetricFamilies,
}

/// All metrics at one time.
#[derive(Debug, Default)]
pub(super) struct Registries {
    pub(super) external: Registry,
    pub(super) objects: ObjectRegistry,
    /// The rule of processor time and memory, if it is used.
    pub(super) usage: Option<Arc<UsageRule>>,
    pub(super) counts: RuleCounts,
}

impl Registries {
    /// Logs what is new in comparison with the last one.
    pub(super) fn log(&self, last: &Self) {
        if self.external.names != last.external.names {
            info!(metrics = self.external.names.len(), "the external metrics of rules have changed");
        }
        if self.objects.listed != last.objects.listed {
            let metrics: usize = self.objects.listed.iter().map(|of_kind| of_kind.metrics.len()).sum();
            info!(metrics, "the metrics of objects of rules have changed");
        }
        let crowded = self.external.crowded.difference(&last.external.crowded);
        for series_query in crowded.chain(self.objects.crowded.difference(&last.objects.crowded)) {
            warn!(
                series_query,
                "a rule makes more metrics than its share of {MAX_METRICS}; the rest is left out: narrow its seriesQuery"
            );
        }
    }

    /// Takes the lists of names over that have not changed: whoever compares them need not read them.
    pub(super) fn reuse_lists(&mut self, last: &Self) {
        if self.external.names == last.external.names {
            self.external.names = Arc::clone(&last.external.names);
        }
        if self.objects.listed == last.objects.listed {
            self.objects.listed = Arc::clone(&last.objects.listed);
        }
    }
}

/// What the next registries are made of.
pub(super) struct RuleBook {
    /// The file, or why it cannot be read.
    text: Option<Result<String, String>>,
    /// Rules of the file in force that are wrong.
    wrong: usize,
    /// Whether the file in force is the one that was read last.
    is_file_valid: bool,
    external: Vec<Arc<ExternalRule>>,
    objects: Vec<Arc<ObjectRule>>,
    usage: Option<Arc<UsageRule>>,
    kinds: KindCache,
    /// The names of the series of external rules.
    names: Lists<String>,
    /// The series of rules for objects.
    series: Lists<SeriesLabels>,
    /// The resources of rules that the log has named, since the API server does not serve them.
    unknown: BTreeSet<String>,
}

/// A list of one kind or the other.
enum List {
    Names(Result<Vec<String>, SourceError>),
    Series(Result<Vec<SeriesLabels>, SourceError>),
}

impl RuleBook {
    pub(super) fn new(objects: Arc<dyn ObjectApi>) -> Self {
        Self {
            text: None,
            wrong: 0,
            is_file_valid: false,
            external: Vec::new(),
            objects: Vec::new(),
            usage: None,
            kinds: KindCache::new(objects),
            names: Lists::default(),
            series: Lists::default(),
            unknown: BTreeSet::new(),
        }
    }

    pub(super) fn registries(&self) -> Registries {
        let unlisted =
            self.unlisted(self.names.unlisted(self.external.iter().map(|rule| &rule.naming.series_query)));
        let external = Registry::new(&self.external, &self.names.series, unlisted);
        let unread = if self.objects.is_empty() { None } else { self.kinds.unread() };
        let unlisted = unread
            .or_else(|| self.series.unlisted(self.objects.iter().map(|rule| &rule.naming.series_query)));
        let unlisted = self.unlisted(unlisted);
        let objects =
            ObjectRegistry::new(&self.objects, &self.series.series, Arc::clone(&self.kinds.table), unlisted);
        let counts = RuleCounts {
            valid: self.external.len() + self.objects.len() + usize::from(self.usage.is_some()),
            wrong: self.wrong,
            is_file_valid: self.is_file_valid,
            failing_lists: self.names.failing() + self.series.failing(),
            external_metrics: external.names.len(),
            object_metrics: objects.listed.iter().map(|of_kind| of_kind.metrics.len()).sum(),
        };
        Registries { external, objects, usage: self.usage.clone(), counts }
    }

    /// Why metrics may be missing: the file, or else what is not listed of its rules.
    fn unlisted(&self, of_rules: Option<String>) -> Option<String> {
        match &self.text {
            None => Some("the rules are not read yet".to_owned()),
            Some(Err(cause)) if self.external.is_empty() && self.objects.is_empty() => {
                Some(format!("the file of the rules cannot be read: {cause}"))
            }
            Some(_) => of_rules,
        }
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
        self.is_file_valid = parsed.is_ok();
        match parsed {
            Ok(parsed) => {
                self.external = valid_rules("externalRules", &parsed.external_rules, ExternalRule::new);
                self.objects = valid_rules("rules", &parsed.rules, ObjectRule::new);
                let (external_rules, rules) = (self.external.len(), self.objects.len());
                info!(%file, rules, external_rules, "rules are in force");
                self.usage = usage_rule(&parsed, settings.serves_usage);
                let is_usage_wrong =
                    settings.serves_usage && parsed.resource_rules.is_some() && self.usage.is_none();
                self.wrong = parsed.external_rules.len() + parsed.rules.len() - external_rules - rules
                    + usize::from(is_usage_wrong);
                true
            }
            Err(cause) => {
                let rules = self.external.len() + self.objects.len();
                warn!(%file, cause, rules, "the rules cannot be read; those of before stay in force");
                false
            }
        }
    }

    /// Reads the kinds of the API server if rules need them and it is time; true if they have changed. With `is_wanted`, a read named one
    /// that is not known.
    pub(super) async fn refresh_kinds(&mut self, is_wanted: bool) -> bool {
        if self.objects.is_empty() && self.usage.is_none() {
            return false;
        }
        let unknown = self.unknown_resources();
        let has_changed = self.kinds.refresh(is_wanted || !unknown.is_empty()).await;
        if self.kinds.unread().is_none() {
            let unknown = if has_changed { self.unknown_resources() } else { unknown };
            for resource in unknown.difference(&self.unknown) {
                warn!(
                    resource,
                    "the API server serves no such resource; labels of rules name none of it until it does"
                );
            }
            self.unknown = unknown;
        }
        has_changed
    }

    fn unknown_resources(&self) -> BTreeSet<String> {
        let kinds = &self.kinds.table;
        let unknown = self.objects.iter().flat_map(|rule| rule.labels.unknown(kinds));
        unknown
            .map(|own| format!("{}.{}", own.resource, own.group).trim_end_matches('.').to_owned())
            .collect()
    }

    /// Lists the series that the rules select. `publish` gets what is known from time to time: a list that is slow delays no other.
    pub(super) async fn relist(
        &mut self,
        api: &PrometheusApi,
        (max_age, now): (Duration, Timestamp),
        mut publish: impl FnMut(Registries),
    ) {
        let names: HashSet<String> =
            self.external.iter().map(|rule| rule.naming.series_query.clone()).collect();
        let series: HashSet<String> =
            self.objects.iter().map(|rule| rule.naming.series_query.clone()).collect();
        // Not earlier: a file that is written in place may be empty for a moment.
        self.names.retain(&names);
        self.series.retain(&series);
        let at = (max_age, now);
        let mut lists: Vec<BoxFuture<'_, (String, List)>> = Vec::new();
        for query in names {
            lists.push(list_names(api, query, at).boxed());
        }
        // Without the kinds, no label has a meaning, and an empty list would replace what was known.
        for query in series.into_iter().filter(|_| self.kinds.unread().is_none()) {
            let rules = self.objects.iter().filter(|rule| rule.naming.series_query == query);
            let (rules, kinds) = (rules.cloned().collect(), Arc::clone(&self.kinds.table));
            lists.push(list_series(api, query, rules, kinds, at).boxed());
        }
        let mut lists = stream::iter(lists).buffer_unordered(CONCURRENT_LISTS);
        let mut published = Instant::now();
        while let Some((query, list)) = lists.next().await {
            match list {
                List::Names(names) => self.names.take(query, names),
                List::Series(series) => self.series.take(query, series),
            }
            if published.elapsed() >= PUBLISH_INTERVAL {
                publish(self.registries());
                published = Instant::now();
            }
        }
        publish(self.registries());
    }
}

async fn list_names(api: &PrometheusApi, query: String, at: (Duration, Timestamp)) -> (String, List) {
    let names = api.series_names(&query, at.0).await;
    (query, List::Names(names))
}

async fn list_series(
    api: &PrometheusApi,
    query: String,
    rules: Vec<Arc<ObjectRule>>,
    kinds: Arc<KindTable>,
    at: (Duration, Timestamp),
) -> (String, List) {
    let series = series_of(api, &query, (&rules, &kinds), at).await;
    (query, List::Series(series))
}

/// The text of a file, or why there is none.
async fn read(path: &Path) -> Result<String, String> {
    let mut text = String::new();
    let limit = MAX_BYTES as u64 + 1;
    let file = tokio::fs::File::open(path).await.map_err(|error| error.to_string())?;
    file.take(limit).read_to_string(&mut text).await.map_err(|error| error.to_string())?;
    Ok(text)
}

/// The rules that are valid; the others are logged.
fn valid_rules<T>(
    of: &'static str,
    rules: &[DiscoveryRule],
    new: impl Fn(&DiscoveryRule) -> Result<T, String>,
) -> Vec<Arc<T>> {
    let valid = |(index, rule): (usize, &DiscoveryRule)| match new(rule) {
        Ok(valid) => Some(Arc::new(valid)),
        Err(cause) => {
            let series_query = &rule.series_query;
            warn!(of, index, series_query, cause, "a rule is wrong and makes no metrics");
            None
        }
    };
    rules.iter().enumerate().filter_map(valid).collect()
}

/// The rule of processor time and memory, if it is used and valid; otherwise the log says why not.
fn usage_rule(file: &RulesFile, is_served: bool) -> Option<Arc<UsageRule>> {
    let rules = file.resource_rules.as_ref()?;
    if !is_served {
        info!(
            "resourceRules have no effect without --serve-resource-metrics: usually metrics-server serves metrics.k8s.io"
        );
        return None;
    }
    match UsageRule::new(rules) {
        Ok(rule) => Some(Arc::new(rule)),
        Err(cause) => {
            warn!(cause, "resourceRules are wrong and make no metrics");
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::kinds::tests::kind;
    use super::super::ports::tests::FakeKinds;
    use super::*;

    const TWO: &str = r#"
externalRules:
- {seriesQuery: a, name: {matches: "^(.*)_total$"}, resources: {namespaced: false}, metricsQuery: "first(<<.Series>>)"}
- {seriesQuery: a, name: {as: Other}, resources: {namespaced: false}, metricsQuery: "other(<<.Series>>)"}
- {seriesQuery: b, resources: {namespaced: false}, metricsQuery: "last(<<.Series>>)"}
"#;

    fn book(text: &str) -> RuleBook {
        let parsed = RulesFile::parse(text).unwrap();
        let mut book = RuleBook::new(Arc::new(FakeKinds(|| Ok(vec![kind("", "Pod", "pods", true)]))));
        book.text = Some(Ok(text.to_owned()));
        book.external = valid_rules("externalRules", &parsed.external_rules, ExternalRule::new);
        book.objects = valid_rules("rules", &parsed.rules, ObjectRule::new);
        book
    }

    fn failure() -> SourceError {
        SourceError { kind: "timeout", message: "no answer".into() }
    }

    #[test]
    fn a_rule_that_is_wrong_costs_itself() {
        for kind in ["rules", "externalRules"] {
            let wrong = format!(
                "{kind}:\n- {{seriesQuery: a, metricsQuery: '<<'}}\n- {{seriesQuery: b, metricsQuery: b}}\n"
            );
            let book = book(&wrong);
            assert_eq!(book.objects.len() + book.external.len(), 1);
        }
    }

    #[test]
    fn a_list_that_fails_leaves_what_was_known() {
        let mut book = book(TWO);
        let external = |book: &RuleBook| book.registries().external;
        assert!(external(&book).unlisted.unwrap().contains("that takes a moment"));
        book.names.take("b".into(), Ok(vec!["jobs".into()]));
        book.names.take("b".into(), Err(failure()));
        assert_eq!(external(&book).names.len(), 1);
        book.names.take("b".into(), Ok(Vec::new()));
        assert!(external(&book).names.is_empty());
        book.names.take("a".into(), Err(failure()));
        assert_eq!(
            external(&book).unlisted.as_deref(),
            Some("the series of a are not listed yet: no answer")
        );
        book.names.take("a".into(), Ok(Vec::new()));
        assert_eq!(external(&book).unlisted, None);
    }

    #[tokio::test]
    async fn metrics_of_objects_need_the_kinds_of_the_api_server() {
        let mut book = book(
            "rules: [{seriesQuery: a, resources: {overrides: {pod: {resource: pod}, x: {resource: brand}}}, metricsQuery: q}]",
        );
        let series = SeriesLabels { name: "s".into(), labels: BTreeSet::from(["pod".into(), "x".into()]) };
        book.series.take("a".into(), Ok(vec![series]));
        let objects = book.registries().objects;
        assert!(objects.listed.is_empty() && objects.unlisted.unwrap().contains("kinds of the API server"));
        assert!(book.refresh_kinds(false).await);
        let objects = book.registries().objects;
        assert_eq!((objects.listed.len(), objects.unlisted), (1, None));
        assert_eq!(book.unknown, BTreeSet::from(["brand".to_owned()]));
    }

    #[tokio::test]
    async fn a_file_that_became_wrong_leaves_the_rules_of_before() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("config.yaml");
        let settings = RuleSettings {
            file: file.clone(),
            relist_interval: Duration::from_secs(60),
            max_age: Duration::from_secs(60),
            serves_usage: false,
            metrics: RuleMetricFamilies::default(),
        };
        let mut book = RuleBook::new(Arc::new(FakeKinds(|| Ok(vec![kind("", "Pod", "pods", true)]))));
        assert!(!book.reload(&settings).await, "it is not there yet");
        std::fs::write(&file, TWO).unwrap();
        assert!(book.reload(&settings).await);
        assert!(!book.reload(&settings).await, "it is the same");
        book.names.take("b".into(), Ok(vec!["jobs".into()]));
        for wrong in ["externalRules: 3", "externalRule: []"] {
            std::fs::write(&file, wrong).unwrap();
            assert!(!book.reload(&settings).await);
            assert_eq!((book.external.len(), book.registries().external.names.len()), (3, 1));
        }
        std::fs::write(&file, TWO.replace("seriesQuery: b", "seriesQuery: c")).unwrap();
        assert!(book.reload(&settings).await);
        assert!(book.registries().external.names.is_empty(), "the new series are not listed yet");
    }
}
