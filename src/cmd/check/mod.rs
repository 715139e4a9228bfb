//! `wva check`: whether an installation, its autoscalers and its configuration do what their authors mean.

mod api_services;
mod autoscalers;
mod definition;
mod fallback;
mod files;
mod gather;
mod inputs;
mod pickers;
mod policy;
mod prometheus;
mod report;
mod rights;
mod room;
mod rules;
mod settings;
mod text;

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use tokio::join;
use wva_core::Policy;

use self::inputs::Inputs;
use self::policy::Loaded;
use self::report::Report;
use self::settings::{POD_TOKEN, RELEASE_NAME, RELEASE_NAMESPACE, RuleSettings, Settings};
use crate::app::prometheus_settings;
use crate::cluster::ServiceRef;
use crate::cmd::api::{self, ConnectionArgs};
use crate::cmd::output::{CommandError, EXIT_FAILURE, EXIT_UNUSABLE_INPUT, exit_code};
use crate::cmd::terminal::StatusLine;
use crate::config::{
    ConfigMapArgs, Fallback, FallbackArgs, LEASE_NAME, RuleArgs, Source, SourceArgs, SourceKind,
    config_map_names, default_policy, lenient_bool, source,
};
use crate::engine::{Clock as _, SystemClock};

/// Check an installation, its autoscalers and its configuration, and say what to mend
///
/// Reads the cluster of your kubeconfig, or of the pod it runs in, and changes nothing:
///
///   wva check                                           # everything that you may read
///   wva check -n llm --output json                      # the variants and autoscalers of one namespace
///   wva check --prometheus-url https://prometheus:9090  # and whether each model has the series that it needs
///   kubectl exec -n wva-system deploy/wva -- /wva check  # with the settings and the rights of the program itself
///
/// Or reads files, without a cluster, before they are applied: ConfigMaps of wva, VariantAutoscalings, HPAs, ScaledObjects and
/// workloads, and policies as `wva decide --policy` takes them:
///
///   wva check --config wva-saturation-scaling-config.yaml --config manifests/
///
/// Each finding says what is set, what happens because of it, and the YAML that mends it. Severities:
///
///   error    the number is not followed, or is wrong
///   warning  it costs money, or somebody waits
///   note     worth knowing
///
/// Checked are: the API server and its version; each right that the program uses; the definition of VariantAutoscaling; the
/// APIServices of the metrics APIs, their owner and certificate; the server that metrics are passed on to; Prometheus, its clock, and
/// the series of each model; every HPA and ScaledObject that reads a number or scales a variant; the endpoint pickers of models that
/// may go to zero; how pods end; room on the nodes; the ConfigMaps; and the rules of prometheus-adapter. A check that cannot be made
/// is a finding of its own. docs/check.md explains each finding.
///
/// The rights are those of --service-account, else of the pod this runs in, else of ServiceAccount wva in --release-namespace.
///
/// Exit code: 0 if nothing is wrong, 1 if there is an error (with --strict: or a warning), 2 if something essential could not be
/// checked and no error was found.
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(super) struct Args {
    /// The cluster.
    #[command(flatten)]
    connection: ConnectionArgs,
    /// Check only the variants and autoscalers of this namespace. With --config: the namespace of objects that name none.
    #[arg(long, short, env = "WATCH_NAMESPACE", value_name = "NAMESPACE")]
    namespace: Option<String>,
    /// Namespace of the program. Default: that of the Service which serves external metrics, else wva-system.
    #[arg(long, env = "POD_NAMESPACE", value_name = "NAMESPACE")]
    release_namespace: Option<String>,
    /// ServiceAccount whose rights are checked.
    #[arg(long, value_name = "NAMESPACE/NAME", value_parser = settings::service_account)]
    service_account: Option<settings::ServiceAccount>,
    /// Check only objects whose label wva.llmd.ai/controller-instance has this value, as `wva serve` does.
    #[arg(long, env = "CONTROLLER_INSTANCE", value_name = "NAME")]
    controller_instance: Option<String>,
    /// Whether annotations make variants, as for `wva serve`.
    #[arg(long, env = "WVA_ANNOTATED_AUTOSCALERS", value_name = "BOOL", num_args = 0..=1, default_value = "true",
          default_missing_value = "true", value_parser = lenient_bool)]
    annotated_autoscalers: bool,
    /// Whether `wva serve` has this flag: HPAs with targets of the type Value are right.
    #[arg(long, env = "WVA_SERVE_VALUE_TARGETS", value_name = "BOOL", num_args = 0..=1, default_value = "false",
          default_missing_value = "true", value_parser = lenient_bool)]
    serve_value_targets: bool,
    /// Whether `wva serve` has this flag: it scales woken workloads itself, and needs the right to.
    #[arg(long, env = "WVA_WAKE_DIRECTLY", value_name = "BOOL", num_args = 0..=1, default_value = "false",
          default_missing_value = "true", value_parser = lenient_bool)]
    wake_directly: bool,
    /// Whether `wva serve` has this flag: it annotates pods, and needs the right to.
    #[arg(long, env = "WVA_POD_DELETION_COST", value_name = "BOOL", num_args = 0..=1, default_value = "false",
          default_missing_value = "true", value_parser = lenient_bool)]
    pod_deletion_cost: bool,
    /// As for `wva serve`: with it, ScaledObjects may be read one by one.
    #[arg(long, env = "WVA_EXTERNAL_SCALER_PORT", value_name = "PORT")]
    external_scaler_port: Option<u16>,
    /// Name of the Lease, as for `wva serve`.
    #[arg(long, env = "LEADER_ELECTION_ID", default_value = LEASE_NAME, value_name = "NAME")]
    lease_name: String,
    /// Whether `wva serve` has this flag: idle models go to zero.
    #[arg(long, env = "WVA_SCALE_TO_ZERO", value_name = "BOOL", num_args = 0..=1, default_value = "false",
          default_missing_value = "true", value_parser = lenient_bool)]
    scale_to_zero: bool,
    /// Check these files instead of a cluster: a file, a directory with .yaml, .yml and .json files, or - for standard input.
    #[arg(long = "config", value_name = "FILE|DIR|-")]
    files: Vec<PathBuf>,
    /// Exit with 1 for warnings too.
    #[arg(long)]
    strict: bool,
    /// Output format.
    #[arg(long, short, value_enum, default_value_t = OutputFormat::Text)]
    output: OutputFormat,
    /// Prometheus, by the flags of `wva serve`.
    #[command(flatten)]
    source: SourceArgs,
    /// ConfigMaps, by the flags of `wva serve`.
    #[command(flatten)]
    config_maps: ConfigMapArgs,
    /// The server that external metrics are passed on to, by the flags of `wva serve`.
    #[command(flatten)]
    fallback: FallbackArgs,
    /// Rules of prometheus-adapter, by the flags of `wva serve`.
    #[command(flatten)]
    rules: RuleArgs,
}

