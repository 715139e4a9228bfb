//! The sentences of a decision. Words only: nothing here decides, and nothing reads them back.

use std::fmt;

use smol_str::{SmolStr, ToSmolStr, format_smolstr};

use crate::analyze::finding::{Finding, Totals};
use crate::analyze::saturation_percent::PercentAnalysis;
use crate::analyze::score::Scored;
use crate::isolate::Failed;
use crate::model::{Analyzer, Role, SaturationPolicy, VariantId};
use crate::quality::{AssessedVariant, CoverageState, VariantCoverage};
use crate::report::{Rule, Stage, Step, Violation};
use crate::snapshot::{SourceHealth, VariantState};
use crate::units::{Replicas, Seconds, hundredths, tenths};

use super::context::{ModelContext, VariantContext};

/// Letters of the usual sentence of a report; a longer one is copied once.
const USUAL: usize = 192;

/// A sentence of several numbers, written in one go: a `SmolStr` of many pieces grows a little with each.
pub(super) fn sentence(words: fmt::Arguments<'_>) -> SmolStr {
    let mut text = String::with_capacity(USUAL);
    // Writing into a text cannot fail.
    let _ = fmt::Write::write_fmt(&mut text, words);
    text.into()
}

pub(super) fn quality_step(role: Role, state: CoverageState, seen: &[AssessedVariant<'_>]) -> Step {
    let sum = |part: fn(&VariantCoverage<'_>) -> u32| {
        seen.iter().map(|(_, one)| part(one)).fold(0, u32::saturating_add)
    };
    let state = match state {
        CoverageState::Down => "the source does not answer",
        CoverageState::Zero => "nothing runs",
        CoverageState::Starting => "starting",
        CoverageState::Missing => "no series",
        CoverageState::Stale => "stale",
        CoverageState::Partial => "partial",
        CoverageState::Aging => "aging",
        CoverageState::Estimated => "fresh, some pods estimated",
        CoverageState::Fresh => "fresh and complete",
    };
    let ready = [
        (sum(|one| one.fresh), "fresh"),
        (sum(|one| one.aging), "aging"),
        (sum(|one| one.stale), "stale"),
        (sum(|one| one.absent), "without series"),
        (sum(|one| one.lacking), "lacking a series"),
    ];
    let finding = sentence(format_args!(
        "role {role:?}: {state}: {} ready{}, {} starting{}{}",
        sum(|one| one.ready),
        Of(&ready),
        sum(|one| one.starting),
        Of(&[(sum(|one| one.unschedulable), "unschedulable")]),
        Of(&[(sum(|one| one.asleep), "asleep")]),
    ));
    Step::new(Stage::Quality, None, finding)
}

/// Which some are, in brackets: of what there is none, nothing is said.
struct Of<'a>(&'a [(u32, &'a str)]);

impl fmt::Display for Of<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut before = " (";
        for (count, what) in self.0.iter().filter(|(count, _)| *count > 0) {
            f.write_str(before)?;
            fmt::Display::fmt(count, f)?;
            f.write_str(" ")?;
            f.write_str(what)?;
            before = ", ";
        }
        f.write_str(if before == ", " { ")" } else { "" })
    }
}

pub(super) fn finding(analysis: &PercentAnalysis, policy: &SaturationPolicy) -> SmolStr {
    sentence(format_args!(
        "mean spare KV cache {} (trigger {}) and queue {} (trigger {}) over {} of {} replicas below saturation",
        hundredths(analysis.avg_spare_kv),
        hundredths(policy.kv_spare_trigger),
        tenths(analysis.avg_spare_queue),
        tenths(policy.queue_spare_trigger),
        analysis.non_saturated,
        analysis.total,
    ))
}

pub(super) fn scored(scored: &Scored) -> SmolStr {
    let engines = scored.each.len();
    format_smolstr!("mean score {:.2} of {engines} engines", scored.mean.unwrap_or(0.0))
}

/// What one analyzer of capacity says, in its own unit: of each role where it tells them apart.
pub(super) fn found(finding: &Finding) -> SmolStr {
    let unit = match finding.analyzer {
        Analyzer::Saturation => "tokens",
        Analyzer::Throughput => "tokens/s",
        _ => "requests/s",
    };
    let name = finding.analyzer.as_str();
    let of_role =
        |(role, totals): (&Role, &Totals)| format_smolstr!("role {role:?} {}", OptimizerInput(totals, unit));
    let of_roles = finding.roles.iter().map(of_role);
    let all = of_roles.reduce(|one, other| format_smolstr!("{one}, {other}"));
    match all {
        Some(all) => format_smolstr!("{name}: {all}"),
        None => sentence(format_args!("{name}: {}", OptimizerInput(&finding.total, unit))),
    }
}

/// What is asked and what can be carried, in a unit.
struct OptimizerInput<'a>(&'a Totals, &'a str);

impl fmt::Display for OptimizerInput<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Totals { supply, anticipated, demand, required, spare }, unit) = (*self.0, self.1);
        let [all, soon, asked] = [supply, anticipated, demand].map(tenths);
        write!(f, "{asked} {unit} asked of {all} ({soon} with what starts): ")?;
        if required > 0.0 {
            write!(f, "{} missing", tenths(required))
        } else if spare > 0.0 {
            write!(f, "{} spare", tenths(spare))
        } else {
            f.write_str("enough")
        }
    }
}

