//! Which analyzers decide about a model: one that leads, and those beside it.

use wva_core::model::{Analyzer, Beside, ModelPolicy, Utilisation};

use super::fields::{Fields, Range, Said};
use super::node::Node;

/// Names of analyzers: ours first, which are what reports say; then those of the controllers before this one.
const NAMES: [(&str, Analyzer); 10] = [
    ("rate", Analyzer::Rate),
    ("saturation-percent", Analyzer::SaturationPercent),
    ("saturation", Analyzer::Saturation),
    ("throughput", Analyzer::Throughput),
    ("queueing-model", Analyzer::QueueingModel),
    ("threshold", Analyzer::Threshold),
    ("weighted", Analyzer::Weighted),
    ("inferno", Analyzer::Inferno),
    ("saturation-percentage-based", Analyzer::SaturationPercent),
    ("saturation-token-based", Analyzer::Saturation),
];
const ANY: &str =
    "rate, saturation-percent, saturation, throughput, queueing-model, threshold, weighted or inferno";
const OF_CAPACITY: &str = "saturation, throughput or queueing-model";

/// What an entry says of analyzers.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Choice {
    name: Option<Analyzer>,
    list: Option<Vec<Listed>>,
    /// It sets thresholds of V1.
    percent: bool,
    /// It has a name without letters.
    blank: bool,
}

/// What WVA's own ConfigMap means V1 by where it has no name, or one without letters.
const OF_PERCENT: [&str; 4] =
    ["kvCacheThreshold", "queueLengthThreshold", "kvSpareTrigger", "queueSpareTrigger"];

/// One of the list.
#[derive(Debug, Clone, PartialEq)]
struct Listed {
    analyzer: Analyzer,
    enabled: bool,
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
    pub(super) beside: Vec<Beside>,
}

/// Analyzers whose findings are capacities that can be combined.
const fn is_of_capacity(analyzer: Analyzer) -> bool {
    matches!(analyzer, Analyzer::Saturation | Analyzer::Throughput | Analyzer::QueueingModel)
}

impl Choice {
    pub(super) fn read(fields: &mut Fields<'_>) -> Self {
        let name = name(fields, "analyzerName", ANY, |_| true);
        let list = fields.each("analyzers", Listed::read);
        let list = list.map(|list| list.into_iter().flatten().collect::<Vec<_>>());
        let twice =
            |at: usize, list: &[Listed]| list[..at].iter().any(|one| one.analyzer == list[at].analyzer);
        if let Some(list) = &list
            && let Some(at) = (0..list.len()).find(|at| twice(*at, list))
        {
            let name = spelt(list[at].analyzer);
            fields.refuse_all(&format!("analyzers names {name} twice: must name each once"));
        }
        let percent = OF_PERCENT.iter().any(|field| fields.has(field));
        let blank = name.is_none() && fields.has("analyzerName");
        Self { name, list: list.filter(|list| !list.is_empty()), percent, blank }
    }

    /// The queueing model, alone.
    pub(super) const fn queueing_model() -> Self {
        Self { name: Some(Analyzer::QueueingModel), list: None, percent: false, blank: false }
    }

    /// This, and what it leaves open from `below`. Who puts another analyzer in charge says anew which are beside it.
    pub(super) fn over(&self, below: &Self) -> Self {
        let same_lead = self.name.is_none_or(|name| name == below.lead());
        let below_list = below.list.as_ref().filter(|_| same_lead);
        Self {
            name: self.name.or(below.name),
            list: self.list.as_ref().or(below_list).cloned(),
            percent: self.percent || below.percent,
            blank: self.blank || below.blank,
        }
    }

    /// Who decides. A list alone is led by `saturation`: upstream's token analyzer always runs beside others (algorithm
    /// reference §1.8, §4). Thresholds alone are those of V1, which upstream means by saying nothing; who says nothing of
    /// either has our own.
    fn lead(&self) -> Analyzer {
        let of_list = self.list.is_some().then_some(Analyzer::Saturation);
        let of_percent = (self.percent || self.blank).then_some(Analyzer::SaturationPercent);
        self.name.or(of_list).or(of_percent).unwrap_or_else(|| ModelPolicy::default().analyzer)
    }

