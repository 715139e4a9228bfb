//! The page `docs/signals.md`: which signals each analyzer needs, and the names that each engine gives them. Generated from the tables
//! that the program uses.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use wva_core::model::{Analyzer, Bounds, Role, ScaleToZero, TargetRef, Variant, VariantId};
use wva_core::snapshot::Signal;
use wva_core::units::{Replicas, Seconds};
use wva_core::{Policy, required_signals};

use super::signals::{self, Exporter, MetricKind, MetricName};

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

const BY_ENGINE: &str = "
## By engine

Where several series are listed, older names are those of earlier versions. Of several that an engine exports, the one with the newer
sample counts, else the first. `x_sum` and `x_count` are the two series of the histogram `x`; both are needed, and both are read under
the same name. A metric that an engine splits by labels (`is_streaming`, `priority`, `method`) is summed; of cache usages, the highest
counts. Each `dp_rank` is an engine of its own, and so is each value of `engine`.

A signal that a table lacks is not exported by this engine, or only with another meaning: it is unknown, never 0. Which analyzers an
engine suffices for is in the table above.
";

/// What is not in the tables, and why.
const OTHERS: &str = "
### NVIDIA Dynamo

A worker passes its engine's own metrics on, under the names above. Of Dynamo's own metrics none is read.
`dynamo_component_gpu_cache_usage_percent` is 0 until the engine publishes its statistics, which some never do, so that 0 may mean
unknown. `dynamo_component_inflight_requests` counts running and waiting requests together. The frontend's
`dynamo_frontend_queued_requests` contains requests that an engine already computes, and
`dynamo_frontend_router_queue_pending_requests` names no model.

### Triton

Of its TensorRT-LLM backend no metric is read. `nv_trt_llm_request_metrics{request_type=\"waiting\"}` is the number of active requests
minus the scheduled ones. It does not contain the requests that wait in front of them, is -1 when idle, and 0 until it is written: a
saturated server could look as if nothing waited, and would lose replicas. Without waiting requests, the other series suffice for no
analyzer. What another backend passes on of its engine's metrics, under the names above, is read.

### Recording rules of the first WVA

The architecture page of WVA up to 0.3 queries recording rules, of which none is read. `vllm_queue_depth` repeats what vLLM exports
itself, without its engine and at other times, so it would count as a second engine or replace newer values. `vllm_cache_usage` is
called a percentage and computed with as with a share: 0.9 % would look like a full cache. `vllm_requests_total` does not say whether
requests have begun or finished. Record vLLM's own names instead, with all their labels.
";

/// What the names alone do not say.
const fn note(exporter: Exporter) -> &'static str {
    match exporter {
        Exporter::Vllm => {
            "The size of the cache is in the labels of `vllm:cache_config_info`: `kv_cache_size_tokens`, else `num_gpu_blocks` ×
`block_size`. An engine that sleeps (`sleep_state=\"awake\"` is 0) is not read meanwhile: it is neither capacity nor idle capacity. The
model is the label `model_name`. Requests refused because a queue is full (`--max-num-queued-reqs`, `--max-num-queued-tokens`) are summed
by `reason`. That counter is the server's and names no engine, so that the data-parallel engines of a server share it equally."
        }
        Exporter::Sglang => {
            "It counts tokens when a request ends. Its prefix-cache counters would have to be summed by source first, so they are not read.
The model is the label `model_name`."
        }
        Exporter::TensorRtLlm => {
            "It exports queue and cache metrics if `enable_iter_perf_stats` is set, and the others if `return_perf_metrics` is: set both. The
model is the label `model_name`. It counts tokens and first tokens when a request ends, as SGLang counts tokens.
`trtllm_time_per_output_token_seconds` has one mean for each request instead of each gap between tokens, so it is not read.

`trtllm_num_requests_running` counts all requests that the engine has accepted, also those that no iteration has scheduled yet. It
says how many requests an engine holds, which is what idleness, removals and the order of deletion depend on. It does not say how many
an engine can run at once, so nothing is learned about that: the limit of such an engine stays unknown.

`trtllm_num_requests_waiting`, in turn, does not contain accepted requests that no iteration has scheduled yet. An overload is
therefore seen later than with vLLM: the safety net, which adds replicas while requests wait on every pod, only begins when engines
hold as many requests as they accept. Until then, the use of the cache is what shows it.

If requests run and the token counter stands still for 30 s, which it also does when no request ends in this time, no counter is
trusted, and the number is held where the analyzer needs one. If no gauge moves either, nothing that the engine shows is trusted, as
with a frozen vLLM: its gauges are written by iterations only, so an engine without work may keep its last ones. That is no evidence of
load, and none of idleness. Without `return_perf_metrics` there is no token counter, and old values cannot be told from new ones."
        }
        Exporter::Tgi => {
            "It exports no use of its KV cache, so no analyzer can decide about it. The safety net still adds replicas while five requests
wait on every pod, and nothing is removed. `tgi_request_input_length` is counted before a request waits, and
`tgi_request_mean_time_per_token_duration` for each request, so neither is read. It names no model, so that all of its series count
for the pod's own variant."
        }
        Exporter::Scheduler => {
            "The endpoint picker (EPP). It names the model in `target_model_name`, else in `model_name`. Where all pods of the InferencePools
that name it are of variants of one model, all that it says is about that, under whatever name requests ask for it: an adapter, or an
alias."
        }
    }
}

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
    page.push_str(BY_ENGINE);
    for exporter in Exporter::ALL {
        name_table(&mut page, exporter);
    }
    page.push_str(OTHERS);
    page
}