/// What an analyzer finds that stands in for the model's own.
pub(super) fn standing_in(context: &ModelContext<'_>, finding: SmolStr) -> SmolStr {
    if !context.is_stand_in() {
        return finding;
    }
    let (own, analyzer) = (context.policy.analyzer.as_str(), context.analyzer.as_str());
    format_smolstr!("{own} has nothing to decide by, so {analyzer} decides about additions only: {finding}")
}

/// The quantity that a finding's answer turns on.
pub(super) fn demand(role: Option<Role>) -> SmolStr {
    role.map_or_else(|| SmolStr::new_static("demand"), |role| format_smolstr!("demand of role {role:?}"))
}

pub(super) fn analyzed(variant: &VariantContext<'_>, number: Replicas, finding: &str) -> SmolStr {
    let (id, base) = (variant.id(), variant.scale.base());
    if number == base {
        sentence(format_args!("{id}: {finding}"))
    } else {
        sentence(format_args!("{id}: {base} to {number}: {finding}"))
    }
}

pub(super) fn settled(
    variant: &VariantContext<'_>,
    wanted: Replicas,
    number: Replicas,
    why: &str,
    message: &str,
) -> SmolStr {
    format_smolstr!("{}: {number} and not {wanted} yet ({why}); {message}", variant.id())
}

pub(super) fn limited(
    variant: &VariantContext<'_>,
    wanted: Replicas,
    number: Replicas,
    binding: &str,
) -> SmolStr {
    format_smolstr!("{}: {wanted} are needed and {number} can be had: {binding}", variant.id())
}

/// A number that would be another one, were it not for a limit.
pub(super) fn held_back(message: &str, binding: &str) -> SmolStr {
    format_smolstr!("{message}; more are needed than can be had: {binding}")
}

/// A change that an HPA does not see.
pub(super) fn swallowed(variant: &VariantContext<'_>, number: Replicas, tolerance: f64) -> SmolStr {
    let (id, base, percent) = (variant.id(), variant.scale.base(), tolerance * 100.0);
    format_smolstr!("{id}: an HPA with a tolerance of {percent:.0} % takes {number} for the {base} that run")
}

pub(super) fn with_swallowed(message: &str, tolerance: f64) -> SmolStr {
    format_smolstr!("{message} (within an HPA's tolerance of {:.0} %: it will not follow)", tolerance * 100.0)
}

