//! Validates the command line and turns it into a [`Config`].

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use jiff::SignedDuration;
use wva_core::Policy;
use wva_core::model::{ModelPolicy, ScaleToZero, Scope};
use wva_core::units::Seconds;

use super::args::{
    ConfigMapArgs, DEFAULT_NAMESPACE, DEFAULT_PORT, DEFAULT_SERVICE, LEASE_NAME, RecordArgs, ServeArgs,
    ServingArgs,
};
use super::error::ConfigError;
use super::fallback::{Fallback, FallbackArgs};
use super::installations::{ForwarderCertificate, Installation, forwarder, installations};
use super::lease::LeaseTimes;
use super::otlp::Otlp;
use super::parsers::{at_least, is_label_value, non_empty, non_empty_path};
use super::policy_config::{ConfigMapKind, ConfigMapNames};
use super::ranged::quote;
use super::rules::Rules;
use super::source::{Certificate, Source, source};

/// The shortest maximum age of evidence, in Lease durations: with less, a change of the leader alone could make it too old.
const MIN_STALE_LEASES: u32 = 3;
/// The shortest interval, and the shortest wait of a read. Shorter ones cost more than they help.
const MIN_INTERVAL: Duration = Duration::from_millis(100);
/// The time in which a watch without faults and an API server notice a change of the CA.
const MIN_CA_SETTLE: Duration = Duration::from_secs(1);
/// The shortest age at which connections are closed. An API server requests discovery once in 30 s.
const MIN_CONNECTION_AGE: Duration = Duration::from_secs(60);

/// The validated configuration of `wva serve`.
#[derive(Debug, Clone)]
pub struct Config {
    /// Credentials for the API server; `None` for those of the pod.
    pub kubeconfig: Option<PathBuf>,
    /// The namespace of the Lease, the Secret and the state objects.
    pub namespace: String,
    /// The identity of this instance in the Lease.
    pub instance: String,
    /// The URL at which other instances reach this one.
    pub advertised: String,
    /// The Service in front of this program.
    pub service: String,
    /// The only namespace to watch, if set.
    pub watch_namespace: Option<String>,
    /// The controller instance whose objects are handled, if set; also a label of all metrics.
    pub controller_instance: Option<String>,
    /// HPAs and ScaledObjects make variants too, where annotations say so.
    pub annotated_autoscalers: bool,
    /// The name of the Lease.
    pub lease: String,
    /// The times of the Lease.
    pub lease_times: LeaseTimes,
    /// The address to listen on.
    pub listen: SocketAddr,
    /// The address of KEDA's external scaler, if it is served.
    pub external_scaler: Option<SocketAddr>,
    /// The user-provided serving certificate, if any.
    pub certificate: Option<Certificate>,
    /// The directory of the certificate, in which one is created if there is none.
    pub certificate_directory: Option<PathBuf>,
    /// The time for each step of a change of the CA to reach all API servers and instances.
    pub ca_settle: Duration,
    /// How long requests are served after SIGTERM.
    pub shutdown_delay: Duration,
    /// The age at which a connection is closed; `None` for never.
    pub connection_age: Option<Duration>,
    /// Other installations, whose variants are read through this one.
    pub installations: Vec<Installation>,
    /// The installation that may forward reads to this one.
    pub forwarder: Option<ForwarderCertificate>,
    /// The source of metrics.
    pub source: Source,
    /// The rules that make further external metrics, if there are some.
    pub rules: Option<Rules>,
    /// Where the desired replicas are pushed, if anywhere.
    pub otlp: Option<Otlp>,
    /// The metrics server that is asked for what is not served here, if there is one.
    pub fallback: Option<Fallback>,
    /// The interval of evaluations.
    pub interval: Duration,
    /// The maximum age of a result that a read is answered with at once.
    pub max_age: Duration,
    /// How long a read waits for a new result.
    pub read_wait: Duration,
    /// The policy where no ConfigMap sets anything.
    pub policy: Policy,
    /// The ConfigMaps with policies.
    pub config_maps: ConfigMapNames,
    /// The ConfigMap with settings of the command line, if one is named and no file has them.
    pub main_config_map: Option<String>,
    /// The nodes whose GPUs count towards limits; `None` for all.
    pub node_selector: Option<String>,
    /// Whether the number is served divided to HPAs that multiply it.
    pub serve_value_targets: bool,
    /// Whether pods are annotated with deletion costs.
    pub pod_deletion_cost: bool,
    /// Woken variants are scaled by this program.
    pub wake_directly: bool,
    /// Which evaluations are recorded.
    pub record: RecordSettings,
}

