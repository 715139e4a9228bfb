//! Who decides where the model's analyzer cannot be measured, and what is told of it: never stuck, and never silent.

use super::member::{Member, Scene};
use crate::analyze::finding::{Analyzer, Finding, Totals};
use crate::decision::{GapCause, SignalGap};
use crate::memory::Learned;
use crate::model::{Role, Utilisation};
use crate::quality::{VariantSight, engines_of, look_at, shown};
use crate::snapshot::{Phase, SourceHealth};

/// The roles of which the model's analyzer can measure no pod although something is seen of them, or lacks an indispensable signal
/// of every pod, each with the best analyzer that can. Their members are looked at anew, for that one. Analyzers of capacity look
/// at all roles together, so they are replaced together.
pub(super) fn choose<'a>(scene: Scene<'a>, members: &mut [Member<'a>]) -> Vec<(Role, Analyzer)> {
    let role = |member: &Member<'a>| member.state.variant.role;
    let by_role = |one: &Member<'a>, next: &Member<'a>| role(one) == role(next);
    let indispensable = scene.analyzer.indispensable();
    let unmeasured = |members: &[Member<'a>]| {
        let active = || members.iter().filter(|member| member.active());
        active().any(|member| !member.seen.observations.is_empty())
            && active().all(|member| !member.seen.loads.iter().any(|load| load.has(indispensable)))
    };
    let together = matches!(
        scene.analyzer,
        Analyzer::Saturation | Analyzer::Throughput | Analyzer::QueueingModel | Analyzer::Inferno
    );
    let any = members.chunk_by(by_role).any(unmeasured);
    let mut chosen = Vec::new();
    if !any {
        return chosen;
    }
    for members in members.chunk_by_mut(by_role) {
        let Some(role) = members.first().map(role).filter(|_| together || unmeasured(members)) else {
            continue;
        };
        for analyzer in scene.analyzer.stand_ins() {
            let declared = analyzer.declared(role);
            let sights: Vec<VariantSight<'_>> = members
                .iter()
                .map(|member| look_at(member.state, declared, scene.evidence, scene.now))
                .collect();
            let last = scene.analyzer.stand_ins().last() == Some(analyzer);
            if last || sights.iter().any(|sight| !sight.loads.is_empty()) {
                members.iter_mut().zip(sights).for_each(|(member, sight)| member.seen.measured_by(sight));
                chosen.push((role, *analyzer));
                break;
            }
        }
    }
    chosen
}

/// What the model's analyzer lacks of the pods of `member`, one of `members`, and the likely cause.
pub(super) fn gap(
    scene: Scene<'_>,
    members: &[Member<'_>],
    member: &Member<'_>,
    stand_in: Option<Analyzer>,
) -> Option<SignalGap> {
    let seen = &member.seen;
    if seen.incomplete == 0 || matches!(scene.group.source, SourceHealth::Down { .. }) {
        return None;
    }
    let all = members.iter().flat_map(|member| &member.state.replicas);
    let engines = all.filter(|replica| replica.phase == Phase::Ready).flat_map(engines_of);
    let needed = scene.model.analyzer.needed(member.state.variant.role);
    let known = shown(engines.map(|(_, signals)| signals), needed, scene.now);
    let cause = if seen.missing.is_empty() {
        GapCause::Contradicted
    } else if known.is_empty() {
        GapCause::UnknownEngine
    } else if seen.missing == needed {
        GapCause::NotScraped
    } else if known.contains(seen.missing) {
        GapCause::EngineVersion
    } else {
        GapCause::SeriesDropped
    };
    Some(SignalGap {
        cause,
        pods: seen.incomplete,
        serving: seen.ready,
        missing: seen.missing.iter().collect(),
        contradicted: seen.contradicted.iter().collect(),
        stand_in,
    })
}

/// The finding of a stand-in, which has another opinion of the same load than the analyzer it stands in for: what there was when it
/// began was enough, so only what is asked beyond that adds replicas.
pub(super) fn beyond(
    mut finding: Finding,
    Utilisation { up, down }: Utilisation,
    learned: &mut Learned,
) -> Finding {
    let Totals { demand, anticipated, .. } = finding.total;
    let enough = || if demand > 0.0 { (up * anticipated / demand).min(1.0) } else { 1.0 };
    let share = *learned.stand_in_share.get_or_insert_with(enough);
    finding.total = finding.total.with_share(share, up, down);
    finding.roles.values_mut().for_each(|totals| *totals = totals.with_share(share, up, down));
    finding
}
