//! Settings of VariantAutoscalings over those of ConfigMaps, for their model in their namespace only. A model has one policy, so what
//! its variants set is combined.

use std::collections::BTreeMap;

use smol_str::SmolStr;
use wva_core::GroupId;
use wva_core::model::{
    Analyzer, ClassTarget, LatencyTargets, ModelPolicy, ScaleToZero, ServiceClass, VariantId,
};

use super::super::document::Diagnostics;
use super::super::ranged::quote;
use super::analyzers::AnalyzerChoice;
use super::entries::{SaturationEntry, model_policy};
use super::last_good::LastGood;
use super::overlay::{Latency, Overlay};
use super::variant_settings::{Fields, ModelVariant, VariantSettings, Variants, ZeroFields};

/// What the owners of VariantAutoscalings should know of their settings.
pub type Findings = BTreeMap<VariantId, Finding>;

/// What the owner of a VariantAutoscaling should know of its settings.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Finding {
    /// Fields that are invalid, their values and what is valid.
    pub errors: Vec<String>,
    /// Fields without effect, and why.
    pub notes: Vec<String>,
    /// The fields that count, and what they make of the model; empty if none does.
    pub in_effect: String,
}

/// What the ConfigMaps say of a model.
pub(super) struct Below<'a> {
    pub(super) group: &'a GroupId,
    /// The entries about it, the lowest first.
    pub(super) layers: &'a [&'a SaturationEntry],
    /// The analyzers; `None` if the queueing model decides about every model.
    pub(super) choice: Option<&'a AnalyzerChoice>,
    pub(super) scale_to_zero: ScaleToZero,
    pub(super) classes: &'a LastGood<ServiceClass>,
    pub(super) policy: ModelPolicy,
}

/// Latency objectives, milliseconds, each if it is known.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
struct Objectives {
    ttft: Option<f64>,
    itl: Option<f64>,
}

impl Objectives {
    fn of(targets: LatencyTargets) -> Self {
        Self { ttft: Some(targets.ttft_ms), itl: Some(targets.itl_ms) }
    }

    /// These, and what they lack from `below`.
    fn over(self, below: Self) -> Self {
        Self { ttft: self.ttft.or(below.ttft), itl: self.itl.or(below.itl) }
    }

    /// The stricter of each.
    fn strictest(self, second: Self) -> Self {
        Self {
            ttft: lowest([self.ttft, second.ttft].into_iter()),
            itl: lowest([self.itl, second.itl].into_iter()),
        }
    }

    fn complete(self) -> Option<LatencyTargets> {
        Some(LatencyTargets { ttft_ms: self.ttft?, itl_ms: self.itl? })
    }
}

fn lowest<T: PartialOrd>(values: impl Iterator<Item = Option<T>>) -> Option<T> {
    values.flatten().reduce(|lowest, value| if value < lowest { value } else { lowest })
}

/// A latency, or `none`.
fn shown(value: Option<f64>) -> String {
    value.map_or_else(|| "none".to_owned(), |value| format!("{value} ms"))
}

/// The settings of one model's variants over what the ConfigMaps say of it.
pub(super) struct VariantLayer<'a> {
    below: Below<'a>,
    variants: &'a Variants,
    findings: &'a mut Findings,
}

impl<'a> VariantLayer<'a> {
    pub(super) fn new(below: Below<'a>, variants: &'a Variants, findings: &'a mut Findings) -> Self {
        Self { below, variants, findings }
    }

    /// The policy of the model.
    pub(super) fn policy(mut self) -> ModelPolicy {
        for (name, settings) in self.settings().filter(|(_, settings)| !settings.error.is_empty()) {
            self.finding(name).errors.push(settings.error.clone());
        }
        let mut policy = self.with_threshold();
        self.set_scale_to_zero(&mut policy);
        self.set_objectives(&mut policy);
        self.tell_effects(&policy);
        policy
    }

