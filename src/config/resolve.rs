//! From the command line as typed to values the rest of the program can rely on.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use jiff::SignedDuration;
use wva_core::Policy;
use wva_core::model::{ModelPolicy, ScaleToZero, Scope};
use wva_core::units::Seconds;

use super::args::{
    ACCELERATOR_COSTS, ConfigMapArgs, DEFAULT_NAMESPACE, DEFAULT_SERVICE, LEASE_DURATION, LEASE_NAME,
    QUEUEING_MODEL, RecordArgs, SATURATION, SCALE_TO_ZERO, SERVICE_CLASSES, ServeArgs, ServingArgs,
    SourceArgs, SourceKind,
};
use super::error::ConfigError;
use super::policy_config::{Kind, Names};

/// Evidence must outlive three Lease durations, or a change of the leader alone could make it too old.
const MIN_MAX_STALE: Duration = Duration::from_secs(3 * LEASE_DURATION.as_secs());
/// Shorter intervals and waits than this cost more than they bring.
const MIN_INTERVAL: Duration = Duration::from_millis(100);
/// A change of the CA takes at least the second in which an undisturbed watch and an API server follow.
const MIN_CA_SETTLE: Duration = Duration::from_secs(1);

/// Everything `wva serve` runs with.
#[derive(Debug, Clone)]
pub struct Config {
    /// Credentials for the API server, when not the pod's own.
    pub kubeconfig: Option<PathBuf>,
    /// Home of our lease, Secret and state objects.
    pub namespace: String,
    /// Our identity in the lease.
    pub instance: String,
    /// Where other instances reach us.
    pub advertised: String,
    /// The Service in front of us.
    pub service: String,
    /// The only namespace to look at, if any.
    pub watch_namespace: Option<String>,
    /// The controller instance to look at and to say in every label, if any.
    pub controller_instance: Option<String>,
    /// The lease's name.
    pub lease: String,
    /// Where to listen.
    pub listen: SocketAddr,
    /// The user's own certificate, if any.
    pub certificate: Option<Certificate>,
    /// The directory that it is to be in, and is made in when there is none.
    pub certificate_directory: Option<PathBuf>,
    /// How long each step of a change of the CA is left to reach everybody.
    pub ca_settle: Duration,
    /// How long to go on answering after SIGTERM.
    pub shutdown_delay: Duration,
    /// When a connection is asked to leave; `None`: never.
    pub connection_age: Option<Duration>,
    /// Where metrics come from.
    pub source: Source,
    /// How often to evaluate.
    pub interval: Duration,
    /// A younger result is answered as it is.
    pub max_age: Duration,
    /// How long a read waits.
    pub read_wait: Duration,
    /// What decisions are tuned by where no ConfigMap says anything.
    pub policy: Policy,
    /// The ConfigMaps that say more.
    pub config_maps: Names,
    /// The nodes whose GPUs count, where they do.
    pub node_selector: Option<String>,
    /// Whether pods are marked that are to go first.
    pub pod_deletion_cost: bool,
    /// Which evaluations are kept.
    pub record: RecordSettings,
}

/// Which evaluations are kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordSettings {
    /// How many in memory.
    pub snapshots: usize,
    /// How many bytes of them.
    pub snapshots_size: u64,
    /// All of them in files, if wanted.
    pub files: Option<RecordFiles>,
}

/// Recording to files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordFiles {
    /// The directory.
    pub folder: PathBuf,
    /// Bytes of all recordings in it.
    pub total: u64,
    /// Bytes from which a new file is begun.
    pub file: u64,
}

/// Files of a serving certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Certificate {
    /// The chain, PEM.
    pub chain: PathBuf,
    /// The key, PEM.
    pub key: PathBuf,
}

/// Where metrics come from.
#[derive(Debug, Clone)]
pub enum Source {
    /// A Prometheus API.
    Prometheus(Box<Prometheus>),
    /// The pods.
    Scrape(Scrape),
}

/// How to reach a Prometheus API.
#[derive(Debug, Clone)]
pub struct Prometheus {
    /// Its base URL.
    pub url: String,
    /// A token given inline.
    pub token: Option<String>,
    /// A token given as a file.
    pub token_file: Option<PathBuf>,
    /// Its CA.
    pub ca_file: Option<PathBuf>,
    /// Our certificate and key.
    pub client: Option<Certificate>,
    /// The name in its certificate.
    pub server_name: Option<String>,
    /// Accept any certificate.
    pub insecure_skip_verify: bool,
    /// Above this many series a query is split by namespace, and within a namespace by signal.
    pub max_series: u64,
    /// Scrape targets that may speak for pods of other namespaces, each as `namespace` or `namespace/job`.
    pub trusted_collectors: Vec<String>,
}

/// How to scrape pods.
#[derive(Debug, Clone)]
pub struct Scrape {
    /// `http` or `https`.
    pub scheme: String,
    /// The path.
    pub path: String,
    /// A file with a token.
    pub token_file: Option<PathBuf>,
    /// The CA of the pods' certificates.
    pub ca_file: Option<PathBuf>,
}