/// The names that an exporter gives the signals; a column for older ones only where there are any.
fn name_table(page: &mut String, exporter: Exporter) {
    let (title, note) = (exporter.title(), note(exporter));
    // Writing to a string cannot fail.
    let _ = writeln!(page, "\n### {title}\n\n{note}\n");
    let names = Signal::ALL.map(|signal| (signal, by_age(exporter, signal)));
    let has_older = names.iter().any(|(_, [_, older])| !older.is_empty());
    let columns = if has_older { 2 } else { 1 };
    row(page, "signal", ["series", "older series"].into_iter().take(columns).map(str::to_owned));
    row(page, "---", std::iter::repeat_n("---".to_owned(), columns));
    for (signal, names) in names.iter().filter(|(_, [current, _])| !current.is_empty()) {
        row(page, &code(*signal), names.iter().take(columns).map(|names| cell(names)));
    }
}

/// The current names of a signal, and the older ones.
fn by_age(exporter: Exporter, signal: Signal) -> [Vec<&'static MetricName>; 2] {
    let names = signals::names_of(exporter, signal);
    let newest = names.first().map(|name| name.generation);
    let (current, older) = names.into_iter().partition(|name| Some(name.generation) == newest);
    [current, older]
}

/// The signals that are read for an analyzer and a model with this number of variants, which may go to zero or not.
fn read_by(analyzer: Analyzer, variants: usize, may_be_zero: bool) -> BTreeSet<Signal> {
    let bounds =
        Bounds { min: if may_be_zero { Replicas::ZERO } else { Replicas::ONE }, ..Bounds::default() };
    let variant = Variant { bounds, ..Variant::new(VariantId::new("", ""), "", TargetRef::deployment("")) };
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
    use crate::collect::metric_names::NAMES;

    #[test]
    fn the_page_in_docs_is_the_generated_one() {
        let page = include_str!("../../docs/signals.md");
        assert!(page == signals_page(), "run: wva signals > docs/signals.md");
    }

    #[test]
    fn every_analyzer_needs_something_and_every_signal_has_a_name() {
        assert!(Analyzer::ALL.into_iter().all(|analyzer| read_by(analyzer, 1, false).len() > 2));
        let has_name = |signal| {
            Exporter::ALL.into_iter().any(|exporter| !signals::names_of(exporter, signal).is_empty())
        };
        assert!(Signal::ALL.into_iter().all(has_name));
    }

    #[test]
    fn each_exporter_has_a_table_of_its_own_with_every_name_it_has() {
        let page = signals_page();
        for exporter in Exporter::ALL {
            let heading = format!("\n### {}\n", exporter.title());
            let (_, section) = page.split_once(&heading).unwrap();
            let section = section.split("\n### ").next().unwrap();
            for name in NAMES.iter().filter(|name| name.generation.0 == exporter) {
                let first_cell = format!("| {} |", code(name.signal));
                let mut rows = section.lines().filter(|line| line.starts_with(&first_cell));
                assert!(rows.any(|row| row.contains(name.text)), "{heading}{}", name.text);
            }
        }
    }
}
