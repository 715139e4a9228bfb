//! A rule for external metrics: which metrics the names of series make, and the query for one. Pure.

use std::collections::BTreeMap;

use regex::bytes::{Regex, RegexBuilder};

use super::config::{DiscoveryRule, RegexFilter, ResourceMapping};
use super::template::{Template, Value};
use crate::serve::{LabelOperator, LabelRequirement};

/// Most bytes of the compiled form of a regular expression.
const MAX_REGEX_BYTES: usize = 1024 * 1024;
/// How rules call the resource of namespaces.
const NAMESPACES: [&str; 2] = ["namespace", "namespaces"];

/// A rule whose texts are valid.
#[derive(Debug)]
pub(super) struct ExternalRule {
    /// Selects the series.
    pub(super) series_query: String,
    /// With whether a name must match.
    filters: Vec<(Regex, bool)>,
    matches: Regex,
    becomes: String,
    query: Template,
    /// The label of the namespace that is asked for; `None` where none is asked for, or the reason why it has no name.
    namespace_label: Option<Result<String, String>>,
}

impl ExternalRule {
    /// # Errors
    /// Says which field is wrong, and why.
    pub(super) fn new(rule: &DiscoveryRule) -> Result<Self, String> {
        let DiscoveryRule { series_query, series_filters, resources, name, metrics_query } = rule;
        if series_query.is_empty() {
            return Err("seriesQuery is not set".to_owned());
        }
        let mut filters = series_filters
            .iter()
            .enumerate()
            .map(|(index, own)| filter(own).map_err(|error| format!("seriesFilters[{index}]: {error}")))
            .collect::<Result<Vec<_>, _>>()?;
        let pattern = if name.matches.is_empty() { ".*" } else { &name.matches };
        let matches = regex(pattern).map_err(|error| format!("name.matches: {error}"))?;
        if !name.matches.is_empty() {
            filters.push((matches.clone(), true));
        }
        let becomes = match (name.as_.as_str(), matches.captures_len()) {
            ("", 1) => "$0",
            ("", 2) => "$1",
            ("", groups) => {
                let groups = groups - 1;
                return Err(format!(
                    "name.as is not set, and name.matches has {groups} groups to choose from"
                ));
            }
            (becomes, _) => becomes,
        };
        let query = Template::parse(metrics_query).map_err(|error| format!("metricsQuery: {error}"))?;
        let namespace_label = match resources.namespaced {
            Some(false) => None,
            _ => Some(namespace_label(resources)?),
        };
        Ok(Self {
            series_query: series_query.clone(),
            filters,
            matches,
            becomes: becomes.to_owned(),
            query,
            namespace_label,
        })
    }

    /// The name of the metric that a series makes, if it makes one.
    pub(super) fn metric(&self, series: &str) -> Option<String> {
        if !self.filters.iter().all(|(regex, matches)| regex.is_match(series.as_bytes()) == *matches) {
            return None;
        }
        let mut name = Vec::new();
        self.matches.captures(series.as_bytes())?.expand(self.becomes.as_bytes(), &mut name);
        String::from_utf8(name).ok().filter(|name| !name.is_empty())
    }