/// The format of the result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum OutputFormat {
    /// Text for people, by object.
    Text,
    /// JSON, for programs.
    Json,
}

pub(super) fn main(args: Args) -> ExitCode {
    exit_code(run(args))
}

fn run(args: Args) -> Result<ExitCode, CommandError> {
    let (output, strict) = (args.output, args.strict);
    let (files, connection) = (args.files.clone(), args.connection.clone());
    let settings = settings(args)?;
    let mut report = if files.is_empty() {
        api::install_tls_provider();
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        let runtime = runtime.map_err(|error| format!("cannot start: {error}"))?;
        runtime.block_on(async {
            let hint = "give --kubeconfig or --context, or files with --config";
            let client = api::client(&connection, hint).await?;
            check_cluster(&client, settings).await
        })?
    } else {
        check_files(&files, &settings)?
    };
    report.sort();
    let mut out = io::stdout().lock();
    match output {
        OutputFormat::Text => out.write_all(text::render(&report).as_bytes())?,
        OutputFormat::Json => {
            serde_json::to_writer_pretty(&mut out, &report.document()).map_err(io::Error::from)?;
            writeln!(out)?;
        }
    }
    Ok(match (report.fails(strict), report.is_incomplete()) {
        (true, _) => ExitCode::from(EXIT_FAILURE),
        (false, true) => ExitCode::from(EXIT_UNUSABLE_INPUT),
        (false, false) => ExitCode::SUCCESS,
    })
}

