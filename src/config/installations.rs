//! Several installations in one cluster: which others are read through this one, and which one may read this.

use std::collections::BTreeSet;
use std::path::PathBuf;

use rustls::pki_types::ServerName;
use serde::Deserialize;

use super::document::{self, Diagnostics};
use super::error::ConfigError;
use super::parsers::{is_label_value, is_namespace, non_empty, non_empty_path, path_or_empty};

/// Most installations.
const MAX_INSTALLATIONS: usize = 64;

/// How this and other installations read each other's variants.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Installations")]
pub struct InstallationArgs {
    /// Another installation in the cluster, whose variants are read through this one: a mapping, such as `{name: blue, address:
    /// wva.blue.svc:443, ca: /etc/blue/ca.crt, namespaces: [blue]}`. With controllerInstance too, only about variants with this
    /// label. serverName is the name in its certificate, by default the host of the address. May be repeated; in the variable, one a
    /// line. See docs/several-installations.md.
    #[arg(long, env = "WVA_INSTALLATIONS", value_delimiter = '\n', value_name = "MAPPING")]
    pub installation: Vec<String>,
    /// CA certificates, PEM, of the installation that may forward reads to this one. Reloaded when they change. Requires
    /// --forwarder-name.
    #[arg(long, env = "WVA_FORWARDER_CA_FILE", value_parser = path_or_empty(), value_name = "FILE")]
    pub forwarder_ca_file: Option<PathBuf>,
    /// Name in the certificate of that installation: wva-instance.NAMESPACE.internal, with the namespace it runs in.
    #[arg(long, env = "WVA_FORWARDER_NAME", value_name = "NAME")]
    pub forwarder_name: Option<String>,
}

/// Another installation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Installation {
    /// Its name in messages.
    pub name: String,
    /// The host of its Service.
    pub host: String,
    /// The port of its Service.
    pub port: u16,
    /// The name in its certificate.
    pub server_name: String,
    /// The file with the CA of its certificate.
    pub ca: PathBuf,
    /// The namespaces that it is asked about, at least one.
    pub namespaces: BTreeSet<String>,
    /// The label `controller_instance` of its variants; `None` for any.
    pub controller_instance: Option<String>,
}

/// The installation that may forward reads to this one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForwarderCertificate {
    /// The file with its CA.
    pub ca: PathBuf,
    /// The name in its certificate.
    pub name: String,
}

/// An installation as it is written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Document {
    name: String,
    address: String,
    ca: PathBuf,
    #[serde(default)]
    server_name: Option<String>,
    #[serde(default)]
    namespaces: BTreeSet<String>,
    #[serde(default)]
    controller_instance: Option<String>,
}

/// The installations of the command line, each name once.
///
/// # Errors
/// Names the position of a wrong one, and what is valid.
pub(super) fn installations(args: &InstallationArgs) -> Result<Vec<Installation>, ConfigError> {
    let texts = args.installation.iter().filter(|text| !text.trim().is_empty());
    let mut installations: Vec<Installation> = Vec::new();
    for (text, position) in texts.zip(1_usize..) {
        let invalid = |cause: String| ConfigError::Installation { position, cause };
        let installation = parse(text).map_err(invalid)?;
        if installations.iter().any(|earlier| earlier.name == installation.name) {
            return Err(invalid(format!("the name {:?} is taken: give each its own", installation.name)));
        }
        if position > MAX_INSTALLATIONS {
            return Err(invalid(format!("at most {MAX_INSTALLATIONS} are possible")));
        }
        installations.push(installation);
    }
    Ok(installations)
}

/// The installation that may forward reads, if any may.
///
/// # Errors
/// When either its CA or its name is missing.
pub(super) fn forwarder(args: &InstallationArgs) -> Result<Option<ForwarderCertificate>, ConfigError> {
    let half_pair = |given, missing| Err(ConfigError::HalfPair { given, missing });
    match (non_empty_path(args.forwarder_ca_file.clone()), non_empty(args.forwarder_name.clone())) {
        (Some(ca), Some(name)) => Ok(Some(ForwarderCertificate { ca, name })),
        (None, None) => Ok(None),
        (Some(_), None) => half_pair("--forwarder-ca-file", "--forwarder-name"),
        (None, Some(_)) => half_pair("--forwarder-name", "--forwarder-ca-file"),
    }
}

fn parse(text: &str) -> Result<Installation, String> {
    let document = document::parse(text).map_err(|cause| format!("it is not YAML or JSON: {cause}"))?;
    let mut diagnostics = Diagnostics::default();
    let read = document::read::<Document>(document, &mut diagnostics);
    let Some(document) = read.filter(|_| diagnostics.errors.is_empty()) else {
        return Err(diagnostics.errors.join("; "));
    };
    let Document { name, address, ca, server_name, namespaces, controller_instance } = document;
    let controller_instance = non_empty(controller_instance);
    if controller_instance.as_deref().is_some_and(|instance| !is_label_value(instance)) {
        return Err("controllerInstance must be the value of a label".into());
    }
    if !is_namespace(&name) {
        return Err("name must be at most 63 lower-case letters, digits and dashes".into());
    }
    let (host, port) = endpoint(&address).ok_or("address must be HOST:PORT, such as wva.blue.svc:443")?;
    if ca.as_os_str().is_empty() {
        return Err("ca must be a file with the CA of its certificate".into());
    }
    if let Some(wrong) = namespaces.iter().find(|namespace| !is_namespace(namespace)) {
        return Err(format!("namespaces: {wrong:?} is not the name of a namespace"));
    }
    if namespaces.is_empty() {
        return Err("it needs namespaces, which say what it is asked about".into());
    }
    let server_name = non_empty(server_name).unwrap_or_else(|| host.clone());
    if ServerName::try_from(server_name.as_str()).is_err() {
        return Err(format!("serverName: {server_name:?} is not a name that a certificate can have"));
    }
    Ok(Installation { name, host, port, server_name, ca, namespaces, controller_instance })
}

