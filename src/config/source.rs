//! Validates the flags of the metric source.

use std::collections::BTreeSet;
use std::path::PathBuf;

use http::{HeaderName, HeaderValue};

use super::args::{SourceArgs, SourceKind};
use super::error::ConfigError;
use super::parsers::{non_empty, non_empty_path};
use super::secret::Secret;

/// Headers that the client sets itself, or that carry credentials, for which there are other flags.
const RESERVED_HEADERS: [&str; 10] = [
    "accept-encoding",
    "authorization",
    "connection",
    "content-length",
    "content-type",
    "cookie",
    "host",
    "proxy-authorization",
    "transfer-encoding",
    "upgrade",
];

/// The source of metrics.
#[derive(Debug, Clone)]
pub enum Source {
    /// A Prometheus API.
    Prometheus(Box<Prometheus>),
    /// The pods themselves.
    Scrape(Scrape),
}

/// How to reach a Prometheus API.
#[derive(Debug, Clone)]
pub struct Prometheus {
    /// The base URL.
    pub url: Secret,
    /// The bearer token, if it is on the command line.
    pub token: Option<Secret>,
    /// The file with the bearer token.
    pub token_file: Option<PathBuf>,
    /// Further headers of every request.
    pub headers: Vec<PrometheusHeader>,
    /// The CA of the server's certificate.
    pub ca_file: Option<PathBuf>,
    /// The client certificate.
    pub client: Option<Certificate>,
    /// The name in the server's certificate.
    pub server_name: Option<String>,
    /// Accept any certificate.
    pub insecure_skip_verify: bool,
    /// Most series of one query. A larger one is split by namespace, and within a namespace by signal.
    pub max_series: u64,
    /// Scrape targets that may report metrics of pods in other namespaces, each as `namespace` or `namespace/job`.
    pub trusted_collectors: Vec<String>,
    /// Label matchers of every query, each as `label="value"` or a list of these, in `PromQL`.
    pub query_matchers: Vec<String>,
    /// The only namespaces that are queried; empty for all with variants.
    pub query_namespaces: BTreeSet<String>,
}

/// A header of every request to Prometheus.
#[derive(Debug, Clone)]
pub struct PrometheusHeader {
    /// Its name.
    pub name: HeaderName,
    /// Where its value comes from.
    pub value: HeaderText,
}

/// Where the value of a header comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HeaderText {
    /// The value itself.
    Text(Secret),
    /// A file with the value.
    File(PathBuf),
}

/// How to scrape pods.
#[derive(Debug, Clone)]
pub struct Scrape {
    /// `http` or `https`.
    pub scheme: String,
    /// The path.
    pub path: String,
    /// The file with the bearer token.
    pub token_file: Option<PathBuf>,
    /// The CA of the pods' certificates.
    pub ca_file: Option<PathBuf>,
}

/// Files of a certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Certificate {
    /// The chain, PEM.
    pub chain: PathBuf,
    /// The key, PEM.
    pub key: PathBuf,
}

/// The source that these flags choose. Queries default to the watched namespace.
///
/// # Errors
/// Names the flag that is missing or invalid.
pub fn source(args: SourceArgs, watch_namespace: Option<&str>) -> Result<Source, ConfigError> {
    let url = Secret::non_empty(args.prometheus_url);
    let scrape = args.source == SourceKind::Scrape || (args.source == SourceKind::Auto && url.is_none());
    if scrape {
        return Ok(Source::Scrape(Scrape {
            scheme: args.scrape_scheme,
            path: args.scrape_path,
            token_file: args.scrape_token_path,
            ca_file: args.scrape_ca_cert_path,
        }));
    }
    let certificate = non_empty_path(args.prometheus_client_cert_path);
    let key = non_empty_path(args.prometheus_client_key_path);
    Ok(Source::Prometheus(Box::new(Prometheus {
        url: url.ok_or(ConfigError::NoPrometheusUrl)?,
        token: Secret::non_empty(args.prometheus_bearer_token),
        token_file: non_empty_path(args.prometheus_token_path),
        headers: headers(&args.prometheus_header)?,
        ca_file: non_empty_path(args.prometheus_ca_cert_path),
        client: client_certificate(certificate, key)?,
        server_name: non_empty(args.prometheus_server_name),
        insecure_skip_verify: args.prometheus_tls_insecure_skip_verify,
        max_series: args.max_series,
        trusted_collectors: args.trusted_collectors,
        query_matchers: args.query_matcher.into_iter().filter(|text| !text.is_empty()).collect(),
        query_namespaces: query_namespaces(args.query_namespace, watch_namespace)?,
    })))
}

fn client_certificate(
    certificate: Option<PathBuf>,
    key: Option<PathBuf>,
) -> Result<Option<Certificate>, ConfigError> {
    let (certificate_flag, key_flag) = ("--prometheus-client-cert-path", "--prometheus-client-key-path");
    match (certificate, key) {
        (Some(chain), Some(key)) => Ok(Some(Certificate { chain, key })),
        (None, None) => Ok(None),
        (Some(_), None) => Err(ConfigError::HalfPair { given: certificate_flag, missing: key_flag }),
        (None, Some(_)) => Err(ConfigError::HalfPair { given: key_flag, missing: certificate_flag }),
    }
}

