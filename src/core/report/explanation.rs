//! Why a variant has its number, as data. The text is made from it in one place, [`super::render`].

use std::ops::Deref;
use std::sync::Arc;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use smol_str::{SmolStr, ToSmolStr};

use super::Rule;
use super::adjustment::Adjustment;
use super::finding::{Analysis, Finding};
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
    /// Replicas that ran when it was decided.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub running: Option<Replicas>,
    /// The number that is explained; `None` where nothing is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub number: Option<Replicas>,
    /// What the number follows from, before adjustments.
    pub basis: Basis,
    /// What the analyzers found, where they were asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub analysis: Option<Analysis>,
    /// What later stages changed, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub adjustments: Vec<Adjustment>,
    /// Why the number is not published, if it is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub withheld: Option<Withheld>,
}

impl Explanation {
    /// An explanation of which the text is all that is known.
    pub fn text(text: impl Into<SmolStr>) -> Self {
        Self::without_number(Basis::Recorded { text: text.into() })
    }

    /// Why there is no number.
    #[must_use]
    pub fn without_number(basis: Basis) -> Self {
        Reasoning {
            running: None,
            number: None,
            basis,
            analysis: None,
            adjustments: Vec::new(),
            withheld: None,
        }
        .into()
    }

    /// The text, if that is all that is known.
    fn only_text(&self) -> Option<&SmolStr> {
        let Reasoning { running, number, basis, analysis, adjustments, withheld } = &**self;
        let is_alone = running.is_none()
            && number.is_none()
            && analysis.is_none()
            && adjustments.is_empty()
            && withheld.is_none();
        match basis {
            Basis::Recorded { text } if is_alone => Some(text),
            _ => None,
        }
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

    /// The same reasons, whatever their numbers are.
    #[must_use]
    pub fn has_same_reasons(&self, other: &Self) -> bool {
        use std::mem::discriminant;
        let analysis = |reasoning: &Reasoning| {
            let analysis = reasoning.analysis.as_ref()?;
            let constraint = match &analysis.finding {
                Finding::Rate(rate) => Some(discriminant(&rate.constraint)),
                _ => None,
            };
            let removal = analysis.removal_limit.as_ref().map(discriminant);
            Some((discriminant(&analysis.finding), constraint, removal, analysis.stand_in))
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

/// The fields that are written.
#[derive(Serialize)]
struct Written<'a> {
    message: SmolStr,
    #[serde(skip_serializing_if = "Option::is_none")]
    explanation: Option<&'a Reasoning>,
}

/// The fields that are read.
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

/// What a number follows from, before adjustments.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Basis {
    /// A text of which the data was not kept.
    Recorded {
        /// The text.
        text: SmolStr,
    },
    /// An analyzer's number: its finding says why.
    Analyzed {
        /// Why the number is not simply what the finding asks for.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        caveat: Option<Caveat>,
    },
    /// Held: the metric source does not answer.
    SourceDown {
        /// What the source said.
        cause: SmolStr,
    },
    /// Held: Ready pods have no series at all.
    NoSeries {
        /// Ready pods.
        ready: u32,
    },
    /// Held: the newest samples of all Ready pods are too old.
    StaleSamples {
        /// Ready pods.
        ready: u32,
    },
    /// Held: an incomplete answer of the source has nothing of the Ready pods.
    IncompleteAnswer {
        /// What the source warned of.
        warnings: SmolStr,
        /// Ready pods.
        ready: u32,
    },
    /// Held: pods start, none is Ready.
    PodsStarting {
        /// Pods that start.
        starting: u32,
    },
    /// Held: no pod is Ready, and some fit on no node.
    PodsUnschedulable {
        /// Pods without a node.
        unschedulable: u32,
        /// Pods that start, these included.
        starting: u32,
    },
    /// Held: all Ready pods run engines that sleep.
    PodsAsleep {
        /// Pods that sleep.
        asleep: u32,
    },
    /// Held: pods are Ready and were not scraped yet.
    NotMeasuredYet,
    /// Held: replicas are requested, no pod exists.
    NoPods {
        /// Replicas that the scale target requests.
        requested: Replicas,
        /// The scale target.
        target: SmolStr,
    },
    /// Nothing changes between two passes of the analyzer.
    BetweenCycles,
    /// The last change has not happened yet.
    AwaitingReplicas {
        /// The variant that is waited for, if it is another one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        variant: Option<SmolStr>,
        /// What was ordered of it.
        desired: Replicas,
        /// What runs of it.
        running: Replicas,
    },
    /// Replicas exist that are not Ready yet.
    AwaitingReady {
        /// The variant that is waited for, if it is another one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        variant: Option<SmolStr>,
        /// Replicas that are not Ready.
        pending: Replicas,
        /// Replicas that run.
        running: Replicas,
    },
    /// Held until demand and capacity are known.
    Learning,
    /// No replica runs and no request waits.
    Idle,
    /// No replica runs, and no request could be seen waiting.
    NoWakeUpSignal,
    /// No replica runs, and the source's answer is incomplete.
    IdleUnconfirmed,
    /// No replica runs, and requests wait at the scheduler.
    RequestsWaiting {
        /// How many.
        requests: f64,
    },
    /// No request for the retention period.
    IdleFor {
        /// Seconds without a request.
        seconds: f64,
    },
    /// The model is not known to be idle any more.
    NotIdle,
    /// The cheapest variant keeps a replica, because scale to zero is off.
    LastReplicaKept,
    /// The safety net, where no analyzer has decided in this evaluation: its adjustment says the rest.
    SafetyNet,
    /// The scale target does not exist.
    TargetNotFound {
        /// The scale target.
        target: SmolStr,
        /// Where it was looked for.
        namespace: SmolStr,
    },
    /// The object itself cannot be used.
    InvalidVariant {
        /// What is wrong with it.
        problem: SmolStr,
    },
    /// Held: the decision about the model failed.
    DecisionFailed {
        /// What the panic said.
        cause: SmolStr,
        /// When it is tried again.
        retry_at: Timestamp,
    },
    /// Held: the new number broke a rule.
    RuleBroken {
        /// Which rule.
        rule: Rule,
        /// What was decided, and what is allowed.
        detail: SmolStr,
    },
}

/// Why an analyzer's number is not simply what its finding asks for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Caveat {
    /// An incomplete answer of the source removes nothing.
    IncompleteAnswer {
        /// What the source warned of.
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
        /// What the step would leave.
        to: Replicas,
    },
    /// More are needed, and none can be added.
    Blocked {
        /// What is in the way.
        by: Blocker,
    },
    /// The last change has not happened yet.
    AwaitingReplicas {
        /// What was ordered.
        desired: Replicas,
    },
}

/// What keeps a variant from growing.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Blocker {
    /// No node has room.
    NoNode {
        /// Pods without a node.
        pods: u32,
    },
    /// The maximum is reached.
    Maximum {
        /// The maximum.
        max: Replicas,
    },
    /// Pods do not become Ready.
    NotReady {
        /// Pods that start.
        pods: u32,
    },
    /// No variant can grow.
    Unknown,
}

/// Why a number is not published.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Withheld {
    /// Nothing has been measured, and no earlier number is known.
    NothingKnown,
    /// The newest evidence is too old.
    EvidenceTooOld {
        /// Its age, seconds.
        age: f64,
        /// The limit, seconds.
        limit: f64,
    },
}

/// `value` as explanations keep it: four decimals, and finite, since JSON has no other numbers.
#[must_use]
pub(crate) fn figure(value: f64) -> f64 {
    // Beyond this a float has no decimals to round, and the product could overflow.
    const MAX_ROUNDED: f64 = 1e11;
    if value.is_nan() {
        0.0
    } else if value.abs() < MAX_ROUNDED {
        (value * 1e4).round() / 1e4
    } else {
        value.clamp(f64::MIN, f64::MAX)
    }
}
