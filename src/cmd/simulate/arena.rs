//! `wva simulate arena`: the workloads, metric and scalers of a public leaderboard, as a table, JSON or a page.

use std::fmt::Write as _;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Mutex;

use clap::ValueEnum;
use serde_json::json;
use wva_sim::{Arena, GOLDEN, PROFILES, Rng, Slo, Sources, WORKLOADS, published, reference_rate};

use super::super::output::CommandError;
use super::super::terminal::{StatusLine, aligned, note};
use crate::simulate::arena::{BASELINE, Entrant, Played, entrants, mean, play, sources};

/// The trace in the folder of `--traces`.
const TRACE: &str = "azure_llm_2023_code.csv.gz";
/// Share of good requests at which a fixed fleet still carries a rate.
const CARRIED: f64 = 0.95;
/// Random stream of the seeds.
const SEED_STREAM: u64 = 19;

/// Compare autoscalers in NVIDIA's Planner Gym: its 14 workloads, its metric, its fleet of 1 to 8 GPUs
///
/// The servers are those of this simulator, so that only ratios to the fixed fleet of four can be compared with the published
/// results, which are printed beside them. A request is good when its first token and its own mean time between tokens are within
/// the objectives; one with fewer than two tokens is not, nor one that is lost. The metric rewards fleets that are too small: read
/// the share of good requests beside it.
///
///   wva simulate arena             the seven workloads that need no trace
///
/// `--traces FOLDER` plays all 14, and `--write arena.md` writes the page besides. The loads of the golden six are shares of what a
/// fixed fleet of two carries; `--reference-gpus 4` takes another one.
///
/// FOLDER holds azure_llm_2023_code.csv.gz, the trace of 2023 (code) of Azure/AzurePublicDataset, gzipped.
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(super) struct Args {
    /// The folder of the trace. Without it, the workloads that need one are left out.
    #[arg(long, value_name = "FOLDER")]
    traces: Option<PathBuf>,
    /// The profile of objectives.
    #[arg(long, value_enum, default_value_t = Profile::Relaxed)]
    profile: Profile,
    /// The golden loads are shares of the rate that so many GPUs just carry.
    #[arg(long, default_value_t = 2, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=8))]
    reference_gpus: u32,
    /// Number of seeds.
    #[arg(long, default_value_t = 3, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=100))]
    seeds: u64,
    /// 16 hexadecimal digits of which the seeds are made, such as a commit's.
    #[arg(long, default_value = "0000000000000001", value_name = "HASH", value_parser = seed_base)]
    seed_of: u64,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// Write the page as Markdown to this file.
    #[arg(long, value_name = "FILE")]
    write: Option<PathBuf>,
}

/// The objectives of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Profile {
    /// First token within 2 s, 50 ms between tokens.
    Relaxed,
    /// First token within 300 ms, 50 ms between tokens.
    Strict,
    /// The whole answer within 3 s, 200 ms between tokens.
    EndToEnd,
}

impl Profile {
    const fn slo(self) -> Slo {
        match self {
            Self::Relaxed => PROFILES[0].1,
            Self::Strict => PROFILES[1].1,
            Self::EndToEnd => PROFILES[2].1,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Relaxed => PROFILES[0].0,
            Self::Strict => PROFILES[1].0,
            Self::EndToEnd => PROFILES[2].0,
        }
    }
}

fn seed_base(text: &str) -> Result<u64, String> {
    let digits = text.get(..16).and_then(|digits| u64::from_str_radix(digits, 16).ok());
    digits.ok_or_else(|| "does not begin with 16 hexadecimal digits: give those of a commit".into())
}

/// What was played.
struct Tournament<'a> {
    args: &'a Args,
    entrants: Vec<Entrant>,
    played: Vec<Played>,
    reference_rps: Option<f64>,
}

