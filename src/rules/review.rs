//! Reviews a file of rules: what each of them makes, and what is wrong with it. What needs Prometheus or the API server is reviewed where
//! these are given.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use futures::stream::{self, StreamExt as _};
use jiff::Timestamp;
use smol_str::SmolStr;
use tokio::time::{Instant, timeout, timeout_at};

use super::config::RulesFile;
use super::kinds::{KindTable, ObjectKind};
use super::object_rule::{ObjectLabels, ObjectRule};
use super::object_series::series_of;
use super::ports::ObjectApi;
use super::registry::share;
use super::rule::ExternalRule;
use super::usage_rule::UsageRule;
use crate::collect::{PrometheusApi, SeriesLabels};
use crate::engine::SourceError;
use crate::serve::UsageOf;

/// Longest wait for the kinds of the API server.
const KINDS_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest wait for all answers of Prometheus.
const DEADLINE: Duration = Duration::from_secs(20);
/// Questions to Prometheus at a time.
const CONCURRENCY: usize = 8;
/// Names in place of those of a read.
const NAMESPACE: &str = "default";
const OBJECT: &str = "name";

/// Who is asked.
#[derive(Clone, Copy)]
pub struct ReviewSources<'a> {
    /// With the age from which on a series makes no metric, and the time.
    pub prometheus: Option<(&'a PrometheusApi, Duration, Timestamp)>,
    /// The API server.
    pub objects: Option<&'a dyn ObjectApi>,
    /// Whether the rules of processor time and memory are used.
    pub serves_usage: bool,
    /// Whether a metric of this name, in lower case, is served without a rule.
    pub is_reserved: fn(&str) -> bool,
}

/// What a review has found.
#[derive(Debug, Default)]
pub struct Review {
    /// What is wrong, each with the place of its rule in the file, such as `externalRules[0]`, and its `seriesQuery`.
    pub findings: Vec<(String, RuleProblem)>,
    /// The kinds whose objects a read by selector lists.
    pub kinds: Vec<Arc<ObjectKind>>,
}

/// What is wrong with a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RuleProblem {
    /// A field is wrong.
    Invalid(String),
    /// There is no query for it, or Prometheus refuses the query.
    Query(String),
    /// Prometheus refuses its `seriesQuery`.
    SeriesQuery(String),
    /// No series has had a sample for this long.
    NoSeries(Duration),
    /// Its series, of which this many have a name of their own, make no metric by their names.
    NoName(usize),
    /// No label of its series, of which these are names, is that of a kind of objects.
    NoObject(usize),
    /// An override names a resource that the API server does not serve.
    UnknownResource(String),
    /// A later rule makes this metric too, and maybe more of them.
    Replaced {
        /// The name of the metric, with the resource whose objects have it.
        metric: String,
        /// How many there are.
        count: usize,
        /// The place of the last rule that makes this metric.
        by: String,
    },
    /// It makes a metric of this name, which is served without a rule.
    Reserved(String),
    /// It makes a metric whose name differs from that of another one only in case.
    SameInLowerCase(String, String),
    /// It makes more metrics than this, its share.
    TooManyMetrics(usize),
    /// It is not used.
    Unused,
    /// Something could not be asked.
    Unchecked(String),
}

/// A rule whose texts are valid.
enum ValidRule {
    External(Arc<ExternalRule>),
    Object(Arc<ObjectRule>),
}

/// A valid rule, with its place.
struct PlacedRule {
    place: String,
    rule: ValidRule,
}

/// The metrics of a rule: the resource whose objects have it, or nothing for an external one, and the name; with the series.
type MadeMetrics = BTreeMap<(SmolStr, SmolStr), SmolStr>;

/// What was listed of a series query.
type Listed = Result<Vec<SeriesLabels>, RuleProblem>;

