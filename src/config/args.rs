//! The command line of `wva serve` as typed: every flag with its environment variable and its help.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use jiff::SignedDuration;

use super::fallback::FallbackArgs;
use super::installations::InstallationArgs;
use super::label_matchers::label_matchers;
use super::legacy::LegacyFlags;
use super::parsers::{
    collector, lease_retry_period, lease_time, lenient_bool, log_level, namespace_or_empty, parse_bytes,
    path_or_empty, port_of_address, verbosity,
};
use super::secret::Secret;

/// What upstream's manifests mean by leaving `POD_NAMESPACE` out.
pub(super) const DEFAULT_NAMESPACE: &str = "workload-variant-autoscaler-system";
/// The chart's Service.
pub(super) const DEFAULT_SERVICE: &str = "wva";
/// The Lease's name unless configured: the one that every WVA installation has.
pub const LEASE_NAME: &str = "72dd1cf1.llm-d.ai";
/// Where `/metrics`, health and the API are served unless configured.
pub(super) const DEFAULT_PORT: u16 = 8443;
/// What is logged by default.
pub(super) const DEFAULT_LOG_LEVEL: &str = "info";

/// Upstream's names of its ConfigMaps; the last two are those of its older releases.
pub(super) const SATURATION: &str = "wva-saturation-scaling-config";
pub(super) const SCALE_TO_ZERO: &str = "wva-model-scale-to-zero-config";
pub(super) const QUEUEING_MODEL: &str = "wva-queueing-model-config";
pub(super) const SERVICE_CLASSES: &str = "service-classes-config";
pub(super) const ACCELERATOR_COSTS: &str = "accelerator-unit-costs";

/// Serve the desired replicas of LLM serving variants as external and custom metrics.
///
/// Serves `external.metrics.k8s.io/v1beta1` behind the API aggregator. Give a HorizontalPodAutoscaler an External metric named
/// `wva_desired_replicas` with the target `AverageValue: "1"`: it follows the number that is computed here from live inference
/// metrics and the VariantAutoscaling objects. In a cluster, install the Helm chart; elsewhere, run this command with
/// `--kubeconfig`. Each flag can also be set by the environment variable shown beside it; the flag takes precedence.
#[derive(Debug, Clone, clap::Args)]
#[command(
    args_override_self = true, // of a repeated flag the last counts, as in Go
    after_help = "The flags of WVA's controllers, such as --leader-elect and --config-file, are accepted as well: \
                        docs/configuration.md says what each one does."
)]
pub struct ServeArgs {
    /// Kubernetes.
    #[command(flatten)]
    pub cluster: ClusterArgs,
    /// The endpoint.
    #[command(flatten)]
    pub serving: ServingArgs,
    /// Other installations.
    #[command(flatten)]
    pub installations: InstallationArgs,
    /// Metrics.
    #[command(flatten)]
    pub source: SourceArgs,
    /// Rules.
    #[command(flatten)]
    pub rules: RuleArgs,
    /// OpenTelemetry.
    #[command(flatten)]
    pub otlp: OtlpArgs,
    /// Pass-through.
    #[command(flatten)]
    pub fallback: FallbackArgs,
    /// Decisions.
    #[command(flatten)]
    pub decision: DecisionArgs,
    /// Recordings.
    #[command(flatten)]
    pub record: RecordArgs,
    /// ConfigMaps.
    #[command(flatten)]
    pub config_maps: ConfigMapArgs,
    /// Logs.
    #[command(flatten)]
    pub log: LogArgs,
    /// WVA's configuration file.
    #[arg(long, hide = true, value_parser = path_or_empty(), value_name = "FILE")]
    pub config_file: Option<PathBuf>,
    /// WVA's flags without effect.
    #[command(flatten)]
    pub legacy: LegacyFlags,
}

