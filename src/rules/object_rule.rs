//! A rule for metrics of objects: which objects the labels of series name, and the query for some of them. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;

use regex::bytes::Regex;

use super::config::{DiscoveryRule, GroupResource, ResourceMapping};
use super::kinds::{KindTable, ObjectKind};
use super::naming::{SeriesNaming, regex};
use super::query::QueryFields;
use super::template::Template;
use crate::serve::LabelRequirement;

/// A rule whose texts are valid.
#[derive(Debug)]
pub(super) struct ObjectRule {
    pub(super) naming: SeriesNaming,
    pub(super) labels: ResourceLabels,
    query: Template,
}

impl ObjectRule {
    /// # Errors
    /// Says which field is wrong, and why.
    pub(super) fn new(rule: &DiscoveryRule) -> Result<Self, String> {
        let naming = SeriesNaming::new(rule)?;
        let labels = ResourceLabels::new(&rule.resources)?;
        let query = Template::parse(&rule.metrics_query).map_err(|error| format!("metricsQuery: {error}"))?;
        Ok(Self { naming, labels, query })
    }

    /// The query for the metric of `series`, about the objects `names`, of which there is at least one.
    ///
    /// # Errors
    /// Says why there is none.
    pub(super) fn query(
        &self,
        series: &str,
        objects: &ObjectLabels,
        (namespace, names): (&str, &[&str]),
        requirements: &[LabelRequirement<'_>],
    ) -> Result<String, String> {
        objects.query((&self.query, "metricsQuery"), series, (namespace, names), requirements, &[])
    }
}

/// Which labels name the objects of a kind and their namespace, or why none does.
#[derive(Debug, Clone)]
pub(super) struct ObjectLabels {
    pub(super) object: Result<String, String>,
    pub(super) namespace: Result<String, String>,
}

impl ObjectLabels {
    /// The query of a template, which stands in `field`, about the objects `names`. `group_by` are labels beside that of the objects.
    ///
    /// # Errors
    /// Says why there is none.
    pub(super) fn query(
        &self,
        (template, field): (&Template, &str),
        series: &str,
        (namespace, names): (&str, &[&str]),
        requirements: &[LabelRequirement<'_>],
        group_by: &[&str],
    ) -> Result<String, String> {
        let mut fields = QueryFields::new(series, requirements);
        if !namespace.is_empty() {
            fields.require(self.namespace.as_ref().map_err(Clone::clone)?, "=", namespace.to_owned());
        }
        let label = self.object.as_ref().map_err(Clone::clone)?;
        fields.require(label, if names.len() > 1 { "=~" } else { "=" }, names.join("|"));
        let group_by: Vec<_> = [label.as_str()].into_iter().chain(group_by.iter().copied()).collect();
        fields.render(template, field, &group_by)
    }
}

/// Which labels name objects: those of `overrides`, and those of the form of a template.
#[derive(Debug)]
pub(super) struct ResourceLabels {
    overrides: BTreeMap<String, GroupResource>,
    template: Option<(Template, Regex)>,
}

impl ResourceLabels {
    /// # Errors
    /// Says what is wrong in the template.
    pub(super) fn new(resources: &ResourceMapping) -> Result<Self, String> {
        let template = match resources.template.as_str() {
            "" => None,
            text => Some(label_form(text).map_err(|error| format!("resources.template: {error}"))?),
        };
        Ok(Self { overrides: resources.overrides.clone(), template })
    }

    /// The labels of overrides.
    pub(super) fn overridden(&self) -> impl Iterator<Item = &String> {
        self.overrides.keys()
    }

    /// True if a label may also name objects by the form of its own name.
    pub(super) const fn has_template(&self) -> bool {
        self.template.is_some()
    }

    /// The kind of the objects that the label names, if it names some.
    pub(super) fn kind<'k>(&self, label: &str, kinds: &'k KindTable) -> Option<&'k Arc<ObjectKind>> {
        if let Some(GroupResource { group, resource }) = self.overrides.get(label) {
            return kinds.find(group, resource);
        }
        let captures = self.template.as_ref()?.1.captures(label.as_bytes())?;
        let text = |name| captures.name(name).and_then(|text| std::str::from_utf8(text.as_bytes()).ok());
        kinds.find(text("group").unwrap_or_default(), text("resource")?)
    }

