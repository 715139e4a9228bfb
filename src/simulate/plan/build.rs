//! Builds the simulator's scenario from a scenario file, without its trace. Checks what concerns several fields together.

use std::time::Duration;

use smol_str::SmolStr;
use wva_core::hpa::{Behavior, Tolerance};
use wva_core::model::Bounds;
use wva_core::units::{Cost, Ratio, Replicas, Seconds, truncated_u32};
use wva_sim::{
    Arrivals, ClientPatience, DeletionOrder, Deviations, HpaSetup, LoadShape, Pattern, PodFault, PrefixCache,
    RequestSizes, Routing, Scenario, Scrape, Segment, SimVariant, SizeSpread, Slo, TimedSizes,
};

use super::super::file::{
    ArrivalsFile, ClientsFile, DeletionOrderFile, DeviationsFile, HpaFile, LargeRequests, Load, PodFaultFile,
    PrefixCacheFile, Problem, ScenarioFile, ScrapeFile, SegmentFile, Tokens, VariantFile,
};
use super::super::values::{CostPerHour, PositivePodCount, Share};

/// The most variants of a scenario.
const MAX_VARIANTS: usize = 100;

/// The scenario, with rates as its load. A trace is applied later.
pub(super) fn scenario(name: SmolStr, file: &ScenarioFile) -> Result<Scenario, Problem> {
    let (shape, sizes) = load(&file.load).map_err(|problem| problem.inside("load"))?;
    let duration = file.duration.map_or_else(|| shape.length(), |value| value.get());
    if duration > Scenario::MAX_DURATION {
        return Err(Problem::new("load.rate", "the parts together are longer than 8784h"));
    }
    let mut scenario = Scenario {
        name,
        duration,
        arrivals: Arrivals::Rate { load: shape, pattern: pattern(file.load.arrivals) },
        sizes,
        prefix_hits: ratio(file.load.prefix_hits),
        variants: variants(&file.variants)?,
        scrape: Scrape::default(),
        hpa: HpaSetup::default(),
        grace_period: file.grace.map_or(Duration::from_secs(30), |value| value.get()),
        max_waiting_per_pod: file.hold_at.map(|value| truncated_u32(value.get())),
        deletion_order: deletion_order(file.victims),
        routing: Routing::default(),
        slo: Slo::default(),
        faults: Vec::new(),
        prefix_cache: file.prefix_cache.map(prefix_cache).unwrap_or_default(),
        clients: file.clients.map(clients),
    };
    let slo = &mut scenario.slo;
    slo.ttft = file.slo.ttft.map_or(slo.ttft, |value| value.get());
    slo.itl = file.slo.itl.map_or(slo.itl, |value| value.get());
    set_scrape(&mut scenario.scrape, &file.scrape);
    set_hpa(&mut scenario.hpa, &file.hpa).map_err(|problem| problem.inside("hpa"))?;
    Ok(scenario)
}

fn load(load: &Load) -> Result<(LoadShape, Vec<TimedSizes>), Problem> {
    match (load.rate.is_empty(), &load.trace) {
        (true, None) => return Err(Problem::new("", "needs `rate` or `trace`")),
        (false, Some(_)) => {
            return Err(Problem::new("trace", "`rate` is set as well: set only one of them"));
        }
        _ => {}
    }
    let own = load.tokens.as_ref().map(sizes).transpose();
    let own = own.map_err(|problem| problem.inside("tokens"))?;
    let mut segments = Vec::new();
    let mut over_time = Vec::new();
    let mut at = Duration::ZERO;
    over_time.extend(own.map(|sizes| TimedSizes { from: Duration::ZERO, sizes }));
    for (index, part) in load.rate.iter().enumerate() {
        let inside = |problem: Problem| problem.inside(&format!("rate[{index}]"));
        if let Some(tokens) = &part.tokens {
            let sizes = sizes(tokens).map_err(|problem| inside(problem.inside("tokens")))?;
            over_time.retain(|timed: &TimedSizes| timed.from < at);
            over_time.push(TimedSizes { from: at, sizes });
        }
        if over_time.is_empty() {
            return Err(Problem::new("", "needs `tokens`: {prompt: …, output: …}"));
        }
        segments.push(segment(part).map_err(inside)?);
        at += part.lasts.get();
    }
    Ok((LoadShape::new(segments), over_time))
}

