//! Scenario files: those of the repository are valid, errors name their line, and the checked-in schema is up to date.

use std::path::{Path, PathBuf};

use serde_json::Value;
use wva::simulate::{Plan, TraceOverride, file, plans};
use wva_sim::{Arrivals, ClientPatience, PodFault, PrefixCache, Scenario, SizeSpread};

use crate::record::material::Folder;

pub(super) fn scenarios() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scenarios/sim")
}

fn all(path: &Path) -> Result<Vec<Plan>, String> {
    plans(path, &TraceOverride::default()).map_err(|error| error.to_string())
}

fn one(text: &str) -> Result<Scenario, String> {
    let folder = Folder::new();
    let path = folder.file("one.yaml", text.as_bytes());
    let plans = all(&path).map_err(|error| error.replace(&*path.to_string_lossy(), "one.yaml"))?;
    Ok(plans[0].scenario(1))
}

/// Two variants, so that the second one can be wrong.
const GOOD: &str = "\
about: a test
load:
  tokens: {prompt: 4000, output: 1000}
  rate:
  - {rps: 2, for: 5m}
  - rps: 10
    for: 12m
variants:
- {name: a, physics: {preset: h100-8b-tp1}}
- name: b
  physics: {preset: h100-8b-tp2}
  min: 1
  max: 10
";

#[test]
fn every_scenario_of_the_repository_is_valid() {
    let mut count = 0;
    for entry in scenarios().read_dir().unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy();
        if name.starts_with("azure") || name.starts_with("diurnal") {
            let error = all(&path).unwrap_err();
            assert!(error.ends_with("no trace file: give --trace FILE, or set `file` here"), "{error}");
            continue;
        }
        count += all(&path).unwrap().len();
    }
    assert!(count > 80, "{count}");
}

#[test]
fn every_field_of_a_file_reaches_the_scenario() {
    let text = format!(
        "{GOOD}  replicas: 3\n  startUp: 40s\n  cost: 2\nscrape: {{interval: 15s, loss: 0.1}}\nslo: {{ttft: 3s}}\ngrace: 2m\n"
    );
    let scenario = one(&text).unwrap();
    assert_eq!(scenario.duration.as_secs(), 17 * 60);
    let [first, second] = &scenario.variants[..] else { panic!("{scenario:?}") };
    assert_eq!((first.replicas.get(), second.replicas.get()), (1, 3));
    assert_eq!((second.start_up.mean.as_secs(), second.cost.get()), (40, 2.0));
    assert_eq!((scenario.scrape.interval.as_secs(), scenario.scrape.loss.get()), (15, 0.1));
    assert_eq!(
        (scenario.slo.ttft.as_secs(), scenario.slo.itl.as_millis(), scenario.grace_period.as_secs()),
        (3, 100, 120)
    );
    let Arrivals::Rate { load, .. } = &scenario.arrivals else { panic!("{scenario:?}") };
    assert!((load.rate_at(std::time::Duration::from_secs(600)) - 10.0).abs() < 1e-9);
}

#[test]
fn an_error_names_line_field_and_range() {
    for (from, to, expected) in [
        ("rps: 2,", "rps: -2,", "one.yaml:5:11: load.rate[0].rps: -2 is out of range: must be 0 to 100000"),
        (
            "rps: 10",
            "rps: ten",
            "one.yaml:6:10: load.rate[1].rps: \"ten\" is not a number: must be a number, 0 to 100000",
        ),
        (
            "for: 12m",
            "for: 12",
            "one.yaml:7:10: load.rate[1].for: 12 has no unit: must be 100ms to 8784h, such as 90s, 10m or 1h30m",
        ),
        ("for: 12m", "lasts: 12m", "one.yaml:7:5: load.rate[1].lasts: unknown field `lasts`"),
        (
            "  max: 10",
            "  max: 0",
            "one.yaml:13:8: variants[1].max: 0 is out of range: must be a whole number, 1 to 10000",
        ),
        ("  min: 1", "  min: 11", "one.yaml:12:8: variants[1].min: 11 is more than max, 10"),
        (
            "preset: h100-8b-tp2",
            "preset: h200",
            "one.yaml:11:12: variants[1].physics: no preset \"h200\": must be one of a100-",
        ),
        ("name: b", "name: a", "one.yaml:10:9: variants[1].name: \"a\" is the name of another variant, too"),
        ("  tokens: {prompt: 4000, output: 1000}", "", "one.yaml:4:3: load: needs `tokens`"),
        (
            "output: 1000}",
            "output: 1000, cv: 2, spread: 0.1}",
            "one.yaml:3:11: load.tokens: set at most one of `spread`, `cv` and `large`",
        ),
        ("about: a test", "about: [", "one.yaml:"),
        ("load:", "lood:", "one.yaml:2:1: lood: unknown field `lood`"),
    ] {
        assert!(GOOD.contains(from), "{from}");
        let error = one(&GOOD.replacen(from, to, 1)).unwrap_err();
        assert!(error.starts_with(expected), "{to}\n  {error}\n  {expected}");
    }
    let error = one("load: {tokens: {prompt: 1, output: 1}}\nvariants: []\n").unwrap_err();
    assert_eq!(error, "one.yaml:1:7: load: needs `rate` or `trace`");
    assert!(one("just text").unwrap_err().starts_with("one.yaml:1:1: "), "{}", one("just text").unwrap_err());
}

