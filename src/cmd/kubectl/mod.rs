//! `wva kubectl`, and the same as the plugin `kubectl wva`: what the decisions about variants are, read through the API server.

mod read;

use std::ffi::OsString;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde_json::Value;
use wva_core::text::wrapped;

use self::read::Explanations;
use super::api::{self, ConnectionArgs};
use super::check;
use super::output::{CommandError, OutputFormat, exit_code, write_structured};
use super::terminal::{aligned, note};

/// The name by which `kubectl` finds its plugin `wva`.
const PLUGIN: &str = "kubectl-wva";
/// The subcommand.
const SUBCOMMAND: &str = "kubectl";
/// The width of a paragraph.
const LINE_WIDTH: usize = 100;

/// Show what is decided about variants and why, through the API server
///
/// As the plugin `kubectl wva`, this is the program under the name kubectl-wva in the PATH:
///
///   kubectl wva status -A           # all variants, with the reason of each number
///   kubectl wva explain llama -n llm
///   kubectl wva why-not llama -n llm # what keeps the number from being higher or lower
///   kubectl wva check               # `wva check`
///
/// Needs no port-forward and no token: it reads explanations.decisions.wva.llmd.ai with the rights of your kubeconfig, for which the
/// verbs get and list are needed. The chart grants both to everybody who may view a namespace. docs/kubectl.md has the details.
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(super) struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// Show all variants: current and desired replicas, and the reason
    Status(StatusArgs),
    /// Explain why a variant has its desired number of replicas
    Explain(VariantArgs),
    /// Say in one paragraph what keeps the number of a variant from being higher or lower
    WhyNot(VariantArgs),
    Check(Box<check::Args>),
}

/// Which cluster and namespace.
#[derive(Debug, clap::Args)]
struct TargetArgs {
    /// Kubeconfig file. Default: $KUBECONFIG, else ~/.kube/config, else the service account of the pod.
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig. Default: its current one.
    #[arg(long, value_name = "NAME")]
    context: Option<String>,
    /// Namespace. Default: that of the context.
    #[arg(long, short, value_name = "NAMESPACE")]
    namespace: Option<String>,
    /// Output format.
    #[arg(long, short, value_enum, default_value_t = OutputFormat::Table)]
    output: OutputFormat,
}

#[derive(Debug, clap::Args)]
struct StatusArgs {
    #[command(flatten)]
    target: TargetArgs,
    /// The variants of all namespaces.
    #[arg(long, short = 'A', conflicts_with = "namespace")]
    all_namespaces: bool,
}

#[derive(Debug, clap::Args)]
struct VariantArgs {
    /// The variant, with or without its namespace.
    #[arg(value_name = "[NAMESPACE/]NAME")]
    variant: String,
    #[command(flatten)]
    target: TargetArgs,
}

/// The words of a command line: those of the plugin become those of the subcommand.
pub(super) fn words(words: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let mut words: Vec<OsString> = words.into_iter().collect();
    let is_plugin = words.first().is_some_and(|program| {
        let stem = Path::new(program).file_stem().unwrap_or_default();
        // As kubectl does: an underscore in the name of the file stands for a dash.
        stem.to_string_lossy().replace('_', "-") == PLUGIN
    });
    if is_plugin {
        words.insert(1, SUBCOMMAND.into());
    }
    words
}

pub(super) fn main(args: Args) -> ExitCode {
    let run = |result: Result<(), CommandError>| exit_code(result.map(|()| ExitCode::SUCCESS));
    match args.action {
        Action::Check(args) => check::main(*args),
        Action::Status(args) => run(status(args)),
        Action::Explain(args) => run(explain(args)),
        Action::WhyNot(args) => run(why_not(args)),
    }
}

