//! Which analyzers decide about a model: the leading one and the secondary ones.

use wva_core::model::{Analyzer, ModelPolicy, SecondaryAnalyzer, Utilisation};

use super::super::document::Diagnostics;
use super::super::ranged::quote;
use super::fields::{AnalyzerName, ListedAnalyzer, SaturationFields, analyzer};
use super::overlay::{PositiveFraction, Section, Switch, Text, Weight};

const OF_CAPACITY: &str = "saturation, throughput or queueing-model";

/// What an entry says of analyzers.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Choice {
    name: Option<Analyzer>,
    list: Option<Vec<Listed>>,
    /// It sets thresholds of V1.
    has_percentages: bool,
    /// Its name is there and empty.
    has_empty_name: bool,
}

/// One of the list.
#[derive(Debug, Clone, PartialEq)]
struct Listed {
    analyzer: Analyzer,
    is_enabled: bool,
    score: Option<f64>,
    up: Option<f64>,
    down: Option<f64>,
}

/// What is made of a choice.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Chosen {
    pub(super) analyzer: Analyzer,
    pub(super) score: f64,
    pub(super) utilisation: Utilisation,
    pub(super) secondary: Vec<SecondaryAnalyzer>,
}

/// Analyzers whose findings are capacities that can be combined.
const fn is_of_capacity(analyzer: Analyzer) -> bool {
    matches!(analyzer, Analyzer::Saturation | Analyzer::Throughput | Analyzer::QueueingModel)
}

