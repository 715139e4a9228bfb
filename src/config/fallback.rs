//! Which metrics server is asked for metrics that are not served here.

use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::SignedDuration;

use super::error::ConfigError;
use super::parsers::{at_least, is_namespace, non_empty, non_empty_path, path_or_empty};

/// The shortest time for an answer.
const MIN_TIMEOUT: Duration = Duration::from_millis(100);
/// The port of an aggregated API server, unless its APIService says otherwise.
const DEFAULT_PORT: u16 = 443;
/// Where Kubernetes puts the token of a pod's service account.
const OWN_TOKEN: &str = "/var/run/secrets/kubernetes.io/serviceaccount/token";

/// Pass-through of external metrics that are not served here.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Pass-through")]
pub struct FallbackArgs {
    /// Service of the metrics server that owned external.metrics.k8s.io before (KEDA, Datadog, prometheus-adapter): it is asked for
    /// every metric that is neither of variants nor of a rule, with this program's token, once the caller is authorised. Needs
    /// --fallback-ca or --fallback-insecure-skip-tls-verify. See docs/pass-through.md.
    #[arg(long, env = "WVA_FALLBACK_APISERVICE", value_name = "NAMESPACE/SERVICE[:PORT]")]
    pub fallback_apiservice: Option<String>,
    /// CA certificates, PEM, of its certificate, which must be for SERVICE.NAMESPACE.svc. Reloaded when they change.
    #[arg(long, env = "WVA_FALLBACK_CA", value_parser = path_or_empty(), value_name = "FILE")]
    pub fallback_ca: Option<PathBuf>,
    /// Accept any certificate of it. Whoever answers at its address then gets the token and sets the replicas of its autoscalers.
    #[arg(long, env = "WVA_FALLBACK_INSECURE_SKIP_TLS_VERIFY")]
    pub fallback_insecure_skip_tls_verify: bool,
    /// Let its APIService v1beta1.external.metrics.k8s.io point to this program's Service, once the server answers. Without the flag it
    /// points back to what it did before. Not with a certificate of your own.
    #[arg(long, env = "WVA_FALLBACK_TAKE_OVER")]
    pub fallback_take_over: bool,
    /// Port of this program's Service that the APIService then points to.
    #[arg(long, env = "WVA_FALLBACK_TAKE_OVER_PORT", default_value_t = DEFAULT_PORT, value_name = "PORT")]
    pub fallback_take_over_port: u16,
    /// File with the bearer token for it, read anew for each request.
    #[arg(long, env = "WVA_FALLBACK_TOKEN_PATH", value_parser = path_or_empty(), default_value = OWN_TOKEN, value_name = "FILE")]
    pub fallback_token_path: Option<PathBuf>,
    /// Maximum time for an answer of it, at least 100ms.
    #[arg(long, env = "WVA_FALLBACK_TIMEOUT", default_value = "5s", value_name = "DURATION")]
    pub fallback_timeout: SignedDuration,
}

/// The metrics server that is asked for what is not served here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fallback {
    /// The namespace of its Service.
    pub namespace: String,
    /// The name of its Service.
    pub name: String,
    /// The port of its Service.
    pub port: u16,
    /// The CAs of its certificate; `None` verifies nothing.
    pub ca: Option<PathBuf>,
    /// The file with the token.
    pub token: PathBuf,
    /// Most time for an answer.
    pub timeout: Duration,
    /// Whether its APIService is to point to this program, and to which port of its Service.
    pub take_over: Option<u16>,
}

impl Fallback {
    /// The server, if one is named. It is not `own`, the namespace and the name of this program's Service.
    ///
    /// # Errors
    /// When the flags contradict each other, or name no Service.
    pub fn of(args: FallbackArgs, own: (&str, &str)) -> Result<Option<Self>, ConfigError> {
        let Some(text) = non_empty(args.fallback_apiservice) else {
            return if args.fallback_take_over { Err(ConfigError::TakeOverFromNobody) } else { Ok(None) };
        };
        let (namespace, name, port) =
            service(&text).ok_or_else(|| ConfigError::FallbackService(text.clone()))?;
        if (namespace, name) == own {
            return Err(ConfigError::FallbackIsOwn(text));
        }
        let ca = non_empty_path(args.fallback_ca);
        if ca.is_some() == args.fallback_insecure_skip_tls_verify {
            return Err(ConfigError::FallbackTrust);
        }
        Ok(Some(Self {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            port,
            ca,
            token: non_empty_path(args.fallback_token_path).unwrap_or_else(|| OWN_TOKEN.into()),
            take_over: args.fallback_take_over.then_some(args.fallback_take_over_port),
            timeout: at_least("--fallback-timeout", args.fallback_timeout, MIN_TIMEOUT, "")?,
        }))
    }