/// The settings of these arguments.
fn settings(args: Args) -> Result<Settings, String> {
    let namespace = args.namespace.filter(|name| !name.is_empty());
    let release = args.release_namespace.filter(|name| !name.is_empty());
    let is_scraping = args.source.source == SourceKind::Scrape;
    let rules = rule_settings(args.rules)?;
    let source = source(args.source, None).map_err(|error| error.to_string())?;
    let prometheus = match source {
        Source::Prometheus(prometheus) => Some(prometheus_settings(*prometheus)),
        Source::Scrape(_) => None,
    };
    let own = (release.as_deref().unwrap_or(RELEASE_NAMESPACE), RELEASE_NAME);
    let fallback = Fallback::of(args.fallback, own).map_err(|error| error.to_string())?;
    let is_in_pod = args.connection.is_default() && Path::new(POD_TOKEN).exists();
    Ok(Settings {
        namespace,
        is_in_pod,
        has_release: release.is_some(),
        service: ServiceRef {
            namespace: release.unwrap_or_else(|| RELEASE_NAMESPACE.into()),
            name: RELEASE_NAME.into(),
        },
        service_account: args.service_account,
        controller_instance: args.controller_instance.filter(|name| !name.is_empty()),
        lease: args.lease_name,
        annotated_autoscalers: args.annotated_autoscalers,
        serve_value_targets: args.serve_value_targets,
        main_config_map: args.config_maps.main_config_map.clone().filter(|name| !name.is_empty()),
        node_selector: args.config_maps.node_selector.clone().filter(|selector| !selector.is_empty()),
        config_maps: config_map_names(&args.config_maps).map_err(|error| error.to_string())?,
        policy: default_policy(Policy::default().max_stale, args.scale_to_zero),
        prometheus,
        is_scraping,
        wakes_directly: args.wake_directly,
        writes_deletion_costs: args.pod_deletion_cost,
        serves_external_scaler: args.external_scaler_port.is_some(),
        fallback,
        rules,
    })
}

fn rule_settings(args: RuleArgs) -> Result<RuleSettings, String> {
    let max_age = args.metrics_max_age.unwrap_or(args.metrics_relist_interval);
    Ok(RuleSettings {
        file: args.adapter_config.filter(|file| !file.as_os_str().is_empty()),
        max_age: max_age.try_into().map_err(|_| "--metrics-max-age is negative")?,
        serves_usage: args.serve_resource_metrics,
    })
}

/// Checks a cluster.
///
/// # Errors
/// When the API server cannot be reached at all.
async fn check_cluster(client: &kube::Client, mut settings: Settings) -> Result<Report, CommandError> {
    let mut report = Report::default();
    let mut status = StatusLine::new();
    status.show_now("asking the API server");
    let now = SystemClock.now();
    gather::check_version(client, &mut report).await?;
    let services = api_services::read(client).await;
    settings.adopt_release(services.release());
    status.show_now("listing objects, and reviewing rights");
    let (inputs, other) = join!(gather::read(client, &settings), async {
        let mut report = Report::default();
        let (rights, definition) =
            join!(rights::check(client, &settings), definition::check(client, &settings));
        report.merge(rights);
        report.merge(definition);
        report.merge(services.check(client, &settings, now).await);
        report.merge(fallback::check(client, &settings, services.external()).await);
        report
    });
    report.merge(other);
    status.show_now("judging autoscalers, and asking Prometheus");
    let loaded = policy::load(&inputs, &settings);
    report.merge(check_inputs(&inputs, &loaded, &settings));
    services.check_readers(&inputs, &settings, &mut report);
    services.check_explanations(&settings, &mut report);
    report.merge(prometheus::check(&loaded, &settings).await);
    report.merge(rules::check(client, &settings).await);
    report.merge(loaded.report);
    status.clear();
    Ok(report)
}

/// # Errors
/// When this program cannot run at all.
fn check_files(files: &[PathBuf], settings: &Settings) -> Result<Report, CommandError> {
    let (inputs, mut report) = files::read(files, settings);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    let runtime = runtime.map_err(|error| format!("cannot start: {error}"))?;
    report.merge(runtime.block_on(rules::check_texts(&inputs, settings)));
    let loaded = policy::load(&inputs, settings);
    report.merge(check_inputs(&inputs, &loaded, settings));
    report.merge(loaded.report);
    Ok(report)
}

/// What can be judged by the objects alone.
fn check_inputs(inputs: &Inputs, loaded: &Loaded, settings: &Settings) -> Report {
    let mut report = Report::default();
    if let Some(name) = &settings.main_config_map {
        report.add_unchecked(
            false,
            format!("ConfigMap {}/{name}", settings.service.namespace),
            "the settings in the main ConfigMap of the program are not read here",
            "# give those that matter, such as --prometheus-url, as flags",
        );
    }
    inputs.report_unread(&mut report);
    autoscalers::check(inputs, loaded, settings, &mut report);
    pickers::check(inputs, loaded, settings, &mut report);
    room::check(loaded, &mut report);
    report
}