/// The variant's minimum and maximum.
pub(super) fn bounds(variant: &VariantContext<'_>) -> SmolStr {
    let bounds = variant.state.variant.bounds;
    let max = bounds.max.map_or_else(|| SmolStr::new_static("none"), |max| max.to_smolstr());
    format_smolstr!("minimum {}, maximum {max}", bounds.min)
}

pub(super) fn no_target(state: &VariantState) -> SmolStr {
    format_smolstr!("{} does not exist", state.variant.target)
}

pub(super) fn source_down(variant: &VariantContext<'_>, cause: &str) -> SmolStr {
    format_smolstr!("{}: {cause}; the last number is held", variant.id())
}

pub(super) fn missing(variant: &VariantContext<'_>) -> SmolStr {
    format_smolstr!(
        "{}: no series of its {} ready pods: check that they serve /metrics and that the source scrapes them; the last number is held",
        variant.id(),
        variant.coverage.ready,
    )
}

pub(super) fn stale(variant: &VariantContext<'_>) -> SmolStr {
    format_smolstr!(
        "{}: the newest samples of its {} ready pods are too old: check the scrapes of these pods; the last number is held",
        variant.id(),
        variant.coverage.ready,
    )
}

pub(super) fn partial(variant: &VariantContext<'_>, warnings: &[String]) -> SmolStr {
    format_smolstr!(
        "{}: the source's answer is not whole ({}) and has nothing of its {} ready pods; the last number is held",
        variant.id(),
        warnings.join("; "),
        variant.coverage.ready,
    )
}

pub(super) fn incomplete(variant: &VariantContext<'_>, source: &SourceHealth, finding: &str) -> SmolStr {
    let id = variant.id();
    match source {
        SourceHealth::Partial { warnings } => {
            format_smolstr!(
                "{id}: the source's answer is not whole ({}), so nothing is removed; {finding}",
                warnings.join("; ")
            )
        }
        SourceHealth::Complete | SourceHealth::Down { .. } => {
            format_smolstr!("{id}: not every ready pod has fresh metrics, so nothing is removed; {finding}")
        }
    }
}

pub(super) fn estimated(variant: &VariantContext<'_>, finding: &str) -> SmolStr {
    format_smolstr!(
        "{}: pods without fresh metrics count as loaded like the busiest that is measured; {finding}",
        variant.id()
    )
}

pub(super) fn denied(variant: &VariantContext<'_>, finding: &str) -> SmolStr {
    format_smolstr!(
        "{}: one replica less would do, but the newest samples are not fresh; {finding}",
        variant.id()
    )
}

pub(super) fn unsafe_step(variant: &VariantContext<'_>, fewer: Replicas, finding: &str) -> SmolStr {
    let (id, base) = (variant.id(), variant.scale.base());
    format_smolstr!(
        "{id}: one replica less would do, but the next step is {base} to {fewer}, and that would not; {finding}"
    )
}

pub(super) fn starting(variant: &VariantContext<'_>) -> SmolStr {
    let seen = &variant.coverage;
    let id = variant.id();
    if seen.unschedulable > 0 {
        return format_smolstr!(
            "{id}: no pod is ready, and no node has room for {} of {}: look at their events",
            seen.unschedulable,
            seen.starting
        );
    }
    match seen.starting {
        _ if seen.ready == 0 && seen.asleep > 0 => format_smolstr!(
            "{id}: {} pods sleep and none is awake: wake one through its engine's API, or restart it",
            seen.asleep
        ),
        0 if seen.ready > 0 => format_smolstr!("{id}: its pods are ready and not measured yet"),
        0 => format_smolstr!(
            "{id}: {} replicas are asked for and no pod exists yet; if that lasts, look at the events of {}",
            variant.scale.spec,
            variant.state.variant.target
        ),
        pods => format_smolstr!(
            "{id}: {pods} pods are starting and none is ready yet; if that lasts, look at their events"
        ),
    }
}

