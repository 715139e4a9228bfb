//! Errors of the command line.

use jiff::SignedDuration;

/// Why a command line is invalid, with the flag and the next step.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// A duration below its minimum.
    #[error("{flag} {given:#} is too short: must be at least {min:#}{note}")]
    TooShort {
        /// The flag.
        flag: &'static str,
        /// Its value.
        given: SignedDuration,
        /// The minimum.
        min: SignedDuration,
        /// The reason for the minimum, or empty.
        note: &'static str,
    },
    /// The times of the Lease contradict each other.
    #[error(
        "--lease-duration {duration:#} must be more than --lease-renew-deadline {renew_deadline:#}, which must be more than \
         1.2 times --lease-retry-period {retry_period:#}"
    )]
    LeaseTimes {
        /// How long the Lease stays valid without a renewal.
        duration: SignedDuration,
        /// How long the leader acts without a renewal.
        renew_deadline: SignedDuration,
        /// How often it is renewed.
        retry_period: SignedDuration,
    },
    /// Two things are to be served on one port.
    #[error(
        "--external-scaler-port and --secure-port are both {0}: give KEDA's external scaler a port of its own"
    )]
    PortTwice(u16),
    /// HPAs are to be read, and not watched.
    #[error(
        "--serve-value-targets needs the watch of HorizontalPodAutoscalers: remove --annotated-autoscalers=false"
    )]
    ValueTargetsUnknown,
    /// Whether somebody has paused a workload would not be known.
    #[error(
        "--wake-directly needs the watch of ScaledObjects, which may be paused: remove --annotated-autoscalers=false"
    )]
    PausesUnknown,
    /// The source is Prometheus, and its URL is missing.
    #[error(
        "--source prometheus needs a URL: set --prometheus-url or PROMETHEUS_BASE_URL, or use --source scrape"
    )]
    NoPrometheusUrl,
    /// Rules need the series of Prometheus.
    #[error("--adapter-config needs Prometheus: set --prometheus-url")]
    RulesWithoutPrometheus,
    /// The receiver of OTLP is not named by a URL. The text may have a password.
    #[error(
        "--otlp-endpoint is not the URL of a receiver of OTLP over HTTP: write http://HOST:4318 or https://HOST:PORT/PATH, without user, \
         password and query"
    )]
    OtlpEndpoint,
    /// The fallback server is not a Service.
    #[error("--fallback-apiservice {0:?} is no Service: write NAMESPACE/SERVICE, or NAMESPACE/SERVICE:PORT")]
    FallbackService(String),
    /// The fallback server would be this program.
    #[error(
        "--fallback-apiservice {0} is the Service of this program, which would ask itself: name the metrics server that owned \
         external.metrics.k8s.io before, or leave the flag out"
    )]
    FallbackIsOwn(String),
    /// It is not said whose APIService is taken over.
    #[error(
        "--fallback-take-over needs --fallback-apiservice, the Service that the APIService points to now"
    )]
    TakeOverFromNobody,
    /// The CA of a certificate that others made is not known.
    #[error(
        "--fallback-take-over writes the CA of the program's own certificate into the APIService: leave --cert-dir and --tls-cert-file out"
    )]
    TakeOverCertificate,
    /// It is not said how the fallback server is verified.
    #[error(
        "--fallback-apiservice needs either --fallback-ca, with the CA of its certificate, or --fallback-insecure-skip-tls-verify, which \
         verifies nothing: set one of them"
    )]
    FallbackTrust,
    /// A header is invalid.
    #[error("--prometheus-header no. {position} is invalid: {cause}; write 'NAME: VALUE' or 'NAME: @FILE'")]
    InvalidHeader {
        /// Its position among the headers, from 1. Its text may be a secret.
        position: usize,
        /// What is wrong.
        cause: &'static str,
    },
    /// A header that the client sets itself, or that carries credentials.
    #[error(
        "--prometheus-header cannot set {0}: set a bearer token with --prometheus-token-path, and leave other headers of \
         this kind to the program"
    )]
    ReservedHeader(String),
    /// The watched namespace is not queried, so no number could be computed.
    #[error(
        "--watch-namespace {0} is not among the namespaces of --query-namespace, so none of its metrics would be read: add it"
    )]
    WatchedNamespaceNotQueried(String),
    /// The controller instance selects objects by a label, and is no value of one.
    #[error(
        "--controller-instance {0} is not the value of a label: write at most 63 letters, digits, '-', '_' and '.', with a letter or \
         digit at both ends"
    )]
    ControllerInstance(String),
    /// Another installation is described wrongly.
    #[error(
        "--installation no. {position} is invalid: {cause}; write '{{name: NAME, address: HOST:PORT, ca: FILE, namespaces: \
         [NAMESPACE]}}'"
    )]
    Installation {
        /// Its position, from 1.
        position: usize,
        /// What is wrong.
        cause: String,
    },
    /// `POD_IP` is invalid.
    #[error("POD_IP {0:?} is not an IP address")]
    PodIp(String),
    /// Recorded files are so large that deleting the oldest would leave too few.
    #[error(
        "--record-file-size {file} is more than a quarter of --record-max-size {total}: lower the first or raise the second"
    )]
    RecordFileSize {
        /// The maximum size of one file, bytes.
        file: u64,
        /// The maximum size of all files, bytes.
        total: u64,
    },
    /// Two ConfigMaps have the same name.
    #[error("{first} and {second} are both {name:?}: give each ConfigMap a name of its own")]
    SameConfigMap {
        /// The flag that sets the name first.
        first: &'static str,
        /// The flag that sets it again.
        second: &'static str,
        /// The name.
        name: String,
    },
    /// One of two flags that belong together is missing.
    #[error("{given} needs {missing} as well")]
    HalfPair {
        /// The flag that is set.
        given: &'static str,
        /// The missing flag.
        missing: &'static str,
    },
}
