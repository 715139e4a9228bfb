//! What was written to the status of an object before, and what was refused.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;
use wva_core::{Decision, VariantId};

use super::status_events::{EventBudget, ToldFindings};
use crate::cluster::crd::VariantAutoscalingStatus;
use crate::cluster::objects::VariantObject;
use crate::cluster::requests::RequestError;
use wva_core::text::plain;

/// How long a written status counts as stored until the watch shows it.
const SETTLE_WINDOW: Duration = Duration::from_secs(10);
/// How long an object whose status was refused is left alone.
pub(super) const RETRY_INTERVAL: Duration = Duration::from_secs(30);
/// The same where the object is invalid by its definition: until somebody changes one of the two, every write is refused.
const INVALID_INTERVAL: Duration = Duration::from_secs(600);
/// Longest cause of a refusal in the log and in an event: it may repeat what the object's author wrote.
const MAX_CAUSE_BYTES: usize = 512;

/// What was written to an object before.
#[derive(Default)]
pub(super) struct StatusHistory {
    pub(super) written: Option<WrittenStatus>,
    pub(super) refusal: Option<Refusal>,
    pub(super) events: EventBudget,
    pub(super) told: ToldFindings,
}

/// Boxed, because nodes of a tree that is filled in the order of its keys are half empty.
pub(super) type Histories = BTreeMap<VariantId, Box<StatusHistory>>;

impl StatusHistory {
    /// Forgets a written status that counts as stored: conditions are most of what is kept of a variant.
    pub(super) fn forget_stored(&mut self, object: &VariantObject) {
        if let Some(written) = self.written.as_mut().filter(|written| !written.is_settling(object)) {
            written.status = None;
        }
    }
}

/// A status that was not written.
pub(super) struct Refusal {
    pub(super) at: Instant,
    pub(super) cause: String,
    /// Of the object.
    pub(super) uid: String,
    /// The generation of the object that is invalid by its definition.
    invalid: Option<i64>,
}

impl Refusal {
    pub(super) fn new(error: &RequestError, object: &VariantObject) -> Self {
        let invalid = (error.code() == Some(422)).then_some(object.generation);
        let cause = plain(&error.to_string(), MAX_CAUSE_BYTES);
        Self { at: Instant::now(), cause, uid: object.uid.clone(), invalid }
    }

    /// True while the object is left alone.
    pub(super) fn holds(&self, object: &VariantObject) -> bool {
        let age = self.at.elapsed();
        match self.invalid {
            _ if self.uid != object.uid => false,
            Some(invalid) if invalid == object.generation => age < INVALID_INTERVAL,
            Some(_) => false,
            None => age < RETRY_INTERVAL,
        }
    }

    /// What ends it.
    pub(super) fn remedy(&self) -> &'static str {
        match self.invalid {
            Some(_) => "correct the field that it names",
            None => {
                "check the definition of VariantAutoscalings, and that the service account may patch variantautoscalings/status"
            }
        }
    }
}

/// What was written last.
pub(super) struct WrittenStatus {
    /// Of the object: one that was created again has no status.
    pub(super) uid: String,
    pub(super) at: Instant,
    /// `None` once it counts as stored: then the object's own is compared.
    pub(super) status: Option<VariantAutoscalingStatus>,
    /// Its reasons are compared with the next ones.
    pub(super) decision: Decision,
}

impl WrittenStatus {
    /// It may not be stored yet. Of an object that cannot be parsed, only the status written here is known.
    pub(super) fn is_settling(&self, object: &VariantObject) -> bool {
        self.at.elapsed() < SETTLE_WINDOW || object.status.is_none()
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use wva_core::model::InvalidVariant;

    use super::*;
    use crate::cluster::objects::VariantKind;

    #[tokio::test(start_paused = true)]
    async fn a_refusal_silenced_the_object_that_was_created_after_the_refused_one() {
        let problem = InvalidVariant::new(VariantId::new("llm", "chat"), String::new());
        let refused = VariantObject {
            kind: VariantKind::default(),
            is_called: false,
            uid: "first".into(),
            created: Timestamp::UNIX_EPOCH,
            generation: 1,
            notices: Vec::new(),
            settings: None,
            model: None,
            target: None,
            variant: Err(problem),
            status: None,
        };
        let (uid, at) = (refused.uid.clone(), Instant::now());
        let refusal = Refusal { at, cause: String::new(), uid, invalid: Some(1) };
        assert!(refusal.holds(&refused));
        assert!(!refusal.holds(&VariantObject { uid: "later".into(), ..refused }));
    }
}
