//! The scrape targets that may report metrics of other pods. Labels on a scraped page can be written by anybody who runs a pod;
//! Prometheus stores those it sets itself under `exported_namespace` and `exported_pod`. These count only for scrape targets that
//! an administrator has listed.

use std::collections::BTreeMap;

use super::response::Labels;
use crate::collect::series_labels::SeriesLabels as _;

/// The listed scrape targets, by namespace.
#[derive(Debug, Clone, Default)]
pub(super) struct TrustedCollectors(BTreeMap<String, Jobs>);

#[derive(Debug, Clone)]
enum Jobs {
    All,
    Only(Vec<String>),
}

impl TrustedCollectors {
    /// Each of `listed` is a namespace, or `namespace/job`. A job may contain slashes, as those of a Prometheus operator's
    /// `PodMonitor` do.
    pub(super) fn new(listed: &[String]) -> Self {
        let mut collectors: BTreeMap<String, Jobs> = BTreeMap::new();
        for text in listed.iter().filter(|text| !text.is_empty()) {
            let (namespace, job) = match text.split_once('/') {
                Some((namespace, job)) => (namespace, Some(job)),
                None => (text.as_str(), None),
            };
            let jobs = collectors.entry(namespace.to_owned()).or_insert_with(|| Jobs::Only(Vec::new()));
            match (job, jobs) {
                (None, jobs) => *jobs = Jobs::All,
                (Some(job), Jobs::Only(jobs)) => jobs.push(job.to_owned()),
                (Some(_), Jobs::All) => {}
            }
        }
        Self(collectors)
    }

    /// Whether no target is trusted.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether a job of `namespace` is trusted.
    pub(super) fn has_namespace(&self, namespace: &str) -> bool {
        self.0.contains_key(namespace)
    }

    /// The namespaces with trusted jobs.
    pub(super) fn namespaces(&self) -> impl Iterator<Item = &String> {
        self.0.keys()
    }

    /// Whether a series with these labels was scraped from a trusted target.
    pub(super) fn has_target(&self, labels: &Labels<'_>) -> bool {
        let jobs = labels.get("namespace").and_then(|namespace| self.0.get(namespace));
        jobs.is_some_and(|jobs| match jobs {
            Jobs::All => true,
            Jobs::Only(jobs) => labels.get("job").is_some_and(|job| jobs.iter().any(|own| own == job)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_trusted(listed: &[&str], labels: &[(&'static str, &'static str)]) -> bool {
        let listed: Vec<String> = listed.iter().map(|text| (*text).to_owned()).collect();
        let labels = labels.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
        TrustedCollectors::new(&listed).has_target(&Labels(labels))
    }

    #[test]
    fn a_target_is_trusted_by_its_namespace_or_by_namespace_and_job() {
        let otel = [("namespace", "monitoring"), ("job", "monitoring/otel")];
        let stranger = [("namespace", "monitoring"), ("job", "evil")];
        for listed in [&["monitoring"][..], &["monitoring/monitoring/otel"], &["monitoring/x", "monitoring"]]
        {
            assert!(is_trusted(listed, &otel), "{listed:?}");
        }
        assert!(!is_trusted(&["monitoring/monitoring/otel"], &stranger));
        assert!(!is_trusted(&["monitoring/otel"], &[("namespace", "monitoring")]));
        assert!(
            !is_trusted(&["", "monitorin"], &otel) && !is_trusted(&[], &otel) && !is_trusted(&["a"], &[])
        );
    }
}
