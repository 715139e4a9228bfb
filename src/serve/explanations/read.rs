//! A read of explanations: what is asked for, and what the published result says about it.

use http::header::ACCEPT;
use http::request::Parts;
use http::{HeaderMap, HeaderValue};
use serde::Deserialize;
use wva_core::decision::NoTarget;
use wva_core::text::quoted;
use wva_core::{Decision, VariantId};

use super::object::{Explanation, Summary};
use crate::engine::{ClusterView, Origin, Published};
use crate::explain::{self, WhyNot, elapsed};
use crate::serve::auth::{Attributes, attributes_verb};
use crate::serve::data_read::ReadState;
use crate::serve::encoding::negotiation::{self, Encoding, Representation, TableVersion};
use crate::serve::encoding::response::{not_acceptable, representation};
use crate::serve::encoding::{Reason, Status};
use crate::serve::external_metrics::query::{FieldRequirement, ListOptions, is_watch};
use crate::serve::external_metrics::selector::LabelSelector;
use crate::serve::paths::{EXPLANATIONS, EXPLANATIONS_GROUP, EXPLANATIONS_VERSION};

/// The representations: as of the metrics, without protobuf, which an object of this shape has not.
const AVAILABLE: [&str; 4] = [
    Encoding::Json.media_type(),
    Encoding::Yaml.media_type(),
    Representation { encoding: Encoding::Json, table: Some(TableVersion::V1) }.media_range(),
    Representation { encoding: Encoding::Json, table: Some(TableVersion::V1Beta1) }.media_range(),
];

const NOT_DECIDED: &str = "no decision has been made about it yet: its objects and metrics are still being read; this takes \
                           seconds after it was created or the server was started";

/// The path of a read. Empty names are those that it lacks.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct ObjectPath {
    namespace: String,
    name: String,
}

impl ObjectPath {
    /// What the caller needs the right for.
    pub(super) fn attributes(&self, request: &Parts) -> Attributes {
        Attributes::Resource {
            verb: attributes_verb(&request.method, !self.name.is_empty(), is_watch(&request.uri)),
            group: EXPLANATIONS_GROUP,
            version: EXPLANATIONS_VERSION,
            resource: EXPLANATIONS.to_owned(),
            subresource: String::new(),
            namespace: self.namespace.clone(),
            name: self.name.clone(),
        }
    }
}

/// A valid read.
pub(super) struct Read {
    path: ObjectPath,
    labels: LabelSelector,
    fields: Vec<FieldRequirement>,
    pub(super) representation: Representation,
}

/// What the published result says.
pub(super) enum Found {
    /// One variant; its explanation lacks what the inputs show.
    One(Box<Explanation>),
    List(Vec<Summary>),
}

impl Read {
    /// Also sets the header that the leader negotiates by.
    pub(super) fn parse(request: &mut Parts, path: ObjectPath) -> Result<Self, Status> {
        let representation = accepted(&request.headers)?;
        request.headers.insert(ACCEPT, HeaderValue::from_static(representation.media_range()));
        let ListOptions { labels, fields } = ListOptions::parse(EXPLANATIONS_GROUP, &request.uri)?;
        Ok(Self { path, labels, fields, representation })
    }

