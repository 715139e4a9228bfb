//! The page `docs/signals.md`: which signals each analyzer needs, and the names that each engine gives them. Generated from the tables
//! that the program uses.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use wva_core::model::{Analyzer, Bounds, Role, ScaleToZero, TargetRef, Variant, VariantId};
use wva_core::snapshot::Signal;
use wva_core::units::{Cost, Replicas, Seconds};
use wva_core::{Policy, required_signals};

use super::signals::{self, MetricKind, MetricName};

const HEAD: &str = "# Signals

Which signals each analyzer reads, and the names that each engine gives them. Generated from the tables that the program uses:
`wva signals > docs/signals.md`.

A signal that a pod does not export is not read; it never counts as 0. If a number is held because metrics are missing, look here:
every series in the analyzer's column has to arrive from every pod, through scrape configuration, relabelling and recording rules.

## By analyzer

*Needed*: without this signal, a pod counts as not measured. *Used*: read if present, by this analyzer, its fallback or the guards
above all analyzers.

*Several variants*: additionally read where a model has several variants. *Scale to zero*: additionally read where all of them may
go to zero. The scheduler's signals are read where there is a scheduler.

";

const NAMES: &str = "
## By engine

Where several names are listed, the first one that an engine exports counts; older names are those of earlier versions. `x_sum` and
`x_count` are the two series of the histogram `x`, and both are needed. A counter that an engine splits by labels (`is_streaming`,
`priority`) is summed. Each `dp_rank` is an engine of its own, and so is each value of `engine`.

";

const TAIL: &str = "
The size of the cache is in the labels of `vllm:cache_config_info`: `kv_cache_size_tokens`, else `num_gpu_blocks` × `block_size`. An
engine that sleeps (`sleep_state=\"awake\"` is 0) is not read meanwhile: it is neither capacity nor idle capacity.
";

/// The page.
#[must_use]
pub fn signals_page() -> String {
    let mut page = HEAD.to_owned();
    let columns: Vec<BTreeSet<Signal>> =
        Analyzer::ALL.into_iter().map(|analyzer| read_by(analyzer, 1, false)).collect();
    let additional = |variants, may_be_zero| -> BTreeSet<Signal> {
        let of_analyzer =
            |analyzer: &Analyzer| &read_by(*analyzer, variants, may_be_zero) - &read_by(*analyzer, 1, false);
        Analyzer::ALL.iter().flat_map(of_analyzer).collect()
    };
    let additional = [additional(2, false), additional(1, true)];
    let names = Analyzer::ALL.iter().map(|analyzer| format!("`{}`", analyzer.as_str()));
    row(&mut page, "signal", names.chain(["several variants", "scale to zero"].map(str::to_owned)));
    row(&mut page, "---", columns.iter().chain(&additional).map(|_| "---".to_owned()));
    for signal in Signal::ALL {
        let use_of = |(analyzer, read): (&Analyzer, &BTreeSet<Signal>)| match read.contains(&signal) {
            true if analyzer.needed(Role::Both).has(signal) => "needed",
            true => "used",
            false => "",
        };
        let additional_use =
            additional.iter().map(|signals| if signals.contains(&signal) { "used" } else { "" });
        let uses = Analyzer::ALL.iter().zip(&columns).map(use_of).chain(additional_use);
        row(&mut page, &code(signal), uses.map(str::to_owned));
    }
    page.push_str(NAMES);
    let engines = ["vLLM", "older vLLM", "SGLang", "scheduler", "older scheduler"].map(str::to_owned);
    row(&mut page, "signal", engines.iter().cloned());
    row(&mut page, "---", engines.iter().map(|_| "---".to_owned()));
    for signal in Signal::ALL {
        let names = signals::names(signal);
        let column = |prefix: &str| {
            names.iter().copied().filter(|name| name.text.starts_with(prefix)).collect::<Vec<_>>()
        };
        let (vllm, scheduler) = (column("vllm:"), column("llm_d_epp_"));
        let newest = vllm.iter().map(|name| name.generation).min();
        let (current, older): (Vec<_>, Vec<_>) =
            vllm.into_iter().partition(|name| Some(name.generation) == newest);
        let cells = [current, older, column("sglang:"), scheduler, column("inference_extension_")];
        row(&mut page, &code(signal), cells.iter().map(|names| cell(names)));
    }
    page.push_str(TAIL);
    page
}

/// The signals that are read for an analyzer and a model with this number of variants, which may go to zero or not.
fn read_by(analyzer: Analyzer, variants: usize, may_be_zero: bool) -> BTreeSet<Signal> {
    let variant = Variant {
        id: VariantId::new("", ""),
        model: "".into(),
        target: TargetRef { kind: "".into(), name: "".into() },
        cost: Cost::default(),
        bounds: Bounds { min: if may_be_zero { Replicas::ZERO } else { Replicas::ONE }, ..Bounds::default() },
        accelerator: None,
        role: Role::Both,
    };
    let mut policy = Policy::default();
    policy.global.default.analyzer = analyzer;
    policy.global.default.scale_to_zero =
        may_be_zero.then(|| ScaleToZero { enabled: true, retention: Seconds::whole(600) });
    let mut signals = required_signals(&policy, std::iter::repeat_n(&variant, variants)).signals;
    signals.insert(Signal::Asleep);
    signals
}

fn row(page: &mut String, first: &str, cells: impl Iterator<Item = String>) {
    let cells: Vec<String> = cells.collect();
    // Writing to a string cannot fail.
    let _ = writeln!(page, "| {first} | {} |", cells.join(" | "));
}

/// The name of a signal in recordings and snapshots.
fn code(signal: Signal) -> String {
    let name = serde_json::to_value(signal).ok();
    format!("`{}`", name.as_ref().and_then(serde_json::Value::as_str).unwrap_or_default())
}

fn cell(names: &[&MetricName]) -> String {
    let series = names.iter().map(|name| match name.kind.required_label() {
        Some((label, value)) => format!("`{}{{{label}=\"{value}\"}}`", name.text),
        None if name.kind == MetricKind::CacheConfig => format!("`{}` (labels)", name.text),
        None => format!("`{}`", name.text),
    });
    series.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_in_docs_is_the_generated_one() {
        let page = include_str!("../../docs/signals.md");
        assert!(page == signals_page(), "run: wva signals > docs/signals.md");
    }

    #[test]
    fn every_analyzer_needs_something_and_every_signal_has_a_name() {
        assert!(Analyzer::ALL.into_iter().all(|analyzer| read_by(analyzer, 1, false).len() > 2));
        assert!(Signal::ALL.into_iter().all(|signal| !signals::names(signal).is_empty()));
    }
}