impl TryFrom<ServeArgs> for Config {
    type Error = ConfigError;

    fn try_from(args: ServeArgs) -> Result<Self, ConfigError> {
        let cluster = args.cluster;
        let listen = SocketAddr::new(args.serving.bind_address, args.serving.secure_port);
        let own_ip = own_ip(cluster.pod_ip.as_deref(), listen.ip())?;
        let default_address = format!("https://{}", SocketAddr::new(own_ip, listen.port()));
        let note = " (three Lease durations), so that a change of the leader does not make a number too old";
        let max_stale = at_least("--max-stale", args.decision.max_stale, MIN_MAX_STALE, note)?;
        let retention = ScaleToZero::default().retention;

        Ok(Self {
            kubeconfig: cluster.kubeconfig.filter(|path| !path.as_os_str().is_empty()),
            instance: cluster.instance.filter(|name| !name.is_empty()).unwrap_or_else(hostname),
            advertised: cluster.advertise_address.unwrap_or(default_address),
            namespace: given(cluster.namespace, DEFAULT_NAMESPACE),
            service: given(cluster.service_name, DEFAULT_SERVICE),
            watch_namespace: cluster.watch_namespace.filter(|name| !name.is_empty()),
            controller_instance: cluster.controller_instance.filter(|name| !name.is_empty()),
            lease: given(cluster.lease_name, LEASE_NAME),
            listen,
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
            source: source(args.source)?,
            interval: at_least("--interval", args.decision.interval, MIN_INTERVAL, "")?,
            max_age: at_least("--max-age", args.decision.max_age, Duration::ZERO, "")?,
            read_wait: at_least("--read-wait", args.decision.read_wait, MIN_INTERVAL, "")?,
            record: record(args.record)?,
            policy: Policy {
                max_stale: Seconds::new(max_stale.as_secs_f64()).unwrap_or(Policy::default().max_stale),
                global: Scope {
                    default: ModelPolicy {
                        scale_to_zero: Some(ScaleToZero { enabled: args.decision.scale_to_zero, retention }),
                        ..ModelPolicy::default()
                    },
                    ..Scope::default()
                },
                ..Policy::default()
            },
            config_maps: config_map_names(&args.config_maps)?,
            pod_deletion_cost: args.decision.pod_deletion_cost,
            node_selector: args.config_maps.node_selector.filter(|selector| !selector.is_empty()),
        })
    }
}

fn record(args: RecordArgs) -> Result<RecordSettings, ConfigError> {
    let total = args.record_max_size;
    let file = args.record_file_size.unwrap_or(total / 8);
    let folder = args.record_dir.filter(|path| !path.as_os_str().is_empty());
    if folder.is_some() && file > total / 4 {
        return Err(ConfigError::RecordFileSize { file, total });
    }
    Ok(RecordSettings {
        snapshots: args.record_snapshots,
        snapshots_size: args.record_snapshots_size,
        files: folder.map(|folder| RecordFiles { folder, total, file }),
    })
}

/// None for zero. A shorter age than a minute costs an API server more handshakes than it asks questions.
fn connection_age(given: SignedDuration) -> Result<Option<Duration>, ConfigError> {
    if given.is_zero() {
        return Ok(None);
    }
    let note = ", or 0s: an API server asks once in 30 s, and a connection costs a handshake";
    at_least("--max-connection-age", given, Duration::from_secs(60), note).map(Some)
}

/// The names of the ConfigMaps, each for one of them.
fn config_map_names(args: &ConfigMapArgs) -> Result<Names, ConfigError> {
    let kinds = [
        (Kind::Saturation, "--saturation-config-map", &args.saturation_config_map, SATURATION),
        (Kind::ScaleToZero, "--scale-to-zero-config-map", &args.scale_to_zero_config_map, SCALE_TO_ZERO),
        (Kind::QueueingModel, "--queueing-model-config-map", &args.queueing_model_config_map, QUEUEING_MODEL),
        (
            Kind::ServiceClasses,
            "--service-classes-config-map",
            &args.service_classes_config_map,
            SERVICE_CLASSES,
        ),
        (
            Kind::AcceleratorCosts,
            "--accelerator-costs-config-map",
            &args.accelerator_costs_config_map,
            ACCELERATOR_COSTS,
        ),
    ];
    let mut flags: BTreeMap<String, &'static str> = BTreeMap::new();
    let mut names = Names::new();
    for (kind, flag, name, default) in kinds {
        let name = given(name.clone(), default);
        if let Some(second) = flags.insert(name.clone(), flag) {
            return Err(ConfigError::SameConfigMap { first: flag, second, name });
        }
        names.insert(kind, name);
    }
    Ok(names)
}

/// Manifests leave variables empty: that is the default, not an empty name.
fn given(text: String, default: &str) -> String {
    if text.is_empty() { default.into() } else { text }
}

