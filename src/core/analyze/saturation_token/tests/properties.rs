//! What holds for every fleet.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

const NAMES: [&str; 4] = ["a", "b", "c", "gone"];
const ROLES: [Role; 3] = [Role::Both, Role::Decode, Role::Prefill];

/// One model: values of its own, of which [`TokenInput`] borrow.
#[derive(Debug, Clone)]
struct Fleet {
    variants: Vec<TokenVariant<'static>>,
    parameters: Vec<Option<EngineParameters>>,
    replicas: Vec<TokenObservation<'static>>,
    queue: Option<SchedulerQueue>,
}

impl Fleet {
    fn analyze(
        &self,
        knowledge: &mut Knowledge,
        policy: &TokenPolicy,
        compat: Compat,
        now: Timestamp,
    ) -> Found {
        let variants = self.variants.iter().zip(&self.parameters);
        let variants: Vec<_> = variants
            .map(|(variant, parameters)| TokenVariant { parameters: parameters.as_ref(), ..*variant })
            .collect();
        let inputs = TokenInput { variants: &variants, replicas: &self.replicas, queue: self.queue };
        let found = analyze(&inputs, knowledge, policy, compat, now);
        let replicas = found.replicas.iter();
        let replicas = replicas.map(|replica| (replica.effective, replica.demand, replica.source)).collect();
        Found { replicas, finding: found.into_finding(1.0, true) }
    }

    fn analyze_first(&self, compat: Compat) -> Found {
        self.analyze(&mut Knowledge::default(), &TokenPolicy::default(), compat, NOW)
    }
}

#[derive(Debug, Clone, PartialEq)]
struct Found {
    finding: Finding,
    replicas: Vec<(Tokens, Tokens, Source)>,
}

fn compat() -> impl Strategy<Value = Compat> {
    prop_oneof![2 => Just(Compat::Corrected), 1 => Just(Compat::Upstream), 1 => Just(Compat::UpstreamJune)]
}

fn observation() -> impl Strategy<Value = TokenObservation<'static>> {
    let sizes = prop_oneof![4 => 1_000_i64..500_000, 1 => Just(0)];
    let lengths = (prop_oneof![0.0..6_000.0, Just(0.0)], prop_oneof![0.0..900.0, Just(0.0)]);
    let load = (0.0..=1.0, prop_oneof![2 => 0_u32..5, 1 => 5_u32..40], 0.0..=1.0);
    (0_usize..4, 0_usize..2, sizes, lengths, load).prop_map(
        |(variant, accelerator, capacity, (prompt, output), (kv, queue, prefix_hits))| TokenObservation {
            replica: "p",
            variant: NAMES[variant],
            accelerator: ["H100", "A100"][accelerator],
            cost: Cost::ZERO,
            kv,
            in_use: tokens_in_use(kv, Tokens::new(capacity)),
            capacity: Tokens::new(capacity),
            queue,
            prompt,
            output,
            prefix_hits,
        },
    )
}

fn parameters() -> impl Strategy<Value = Option<EngineParameters>> {
    let batch = prop_oneof![Just(0_i64), 1_i64..20_000];
    let given = (batch, 1_i64..600, prop_oneof![Just(0_i64), 1_i64..20_000]).prop_map(
        |(batched_tokens, max_sequences, blocks_override)| EngineParameters {
            batched_tokens,
            max_sequences,
            blocks_override,
            ..EngineParameters::defaults(Engine::Vllm)
        },
    );
    proptest::option::of(given)
}

fn fleet_of(observation: impl Strategy<Value = TokenObservation<'static>>) -> impl Strategy<Value = Fleet> {
    let drawn = (prop_oneof![2 => Just(0_usize), 1 => 0_usize..3], 0_u32..6, 0_u32..4, parameters());
    let queue =
        (0_u64..200, 0_u64..1_000_000).prop_map(|(requests, bytes)| SchedulerQueue { requests, bytes });
    (vec(drawn, 0..4), vec(observation, 0..9), proptest::option::of(queue)).prop_map(
        |(drawn, replicas, queue)| {
            let build =
                |(name, (role, current, pending, _)): (&&'static str, &(usize, u32, u32, _))| TokenVariant {
                    role: ROLES[*role],
                    pending: Replicas::new(*pending),
                    ..variant(name, *current)
                };
            let variants = NAMES.iter().zip(&drawn).map(build).collect();
            let parameters = drawn.into_iter().map(|(_, _, _, parameters)| parameters).collect();
            Fleet { variants, parameters, replicas, queue }
        },
    )
}

fn fleet() -> impl Strategy<Value = Fleet> {
    fleet_of(observation())
}