    /// The kind that a label names, if queries about its objects have this label too: series may have other spellings (`Pod`, `PODS`) in
    /// any number. And if it is written without quotes, as in a query it is.
    pub(super) fn queried_kind<'k>(&self, label: &str, kinds: &'k KindTable) -> Option<&'k Arc<ObjectKind>> {
        let is_plain = label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
            && !label.starts_with(|letter: char| letter.is_ascii_digit());
        let kind = self.kind(label, kinds).filter(|_| is_plain)?;
        let is_queried = self.overrides.contains_key(label)
            || self.label(kind, kinds).is_ok_and(|queried| queried == label);
        is_queried.then_some(kind)
    }

    /// True for a label of `overrides`.
    pub(super) fn overrides(&self, label: &str) -> bool {
        self.overrides.contains_key(label)
    }

    /// The resources of overrides that the API server does not serve.
    pub(super) fn unknown<'a>(&'a self, kinds: &'a KindTable) -> impl Iterator<Item = &'a GroupResource> {
        self.overrides.values().filter(|own| kinds.find(&own.group, &own.resource).is_none())
    }

    /// The labels for queries about objects of a kind.
    pub(super) fn of(&self, kind: &ObjectKind, kinds: &KindTable) -> ObjectLabels {
        let namespaces = kinds.find("", "namespaces");
        let missing = || Err("the API server serves no namespaces".to_owned());
        ObjectLabels {
            object: self.label(kind, kinds),
            namespace: namespaces.map_or_else(missing, |namespaces| self.label(namespaces, kinds)),
        }
    }

    fn label(&self, kind: &ObjectKind, kinds: &KindTable) -> Result<String, String> {
        let is_kind = |own: &GroupResource| {
            kinds.find(&own.group, &own.resource).is_some_and(|found| found.as_ref() == kind)
        };
        if let Some((label, _)) = self.overrides.iter().find(|(_, own)| is_kind(own)) {
            return Ok(label.clone());
        }
        let resource = kind.resource();
        let Some((template, _)) = &self.template else {
            return Err(format!(
                "its resources say which label names {resource} neither by template nor by an override"
            ));
        };
        let group = kind.group.replace(['.', '-'], "_");
        let fields = [("Group", group.as_str().into()), ("Resource", kind.singular.as_str().into())];
        match template.render(BTreeMap::from(fields)) {
            Err(error) => Err(format!("resources.template: {error}")),
            Ok(label) if label.is_empty() => Err("resources.template makes an empty label".to_owned()),
            Ok(label) => Ok(label),
        }
    }
}

/// The template of a label, and the expression that finds group and resource in such a label.
fn label_form(text: &str) -> Result<(Template, Regex), String> {
    let template = Template::parse(text).map_err(|error| error.to_string())?;
    let fields = [("Group", "(?P<group>.+?)".into()), ("Resource", "(?P<resource>.+?)".into())];
    let form = template.render(BTreeMap::from(fields)).map_err(|error| error.to_string())?;
    let form = regex(&format!("^{form}$"))?;
    if form.capture_names().flatten().all(|name| name != "resource") {
        return Err("it has no <<.Resource>>".to_owned());
    }
    Ok((template, form))
}

#[cfg(test)]
mod tests {
    use super::super::kinds::tests::table;
    use super::*;
    use crate::serve::LabelOperator;

    fn rule(resources: &str) -> Result<ObjectRule, String> {
        let yaml = format!(
            "{{seriesQuery: s, resources: {resources}, metricsQuery: 'sum(<<.Series>>{{<<.LabelMatchers>>}}) by (<<.GroupBy>>)'}}"
        );
        ObjectRule::new(&serde_saphyr::from_str(&yaml).unwrap())
    }

    fn query(resources: &str, resource: &str, namespace: &str, names: &[&str]) -> Result<String, String> {
        let (rule, kinds) = (rule(resources)?, table());
        let labels = rule.labels.of(kinds.find_resource(resource).unwrap(), &kinds);
        rule.query("s", &labels, (namespace, names), &[])
    }