pub(super) fn until_next_look(variant: &VariantContext<'_>) -> SmolStr {
    format_smolstr!("{}: unchanged until the analyzer's next look", variant.id())
}

pub(super) fn transition(variant: &VariantContext<'_>) -> SmolStr {
    let current = variant.scale.base();
    match variant.committed() {
        Some(target) if target != current => awaited(variant, target),
        _ => format_smolstr!(
            "{}: waiting for {} of {current} replicas to become ready",
            variant.id(),
            variant.scale.pending()
        ),
    }
}

pub(super) fn awaited(variant: &VariantContext<'_>, target: Replicas) -> SmolStr {
    format_smolstr!("{}: waiting for {target} replicas, {} run", variant.id(), variant.scale.base())
}

pub(super) fn stepped(
    variant: &VariantContext<'_>,
    number: Replicas,
    finding: &str,
    state: CoverageState,
) -> SmolStr {
    let sight = if state.is_incomplete() { ", although not every ready pod has fresh metrics" } else { "" };
    let base = variant.scale.base();
    let several = number > base.plus_one() || number < base.minus_one();
    let past = if several { " (past the 10 % that an HPA takes for equal)" } else { "" };
    format_smolstr!("{}: {base} to {number}{past}{sight}: {finding}", variant.id())
}

pub(super) fn steady(variant: &VariantContext<'_>, finding: &str) -> SmolStr {
    sentence(format_args!("{}: {finding}", variant.id()))
}

pub(super) fn no_room(variant: &VariantContext<'_>, finding: &str) -> SmolStr {
    let seen = &variant.coverage;
    let most = variant.committed().unwrap_or(variant.scale.base()).max(variant.scale.base());
    let why = if seen.unschedulable > 0 {
        format_smolstr!("no node has room for {} pods", seen.unschedulable)
    } else if let Some(max) = variant.state.variant.bounds.max.filter(|max| most >= *max) {
        format_smolstr!("the maximum is {max}")
    } else if seen.starting > 0 {
        format_smolstr!("{} pods do not become ready: look at their events", seen.starting)
    } else {
        SmolStr::new_static("it cannot grow")
    };
    format_smolstr!("{}: more is needed, but {why}; {finding}", variant.id())
}

pub(super) fn bounded(
    variant: &VariantContext<'_>,
    wanted: Replicas,
    bounded: Replicas,
    message: &str,
) -> SmolStr {
    format_smolstr!("{}: {wanted} moved to {bounded} ({}); {message}", variant.id(), bounds(variant))
}

/// A promise that is not kept yet, and what goes with it.
pub(super) fn on_its_way(variant: &VariantContext<'_>, target: Replicas, finding: &str) -> SmolStr {
    format_smolstr!(
        "{}: waiting for {target} replicas, {} run; {finding}",
        variant.id(),
        variant.scale.base()
    )
}

/// Nothing to decide by yet.
pub(super) fn learning(variant: &VariantContext<'_>) -> SmolStr {
    format_smolstr!("{}: held until it is known what arrives and what a replica carries", variant.id())
}

/// A finding of one role, where a model has several.
pub(super) fn of_role(role: Role, finding: &str) -> SmolStr {
    match role {
        Role::Both => finding.into(),
        Role::Decode => format_smolstr!("decode: {finding}"),
        Role::Prefill => format_smolstr!("prefill: {finding}"),
    }
}

pub(super) fn asleep(variant: &VariantContext<'_>) -> SmolStr {
    format_smolstr!("{}: nothing runs, and no request waits", variant.id())
}

pub(super) fn unwakeable(variant: &VariantContext<'_>) -> SmolStr {
    format_smolstr!(
        "{}: nothing runs, and nothing can wake it, because the source has no fresh queue size of the scheduler: check that the scheduler's queue metrics are scraped, or scale the target up; the last number is held",
        variant.id()
    )
}

