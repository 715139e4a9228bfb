//! Why a variant has its number, as data. The text is made from it in one place, [`super::render`].

use std::ops::Deref;
use std::sync::Arc;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use smol_str::{SmolStr, ToSmolStr};

use super::adjustment::{Adjustment, AdjustmentReason};
use super::finding::{Analysis, Finding};
use super::{Breach, Rule};
use crate::units::Replicas;

/// Why a variant has its number, or none. Cheap to clone: decision, memory and report share one.
///
/// On the wire it is two fields: `message`, the text, and `explanation`, the data. Where there is no data the text is all there
/// is: state objects keep the text only, and earlier versions knew nothing else.
#[derive(Debug, Clone, PartialEq)]
pub struct Explanation(Arc<Reasoning>);

/// What an [`Explanation`] consists of.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Reasoning {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) running: Option<Replicas>,
    /// The number that is explained; `None` where nothing is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) number: Option<Replicas>,
    pub(crate) basis: Basis,
    /// What the analyzers found, where they were asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) analysis: Option<Analysis>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) adjustments: Vec<Adjustment>,
    /// Why the number is not published, if it is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) withheld: Option<Withheld>,
    /// What holds replicas back, if anything does; the text says it where it decides the number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) hindrance: Option<Hindrance>,
}

/// What holds replicas back, whether this evaluation asked for them or not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "camelCase")]
pub(crate) enum Hindrance {
    /// No node has room for pods that exist.
    NoNode {
        pods: u32,
        /// What the scheduler says about one of them.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        message: Option<SmolStr>,
    },
    /// A limit has denied replicas within the last minute, so that another variant is asked first.
    Denied,
}

impl Explanation {
    /// An explanation of which the text is all that is known.
    pub fn text(text: impl Into<SmolStr>) -> Self {
        Self::without_number(Basis::Recorded { text: text.into() })
    }

    #[must_use]
    pub(crate) fn without_number(basis: Basis) -> Self {
        Reasoning {
            running: None,
            number: None,
            basis,
            analysis: None,
            adjustments: Vec::new(),
            withheld: None,
            hindrance: None,
        }
        .into()
    }

    /// The text, if that is all that is known.
    fn only_text(&self) -> Option<&SmolStr> {
        let Reasoning { running, number, basis, analysis, adjustments, withheld, hindrance } = &**self;
        let is_alone = running.is_none()
            && number.is_none()
            && analysis.is_none()
            && adjustments.is_empty()
            && withheld.is_none()
            && hindrance.is_none();
        match basis {
            Basis::Recorded { text } if is_alone => Some(text),
            _ => None,
        }
    }

    /// Whether the number was raised to a minimum: to the variant's own, or to the last replica of a model that may not go to zero.
    #[must_use]
    pub fn is_raised_to_minimum(&self) -> bool {
        let is_raised = |adjustment: &Adjustment| {
            let is_bound = matches!(adjustment.why, AdjustmentReason::Bounds { .. });
            is_bound && adjustment.from.is_some_and(|from| from < adjustment.to)
        };
        matches!(self.basis, Basis::LastReplicaKept) || self.adjustments.iter().any(is_raised)
    }

    /// The same as text only, as state objects keep it.
    #[must_use]
    pub fn as_text(&self) -> SmolStr {
        self.only_text().cloned().unwrap_or_else(|| self.to_smolstr())
    }

    /// For changes; copies the data if it is shared.
    pub fn to_mut(&mut self) -> &mut Reasoning {
        Arc::make_mut(&mut self.0)
    }

    /// Says why an analyzer's number is not simply what its finding asks for.
    pub(crate) fn set_caveat(&mut self, caveat: Caveat) {
        self.to_mut().basis = Basis::Analyzed { caveat: Some(caveat) };
    }

    /// Whether the number is raised for the price of replicas alone.
    pub(crate) fn is_exchange(&self) -> bool {
        matches!(&self.basis, Basis::Analyzed { caveat: Some(Caveat::Exchange { .. }) })
    }

    /// The same reasons by the same settings, whatever was measured.
    #[must_use]
    pub fn has_same_reasons(&self, other: &Self) -> bool {
        use std::mem::discriminant;
        let analysis = |reasoning: &Reasoning| {
            let analysis = reasoning.analysis.as_ref()?;
            let constraint = match &analysis.finding {
                Finding::Rate(rate) => Some(discriminant(&rate.constraint)),
                _ => None,
            };
            let triggers = match analysis.finding {
                Finding::SaturationPercent { kv_trigger, queue_trigger, .. } => {
                    Some((kv_trigger, queue_trigger))
                }
                _ => None,
            };
            let removal = analysis.removal_limit.as_ref().map(discriminant);
            Some((discriminant(&analysis.finding), constraint, triggers, removal, analysis.fallback))
        };
        let caveat = |reasoning: &Reasoning| match &reasoning.basis {
            Basis::Analyzed { caveat } => caveat.as_ref().map(discriminant),
            _ => None,
        };
        let has_same_adjustments = self.adjustments.len() == other.adjustments.len()
            && self
                .adjustments
                .iter()
                .zip(&other.adjustments)
                .all(|(adjustment, other)| adjustment.why.differs_in_figures_only(&other.why));
        match (self.only_text(), other.only_text()) {
            (None, None) => {
                discriminant(&self.basis) == discriminant(&other.basis)
                    && caveat(self) == caveat(other)
                    && analysis(self) == analysis(other)
                    && has_same_adjustments
                    && self.withheld.as_ref().map(discriminant) == other.withheld.as_ref().map(discriminant)
            }
            (own, text) => own == text,
        }
    }
}