    #[test]
    fn labels_name_objects_by_overrides_and_by_their_form() {
        for (resources, label, expected) in [
            ("{overrides: {ns: {resource: namespace}}}", "ns", Some("namespaces")),
            ("{overrides: {ns: {resource: namespace}}}", "pod", None),
            (
                "{overrides: {workload: {group: apps, resource: deployment}}}",
                "workload",
                Some("deployments.apps"),
            ),
            ("{overrides: {workload: {group: none, resource: deployment}}}", "workload", None),
            ("{template: <<.Resource>>}", "pods", Some("pods")),
            ("{template: <<.Resource>>}", "deployment", Some("deployments.apps")),
            ("{template: <<.Resource>>}", "instance", None),
            ("{template: kube_<<.Resource>>}", "kube_node", Some("nodes")),
            ("{template: kube_<<.Resource>>}", "node", None),
            ("{template: kube_<<.Group>>_<<.Resource>>}", "kube_apps_deployment", Some("deployments.apps")),
            ("{template: <<.Resource>>, overrides: {pod: {resource: service}}}", "pod", Some("services")),
        ] {
            let (rule, kinds) = (rule(resources).unwrap(), table());
            let kind = rule.labels.kind(label, &kinds).map(|kind| kind.resource());
            assert_eq!(kind.as_deref(), expected, "{resources} {label}");
        }
    }

    #[test]
    fn spellings_of_a_label_that_no_query_has_crowded_out_the_one_that_queries_have() {
        let (rule, kinds) =
            (rule("{template: <<.Resource>>, overrides: {POD: {resource: pod}}}").unwrap(), table());
        for (label, expected) in [
            ("POD", true),
            ("pod", false),
            ("namespace", true),
            ("NAMESPACE", false),
            ("namespaces", false),
            ("deployment", true),
            ("Deployments", false),
        ] {
            assert_eq!(rule.labels.queried_kind(label, &kinds).is_some(), expected, "{label}");
        }
    }

    #[test]
    fn a_read_becomes_the_query_that_the_adapter_sends() {
        let kube = "{template: kube_<<.Resource>>}";
        for (resources, resource, namespace, names, expected) in [
            (kube, "pods", "llm", &["a"][..], r#"sum(s{kube_namespace="llm",kube_pod="a"}) by (kube_pod)"#),
            (
                kube,
                "pods",
                "llm",
                &["a", "b"],
                r#"sum(s{kube_namespace="llm",kube_pod=~"a|b"}) by (kube_pod)"#,
            ),
            (kube, "nodes", "", &["n"], r#"sum(s{kube_node="n"}) by (kube_node)"#),
            (kube, "namespaces", "", &["llm"], r#"sum(s{kube_namespace="llm"}) by (kube_namespace)"#),
            (
                "{template: '<<.Group>>_<<.Resource>>', overrides: {ns: {resource: namespace}}}",
                "ingresses.networking.k8s.io",
                "llm",
                &["front"],
                r#"sum(s{ns="llm",networking_k8s_io_ingress="front"}) by (networking_k8s_io_ingress)"#,
            ),
        ] {
            assert_eq!(query(resources, resource, namespace, names).as_deref(), Ok(expected));
        }
        let (rule, kinds) = (rule(kube).unwrap(), table());
        let labels = rule.labels.of(kinds.find("", "pod").unwrap(), &kinds);
        let code = LabelRequirement { key: "code", operator: LabelOperator::In, values: vec!["200", "5.*"] };
        assert_eq!(
            rule.query("s", &labels, ("llm", &["a"]), &[code]).unwrap(),
            r#"sum(s{code=~"200|5.*",kube_namespace="llm",kube_pod="a"}) by (kube_pod)"#
        );
    }

    #[test]
    fn what_is_missing_is_named() {
        let error = query("{overrides: {pod: {resource: pod}}}", "pods", "llm", &["a"]).unwrap_err();
        assert!(error.contains("which label names namespaces neither by template"), "{error}");
        assert_eq!(rule("{template: kube}").unwrap_err(), "resources.template: it has no <<.Resource>>");
        assert!(rule("{template: '<<.Kind>>'}").unwrap_err().contains("there is no field .Kind"));
        let rule = rule("{overrides: {a: {resource: pod}, b: {resource: brand}}}").unwrap();
        let unknown: Vec<_> = rule.labels.unknown(&table()).map(|own| own.resource.clone()).collect();
        assert_eq!(unknown, ["brand"]);
    }
}
