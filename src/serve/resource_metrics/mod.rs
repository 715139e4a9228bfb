//! `metrics.k8s.io`: processor time and memory of pods and nodes, by rules. Only where a flag says so, since a cluster has one server of it.

mod encode;
mod quantity;

use std::slice;

use axum::response::Response;
use http::request::Parts;
use jiff::Timestamp;

use self::encode::{UsageItem, UsageList};
use super::auth::{Attributes, attributes_verb};
use super::data_read::RuleReads;
use super::encoding::response::{representation, respond};
use super::encoding::{Reason, Status};
use super::external_metrics::VariantSelector;
use super::external_metrics::query::{ListOptions, is_watch};
use super::paths::{USAGE_GROUP, USAGE_VERSION};
use super::ports::{ObjectError, Objects, UsageOf, UsageRead};

/// A read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct UsagePath {
    of: UsageOf,
    namespace: String,
    /// Empty for all that the selector selects.
    name: String,
}

impl UsagePath {
    /// The read that the path below the version is, if it is one.
    pub(crate) fn find(rest: &str) -> Option<Self> {
        let parts: Vec<_> = rest.split('/').collect();
        let (of, namespace, name) = match parts[..] {
            ["nodes"] => (UsageOf::Nodes, "", ""),
            ["nodes", name] if !name.is_empty() => (UsageOf::Nodes, "", name),
            ["pods"] => (UsageOf::Pods, "", ""),
            ["namespaces", namespace, "pods"] if !namespace.is_empty() => (UsageOf::Pods, namespace, ""),
            ["namespaces", namespace, "pods", name] if !namespace.is_empty() && !name.is_empty() => {
                (UsageOf::Pods, namespace, name)
            }
            _ => return None,
        };
        Some(Self { of, namespace: namespace.to_owned(), name: name.to_owned() })
    }

    const fn resource(&self) -> &'static str {
        match self.of {
            UsageOf::Pods => "pods",
            UsageOf::Nodes => "nodes",
        }
    }

    pub(crate) fn attributes(&self, request: &Parts) -> Attributes {
        Attributes::Resource {
            verb: attributes_verb(&request.method, !self.name.is_empty(), is_watch(&request.uri)),
            group: USAGE_GROUP,
            version: USAGE_VERSION,
            resource: self.resource().to_owned(),
            subresource: String::new(),
            namespace: self.namespace.clone(),
            name: self.name.clone(),
        }
    }

    /// Answers an authorised client.
    pub(crate) async fn answer(
        &self,
        request: &Parts,
        rules: &RuleReads,
        now: Timestamp,
    ) -> Result<Response, Status> {
        let representation = representation(&request.headers)?;
        let ListOptions { labels, fields } = ListOptions::parse(USAGE_GROUP, &request.uri)?;
        let Some(_permit) = rules.permits.acquire() else {
            let cause = "too many reads wait for Prometheus; retry later";
            return Err(self.error(Reason::TooManyRequests, cause));
        };
        let selector = || VariantSelector { labels: slice::from_ref(&labels), fields: &[] }.to_string();
        let objects =
            if self.name.is_empty() { Objects::Selected(selector()) } else { Objects::Named(&self.name) };
        let read = UsageRead { of: self.of, namespace: &self.namespace, objects };
        let Some(reading) = rules.rules.read_usage(read) else {
            let cause = "the file of rules has no valid resourceRules, or is not read yet: see the log";
            return Err(self.error(Reason::ServiceUnavailable, cause));
        };
        let usages = reading.await.map_err(|error| match error {
            ObjectError::NotFound(cause) => self.error(Reason::NotFound, &cause),
            ObjectError::Failed(cause) => self.error(Reason::InternalError, &cause),
        })?;
        let is_selected = |item: &&crate::serve::ObjectUsage| {
            fields.iter().all(|field| field.holds(&item.name, &item.namespace))
        };
        let items = usages.items.iter().filter(is_selected);
        let items = items.map(|item| UsageItem::new(self.of, item, usages.window, now));
        let mut items: Vec<_> = items.collect();
        match items.pop() {
            Some(item) if !self.name.is_empty() => respond(representation, &item),
            last => {
                items.extend(last);
                respond(representation, &UsageList { of: self.of, items })
            }
        }
    }

    fn error(&self, reason: Reason, cause: &str) -> Status {
        let place = if self.namespace.is_empty() {
            String::new()
        } else {
            format!(" in namespace {}", self.namespace)
        };
        let name = if self.name.is_empty() { String::new() } else { format!(" {}", self.name) };
        let resource = self.resource();
        let message = format!("the usage of {resource}{name}{place} cannot be read: {cause}");
        Status::new(reason, message).about(USAGE_GROUP, resource, self.name.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_paths_are_those_of_metrics_server() {
        for (rest, expected) in [
            ("nodes", Some((UsageOf::Nodes, "", ""))),
            ("nodes/n", Some((UsageOf::Nodes, "", "n"))),
            ("pods", Some((UsageOf::Pods, "", ""))),
            ("namespaces/llm/pods", Some((UsageOf::Pods, "llm", ""))),
            ("namespaces/llm/pods/a", Some((UsageOf::Pods, "llm", "a"))),
            ("pods/a", None),
            ("namespaces/llm/nodes", None),
            ("namespaces//pods", None),
            ("nodes/", None),
        ] {
            let expected = expected.map(|(of, namespace, name)| UsagePath {
                of,
                namespace: namespace.into(),
                name: name.into(),
            });
            assert_eq!(UsagePath::find(rest), expected, "{rest}");
        }
    }
}