/// How to reach Kubernetes and what to watch.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Kubernetes")]
pub struct ClusterArgs {
    /// Kubeconfig file with credentials for the API server. Default: the pod's service account.
    #[arg(long, env = "KUBECONFIG", value_parser = path_or_empty(), value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Namespace this instance runs in. Its Lease, Secret and state ConfigMaps are kept there.
    #[arg(long, env = "POD_NAMESPACE", default_value = DEFAULT_NAMESPACE)]
    pub namespace: String,
    /// Identity of this instance in the Lease. Must be unique. Default: the host name and the process ID.
    #[arg(long, env = "POD_NAME", value_name = "NAME")]
    pub instance: Option<String>,
    /// URL at which other instances reach this one, such as https://host:port. Default: the pod IP (POD_IP), else the bind
    /// address, with the secure port.
    #[arg(long, value_name = "URL")]
    pub advertise_address: Option<String>,
    /// IP address of this pod.
    #[arg(long, env = "POD_IP", hide = true)]
    pub pod_ip: Option<String>,
    /// Service in front of this program. The serving certificate is issued for its DNS name.
    #[arg(long, env = "WVA_SERVICE_NAME", default_value = DEFAULT_SERVICE, value_name = "NAME")]
    pub service_name: String,
    /// Watch only this namespace. Default: all namespaces.
    #[arg(long, env = "WATCH_NAMESPACE", value_name = "NAMESPACE")]
    pub watch_namespace: Option<String>,
    /// Handle only VariantAutoscalings and annotated autoscalers whose label wva.llmd.ai/controller-instance has this value.
    /// Default: all of them.
    #[arg(long, env = "CONTROLLER_INSTANCE", value_name = "NAME")]
    pub controller_instance: Option<String>,
    /// Treat HorizontalPodAutoscalers and KEDA's ScaledObjects with the annotation llm-d.ai/managed "true" as variants. With false,
    /// they are not watched.
    #[arg(long, env = "WVA_ANNOTATED_AUTOSCALERS", num_args = 0..=1, default_value = "true",
          default_missing_value = "true", value_parser = lenient_bool, value_name = "BOOL")]
    pub annotated_autoscalers: bool,
    /// Name of the Lease that elects the instance that decides. Instances with different names decide independently.
    #[arg(long, env = "LEADER_ELECTION_ID", alias = "leader-election-id", default_value = LEASE_NAME, value_name = "NAME")]
    pub lease_name: String,
    /// Time for which the Lease stays valid without a renewal, 8s to 1h. After a crash of the leader, no new number is computed for
    /// this long.
    #[arg(long, env = "LEADER_ELECTION_LEASE_DURATION", alias = "leader-election-lease-duration", default_value = "15s",
          value_parser = lease_time, value_name = "DURATION")]
    pub lease_duration: Duration,
    /// Time for which the leader decides without a renewal, 8s to 1h, and less than --lease-duration.
    #[arg(long, env = "LEADER_ELECTION_RENEW_DEADLINE", alias = "leader-election-renew-deadline", default_value = "10s",
          value_parser = lease_time, value_name = "DURATION")]
    pub lease_renew_deadline: Duration,
    /// Time between two attempts to renew or to take the Lease, 1s to 1h, and less than five sixths of --lease-renew-deadline.
    #[arg(long, env = "LEADER_ELECTION_RETRY_PERIOD", alias = "leader-election-retry-period", default_value = "2s",
          value_parser = lease_retry_period, value_name = "DURATION")]
    pub lease_retry_period: Duration,
}