/// Which evaluations are recorded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordSettings {
    /// The number kept in memory.
    pub snapshots: usize,
    /// The maximum bytes of those.
    pub snapshots_size: u64,
    /// Recording to files, if enabled.
    pub files: Option<RecordFiles>,
}

/// Recording to files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordFiles {
    /// The directory.
    pub folder: PathBuf,
    /// Maximum bytes of all recordings in it.
    pub total: u64,
    /// Bytes from which a new file begins.
    pub file: u64,
}

impl TryFrom<ServeArgs> for Config {
    type Error = ConfigError;

    fn try_from(args: ServeArgs) -> Result<Self, ConfigError> {
        let cluster = args.cluster;
        let listen = SocketAddr::new(args.serving.bind_address, port(&args.serving));
        let own_ip = own_ip(cluster.pod_ip.as_deref(), listen.ip())?;
        // With port 0 the system chooses one.
        let external_scaler = args.serving.external_scaler_port;
        if external_scaler.is_some_and(|port| port != 0 && port == listen.port()) {
            return Err(ConfigError::PortTwice(listen.port()));
        }
        let external_scaler = external_scaler.map(|port| SocketAddr::new(listen.ip(), port));
        let default_address = format!("https://{}", SocketAddr::new(own_ip, listen.port()));
        let note = " (three Lease durations), so that a change of the leader does not make a number too old";
        let lease_times = LeaseTimes::of(&cluster)?;
        let min_max_stale = MIN_STALE_LEASES * lease_times.duration;
        let max_stale = at_least("--max-stale", args.decision.max_stale, min_max_stale, note)?;
        let watch_namespace = non_empty(cluster.watch_namespace);
        let source = source(args.source, watch_namespace.as_deref())?;
        if args.serving.serve_value_targets && !cluster.annotated_autoscalers {
            return Err(ConfigError::ValueTargetsUnknown);
        }
        if args.decision.wake_directly && !cluster.annotated_autoscalers {
            return Err(ConfigError::PausesUnknown);
        }
        Ok(Self {
            fallback: fallback(args.fallback, (&cluster.namespace, &cluster.service_name), &args.serving)?,
            kubeconfig: non_empty_path(cluster.kubeconfig),
            instance: non_empty(cluster.instance).unwrap_or_else(default_instance),
            advertised: cluster.advertise_address.unwrap_or(default_address),
            namespace: or_default(cluster.namespace, DEFAULT_NAMESPACE),
            service: or_default(cluster.service_name, DEFAULT_SERVICE),
            controller_instance: label_value(cluster.controller_instance)?,
            annotated_autoscalers: cluster.annotated_autoscalers,
            lease: or_default(cluster.lease_name, LEASE_NAME),
            lease_times,
            listen,
            external_scaler,
            certificate: certificate(&args.serving),
            certificate_directory: args.serving.cert_dir.clone(),
            ca_settle: at_least("--ca-settle-duration", args.serving.ca_settle_duration, MIN_CA_SETTLE, "")?,
            shutdown_delay: at_least(
                "--shutdown-delay-duration",
                args.serving.shutdown_delay_duration,
                Duration::ZERO,
                "",
            )?,
            connection_age: connection_age(args.serving.max_connection_age)?,
            installations: installations(&args.installations)?,
            forwarder: forwarder(&args.installations)?,
            rules: Rules::of(args.rules, &source)?,
            otlp: Otlp::of(args.otlp)?,
            source,
            watch_namespace,
            interval: at_least("--interval", args.decision.interval, MIN_INTERVAL, "")?,
            max_age: at_least("--max-age", args.decision.max_age, Duration::ZERO, "")?,
            read_wait: at_least("--read-wait", args.decision.read_wait, MIN_INTERVAL, "")?,
            record: record(args.record)?,
            policy: default_policy(
                Seconds::new(max_stale.as_secs_f64()).unwrap_or(Policy::default().max_stale),
                args.decision.scale_to_zero,
            ),
            config_maps: config_map_names(&args.config_maps)?,
            main_config_map: non_empty(args.config_maps.main_config_map)
                .filter(|_| non_empty_path(args.config_file).is_none()),
            serve_value_targets: args.serving.serve_value_targets,
            pod_deletion_cost: args.decision.pod_deletion_cost,
            wake_directly: args.decision.wake_directly,
            node_selector: non_empty(args.config_maps.node_selector),
        })
    }
}