fn status(args: StatusArgs) -> Result<(), CommandError> {
    let namespace = if args.all_namespaces { Some(String::new()) } else { args.target.namespace.clone() };
    let output = args.target.output;
    let read = with_cluster(args.target, namespace, async |explanations: Explanations| match output {
        OutputFormat::Table => explanations.table().await,
        OutputFormat::Json | OutputFormat::Yaml => explanations.list().await,
    })?;
    let mut out = io::stdout().lock();
    if output != OutputFormat::Table {
        return Ok(write_structured(&mut out, &read, output)?);
    }
    let rows = read::rows(&read);
    if rows.len() <= 1 {
        note("there are no variants here; -A shows those of all namespaces");
        return Ok(());
    }
    for line in aligned(&rows, rows.first().map_or(0, Vec::len)) {
        writeln!(out, "{line}")?;
    }
    Ok(())
}

fn explain(args: VariantArgs) -> Result<(), CommandError> {
    let output = args.target.output;
    let explanation = read_variant(args)?;
    let mut out = io::stdout().lock();
    match output {
        OutputFormat::Table => out.write_all(text_of(&explanation, "/text").as_bytes())?,
        format => write_structured(&mut out, &explanation, format)?,
    }
    Ok(())
}

fn why_not(args: VariantArgs) -> Result<(), CommandError> {
    let output = args.target.output;
    let explanation = read_variant(args)?;
    let mut out = io::stdout().lock();
    match (output, explanation.get("whyNot")) {
        (OutputFormat::Table, Some(_)) => {
            for line in wrapped(text_of(&explanation, "/whyNot/text"), LINE_WIDTH) {
                writeln!(out, "{line}")?;
            }
        }
        (OutputFormat::Table, None) => out.write_all(text_of(&explanation, "/text").as_bytes())?,
        // Without a decision, its state says so.
        (format, why_not) => write_structured(&mut out, why_not.unwrap_or(&explanation), format)?,
    }
    Ok(())
}

fn text_of<'a>(explanation: &'a Value, pointer: &str) -> &'a str {
    explanation.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

fn read_variant(args: VariantArgs) -> Result<Value, CommandError> {
    let VariantArgs { variant, target } = args;
    let (namespace, name) = match variant.split_once('/') {
        Some((namespace, name)) => {
            if target.namespace.as_deref().is_some_and(|given| given != namespace) {
                return Err(format!("{variant}: -n names another namespace; give one of the two").into());
            }
            (Some(namespace.to_owned()), name.to_owned())
        }
        None => (target.namespace.clone(), variant),
    };
    if name.is_empty() || name.contains('/') || namespace.as_deref() == Some("") {
        return Err("give the variant as NAME or NAMESPACE/NAME, as llm/llama".to_owned().into());
    }
    with_cluster(target, namespace, async |explanations: Explanations| explanations.get(&name).await)
}

/// Runs `read` on the cluster. No namespace is that of the context, an empty one is all of them.
fn with_cluster(
    target: TargetArgs,
    namespace: Option<String>,
    read: impl AsyncFnOnce(Explanations) -> Result<Value, String>,
) -> Result<Value, CommandError> {
    api::install_tls_provider();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| format!("cannot start: {error}"))?;
    let TargetArgs { kubeconfig, context, .. } = target;
    let connection = ConnectionArgs::new(kubeconfig, context);
    Ok(runtime.block_on(async {
        let client = api::client(&connection, "give --kubeconfig or --context").await?;
        let namespace = namespace.unwrap_or_else(|| client.default_namespace().to_owned());
        read(Explanations { client, namespace }).await
    })?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_the_program_makes_it_a_plugin() {
        let words = |program: &str| -> Vec<String> {
            let words = words([program, "status", "-A"].map(OsString::from));
            words.into_iter().map(|word| word.into_string().unwrap()).collect()
        };
        for program in ["kubectl-wva", "/usr/local/bin/kubectl-wva", "kubectl-wva.exe", "bin/kubectl_wva"] {
            assert_eq!(words(program), [program, "kubectl", "status", "-A"]);
        }
        for program in ["wva", "/manager", "kubectl", "kubectl-wva-old"] {
            assert_eq!(words(program), [program, "status", "-A"]);
        }
    }
}
