//! Which analyzers decide about a model: the leading one, and secondary ones beside it.

use wva_core::model::{Analyzer, ModelPolicy, SecondaryAnalyzer, Utilisation};

use super::super::document::Diagnostics;
use super::super::ranged::quote;
use super::fields::{AnalyzerName, ListedAnalyzer, SaturationFields, analyzer};
use super::overlay::{PositiveFraction, Section, Switch, Text, Weight};

const CAPACITY_ANALYZERS: &str = "saturation, throughput or queueing-model";

/// The fields of an entry that choose analyzers.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct AnalyzerChoice {
    name: Option<Analyzer>,
    list: Option<Vec<ValidListedAnalyzer>>,
    /// Whether it sets thresholds of V1.
    has_percentages: bool,
    /// Whether `analyzerName` is set to the empty string.
    has_empty_name: bool,
}

/// A [`ListedAnalyzer`] whose name is known.
#[derive(Debug, Clone, PartialEq)]
struct ValidListedAnalyzer {
    analyzer: Analyzer,
    is_enabled: bool,
    score: Option<f64>,
    up: Option<f64>,
    down: Option<f64>,
}

/// The analyzers that result from the choices of all entries.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ChosenAnalyzers {
    pub(super) analyzer: Analyzer,
    pub(super) score: f64,
    pub(super) utilisation: Utilisation,
    pub(super) secondary: Vec<SecondaryAnalyzer>,
}

/// Whether the findings of an analyzer are capacities, which can be combined.
const fn is_capacity_analyzer(analyzer: Analyzer) -> bool {
    matches!(analyzer, Analyzer::Saturation | Analyzer::Throughput | Analyzer::QueueingModel)
}

impl AnalyzerChoice {
    pub(super) fn new(fields: &SaturationFields, diagnostics: &mut Diagnostics) -> Self {
        check_thresholds("", fields.scale_up_threshold, fields.scale_down_boundary, diagnostics);
        let listed = fields.analyzers.iter().flatten().enumerate();
        let list: Vec<ValidListedAnalyzer> =
            listed.filter_map(|(index, Section(listed))| listed.validate(index, diagnostics)).collect();
        let is_duplicate = |(index, listed): &(usize, &ValidListedAnalyzer)| {
            list.iter().take(*index).any(|earlier| earlier.analyzer == listed.analyzer)
        };
        // Reported once, even for an analyzer that is listed three times.
        if let Some((_, listed)) = list.iter().enumerate().find(is_duplicate) {
            let name = listed.analyzer.as_str();
            diagnostics.error(format!("analyzers names {name} twice: must name each once"));
        }
        Self {
            name: match fields.analyzer_name {
                Some(AnalyzerName::Known(analyzer)) => Some(analyzer),
                Some(AnalyzerName::Empty) | None => None,
            },
            list: Some(list).filter(|list| !list.is_empty()),
            has_percentages: fields.kv_cache_threshold.is_some()
                || fields.queue_length_threshold.is_some()
                || fields.kv_spare_trigger.is_some()
                || fields.queue_spare_trigger.is_some(),
            has_empty_name: fields.analyzer_name == Some(AnalyzerName::Empty),
        }
    }

    /// The queueing model, without secondary analyzers.
    pub(super) fn queueing_model() -> Self {
        Self { name: Some(Analyzer::QueueingModel), ..Self::default() }
    }

    /// What thresholds of V1 choose.
    pub(super) fn percentages() -> Self {
        Self { has_percentages: true, ..Self::default() }
    }

    /// This choice, with fields that are not set taken from `below`. An entry that names another leading analyzer must list its
    /// secondary ones again.
    pub(super) fn over(&self, below: &Self) -> Self {
        let has_same_leading = self.name.is_none_or(|name| name == below.leading());
        let below_list = below.list.as_ref().filter(|_| has_same_leading);
        Self {
            name: self.name.or(below.name),
            list: self.list.as_ref().or(below_list).cloned(),
            has_percentages: self.has_percentages || below.has_percentages,
            has_empty_name: self.has_empty_name || below.has_empty_name,
        }
    }

    /// The leading analyzer: the named one. With a list alone, `saturation` leads, because in WVA v0.9 the token analyzer always
    /// runs beside others. With V1's thresholds alone, V1 leads, which is WVA's default. Otherwise the default of this program does.
    pub(super) fn leading(&self) -> Analyzer {
        let for_list = self.list.is_some().then_some(Analyzer::Saturation);
        let is_v1 = self.has_percentages || self.has_empty_name;
        let for_v1 = is_v1.then_some(Analyzer::SaturationPercent);
        self.name.or(for_list).or(for_v1).unwrap_or_else(|| ModelPolicy::default().analyzer)
    }