    /// The query for the metric of `series`.
    ///
    /// # Errors
    /// Says why there is none.
    pub(super) fn query(
        &self,
        series: &str,
        namespace: &str,
        requirements: &[LabelRequirement<'_>],
    ) -> Result<String, String> {
        let mut matchers: Vec<String> = Vec::new();
        let mut values = BTreeMap::new();
        for LabelRequirement { key, operator, values: own } in requirements {
            let value = own.join("|");
            // Of several values, none of their letters is escaped: users of the adapter write regular expressions there.
            matchers.push(format!("{key}{}{value:?}", sign(*operator)));
            values.insert((*key).to_owned(), Value::Text(value));
        }
        if let Some(label) = &self.namespace_label {
            let label = label.as_ref().map_err(Clone::clone)?;
            matchers.push(format!("{label}={namespace:?}"));
            values.insert(label.clone(), namespace.into());
        }
        let fields = BTreeMap::from([
            ("Series", series.into()),
            ("LabelMatchers", Value::Text(matchers.join(","))),
            ("LabelValuesByName", Value::Map(values)),
            ("GroupBy", "".into()),
            ("GroupBySlice", Value::List(Vec::new())),
        ]);
        let query = self.query.render(fields).map_err(|error| format!("metricsQuery: {error}"))?;
        if query.is_empty() { Err("metricsQuery makes an empty query".to_owned()) } else { Ok(query) }
    }
}

/// How a requirement is written in PromQL.
const fn sign(operator: LabelOperator) -> &'static str {
    match operator {
        LabelOperator::Equals | LabelOperator::DoesNotExist => "=",
        LabelOperator::NotEquals | LabelOperator::Exists => "!=",
        LabelOperator::In => "=~",
        LabelOperator::NotIn => "!~",
    }
}

/// The label of the resource of namespaces, or why there is none, which matters to a read only.
fn namespace_label(resources: &ResourceMapping) -> Result<Result<String, String>, String> {
    let template =
        Template::parse(&resources.template).map_err(|error| format!("resources.template: {error}"))?;
    let own = resources.overrides.iter().find(|(_, own)| {
        let is_named = NAMESPACES.iter().any(|name| own.resource.eq_ignore_ascii_case(name));
        own.group.is_empty() && is_named
    });
    if let Some((label, _)) = own {
        return Ok(Ok(label.clone()));
    }
    if resources.template.is_empty() {
        return Ok(Err(
            "its resources say which label is the namespace neither by template nor by an override; with namespaced: false none is needed"
                .to_owned(),
        ));
    }
    let fields = BTreeMap::from([("Group", "".into()), ("Resource", NAMESPACES[0].into())]);
    match template.render(fields) {
        Err(error) => Err(format!("resources.template: {error}")),
        Ok(label) if label.is_empty() => Err("resources.template makes an empty label".to_owned()),
        Ok(label) => Ok(Ok(label)),
    }
}

fn filter(filter: &RegexFilter) -> Result<(Regex, bool), String> {
    match (filter.is.as_str(), filter.is_not.as_str()) {
        ("", "") => Err("it has neither is nor isNot".to_owned()),
        (is, "") => Ok((regex(is)?, true)),
        ("", is_not) => Ok((regex(is_not)?, false)),
        _ => Err("it has both is and isNot: make two filters of them".to_owned()),
    }
}