pub(super) fn asleep_unsure(variant: &VariantContext<'_>) -> SmolStr {
    format_smolstr!(
        "{}: nothing runs, and the source's answer is not whole; the last number is held",
        variant.id()
    )
}

pub(super) fn from_zero(variant: &VariantContext<'_>, waiting: f64) -> SmolStr {
    format_smolstr!("{}: nothing runs, and {waiting:.0} requests wait at the scheduler", variant.id())
}

pub(super) fn kept_one(variant: &VariantContext<'_>) -> SmolStr {
    format_smolstr!(
        "{}: keeps one replica, because scaling to zero is off and it is the cheapest",
        variant.id()
    )
}

pub(super) fn not_idle(variant: &VariantContext<'_>, number: Replicas) -> SmolStr {
    format_smolstr!("{}: not known to be idle any more, so {number} and not 0", variant.id())
}

pub(super) fn to_zero(variant: &VariantContext<'_>, idle: Seconds) -> SmolStr {
    format_smolstr!("{}: no request for {idle}", variant.id())
}

pub(super) fn nothing_known(variant: &VariantContext<'_>, why: &str) -> SmolStr {
    let id = variant.id().to_string();
    let why = why.strip_prefix(&id).map_or(why, |rest| rest.trim_start_matches([':', ' ']));
    let why = why.trim_end_matches("; the last number is held");
    format_smolstr!("{id}: nothing has been measured and no earlier number is known: {why}")
}

pub(super) fn too_old(variant: &VariantContext<'_>, age: Seconds, limit: Seconds, why: &str) -> SmolStr {
    let id = variant.id().to_string();
    let why = why.strip_prefix(&id).map_or(why, |rest| rest.trim_start_matches([':', ' ']));
    let why = why.trim_end_matches("; the last number is held");
    format_smolstr!("{id}: the newest evidence is {age} old, more than max-stale ({limit}): {why}")
}

pub(super) fn target_not_found(state: &VariantState) -> SmolStr {
    let variant = &state.variant;
    format_smolstr!(
        "{}: {} does not exist in namespace {}: create it or correct spec.scaleTargetRef",
        variant.id,
        variant.target,
        variant.id.namespace
    )
}

pub(super) fn model_failed(failed: &Failed) -> SmolStr {
    format_smolstr!(
        "deciding about this model failed ({:?}), so its numbers are held; it is tried again at {}; please report this",
        failed.cause,
        failed.retry_at
    )
}

pub(super) fn invalid(id: &VariantId, problem: &str) -> SmolStr {
    format_smolstr!("{id}: {problem}; correct the object")
}

pub(super) fn refused(id: &VariantId, violation: &Violation, previous: Option<Replicas>) -> SmolStr {
    let held = previous.map_or_else(
        || SmolStr::new_static("no earlier number is known"),
        |held| format_smolstr!("{held} is held"),
    );
    if violation.rule == Rule::FitsRemaining {
        return format_smolstr!(
            "{id}: {held}: with fewer, {}, and nine tenths may be used",
            violation.detail
        );
    }
    format_smolstr!(
        "{id}: the new number broke the rule {:?} ({}), so {held}; please report this",
        violation.rule,
        violation.detail
    )
}

pub(super) fn withdrawn(variant: &VariantContext<'_>, target: Replicas, from: Replicas) -> SmolStr {
    format_smolstr!(
        "{}: {target} was ordered by signals that are now contradicted: {from} again, as before the order",
        variant.id()
    )
}

pub(super) fn waits(
    variant: &VariantContext<'_>,
    held: Replicas,
    wanted: Replicas,
    window: Seconds,
    finding: &str,
) -> SmolStr {
    format_smolstr!(
        "{}: held at {held} instead of {wanted}: an order was withdrawn less than {window} ago, and its signals may be wrong again; {finding}",
        variant.id()
    )
}