fn segment(part: &SegmentFile) -> Result<Segment, Problem> {
    let (rps, lasts) = (part.rps.get(), part.lasts.get());
    match (part.to, part.swing, part.period) {
        (None, None, None) => Ok(Segment::Hold { rps, lasts }),
        (Some(to), None, None) => Ok(Segment::Ramp { from: rps, to: to.get(), lasts }),
        (None, Some(swing), Some(period)) => {
            Ok(Segment::Wave { mean: rps, swing: swing.get(), period: period.get(), lasts })
        }
        (Some(_), ..) => {
            Err(Problem::new("to", "`swing` or `period` is set as well: set `to`, or `swing` and `period`"))
        }
        _ => Err(Problem::new("", "a wave needs both `swing` and `period`")),
    }
}

/// Sizes of requests.
pub(super) fn sizes(tokens: &Tokens) -> Result<RequestSizes, Problem> {
    let is_set = [tokens.spread.is_some(), tokens.cv.is_some(), tokens.large.is_some()];
    if is_set.iter().filter(|is_set| **is_set).count() > 1 {
        return Err(Problem::new("", "set at most one of `spread`, `cv` and `large`"));
    }
    let spread = match (tokens.spread, tokens.cv, tokens.large) {
        (_, Some(cv), _) => SizeSpread::LogNormal(cv.get()),
        (_, _, Some(large)) => two_sizes(large).map_err(|problem| problem.inside("large"))?,
        (share, None, None) => SizeSpread::Uniform(share.map_or(0.1, Share::get)),
    };
    Ok(RequestSizes { prompt: tokens.prompt.get(), output: tokens.output.get(), spread })
}

/// Some large requests among small ones.
pub(super) fn two_sizes(large: LargeRequests) -> Result<SizeSpread, Problem> {
    let (share, factor) = (large.share.get(), large.times.get());
    if factor < 1.0 {
        return Err(Problem::new("times", format!("{factor} is out of range: must be 1 to 100")));
    }
    if share * factor > 0.999 {
        let product = share * factor;
        return Err(Problem::new("", format!("share × times is {product}: must be at most 0.999")));
    }
    Ok(SizeSpread::TwoSizes { share, factor })
}

/// How requests follow each other.
pub(super) fn pattern(arrivals: ArrivalsFile) -> Pattern {
    match arrivals {
        ArrivalsFile::Poisson => Pattern::Poisson,
        ArrivalsFile::Even => Pattern::Even,
        ArrivalsFile::Bursts(size) => Pattern::Bursts(truncated_u32(size.get())),
    }
}

/// A share, 0 by default.
pub(super) fn ratio(share: Option<Share>) -> Ratio {
    share.and_then(|share| Ratio::new(share.get()).ok()).unwrap_or_default()
}

fn variants(files: &[VariantFile]) -> Result<Vec<SimVariant>, Problem> {
    if files.is_empty() || files.len() > MAX_VARIANTS {
        return Err(Problem::new("variants", format!("{}: must be 1 to {MAX_VARIANTS}", files.len())));
    }
    let mut all: Vec<SimVariant> = Vec::with_capacity(files.len());
    for (index, file) in files.iter().enumerate() {
        let inside = |problem: Problem| problem.inside(&format!("variants[{index}]"));
        if all.iter().any(|previous| previous.name == file.name) {
            let cause = format!("{:?} is the name of another variant, too", file.name);
            return Err(inside(Problem::new("name", cause)));
        }
        all.push(variant(file).map_err(inside)?);
    }
    Ok(all)
}

fn variant(file: &VariantFile) -> Result<SimVariant, Problem> {
    if file.name.trim().is_empty() || file.name.len() > 63 {
        return Err(Problem::new("name", "must be 1 to 63 characters"));
    }
    let physics = file.physics.physics().map_err(|cause| Problem::new("physics", cause))?;
    let min = file.min.map_or(1, |value| truncated_u32(value.get()));
    let max = file.max.map_or(10.max(min), |value| truncated_u32(value.get()));
    if min > max {
        return Err(Problem::new("min", format!("{min} is more than max, {max}")));
    }
    let replicas = file.replicas.map_or(min.clamp(1, max), |value| truncated_u32(value.get()));
    if replicas > max {
        return Err(Problem::new("replicas", format!("{replicas} is more than max, {max}")));
    }
    let mut variant = SimVariant::new(file.name.as_str(), physics, cost(file.cost));
    variant.bounds = Bounds { min: Replicas::new(min), max: Some(Replicas::new(max)) };
    variant.replicas = Replicas::new(replicas);
    variant.accelerator = file.accelerator.as_ref().map_or(variant.accelerator, SmolStr::new);
    variant.gpus = file.gpus.map_or(variant.gpus, |value| truncated_u32(value.get()));
    variant.deviations = file.rough.as_ref().map_or(variant.deviations, deviations);
    variant.start_up.mean = file.start_up.map_or(variant.start_up.mean, |value| value.get());
    variant.start_up.spread = file.start_up_spread.map_or(variant.start_up.spread, Share::get);
    variant.first_pod_slowdown =
        file.first_pod_slower.map_or(variant.first_pod_slowdown, |value| value.get());
    variant.max_scheduled_pods = file.schedulable.map(|value| truncated_u32(value.get()));
    variant.pod_faults = file.faults.iter().map(pod_fault).collect();
    Ok(variant)
}

