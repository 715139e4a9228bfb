//! One engine, assessed with what is remembered of it: what it lacks now, and what of it was contradicted recently.

use jiff::Timestamp;
use smol_str::SmolStr;

use super::analyzer_signals::{CROSS_CHECK_SIGNALS, Declared};
use super::plausibility::{EngineContext, EngineCoverage, assess_signals, find_missing};
use super::signal_history::{Baseline, Contradictions, SignalHistory, Substitution, engine_key};
use crate::sequence_limit::estimated_max;
use crate::snapshot::{Pod, Signals, VariantState};

/// Assesses the engines of one variant for an analyzer that reads what is `declared`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct EngineAssessor<'a> {
    variant: &'a VariantState,
    pub(super) declared: Declared,
    history: Option<&'a SignalHistory>,
    baseline: Option<(Timestamp, &'a Baseline)>,
    /// What is distrusted on most engines that the baseline was computed from: newer ones are distrusted in it too.
    majority: Option<Contradictions>,
    pub(super) now: Timestamp,
}

/// What is known and trusted of one engine.
#[derive(Debug)]
pub(crate) struct EngineAssessment<'a> {
    /// Includes what was contradicted recently and is not trusted again yet.
    pub(crate) coverage: EngineCoverage,
    /// The engine's key and its recent contradictions, if there are any.
    pub(super) contradictions: Option<(SmolStr, Contradictions)>,
    /// How to read it, unless everything it shows, now and recently, is trusted.
    pub(super) substitution: Option<Substitution<'a>>,
}

impl<'a> EngineAssessor<'a> {
    pub(crate) fn new(
        variant: &'a VariantState,
        declared: Declared,
        history: Option<&'a SignalHistory>,
        now: Timestamp,
    ) -> Self {
        let baseline = history.and_then(|history| history.baseline(&variant.variant.id.name));
        let history = history.filter(|history| history.has_contradictions());
        let majority = history
            .zip(baseline)
            .and_then(|(history, (at, _))| history.majority_contradictions(variant, at, now));
        Self { variant, declared, history, baseline, majority, now }
    }

    pub(super) const fn variant(&self) -> &'a VariantState {
        self.variant
    }

    /// Assesses `engine` of `pod`, which shows `signals`.
    pub(crate) fn assess(&self, pod: &Pod, engine: &SmolStr, signals: &Signals) -> EngineAssessment<'a> {
        let Self { variant, declared, history, baseline, majority, now } = *self;
        // The key is only needed where something was contradicted, which is rare.
        let key = || engine_key(pod, engine);
        let before = history.and_then(|history| history.contradictions_of(&key(), now));
        let newest = signals.rows().times().last().copied();
        let context = EngineContext {
            max_sequences: variant.template.sequences().map(f64::from),
            baseline,
            ready_since: pod.ready_or_created(),
            // Assessing the same scrape again must find the same.
            trusted_after: before.and_then(|before| before.newest()).filter(|at| Some(*at) < newest),
        };
        let mut coverage = assess_signals(signals, declared, context, now);
        let found = newest.filter(|_| !coverage.contradicted.is_empty());
        let contradictions = match (before, found) {
            (before, Some(newest)) => Some(before.unwrap_or_default().with(coverage.contradicted, newest)),
            (before, None) => before,
        };
        let is_newer = baseline.is_some_and(|(at, _)| context.ready_since >= at);
        let contradictions = majority
            .filter(|_| is_newer)
            .map(|majority| contradictions.unwrap_or_default().merge_later(&majority))
            .or(contradictions);
        if let Some(contradictions) = contradictions {
            coverage.contradicted = coverage.contradicted.with(contradictions.distrusted(now));
        }
        let is_trusted = coverage.is_complete() && contradictions.is_none();
        let substitution = (!is_trusted).then(|| {
            let (missing, _) = find_missing(signals, declared.all().with(CROSS_CHECK_SIGNALS), now);
            Substitution {
                lacking: missing.with(coverage.contradicted),
                contradictions,
                baseline: baseline.map(|(_, baseline)| baseline),
                max_sequences: estimated_max(variant, 0).map(f64::from),
                is_max_configured: context.max_sequences.is_some(),
            }
        });
        EngineAssessment {
            coverage,
            contradictions: contradictions.map(|contradictions| (key(), contradictions)),
            substitution,
        }
    }
}