/// Reviews the text of a file.
///
/// # Errors
/// Says why it is no file of rules: then none of them counts.
pub async fn review(text: &str, sources: ReviewSources<'_>) -> Result<Review, String> {
    let file = RulesFile::parse(text)?;
    let mut review = Review::default();
    let rules = review.valid_rules(&file);
    let needs_kinds = !file.rules.is_empty() || file.resource_rules.is_some() && sources.serves_usage;
    let kinds = match sources.objects.filter(|_| needs_kinds) {
        Some(objects) => review.kinds(objects).await,
        None => None,
    };
    let deadline = Instant::now() + DEADLINE;
    review.usage(&file, kinds.as_ref(), sources, deadline).await;
    if let Some(kinds) = &kinds {
        review.unknown_resources(&rules, kinds);
    }
    let listed = list(&rules, kinds.as_ref(), sources, deadline).await;
    let mut all_made = Vec::new();
    for rule in &rules {
        let made = match listed.get(&(rule.is_external(), rule.series_query())) {
            Some(Ok(series)) => review.made(rule, series, kinds.as_ref(), (rules.len(), sources)),
            Some(Err(problem)) => {
                review.add(rule, problem.clone());
                MadeMetrics::new()
            }
            None => MadeMetrics::new(),
        };
        all_made.push(made);
    }
    review.queries(&rules, &all_made, kinds.as_ref(), (sources, deadline)).await;
    review.names(&rules, &all_made, sources.is_reserved);
    review.listed_kinds(&all_made, kinds.as_ref());
    Ok(review)
}

impl PlacedRule {
    fn is_external(&self) -> bool {
        matches!(self.rule, ValidRule::External(_))
    }

    fn series_query(&self) -> &str {
        match &self.rule {
            ValidRule::External(rule) => &rule.naming.series_query,
            ValidRule::Object(rule) => &rule.naming.series_query,
        }
    }

    /// A query of it, for the metric of a series; for objects of any kind where none is known.
    fn query(&self, (resource, series): (&str, &str), kinds: Option<&KindTable>) -> Result<String, String> {
        match &self.rule {
            ValidRule::External(rule) => rule.query(series, NAMESPACE, &[]),
            ValidRule::Object(rule) => {
                let kind = kinds.and_then(|kinds| Some((kinds.find_resource(resource)?, kinds)));
                let label = |name: &str| Ok(name.to_owned());
                let any = ObjectLabels { object: label("object"), namespace: label("namespace") };
                let labels = kind.map_or(any, |(kind, kinds)| rule.labels.of(kind, kinds));
                let is_namespaced = kind.is_none_or(|(kind, _)| kind.is_namespaced);
                let namespace = if is_namespaced { NAMESPACE } else { "" };
                rule.query(series, &labels, (namespace, &[OBJECT]), &[])
            }
        }
    }
}

impl Review {
    fn add(&mut self, rule: &PlacedRule, problem: RuleProblem) {
        self.findings.push((rule.place.clone(), problem));
    }

    /// The rules that are valid; the others are findings.
    fn valid_rules(&mut self, file: &RulesFile) -> Vec<PlacedRule> {
        let mut valid = Vec::new();
        for (of, rules) in [("externalRules", &file.external_rules), ("rules", &file.rules)] {
            for (index, rule) in rules.iter().enumerate() {
                let place = format!("{of}[{index}] ({:.100})", rule.series_query);
                let built = match of {
                    "rules" => ObjectRule::new(rule).map(|rule| ValidRule::Object(Arc::new(rule))),
                    _ => ExternalRule::new(rule).map(|rule| ValidRule::External(Arc::new(rule))),
                };
                match built {
                    Ok(rule) => valid.push(PlacedRule { place, rule }),
                    Err(cause) => self.findings.push((place, RuleProblem::Invalid(cause))),
                }
            }
        }
        valid
    }

    async fn kinds(&mut self, objects: &dyn ObjectApi) -> Option<KindTable> {
        let late = || Err(format!("no answer within {} s", KINDS_TIMEOUT.as_secs()));
        match timeout(KINDS_TIMEOUT, objects.kinds()).await.unwrap_or_else(|_| late()) {
            Ok(kinds) => Some(KindTable::new(kinds)),
            Err(cause) => {
                let problem =
                    RuleProblem::Unchecked(format!("the kinds of the API server cannot be read: {cause}"));
                self.findings.push(("rules".to_owned(), problem));
                None
            }
        }
    }

