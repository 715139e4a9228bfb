//! The evidence as Markdown.

use std::fmt::Write as _;

use wva::simulate::{Figure, SummaryLine};
use wva_sim::Run;

use super::Args;
use super::parts::{PartResults, SetRow};

/// The whole page.
pub(crate) fn text(args: &Args, results: &[PartResults]) -> String {
    let mut text = String::from("# Evidence\n\n");
    let _ = writeln!(
        text,
        "Made by `tests/sim/evidence` from the files in [tests/scenarios/sim](../tests/scenarios/sim); the same command gives the \
         same figures where it finds the traces (`WVA_TRACES`). `{}` is compared with the baselines at their published settings. Figures are means of the seeds, the worst in brackets; the \
         gates apply to the means. [simulate.md](simulate.md) says how the simulator works and what it leaves out.\n",
        args.policy
    );
    text.push_str("## Gates\n\n| what | wanted | found | |\n|---|---|---|---|\n");
    for gate in results.iter().flat_map(|part| &part.gates) {
        let verdict = if gate.holds { "met" } else { "**missed**" };
        let _ = writeln!(text, "| {} | {} | {} | {verdict} |", gate.subject, gate.criterion, gate.result);
    }
    for left_out in results.iter().flat_map(|part| &part.left_out) {
        let _ = writeln!(text, "\nLeft out: {left_out}.");
    }
    for part in results {
        let _ = writeln!(text, "\n## {}\n\n{}\n", part.title, part.about);
        if !part.runs.0.is_empty() {
            lines(&mut text, &part.runs.lines());
        }
        if !part.sets.is_empty() {
            sets(&mut text, &part.sets);
        }
    }
    text
}

fn lines(text: &mut String, lines: &[SummaryLine<'_>]) {
    text.push_str(
        "| scenario | policy | cost | replicas | TTFT p50 s | p95 | p99 | ITL p99 ms | errors | changes | flips | in SLO % |\n",
    );
    text.push_str("|---|---|---|---|---|---|---|---|---|---|---|---|\n");
    let mut before = "";
    for line in lines {
        let scenario = if before == line.scenario { "" } else { line.scenario };
        before = line.scenario;
        let mean = |value: fn(&Run) -> f64| line.highest(value).mean;
        let cost = line.highest(|run| run.cost_avg);
        let slo = line.slo_attainment();
        let _ = writeln!(
            text,
            "| {scenario} | {} | {:.2} ({:.2}) | {:.2} | {:.3} | {} | {} | {:.0} | {:.1} | {:.1} | {:.1} | {:.1} ({:.1}) |",
            line.policy,
            cost.mean,
            cost.worst,
            mean(|run| run.replicas_avg),
            mean(|run| run.ttft_p50_s),
            tail(line.highest(|run| run.ttft_p95_s)),
            tail(line.highest(|run| run.ttft_p99_s)),
            1000.0 * mean(|run| run.itl_p99_s),
            mean(|run| run.errors as f64),
            mean(|run| f64::from(run.changes)),
            mean(|run| f64::from(run.flips)),
            100.0 * slo.mean,
            100.0 * slo.worst,
        );
    }
}

/// Seconds with three significant digits.
fn tail(figure: Figure) -> String {
    let digits = |seconds: f64| match seconds {
        s if s < 1.0 => format!("{s:.3}"),
        s if s < 10.0 => format!("{s:.2}"),
        s => format!("{s:.0}"),
    };
    format!("{} ({})", digits(figure.mean), digits(figure.worst))
}

fn sets(text: &mut String, rows: &[SetRow]) {
    text.push_str(
        "| set | policy | replicas | runs with p95 < 1 s | with p99 < 1 s | requests outside SLO | flips |\n",
    );
    text.push_str("|---|---|---|---|---|---|---|\n");
    for row in rows {
        let _ = writeln!(
            text,
            "| {} | {} | {:.2} | {} of {} | {} | {:.2} % | {:.1} |",
            row.set,
            row.policy,
            row.replicas,
            row.quick_p95,
            row.runs,
            row.quick_p99,
            100.0 * row.outside,
            row.flips
        );
    }
}
