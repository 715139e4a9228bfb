//! The evidence as Markdown, with its plots.

use std::fmt::Write as _;
use std::path::Path;

use super::Args;
use super::gates::{Gate, MOST_REGRET};
use super::plots;
use super::seeds::Seeds;
use super::store::{PartResults, Point};

/// Writes the page, and its plots beside it.
pub(crate) fn write(path: &Path, args: &Args, seeds: &Seeds, results: &[PartResults]) -> Result<(), String> {
    let points = |plot: &str| -> Vec<&Point> {
        results.iter().flat_map(|part| &part.points).filter(|point| point.plot == plot).collect()
    };
    // Groups with a name of one word: the others have too little room.
    let regrets: Vec<&Point> =
        points("regret").into_iter().filter(|point| !point.series.contains(',')).collect();
    let limit = 100.0 * MOST_REGRET;
    for (name, svg) in [
        (
            "outside",
            plots::dots(
                &points("outside"),
                "Random hours: requests outside the objectives, %",
                "replicas, mean",
            ),
        ),
        (
            "regret",
            plots::bars(&regrets, "Cost above an oracle that does as well, %, with 95 % intervals", limit),
        ),
        (
            "time",
            plots::lines(&points("time"), "Case 2: replicas while the load rises every 5 minutes", "minutes"),
        ),
    ] {
        let file = path.with_file_name(format!("evidence-{name}.svg"));
        std::fs::write(&file, svg).map_err(|error| format!("{}: {error}", file.display()))?;
    }
    std::fs::write(path, text(args, seeds, results)).map_err(|error| format!("{}: {error}", path.display()))
}

fn text(args: &Args, seeds: &Seeds, results: &[PartResults]) -> String {
    let mut text = String::from("# Evidence\n\n");
    summary(&mut text, args, seeds, results);
    text.push_str("## Gates\n\n| what | wanted | found | |\n|---|---|---|---|\n");
    for Gate { subject, criterion, result, holds, .. } in results.iter().flat_map(|part| &part.gates) {
        let verdict = if *holds { "met" } else { "**missed**" };
        let _ = writeln!(text, "| {subject} | {criterion} | {result} | {verdict} |");
    }
    for left_out in results.iter().flat_map(|part| &part.left_out) {
        let _ = writeln!(text, "\nLeft out: {left_out}.");
    }
    for part in results {
        let _ = writeln!(
            text,
            "\n## {}\n\n{}\n\n{} runs in {:.0} min.",
            part.title,
            part.about,
            part.runs,
            part.took_s / 60.0
        );
        for table in &part.tables {
            let columns = table.header.matches('|').count() - 1;
            let _ = writeln!(text, "\n{}\n|{}", table.header, "---|".repeat(columns));
            table.rows.iter().for_each(|row| {
                let _ = writeln!(text, "{row}");
            });
        }
    }
    text
}

/// What a reader needs who has two minutes.
fn summary(text: &mut String, args: &Args, seeds: &Seeds, results: &[PartResults]) {
    let gates: Vec<&Gate> = results.iter().flat_map(|part| &part.gates).collect();
    let met = gates.iter().filter(|gate| gate.holds).count();
    let policy = &args.policy;
    let _ = writeln!(
        text,
        "What `{policy}` costs and how many requests it serves within their objectives (first token within 1 s, 100 ms between tokens), \
         in the simulator, beside other autoscalers, fixed fleets, and an oracle that knows the future. No figure is from a real \
         GPU.\n"
    );
    let is_whole = |gate: &&&Gate| gate.subject.starts_with("random:");
    for Gate { subject, criterion, result, holds, .. } in gates.iter().filter(is_whole) {
        let verdict = if *holds { "met" } else { "**missed**" };
        let _ = writeln!(text, "- {subject}: **{result}** (wanted: {criterion}; {verdict})");
    }
    let _ = writeln!(
        text,
        "- {met} of {} gates are met. Those that are missed are in the table below, and in `tests/sim/known-misses`: CI fails on \
         any other.\n\n\
         ![Replicas and requests outside the objectives](evidence-outside.svg)\n\n\
         ![Cost above the oracle's](evidence-regret.svg)\n\n\
         ![Replicas over time](evidence-time.svg)\n",
        gates.len()
    );
    let (command, extent) = if args.ci {
        let extent = "It is the short run that CI makes, with few seeds and one of twelve random sets: intervals are wide, and some \
                      parts are left out. ";
        ("tests/sim/evidence --ci --write docs/evidence.md", extent)
    } else {
        ("tests/sim/evidence", "")
    };
    let _ = writeln!(
        text,
        "**How to read it.** Every figure is a mean over runs, each with its own seed, ± the half width of its 95 % interval (Student's \
         t); a run counts once however many requests it has. The gates apply to the means. The HPA is README's (no downscale window \
         for `{policy}`), and a Prometheus scrapes every 15 s. Others have the settings that their documentation gives or shows as examples; where there are several, the setting is in the \
         name.\n\n\
         **The oracle** knows which requests will come. A search through the simulator finds orders of replicas, made at the HPA's syncs, \
         with the same start-up times and the same first fleet, that serve at least as many requests within the objectives for \
         less. It finds no optimum, so the true distance may be larger. That somebody beats it is a gate of its own.\n\n\
         **Fixed fleets** are there from the start. A criterion that a fixed fleet of any size meets says nothing about an \
         autoscaler, and is counted as missed.\n\n\
         **Seeds** follow from the hashes of `src/core/learn` and `src/core/analyze/rate`, where the constants of the policy are, so they \
         cannot have been chosen for these scenarios. Commit `{}`, trees `{}`. `{}` makes this page where it finds the traces \
         (`WVA_TRACES`); `--seed-of` gives other seeds. {}[simulate.md](simulate.md) says how the simulator works and what it \
         leaves out.\n",
        seeds.commit, seeds.hash, command, extent
    );
}