/// Numbers no replica reports.
fn odd_observation() -> impl Strategy<Value = TokenObservation<'static>> {
    let number = || {
        prop_oneof![proptest::num::f64::ANY, Just(f64::MAX), Just(-1.0), Just(f64::INFINITY), Just(f64::NAN)]
    };
    let count = || prop_oneof![any::<i64>(), Just(i64::MAX)].prop_map(Tokens::new);
    let numbers = (number(), number(), number(), number());
    (observation(), numbers, count(), count(), any::<u32>()).prop_map(
        |(usual, (kv, prompt, output, prefix_hits), in_use, capacity, queue)| TokenObservation {
            kv,
            prompt,
            output,
            prefix_hits,
            in_use,
            capacity,
            queue,
            ..usual
        },
    )
}

fn near(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-9 * a.abs().max(b.abs()).max(1.0)
}

fn judgements(found: &Found) -> impl Iterator<Item = &Totals> {
    std::iter::once(&found.finding.total).chain(found.finding.roles.values())
}

proptest! {
    #![proptest_config(crate::tests::support::cases::quick())]

    #[test]
    fn nothing_is_required_and_spare_at_once(fleet in fleet(), compat in compat()) {
        for totals in judgements(&fleet.analyze_first(compat)) {
            prop_assert!(totals.required <= 0.0 || totals.spare <= 0.0, "{totals:?}");
        }
    }

    #[test]
    fn nothing_is_negative_or_without_end(
        fleet in fleet_of(odd_observation()),
        compat in compat(),
        requests in any::<u64>(),
        bytes in any::<u64>(),
    ) {
        let fleet = Fleet { queue: Some(SchedulerQueue { requests, bytes }), ..fleet };
        let mut knowledge = Knowledge::default();
        for _ in 0..2 {
            let found = fleet.analyze(&mut knowledge, &TokenPolicy::default(), compat, NOW);
            let Found { finding, .. } = &found;
            let totals = judgements(&found)
                .map(|totals| [totals.supply, totals.anticipated, totals.demand, totals.required, totals.spare]);
            let variants = finding.variants.iter();
            let variants = variants.map(|variant| [variant.per_replica, variant.demand, variant.total(), variant.utilisation()]);
            for value in totals.flatten().chain(variants.flatten()) {
                prop_assert!(value.is_finite() && value >= 0.0, "{found:?}");
            }
        }
    }

    #[test]
    fn more_in_the_schedulers_queue_never_requires_less(
        fleet in fleet(),
        compat in compat(),
        requests in 0_u64..500,
        bytes in 0_u64..1_000_000,
    ) {
        let less = fleet.queue.unwrap_or_default();
        let more = SchedulerQueue { requests: less.requests + requests, bytes: less.bytes + bytes };
        let (before, after) = (fleet.analyze_first(compat), Fleet { queue: Some(more), ..fleet }.analyze_first(compat));
        for (before, after) in judgements(&before).zip(judgements(&after)) {
            prop_assert!(after.required >= before.required && after.spare <= before.spare);
        }
    }

    /// Below the queue that makes usage the measure of capacity, and where capacity is shown.
    #[test]
    fn more_tokens_in_use_never_require_less(fleet in fleet(), compat in compat(), more in 0_i64..50_000) {
        let mut fleet = fleet;
        fleet.replicas.iter_mut().for_each(|replica| replica.queue = replica.queue.min(4));
        let before = fleet.analyze_first(compat);
        for replica in fleet.replicas.iter_mut().filter(|replica| replica.capacity > Tokens::ZERO) {
            replica.in_use = replica.in_use.plus(Tokens::new(more)).min(replica.capacity);
        }
        let after = fleet.analyze_first(compat);
        for (before, after) in judgements(&before).zip(judgements(&after)) {
            prop_assert!(after.required >= before.required && after.spare <= before.spare);
        }
    }

    #[test]
    fn the_order_of_replicas_does_not_matter(
        (fleet, shuffled) in fleet().prop_flat_map(|fleet| {
            let replicas = Just(fleet.replicas.clone()).prop_shuffle();
            (Just(fleet), replicas)
        }),
    ) {
        let shuffled = Fleet { replicas: shuffled, ..fleet.clone() };
        let (mut left, mut right) = (Knowledge::default(), Knowledge::default());
        let policy = TokenPolicy::default();
        let a = fleet.analyze(&mut left, &policy, Compat::Corrected, NOW);
        let b = shuffled.analyze(&mut right, &policy, Compat::Corrected, NOW);
        // Sums of floats are taken in input order: their last bits may differ.
        for (a, b) in judgements(&a).zip(judgements(&b)) {
            prop_assert!(near(a.supply, b.supply) && near(a.anticipated, b.anticipated) && near(a.demand, b.demand));
        }
        for (a, b) in a.finding.variants.iter().zip(&b.finding.variants) {
            let close = (a.per_replica - b.per_replica).abs() <= 1.0;
            prop_assert!(close && a.replicas == b.replicas && a.reason == b.reason && near(a.demand, b.demand));
        }
        let (mut a, mut b) = (a.replicas, b.replicas);
        a.sort();
        b.sort();
        prop_assert_eq!(a, b);
        prop_assert_eq!(&left.histories, &right.histories);
        // Records of one variant on two kinds of accelerators are no case of the product's.
        let numbers = |all: &Knowledge| all.records.values().map(|record| record.effective).collect::<Vec<_>>();
        prop_assert_eq!(numbers(&left), numbers(&right));
    }

    #[test]
    fn tokens_counted_in_another_unit_give_the_same_answer_in_that_unit(
        fleet in fleet(),
        compat in compat(),
        factor in 2_i64..50,
    ) {
        let mut fleet = fleet;
        fleet.parameters.fill(None);
        // One bucket before and after: its borders are in tokens.
        fleet.replicas.iter_mut().for_each(|replica| replica.output += 500.0);
        // June drops the fraction of a prompt before it multiplies.
        fleet.replicas.iter_mut().for_each(|replica| replica.prompt = replica.prompt.trunc());
        let enlarge = |replica: &mut TokenObservation<'_>, times: u32| {
            replica.in_use = replica.in_use.times(times);
            replica.capacity = replica.capacity.times(times);
        };
        // Of the one token that a full replica may hold, another one's share is truncated to no capacity: its demand would not count.
        fleet.replicas.iter_mut().for_each(|replica| enlarge(replica, 1_000));
        let mut scaled = fleet.clone();
        let times = u32::try_from(factor).unwrap_or(1);
        for replica in &mut scaled.replicas {
            enlarge(replica, times);
            replica.prompt *= f64::from(times);
            replica.output *= f64::from(times);
        }
        let bytes = |queue: SchedulerQueue| queue.bytes * u64::from(times);
        scaled.queue = fleet.queue.map(|queue| SchedulerQueue { bytes: bytes(queue), ..queue });
        let (before, after) = (fleet.analyze_first(compat), scaled.analyze_first(compat));
        for (before, after) in judgements(&before).zip(judgements(&after)) {
            // Each of at most 40 replicas and of those that start loses less than two tokens to truncation.
            let slack = 200.0 * f64::from(times);
            let same = |a: f64, b: f64| (a * f64::from(times) - b).abs() <= slack + 1e-9 * b.abs();
            prop_assert!(same(before.supply, after.supply), "{before:?} {after:?}");
            prop_assert!(same(before.anticipated, after.anticipated), "{before:?} {after:?}");
            prop_assert!(same(before.demand, after.demand), "{before:?} {after:?}");
        }
    }

    #[test]
    fn a_second_analysis_and_a_written_memory_change_nothing(fleet in fleet(), next in fleet()) {
        let (mut knowledge, policy) = (Knowledge::default(), TokenPolicy::default());
        let first = fleet.analyze(&mut knowledge, &policy, Compat::Corrected, NOW);
        let known = knowledge.clone();
        prop_assert_eq!(first, fleet.analyze(&mut knowledge, &policy, Compat::Corrected, NOW));
        prop_assert_eq!(&known, &knowledge);
        let text = serde_json::to_string(&knowledge).unwrap();
        let mut restored: Knowledge = serde_json::from_str(&text).unwrap();
        let later = NOW + SignedDuration::from_secs(30);
        let (a, b) = (
            next.analyze(&mut knowledge, &policy, Compat::Corrected, later),
            next.analyze(&mut restored, &policy, Compat::Corrected, later),
        );
        prop_assert_eq!(a, b);
    }

    #[test]
    fn the_answer_turns_where_it_is_said_to(fleet in fleet(), compat in compat()) {
        let finding = fleet.analyze_first(compat).finding;
        let scopes = finding.roles.iter().map(|(role, totals)| (Some(*role), *totals));
        for (role, totals) in scopes.chain([(None, finding.total)]) {
            let at = |demand: f64| Totals { demand, ..totals }.apply_thresholds(0.85, 0.70);
            let turning = finding.turning_points(role, 0.85, 0.70);
            let above = turning.required_above.unwrap();
            prop_assert!(at(above + 1.0).required > 0.0 && at((above - 1.0).max(0.0)).required <= 0.0);
            let of_role = finding.variants.iter().filter(|variant| role.is_none_or(|role| variant.role == role));
            let serving = of_role.filter(|variant| variant.replicas > Replicas::ZERO && variant.per_replica > 0.0);
            let smallest = serving.map(|variant| variant.per_replica).min_by(f64::total_cmp);
            prop_assert_eq!(smallest.is_some(), turning.spare_below.is_some());
            if let (Some(worth), Some(below)) = (smallest, turning.spare_below) {
                prop_assert!(at(below + 1.0).spare < worth && at((below - 1.0).max(0.0)).spare >= worth - 1e-6);
            }
        }
    }
}