impl Deref for Explanation {
    type Target = Reasoning;

    fn deref(&self) -> &Reasoning {
        &self.0
    }
}

impl From<Reasoning> for Explanation {
    fn from(reasoning: Reasoning) -> Self {
        Self(Arc::new(reasoning))
    }
}

impl From<&str> for Explanation {
    fn from(text: &str) -> Self {
        Self::text(text)
    }
}

impl From<String> for Explanation {
    fn from(text: String) -> Self {
        Self::text(text)
    }
}

#[derive(Serialize)]
struct Written<'a> {
    message: SmolStr,
    #[serde(skip_serializing_if = "Option::is_none")]
    explanation: Option<&'a Reasoning>,
}

#[derive(Deserialize)]
struct Read {
    message: SmolStr,
    explanation: Option<Reasoning>,
}

impl Serialize for Explanation {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let explanation = self.only_text().is_none().then_some(&**self);
        Written { message: self.as_text(), explanation }.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Explanation {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Read { message, explanation } = Read::deserialize(deserializer)?;
        Ok(explanation.map_or_else(|| Self::text(message), Self::from))
    }
}

/// What a number follows from, before adjustments; `render::basis` says each in words.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub(crate) enum Basis {
    /// A text of which the data was not kept.
    Recorded {
        text: SmolStr,
    },
    /// An analyzer's number: its finding says why.
    Analyzed {
        /// Why the number is not simply what the finding asks for.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        caveat: Option<Caveat>,
    },
    SourceDown {
        cause: SmolStr,
    },
    NoSeries {
        ready: u32,
    },
    StaleSamples {
        ready: u32,
    },
    IncompleteAnswer {
        warnings: SmolStr,
        ready: u32,
    },
    PodsStarting {
        starting: u32,
    },
    PodsUnschedulable {
        unschedulable: u32,
        /// Pods that start, those without a node included.
        starting: u32,
    },
    PodsAsleep {
        asleep: u32,
    },
    NotMeasuredYet,
    NoPods {
        requested: Replicas,
        target: SmolStr,
    },
    BetweenCycles,
    /// The last change has not happened yet.
    AwaitingReplicas {
        /// The variant that is waited for, if it is another one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        variant: Option<SmolStr>,
        desired: Replicas,
        running: Replicas,
    },
    /// Replicas exist that are not Ready yet.
    AwaitingReady {
        /// The variant that is waited for, if it is another one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        variant: Option<SmolStr>,
        pending: Replicas,
        running: Replicas,
    },
    /// Held until demand and capacity are known.
    Learning,
    Idle,
    NoWakeUpSignal,
    IdleUnconfirmed,
    RequestsWaiting {
        requests: f64,
    },
    /// At zero, while the role that each request needs too runs: prefill or decode.
    CounterpartRuns,
    IdleFor {
        seconds: f64,
    },
    NotIdle,
    LastReplicaKept,
    /// The safety net, where no analyzer has decided in this evaluation: its adjustment says the rest.
    SafetyNet,
    TargetNotFound {
        target: SmolStr,
        namespace: SmolStr,
    },
    /// The cause also says what to do.
    TargetUnknown {
        target: SmolStr,
        cause: SmolStr,
    },
    InvalidVariant {
        problem: SmolStr,
    },
    /// The cause also says what to do.
    ModelUnknown {
        cause: SmolStr,
    },
    DecisionFailed {
        cause: SmolStr,
        retry_at: Timestamp,
    },
    RuleBroken {
        rule: Rule,
        detail: Breach,
    },
}

/// Why an analyzer's number is not simply what its finding asks for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub(crate) enum Caveat {
    IncompleteAnswer {
        warnings: SmolStr,
    },
    /// Some Ready pods have no fresh metrics, so nothing is removed.
    UnmeasuredPods,
    /// The number is changed although some Ready pods have no fresh metrics.
    PartiallyMeasured,
    /// Pods without fresh metrics count like the busiest one that is measured.
    EstimatedPods,
    /// One fewer would suffice, but the newest samples are not fresh.
    NotFresh,
    /// One fewer would suffice, but the smallest step is larger.
    StepTooLarge {
        to: Replicas,
    },
    /// More are needed, and none can be added.
    Blocked {
        by: Blocker,
    },
    AwaitingReplicas {
        desired: Replicas,
    },
    /// They are to replace those of a dearer variant.
    Exchange {
        from: SmolStr,
    },
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub(crate) enum Blocker {
    NoNode {
        pods: u32,
    },
    Maximum {
        max: Replicas,
    },
    /// Pods do not become Ready.
    NotReady {
        pods: u32,
    },
    /// No variant can grow.
    Unknown,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub(crate) enum Withheld {
    NothingKnown,
    /// The age of the newest evidence is over the limit, both in seconds.
    EvidenceTooOld {
        age: f64,
        limit: f64,
    },
}
