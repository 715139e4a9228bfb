//! `wva migrate`: what a migration from WVA would be, and its commands.

mod cluster;
mod files;
mod text;

use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;

use super::api::ConnectionArgs;
use super::output::{CommandError, EXIT_UNUSABLE_INPUT, exit_code};
use crate::migrate::{Readiness, report};

/// Exit code when something has to be done first.
const EXIT_NEEDS_ACTION: u8 = 1;

/// Show what a migration from WVA would be, and its commands
///
/// Reads an installation of llm-d's Workload Variant Autoscaler (WVA) with prometheus-adapter or KEDA, and prints what was
/// found, what stays as it is, what changes, what is lost, the commands in their order, and how to go back. It only reads, and
/// changes nothing.
///
/// From the cluster of your kubeconfig:
///
///   wva migrate
///
/// From manifests, without access to a cluster:
///
///   wva migrate -f manifests/ -f more.yaml
///   kubectl get deploy,cm,va,hpa,scaledobject,apiservice,crd -A -o yaml > all.yaml   # without the kinds that are not installed
///   kubectl get secret -A --field-selector type=helm.sh/release.v1 -o yaml > releases.yaml
///   wva migrate -f all.yaml -f releases.yaml
///
/// It needs the right to list Deployments, ConfigMaps, VariantAutoscalings, HorizontalPodAutoscalers and ScaledObjects, to get
/// APIServices and CustomResourceDefinitions, and to list the Secrets in which Helm stores the releases of these objects. A
/// missing right is named, and everything else is shown.
///
/// The commands that switch, stop and remove are withheld until everything that they depend on was read, so also with -n.
///
/// Keep the output of the run before the first command: later runs show what is left, and no longer how everything was. A step that
/// failed may be run again.
///
/// Exit code: 0 if only the commands are to be run, 1 if a finding names a next step of its own, 2 if something could not be read.
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(super) struct Args {
    /// The cluster.
    #[command(flatten)]
    connection: ConnectionArgs,
    /// Read only this namespace and what belongs to the cluster. With -f: the namespace of objects that name none.
    #[arg(long, short, value_name = "NAMESPACE")]
    namespace: Option<String>,
    /// Manifests in YAML or JSON instead of a cluster: a file, a directory with such files, or - for standard input.
    #[arg(long = "filename", short = 'f', value_name = "FILE|DIR|-")]
    files: Vec<PathBuf>,
    /// The controller of WVA to replace, if there are several.
    #[arg(long, value_name = "NAMESPACE/NAME")]
    controller: Option<String>,
    /// Output format.
    #[arg(long, short, value_enum, default_value_t = OutputFormat::Text)]
    output: OutputFormat,
}

/// The format of the result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum OutputFormat {
    /// Text for people. Of a long section it shows the beginning.
    Text,
    /// JSON, for programs: everything.
    Json,
}

pub(super) fn main(args: &Args) -> ExitCode {
    exit_code(run(args))
}

fn run(args: &Args) -> Result<ExitCode, CommandError> {
    let mut objects = if args.files.is_empty() {
        cluster::read(&args.connection, args.namespace.as_deref())?
    } else {
        files::read(&args.files, args.namespace.as_deref())
    };
    if let Some(controller) = &args.controller {
        objects.choose_controller(controller)?;
    }
    let report = report(&objects);
    let mut out = io::stdout().lock();
    match args.output {
        OutputFormat::Text => out.write_all(text::render(&report).as_bytes())?,
        OutputFormat::Json => {
            serde_json::to_writer_pretty(&mut out, &report).map_err(io::Error::from)?;
            writeln!(out)?;
        }
    }
    Ok(match report.readiness() {
        Readiness::Ready => ExitCode::SUCCESS,
        Readiness::NeedsAction(_) => ExitCode::from(EXIT_NEEDS_ACTION),
        Readiness::Incomplete => ExitCode::from(EXIT_UNUSABLE_INPUT),
    })
}