/// Where to listen and with which certificate.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Serving")]
pub struct ServingArgs {
    /// Serve the number divided by the Ready pods to HPAs with targets of the type Value, which multiply it by them, where all HPAs
    /// that read a variant have such targets. For HPAs that cannot be changed to AverageValue, as those of KServe.
    #[arg(long, env = "WVA_SERVE_VALUE_TARGETS", num_args = 0..=1, default_value = "false",
          default_missing_value = "true", value_parser = lenient_bool, value_name = "BOOL")]
    pub serve_value_targets: bool,
    /// Address to listen on. `::` listens on all addresses, IPv4 included.
    #[arg(long, default_value = "::", value_name = "IP")]
    pub bind_address: IpAddr,
    /// Port to listen on (HTTPS). Default: 8443.
    #[arg(long, value_name = "PORT")]
    pub secure_port: Option<u16>,
    /// Port on which KEDA's external scaler is served too (gRPC over TLS), for triggers of the types external and external-push. Default:
    /// none.
    #[arg(long, env = "WVA_EXTERNAL_SCALER_PORT", value_name = "PORT")]
    pub external_scaler_port: Option<u16>,
    /// WVA's address of /metrics, of which the port is used. 0, which switches it off there, counts as unset.
    #[arg(long, hide = true, value_parser = port_of_address, value_name = "ADDRESS")]
    pub metrics_bind_address: Option<u16>,
    /// Directory with tls.crt and tls.key, such as a mounted Secret. If both are missing, a self-signed pair for the Service's
    /// names, valid for one year, is written there; clients must then be configured to trust it.
    #[arg(long, value_name = "DIR")]
    pub cert_dir: Option<PathBuf>,
    /// Serving certificate chain, PEM. Default: all instances share a CA and a certificate that they create in a Secret, and
    /// keep the caBundle of the APIServices up to date.
    #[arg(long, value_name = "FILE", requires = "tls_private_key_file", conflicts_with = "cert_dir")]
    pub tls_cert_file: Option<PathBuf>,
    /// Private key of the serving certificate, PEM.
    #[arg(long, value_name = "FILE", requires = "tls_cert_file")]
    pub tls_private_key_file: Option<PathBuf>,
    /// Time that each step of a rotation of the shared CA (announce the new CA, serve with it, drop the old one) is given to
    /// reach every API server and instance. At least 1s.
    #[arg(long, default_value = "5m", value_name = "DURATION")]
    pub ca_settle_duration: SignedDuration,
    /// Time after SIGTERM in which requests are still served while endpoints and load balancers remove this instance.
    #[arg(long, default_value = "5s", value_name = "DURATION")]
    pub shutdown_delay_duration: SignedDuration,
    /// Close a connection gracefully at about this age (±10 %), so that an API server, which keeps one connection for all its
    /// requests, can move to another instance. At least 1m; 0s disables it.
    #[arg(long, default_value = "10m", value_name = "DURATION")]
    pub max_connection_age: SignedDuration,
}

