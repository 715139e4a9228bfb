//! The fault matrix as Markdown.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use wva_sim::{FaultKind, FaultShare};

use crate::matrix::compare::{Beside, Comparison};
use crate::matrix::{Cell, name};

type Results = [(Cell, Comparison)];

/// Everything about one cell in a line.
pub(crate) fn title(cell: &Cell) -> String {
    let Cell { analyzer, signals, kind, share, case, seed } = cell;
    let (kind, share, case) = (kind.as_str(), share.as_str(), case.name());
    format!("{}, {} {kind} on {share} ({case}, seed {seed})", analyzer.as_str(), name(*signals))
}

/// Every run that fails, the worst first.
pub(crate) fn failing(results: &Results) -> String {
    let mut own: Vec<_> = results.iter().filter(|(_, compared)| !compared.holds()).collect();
    own.sort_by(|(_, one), (_, other)| other.badness().total_cmp(&one.badness()));
    let mut text = String::new();
    for (cell, compared) in own {
        let _ = writeln!(
            text,
            "FAIL {}: {} (fewer {} at {} s, too few for {} s, {:.2} x hours, {:+} reversals, away {:+}, served well {:+.1} points)",
            title(cell),
            compared.words(),
            compared.fewer,
            compared.fewer_at_s,
            compared.fewer_for_s,
            compared.hours,
            compared.reversals,
            compared.away,
            -compared.served_less
        );
    }
    text
}

/// Rows are signals by analyzer, columns faults by share of pods: the worst of all loads, views and seeds.
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
    columns().for_each(|(kind, share)| text += &format!(" {} {} |", kind.as_str(), share.as_str()));
    text += &format!("\n|---|---|{}\n", "---|".repeat(columns().count()));
    for ((index, signal), cells) in &worst {
        let _ = write!(text, "| {} | {signal} |", rows[*index].0);
        for column in columns() {
            let _ = write!(text, " {} |", cells.get(&column).map_or("–".into(), Comparison::words));
        }
        text += "\n";
    }
    text
}

/// The whole page.
pub(crate) fn text(results: &Results) -> String {
    let failing = results.iter().filter(|(_, compared)| !compared.holds()).count();
    let beside = |runs| results.iter().filter(|(_, run)| run.beside == runs && run.holds()).count();
    let [by_span, by_number] = [Beside::Seeds, Beside::SameNumber].map(beside);
    let (runs, table) = (results.len(), table(results));
    format!(
        "{ABOUT}\nOf {runs} runs {by_span} hold against that span but not against their own run without the fault, and {by_number} have in the end \
         the number that the policy keeps without a fault once it is given it. {failing} fail.\n\n{table}"
    )
}

const ABOUT: &str = "\
# Fault matrix

Made by `tests/sim/fault-matrix`; `--ci` is its short form. Each analyzer decides in the closed loop with the simulator while one of the
signals that it reads is told wrongly for ten minutes, and is compared with its own run without the fault, of the same seed. What pods and
the gateway do is not changed by a fault, only what is seen of them.

| fault | what is seen |
|---|---|
| gone | no sample |
| renamed | no sample, pod by pod as in a rolling update: every 30 s one more pod, and every new one at once |
| frozen | the last value again and again, with new scrape times |
| halved, doubled | a gauge shows half or twice as much (a share at most 1); a counter grows by half, or twice as fast |

On one pod, on every second pod, or on all of them. `all counters` and `all signals` are those of pods together; a pod all of whose signals
show half or twice as much is the true picture of a pod with another load, and not tried.

**Fleets and loads.** Replicas that run out of sequences (32 on two A100, 300 prompt and 800 output tokens), and replicas that run out of KV
cache (60,000 tokens on an H100, 4000 and 1000 tokens) behind a gateway that holds requests back; 1 to 9 replicas, 60 s of start-up, HPAs that
look every 15 s. In units of what a replica carries at its limit: 1 (rest), 3.4 (steady), 2.3 to 4.6 over the fault (rising), 4.6 to 2.3
(falling), 2.3 and a minute into the fault 4.2 (saturating). Each load is seen by the program itself every 5 s on the one fleet, and through
a Prometheus every 15 s on the other, in turns. The fault lasts from minute 10 to minute 20, the run goes on to minute 29.

**What must hold**, over the worst of all loads:

| in a cell | criterion |
|---|---|
| `−2` | fewer replicas: at no moment from the fault on may the HPA ask for more than 1 below the number without the fault, 15 s sooner or 90 s later: \
a minute of evidence, a scrape and a look |
| `1.6×` | replica-hours from the fault on: at most 1.5 times as many |
| `3↕` | reversals of what the HPA asks for: at most 2 more |
| `+2…` | two minutes and the cooldown of 300 s after the fault what the HPA asks for is within 1 of what it is without the fault |

A policy with hysteresis may keep a number that it would not order. So where nothing but the last of these is broken, that is also held against a run
without the fault in which somebody sets the number, for the last five minutes of the fault, to what it is with the fault.
Where runs without any fault that differ by their seeds alone break these criteria (a policy that swings under that load, or is
overloaded under it), the comparison is with the span of forty such runs, and in the end with all that they ask for from the fault's end on: a fault may
shift by when a policy swings. Where nothing that is told of any pod is true (`all signals` of
all pods), nobody can follow a load that nobody sees: the number when the fault began is enough until the signals are back, and what has gathered
until then may take more; HPAs go on to ask for that for as long as they look back, so that in the end the answers are judged. A policy
that always asks for the maximum, one that never removes, and every fixed number fail the comparison (`src/sim/tests/faults.rs`).

**Not in it.** One variant with one role, and engines that count their steps. Of engines that do not, as SGLang and older versions of vLLM
(`tests/sim/fault-matrix --without-steps`), 115 of 19,770 runs failed on 2026-11-25: most by two or three replicas, the worst by seven and four times the replica-hours.
Seeds that no constant has seen (`--random N`) fail about once in 2,000 runs.
";