    /// Reviews the rules of processor time and memory.
    async fn usage(
        &mut self,
        file: &RulesFile,
        kinds: Option<&KindTable>,
        sources: ReviewSources<'_>,
        deadline: Instant,
    ) {
        let Some(rules) = &file.resource_rules else { return };
        let place = || "resourceRules".to_owned();
        if !sources.serves_usage {
            self.findings.push((place(), RuleProblem::Unused));
        }
        let rule = match UsageRule::new(rules) {
            Ok(rule) => rule,
            Err(cause) => return self.findings.push((place(), RuleProblem::Invalid(cause))),
        };
        let Some(kinds) = kinds else { return };
        for (name, query) in [("cpu", &rule.cpu), ("memory", &rule.memory)] {
            for (of, namespace) in [(UsageOf::Pods, NAMESPACE), (UsageOf::Nodes, "")] {
                let found = match query.query(of, kinds, (namespace, &[OBJECT])) {
                    Err(cause) => Some(RuleProblem::Query(cause)),
                    Ok((query, _)) => ask(&query, sources, deadline).await,
                };
                let place = format!("resourceRules.{name}");
                self.findings.extend(found.map(|problem| (place, problem)));
            }
        }
    }

    fn unknown_resources(&mut self, rules: &[PlacedRule], kinds: &KindTable) {
        for placed in rules {
            let ValidRule::Object(rule) = &placed.rule else { continue };
            for own in rule.labels.unknown(kinds) {
                let name = format!("{}.{}", own.resource, own.group);
                let name = name.trim_end_matches('.').to_owned();
                self.add(placed, RuleProblem::UnknownResource(name));
            }
        }
    }