/// Where metrics come from.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Metrics")]
pub struct SourceArgs {
    /// Source of inference metrics: prometheus, or scrape to read the pods directly. `auto` uses Prometheus if its URL is set,
    /// else scrapes.
    #[arg(long, env = "WVA_SOURCE", value_enum, default_value_t = SourceKind::Auto)]
    pub source: SourceKind,
    /// Base URL of Prometheus, Thanos, Mimir or VictoriaMetrics.
    #[arg(long, env = "PROMETHEUS_BASE_URL", hide_env_values = true, value_name = "URL")]
    pub prometheus_url: Option<Secret>,
    /// Bearer token for Prometheus. Prefer --prometheus-token-path.
    #[arg(long, env = "PROMETHEUS_BEARER_TOKEN", hide_env_values = true, value_name = "TOKEN")]
    pub prometheus_bearer_token: Option<Secret>,
    /// File with a bearer token for Prometheus. Reloaded when it changes.
    #[arg(long, env = "PROMETHEUS_TOKEN_PATH", value_parser = path_or_empty(), value_name = "FILE")]
    pub prometheus_token_path: Option<PathBuf>,
    /// Header of every request to Prometheus, such as 'X-Scope-OrgID: team', which names the tenant of Mimir, or 'THANOS-TENANT:
    /// team'. With 'NAME: @FILE', the value is read from a file: it counts as a secret, is sent over https only, and is reloaded
    /// when it changes. So does a value whose name contains auth, credential, key, password, secret or token. May be repeated; in
    /// the variable, one a line.
    #[arg(
        long,
        env = "PROMETHEUS_HEADER",
        hide_env_values = true,
        value_delimiter = '\n',
        value_name = "NAME: VALUE"
    )]
    pub prometheus_header: Vec<Secret>,
    /// CA certificates to verify Prometheus with, PEM. Default: those of the system.
    #[arg(long, env = "PROMETHEUS_CA_CERT_PATH", value_parser = path_or_empty(), value_name = "FILE")]
    pub prometheus_ca_cert_path: Option<PathBuf>,
    /// Client certificate for Prometheus, PEM. Requires --prometheus-client-key-path.
    #[arg(long, env = "PROMETHEUS_CLIENT_CERT_PATH", value_parser = path_or_empty(), value_name = "FILE")]
    pub prometheus_client_cert_path: Option<PathBuf>,
    /// Private key of the client certificate, PEM.
    #[arg(long, env = "PROMETHEUS_CLIENT_KEY_PATH", value_parser = path_or_empty(), value_name = "FILE")]
    pub prometheus_client_key_path: Option<PathBuf>,
    /// Name to verify in Prometheus's certificate. Default: the host of the URL.
    #[arg(long, env = "PROMETHEUS_SERVER_NAME", value_name = "NAME")]
    pub prometheus_server_name: Option<String>,
    /// Accept any certificate from Prometheus. Insecure: whoever intercepts the connection can set every number.
    #[arg(long, env = "PROMETHEUS_TLS_INSECURE_SKIP_VERIFY", num_args = 0..=1, default_value = "false",
          default_missing_value = "true", value_parser = lenient_bool, value_name = "BOOL")]
    pub prometheus_tls_insecure_skip_verify: bool,
    /// Maximum number of series in one query. A larger query is split by namespace, and within a namespace by signal.
    #[arg(long, default_value_t = 20_000, value_name = "COUNT")]
    pub max_series: u64,
    /// Label matchers of every query, as between the braces of a PromQL selector, such as 'cluster="eu-1"': where one server has
    /// the metrics of several clusters, they select this one. May be repeated.
    #[arg(long, env = "PROMETHEUS_QUERY_MATCHER", value_parser = label_matchers, value_name = "MATCHERS")]
    pub query_matcher: Vec<String>,
    /// The only namespaces that queries name, besides those of --trusted-collectors. A variant in another one has no metrics, and
    /// its status says why. May be repeated. Default: the namespace of --watch-namespace, else all that have variants.
    #[arg(long, env = "PROMETHEUS_QUERY_NAMESPACE", value_delimiter = ',', value_parser = namespace_or_empty,
          value_name = "NAMESPACE,…")]
    pub query_namespace: Vec<String>,
    /// Scrape targets (collectors, or a scheduler outside its models' namespace) whose metrics may be about pods of other
    /// namespaces, each as namespace or namespace/job. Of all other targets only the target's own namespace and pod labels
    /// count, because a pod can write any other label. Default: none.
    #[arg(long, value_delimiter = ',', value_parser = collector, value_name = "NAMESPACE[/JOB],…")]
    pub trusted_collectors: Vec<String>,
    /// Scheme for scraping pods. With https and neither a token nor a CA, any certificate is accepted.
    #[arg(long, default_value = "http", value_parser = ["http", "https"], value_name = "SCHEME")]
    pub scrape_scheme: String,
    /// Path for scraping pods, unless a pod has the annotation prometheus.io/path, or runs trtllm-serve.
    #[arg(long, default_value = "/metrics", value_name = "PATH")]
    pub scrape_path: String,
    /// File with a bearer token for scraping pods. Reloaded when it changes; sent over https only.
    #[arg(long, value_name = "FILE")]
    pub scrape_token_path: Option<PathBuf>,
    /// CA certificates to verify scraped pods with, PEM. Default: those of the system if a token is set.
    #[arg(long, value_name = "FILE")]
    pub scrape_ca_cert_path: Option<PathBuf>,
}

/// Where metrics come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum SourceKind {
    /// Prometheus when its URL is given, else scrape.
    Auto,
    /// Prometheus.
    Prometheus,
    /// The pods' own metrics endpoints.
    Scrape,
}

/// Metrics by the rules of prometheus-adapter. Its flags of these names mean the same here.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Rules of prometheus-adapter")]
pub struct RuleArgs {
    /// File with rules of prometheus-adapter (its --config): the metrics of its rules and externalRules are served beside those of
    /// variants. It is read again when it changes. Needs --prometheus-url.
    #[arg(long, env = "WVA_ADAPTER_CONFIG", value_parser = path_or_empty(), value_name = "FILE")]
    pub adapter_config: Option<PathBuf>,
    /// How often the series of the rules are listed anew, 1s or more.
    #[arg(long, env = "WVA_METRICS_RELIST_INTERVAL", default_value = "1m", value_name = "DURATION")]
    pub metrics_relist_interval: SignedDuration,
    /// A series without a sample for so long makes no metric. Default: --metrics-relist-interval, which it may not be below.
    #[arg(long, env = "WVA_METRICS_MAX_AGE", value_name = "DURATION")]
    pub metrics_max_age: Option<SignedDuration>,
    /// Serve metrics.k8s.io too, by the resourceRules of the file: processor time and memory of pods and nodes, which HPAs and kubectl top
    /// read. Usually metrics-server does.
    #[arg(long, env = "WVA_SERVE_RESOURCE_METRICS")]
    pub serve_resource_metrics: bool,
}