    /// # Errors
    /// 404 for a variant that does not exist, 503 while it is not known which ones exist.
    pub(super) fn find(&self, state: &ReadState, published: &Published) -> Result<Found, Status> {
        let view = state.reader.view();
        if published.origin == Origin::Empty && !state.synced.has_synced() {
            let message = "the variants are still being read, and no decision has been made yet; retry in a few seconds";
            return Err(self.error(Reason::ServiceUnavailable, message.to_owned()));
        }
        if self.path.name.is_empty() {
            return Ok(Found::List(self.list(state, published, &view)));
        }
        let name = VariantId::new(self.path.namespace.as_str(), self.path.name.as_str());
        let own = if published.decisions.contains_key(&name) { None } else { view.aliased(&name) };
        let variant = own.unwrap_or_else(|| name.clone());
        if let Some(decision) = published.decisions.get(&variant) {
            return Ok(Found::One(Box::new(explain(state, published, (&name, &variant), decision))));
        }
        if !known(&view).any(|known| *known == variant) {
            let message = format!(
                "{EXPLANATIONS}.{EXPLANATIONS_GROUP} {} not found: this installation has no variant of this name in \
                 namespace {}; `kubectl get {EXPLANATIONS}.{EXPLANATIONS_GROUP} -n {}` lists those that it has",
                quoted(&name.name),
                name.namespace,
                name.namespace,
            );
            return Err(self.error(Reason::NotFound, message));
        }
        let text = format!("{variant}: not decided yet\n  {NOT_DECIDED}\n");
        let summary = Summary::not_decided(&name, NOT_DECIDED.to_owned());
        Ok(Found::One(Box::new(Explanation { summary, why_not: None, explanation: None, text })))
    }

    fn list(&self, state: &ReadState, published: &Published, view: &ClusterView) -> Vec<Summary> {
        let (now, max_stale) = (state.reader.now(), state.reader.max_stale());
        let selected = |id: &VariantId| {
            (self.path.namespace.is_empty() || *id.namespace == *self.path.namespace)
                && self.labels.matches(|_| None)
                && self.fields.iter().all(|field| field.holds(&id.name, &id.namespace))
        };
        let decided = published.series(view).filter(|(id, _)| selected(id));
        let decided = decided.map(|(id, decision)| (id, Summary::decided(id, decision, now, max_stale)));
        let waiting = known(view).filter(|id| !published.decisions.contains_key(*id) && selected(id));
        let waiting = waiting.map(|id| (id, Summary::not_decided(id, NOT_DECIDED.to_owned())));
        let mut items: Vec<_> = decided.chain(waiting).collect();
        items.sort_by_key(|(id, _)| *id);
        items.into_iter().map(|(_, summary)| summary).collect()
    }

    fn error(&self, reason: Reason, message: String) -> Status {
        Status::new(reason, message).about(EXPLANATIONS_GROUP, EXPLANATIONS, self.path.name.as_str())
    }
}

/// The variants that are known, valid or not.
fn known(view: &ClusterView) -> impl Iterator<Item = &VariantId> {
    view.variants.iter().map(|state| &state.variant.id).chain(view.invalid.iter().map(|invalid| &invalid.id))
}

/// The representation for the client, JSON for one that prefers protobuf and accepts JSON.
fn accepted(headers: &HeaderMap) -> Result<Representation, Status> {
    let chosen = representation(headers)?;
    match chosen.encoding {
        Encoding::Json | Encoding::Yaml => Ok(chosen),
        Encoding::Protobuf if negotiation::accepts_json(headers) => {
            Ok(Representation { encoding: Encoding::Json, table: None })
        }
        Encoding::Protobuf => Err(not_acceptable(&AVAILABLE)),
    }
}

/// `names` are the one that was asked for and the variant's own.
fn explain(
    state: &ReadState,
    published: &Published,
    (name, variant): (&VariantId, &VariantId),
    decision: &Decision,
) -> Explanation {
    let (now, max_stale) = (state.reader.now(), state.reader.max_stale());
    let origin = match published.origin {
        Origin::Computed => "the last evaluation",
        Origin::Restored | Origin::Empty => "the last state that was stored",
    };
    let at = if published.origin == Origin::Computed { published.at } else { now };
    let explanation =
        explain::Explanation::new(variant, origin.to_owned(), at, decision.clone(), &published.report);
    let too_old = match decision.fresh_target(now, max_stale) {
        Err(NoTarget::TooOld(target)) => Some(format!(
            "the number is not answered any more: its evidence is {} old, more than max-stale ({:.0} s)",
            elapsed(target.evidence, now),
            max_stale.get()
        )),
        _ => None,
    };
    let why_not = Some(WhyNot::new(variant, decision, &explanation.steps, too_old));
    let summary = Summary::decided(name, decision, now, max_stale);
    Explanation { summary, why_not, explanation: Some(explanation), text: String::new() }
}
