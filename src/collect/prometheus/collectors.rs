//! Who may speak for pods that it isn't. What a scraped page says of itself, anybody who runs a pod can write: Prometheus
//! keeps it as `exported_namespace` and `exported_pod`. It counts only from a scrape target that an administrator lists.

use std::collections::BTreeMap;

use super::answer::Labels;

/// The scrape targets that are listed: of a namespace those jobs, or all of them.
#[derive(Debug, Clone, Default)]
pub(super) struct Collectors(BTreeMap<String, Jobs>);

#[derive(Debug, Clone)]
enum Jobs {
    All,
    Only(Vec<String>),
}

impl Collectors {
    /// `listed` are namespaces, or a namespace and a job of it as `namespace/job`; a job may have slashes of its own, as those
    /// of the Prometheus operator's `PodMonitor`s have.
    pub(super) fn new(listed: &[String]) -> Self {
        let mut collectors: BTreeMap<String, Jobs> = BTreeMap::new();
        for text in listed.iter().filter(|text| !text.is_empty()) {
            let (namespace, job) = text.split_once('/').map_or((text.as_str(), None), |(n, j)| (n, Some(j)));
            let jobs = collectors.entry(namespace.to_owned()).or_insert_with(|| Jobs::Only(Vec::new()));
            match (job, jobs) {
                (None, jobs) => *jobs = Jobs::All,
                (Some(job), Jobs::Only(jobs)) => jobs.push(job.to_owned()),
                (Some(_), Jobs::All) => {}
            }
        }
        Self(collectors)
    }

    /// Nobody is listed.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Some job of `namespace` is listed.
    pub(super) fn has(&self, namespace: &str) -> bool {
        self.0.contains_key(namespace)
    }

    /// The namespaces of which some job is listed.
    pub(super) fn namespaces(&self) -> impl Iterator<Item = &String> {
        self.0.keys()
    }

    /// The target that a series with these labels was scraped from is listed.
    pub(super) fn list(&self, labels: &Labels<'_>) -> bool {
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

    fn is_listed(listed: &[&str], labels: &[(&'static str, &'static str)]) -> bool {
        let listed: Vec<String> = listed.iter().map(|text| (*text).to_owned()).collect();
        let labels = labels.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
        Collectors::new(&listed).list(&Labels(labels))
    }

    #[test]
    fn a_target_is_listed_by_its_namespace_or_by_its_job_in_it() {
        let otel = [("namespace", "monitoring"), ("job", "monitoring/otel")];
        let stranger = [("namespace", "monitoring"), ("job", "evil")];
        for listed in [&["monitoring"][..], &["monitoring/monitoring/otel"], &["monitoring/x", "monitoring"]]
        {
            assert!(is_listed(listed, &otel), "{listed:?}");
        }
        assert!(!is_listed(&["monitoring/monitoring/otel"], &stranger));
        assert!(!is_listed(&["monitoring/otel"], &[("namespace", "monitoring")]));
        assert!(!is_listed(&["", "monitorin"], &otel) && !is_listed(&[], &otel) && !is_listed(&["a"], &[]));
    }
}
