//! The command line of `wva serve` as typed: every flag with its environment name and its help.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::builder::{OsStringValueParser, TypedValueParser};
use jiff::SignedDuration;

use super::config_map_args::ConfigMapArgs;
use super::record_args::RecordArgs;

/// What upstream's manifests mean by leaving `POD_NAMESPACE` out.
pub(super) const DEFAULT_NAMESPACE: &str = "workload-variant-autoscaler-system";
/// The chart's Service.
pub(super) const DEFAULT_SERVICE: &str = "wva";
/// Upstream's lease.
pub(super) const DEFAULT_LEASE: &str = "72dd1cf1.llm-d.ai";
/// What is logged by default.
pub(super) const DEFAULT_LOG_LEVEL: &str = "info";

/// Answer the external metrics API for HorizontalPodAutoscalers.
///
/// Serves `external.metrics.k8s.io/v1beta1` behind the API aggregator: an HPA with an External metric named
/// `wva_desired_replicas` and target `AverageValue: "1"` follows the number computed here from live inference
/// metrics and the VariantAutoscaling objects. Run it through the Helm chart in a cluster, or by hand with
/// `--kubeconfig`. Every flag can be given by the environment variable named beside it; a flag wins.
#[derive(Debug, Clone, clap::Args)]
pub struct ServeArgs {
    /// Kubernetes.
    #[command(flatten)]
    pub cluster: ClusterArgs,
    /// The endpoint.
    #[command(flatten)]
    pub serving: ServingArgs,
    /// Metrics.
    #[command(flatten)]
    pub source: SourceArgs,
    /// Decisions.
    #[command(flatten)]
    pub decision: DecisionArgs,
    /// What is kept.
    #[command(flatten)]
    pub record: RecordArgs,
    /// ConfigMaps.
    #[command(flatten)]
    pub config_maps: ConfigMapArgs,
    /// Logs.
    #[command(flatten)]
    pub log: LogArgs,
}

/// How to reach Kubernetes and what to look at.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Kubernetes")]
pub struct ClusterArgs {
    /// Credentials for the API server; without it the pod's service account is used.
    #[arg(long, env = "KUBECONFIG", value_parser = path_or_empty(), value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// The namespace this program runs in: home of its lease, its Secret and its state objects.
    #[arg(long, env = "POD_NAMESPACE", default_value = DEFAULT_NAMESPACE)]
    pub namespace: String,
    /// This instance's identity in the lease.
    #[arg(long, env = "POD_NAME", value_name = "NAME")]
    pub instance: Option<String>,
    /// Where other instances reach this one, as https://host:port. By default the pod's IP (POD_IP) or the bind
    /// address, with the secure port.
    #[arg(long, value_name = "URL")]
    pub advertise_address: Option<String>,
    /// This pod's IP.
    #[arg(long, env = "POD_IP", hide = true)]
    pub pod_ip: Option<String>,
    /// The Service in front of this program; its DNS name is in the certificate.
    #[arg(long, env = "WVA_SERVICE_NAME", default_value = DEFAULT_SERVICE, value_name = "NAME")]
    pub service_name: String,
    /// Look at this namespace only.
    #[arg(long, env = "WATCH_NAMESPACE", value_name = "NAMESPACE")]
    pub watch_namespace: Option<String>,
    /// Look only at VariantAutoscalings labelled wva.llmd.ai/controller-instance with this value.
    #[arg(long, env = "CONTROLLER_INSTANCE", value_name = "NAME")]
    pub controller_instance: Option<String>,
    /// The name of the lease.
    #[arg(long, env = "LEADER_ELECTION_ID", default_value = DEFAULT_LEASE, value_name = "NAME")]
    pub lease_name: String,
}