pub(super) fn run(args: &Args, out: &mut impl Write) -> Result<ExitCode, CommandError> {
    let sources = match &args.traces {
        Some(folder) => sources(&folder.join(TRACE))
            .map_err(|error| format!("--traces: {error}; it must hold {TRACE}"))?,
        None => {
            note(
                "left out: the golden six and trace-start need requests of a trace; give its folder with --traces",
            );
            Sources::default()
        }
    };
    let first = Rng::stream(args.seed_of, SEED_STREAM).bits() >> 24;
    let seeds: Vec<u64> = (first..first + args.seeds).collect();
    let slo = args.profile.slo();
    let reference_rps = reference_rate(&sources, args.reference_gpus, CARRIED, slo, first);
    let arena = Arena { sources, reference_rps: reference_rps.unwrap_or(0.0), slo };
    let entrants = entrants().map_err(|error| error.to_string())?;
    let status = Mutex::new(StatusLine::new());
    let played = play(&arena, &entrants, &seeds, |done, all| {
        if let Ok(mut status) = status.lock() {
            status.show(|| format!("{done} of {all} runs"));
        }
    });
    if let Ok(mut status) = status.into_inner() {
        status.clear();
    }
    let tournament = Tournament { args, entrants, played, reference_rps };
    if let Some(path) = &args.write {
        write_page(path, &tournament.page())?;
    }
    let text = if args.json { tournament.json()? } else { tournament.text() };
    out.write_all(text.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

fn write_page(path: &Path, page: &str) -> Result<(), String> {
    std::fs::write(path, page)
        .map_err(|cause| format!("--write {}: {cause}; give a file that you may write", path.display()))
}

impl Tournament<'_> {
    /// The parts of the tables with their titles: all workloads, the golden ones, and each of them.
    fn parts(&self) -> Vec<(String, Vec<&'static str>)> {
        let has = |name: &&str| self.played.iter().any(|run| run.workload == *name);
        let all: Vec<&str> = WORKLOADS.into_iter().filter(has).collect();
        let golden: Vec<&str> = GOLDEN.iter().copied().filter(has).collect();
        let mut parts = vec![(format!("all {}", all.len()), all.clone())];
        if !golden.is_empty() {
            parts.push((format!("golden {}", golden.len()), golden));
        }
        parts.extend(all.into_iter().map(|name| (name.to_owned(), vec![name])));
        parts
    }

    fn rows(&self, workloads: &[&str]) -> Vec<Vec<String>> {
        let means = |entrant| mean(&self.played, entrant, |name| workloads.contains(&name));
        let baseline = self.entrants.iter().position(|entrant| entrant.name == BASELINE).and_then(means);
        let mut rows = Vec::new();
        for (index, entrant) in self.entrants.iter().enumerate() {
            let Some(means) = means(index) else { continue };
            let ratio = baseline.filter(|base| base.per_gpu > 0.0).map(|base| means.per_gpu / base.per_gpu);
            rows.push(vec![
                entrant.name.to_owned(),
                format!("{:.3}", means.per_gpu),
                ratio.map_or_else(|| "none".into(), |ratio| format!("{ratio:.2}")),
                format!("{:.1} %", 100.0 * means.good),
                format!("{:.2}", means.gpus),
                format!("{:.1}", means.reversals),
                format!("{:.1}", means.changes),
            ]);
        }
        rows
    }

    /// What is wanted of `rate`, a sentence each, by what was found.
    fn verdicts(&self) -> Vec<String> {
        let found: Vec<_> = (0..self.entrants.len())
            .map(|entrant| {
                let of = |names: &[&str]| mean(&self.played, entrant, |name| names.contains(&name));
                (self.entrants[entrant].name, of(&WORKLOADS), of(GOLDEN))
            })
            .collect();
        let Some((_, Some(base), Some(golden_base))) = found.iter().find(|(name, ..)| *name == BASELINE)
        else {
            return Vec::new();
        };
        let scalers = || found.iter().filter(|(name, ..)| !name.starts_with("static"));
        let mut verdicts = Vec::new();
        for (name, all, golden) in scalers().filter(|(name, ..)| name.starts_with("rate")) {
            let (Some(all), Some(golden)) = (all, golden) else { continue };
            let (ratio, reversals) = (golden.per_gpu / golden_base.per_gpu, golden.reversals);
            let is_met = ratio >= BEST_RATIO && golden.good >= WANTED_GOOD;
            verdicts.push(format!(
                "Golden six, {name}: {ratio:.2} × static-4 with {:.1} % good; wanted at least {BEST_RATIO} × (cloudai-mpc) with {:.0} %: {}.",
                100.0 * golden.good,
                100.0 * WANTED_GOOD,
                met(is_met)
            ));
            let peers = || scalers().filter(|(name, ..)| !name.starts_with("rate"));
            let is_calmest =
                peers().all(|(_, _, golden)| golden.is_some_and(|golden| golden.reversals > reversals));
            verdicts.push(format!(
                "Golden six, {name}: {reversals:.1} reversals; wanted fewer than any peer: {}.",
                met(is_calmest)
            ));
            let is_first = peers().all(|(_, peer, _)| {
                peer.is_some_and(|peer| peer.good < BEST_GOOD || peer.per_gpu < all.per_gpu)
            });
            verdicts.push(format!(
                "All, {name}: {:.2} × static-4 with {:.1} % good; wanted the best ratio of the scalers with at least {:.1} % (the best \
                 published one): {}.",
                all.per_gpu / base.per_gpu,
                100.0 * all.good,
                100.0 * BEST_GOOD,
                met(is_first && all.good >= BEST_GOOD)
            ));
        }
        verdicts
    }

    fn setting(&self) -> String {
        let Args { profile, seeds, seed_of, reference_gpus, .. } = self.args;
        let reference = self.reference_rps.map_or_else(String::new, |rps| {
            format!(
                " Reference rate of the golden workloads: {rps:.2} requests/s, which a fixed fleet of {reference_gpus} carries with \
                 {:.0} % good.",
                100.0 * CARRIED
            )
        });
        format!("Profile {}, {seeds} seeds of {seed_of:016x}.{reference}", profile.name())
    }

    fn text(&self) -> String {
        let mut text = self.setting() + "\n";
        self.verdicts().iter().for_each(|verdict| text += &format!("{verdict}\n"));
        for (title, workloads) in self.parts() {
            let mut rows = vec![HEADER.map(|word| word.to_uppercase()).to_vec()];
            rows.extend(self.rows(&workloads));
            let _ = writeln!(text, "\n{title}");
            aligned(&rows, 1).iter().for_each(|line| text += &format!("{line}\n"));
        }
        let mut rows = vec![PUBLISHED_HEADER.map(|word| word.to_uppercase()).to_vec()];
        rows.extend(published_rows());
        text += "\npublished by NVIDIA, in its own simulator\n";
        aligned(&rows, 1).iter().for_each(|line| text += &format!("{line}\n"));
        text
    }

    fn json(&self) -> Result<String, CommandError> {
        let mut parts = Vec::new();
        for (title, workloads) in self.parts() {
            for (index, entrant) in self.entrants.iter().enumerate() {
                let means = mean(&self.played, index, |name| workloads.contains(&name));
                parts.push(json!({"workloads": title, "scaler": entrant.name, "means": means}));
            }
        }
        let value = json!({"profile": self.args.profile.name(), "referenceRps": self.reference_rps, "results": parts});
        Ok(serde_json::to_string_pretty(&value).map_err(io::Error::from)? + "\n")
    }

    fn page(&self) -> String {
        let verdicts: String = self.verdicts().iter().map(|verdict| format!("- {verdict}\n")).collect();
        let mut page = format!("{TITLE}\n{}\n\n{verdicts}\n{PAGE}", self.setting());
        for (index, (title, workloads)) in self.parts().into_iter().enumerate() {
            let _ = write!(page, "\n## {}{}\n\n", title[..1].to_uppercase(), &title[1..]);
            page += &markdown(&HEADER, &self.rows(&workloads));
            if index == 0 {
                page += "\n## Published by NVIDIA, in its own simulator\n\n";
                page += &markdown(&PUBLISHED_HEADER, &published_rows());
            }
        }
        page
    }
}

const HEADER: [&str; 7] = ["scaler", "goodput/GPU", "× static-4", "good", "GPUs", "reversals", "changes"];
const PUBLISHED_HEADER: [&str; 5] =
    ["scaler", "× static-4, all", "good, all", "× static-4, golden", "good, golden"];

fn published_rows() -> Vec<Vec<String>> {
    let row = |result: wva_sim::Published| {
        let percent = |share: f64| format!("{:.1} %", 100.0 * share);
        vec![
            result.name.to_owned(),
            format!("{:.2}", result.ratio.0),
            percent(result.good.0),
            format!("{:.2}", result.ratio.1),
            percent(result.good.1),
        ]
    };
    published().map(row).to_vec()
}

fn markdown(header: &[&str], rows: &[Vec<String>]) -> String {
    let mut text = format!("| {} |\n|{}\n", header.join(" | "), "---|".repeat(header.len()));
    rows.iter().for_each(|row| text += &format!("| {} |\n", row.join(" | ")));
    text
}

/// The best published ratio over the golden six.
const BEST_RATIO: f64 = 2.53;
/// The best published share of good requests over all workloads.
const BEST_GOOD: f64 = 0.738;
/// What is wanted of the golden six: more than the best published share there, 89.6 %.
const WANTED_GOOD: f64 = 0.95;

const fn met(is_met: bool) -> &'static str {
    if is_met { "met" } else { "missed" }
}

