//! `wva simulate` as a person types it.

use std::path::PathBuf;

use crate::record::material::{Folder, Said, wva};

/// A quarter of an hour in which one replica becomes two.
const SMALL: &str = "\
about: a small <step>
load:
  tokens: {prompt: 1000, output: 100}
  rate: [{rps: 8, for: 5m}, {rps: 24, for: 10m}]
variants: [{name: a, physics: {preset: h100-8b-tp1}, startUp: 40s, max: 4}]
";

struct Fixture {
    folder: Folder,
    scenario: PathBuf,
}

impl Fixture {
    fn new() -> Self {
        let folder = Folder::new();
        let scenario = folder.file("small.yaml", SMALL.as_bytes());
        Self { folder, scenario }
    }

    /// Runs `wva simulate` on the scenario with `arguments`, separated by spaces.
    fn simulate(&self, arguments: &str) -> Said {
        let scenario = ["simulate", self.scenario.to_str().unwrap()];
        wva(&scenario.into_iter().chain(arguments.split_whitespace()).collect::<Vec<_>>())
    }
}

#[test]
fn json_has_one_object_for_each_policy_and_seed_with_every_figure() {
    let arguments = "--policy wva-v1 --policy static:2 --policy keda-epp --seeds 2 --output json";
    let fixture = Fixture::new();
    let output = fixture.simulate(arguments);
    assert_eq!(output.code, 0, "{}", output.err);
    let runs = output.json();
    let runs = runs.as_array().unwrap();
    let names = runs.iter().map(|run| (run["policy"].as_str().unwrap(), run["seed"].as_u64().unwrap()));
    let expected =
        [("wva-v1", 1), ("wva-v1", 2), ("static:2", 1), ("static:2", 2), ("keda-epp", 1), ("keda-epp", 2)];
    assert_eq!(names.collect::<Vec<_>>(), expected);
    let figures = "cost_avg replicas_avg ttft_p50_s ttft_p95_s ttft_p99_s itl_p99_s errors changes flips \
                   slo_attainment gpu_hours";
    for run in runs {
        assert_eq!(run["scenario"], "small");
        for figure in figures.split(' ') {
            let value = run[figure].as_f64().unwrap_or_else(|| panic!("{figure}: {run}"));
            assert!(value >= 0.0, "{figure}: {run}");
        }
    }
    assert!((runs[2]["replicas_avg"].as_f64().unwrap() - 2.0).abs() < 0.2, "{}", runs[2]);
    assert_eq!(output.out, fixture.simulate(arguments).out, "the same command gives the same bytes");
}

#[test]
fn the_table_has_a_line_for_each_policy_with_the_worst_in_brackets() {
    let output = Fixture::new().simulate("--policy static:1 --policy static:3 --seeds 2");
    let lines: Vec<&str> = output.out.lines().collect();
    assert_eq!(lines[0], "small: a small <step> (2 seeds; mean, worst in brackets)");
    assert!(lines[1].trim_start().starts_with("POLICY"), "{}", output.out);
    assert!(lines[2].starts_with("  static:1") && lines[2].contains("1.00 (1.00)"), "{}", output.out);
    assert!(lines[3].starts_with("  static:3") && lines[3].contains(" %"), "{}", output.out);
    assert!(output.err.is_empty(), "no bar where there is no terminal: {}", output.err);
}

#[test]
fn a_warm_spare_has_a_price_and_a_use() {
    let output = Fixture::new().simulate("--policy static:1 --seeds 1 --what-if spare=1");
    assert_eq!(output.code, 0, "{}", output.err);
    assert!(output.out.contains("  static:1+spare=1 "), "{}", output.out);
    assert!(
        output.out.contains("static:1: 1 spare for 0.99 an hour, 0.0 more requests an hour within "),
        "{}",
        output.out
    );
    let wrong = Fixture::new().simulate("--what-if spares=1");
    assert!(wrong.code == 2 && wrong.err.contains("as spare=1"), "{}", wrong.err);
}