/// Host and port; an IPv6 address is in brackets.
fn endpoint(address: &str) -> Option<(String, u16)> {
    let (host, port) = address.rsplit_once(':')?;
    let port = port.parse().ok().filter(|port| *port != 0)?;
    let bracketed = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let is_host = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '.' | '-' | ':');
    let is_valid = !host.is_empty() && (bracketed.is_some() || !host.contains(':'));
    let host = bracketed.unwrap_or(host);
    (is_valid && host.chars().all(is_host)).then(|| (host.to_owned(), port))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(texts: &[&str]) -> Result<Vec<Installation>, String> {
        let args = InstallationArgs {
            installation: texts.iter().map(|text| (*text).to_owned()).collect(),
            forwarder_ca_file: None,
            forwarder_name: None,
        };
        installations(&args).map_err(|error| error.to_string())
    }

    #[test]
    fn an_installation_is_a_mapping_and_its_certificate_has_the_host_as_name() {
        let blue = "{name: blue, address: 'wva.blue.svc:443', ca: /ca.crt, namespaces: [b, a]}";
        let green = r#"{"name":"green","address":"[fd00::1]:8443","ca":"/g","serverName":"wva.green.svc","namespaces":["g"],"controllerInstance":"g"}"#;
        let installations = read(&[blue, "", green]).unwrap();
        let [blue, green] = &installations[..] else { panic!("{installations:?}") };
        assert_eq!(
            (blue.host.as_str(), blue.port, blue.server_name.as_str()),
            ("wva.blue.svc", 443, "wva.blue.svc")
        );
        assert_eq!(blue.namespaces.iter().collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(
            (green.host.as_str(), green.port, green.server_name.as_str()),
            ("fd00::1", 8443, "wva.green.svc")
        );
        assert_eq!((green.namespaces.len(), green.controller_instance.as_deref()), (1, Some("g")));
        assert_eq!(read(&[]), Ok(Vec::new()));
    }

    #[test]
    fn a_wrong_installation_is_refused_with_its_position_and_what_is_valid() {
        let valid = "{name: a, address: 'h:1', ca: /c, namespaces: [n]}";
        for (text, cause) in [
            (valid, "the name \"a\" is taken"),
            ("{name: b, address: 'h:1', ca: /c}", "it needs namespaces"),
            ("{name: b, address: 'h:1', ca: /c, controllerInstance: b}", "it needs namespaces"),
            (
                "{name: b, address: 'h:1', ca: /c, namespaces: [], controllerInstance: b}",
                "it needs namespaces",
            ),
            ("{name: b, address: 'https://h', ca: /c, namespaces: [n]}", "address must be HOST:PORT"),
            ("{name: b, address: 'h:0', ca: /c, namespaces: [n]}", "address must be HOST:PORT"),
            ("{name: b, address: 'fd00::1:443', ca: /c, namespaces: [n]}", "address must be HOST:PORT"),
            ("{name: b, address: 'h/x:1', ca: /c, namespaces: [n]}", "address must be HOST:PORT"),
            ("{name: B, address: 'h:1', ca: /c, namespaces: [n]}", "name must be at most 63"),
            ("{name: b, address: 'h:1', ca: /c, namespaces: ['*']}", "is not the name of a namespace"),
            ("{name: b, address: 'h:1', ca: '', namespaces: [n]}", "ca must be a file"),
            ("{name: b, address: 'h:1', namespaces: [n]}", "ca"),
            (
                "{name: b, address: 'h:1', ca: /c, namespaces: [n], serverName: a b}",
                "serverName: \"a b\" is not",
            ),
            ("{name: b, address: 'h:1', ca: /c, namespace: n}", "namespace"),
            (
                "{name: b, address: 'h:1', ca: /c, namespaces: [n], controllerInstance: 'a,b'}",
                "controllerInstance must be the value of a label",
            ),
            ("[", "it is not YAML or JSON"),
        ] {
            let error = read(&[valid, text]).unwrap_err();
            assert!(
                error.starts_with("--installation no. 2 is invalid: ") && error.contains(cause),
                "{text}: {error}"
            );
        }
    }

    #[test]
    fn a_forwarder_has_a_ca_and_a_name_or_neither() {
        let read = |ca: &str, name: &str| {
            forwarder(&InstallationArgs {
                installation: Vec::new(),
                forwarder_ca_file: Some(ca.into()),
                forwarder_name: Some(name.into()),
            })
        };
        assert_eq!(read("", ""), Ok(None));
        assert!(read("/ca", "wva-instance.a.internal").unwrap().is_some());
        for (ca, name) in [("/ca", ""), ("", "wva-instance.a.internal")] {
            assert!(read(ca, name).unwrap_err().to_string().contains("needs --forwarder-"), "{ca} {name}");
        }
    }
}