    /// The metrics that a rule makes of these series.
    fn made(
        &mut self,
        placed: &PlacedRule,
        series: &[SeriesLabels],
        kinds: Option<&KindTable>,
        (rules, sources): (usize, ReviewSources<'_>),
    ) -> MadeMetrics {
        let mut made = MadeMetrics::new();
        let mut named = 0;
        for SeriesLabels { name: series, labels } in series {
            let naming = match &placed.rule {
                ValidRule::External(rule) => &rule.naming,
                ValidRule::Object(rule) => &rule.naming,
            };
            let Some(name) = naming.metric(series).map(SmolStr::from) else { continue };
            named += 1;
            match &placed.rule {
                ValidRule::External(_) => {
                    made.insert((SmolStr::default(), name), series.into());
                }
                ValidRule::Object(rule) => {
                    let kinds =
                        kinds.map(|kinds| labels.iter().filter_map(|label| rule.labels.kind(label, kinds)));
                    for kind in kinds.into_iter().flatten() {
                        made.insert((kind.resource(), name.clone()), series.into());
                    }
                }
            }
        }
        let age = sources.prometheus.map(|(_, age, _)| age).unwrap_or_default();
        let share = share(rules);
        match (series.len(), named, made.len()) {
            (0, ..) => self.add(placed, RuleProblem::NoSeries(age)),
            (count, 0, _) => self.add(placed, RuleProblem::NoName(count)),
            (_, count, 0) => self.add(placed, RuleProblem::NoObject(count)),
            (.., count) if count > share => self.add(placed, RuleProblem::TooManyMetrics(share)),
            _ => {}
        }
        made
    }

    /// Has Prometheus answer a query of each rule.
    async fn queries(
        &mut self,
        rules: &[PlacedRule],
        made: &[MadeMetrics],
        kinds: Option<&KindTable>,
        (sources, deadline): (ReviewSources<'_>, Instant),
    ) {
        let questions = rules.iter().zip(made).map(async |(rule, made)| {
            let first = made.first_key_value();
            let first = first.map_or(("", "series"), |((resource, _), series)| (resource, series));
            match rule.query(first, kinds) {
                Err(cause) => Some((rule, RuleProblem::Query(cause))),
                // Nothing is known of one whose series cannot be listed.
                Ok(_) if made.is_empty() => None,
                Ok(query) => Some((rule, ask(&query, sources, deadline).await?)),
            }
        });
        let found: Vec<_> = stream::iter(questions).buffered(CONCURRENCY).collect().await;
        for (rule, problem) in found.into_iter().flatten() {
            self.add(rule, problem);
        }
    }

    /// Reviews the names of all metrics together.
    fn names(&mut self, rules: &[PlacedRule], made: &[MadeMetrics], is_reserved: fn(&str) -> bool) {
        let mut last: BTreeMap<(bool, &(SmolStr, SmolStr)), usize> = BTreeMap::new();
        for (index, (rule, made)) in rules.iter().zip(made).enumerate() {
            last.extend(made.keys().map(|key| ((rule.is_external(), key), index)));
        }
        let mut lower_case: BTreeMap<(bool, &str, String), &str> = BTreeMap::new();
        for (index, (rule, made)) in rules.iter().zip(made).enumerate() {
            let is_external = rule.is_external();
            let replacing = |key| last.get(&(is_external, key)).copied().filter(|last| *last != index);
            let replaced: Vec<_> = made.keys().filter_map(|key| Some((key, replacing(key)?))).collect();
            if let Some(((resource, name), by)) = replaced.first() {
                let metric =
                    if resource.is_empty() { name.to_string() } else { format!("{resource}/{name}") };
                let by = rules[*by].place.clone();
                self.add(rule, RuleProblem::Replaced { metric, count: replaced.len(), by });
            }
            for key in made.keys().filter(|key| replacing(key).is_none()) {
                let (resource, name) = key;
                let lower = name.to_lowercase();
                if is_reserved(&lower) {
                    self.add(rule, RuleProblem::Reserved(name.to_string()));
                }
                if let Some(first) = lower_case.insert((is_external, resource, lower), name) {
                    self.add(rule, RuleProblem::SameInLowerCase(first.to_owned(), name.to_string()));
                }
            }
        }
    }

    fn listed_kinds(&mut self, made: &[MadeMetrics], kinds: Option<&KindTable>) {
        let resources: BTreeSet<&SmolStr> =
            made.iter().flat_map(MadeMetrics::keys).map(|(resource, _)| resource).collect();
        let resources = resources.into_iter().filter(|resource| !resource.is_empty());
        let found = resources.filter_map(|resource| kinds?.find_resource(resource).cloned());
        self.kinds = found.collect();
    }
}

/// The series of each query of the rules, once for external ones and once for those of objects.
async fn list<'r>(
    rules: &'r [PlacedRule],
    kinds: Option<&KindTable>,
    sources: ReviewSources<'_>,
    deadline: Instant,
) -> HashMap<(bool, &'r str), Listed> {
    let Some((api, max_age, now)) = sources.prometheus else { return HashMap::new() };
    let queries: BTreeSet<(bool, &str)> =
        rules.iter().map(|rule| (rule.is_external(), rule.series_query())).collect();
    let lists = queries.into_iter().map(async |(is_external, query)| {
        let names = async || {
            let names = api.series_names(query, max_age).await?;
            let series = |name| SeriesLabels { name, labels: BTreeSet::new() };
            Ok(names.into_iter().map(series).collect())
        };
        let listed = if is_external {
            timeout_at(deadline, names()).await
        } else {
            let own = rules.iter().filter_map(|placed| match &placed.rule {
                ValidRule::Object(rule) if rule.naming.series_query == query => Some(Arc::clone(rule)),
                _ => None,
            });
            let own: Vec<_> = own.collect();
            // Without the kinds, no label has a meaning.
            let kinds = kinds?;
            let series = async {
                match series_of(api, query, (&own, kinds), (max_age, now)).await {
                    // None, or none with a label that names objects.
                    Ok(series) if series.is_empty() => names().await,
                    series => series,
                }
            };
            timeout_at(deadline, series).await
        };
        let listed =
            listed.map_err(|_| late()).and_then(|listed| listed.map_err(|error| refused(error, true)));
        Some(((is_external, query), listed))
    });
    stream::iter(lists).buffer_unordered(CONCURRENCY).filter_map(async |list| list).collect().await
}

/// What is wrong with a query, if Prometheus is there to say so.
async fn ask(query: &str, sources: ReviewSources<'_>, deadline: Instant) -> Option<RuleProblem> {
    let (api, ..) = sources.prometheus?;
    match timeout_at(deadline, api.query(query)).await {
        Ok(Ok(_)) => None,
        Ok(Err(error)) => {
            let error = SourceError { message: format!("{query:.300}: {}", error.message), ..error };
            Some(refused(error, false))
        }
        Err(_) => Some(late()),
    }
}

fn refused(error: SourceError, is_series_query: bool) -> RuleProblem {
    match error.kind {
        "status" | "type" if is_series_query => RuleProblem::SeriesQuery(error.message),
        "status" | "type" => RuleProblem::Query(error.message),
        _ => RuleProblem::Unchecked(error.message),
    }
}

fn late() -> RuleProblem {
    RuleProblem::Unchecked(format!("Prometheus did not answer all queries within {} s", DEADLINE.as_secs()))
}

#[cfg(test)]
mod tests;