/// Where the numbers are pushed.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "OpenTelemetry")]
pub struct OtlpArgs {
    /// URL of an OpenTelemetry collector, or of another receiver of OTLP over HTTP, such as `http://collector.observability:4318`: the leader
    /// pushes the desired replicas there. Without a path, /v1/metrics is added.
    #[arg(long, env = "WVA_OTLP_ENDPOINT", value_name = "URL")]
    pub otlp_endpoint: Option<String>,
    /// How often, 1s or more.
    #[arg(long, env = "WVA_OTLP_INTERVAL", default_value = "15s", value_name = "DURATION")]
    pub otlp_interval: SignedDuration,
    /// PEM file of the CA of the receiver's certificate. Default: the system's.
    #[arg(long, env = "WVA_OTLP_CA_FILE", value_parser = path_or_empty(), value_name = "FILE")]
    pub otlp_ca_file: Option<PathBuf>,
}

/// When a number changes and when it is too old.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Decisions")]
pub struct DecisionArgs {
    /// Time between two background evaluations, at least 100ms. Evaluations take at most a quarter of the time: slow ones run
    /// less often.
    #[arg(long, default_value = "5s", value_name = "DURATION")]
    pub interval: SignedDuration,
    /// Maximum age of a result that a read is answered with. A read of an older one waits for a new evaluation, which all
    /// readers share.
    #[arg(long, default_value = "2s", value_name = "DURATION")]
    pub max_age: SignedDuration,
    /// Maximum time that a read waits for a new result, at least 100ms. After that it gets the last result, with its age.
    #[arg(long, default_value = "1s", value_name = "DURATION")]
    pub read_wait: SignedDuration,
    /// Maximum age of the newest evidence behind a number, at least 45s. An older number is an error instead: the HPA holds its
    /// replicas and shows the cause in its conditions.
    #[arg(long, default_value = "5m", value_name = "DURATION")]
    pub max_stale: SignedDuration,
    /// Scale a model to zero after 10 minutes without requests, if every variant of it has minReplicas 0, and a request would wake
    /// it: its scheduler's queue is measured, or the annotation wva.llmd.ai/woken-by of an object says what else wakes it.
    /// ConfigMaps override this.
    #[arg(long, env = "WVA_SCALE_TO_ZERO", num_args = 0..=1, default_value = "false",
          default_missing_value = "true", value_parser = lenient_bool, value_name = "BOOL")]
    pub scale_to_zero: bool,
    /// Before a variant scales down, annotate the pods with the fewest requests in flight with
    /// controller.kubernetes.io/pod-deletion-cost, so that the ReplicaSet deletes them instead of the youngest. Requires the
    /// right to patch pods (chart value podDeletionCost), and reads up to two more series of each pod.
    #[arg(long, env = "WVA_POD_DELETION_COST", num_args = 0..=1, default_value = "false",
          default_missing_value = "true", value_parser = lenient_bool, value_name = "BOOL")]
    pub pod_deletion_cost: bool,
    /// When a request waits for a model at zero, scale its workload from zero to the published number at once, instead of leaving that
    /// to its autoscaler. Requires the right to get and patch scale subresources (chart value wakeDirectly).
    #[arg(long, env = "WVA_WAKE_DIRECTLY", num_args = 0..=1, default_value = "false",
          default_missing_value = "true", value_parser = lenient_bool, value_name = "BOOL")]
    pub wake_directly: bool,
}

/// Which evaluations are kept, and where.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Recording")]
pub struct RecordArgs {
    /// Number of recent evaluations to keep in memory with all their inputs, for /debug/snapshots and `wva explain --server`.
    /// 0 keeps none.
    #[arg(long, default_value_t = 2, value_name = "COUNT")]
    pub record_snapshots: usize,
    /// Maximum size of these evaluations together, as they are sent; they take about half of it in memory. One variant with two
    /// pods takes 10 to 40 KiB. An evaluation that is larger than this is not kept.
    #[arg(long, default_value = "16Mi", value_parser = parse_bytes, value_name = "BYTES")]
    pub record_snapshots_size: u64,
    /// Append every evaluation to a file in this directory, for `wva replay`. Evaluations never wait for the disk: if it is
    /// slow, some are dropped and counted. Several instances may share the directory. Default: no files.
    #[arg(long, env = "WVA_RECORD_DIR", value_parser = path_or_empty(), value_name = "DIR")]
    pub record_dir: Option<PathBuf>,
    /// Maximum size of all recordings in the directory. The oldest file is deleted first, also when the disk is full.
    #[arg(long, default_value = "256Mi", value_parser = parse_bytes, value_name = "BYTES")]
    pub record_max_size: u64,
    /// Size at which a new file is started, at most a quarter of --record-max-size. Default: an eighth of it.
    #[arg(long, value_parser = parse_bytes, value_name = "BYTES")]
    pub record_file_size: Option<u64>,
}

