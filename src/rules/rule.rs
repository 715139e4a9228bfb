//! A rule for external metrics: which metrics the names of series make, and the query for one. Pure.

use std::collections::BTreeMap;

use super::commute::Requirement;
use super::config::{DiscoveryRule, ResourceMapping};
use super::naming::SeriesNaming;
use super::object_names::check_namespace;
use super::query::{QueryFields, plain_requirements};
use super::template::Template;
use crate::serve::LabelRequirement;

/// How rules call the resource of namespaces.
const NAMESPACES: [&str; 2] = ["namespace", "namespaces"];

/// A rule whose texts are valid.
#[derive(Debug)]
pub(super) struct ExternalRule {
    pub(super) naming: SeriesNaming,
    query: Template,
    /// The label of the namespace that is asked for; `None` where none is asked for, or the reason why it has no name.
    namespace_label: Option<Result<String, String>>,
}

impl ExternalRule {
    /// # Errors
    /// Says which field is wrong, and why.
    pub(super) fn new(rule: &DiscoveryRule) -> Result<Self, String> {
        let naming = SeriesNaming::new(rule)?;
        let query = Template::parse(&rule.metrics_query).map_err(|error| format!("metricsQuery: {error}"))?;
        let namespace_label = match rule.resources.namespaced {
            Some(false) => None,
            _ => Some(namespace_label(&rule.resources)?),
        };
        Ok(Self { naming, query, namespace_label })
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
        let mut fields = QueryFields::new(series, requirements);
        if let Some(label) = &self.namespace_label {
            check_namespace(namespace)?;
            fields.require(label.as_ref().map_err(Clone::clone)?, "=", namespace.to_owned());
        }
        fields.render(&self.query, "metricsQuery", &[])
    }

    /// The requirements of a selector of which reads may differ in one and still share a query. That of the namespace always stays.
    pub(super) fn variable<'a>(&self, selector: &[LabelRequirement<'a>]) -> Vec<Requirement<'a>> {
        let namespace = self.namespace_label.as_ref().and_then(|label| label.as_deref().ok());
        let mut requirements = plain_requirements(selector);
        requirements.retain(|own| Some(own.label) != namespace);
        requirements
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serve::LabelOperator;

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
            assert_eq!(rule.naming.metric(series).as_deref(), expected, "{name} {series}");
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