    /// The variants with settings that count.
    fn settings(&self) -> impl Iterator<Item = (&'a SmolStr, &'a VariantSettings)> + use<'a> {
        let decided = self.variants.iter().filter(|variant| variant.is_decided);
        decided.filter_map(|variant| Some((&variant.name, variant.settings.as_deref()?)))
    }

    /// Tells the owner of each variant what its settings make of the model: in earlier versions, they had no effect.
    fn tell_effects(&mut self, policy: &ModelPolicy) {
        let zero = policy.scale_to_zero.unwrap_or(self.below.scale_to_zero);
        let sleeps = if zero.enabled {
            format!(
                "scaled to zero when idle for {} s, if a scheduler's queue is measured",
                zero.retention.get()
            )
        } else {
            "not scaled to zero".into()
        };
        let objectives = Objectives { ttft: policy.rate.ttft_ms, itl: policy.rate.itl_ms };
        let (ttft, itl) = (shown(objectives.ttft), shown(objectives.itl));
        for (name, settings) in self.settings() {
            let names = settings.fields.names();
            if names.is_empty() {
                continue;
            }
            let text = format!(
                "{} had no effect in earlier versions, and count now: analyzer {}, kvCacheThreshold {}, scaleUpThreshold {}; minimum {}; \
                 {sleeps}; objectives: time to first token {ttft}, between tokens {itl}",
                names.join(", "),
                policy.analyzer.as_str(),
                policy.saturation.kv_cache_threshold,
                policy.scoring.up,
                settings.minimum,
            );
            self.finding(name).in_effect = text;
        }
    }

    fn finding(&mut self, name: &SmolStr) -> &mut Finding {
        self.findings.entry(VariantId::new(self.below.group.namespace.clone(), name.clone())).or_default()
    }

    /// The policy with the lowest threshold of the variants. As in an entry, a threshold chooses V1 where no analyzer is named.
    fn with_threshold(&mut self) -> ModelPolicy {
        let own = AnalyzerChoice::percentages();
        let choice = self.below.choice.map_or_else(AnalyzerChoice::queueing_model, |below| own.over(below));
        let ModelPolicy { saturation, scoring, .. } = &self.below.policy;
        let is_score = matches!(choice.leading(), Analyzer::Threshold | Analyzer::Weighted);
        let (floor, at_least) = if is_score {
            (scoring.down, format!("above scaleDownBoundary {}", scoring.down))
        } else {
            (saturation.kv_spare_trigger, format!("at least kvSpareTrigger {}", saturation.kv_spare_trigger))
        };
        let mut thresholds = Vec::new();
        for (name, settings) in self.settings() {
            let Some(threshold) = settings.fields.saturation_threshold else { continue };
            let value = threshold.get();
            if value < floor || is_score && value <= floor {
                let error = format!(
                    "spec.saturationThreshold {value} must be {at_least} of the model: it is left out"
                );
                self.finding(name).errors.push(error);
            } else {
                thresholds.push((name, threshold));
            }
        }
        let Some(lowest) = lowest(thresholds.iter().map(|(_, threshold)| Some(*threshold))) else {
            return self.below.policy.clone();
        };
        let ModelPolicy { scale_to_zero, queueing, .. } = self.below.policy.clone();
        let mut policy =
            model_policy(self.below.layers, &choice, scale_to_zero, queueing, &mut Diagnostics::default());
        if is_score {
            policy.scoring.up = lowest.get();
        } else {
            policy.saturation.kv_cache_threshold = lowest.get();
        }
        let reads_it = |analyzer| {
            use Analyzer::{Saturation, SaturationPercent, Threshold, Weighted};
            matches!(analyzer, Saturation | SaturationPercent | Threshold | Weighted)
        };
        if !deciding(&policy).any(reads_it) {
            for (name, _) in thresholds {
                let note =
                    format!("spec.saturationThreshold has no effect: {} decides", policy.analyzer.as_str());
                self.finding(name).notes.push(note);
            }
        }
        policy
    }

    /// The model sleeps only if all of its variants allow it, and after the longest of their idle times. A variant that does not say
    /// counts as the ConfigMaps say.
    fn set_scale_to_zero(&mut self, policy: &mut ModelPolicy) {
        let sets_it = |settings: &VariantSettings| {
            settings.fields.zero().is_some_and(|zero| *zero != ZeroFields::default())
        };
        if !self.settings().any(|(_, settings)| sets_it(settings)) {
            return;
        }
        let resolve = |variant: &ModelVariant| {
            let mut zero = self.below.scale_to_zero;
            if let Some(own) = variant.settings.as_deref().filter(|_| variant.is_decided) {
                own.fields.scale_to_zero.apply_to(&mut zero);
            }
            zero.enabled &= variant.is_decided;
            zero
        };
        let zeros: Vec<(&ModelVariant, ScaleToZero)> =
            self.variants.iter().map(|variant| (variant, resolve(variant))).collect();
        let awake = zeros.iter().find(|(_, zero)| !zero.enabled).map(|(variant, _)| *variant);
        let decided = zeros.iter().filter(|(variant, _)| variant.is_decided);
        let retention = decided
            .map(|(_, zero)| zero.retention)
            .fold(None, |longest, time| Some(longest.filter(|longest| *longest >= time).unwrap_or(time)));
        let retention = retention.unwrap_or(self.below.scale_to_zero.retention);
        policy.scale_to_zero = Some(ScaleToZero { enabled: awake.is_none(), retention });
        for (name, settings) in self.settings().filter(|(_, settings)| settings.allows_zero()) {
            let cause = match awake {
                _ if settings.sets_minimum && settings.minimum > 0 => {
                    format!("spec.minReplicas is {}: set it to 0 or remove it", settings.minimum)
                }
                Some(ModelVariant { name, is_decided: true, .. }) => {
                    format!("variant {name} of the same model does not allow it")
                }
                Some(ModelVariant { name, .. }) => {
                    format!("nothing is decided about variant {name}, so that it is not known to allow it")
                }
                None => continue,
            };
            let floor =
                if settings.sets_minimum { "" } else { "; an unset spec.minReplicas is 0 all the same" };
            let note = format!("spec.scaleToZero does not scale the model to zero: {cause}{floor}");
            self.finding(name).notes.push(note);
        }
    }

    /// Sets the strictest objectives of the variants for each analyzer that has any.
    fn set_objectives(&mut self, policy: &mut ModelPolicy) {
        let (own, class) = self.objectives();
        if own == Objectives::default() {
            return;
        }
        let rate = Objectives { ttft: policy.rate.ttft_ms, itl: policy.rate.itl_ms };
        Objectives { ttft: policy.rate.ttft_ms, itl: policy.rate.itl_ms } = own.over(rate);
        let queueing = policy.queueing.targets.map(Objectives::of).unwrap_or_default();
        policy.queueing.targets = own.over(queueing).complete().or(policy.queueing.targets);
        let model = &self.below.group.model;
        let first = || first_class(self.below.classes.iter().map(|(_, class)| class), model);
        let (class, of_class) = class.or_else(first).unzip();
        let of_class = of_class.unwrap_or_default();
        policy.service_class = own.over(of_class).complete().map(|latency| ServiceClass {
            name: class.map_or(ServiceClass::UNNAMED.into(), |class| class.name.clone()),
            priority: class.map_or(ServiceClass::LOWEST, |class| class.priority),
            targets: vec![ClassTarget { model: model.clone(), latency }],
        });
        self.note_objectives(policy);
    }

    /// The strictest objectives of the variants, of which each takes from the class that it names what it does not set itself; and the
    /// class of the highest priority that they name.
    fn objectives(&mut self) -> (Objectives, Option<(&'a ServiceClass, Objectives)>) {
        let mut strictest = Objectives::default();
        let mut classes = Vec::new();
        for (name, settings) in self.settings() {
            let Fields { slo_ttft, slo_tpot, .. } = &settings.fields;
            let own = Objectives { ttft: slo_ttft.map(Latency::get), itl: slo_tpot.map(Latency::get) };
            let class = settings.class_key().and_then(|key| self.named_class(name, key));
            let of_class = class.map(|(_, objectives)| objectives);
            strictest = strictest.strictest(own.over(of_class.unwrap_or_default()));
            classes.extend(class.map(|(class, _)| class));
        }
        (strictest, first_class(classes.into_iter(), &self.below.group.model))
    }

    /// The class that variant `name` names by `key`, and its objectives for the model.
    fn named_class(&mut self, name: &SmolStr, key: &str) -> Option<(&'a ServiceClass, Objectives)> {
        let class = self.below.classes.get(key);
        let objectives = class.and_then(|class| objectives_of(class, &self.below.group.model));
        if objectives.is_none() {
            let cause = if class.is_some() {
                "has no objectives for this model"
            } else {
                "is no valid entry of the ConfigMap of service classes"
            };
            self.finding(name).errors.push(format!("spec.sloClassRef.key {} {cause}", quote(key)));
        }
        class.zip(objectives)
    }

    /// Notes objectives that no analyzer of `policy` reads.
    fn note_objectives(&mut self, policy: &ModelPolicy) {
        use Analyzer::{Inferno, QueueingModel, Rate};
        let lacks = |analyzer: Analyzer| match analyzer {
            Rate => false,
            QueueingModel => policy.queueing.targets.is_none(),
            Inferno => policy.service_class.is_none(),
            _ => true,
        };
        if !deciding(policy).all(lacks) {
            return;
        }
        let analyzer = policy.analyzer.as_str();
        let cause = match policy.analyzer {
            QueueingModel | Inferno => {
                format!("{analyzer} needs both sloTtft and sloTpot: set the other one too")
            }
            _ => format!("{analyzer} decides, which has no latency objectives"),
        };
        for (name, settings) in self.settings() {
            let Fields { slo_ttft, slo_tpot, slo_class_ref, .. } = &settings.fields;
            if slo_ttft.is_some() || slo_tpot.is_some() || slo_class_ref.is_some() {
                self.finding(name).notes.push(format!("latency objectives have no effect: {cause}"));
            }
        }
    }
}

/// The analyzers that decide about a model.
fn deciding(policy: &ModelPolicy) -> impl Iterator<Item = Analyzer> {
    std::iter::once(policy.analyzer).chain(policy.secondary.iter().map(|secondary| secondary.analyzer))
}

fn objectives_of(class: &ServiceClass, model: &SmolStr) -> Option<Objectives> {
    let target = class.targets.iter().find(|target| target.model == *model)?;
    Some(Objectives::of(target.latency))
}

/// The class of the highest priority that has objectives for `model`.
fn first_class<'a>(
    classes: impl Iterator<Item = &'a ServiceClass>,
    model: &SmolStr,
) -> Option<(&'a ServiceClass, Objectives)> {
    let with_objectives = classes.filter_map(|class| Some((class, objectives_of(class, model)?)));
    with_objectives.min_by_key(|(class, _)| class.priority)
}