/// Where to listen and with which certificate.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Serving")]
pub struct ServingArgs {
    /// The address to listen on; :: is every address, IPv4 included.
    #[arg(long, default_value = "::", value_name = "IP")]
    pub bind_address: IpAddr,
    /// The port to listen on.
    #[arg(long, default_value_t = 8443, value_name = "PORT")]
    pub secure_port: u16,
    /// A directory with tls.crt and tls.key (a mounted Secret). When neither is there, as with any API server a self-signed
    /// pair for the Service's names, good for a year, is written there and used: whoever calls must be told to trust it.
    #[arg(long, value_name = "DIR")]
    pub cert_dir: Option<PathBuf>,
    /// The serving certificate, PEM. Without one, all instances share a self-made CA and certificate in a Secret, and
    /// this program keeps the APIService's caBundle right.
    #[arg(long, value_name = "FILE", requires = "tls_private_key_file", conflicts_with = "cert_dir")]
    pub tls_cert_file: Option<PathBuf>,
    /// The key of the serving certificate, PEM.
    #[arg(long, value_name = "FILE", requires = "tls_cert_file")]
    pub tls_private_key_file: Option<PathBuf>,
    /// When the self-made CA is replaced: how long each step (announce the new CA, serve with it, forget the old one) is
    /// left to reach every API server and instance.
    #[arg(long, default_value = "5m", value_name = "DURATION")]
    pub ca_settle_duration: SignedDuration,
    /// After SIGTERM: how long requests are still answered while endpoints and balancers learn that we go.
    #[arg(long, default_value = "5s", value_name = "DURATION")]
    pub shutdown_delay_duration: SignedDuration,
    /// Ask a connection to leave after about this long (a tenth more or less), between two requests: an API server keeps
    /// one connection for all it asks, and its next one may go to another instance. 0s: never.
    #[arg(long, default_value = "10m", value_name = "DURATION")]
    pub max_connection_age: SignedDuration,
}

/// Where metrics come from.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Metrics")]
pub struct SourceArgs {
    /// Where inference metrics are read: auto takes Prometheus when its URL is given, else the pods themselves.
    #[arg(long, value_enum, default_value_t = SourceKind::Auto)]
    pub source: SourceKind,
    /// Prometheus, Thanos or Mimir.
    #[arg(long, env = "PROMETHEUS_BASE_URL", value_name = "URL")]
    pub prometheus_url: Option<String>,
    /// A bearer token for Prometheus; prefer the file.
    #[arg(long, env = "PROMETHEUS_BEARER_TOKEN", hide_env_values = true, value_name = "TOKEN")]
    pub prometheus_bearer_token: Option<String>,
    /// A file with a bearer token for Prometheus; read again when it changes.
    #[arg(long, env = "PROMETHEUS_TOKEN_PATH", value_parser = path_or_empty(), value_name = "FILE")]
    pub prometheus_token_path: Option<PathBuf>,
    /// The CA of Prometheus's certificate, PEM.
    #[arg(long, env = "PROMETHEUS_CA_CERT_PATH", value_parser = path_or_empty(), value_name = "FILE")]
    pub prometheus_ca_cert_path: Option<PathBuf>,
    /// A client certificate for Prometheus, PEM.
    #[arg(long, env = "PROMETHEUS_CLIENT_CERT_PATH", value_parser = path_or_empty(), value_name = "FILE")]
    pub prometheus_client_cert_path: Option<PathBuf>,
    /// The key of the client certificate, PEM.
    #[arg(long, env = "PROMETHEUS_CLIENT_KEY_PATH", value_parser = path_or_empty(), value_name = "FILE")]
    pub prometheus_client_key_path: Option<PathBuf>,
    /// The name in Prometheus's certificate, when it differs from the URL's host.
    #[arg(long, env = "PROMETHEUS_SERVER_NAME", value_name = "NAME")]
    pub prometheus_server_name: Option<String>,
    /// Accept any certificate of Prometheus.
    #[arg(long, env = "PROMETHEUS_TLS_INSECURE_SKIP_VERIFY", num_args = 0..=1, default_value = "false",
          default_missing_value = "true", value_parser = lenient_bool, value_name = "BOOL")]
    pub prometheus_tls_insecure_skip_verify: bool,
    /// Above this many series a query is split by namespace, and within a namespace by signal.
    #[arg(long, default_value_t = 20_000, value_name = "COUNT")]
    pub max_series: u64,
    /// Scrape targets whose metrics may speak for pods of other namespaces (collectors, and a scheduler that stands in another
    /// namespace than its models): each a namespace, or namespace/job. Of everybody else, the target's own namespace and pod
    /// labels count alone, since a pod can write any other.
    #[arg(long, value_delimiter = ',', value_parser = collector, value_name = "NAMESPACE[/JOB],…")]
    pub trusted_collectors: Vec<String>,
    /// Scraping pods directly: http, or https with any certificate (with a token: only with a trusted one).
    #[arg(long, default_value = "http", value_parser = ["http", "https"], value_name = "SCHEME")]
    pub scrape_scheme: String,
    /// Scraping pods directly: the path.
    #[arg(long, default_value = "/metrics", value_name = "PATH")]
    pub scrape_path: String,
    /// Scraping pods directly: a file with a bearer token; read again when it changes. Only sent over https.
    #[arg(long, value_name = "FILE")]
    pub scrape_token_path: Option<PathBuf>,
    /// Scraping pods directly: the CA of the pods' certificates, PEM; without it that of the system.
    #[arg(long, value_name = "FILE")]
    pub scrape_ca_cert_path: Option<PathBuf>,
}