/// The given namespaces, which must contain the watched one, or else that one.
fn query_namespaces(
    given: Vec<String>,
    watch_namespace: Option<&str>,
) -> Result<BTreeSet<String>, ConfigError> {
    let mut namespaces: BTreeSet<String> = given.into_iter().filter(|name| !name.is_empty()).collect();
    if let Some(watched) = watch_namespace {
        if !namespaces.is_empty() && !namespaces.contains(watched) {
            return Err(ConfigError::WatchedNamespaceNotQueried(watched.to_owned()));
        }
        namespaces.insert(watched.to_owned());
    }
    Ok(namespaces)
}

/// The headers. Errors say which one is wrong, by its position, and never contain a value.
fn headers(given: &[Secret]) -> Result<Vec<PrometheusHeader>, ConfigError> {
    let mut headers: Vec<PrometheusHeader> = Vec::new();
    for (index, text) in
        given.iter().map(Secret::as_str).enumerate().filter(|(_, text)| !text.trim().is_empty())
    {
        let invalid = |cause| ConfigError::InvalidHeader { position: index + 1, cause };
        let (name, value) = text.split_once(':').ok_or_else(|| invalid("it has no colon"))?;
        let name: HeaderName = name
            .trim()
            .parse()
            .map_err(|_| invalid("the text before the colon is not the name of a header"))?;
        if RESERVED_HEADERS.contains(&name.as_str()) {
            return Err(ConfigError::ReservedHeader(name.to_string()));
        }
        if headers.iter().any(|header| header.name == name) {
            return Err(invalid("the header is given twice"));
        }
        let value = match value.trim() {
            "" | "@" => return Err(invalid("it has no value")),
            value => match value.strip_prefix('@') {
                Some(path) => HeaderText::File(path.trim_start().into()),
                None if HeaderValue::from_str(value).is_err() => {
                    return Err(invalid("its value has characters that a header cannot have"));
                }
                None => HeaderText::Text(value.to_owned().into()),
            },
        };
        headers.push(PrometheusHeader { name, value });
    }
    Ok(headers)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header_error(arguments: &[&str]) -> String {
        let arguments: Vec<Secret> = arguments.iter().map(|text| (*text).to_owned().into()).collect();
        headers(&arguments).unwrap_err().to_string()
    }

    #[test]
    fn a_header_has_its_value_as_text_or_in_a_file() {
        let arguments = ["X-Scope-OrgID: team|other", "", "THANOS-TENANT:@ /run/tenant"];
        let headers = headers(&arguments.map(|text| text.to_owned().into())).unwrap();
        let found: Vec<_> = headers.iter().map(|header| (header.name.as_str(), &header.value)).collect();
        let tenant = HeaderText::Text("team|other".to_owned().into());
        let file = HeaderText::File("/run/tenant".into());
        assert_eq!(found, [("x-scope-orgid", &tenant), ("thanos-tenant", &file)]);
        assert!(!format!("{headers:?}").contains("team"), "a value is never shown");
    }

    #[test]
    fn an_invalid_header_is_named_by_its_position_and_never_shown() {
        for (given, cause) in [
            (&["a: b", "X-Scope-OrgID s3cret"][..], "no. 2 is invalid: it has no colon"),
            (&["s3cret id: x"], "no. 1 is invalid: the text before the colon"),
            (&["a: s3cret", "A: s3cret"], "no. 2 is invalid: the header is given twice"),
            (&["a: s3cret\u{7}"], "no. 1 is invalid: its value has characters"),
            (&["a: "], "no. 1 is invalid: it has no value"),
            (&["Authorization: s3cret"], "--prometheus-token-path"),
            (&["Host: s3cret"], "cannot set host"),
        ] {
            let error = header_error(given);
            assert!(error.contains(cause) && !error.contains("s3cret"), "{error}");
            assert!(error.contains("--prometheus-header"), "{error}");
        }
    }

    #[test]
    fn queries_are_limited_to_the_watched_namespace_unless_others_are_given_too() {
        let of = |given: &[&str], watched| {
            query_namespaces(given.iter().map(|name| (*name).to_owned()).collect(), watched)
                .map(|names| names.into_iter().collect::<Vec<_>>().join(" "))
        };
        assert_eq!(of(&[], None), Ok(String::new()));
        assert_eq!(of(&["b", "", "a"], None), Ok("a b".into()));
        assert_eq!(of(&[], Some("llm")), Ok("llm".into()));
        assert_eq!(of(&["llm", "a"], Some("llm")), Ok("a llm".into()));
        let error = of(&["a"], Some("llm")).unwrap_err().to_string();
        assert!(error.contains("--watch-namespace llm") && error.contains("--query-namespace"), "{error}");
    }
}