/// The address that others reach us by, when nothing better is said: the pod's, else the one we listen on, else, when
/// we listen on all of them, loopback.
fn own_ip(pod_ip: Option<&str>, listen: IpAddr) -> Result<IpAddr, ConfigError> {
    match pod_ip.filter(|text| !text.is_empty()) {
        Some(text) => text.parse().map_err(|_| ConfigError::PodIp(text.into())),
        None if listen.is_unspecified() => Ok(Ipv4Addr::LOCALHOST.into()),
        None => Ok(listen),
    }
}

fn at_least(
    flag: &'static str,
    given: SignedDuration,
    min: Duration,
    note: &'static str,
) -> Result<Duration, ConfigError> {
    match Duration::try_from(given) {
        Ok(duration) if duration >= min => Ok(duration),
        _ => {
            let min = SignedDuration::try_from(min).unwrap_or(SignedDuration::MAX);
            Err(ConfigError::TooShort { flag, given, min, note })
        }
    }
}

fn certificate(args: &ServingArgs) -> Option<Certificate> {
    let from_dir = args.cert_dir.as_ref().map(|dir| (dir.join("tls.crt"), dir.join("tls.key")));
    let from_files = args.tls_cert_file.clone().zip(args.tls_private_key_file.clone());
    from_files.or(from_dir).map(|(chain, key)| Certificate { chain, key })
}

fn source(args: SourceArgs) -> Result<Source, ConfigError> {
    let url = args.prometheus_url.filter(|url| !url.is_empty());
    let scrape = args.source == SourceKind::Scrape || (args.source == SourceKind::Auto && url.is_none());
    if scrape {
        return Ok(Source::Scrape(Scrape {
            scheme: args.scrape_scheme,
            path: args.scrape_path,
            token_file: args.scrape_token_path,
            ca_file: args.scrape_ca_cert_path,
        }));
    }
    let given = |path: Option<PathBuf>| path.filter(|path| !path.as_os_str().is_empty());
    let client = match (given(args.prometheus_client_cert_path), given(args.prometheus_client_key_path)) {
        (Some(chain), Some(key)) => Some(Certificate { chain, key }),
        (None, None) => None,
        (cert, _) => {
            let names = ["--prometheus-client-cert-path", "--prometheus-client-key-path"];
            let (given, missing) = if cert.is_some() { (names[0], names[1]) } else { (names[1], names[0]) };
            return Err(ConfigError::HalfPair { given, missing });
        }
    };
    Ok(Source::Prometheus(Box::new(Prometheus {
        url: url.ok_or(ConfigError::NoPrometheusUrl)?,
        token: args.prometheus_bearer_token.filter(|token| !token.is_empty()),
        token_file: given(args.prometheus_token_path),
        ca_file: given(args.prometheus_ca_cert_path),
        client,
        server_name: args.prometheus_server_name.filter(|name| !name.is_empty()),
        insecure_skip_verify: args.prometheus_tls_insecure_skip_verify,
        max_series: args.max_series,
        trusted_collectors: args.trusted_collectors,
    })))
}

/// The host's name and the process: two instances never share an identity, or both would take the lease.
#[expect(clippy::disallowed_methods, reason = "config is the reader of the environment")]
fn hostname() -> String {
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
    fn a_connection_may_grow_ten_minutes_old_or_as_old_as_it_likes_but_is_not_ended_every_few_seconds() {
        let age = |flags| config(flags).map(|config| config.connection_age);
        assert_eq!(age(""), Ok(Some(Duration::from_secs(600))));
        assert_eq!(age("--max-connection-age 0s"), Ok(None));
        let error = age("--max-connection-age 10s").unwrap_err();
        assert!(error.contains("--max-connection-age") && error.contains("or 0s"), "{error}");
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
    fn nothing_is_written_to_files_until_a_directory_is_named_and_then_files_are_small_beside_the_bound() {
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
        assert_eq!(directory, Some(PathBuf::from("/certs")), "one is made there when there is none");
        let files = config("--tls-cert-file /c --tls-private-key-file /k").unwrap();
        assert_eq!(files.certificate_directory, None, "files that are named must be there");
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
        assert!(marks("--pod-deletion-cost") && !marks("--pod-deletion-cost=") && !marks(""));
        assert!(config("--scale-to-zero=maybe").unwrap_err().contains("true or false"));
    }

    #[test]
    fn an_empty_variable_is_one_that_is_not_set() {
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
        assert_eq!(names[&Kind::Saturation], "wva-saturation-scaling-config");
        assert_eq!(names[&Kind::QueueingModel], "q");
        let error = config("--queueing-model-config-map accelerator-unit-costs").unwrap_err();
        assert!(error.contains("--queueing-model-config-map") && error.contains("of its own"), "{error}");
    }

    #[test]
    fn other_instances_are_told_the_address_we_listen_on() {
        let config = config("--bind-address 127.0.0.1 --secure-port 9443").unwrap();
        assert_eq!(config.advertised, "https://127.0.0.1:9443");
    }
}