    /// The analyzers, with the thresholds `up` and `down` where an analyzer has none of its own.
    pub(super) fn resolve(
        &self,
        up: Option<f64>,
        down: Option<f64>,
        diagnostics: &mut Diagnostics,
    ) -> ChosenAnalyzers {
        let list = self.list.as_deref().unwrap_or_default();
        let analyzer = self.leading();
        let fallback = Utilisation::of(analyzer);
        if analyzer == Analyzer::Rate && (self.has_percentages || up.is_some() || down.is_some()) {
            diagnostics.note("thresholds have no effect: rate decides, by its own fields");
        }
        let shared = consistent_thresholds(up, down, fallback, "", diagnostics);
        let leading = list.iter().find(|listed| listed.analyzer == analyzer);
        if leading.is_some_and(|leading| !leading.is_enabled) {
            diagnostics.note(format!("analyzers: {} leads, so it cannot be switched off", analyzer.as_str()));
        }
        let thresholds = |listed: &ValidListedAnalyzer, diagnostics: &mut Diagnostics| {
            let up = listed.up.or(Some(shared.up));
            let down = listed.down.or(Some(shared.down));
            consistent_thresholds(up, down, fallback, listed.analyzer.as_str(), diagnostics)
        };
        let utilisation = leading.map_or(shared, |leading| thresholds(leading, diagnostics));
        let list = if is_capacity_analyzer(analyzer) { list } else { &[] };
        if list.is_empty() && self.list.is_some() {
            diagnostics.note(format!("analyzers has no effect: {} decides alone", analyzer.as_str()));
        }
        let secondary = list.iter().filter(|listed| listed.is_enabled && listed.analyzer != analyzer);
        let secondary = secondary.map(|listed| SecondaryAnalyzer {
            analyzer: listed.analyzer,
            score: listed.score.unwrap_or(1.0),
            utilisation: Some(thresholds(listed, diagnostics)).filter(|own| *own != utilisation),
        });
        let secondary = secondary.collect();
        let score = leading.and_then(|leading| leading.score).unwrap_or(1.0);
        ChosenAnalyzers { analyzer, score, utilisation, secondary }
    }
}

impl ListedAnalyzer {
    fn validate(&self, index: usize, diagnostics: &mut Diagnostics) -> Option<ValidListedAnalyzer> {
        let path = format!("analyzers[{index}].");
        check_thresholds(&path, self.scale_up_threshold, self.scale_down_boundary, diagnostics);
        if self.parameters.as_ref().is_some_and(|parameters| !parameters.is_empty()) {
            diagnostics.note(format!("{path}parameters have no effect: no analyzer takes any"));
        }
        let (field, text) = if self.kind.is_some() { ("type", &self.kind) } else { ("name", &self.name) };
        if text.is_none() {
            diagnostics.error(format!("{path}name is missing: must be {CAPACITY_ANALYZERS}"));
        }
        let name = Text::non_empty(text)?;
        let Some(analyzer) = analyzer(name).filter(|analyzer| is_capacity_analyzer(*analyzer)) else {
            let name = quote(name);
            diagnostics.error(format!(
                "{path}{field} {name} is not an analyzer of capacity: must be {CAPACITY_ANALYZERS}"
            ));
            return None;
        };
        Some(ValidListedAnalyzer {
            analyzer,
            is_enabled: self.enabled.is_none_or(Switch::get),
            score: self.score.map(Weight::get),
            up: self.scale_up_threshold.map(PositiveFraction::get),
            down: self.scale_down_boundary.map(PositiveFraction::get),
        })
    }
}

/// Reports thresholds of one entry that contradict each other.
fn check_thresholds(
    path: &str,
    up: Option<PositiveFraction>,
    down: Option<PositiveFraction>,
    diagnostics: &mut Diagnostics,
) {
    if let (Some(up), Some(down)) = (up, down)
        && up <= down
    {
        let (up, down) = (up.get(), down.get());
        diagnostics.error(format!("{path}scaleUpThreshold {up} must be above scaleDownBoundary {down}"));
    }
}

/// The thresholds `up` and `down`, or `fallback` if they contradict each other, as those of several entries may.
fn consistent_thresholds(
    up: Option<f64>,
    down: Option<f64>,
    fallback: Utilisation,
    analyzer: &str,
    diagnostics: &mut Diagnostics,
) -> Utilisation {
    let up = up.unwrap_or(fallback.up);
    let down = down.unwrap_or(fallback.down);
    Utilisation::new(up, down).unwrap_or_else(|_| {
        let path = if analyzer.is_empty() { String::new() } else { format!("analyzers, {analyzer}: ") };
        let Utilisation { up: up_instead, down: down_instead } = fallback;
        diagnostics.note(format!(
            "{path}scaleUpThreshold {up} is not above scaleDownBoundary {down}: {up_instead} and {down_instead} count instead"
        ));
        fallback
    })
}