/// A path, or nothing: manifests leave variables empty.
pub(super) fn path_or_empty() -> impl TypedValueParser<Value = PathBuf> {
    OsStringValueParser::new().map(PathBuf::from)
}

/// A namespace, or a namespace and a job.
fn collector(text: &str) -> Result<String, String> {
    let (namespace, job) =
        text.split_once('/').map_or((text, None), |(namespace, job)| (namespace, Some(job)));
    let letters = namespace.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
    if namespace.is_empty() || namespace.len() > 63 || !letters || job.is_some_and(str::is_empty) {
        return Err("must be a namespace, or namespace/job as the scrape target's labels have them".into());
    }
    Ok(text.to_owned())
}

/// A switch as manifests write it: any case, 1 and 0, and empty for off.
fn lenient_bool(text: &str) -> Result<bool, String> {
    match text.trim().to_ascii_lowercase().as_str() {
        "true" | "1" | "yes" | "on" => Ok(true),
        "false" | "0" | "no" | "off" | "" => Ok(false),
        _ => Err("must be true or false".into()),
    }
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

/// When a number changes and when it is too old.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Decisions")]
pub struct DecisionArgs {
    /// How often the holder evaluates in the background, read or not.
    #[arg(long, default_value = "5s", value_name = "DURATION")]
    pub interval: SignedDuration,
    /// A read is answered from a result younger than this; an older one is computed anew, once for all readers.
    #[arg(long, default_value = "2s", value_name = "DURATION")]
    pub max_age: SignedDuration,
    /// How long a read waits for a new result before it gets the last one.
    #[arg(long, default_value = "1s", value_name = "DURATION")]
    pub read_wait: SignedDuration,
    /// A number whose newest evidence is older than this is withheld: the HPA holds and its condition says why.
    #[arg(long, default_value = "5m", value_name = "DURATION")]
    pub max_stale: SignedDuration,
    /// Take the last replica of a model that has been idle for 10 minutes, where every variant has minReplicas 0. What the
    /// ConfigMaps say of it wins.
    #[arg(long, env = "WVA_SCALE_TO_ZERO", num_args = 0..=1, default_value = "false",
          default_missing_value = "true", value_parser = lenient_bool, value_name = "BOOL")]
    pub scale_to_zero: bool,
    /// Before a variant shrinks, mark the pods that have the least in flight with the annotation
    /// controller.kubernetes.io/pod-deletion-cost, so that its ReplicaSet takes these and not simply the youngest. Needs the
    /// right to patch pods (the chart's value podDeletionCost), and asks for up to two more series of each pod.
    #[arg(long, env = "WVA_POD_DELETION_COST", num_args = 0..=1, default_value = "false",
          default_missing_value = "true", value_parser = lenient_bool, value_name = "BOOL")]
    pub pod_deletion_cost: bool,
}

/// Logs.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Logs")]
pub struct LogArgs {
    /// A level (error, warn, info, debug, trace) or a list such as info,wva::collect=debug.
    #[arg(long, env = "LOG_LEVEL", default_value = DEFAULT_LOG_LEVEL, value_name = "FILTER")]
    pub log_level: String,
    /// One JSON object a line instead of text.
    #[arg(long)]
    pub log_json: bool,
}

impl LogArgs {
    /// The filter; an empty one is the default.
    #[must_use]
    pub fn filter(&self) -> &str {
        if self.log_level.is_empty() { DEFAULT_LOG_LEVEL } else { &self.log_level }
    }
}