/// The port to listen on: that of this program's flag, else that of WVA's metrics, else the default.
fn port(args: &ServingArgs) -> u16 {
    let metrics = args.metrics_bind_address.filter(|port| *port != 0);
    args.secure_port.or(metrics).unwrap_or(DEFAULT_PORT)
}

fn record(args: RecordArgs) -> Result<RecordSettings, ConfigError> {
    let total = args.record_max_size;
    let file = args.record_file_size.unwrap_or(total / 8);
    let folder = non_empty_path(args.record_dir);
    if folder.is_some() && file > total / 4 {
        return Err(ConfigError::RecordFileSize { file, total });
    }
    Ok(RecordSettings {
        snapshots: args.record_snapshots,
        snapshots_size: args.record_snapshots_size,
        files: folder.map(|folder| RecordFiles { folder, total, file }),
    })
}

/// The maximum age of connections; `None` for zero, which disables it.
fn connection_age(given: SignedDuration) -> Result<Option<Duration>, ConfigError> {
    if given.is_zero() {
        return Ok(None);
    }
    let note = ", or 0s: an API server sends a request once in 30 s, and each connection takes a handshake";
    at_least("--max-connection-age", given, MIN_CONNECTION_AGE, note).map(Some)
}

/// The policy where no ConfigMap sets anything.
#[must_use]
pub fn default_policy(max_stale: Seconds, scale_to_zero: bool) -> Policy {
    let retention = ScaleToZero::default().retention;
    let scale_to_zero = Some(ScaleToZero { enabled: scale_to_zero, retention });
    let default = ModelPolicy { scale_to_zero, ..ModelPolicy::default() };
    Policy { max_stale, global: Scope { default, ..Scope::default() }, ..Policy::default() }
}

/// The names of the ConfigMaps, which must be unique.
///
/// # Errors
/// When two have one name.
pub fn config_map_names(args: &ConfigMapArgs) -> Result<ConfigMapNames, ConfigError> {
    let mut flags: BTreeMap<String, &'static str> = BTreeMap::new();
    let mut names = ConfigMapNames::new();
    for kind in ConfigMapKind::ALL {
        let given = match kind {
            ConfigMapKind::Saturation => &args.saturation_config_map,
            ConfigMapKind::ScaleToZero => &args.scale_to_zero_config_map,
            ConfigMapKind::QueueingModel => &args.queueing_model_config_map,
            ConfigMapKind::ServiceClasses => &args.service_classes_config_map,
            ConfigMapKind::AcceleratorCosts => &args.accelerator_costs_config_map,
        };
        let name = or_default(given.clone(), kind.names().default);
        if let Some(first) = flags.insert(name.clone(), kind.flag()) {
            return Err(ConfigError::SameConfigMap { first, second: kind.flag(), name });
        }
        names.insert(kind, name);
    }
    Ok(names)
}

/// `text`, or `default` if it is empty: manifests set variables to the empty string.
fn or_default(text: String, default: &str) -> String {
    if text.is_empty() { default.into() } else { text }
}

/// The default address for other instances: the pod's, else the one to listen on; loopback if that is all addresses.
fn own_ip(pod_ip: Option<&str>, listen: IpAddr) -> Result<IpAddr, ConfigError> {
    match pod_ip.filter(|text| !text.is_empty()) {
        Some(text) => text.parse().map_err(|_| ConfigError::PodIp(text.into())),
        None if listen.is_unspecified() => Ok(Ipv4Addr::LOCALHOST.into()),
        None => Ok(listen),
    }
}

/// The value of a label, if there is one.
fn label_value(text: Option<String>) -> Result<Option<String>, ConfigError> {
    match non_empty(text) {
        Some(text) if !is_label_value(&text) => Err(ConfigError::ControllerInstance(quote(&text))),
        text => Ok(text),
    }
}

/// The fallback server, which is not this program's own Service.
fn fallback(
    args: FallbackArgs,
    (namespace, service): (&str, &str),
    serving: &ServingArgs,
) -> Result<Option<Fallback>, ConfigError> {
    let namespace = or_default(namespace.to_owned(), DEFAULT_NAMESPACE);
    let service = or_default(service.to_owned(), DEFAULT_SERVICE);
    let fallback = Fallback::of(args, (&namespace, &service))?;
    let takes_over = fallback.as_ref().is_some_and(|fallback| fallback.take_over.is_some());
    if takes_over && certificate(serving).is_some() {
        return Err(ConfigError::TakeOverCertificate);
    }
    Ok(fallback)
}

