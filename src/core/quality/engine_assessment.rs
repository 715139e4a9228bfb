//! One engine's evidence, judged with what is remembered of it: what it lacks now, and what of it was contradicted lately.

use jiff::Timestamp;
use smol_str::SmolStr;

use super::plausibility::{EngineContext, EngineCoverage, assess_signals, missing_signals};
use super::signal_history::{Baseline, Contradictions, SignalHistory, Substitution, engine_of};
use crate::quality::analyzer_signals::{Declared, WITNESSES};
use crate::sequence_limit::estimated;
use crate::snapshot::{Replica, Signals, VariantState};

/// Who judges the engines of one variant, for an analyzer that reads what is `declared`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct EngineAssessor<'a> {
    variant: &'a VariantState,
    pub(super) declared: Declared,
    evidence: Option<&'a SignalHistory>,
    usual: Option<(Timestamp, &'a Baseline)>,
    /// In what most of the engines by which it is known what is usual are not believed: newcomers are not either.
    of_most: Option<Contradictions>,
    pub(super) now: Timestamp,
}

/// What is to be believed of one engine.
#[derive(Debug)]
pub(crate) struct EngineAssessment<'a> {
    /// With what was contradicted lately and is not believed yet.
    pub(crate) coverage: EngineCoverage,
    /// The engine's name and what of it was contradicted lately, if anything was.
    pub(super) doubt: Option<(SmolStr, Contradictions)>,
    /// How it is read, if not everything that it shows, or lately showed, is believed.
    pub(super) instead: Option<Substitution<'a>>,
}

impl<'a> EngineAssessor<'a> {
    pub(crate) fn new(
        variant: &'a VariantState,
        declared: Declared,
        evidence: Option<&'a SignalHistory>,
        now: Timestamp,
    ) -> Self {
        let usual = evidence.and_then(|evidence| evidence.usual(&variant.variant.id.name));
        let evidence = evidence.filter(|evidence| evidence.has_doubts());
        let of_most = evidence.zip(usual).and_then(|(evidence, (at, _))| evidence.by_most(variant, at, now));
        Self { variant, declared, evidence, usual, of_most, now }
    }

    pub(super) const fn variant(&self) -> &'a VariantState {
        self.variant
    }

    /// `engine` of `replica`, which shows `signals`.
    pub(crate) fn judge(
        &self,
        replica: &Replica,
        engine: &SmolStr,
        signals: &Signals,
    ) -> EngineAssessment<'a> {
        let Self { variant, declared, evidence, usual, of_most, now } = *self;
        // The name of an engine is needed where something of it was contradicted, which is rare.
        let key = || engine_of(replica, engine);
        let before = evidence.and_then(|evidence| evidence.doubt(&key(), now));
        let newest = signals.rows().times().last().copied();
        let known = EngineContext {
            sequences: variant.template.sequences().map(f64::from),
            usual,
            born: replica.born(),
            // A second look at the same scrape finds the same.
            after: before.and_then(|before| before.newest()).filter(|after| Some(*after) < newest),
        };
        let mut coverage = assess_signals(signals, declared, known, now);
        let found = newest.filter(|_| !coverage.contradicted.is_empty());
        let doubt = match (before, found) {
            (before, Some(newest)) => Some(before.unwrap_or_default().with(coverage.contradicted, newest)),
            (before, None) => before,
        };
        let of_most = of_most.filter(|_| usual.is_some_and(|(at, _)| known.born >= at));
        let doubt = of_most.map(|others| doubt.unwrap_or_default().joining(&others)).or(doubt);
        if let Some(doubt) = doubt {
            coverage.contradicted = coverage.contradicted.with(doubt.still(now));
        }
        let whole = coverage.is_complete() && doubt.is_none();
        let instead = (!whole).then(|| {
            let (missing, _) = missing_signals(signals, declared.all().with(WITNESSES), now);
            let lacking = missing.with(coverage.contradicted);
            let estimated = estimated(variant, 0).map(f64::from);
            let (usual, is_argument) = (usual.map(|(_, usual)| usual), known.sequences.is_some());
            Substitution { lacking, doubt, usual, sequences: estimated, is_argument }
        });
        EngineAssessment { coverage, doubt: doubt.map(|doubt| (key(), doubt)), instead }
    }
}