/// How the page begins.
const TITLE: &str = "\
# The arena

NVIDIA's Planner Gym (`ai-dynamo/dynamo`, `gyms/planner-gym`; results of 2026-10-02, aggregated serving) compares autoscalers in 14
workloads on 1 to 8 GPUs. `wva simulate arena` plays the same workloads with the same metric in this simulator. It wrote this page:
`wva simulate arena --traces FOLDER --seed-of COMMIT --write docs/arena.md`.
";

/// What to know before one reads the tables.
const PAGE: &str = "\
**The metric.** A request is good when its first token and its own mean time between tokens are within the objectives. One with fewer
than two tokens is not good, nor is one that is lost. Goodput per GPU is good requests a second by average GPUs, starting and draining
ones included. It rewards a fleet that is too small: read the share of good requests beside it. Means are over workloads and seeds,
and each run counts the same.

**Why ratios differ from the published ones.**

- The golden loads are shares of a reference rate, which NVIDIA calibrated on its own servers; these servers carry another one. The ratio
  to static-4 depends on it more than on any scaler: a larger reference fleet leaves static-4 fewer idle GPUs, so that all ratios are
  lower. On average, the golden loads are 0.62 of the reference rate, for which the best published scaler needed 1.35 GPUs. That speaks
  for a reference fleet of 1.35 / 0.62, about two GPUs, which is the default of `--reference-gpus`.
