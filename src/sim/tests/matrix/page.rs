//! The fault matrix as Markdown.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use wva_sim::{FaultKind, FaultShare};

use crate::matrix::compare::{Baseline, Comparison};
use crate::matrix::{Cell, name, word};

type Results = [(Cell, Comparison)];

/// The cell in one line.
pub(crate) fn title(cell: &Cell) -> String {
    let Cell { analyzer, signals, kind, share, case, seed } = cell;
    let (kind, share, case) = (word(kind), word(share), case.name());
    format!("{}, {} {kind} on {share} ({case}, seed {seed})", analyzer.as_str(), name(*signals))
}

/// The runs that fail, the worst first.
pub(crate) fn failing(results: &Results) -> String {
    let mut failing: Vec<_> = results.iter().filter(|(_, compared)| !compared.holds()).collect();
    failing.sort_by(|(_, left), (_, right)| right.badness().total_cmp(&left.badness()));
    let mut text = String::new();
    for (cell, compared) in failing {
        let _ = writeln!(
            text,
            "FAIL {}: {} (fewer {} at {} s, too few for {} s, {:.2} x hours, {:+} reversals, away {:+}, within SLO {:+.1} points)",
            title(cell),
            compared.cell_text(),
            compared.fewer,
            compared.fewer_at_s,
            compared.fewer_for_s,
            compared.hours,
            compared.reversals,
            compared.away,
            -compared.slo_loss
        );
    }
    text
}

/// The table: a row per analyzer and signal, a column per fault and share of pods, in each cell the worst of all loads, views and
/// seeds.
pub(crate) fn table(results: &Results) -> String {
    let mut worst: BTreeMap<(usize, String), BTreeMap<(FaultKind, FaultShare), Comparison>> = BTreeMap::new();
    let mut rows = Vec::new();
    for (cell, compared) in results {
        let row = (cell.analyzer.as_str(), name(cell.signals));
        let index = rows.iter().position(|known| *known == row).unwrap_or(rows.len());
        if index == rows.len() {
            rows.push(row.clone());
        }
        let known = worst.entry((index, row.1)).or_default().entry((cell.kind, cell.share)).or_default();
        if compared.badness() >= known.badness() {
            *known = *compared;
        }
    }
    let columns = || FaultKind::ALL.into_iter().flat_map(|kind| FaultShare::ALL.map(|share| (kind, share)));
    let mut text = String::from("| analyzer | signal |");
    columns().for_each(|(kind, share)| text += &format!(" {} {} |", word(kind), word(share)));
    text += &format!("\n|---|---|{}\n", "---|".repeat(columns().count()));
    for ((index, signal), cells) in &worst {
        let _ = write!(text, "| {} | {signal} |", rows[*index].0);
        for column in columns() {
            let _ = write!(text, " {} |", cells.get(&column).map_or("–".into(), Comparison::cell_text));
        }
        text += "\n";
    }
    text
}

/// The whole page.
pub(crate) fn text(results: &Results) -> String {
    let runs = results.len();
    let failing = results.iter().filter(|(_, compared)| !compared.holds()).count();
    let holding =
        |baseline| results.iter().filter(|(_, run)| run.baseline == baseline && run.holds()).count();
    let by_span = holding(Baseline::Seeds);
    let by_number = holding(Baseline::SameNumber);
    let table = table(results);
    format!(
        "{ABOUT}\nOf {runs} runs, {by_span} meet the criteria only against the span of other seeds, and {by_number} only against the run with the \
         same number. {failing} fail.\n\n{table}"
    )
}

const ABOUT: &str = "\
# Fault matrix

Made by `tests/sim/fault-matrix`; `--ci` is the short form. Each analyzer decides in closed loop with the simulator while one of its signals is
wrong for ten minutes. The run is compared with the run of the same analyzer and seed without the fault. A fault changes what is measured of
pods and gateway, not what they do.

| fault | measured |
|---|---|
| gone | no sample |
| renamed | no sample, pod by pod as in a rolling update: one more pod every 30 s, and every new pod |
| frozen | the last value, repeated with new timestamps |
| halved, doubled | a gauge shows half or twice its value (a share at most 1); a counter grows half or twice as fast |

Faults affect one pod, every second pod, or all pods. `all counters` and `all signals` are those of pods, together. All signals halved or doubled
are not tried: they are the true picture of a pod with another load.

**Fleets and loads.** One fleet runs out of sequences (32 on two A100; 300 prompt and 800 output tokens), the other out of KV cache (60,000 tokens
on an H100; 4000 and 1000 tokens) behind a gateway with flow control. Both have 1 to 9 replicas, 60 s of start-up, and HPAs with a sync period of
15 s. Loads, in units of a replica's capacity: 1 (rest), 3.4 (steady), 2.3 to 4.6 during the fault (rising), 4.6 to 2.3 (falling), 2.3 and from a
minute into the fault 4.2 (saturating). On one fleet wva scrapes every 5 s, on the other Prometheus scrapes every 15 s, in turns. The fault lasts
from minute 10 to minute 20, the run until minute 29.

**Criteria**, for the worst of all loads:

| in a cell | criterion |
|---|---|
| `−2` | fewer replicas: from the fault on, the HPA's number is never more than 1 below the number without the fault, up to 15 s earlier or 90 s \
later (a minute of evidence, a scrape and an evaluation) |
| `1.6×` | replica-hours from the fault on: at most 1.5 times as many |
| `3↕` | reversals of the HPA's number: at most 2 more |
| `+2…` | after recovery, which is two minutes and the cooldown of 300 s after the fault, the HPA's number is within 1 of the number without the fault |

A policy with hysteresis may keep a number that it would not choose. If only the last criterion is broken, the run is therefore also compared with a
run without the fault in which an operator sets the number, for the last five minutes of the fault, to what it is with the fault.
If runs without any fault break these criteria among each other just by their seeds (a policy that oscillates, or is overloaded, under that load), the
comparison is with the span of forty such runs; after recovery, with all numbers since the end of the fault, because a fault may shift the phase of an
oscillation. Without any true signal (`all signals` of all pods) no policy can follow the load: the number at the start of the fault is enough until
the signals are back, and the backlog may take more replicas. HPAs keep the higher number for their stabilization window, so that after recovery the
published number is judged. A policy that always asks for the maximum, one that never removes replicas, and every fixed number fail the comparison
(`src/sim/tests/faults.rs`).

**Not covered.** More than one variant or role. Of engines that do not count their steps, like SGLang and older versions of vLLM
(`tests/sim/fault-matrix --without-steps`), 115 of 19,770 runs failed on 2026-11-25: most by two or three replicas, the worst by seven and four times the
replica-hours. Of 2,000 runs with seeds that no constant has seen (`--random 2000 --draw 37`), 3 failed on 2026-11-27.
";
