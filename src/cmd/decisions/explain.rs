//! `wva explain`: why a variant's number is what it is.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use jiff::Timestamp;
use wva_core::VariantId;

use super::explanation::Explanation;
use super::input::Material;
use super::screen::screen;
use super::server::ServerArgs;
use super::{Failure, Output, exit, structured};

/// Say why a variant's number is what it is: what was seen, each step, and what becomes of it
///
/// From a running server:
///
///   kubectl -n wva-system port-forward pod/HOLDER 8443
///   wva explain llm/llama --server https://localhost:8443 --server-name wva.wva-system.svc \
///     --ca-file ca.crt --token-file token
///
/// HOLDER is the instance that decides: kubectl -n wva-system get lease. The token's user needs `get` on the
/// nonResourceURL /debug/snapshots/latest.
///
/// From a file, anywhere (of a recording the last evaluation, or the one of --at):
///
///   wva explain llm/llama --recording wva-20261121T120000.000000Z-wva-0.jsonl --at 2026-11-21T12:00:05Z
///
/// The decision is made anew here from what was recorded; when this version decides otherwise than the one at the time, both
/// are shown.
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
#[group(id = "from", required = true, multiple = false, args = ["recording", "server"])]
pub(in crate::cmd) struct Args {
    /// The variant: NAMESPACE/NAME.
    #[arg(value_name = "NAMESPACE/NAME", value_parser = variant)]
    variant: VariantId,
    /// A recording or a snapshot; - is standard input.
    #[arg(long, visible_alias = "snapshot", value_name = "FILE")]
    recording: Option<PathBuf>,
    #[command(flatten)]
    from: ServerArgs,
    /// The evaluation of this moment; by default the last one.
    #[arg(long, value_name = "TIMESTAMP")]
    at: Option<Timestamp>,
    /// YAML or JSON with the settings that are to be other than recorded.
    #[arg(long, value_name = "FILE")]
    policy: Option<PathBuf>,
    /// How to show it.
    #[arg(long, short, value_enum, default_value_t = Output::Table)]
    output: Output,
}

fn variant(text: &str) -> Result<VariantId, String> {
    let parts = text.split_once('/').filter(|(namespace, name)| !namespace.is_empty() && !name.is_empty());
    let (namespace, name) = parts.ok_or("give NAMESPACE/NAME, as llm/llama")?;
    Ok(VariantId::new(namespace, name))
}

pub(in crate::cmd) fn main(args: &Args) -> ExitCode {
    exit(run(args, &mut io::stdout().lock()))
}

fn run(args: &Args, out: &mut impl Write) -> Result<ExitCode, Failure> {
    let material = match (&args.recording, &args.from.server) {
        (Some(file), _) => Material::read(file, args.at)?,
        (None, Some(server)) => args.from.read(server, args.at)?,
        (None, None) => return Err("give --recording or --server".to_owned().into()),
    };
    let explanation = Explanation::new(material.with_policy(args.policy.as_deref())?, &args.variant)?;
    match args.output {
        Output::Table => out.write_all(screen(&explanation).as_bytes())?,
        output => structured(out, &explanation, output)?,
    }
    Ok(ExitCode::SUCCESS)
}