fn regex(text: &str) -> Result<Regex, String> {
    let error = |error: regex::Error| format!("{text:?} is no regular expression: {error}");
    // As in Go, classes such as \w are those of ASCII.
    RegexBuilder::new(text).unicode(false).size_limit(MAX_REGEX_BYTES).build().map_err(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(yaml: &str) -> Result<ExternalRule, String> {
        ExternalRule::new(&serde_saphyr::from_str(yaml).unwrap())
    }

    #[test]
    fn series_become_metrics_as_in_the_adapter() {
        for (name, series, expected) in [
            ("", "queue_depth", Some("queue_depth")),
            ("name: {matches: ^(.*)_total$}", "jobs_total", Some("jobs")),
            ("name: {matches: ^(.*)_total$}", "jobs", None),
            ("name: {matches: ^(.*)_total$, as: '${1}_per_second'}", "jobs_total", Some("jobs_per_second")),
            // `$1_per_second` is the group of that name, which there is none of.
            ("name: {matches: ^(.*)_total$, as: '$1_per_second'}", "jobs_total", None),
            ("name: {matches: 'jobs', as: all}", "many_jobs_here", Some("all")),
            ("name: {as: 'waiting'}", "queue_depth", Some("waiting")),
            ("name: {matches: '^(?P<base>.*)_(a|b)$', as: '${base}'}", "jobs_b", Some("jobs")),
            ("seriesFilters: [{isNot: _total$}]", "jobs_total", None),
            ("name: {matches: '^(\\w{1,63})_[^x]+$'}", "jobs_total", Some("jobs")),
            ("name: {matches: '(?i)^JOBS_(.*)'}", "jobs_total", Some("total")),
            ("seriesFilters: [{isNot: _total$}, {is: ^jobs}]", "jobs_now", Some("jobs_now")),
        ] {
            let rule = rule(&format!("{{seriesQuery: a, metricsQuery: b, {name}}}")).unwrap();
            assert_eq!(rule.metric(series).as_deref(), expected, "{name} {series}");
        }
    }

    fn requirement<'a>(key: &'a str, operator: LabelOperator, values: &[&'a str]) -> LabelRequirement<'a> {
        LabelRequirement { key, operator, values: values.to_vec() }
    }

    #[test]
    fn a_read_becomes_the_query_that_the_adapter_sends() {
        let selector = [
            requirement("a", LabelOperator::In, &["x", "y.*"]),
            requirement("b", LabelOperator::NotIn, &["x"]),
            requirement("c", LabelOperator::Exists, &[]),
            requirement("d", LabelOperator::DoesNotExist, &[]),
            requirement("e", LabelOperator::Equals, &["v"]),
            requirement("f", LabelOperator::NotEquals, &["\"v\\"]),
        ];
        let matchers = r#"a=~"x|y.*",b!~"x",c!="",d="",e="v",f!="\"v\\""#;
        for (resources, expected) in [
            ("namespaced: false", format!("sum(s{{{matchers}}})")),
            ("overrides: {ns: {resource: namespace}}", format!(r#"sum(s{{{matchers},ns="llm"}})"#)),
            ("overrides: {ns: {resource: Namespaces}}", format!(r#"sum(s{{{matchers},ns="llm"}})"#)),
            (
                "template: kube_<<.Group>>_<<.Resource>>",
                format!(r#"sum(s{{{matchers},kube__namespace="llm"}})"#),
            ),
        ] {
            let yaml = format!(
                "{{seriesQuery: s, metricsQuery: 'sum(<<.Series>>{{<<.LabelMatchers>>}})', resources: {{{resources}}}}}"
            );
            assert_eq!(rule(&yaml).unwrap().query("s", "llm", &selector), Ok(expected), "{resources}");
        }
    }

    #[test]
    fn an_external_rule_without_the_label_of_a_namespace_says_so_when_it_is_read() {
        let without = rule("{seriesQuery: s, metricsQuery: s}").unwrap();
        assert!(
            without.query("s", "llm", &[]).unwrap_err().contains("with namespaced: false none is needed")
        );
        let empty =
            rule("{seriesQuery: s, metricsQuery: '<<.GroupBy>>', resources: {namespaced: false}}").unwrap();
        assert_eq!(empty.query("s", "llm", &[]).unwrap_err(), "metricsQuery makes an empty query");
    }

    #[test]
    fn what_is_wrong_in_a_rule_is_named() {
        for (yaml, expected) in [
            ("metricsQuery: s", "seriesQuery is not set"),
            (
                "{seriesQuery: s, seriesFilters: [{is: a, isNot: b}]}",
                "seriesFilters[0]: it has both is and isNot",
            ),
            ("{seriesQuery: s, seriesFilters: [{}]}", "seriesFilters[0]: it has neither is nor isNot"),
            (
                "{seriesQuery: s, seriesFilters: [{is: '('}]}",
                "seriesFilters[0]: \"(\" is no regular expression",
            ),
            (
                "{seriesQuery: s, name: {matches: '(a)(b)'}}",
                "name.as is not set, and name.matches has 2 groups",
            ),
            ("{seriesQuery: s, metricsQuery: '<<if'}", "metricsQuery: <<if"),
            (
                "{seriesQuery: s, resources: {template: '<<.Kind>>'}}",
                "resources.template: there is no field .Kind",
            ),
            ("{seriesQuery: s, name: {matches: '(a{1000}){1000}'}}", "name.matches: "),
        ] {
            let error = rule(yaml).map(|_| ()).unwrap_err();
            assert!(error.contains(expected), "{yaml}: {error}");
        }
    }
}
