//! `wva simulate calibrate` as a person types it.

use super::traces::public;
use crate::record::material::{Folder, wva};

/// What a server with a step of 8 ms + 50 µs a prompt token + 200 µs a request + 100 ns a token held measures.
fn table() -> String {
    let mut text = String::from(
        "model,hardware,prompt_size,batch_size,token_size,prompt_time,token_time,e2e_time,tensor_parallel\n",
    );
    for (prompt, batch) in
        [(512, 1), (4096, 1), (8192, 1), (512, 8), (512, 32), (128, 1), (4096, 4), (1024, 64)]
    {
        let (p, b) = (f64::from(prompt), f64::from(batch));
        let step = 8.0 + 0.2 * b + 1e-4 * b * (p + 64.0);
        let first = 8.0 + 0.05 * p + 0.2 + 1e-4 * p;
        let whole = first + 128.0 * step;
        text += &format!("m,h,{prompt},{batch},128,{first},{step},{whole},2\n");
    }
    text
}

#[test]
fn measurements_become_physics_that_a_scenario_takes() {
    let folder = Folder::new();
    let table = folder.file("t.csv", table().as_bytes());
    let words = ["simulate", "calibrate", table.to_str().unwrap()];
    let output = wva(&words);
    assert_eq!(output.code, 0, "{}", output.err);
    assert!(output.out.starts_with("h-m-tp2 (8 combinations of sizes)\n  an empty step"), "{}", output.out);
    for error in ["error, first token", "error, between tokens"] {
        assert!(output.out.contains(error), "{}", output.out);
    }
    let found = wva(&[&words[..], &["--output", "json"]].concat()).json();
    let found = &found["h-m-tp2"];
    for (field, truth) in [
        ("stepSeconds", 8e-3),
        ("promptTokenSeconds", 5e-5),
        ("sequenceSeconds", 2e-4),
        ("kvTokenSeconds", 1e-7),
    ] {
        let value = found[field].as_f64().unwrap();
        assert!((value / truth - 1.0).abs() < 0.05, "{field}: {value}");
    }
    for error in ["itlError", "ttftError"] {
        assert!(found[error].as_f64().unwrap() < 0.01, "{found}");
    }

    let yaml = wva(&[&words[..], &["--output", "yaml", "--kv-tokens", "480000"]].concat()).out;
    let entry: std::collections::BTreeMap<String, serde_json::Value> = serde_saphyr::from_str(&yaml).unwrap();
    let scenario = format!(
        "load: {{tokens: {{prompt: 100, output: 10}}, rate: [{{rps: 1, for: 1m}}]}}\nvariants: [{{name: a, physics: {}}}]\n",
        entry["h-m-tp2"]
    );
    let scenario = folder.file("s.yaml", scenario.as_bytes());
    let output = wva(&["simulate", scenario.to_str().unwrap(), "--policy", "static:1", "--seeds", "1"]);
    assert_eq!(output.code, 0, "{}", output.err);
}

#[test]
#[ignore = "needs public traces: WVA_TRACES=FOLDER cargo test --test it simulate -- --ignored"]
fn the_measured_tables_are_described_to_a_third_in_ttft_and_a_tenth_in_itl() {
    for (table, name, ttft, itl) in [
        ("perf_llama31_8b_a100_tp2.csv.gz", "a100-80gb-llama-3-1-8b-tp2", 0.35, 0.10),
        ("perf_llama2_70b_bloom.csv.gz", "h100-80gb-llama2-70b-tp8", 0.25, 0.10),
    ] {
        let path = public(table);
        let found = wva(&["simulate", "calibrate", path.to_str().unwrap(), "-o", "json"]).json();
        let error = |field: &str| found[name][field].as_f64().unwrap();
        assert!(error("ttftError") < ttft && error("itlError") < itl, "{name}: {}", found[name]);
    }
}

#[test]
fn a_table_that_cannot_be_used_is_named_with_its_line() {
    let folder = Folder::new();
    let wrong = folder.file("t.csv", format!("{}m,h,512,1,128,0,1,1,2\n", table()).as_bytes());
    let output = wva(&["simulate", "calibrate", wrong.to_str().unwrap()]);
    assert_eq!(output.code, 2);
    let message = "t.csv:10: prompt_time \"0\" is out of range: must be above 0";
    assert!(output.err.contains(message), "{}", output.err);
    let other = folder.file("o.csv", b"a,b\n1,2\n");
    let output = wva(&["simulate", "calibrate", other.to_str().unwrap()]);
    assert!(output.err.contains("o.csv:1: no column prompt_size"), "{}", output.err);
}