fn certificate(args: &ServingArgs) -> Option<Certificate> {
    let from_dir = args.cert_dir.as_ref().map(|dir| (dir.join("tls.crt"), dir.join("tls.key")));
    let from_files = args.tls_cert_file.clone().zip(args.tls_private_key_file.clone());
    from_files.or(from_dir).map(|(chain, key)| Certificate { chain, key })
}

/// The default identity: host name and process ID. It must be unique, or two instances would hold the Lease at once.
#[expect(clippy::disallowed_methods, reason = "config is the reader of the environment")]
fn default_instance() -> String {
    let host = std::env::var("HOSTNAME").ok().filter(|name| !name.is_empty()).unwrap_or_else(|| "wva".into());
    format!("{host}-{}", std::process::id())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        args: ServeArgs,
    }

    fn config(flags: &str) -> Result<Config, String> {
        let words = std::iter::once("wva").chain(flags.split_whitespace());
        let cli = Cli::try_parse_from(words).map_err(|error| error.to_string())?;
        Config::try_from(cli.args).map_err(|error| error.to_string())
    }

    #[test]
    fn auto_scrapes_pods_until_a_prometheus_url_is_given() {
        assert!(matches!(config("").unwrap().source, Source::Scrape(_)));
        let with_url = config("--prometheus-url https://prometheus:9090").unwrap();
        assert!(matches!(with_url.source, Source::Prometheus(_)));
    }

    #[test]
    fn prometheus_without_a_url_is_refused_with_the_next_step() {
        let error = config("--source prometheus").unwrap_err();
        assert!(error.contains("PROMETHEUS_BASE_URL"), "{error}");
    }

    #[test]
    fn a_token_on_the_command_line_was_once_shown_by_debug_output() {
        let flags = "--prometheus-url https://u:s3cret@p --prometheus-bearer-token s3cret --prometheus-header X-Key:s3cret";
        let words = std::iter::once("wva").chain(flags.split_whitespace());
        let args = Cli::try_parse_from(words).unwrap().args;
        let shown = format!("{args:?} {:?}", Config::try_from(args.clone()).unwrap());
        assert!(shown.contains("x-key") && !shown.contains("s3cret"), "{shown}");
    }

    #[test]
    fn queries_are_narrowed_by_matchers_and_namespaces() {
        let prometheus = |flags: &str| match config(&format!("--prometheus-url https://p {flags}")) {
            Ok(Config { source: Source::Prometheus(prometheus), .. }) => Ok(*prometheus),
            Ok(_) => panic!("not Prometheus"),
            Err(error) => Err(error),
        };
        let narrowed = prometheus(
            "--query-matcher cluster='eu-1',env!=`dev` --query-matcher= --query-matcher zone=~'a.*' \
             --query-namespace=a,b --query-namespace c",
        )
        .unwrap();
        assert_eq!(narrowed.query_matchers, [r#"cluster="eu-1",env!="dev""#, r#"zone=~"a.*""#]);
        assert_eq!(narrowed.query_namespaces.into_iter().collect::<Vec<_>>(), ["a", "b", "c"]);
        let watched = prometheus("--watch-namespace llm").unwrap().query_namespaces;
        assert_eq!(watched.into_iter().collect::<Vec<_>>(), ["llm"]);
        for (flags, flag) in [
            ("--query-matcher cluster=eu-1", "--query-matcher"),
            ("--query-namespace A_B", "--query-namespace"),
            ("--watch-namespace llm --query-namespace a", "--watch-namespace llm"),
        ] {
            assert!(prometheus(flags).unwrap_err().contains(flag), "{flags}");
        }
    }

    #[test]
    fn connections_are_closed_after_ten_minutes_or_never_but_not_every_few_seconds() {
        let age = |flags| config(flags).map(|config| config.connection_age);
        assert_eq!(age(""), Ok(Some(Duration::from_secs(600))));
        assert_eq!(age("--max-connection-age 0s"), Ok(None));
        let error = age("--max-connection-age 10s").unwrap_err();
        assert!(error.contains("--max-connection-age") && error.contains("or 0s"), "{error}");
    }

    #[test]
    fn a_controller_instance_is_any_value_of_a_label_and_nothing_else() {
        let instance = |text: &str| {
            config(&format!("--controller-instance {text}")).map(|config| config.controller_instance)
        };
        for text in ["blue", "Team_A", "eu-1.blue", "9"] {
            assert_eq!(instance(text), Ok(Some(text.to_owned())));
        }
        assert_eq!(config("--controller-instance=").unwrap().controller_instance, None);
        for text in ["a,b", "_a", "a.", "ä", &"a".repeat(64)] {
            let error = instance(text).unwrap_err();
            assert!(error.contains("--controller-instance") && error.contains("value of a label"), "{error}");
        }
    }

    #[test]
    fn a_max_stale_shorter_than_three_leases_is_refused() {
        assert!(config("--max-stale 44s").unwrap_err().contains("--max-stale"));
        assert!((config("--max-stale 60s").unwrap().policy.max_stale.get() - 60.0).abs() < 1e-9);
    }

    #[test]
    fn a_client_certificate_without_its_key_names_the_missing_flag() {
        let flags = "--prometheus-url https://p --prometheus-client-cert-path /c.pem";
        assert!(config(flags).unwrap_err().contains("--prometheus-client-key-path"));
    }

    #[test]
    fn files_are_recorded_only_with_a_directory_and_are_small_compared_with_the_limit() {
        assert_eq!(config("--record-dir=").unwrap().record.files, None);
        let files = config("--record-dir /r --record-max-size 1Gi").unwrap().record.files.unwrap();
        assert_eq!((files.total, files.file), (1 << 30, 1 << 27));
        let error = config("--record-dir /r --record-file-size 65Mi").unwrap_err();
        assert!(error.contains("--record-max-size 268435456"), "{error}");
    }

    #[test]
    fn a_mounted_certificate_directory_is_used() {
        let certificate = config("--cert-dir /certs").unwrap().certificate.unwrap();
        assert_eq!(certificate.key, PathBuf::from("/certs/tls.key"));
        let directory = config("--cert-dir /certs").unwrap().certificate_directory;
        assert_eq!(directory, Some(PathBuf::from("/certs")), "a missing certificate is created there");
        let files = config("--tls-cert-file /c --tls-private-key-file /k").unwrap();
        assert_eq!(files.certificate_directory, None, "files that are named must exist");
    }

    #[test]
    fn switches_are_read_as_manifests_write_them() {
        for on in ["True", "1", "true"] {
            assert!(
                config(&format!("--scale-to-zero {on}"))
                    .unwrap()
                    .policy
                    .global
                    .default
                    .scale_to_zero
                    .unwrap()
                    .enabled,
                "{on}"
            );
        }
        assert!(!config("--scale-to-zero=").unwrap().policy.global.default.scale_to_zero.unwrap().enabled);
        let marks = |flags| config(flags).unwrap().pod_deletion_cost;
        let divides = |flags| config(flags).map(|config| config.serve_value_targets);
        assert_eq!(divides(""), Ok(false));
        assert_eq!(divides("--serve-value-targets"), Ok(true));
        let unwatched = divides("--serve-value-targets --annotated-autoscalers=false");
        assert_eq!(unwatched, Err(ConfigError::ValueTargetsUnknown.to_string()));
        assert!(marks("--pod-deletion-cost") && !marks("--pod-deletion-cost=") && !marks(""));
        let annotated = |flags| config(flags).unwrap().annotated_autoscalers;
        assert!(
            annotated("")
                && annotated("--annotated-autoscalers")
                && !annotated("--annotated-autoscalers=false")
        );
        assert!(config("--scale-to-zero=maybe").unwrap_err().contains("true or false"));
    }

    #[test]
    fn an_empty_variable_counts_as_unset() {
        let config = config("--kubeconfig= --prometheus-ca-cert-path= --namespace= --lease-name=").unwrap();
        assert_eq!(config.kubeconfig, None);
        assert_eq!((config.namespace.as_str(), config.lease.as_str()), (DEFAULT_NAMESPACE, LEASE_NAME));
    }

    #[test]
    fn two_instances_started_by_hand_have_two_identities() {
        assert!(config("").unwrap().instance.ends_with(&std::process::id().to_string()));
    }

    #[test]
    fn each_configmap_has_a_name_of_its_own_and_an_empty_one_is_the_default() {
        let names = config("--saturation-config-map= --queueing-model-config-map q").unwrap().config_maps;
        assert_eq!(names[&ConfigMapKind::Saturation], "wva-saturation-scaling-config");
        assert_eq!(names[&ConfigMapKind::QueueingModel], "q");
        let error = config("--queueing-model-config-map accelerator-unit-costs").unwrap_err();
        assert!(error.contains("--queueing-model-config-map") && error.contains("of its own"), "{error}");
    }

    #[test]
    fn the_address_to_listen_on_is_advertised_by_default() {
        let config = config("--bind-address 127.0.0.1 --secure-port 9443").unwrap();
        assert_eq!(config.advertised, "https://127.0.0.1:9443");
    }
}
