//! Metrics of objects that rules of prometheus-adapter make. A metric of variants is never one of these.

use std::slice;

use axum::response::Response;
use http::request::Parts;
use jiff::Timestamp;
use wva_core::units::Seconds;

use super::encode::{Encoded, Item, Items};
use super::label_selector::{LabelSelectorMessage, label_selector};
use super::object_path::{ObjectPath, Version, not_found_message};
use crate::serve::auth::{Attributes, attributes_verb};
use crate::serve::data_read::RuleReads;
use crate::serve::encoding::negotiation::Representation;
use crate::serve::encoding::object::{Column, Metadata, Row, Table};
use crate::serve::encoding::response::{representation, respond};
use crate::serve::encoding::{Reason, Status};
use crate::serve::external_metrics::query::{ListOptions, metric_label_selector};
use crate::serve::external_metrics::selector::LabelSelector;
use crate::serve::external_metrics::{Metric, Signed, VariantSelector, label_requirements};
use crate::serve::paths::CUSTOM_GROUP;
use crate::serve::ports::{ObjectError, ObjectRead, ObjectValue, ObjectValues, Objects};

/// The resource of namespaces, whose metrics have a path of their own.
const NAMESPACES: &str = "namespaces";
/// What stands in place of a resource in that path.
const METRICS: &str = "metrics";

/// The columns that `kubectl get` prints.
const COLUMNS: &[Column] = &[
    Column::name("Object", "The object that the number is of."),
    Column::text("Value", "The number, as a quantity."),
    Column::text("Age", "How old the value is."),
];

/// The answer to a read.
struct RuleValueList<'a> {
    version: Version,
    path: &'a ObjectPath,
    values: &'a ObjectValues,
    /// With their numbers.
    items: Vec<(&'a ObjectValue, Signed)>,
    selector: Option<LabelSelectorMessage>,
    now: Timestamp,
}

/// Answers a read by the rules.
pub(super) async fn answer(
    request: &Parts,
    path: &ObjectPath,
    rules: &RuleReads,
    now: Timestamp,
) -> Result<Response, Status> {
    let representation = representation(&request.headers)?;
    let version = path.version()?;
    let ListOptions { labels, fields } = ListOptions::parse(CUSTOM_GROUP, &request.uri)?;
    let series = metric_label_selector(&request.uri)?;
    if !fields.is_empty() {
        return Err(error(
            path,
            Reason::BadRequest,
            "a field selector selects none: name the object in the path",
        ));
    }
    let requirements =
        label_requirements(&series).map_err(|cause| error(path, Reason::BadRequest, &cause))?;
    // Before the query is made, which takes time with many objects.
    let Some(_permit) = rules.permits.acquire() else {
        let cause = "too many reads wait for Prometheus; retry later";
        return Err(error(path, Reason::TooManyRequests, cause));
    };
    let read = ObjectRead {
        resource: &path.resource,
        namespace: &path.namespace,
        objects: if path.is_all() { Objects::Selected(text(&labels)) } else { Objects::Named(&path.name) },
        metric: &path.metric,
        requirements,
    };
    let Some(reading) = rules.rules.read_objects(read) else { return Err(unknown(path, rules)) };
    match reading.await {
        Ok(values) => respond_with((version, representation), path, &values, &series, now),
        Err(ObjectError::NotFound(cause)) => Err(not_found(path, &cause)),
        Err(ObjectError::Failed(cause)) => Err(error(path, Reason::InternalError, &cause)),
    }
}

fn respond_with(
    (version, representation): (Version, Representation),
    path: &ObjectPath,
    values: &ObjectValues,
    series: &LabelSelector,
    now: Timestamp,
) -> Result<Response, Status> {
    let items = values.values.iter().map(|value| {
        let number = Signed::from_thousandths(value.thousandths);
        Ok((value, number.map_err(|cause| error(path, Reason::InternalError, &cause))?))
    });
    let items = items.collect::<Result<_, Status>>()?;
    let selector = Some(series).filter(|series| !series.is_empty()).and_then(label_selector);
    respond(representation, &Encoded(&RuleValueList { version, path, values, items, selector, now }))
}

/// A selector as Kubernetes prints it.
fn text(labels: &LabelSelector) -> String {
    VariantSelector { labels: slice::from_ref(labels), fields: &[] }.to_string()
}

/// The error for a metric that no rule makes of such objects.
fn unknown(path: &ObjectPath, rules: &RuleReads) -> Status {
    if let Some(cause) = rules.rules.unlisted_objects() {
        return error(path, Reason::ServiceUnavailable, &cause);
    }
    let count: usize = rules.rules.objects().iter().map(|of_kind| of_kind.metrics.len()).sum();
    not_found(path, &format!("rules make {count} metrics of objects, which discovery lists"))
}