impl Choice {
    pub(super) fn new(fields: &SaturationFields, diagnostics: &mut Diagnostics) -> Self {
        check_thresholds("", fields.scale_up_threshold, fields.scale_down_boundary, diagnostics);
        let given = fields.analyzers.iter().flatten().enumerate();
        let list: Vec<Listed> =
            given.filter_map(|(index, Section(listed))| listed.read(index, diagnostics)).collect();
        let is_twice = |(at, listed): &(usize, &Listed)| {
            list.iter().take(*at).any(|earlier| earlier.analyzer == listed.analyzer)
        };
        if let Some((_, listed)) = list.iter().enumerate().find(is_twice) {
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

    /// The queueing model, alone.
    pub(super) fn queueing_model() -> Self {
        Self { name: Some(Analyzer::QueueingModel), ..Self::default() }
    }

    /// This, and what it leaves open from `below`. An entry that names another leading analyzer must list its secondary ones again.
    pub(super) fn over(&self, below: &Self) -> Self {
        let has_same_lead = self.name.is_none_or(|name| name == below.lead());
        let below_list = below.list.as_ref().filter(|_| has_same_lead);
        Self {
            name: self.name.or(below.name),
            list: self.list.as_ref().or(below_list).cloned(),
            has_percentages: self.has_percentages || below.has_percentages,
            has_empty_name: self.has_empty_name || below.has_empty_name,
        }
    }

    /// The analyzer that decides. A list alone is led by `saturation`: in WVA v0.9 the token analyzer always runs beside others.
    /// Thresholds alone are those of V1, which WVA means by saying nothing; where nothing is said of either, ours decides.
    fn lead(&self) -> Analyzer {
        let of_list = self.list.is_some().then_some(Analyzer::Saturation);
        let is_v1 = self.has_percentages || self.has_empty_name;
        let of_percent = is_v1.then_some(Analyzer::SaturationPercent);
        self.name.or(of_list).or(of_percent).unwrap_or_else(|| ModelPolicy::default().analyzer)
    }

    /// The decision, with the thresholds that the entry has for all its analyzers.
    pub(super) fn decide(&self, up: Option<f64>, down: Option<f64>, diagnostics: &mut Diagnostics) -> Chosen {
        let list = self.list.as_deref().unwrap_or_default();
        let analyzer = self.lead();
        let fallback = Utilisation::of(analyzer);
        if analyzer == Analyzer::Rate && (self.has_percentages || up.is_some() || down.is_some()) {
            diagnostics.note("thresholds have no effect: rate decides, by its own fields");
        }
        let shared = fitting(up, down, fallback, "", diagnostics);
        let lead = list.iter().find(|listed| listed.analyzer == analyzer);
        if lead.is_some_and(|lead| !lead.is_enabled) {
            diagnostics.note(format!("analyzers: {} leads, so it cannot be switched off", analyzer.as_str()));
        }
        let own = |listed: &Listed, diagnostics: &mut Diagnostics| {
            let up = listed.up.or(Some(shared.up));
            let down = listed.down.or(Some(shared.down));
            fitting(up, down, fallback, listed.analyzer.as_str(), diagnostics)
        };
        let utilisation = lead.map_or(shared, |lead| own(lead, diagnostics));
        let list = if is_of_capacity(analyzer) { list } else { &[] };
        if list.is_empty() && self.list.is_some() {
            diagnostics.note(format!("analyzers has no effect: {} decides alone", analyzer.as_str()));
        }
        let secondary = list.iter().filter(|listed| listed.is_enabled && listed.analyzer != analyzer);
        let secondary = secondary.map(|listed| SecondaryAnalyzer {
            analyzer: listed.analyzer,
            score: listed.score.unwrap_or(1.0),
            utilisation: Some(own(listed, diagnostics)).filter(|own| *own != utilisation),
        });
        let secondary = secondary.collect();
        Chosen { analyzer, score: lead.and_then(|lead| lead.score).unwrap_or(1.0), utilisation, secondary }
    }
}

impl ListedAnalyzer {
    fn read(&self, index: usize, diagnostics: &mut Diagnostics) -> Option<Listed> {
        let place = format!("analyzers[{index}].");
        check_thresholds(&place, self.scale_up_threshold, self.scale_down_boundary, diagnostics);
        if self.parameters.as_ref().is_some_and(|given| !given.is_empty()) {
            diagnostics.note(format!("{place}parameters have no effect: no analyzer takes any"));
        }
        let (field, text) = if self.kind.is_some() { ("type", &self.kind) } else { ("name", &self.name) };
        if text.is_none() {
            diagnostics.error(format!("{place}name is missing: must be {OF_CAPACITY}"));
        }
        let name = Text::non_empty(text)?;
        let Some(analyzer) = analyzer(name).filter(|analyzer| is_of_capacity(*analyzer)) else {
            let name = quote(name);
            diagnostics.error(format!(
                "{place}{field} {name} is not an analyzer of capacity: must be {OF_CAPACITY}"
            ));
            return None;
        };
        Some(Listed {
            analyzer,
            is_enabled: self.enabled.is_none_or(Switch::get),
            score: self.score.map(Weight::get),
            up: self.scale_up_threshold.map(PositiveFraction::get),
            down: self.scale_down_boundary.map(PositiveFraction::get),
        })
    }
}

/// Two thresholds of one entry must fit each other.
fn check_thresholds(
    place: &str,
    up: Option<PositiveFraction>,
    down: Option<PositiveFraction>,
    diagnostics: &mut Diagnostics,
) {
    if let (Some(up), Some(down)) = (up, down)
        && up <= down
    {
        let (up, down) = (up.get(), down.get());
        diagnostics.error(format!("{place}scaleUpThreshold {up} must be above scaleDownBoundary {down}"));
    }
}

/// Two thresholds that fit each other: those of several entries may not.
fn fitting(
    up: Option<f64>,
    down: Option<f64>,
    fallback: Utilisation,
    analyzer: &str,
    diagnostics: &mut Diagnostics,
) -> Utilisation {
    let up = up.unwrap_or(fallback.up);
    let down = down.unwrap_or(fallback.down);
    Utilisation::new(up, down).unwrap_or_else(|_| {
        let place = if analyzer.is_empty() { String::new() } else { format!("analyzers, {analyzer}: ") };
        let Utilisation { up: up_instead, down: down_instead } = fallback;
        diagnostics.note(format!(
            "{place}scaleUpThreshold {up} is not above scaleDownBoundary {down}: {up_instead} and {down_instead} count instead"
        ));
        fallback
    })
}
