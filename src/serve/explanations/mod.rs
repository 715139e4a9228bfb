//! `decisions.wva.llmd.ai`: why each variant has its number, as a read-only resource, so that `kubectl` reaches it through the API
//! server and with the rights of RBAC. What an explanation says is made in [`crate::explain`].

mod object;
mod read;

use std::sync::Arc;
use std::time::Duration;

use axum::response::Response;
use http::request::Parts;
use tokio::task::spawn_blocking;
use tokio::time::sleep;

use self::object::{Explanation, ExplanationList};
pub(crate) use self::read::ObjectPath;
use self::read::{Found, Read};
use super::auth::{AuthState, authorize};
use super::data_read::ReadState;
use super::encoding::response::respond;
use super::encoding::{Reason, Status, internal_error};
use super::forward::InstanceVerifier;
use super::middleware::AuditId;
use super::tls::{AnswerPermit, Permits};
use crate::engine::Evaluation;
use crate::explain::screen;
use crate::record::Recent;

/// Concurrent reads. Each may occupy a thread for some milliseconds, and a list has some hundred bytes per variant.
const MAX_READS: usize = 8;

/// How long to wait for the inputs of an evaluation that has just been published: they are kept a moment later.
const INPUTS_WAIT: Duration = Duration::from_millis(20);
const MAX_INPUTS_WAITS: usize = 10;

/// What reads of explanations need besides published results.
pub(crate) struct ExplanationState {
    recent: Arc<Recent>,
    permits: Permits,
}

impl ExplanationState {
    pub(crate) fn new(recent: Arc<Recent>) -> Self {
        Self { recent, permits: Permits::new(MAX_READS) }
    }

    /// A read of a client.
    pub(crate) async fn answer(
        &self,
        (auth, reads): (&AuthState, &ReadState),
        audit: &AuditId,
        path: Result<ObjectPath, Status>,
        mut request: Parts,
    ) -> Result<Response, Status> {
        let path = path?;
        let attributes = path.attributes(&request);
        // Before the permit: a caller that may not read takes none, and the number of reviews has its own limit.
        authorize(auth, &mut request, &attributes).await?;
        let permit = self.admit()?;
        let read = Read::parse(&mut request, path)?;
        let mut found = None;
        let answer = reads.answer(&request, audit, |published| {
            found = Some(read.find(reads, published)?);
            Ok(Response::default())
        });
        let answer = answer.await?;
        self.complete(&read, found, answer, permit).await
    }

    /// A read that another instance forwards.
    pub(crate) async fn answer_instance(
        &self,
        (instances, reads): (&InstanceVerifier, &ReadState),
        path: Result<ObjectPath, Status>,
        mut request: Parts,
    ) -> Result<Response, Status> {
        instances.authorize(&request).await?;
        let permit = self.admit()?;
        let read = Read::parse(&mut request, path?)?;
        let mut found = None;
        let answer = reads.answer_instance(Ok(()), |(), published| {
            found = Some(read.find(reads, published)?);
            Ok(Response::default())
        });
        let answer = answer.await?;
        self.complete(&read, found, answer, permit).await
    }

    fn admit(&self) -> Result<AnswerPermit, Status> {
        let message = "others are reading explanations from this server; retry later";
        self.permits.acquire().ok_or_else(|| Status::new(Reason::TooManyRequests, message))
    }

    /// Fills in the body of `answer`, unless it is the leader's. Not on the threads that answer reads of metrics: predicting
    /// what follows repeats the decision about a model, and a fleet has a list of some MiB. The permit stays with the thread if
    /// the client goes away, and with the answer until it is sent.
    async fn complete(
        &self,
        read: &Read,
        found: Option<Found>,
        mut answer: Response,
        permit: AnswerPermit,
    ) -> Result<Response, Status> {
        if let Some(found) = found {
            let evaluation = match &found {
                Found::One(explanation) => self.inputs(explanation).await,
                Found::List(_) => None,
            };
            let (representation, held) = (read.representation, permit.clone());
            let body = spawn_blocking(move || {
                let answer = match found {
                    Found::One(explanation) => {
                        respond(representation, &with_text(*explanation, evaluation.as_deref()))
                    }
                    Found::List(items) => respond(representation, &ExplanationList::new(items)),
                };
                drop(held);
                answer
            });
            let (head, body) = body.await.map_err(|failure| internal_error(&failure))??.into_parts();
            for (name, value) in &head.headers {
                answer.headers_mut().insert(name.clone(), value.clone());
            }
            *answer.body_mut() = body;
        }
        answer.extensions_mut().insert(permit);
        Ok(answer)
    }

    /// The evaluation that decided what is explained, if it is kept.
    async fn inputs(&self, found: &Explanation) -> Option<Arc<Evaluation>> {
        // Without steps it is a state that was stored, of which no inputs are kept.
        let explanation = found.explanation.as_ref().filter(|explanation| !explanation.steps.is_empty())?;
        for _ in 0..MAX_INPUTS_WAITS {
            let newest = self.recent.latest()?;
            if newest.published.at >= explanation.at {
                break;
            }
            sleep(INPUTS_WAIT).await;
        }
        let evaluation = self.recent.at(explanation.at)?;
        // What woke a model alone replaces its part of an evaluation.
        let decided = evaluation.published.decisions.get(&explanation.variant);
        (decided == Some(&explanation.decision)).then_some(evaluation)
    }
}

fn with_text(mut found: Explanation, evaluation: Option<&Evaluation>) -> Explanation {
    if let Some(explanation) = &mut found.explanation {
        if let Some(Evaluation { snapshot, published, after, .. }) = evaluation {
            explanation.add_inputs(snapshot, after, &published.policy);
        }
        found.text = screen(explanation);
    }
    found
}
