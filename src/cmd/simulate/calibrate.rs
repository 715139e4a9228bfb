//! `wva simulate calibrate`: fits physics to a table of measurements.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde::Serialize;

use super::super::output::{CommandError, OutputFormat, write_structured};
use super::format::time;
use crate::simulate::calibrate::{Errors, Fit, Group, fit, read};

/// Fit the physics of hardware to a table of measurements, and show how well they match
///
/// TABLE is a CSV, gzipped or not, with the columns prompt_size, batch_size, token_size, prompt_time and token_time, and
/// optionally e2e_time, model, hardware and tensor_parallel, as in the tables of SageServe and Splitwise. The values tell whether
/// times are in seconds, and whether token_time is one decode step or all of them.
///
///   wva simulate calibrate measured.csv --kv-tokens 480000 --output yaml
///
/// prints what `physics` of a variant takes in a scenario.
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(super) struct Args {
    /// The table.
    #[arg(value_name = "TABLE")]
    table: PathBuf,
    /// Tokens that the KV cache of one replica holds, for the output: vLLM logs "GPU KV cache size" at its start.
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..))]
    kv_tokens: Option<u32>,
    /// Output format.
    #[arg(long, short, value_enum, default_value_t = OutputFormat::Table)]
    output: OutputFormat,
}

/// The physics, as `physics` of a scenario takes them, and their errors.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Calibrated {
    model: String,
    accelerator: String,
    source: String,
    step_seconds: f64,
    prompt_token_seconds: f64,
    sequence_seconds: f64,
    kv_token_seconds: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    kv_tokens: Option<u32>,
    /// Mean absolute errors, as shares.
    #[serde(skip_serializing_if = "Option::is_none")]
    ttft_error: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    itl_error: Option<f64>,
}

pub(super) fn run(args: &Args, out: &mut impl Write) -> Result<ExitCode, CommandError> {
    let groups = read(&args.table).map_err(|error| error.to_string())?;
    let fits: Vec<(&Group, Fit)> = groups.iter().map(|group| (group, fit(group))).collect();
    match args.output {
        OutputFormat::Table => out.write_all(text(&fits).as_bytes())?,
        OutputFormat::Json => {
            let all: BTreeMap<_, _> =
                fits.iter().map(|(group, fit)| (name(group), calibrated(group, fit, args))).collect();
            write_structured(out, &all, args.output)?;
        }
        OutputFormat::Yaml => out.write_all(yaml(&fits, args).as_bytes())?,
    }
    Ok(ExitCode::SUCCESS)
}

/// A name for a preset.
fn name(group: &Group) -> String {
    let words = format!("{} {} tp{}", group.hardware, group.model, group.tensor_parallel).to_lowercase();
    let parts = words.split(|letter: char| !letter.is_ascii_alphanumeric()).filter(|part| !part.is_empty());
    parts.collect::<Vec<_>>().join("-")
}

fn source(table: &Path, fit: &Fit) -> String {
    let file =
        table.file_name().map_or_else(|| table.display().to_string(), |name| name.to_string_lossy().into());
    let error =
        |errors: Option<Errors>| errors.map_or("-".into(), |errors| format!("{:.1} %", 100.0 * errors.mean));
    let (ttft, itl) = (error(fit.ttft), error(fit.itl));
    format!("fitted to {file}; mean absolute error of the first token {ttft}, between tokens {itl}")
}

fn calibrated(group: &Group, fit: &Fit, args: &Args) -> Calibrated {
    Calibrated {
        model: group.model.clone(),
        accelerator: format!("{} × {}", group.tensor_parallel, group.hardware),
        source: source(&args.table, fit),
        step_seconds: fit.step_seconds,
        prompt_token_seconds: fit.prompt_token_seconds,
        sequence_seconds: fit.sequence_seconds,
        kv_token_seconds: fit.kv_token_seconds,
        kv_tokens: args.kv_tokens,
        ttft_error: fit.ttft.map(|errors| errors.mean),
        itl_error: fit.itl.map(|errors| errors.mean),
    }
}

/// The physics as `physics` of a variant takes them. The rest is in comments, because scenarios have no other fields.
fn yaml(fits: &[(&Group, Fit)], args: &Args) -> String {
    let mut text = String::new();
    for (group, fit) in fits {
        let _ = writeln!(text, "# {}", source(&args.table, fit));
        let _ = writeln!(text, "{}:", name(group));
        for (field, value) in [
            ("stepSeconds", fit.step_seconds),
            ("promptTokenSeconds", fit.prompt_token_seconds),
            ("sequenceSeconds", fit.sequence_seconds),
            ("kvTokenSeconds", fit.kv_token_seconds),
        ] {
            let _ = writeln!(text, "  {field}: {}", number(value));
        }
        let _ = match args.kv_tokens {
            Some(tokens) => writeln!(text, "  kvTokens: {tokens}"),
            None => writeln!(
                text,
                "  # kvTokens: is not in the table; vLLM logs \"GPU KV cache size\" at its start"
            ),
        };
    }
    text
}

/// A number that every version of YAML reads as one.
fn number(value: f64) -> String {
    if value > 0.0 { format!("{value:.3e}") } else { "0.0".into() }
}

fn text(fits: &[(&Group, Fit)]) -> String {
    let mut text = String::new();
    for (group, fit) in fits {
        let _ = writeln!(text, "{} ({} combinations of sizes)", name(group), group.measurements.len());
        for (words, seconds) in [
            ("an empty step", fit.step_seconds),
            ("for each prompt token", fit.prompt_token_seconds),
            ("for each running request", fit.sequence_seconds),
            ("for each token in the KV cache", fit.kv_token_seconds),
        ] {
            let _ = writeln!(text, "  {words:<32} {}", small(seconds));
        }
        for (words, errors) in [("first token", fit.ttft), ("between tokens", fit.itl)] {
            let _ = match errors {
                Some(errors) => writeln!(text, "  error, {words:<25} {}", errors_text(&errors)),
                None => writeln!(text, "  error, {words:<25} not measured"),
            };
        }
    }
    text
}

fn errors_text(errors: &Errors) -> String {
    let Errors { points, mean, worst } = errors;
    let mean_percent = 100.0 * mean;
    let max_percent = 100.0 * worst.error;
    format!(
        "{mean_percent:.1} % on average over {points} points, at most {max_percent:.0} % ({} prompt tokens, batch {}, {} generated)",
        worst.size.prompt, worst.size.batch, worst.size.output
    )
}

/// A time down to nanoseconds.
fn small(seconds: f64) -> String {
    match seconds {
        s if s < 1e-6 => format!("{:.1} ns", s * 1e9),
        s if s < 1e-3 => format!("{:.1} µs", s * 1e6),
        s => time(s),
    }
}