    /// Whether it is sent the token of this program's own service account.
    #[must_use]
    pub fn has_own_token(&self) -> bool {
        self.token == Path::new(OWN_TOKEN)
    }

    /// The name of its Service in the cluster, which is that in its certificate.
    #[must_use]
    pub fn host(&self) -> String {
        format!("{}.{}.svc", self.name, self.namespace)
    }
}

/// The absolute name of a host `SERVICE.NAMESPACE.svc`, by the domain of the cluster in a pod's `resolv.conf`. Without it, the resolver would
/// try other domains first, among them those of a namespace `svc`, whose owner would get the token. Where no cluster is known, the host.
#[must_use]
pub fn absolute_name(host: &str, resolv_conf: &str) -> String {
    let searched = resolv_conf.lines().filter_map(|line| line.trim().strip_prefix("search"));
    let domains = searched.flat_map(str::split_ascii_whitespace);
    // The shortest: a pod in a namespace `svc` searches `svc.svc.` first.
    let cluster = domains.filter_map(|domain| domain.strip_prefix("svc.")).min_by_key(|domain| domain.len());
    cluster.map_or_else(|| host.to_owned(), |domain| format!("{host}.{}.", domain.trim_end_matches('.')))
}

/// Namespace, name and port of `namespace/name[:port]`.
fn service(text: &str) -> Option<(&str, &str, u16)> {
    let (namespace, rest) = text.split_once('/')?;
    let (name, port) = match rest.split_once(':') {
        Some((name, port)) => (name, port.parse().ok().filter(|port| *port > 0)?),
        None => (rest, DEFAULT_PORT),
    };
    (is_namespace(namespace) && is_namespace(name)).then_some((namespace, name, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_another_service_and_it_is_said_how_it_is_verified() {
        let fallback = |service: &str, ca: Option<&str>, insecure| {
            let args = FallbackArgs {
                fallback_apiservice: Some(service.to_owned()),
                fallback_ca: ca.map(PathBuf::from),
                fallback_insecure_skip_tls_verify: insecure,
                fallback_take_over: true,
                fallback_take_over_port: 443,
                fallback_token_path: None,
                fallback_timeout: SignedDuration::from_secs(5),
            };
            Fallback::of(args, ("wva-system", "wva"))
        };
        let verified = fallback("keda/metrics", Some("/ca.crt"), false).unwrap().unwrap();
        assert_eq!((verified.host().as_str(), verified.take_over), ("metrics.keda.svc", Some(443)));
        assert_eq!(fallback("keda/metrics", None, true).unwrap().unwrap().ca, None);
        for (ca, insecure) in [(None, false), (Some(""), false), (Some("/ca.crt"), true)] {
            assert!(matches!(fallback("keda/metrics", ca, insecure), Err(ConfigError::FallbackTrust)));
        }
        let own = fallback("wva-system/wva:8443", Some("/ca.crt"), false);
        assert!(matches!(own, Err(ConfigError::FallbackIsOwn(_))));
        assert!(matches!(fallback("", None, false), Err(ConfigError::TakeOverFromNobody)));
    }

    #[test]
    fn a_pod_of_a_namespace_named_svc_got_the_token() {
        let pod = "search wva-system.svc.cluster.local svc.cluster.local cluster.local example.com\nnameserver 10.96.0.10\noptions ndots:5\n";
        assert_eq!(absolute_name("metrics.keda.svc", pod), "metrics.keda.svc.cluster.local.");
        let own_domain = "nameserver fd00::a\nsearch a.svc.k8s.example. svc.k8s.example. k8s.example.\n";
        assert_eq!(absolute_name("metrics.keda.svc", own_domain), "metrics.keda.svc.k8s.example.");
        let of_svc = "search svc.svc.cluster.local svc.cluster.local cluster.local\n";
        assert_eq!(absolute_name("metrics.keda.svc", of_svc), "metrics.keda.svc.cluster.local.");
        assert_eq!(absolute_name("metrics.keda.svc", "search example.com\n"), "metrics.keda.svc", "no pod");
    }

    #[test]
    fn a_service_has_a_namespace_a_name_and_perhaps_a_port() {
        assert_eq!(service("keda/metrics"), Some(("keda", "metrics", 443)));
        assert_eq!(service("keda/metrics:8443"), Some(("keda", "metrics", 8443)));
        for wrong in ["metrics", "keda/", "/metrics", "keda/a/b", "keda/a:0", "keda/a:x", "https://a/b"] {
            assert_eq!(service(wrong), None, "{wrong}");
        }
    }
}