/// A price, 1 by default: only ratios matter.
pub(super) fn cost(price: Option<CostPerHour>) -> Cost {
    Cost::new(price.map_or(1.0, CostPerHour::get)).unwrap_or_default()
}

/// Deviations of step times.
pub(super) fn deviations(file: &DeviationsFile) -> Deviations {
    Deviations {
        per_prompt_token: file.prompt_token.map_or(0.0, Share::get),
        per_kv_share: file.kv_share.map_or(0.0, |value| value.get()),
        noise: file.noise.map_or(0.0, Share::get),
        stalls: file.stalls.map_or(0.0, Share::get),
        stall_s: file.stall_seconds.map_or(0.0, |value| value.get()),
        experts_s: file.expert_seconds.map_or(0.0, |value| value.get()),
        expert_share: file.expert_share.map_or(0.0, Share::get),
    }
}

/// A fault of pods.
pub(super) fn pod_fault(file: &PodFaultFile) -> PodFault {
    let pods = |pods: PositivePodCount| truncated_u32(pods.get());
    match file {
        PodFaultFile::Crashing(crashing) => {
            PodFault::Crashing { every: crashing.every.get(), pods: pods(crashing.pods) }
        }
        PodFaultFile::Blinking(blinking) => PodFault::Blinking {
            every: blinking.every.get(),
            lasts: blinking.lasts.get(),
            pods: pods(blinking.pods),
        },
    }
}

/// Which pods have what prompts have in common.
pub(super) fn prefix_cache(file: PrefixCacheFile) -> PrefixCache {
    PrefixCache {
        warm_after: file.warm_after.map_or(0.0, |value| value.get()),
        spread: file.spread.map_or(0.0, Share::get),
    }
}

/// When clients give up.
pub(super) fn clients(file: ClientsFile) -> ClientPatience {
    ClientPatience {
        timeout: file.timeout.get(),
        retries: file.retries.map_or(0, |value| truncated_u32(value.get())),
        backoff: file.backoff.map_or(Duration::from_secs(1), |value| value.get()),
    }
}

/// Sets the fields of `scrape` that `file` has.
pub(super) fn set_scrape(scrape: &mut Scrape, file: &ScrapeFile) {
    scrape.interval = file.interval.map_or(scrape.interval, |value| value.get());
    scrape.delay = file.delay.map_or(scrape.delay, |value| value.get());
    scrape.loss = file.loss.map_or(scrape.loss, |share| ratio(Some(share)));
}

/// Sets the fields of `hpa` that `file` has.
pub(super) fn set_hpa(hpa: &mut HpaSetup, file: &HpaFile) -> Result<(), Problem> {
    hpa.sync = file.sync.map_or(hpa.sync, |value| value.get());
    if let Some(share) = file.tolerance {
        hpa.tolerance = Tolerance { down: share.get(), up: share.get() };
    }
    let [up, down] = [file.scale_up_window, file.scale_down_window]
        .map(|window| window.map(|window| Seconds::new(window.get().as_secs_f64()).unwrap_or_default()));
    if file.no_behavior {
        if up.or(down).is_some() {
            let cause = "windows are part of the behavior block: set `noBehavior`, or windows";
            return Err(Problem::new("noBehavior", cause));
        }
        hpa.behavior = None;
    }
    if let Some(up) = up {
        hpa.behavior.get_or_insert_with(Behavior::default).up.window = up;
    }
    if let Some(down) = down {
        hpa.behavior.get_or_insert_with(Behavior::default).down.window = down;
    }
    Ok(())
}

/// The order in which pods are deleted.
pub(super) fn deletion_order(file: DeletionOrderFile) -> DeletionOrder {
    match file {
        DeletionOrderFile::Youngest => DeletionOrder::Youngest,
        DeletionOrderFile::LeastLoaded => DeletionOrder::LeastLoaded,
        DeletionOrderFile::FewestTokens => DeletionOrder::FewestTokens,
    }
}
