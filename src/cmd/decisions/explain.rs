//! `wva explain`: why a variant has its desired number of replicas.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use jiff::Timestamp;
use wva_core::VariantId;

use super::explanation::explain;
use super::input::DecisionInput;
use super::server::ServerArgs;
use crate::cmd::output::{CommandError, OutputFormat, exit_code, write_structured};
use crate::explain::screen;

/// Explain why a variant has its desired number of replicas
///
/// Shows the inputs of the decision, the result of each step, and what happens to the number if no new metrics arrive.
///
/// From a running server:
///
///   kubectl -n wva-system port-forward pod/HOLDER 8443
///   wva explain llm/llama --server https://localhost:8443 --server-name wva.wva-system.svc \
///     --ca-file ca.crt --token-file token
///
/// HOLDER is the leader: `kubectl -n wva-system get lease` shows it. The token's user needs the verb `get` on the
/// nonResourceURL /debug/snapshots/latest, or /debug/snapshots with --at.
///
/// From a recording, without access to the cluster:
///
///   wva explain llm/llama --recording wva-20261121T120000.000000Z-wva-0.jsonl --at 2026-11-21T12:00:05Z
///
/// The decision is repeated here from the recorded inputs. If this version decides differently from the one that recorded
/// them, both decisions are shown.
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
#[group(id = "from", required = true, multiple = false, args = ["recording", "server"])]
pub(crate) struct Args {
    /// The variant: NAMESPACE/NAME.
    #[arg(value_name = "NAMESPACE/NAME", value_parser = parse_variant)]
    variant: VariantId,
    /// A recording or a snapshot; - is standard input.
    #[arg(long, visible_alias = "snapshot", value_name = "FILE")]
    recording: Option<PathBuf>,
    #[command(flatten)]
    from: ServerArgs,
    /// Time of the evaluation to explain. Default: the last one.
    #[arg(long, value_name = "TIMESTAMP")]
    at: Option<Timestamp>,
    /// YAML or JSON file with settings that replace the recorded ones; - is standard input.
    #[arg(long, value_name = "FILE")]
    policy: Option<PathBuf>,
    /// Output format.
    #[arg(long, short, value_enum, default_value_t = OutputFormat::Table)]
    output: OutputFormat,
}

fn parse_variant(text: &str) -> Result<VariantId, String> {
    let parts = text.split_once('/').filter(|(namespace, name)| !namespace.is_empty() && !name.is_empty());
    let (namespace, name) = parts.ok_or("give NAMESPACE/NAME, as llm/llama")?;
    Ok(VariantId::new(namespace, name))
}

pub(crate) fn main(args: &Args) -> ExitCode {
    exit_code(run(args, &mut io::stdout().lock()))
}

fn run(args: &Args, out: &mut impl Write) -> Result<ExitCode, CommandError> {
    let input = match (&args.recording, &args.from.server) {
        (Some(file), _) => DecisionInput::read(file, args.at)?,
        (None, Some(server)) => args.from.read(server, args.at)?,
        (None, None) => return Err("give --recording or --server".to_owned().into()),
    };
    let explanation = explain(input.with_policy(args.policy.as_deref())?, &args.variant)?;
    match args.output {
        OutputFormat::Table => out.write_all(screen(&explanation).as_bytes())?,
        format => write_structured(out, &explanation, format)?,
    }
    Ok(ExitCode::SUCCESS)
}