    /// The decision, with the thresholds that the entry has for all its analyzers.
    pub(super) fn chosen(&self, up: Option<f64>, down: Option<f64>, said: &mut Said) -> Chosen {
        let list = self.list.as_deref().unwrap_or_default();
        let analyzer = self.lead();
        let fallback = Utilisation::of(analyzer);
        if analyzer == Analyzer::Rate && (self.percent || up.is_some() || down.is_some()) {
            said.note("thresholds have no effect: rate decides, by its own fields");
        }
        let shared = pair(up, down, fallback, "", said);
        let lead = list.iter().find(|one| one.analyzer == analyzer);
        if lead.is_some_and(|lead| !lead.enabled) {
            said.note(format!("analyzers: {} leads, so it cannot be switched off", spelt(analyzer)));
        }
        let own = |one: &Listed, said: &mut Said| {
            let (up, down) = (one.up.or(Some(shared.up)), one.down.or(Some(shared.down)));
            pair(up, down, fallback, spelt(one.analyzer), said)
        };
        let utilisation = lead.map_or(shared, |lead| own(lead, said));
        let list = if is_of_capacity(analyzer) { list } else { &[] };
        if list.is_empty() && self.list.is_some() {
            said.note(format!("analyzers has no effect: {} decides alone", spelt(analyzer)));
        }
        let beside = |one: &Listed| {
            let own = own(one, said);
            let utilisation = Some(own).filter(|own| *own != utilisation);
            Beside { analyzer: one.analyzer, score: one.score.unwrap_or(1.0), utilisation }
        };
        let others = list.iter().filter(|one| one.enabled && one.analyzer != analyzer);
        let beside = others.map(beside).collect();
        Chosen { analyzer, score: lead.and_then(|lead| lead.score).unwrap_or(1.0), utilisation, beside }
    }
}

impl Listed {
    fn read(fields: &mut Fields<'_>) -> Option<Self> {
        // With a type, the name is the author's own.
        let field = if fields.has("type") { "type" } else { "name" };
        let analyzer = name(fields, field, OF_CAPACITY, is_of_capacity);
        if field == "type" {
            fields.text("name");
        } else if !fields.has("name") {
            fields.refuse_all(&format!("name is missing: must be {OF_CAPACITY}"));
        }
        let enabled = fields.switch("enabled").unwrap_or(true);
        let score = fields.number("score", Range::WEIGHT);
        let (up, down) = thresholds(fields);
        if fields.by_name("parameters", |_, _, _| Some(())).is_some_and(|given| !given.is_empty()) {
            fields.note("parameters", "have no effect: no analyzer takes any");
        }
        Some(Self { analyzer: analyzer?, enabled, score, up, down })
    }
}

/// The two thresholds of every analyzer of capacity.
pub(super) fn thresholds(fields: &mut Fields<'_>) -> (Option<f64>, Option<f64>) {
    let up = fields.number("scaleUpThreshold", Range::THRESHOLD);
    let down = fields.number("scaleDownBoundary", Range::THRESHOLD);
    if let (Some(up), Some(down)) = (up, down)
        && up <= down
    {
        fields.refuse_all(&format!("scaleUpThreshold {up} must be above scaleDownBoundary {down}"));
    }
    (up, down)
}

/// Two thresholds that fit each other: those of several entries may not.
fn pair(
    up: Option<f64>,
    down: Option<f64>,
    fallback: Utilisation,
    whose: &str,
    said: &mut Said,
) -> Utilisation {
    let (up, down) = (up.unwrap_or(fallback.up), down.unwrap_or(fallback.down));
    Utilisation::new(up, down).unwrap_or_else(|_| {
        let whose = if whose.is_empty() { String::new() } else { format!("analyzers, {whose}: ") };
        let Utilisation { up: or_up, down: or_down } = fallback;
        said.note(format!(
            "{whose}scaleUpThreshold {up} is not above scaleDownBoundary {down}: {or_up} and {or_down} count instead"
        ));
        fallback
    })
}

fn name(
    fields: &mut Fields<'_>,
    field: &'static str,
    allowed: &str,
    fits: impl Fn(Analyzer) -> bool,
) -> Option<Analyzer> {
    let text = fields.text(field)?;
    let known = NAMES.iter().find(|(name, analyzer)| *name == text && fits(*analyzer));
    if known.is_none() {
        fields.refuse(field, &Node::Text(text.to_owned()), allowed);
    }
    known.map(|(_, analyzer)| *analyzer)
}

fn spelt(analyzer: Analyzer) -> &'static str {
    NAMES.iter().find(|(_, one)| *one == analyzer).map_or("", |(name, _)| name)
}