#[test]
fn the_page_needs_nothing_but_itself() {
    let output = Fixture::new().simulate("--policy static:1 --policy static:2 --seeds 1 --output html");
    let page = &output.out;
    assert!(page.starts_with("<!doctype html>"), "{}", output.err);
    let plots = ["Requests a second", "Replicas ready", "Requests waiting", "Time to first token"];
    for needed in plots.into_iter().chain(["<svg", "<caption>", "static:2"]) {
        assert!(page.contains(needed), "{needed}");
    }
    for foreign in ["<script", "http://", "https://", "<link", "<img", "@import", "<step>"] {
        assert!(!page.contains(foreign), "{foreign}");
    }
    assert!(page.contains("a small &lt;step&gt;"));
    assert!(page.len() < 200_000, "{}", page.len());
    for tag in ["section", "table", "svg", "figure", "p", "tr", "td", "span"] {
        let [open, close] = [format!("<{tag}"), format!("</{tag}>")].map(|tag| page.matches(&tag).count());
        assert!(open >= close && close > 0, "{tag}: {open} {close}");
    }
}

#[test]
fn capacity_says_what_a_replica_carries_and_what_a_token_costs() {
    let fixture = Fixture::new();
    let path = fixture.scenario.to_str().unwrap();
    let output = wva(&["simulate", "capacity", path, "-o", "json"]);
    assert_eq!(output.code, 0, "{}", output.err);
    let found = output.json()[0].clone();
    let [within, full] = ["rps_within_slo", "rps_at_full_load"].map(|field| found[field].as_f64().unwrap());
    assert!(within > 0.3 * full && within < 1.1 * full, "{found}");
    let price = found["cost_per_million_tokens"].as_f64().unwrap();
    assert!((price - 1e6 / (within * 3600.0 * 1100.0)).abs() < 1e-9, "{found}");
    assert!(wva(&["simulate", "capacity", path]).out.starts_with("SCENARIO  VARIANT  PROMPT/OUTPUT"));
}

#[test]
fn what_cannot_be_simulated_is_told_with_the_next_step() {
    let fixture = Fixture::new();
    let broken = fixture.folder.file("broken.yaml", b"load:\n  rate: [{rps: x, for: 5m}]\nvariants: []\n");
    let policy = fixture.folder.file("bold.yaml", b"global: {default: {saturation: {kvSpareTigger: 1}}}");
    let broken = wva(&["simulate", broken.to_str().unwrap()]);
    for (output, message) in [
        (wva(&["simulate", "no-such.yaml"]), "no-such.yaml: No such file"),
        (broken, "broken.yaml:2:16: load.rate[0].rps: \"x\" is not a number"),
        (fixture.simulate("--policy raet"), "--policy raet: no such policy and no such file"),
        (fixture.simulate("--policy static:-1"), "must be a whole number of replicas"),
        (fixture.simulate("--trace none.csv"), "none.csv: No such file"),
        (fixture.simulate(&format!("--policy {}", policy.display())), "kvSpareTigger"),
        (wva(&["simulate"]), "SCENARIO"),
    ] {
        assert_eq!(output.code, 2, "{message}: {}", output.err);
        assert!(output.err.contains(message), "{message}: {}", output.err);
    }
}

#[test]
fn a_policy_file_is_a_policy_by_its_name() {
    let fixture = Fixture::new();
    let policy = fixture.folder.file("bold.yaml", b"global: {default: {saturation: {kvSpareTrigger: 0.3}}}");
    let output = fixture.simulate(&format!("--policy {} --seeds 1 --output json", policy.display()));
    assert_eq!(output.json()[0]["policy"], "bold", "{}", output.err);
}

#[test]
fn the_help_teaches_by_examples() {
    let help = wva(&["simulate", "--help"]).out;
    let options =
        ["--seeds 10", "--trace azure", "--what-if spare=1"].map(|option| format!("mine.yaml {option}"));
    for example in options.iter().map(String::as_str).chain(["wva simulate capacity", "calibrate"]) {
        assert!(help.contains(example), "{example}: {help}");
    }
    let presets = wva(&["simulate", "physics"]).out;
    assert!(presets.contains("h100-8b-tp1:") && presets.contains("source:"), "{presets}");
}

#[test]
fn the_arena_says_what_is_left_out_and_what_its_trace_must_be() {
    let arena = wva(&["simulate", "arena", "--seeds", "1"]);
    assert!(
        arena.err.contains("left out: the golden six and trace-start need requests of a trace"),
        "{}",
        arena.err
    );
    assert!(arena.out.contains("\nall 7\n") && !arena.out.contains("golden 6"), "{}", arena.out);
    for words in ["static-4 ", "reactive ", "rate, HPA every 3 s ", "× STATIC-4", "cloudai-mpc"] {
        assert!(arena.out.contains(words), "{words}: {}", arena.out);
    }
    let missing = wva(&["simulate", "arena", "--traces", "no-such-folder"]);
    assert!(missing.err.contains("it must hold azure_llm_2023_code.csv.gz"), "{}", missing.err);
}