/// ConfigMaps in the namespace of this program; of the first three, one in a namespace of variants takes its place there.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "ConfigMaps")]
pub struct ConfigMapArgs {
    /// ConfigMap with thresholds, analyzers and limits. Reloaded when it changes; an entry that becomes invalid keeps its last
    /// valid text.
    #[arg(long, env = "SATURATION_CONFIG_MAP_NAME", default_value = SATURATION, value_name = "NAME")]
    pub saturation_config_map: String,
    /// ConfigMap that says which models scale to zero.
    #[arg(long, env = "SCALE_TO_ZERO_CONFIG_MAP_NAME", default_value = SCALE_TO_ZERO, value_name = "NAME")]
    pub scale_to_zero_config_map: String,
    /// ConfigMap of the queueing model. If it has an entry `default`, the queueing model decides about every model.
    #[arg(long, env = "QUEUEING_MODEL_CONFIG_MAP_NAME", default_value = QUEUEING_MODEL, value_name = "NAME")]
    pub queueing_model_config_map: String,
    /// ConfigMap with service classes, for the analyzer inferno.
    #[arg(long, env = "SERVICE_CLASSES_CONFIG_MAP_NAME", default_value = SERVICE_CLASSES, value_name = "NAME")]
    pub service_classes_config_map: String,
    /// ConfigMap with the costs of accelerators, for the analyzer inferno.
    #[arg(long, env = "ACCELERATOR_COSTS_CONFIG_MAP_NAME", default_value = ACCELERATOR_COSTS, value_name = "NAME")]
    pub accelerator_costs_config_map: String,
    /// ConfigMap with settings of this command, in place of a --config-file: its keys are the names of variables, or its key
    /// config.yaml contains them. Read when the program starts. Whoever may write it controls this program.
    #[arg(long, env = "CONFIG_MAP_NAME", value_name = "NAME")]
    pub main_config_map: Option<String>,
    /// Label selector of the nodes whose GPUs count when the cluster's GPUs limit additions. Default: all nodes.
    #[arg(long, env = "WVA_NODE_SELECTOR", value_name = "SELECTOR")]
    pub node_selector: Option<String>,
}

/// Logs.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Logs")]
pub struct LogArgs {
    /// Log level (error, warn, info, debug, trace), or a list of filters such as info,wva::collect=debug.
    #[arg(long, env = "LOG_LEVEL", default_value = DEFAULT_LOG_LEVEL, value_name = "FILTER")]
    pub log_level: String,
    /// Log one JSON object per line instead of text.
    #[arg(long)]
    pub log_json: bool,
    /// WVA's verbosity, which takes precedence.
    #[arg(short = 'v', long = "v", hide = true, value_parser = verbosity, value_name = "NUMBER")]
    pub verbosity: Option<&'static str>,
    /// The level of WVA's logger, which takes precedence over that of this program.
    #[arg(long, hide = true, value_parser = log_level, value_name = "LEVEL")]
    pub zap_log_level: Option<&'static str>,
    /// The format of WVA's logger: json or console.
    #[arg(long, hide = true, value_parser = ["json", "console"], value_name = "FORMAT")]
    pub zap_encoder: Option<String>,
}

impl LogArgs {
    /// The filter; an empty one is the default.
    #[must_use]
    pub fn filter(&self) -> &str {
        let own = if self.log_level.is_empty() { DEFAULT_LOG_LEVEL } else { &self.log_level };
        self.verbosity.or(self.zap_log_level).unwrap_or(own)
    }

    /// Whether each line is a JSON object.
    #[must_use]
    pub fn is_json(&self) -> bool {
        self.log_json || self.zap_encoder.as_deref() == Some("json")
    }
}