fn not_found(path: &ObjectPath, cause: &str) -> Status {
    let ObjectPath { resource, name, metric, .. } = path;
    let message = format!("{}: {cause}", not_found_message(metric, resource, name));
    Status::new(Reason::NotFound, message).about(CUSTOM_GROUP, metric.as_str(), name.as_str())
}

fn error(path: &ObjectPath, reason: Reason, cause: &str) -> Status {
    let ObjectPath { namespace, resource, name, metric, .. } = path;
    let place = if namespace.is_empty() { String::new() } else { format!(" in namespace {namespace}") };
    let message = format!("{metric} of {resource} {name}{place} cannot be read: {cause}");
    Status::new(reason, message).about(CUSTOM_GROUP, metric.as_str(), name.as_str())
}

/// A read of a metric of objects without a namespace.
pub(crate) struct RootRead(ObjectPath);

impl RootRead {
    /// The read that the path below a version is, if it is one: `{resource}/{name}/{metric}`, and of namespaces
    /// `namespaces/{name}/metrics/{metric}`. A metric of variants is of none of these objects.
    pub(crate) fn find(version: &str, rest: &str) -> Option<Self> {
        let parts: Vec<_> = rest.split('/').collect();
        let (resource, name, metric) = match parts[..] {
            [NAMESPACES, name, METRICS, metric] => (NAMESPACES, name, metric),
            [NAMESPACES, _, _] => return None,
            [resource, name, metric] => (resource, name, metric),
            _ => return None,
        };
        let is_valid = ![resource, name, metric].contains(&"") && Metric::find(metric).is_none();
        (is_valid && Version::find(version).is_some()).then(|| {
            let [version, resource, name, metric] = [version, resource, name, metric].map(str::to_owned);
            Self(ObjectPath { version, namespace: String::new(), resource, name, metric })
        })
    }

    /// As the API server reads such a path: a metric of a namespace is an object of it with the name of the metric.
    pub(crate) fn attributes(&self, request: &Parts) -> Attributes {
        let ObjectPath { version, resource, name, metric, .. } = &self.0;
        let is_namespace = resource == NAMESPACES;
        let text = |of_namespace: &str, of_object: &str| {
            if is_namespace { of_namespace.to_owned() } else { of_object.to_owned() }
        };
        Attributes::Resource {
            verb: attributes_verb(&request.method, true, false),
            group: CUSTOM_GROUP,
            version: Version::find(version).map_or_else(Default::default, Version::as_str),
            resource: text(METRICS, resource),
            subresource: text("", metric),
            namespace: text(name, ""),
            name: text(metric, name),
        }
    }

    pub(crate) async fn answer(
        &self,
        request: &Parts,
        rules: &RuleReads,
        now: Timestamp,
    ) -> Result<Response, Status> {
        answer(request, &self.0, rules, now).await
    }
}

impl Items for RuleValueList<'_> {
    fn version(&self) -> Version {
        self.version
    }

    fn items(&self) -> impl Iterator<Item = Item<'_>> {
        self.items.iter().map(|(value, number)| Item {
            kind: &self.values.kind,
            api_version: &self.values.api_version,
            namespace: &self.path.namespace,
            name: &value.name,
            metric: &self.path.metric,
            at: value.at,
            value: number.to_string(),
            selector: self.selector.as_ref(),
        })
    }

    fn table(&self) -> Table {
        let row = |(value, number): &(&ObjectValue, Signed)| {
            let age = Seconds::between(value.at, self.now).to_string();
            let metadata = Metadata::new(&*value.name, &*self.path.namespace, Default::default());
            Row::new(vec![value.name.to_string(), number.to_string(), age], metadata)
        };
        Table::new(COLUMNS, self.items.iter().map(row).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_without_a_namespace_has_a_path_of_its_own() {
        for (rest, expected) in [
            ("nodes/n/m", Some(("nodes", "m", "", "n"))),
            ("nodes/*/m", Some(("nodes", "m", "", "*"))),
            ("namespaces/llm/metrics/m", Some(("metrics", "", "llm", "m"))),
            ("namespaces/llm/m", None),
            ("namespaces/llm/metrics", None),
            ("nodes/n", None),
            ("nodes//m", None),
            ("nodes/n/wva_desired_replicas", None),
        ] {
            let request = http::Request::get("/").body(()).unwrap().into_parts().0;
            let attributes = RootRead::find("v1beta2", rest).map(|read| read.attributes(&request));
            let expected = expected.map(|(resource, subresource, namespace, name)| Attributes::Resource {
                verb: "get",
                group: CUSTOM_GROUP,
                version: "v1beta2",
                resource: resource.into(),
                subresource: subresource.into(),
                namespace: namespace.into(),
                name: name.into(),
            });
            assert_eq!(attributes, expected, "{rest}");
        }
        assert!(RootRead::find("v1", "nodes/n/m").is_none());
    }
}
