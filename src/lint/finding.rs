//! A finding: an object, and what is wrong with it as data.

use serde::Serialize;
use serde_json::Value;
use wva_core::text::plain;

use super::api::ApiIssue;
use super::behavior::BehaviorIssue;
use super::bounds::BoundsIssue;
use super::keda::KedaIssue;
use super::metric::MetricIssue;
use super::object::ObjectRef;
use super::pod::PodIssue;
use super::selector::SelectorIssue;
use super::target::TargetIssue;
use super::words::{Severity, Words};

/// Longest sentence of a finding: the longest query that is quoted, and what is said about it.
const MAX_SENTENCE_BYTES: usize = 1000;

/// Something about an autoscaler.
#[derive(Debug, Clone, PartialEq)]
pub struct Finding {
    /// The object that mends it, or is affected.
    pub object: ObjectRef,
    /// What is wrong.
    pub issue: Issue,
}

/// What is wrong, with its numbers. Of one severity, the first ones come first: what is about the number before what most workloads have.
#[derive(Debug, Clone, PartialEq)]
pub enum Issue {
    /// Which number is read, and by which arithmetic.
    Metric(MetricIssue),
    /// Whose number is read.
    Selector(SelectorIssue),
    /// Who else scales the workload.
    Target(TargetIssue),
    /// Minimum and maximum.
    Bounds(BoundsIssue),
    /// What KEDA does besides.
    Keda(KedaIssue),
    /// Who serves the number.
    Api(ApiIssue),
    /// How fast the number is followed.
    Behavior(BehaviorIssue),
    /// How pods end.
    Pod(PodIssue),
}

impl Issue {
    /// Its place among the issues of one severity.
    pub(crate) const fn place(&self) -> u8 {
        match self {
            Self::Metric(_) => 0,
            Self::Selector(_) => 1,
            Self::Target(_) => 2,
            Self::Bounds(_) => 3,
            Self::Keda(_) => 4,
            Self::Api(_) => 5,
            Self::Behavior(_) => 6,
            Self::Pod(_) => 7,
        }
    }
}

/// A finding as text. All text of objects in it is on one line and bounded, except in `fix`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Advice {
    /// How much it matters.
    pub severity: Severity,
    /// Its kind, in CamelCase.
    pub reason: &'static str,
    /// The object.
    pub object: String,
    /// What is set.
    pub set: String,
    /// What happens because of it.
    pub effect: String,
    /// The YAML that mends it, or what to do where no YAML does.
    pub fix: String,
}

impl Advice {
    /// All of it on one line.
    #[must_use]
    pub fn in_words(&self) -> String {
        let Self { object, set, effect, .. } = self;
        format!("{object}: {set}; {effect}; what mends it: {}", self.remedy())
    }

    /// What mends it on one line: the comments of the fix, and its YAML as JSON, which is YAML too.
    #[must_use]
    pub fn remedy(&self) -> String {
        let comments = self.fix.lines().filter_map(|line| line.strip_prefix('#')).map(str::trim);
        let comments = comments.collect::<Vec<_>>().join(" ");
        let yaml = serde_saphyr::from_str::<Value>(&self.fix).ok().filter(|yaml| !yaml.is_null());
        match yaml {
            Some(yaml) if comments.is_empty() => yaml.to_string(),
            Some(yaml) => format!("{comments}: {yaml}"),
            None => comments,
        }
    }
}

impl Finding {
    /// The finding as text.
    #[must_use]
    pub fn advice(&self) -> Advice {
        let Words { severity, reason, set, effect, fix } = match &self.issue {
            Issue::Metric(issue) => issue.words(),
            Issue::Api(issue) => issue.words(),
            Issue::Selector(issue) => issue.words(),
            Issue::Bounds(issue) => issue.words(),
            Issue::Behavior(issue) => issue.words(),
            Issue::Keda(issue) => issue.words(),
            Issue::Target(issue) => issue.words(),
            Issue::Pod(issue) => issue.words(),
        };
        let sentence = |text: &str| plain(text, MAX_SENTENCE_BYTES);
        let object = sentence(&self.object.to_string());
        Advice { severity, reason, object, set: sentence(&set), effect: sentence(&effect), fix }
    }
}