#[test]
fn a_variation_changes_what_it_names_and_nothing_else() {
    let folder = Folder::new();
    folder.file("base.yaml", GOOD.as_bytes());
    let vary = "\
of: [base.yaml]
vary:
- {name: as it is}
- {name: worse, startUp: 240s, slower: 1.5, kv: 0.5, load: 2, sizes: {cv: 2}, scrape: {loss: 0.3}, replicas: 2}
- {name: cached, prefixHits: 0.5, tokensPerStep: 2.5, hpa: {noBehavior: true}, victims: leastLoaded}
";
    let plans = all(&folder.file("set.yaml", vary.as_bytes())).unwrap();
    let names: Vec<_> = plans.iter().map(|plan| plan.name.as_str()).collect();
    assert_eq!(names, ["base, as it is", "base, worse", "base, cached"]);
    let [same, worse, cached] = [0, 1, 2].map(|index: usize| plans[index].scenario(1));
    let base = one(GOOD).unwrap();
    assert_eq!(Scenario { name: base.name.clone(), ..same }, base);
    assert_eq!(worse.variants[0].start_up.mean.as_secs(), 240);
    assert_eq!(worse.variants[0].physics.kv_tokens, 240_000);
    assert!((worse.variants[0].physics.base_s - 1.5 * base.variants[0].physics.base_s).abs() < 1e-12);
    assert_eq!(worse.sizes[0].sizes.spread, SizeSpread::LogNormal(2.0));
    assert_eq!((worse.variants[1].replicas.get(), worse.scrape.loss.get()), (2, 0.3));
    let Arrivals::Rate { load, .. } = &worse.arrivals else { panic!("{worse:?}") };
    assert!((load.rate_at(std::time::Duration::ZERO) - 4.0).abs() < 1e-9);
    assert_eq!((cached.prefix_hits.get(), cached.hpa.behavior), (0.5, None));
    let error = all(&folder.file("loop.yaml", b"of: [set.yaml]\n")).unwrap_err();
    assert!(error.contains("loop.yaml:1:6: of[0]: set.yaml: must be a scenario"), "{error}");
}

#[test]
fn a_random_scenario_is_the_seeds_and_stays_in_the_files_ranges() {
    let plan = &all(&scenarios().join("random.yaml")).unwrap()[0];
    assert_eq!(plan.scenario(7), plan.scenario(7));
    assert_ne!(plan.scenario(7).variants, plan.scenario(8).variants);
    for seed in 0..200 {
        let scenario = plan.scenario(seed);
        let variant = &scenario.variants[0];
        assert!((40..=240).contains(&variant.start_up.mean.as_secs()), "{variant:?}");
        assert!((288_000..=672_000).contains(&variant.physics.kv_tokens), "{variant:?}");
        assert_eq!(scenario.duration.as_secs(), 3600);
    }
}

#[test]
fn faults_clients_and_caches_reach_the_scenario() {
    let text = format!(
        "{GOOD}  faults: [{{crashing: {{every: 10m, pods: 1}}}}, {{blinking: {{every: 2m, lasts: 30s, pods: 2}}}}]\n  \
         rough: {{expertSeconds: 0.01, expertShare: 0.03}}\n\
         prefixCache: {{warmAfter: 300, spread: 0.5}}\nclients: {{timeout: 30s, retries: 2}}\n"
    );
    let scenario = one(&text).unwrap();
    let seconds = std::time::Duration::from_secs;
    let crashing = PodFault::Crashing { every: seconds(600), pods: 1 };
    let blinking = PodFault::Blinking { every: seconds(120), lasts: seconds(30), pods: 2 };
    assert_eq!(scenario.variants[1].pod_faults, [crashing, blinking]);
    assert!((scenario.variants[1].deviations.experts_s - 0.01).abs() < 1e-12);
    assert_eq!(scenario.prefix_cache, PrefixCache { warm_after: 300.0, spread: 0.5 });
    let clients = ClientPatience { timeout: seconds(30), retries: 2, backoff: seconds(1) };
    assert_eq!(scenario.clients, Some(clients));
}

#[test]
fn drawn_hardware_is_of_a_family_and_its_requests_are_in_their_ranges() {
    let plan = &all(&scenarios().join("families.yaml")).unwrap()[0];
    for seed in 1..40 {
        let scenario = plan.scenario(seed);
        let sizes = scenario.sizes[0].sizes;
        assert!(
            (100.0..=4000.0).contains(&sizes.prompt) && (50.0..=1500.0).contains(&sizes.output),
            "{sizes:?}"
        );
        let variant = &scenario.variants[0];
        assert!((1.25e-3..=4.4e-2).contains(&variant.physics.base_s), "{variant:?}");
        assert!((20..=600).contains(&variant.start_up.mean.as_secs()), "{variant:?}");
    }
}

#[test]
fn the_checked_in_schema_is_that_of_the_types() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/scenario.schema.json");
    let checked_in: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    assert!(
        checked_in == file::schema(),
        "out of date; run: wva simulate schema > docs/scenario.schema.json"
    );
}