- The golden workloads and trace-start take their requests from the Azure LLM inference trace of 2023, code
  (Azure/AzurePublicDataset, CC-BY-4.0). The arena takes Mooncake's, whose prompts are several times as long.
- The servers are a formula for a mixture-of-experts model on an H200, and not measured performance data. Its 32 µs for each prompt token
  were chosen for the published share of good requests of static-4.

**What was not shown.** No figure is from NVIDIA's simulator, and `rate` was not entered there. cloudai-mpc, cloudai-rl and NVIDIA's
planner were not played here, nor was an oracle, nor disaggregated serving. Where the source leaves a formula open, a choice was made:
the crowd of flash-crowd comes after 120 s, the wave of diurnal lasts 180 s, decode-heavy and shared-prefix have 5.6 requests/s, and
shared-prefix has 4,096 cached tokens. `rate` has the HPA of README, which syncs every 15 s or 3 s, and reads a Prometheus that scrapes
every 15 s, or scrapes pods itself every 5 s. Scaling by KEDA and direct wake-up were not played.
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_are_made_of_a_hash() {
        assert_eq!(seed_base("00000000000000ff1234"), Ok(255));
        assert!(seed_base("main").unwrap_err().contains("16 hexadecimal digits"));
    }

    #[test]
    fn profiles_are_those_of_the_arena() {
        let names = Profile::value_variants().iter().map(|profile| profile.name());
        assert!(names.eq(["relaxed", "strict", "end-to-end"]));
        assert!(Profile::EndToEnd.slo().end_to_end.is_some());
    }
}
