//! What the arguments, variables and configuration file of WVA's controllers mean here.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Container, EnvVar, EnvVarSource, PodSpec, Volume, VolumeMount};

use super::objects::{Objects, is_image_of_wva};
use super::release::owner;
use super::report::{ObjectName, Report, count};
use crate::config::{CommandLine, Config, NOT_A_SETTING, Prometheus, Settings, Source, Unused};
use wva_core::text::quoted;

/// Where variables are made.
const ENVIRONMENT: &str = "the environment of its container";

/// The token of a pod's own ServiceAccount.
pub(super) const OWN_TOKEN: &str = "/var/run/secrets/kubernetes.io/serviceaccount/token";
/// The log level of the chart.
const DEFAULT_LOG_LEVEL: &str = "info";
/// The log levels.
const LOG_LEVELS: [&str; 5] = ["error", "warn", "info", "debug", "trace"];

/// One of WVA's controllers.
pub(super) struct Controller<'a> {
    pub(super) name: &'a ObjectName,
    /// The release of Helm that owns it.
    pub(super) release: Option<ObjectName>,
    /// The number of instances, 1 unless set.
    pub(super) replicas: i32,
    pub(super) image: String,
    /// Its configuration here, or why this program refuses it.
    pub(super) config: Result<Config, String>,
    /// The ConfigMap with the CA of Prometheus, and its key.
    pub(super) ca: Option<(String, String)>,
    /// Its log level, if it is one of [`LOG_LEVELS`].
    pub(super) log_level: Option<String>,
    unused: Vec<Unused>,
    /// Settings whose values are not known, each with what to do.
    unresolved: Vec<String>,
}

/// A container whose settings are being collected.
struct Reader<'a> {
    objects: &'a Objects,
    namespace: &'a str,
    pod: &'a PodSpec,
    container: &'a Container,
    unresolved: Vec<String>,
}

impl<'a> Controller<'a> {
    pub(super) fn new(name: &'a ObjectName, deployment: &Deployment, objects: &Objects) -> Self {
        let spec = deployment.spec.as_ref();
        let pod = spec.and_then(|spec| spec.template.spec.clone()).unwrap_or_default();
        let is_wva = |container: &&Container| container.image.as_deref().is_some_and(is_image_of_wva);
        let container =
            pod.containers.iter().find(is_wva).or(pod.containers.first()).cloned().unwrap_or_default();
        let mut reader = Reader {
            objects,
            namespace: &name.namespace,
            pod: &pod,
            container: &container,
            unresolved: Vec::new(),
        };
        let (config, log_level, unused) = match reader.configuration() {
            Ok((config, log_level, unused)) => (Ok(config), log_level, unused),
            Err(cause) => (Err(cause), None, Vec::new()),
        };
        let prometheus = config.as_ref().ok().and_then(prometheus);
        let ca = prometheus.and_then(|prometheus| reader.mounted(prometheus.ca_file.as_deref()?));
        let ca =
            ca.filter(|(map, _)| objects.config_maps.contains_key(&ObjectName::new(&name.namespace, map)));
        if let Some(prometheus) = prometheus {
            reader.report_credentials(prometheus, ca.is_some());
        }
        Self {
            name,
            // Of another namespace, it would be that of somebody else.
            release: owner(&deployment.metadata).filter(|release| release.namespace == name.namespace),
            replicas: spec.and_then(|spec| spec.replicas).unwrap_or(1),
            image: container.image.clone().unwrap_or_default(),
            config,
            ca,
            log_level,
            unused,
            unresolved: reader.unresolved,
        }
    }

    /// Reports what was found, and settings that change.
    pub(super) fn report(&self, report: &mut Report) {
        let Self { name, image, release, replicas, .. } = self;
        let object = format!("Deployment {name}");
        let release = release
            .as_ref()
            .map(|release| format!(", of the Helm release {} in {}", release.name, release.namespace));
        let of_release = release.unwrap_or_else(|| ", of no Helm release".into());
        let replicas = count(usize::try_from(*replicas).unwrap_or_default(), "replica");
        report.found(format!("WVA: {object} with {replicas}, image {image}{of_release}"));
        match &self.config {
            Ok(_) => report.same(format!("the arguments, variables and configuration file of {object}, except as listed below")),
            Err(cause) => report.act(
                &object,
                format!("this program refuses its settings: {cause}"),
                "correct the setting, or leave it out of wva-values.yaml, which begins without any setting of this Deployment",
            ),
        }
        let unused = self.unused.iter().map(|Unused { name, why, .. }| format!("{name} ({why})"));
        let unused = unused.collect::<Vec<_>>().join(", ");
        if !unused.is_empty() {
            report.change(&object, format!("without effect: {unused}"));
        }
        for unresolved in &self.unresolved {
            report.act(&object, unresolved, "set it in wva-values.yaml (charts/wva/values.yaml says how)");
        }
    }
}

/// The Prometheus that a configuration reads.
pub(super) fn prometheus(config: &Config) -> Option<&Prometheus> {
    match &config.source {
        Source::Prometheus(prometheus) => Some(prometheus),
        Source::Scrape(_) => None,
    }
}

impl Reader<'_> {
    /// The configuration of the container, its log level, and its settings without effect.
    fn configuration(&mut self) -> Result<(Config, Option<String>, Vec<Unused>), String> {
        let variables = self.variables();
        let command = self.container.command.iter().flatten().skip(1);
        let words = command.chain(self.container.args.iter().flatten());
        let words: Vec<OsString> = words.map(|word| expand(word, &variables).into()).collect();
        let mut line = CommandLine::of_container(words);
        line.add(&Settings::of_variables(ENVIRONMENT.into(), variables))
            .map_err(|error| first_line(&error))?;
        let file = line.args().map_err(|error| first_line(&error))?.config_file;
        if let Some(file) = file.filter(|file| !file.as_os_str().is_empty()) {
            match self.text_of(&file) {
                Some((origin, text)) => {
                    let settings = Settings::parse(origin, &text).map_err(|error| first_line(&error))?;
                    line.add(&settings).map_err(|error| first_line(&error))?;
                }
                None => self.unresolved.push(format!(
                    "--config-file {} is in no ConfigMap that could be read, so its settings are not known",
                    file.display()
                )),
            }
        }
        let args = line.args().map_err(|error| first_line(&error))?;
        let mut unused = line.unused(&args);
        // A container may have variables of other programs.
        unused.retain(|unused| unused.why != NOT_A_SETTING || unused.origin != ENVIRONMENT);
        let log_level = Some(args.log.filter().to_lowercase()).filter(|level| level != DEFAULT_LOG_LEVEL);
        let is_level = |level: &String| LOG_LEVELS.contains(&level.as_str());
        if log_level.as_ref().is_some_and(|level| !is_level(level)) {
            self.unresolved.push(format!(
                "its log level {} is none of the chart's log.level",
                quoted(args.log.filter())
            ));
        }
        let log_level = log_level.filter(is_level);
        Ok((Config::try_from(args).map_err(|error| first_line(&error))?, log_level, unused))
    }

    /// Notes the credentials for Prometheus that the chart takes from elsewhere. Their values are not shown.
    fn report_credentials(&mut self, prometheus: &Prometheus, has_ca: bool) {
        let mut note = |what: String, value: &str| {
            self.unresolved.push(format!("{what} is not taken over; it belongs into {value}"))
        };
        if prometheus.url.as_str().contains('@') {
            note("what precedes @ in the URL of Prometheus, a user and password,".into(), "prometheus.url");
        }
        if prometheus.token.is_some() {
            note(
                "the bearer token of Prometheus, a text in the settings of WVA,".into(),
                "a Secret for prometheus.token.secret",
            );
        }
        let named = |what: &str, file: &Path| {
            let secret = secret_of(self.pod, self.container, file);
            let of_secret = secret.map(|secret| format!(" of Secret {secret}")).unwrap_or_default();
            format!("{what}, file {}{of_secret},", file.display())
        };
        if let Some(file) = prometheus.token_file.as_deref().filter(|file| *file != Path::new(OWN_TOKEN)) {
            note(named("the bearer token of Prometheus", file), "a Secret for prometheus.token.secret");
        }
        if let Some(client) = &prometheus.client {
            note(
                named("the client certificate for Prometheus", &client.chain),
                "a Secret for prometheus.clientCertificateSecret",
            );
        }
        if let Some(file) = prometheus.ca_file.as_deref().filter(|_| !has_ca) {
            note(named("the CA of Prometheus", file), "a ConfigMap for prometheus.ca");
        }
    }

    /// The variables of the container, as far as they are known.
    fn variables(&mut self) -> BTreeMap<String, String> {
        let mut variables = BTreeMap::new();
        for source in self.container.env_from.iter().flatten() {
            let prefix = source.prefix.as_deref().unwrap_or_default();
            let map = source.config_map_ref.as_ref().and_then(|map| self.data(&map.name));
            match (map, &source.secret_ref) {
                (Some(data), _) => {
                    variables.extend(data.iter().map(|(key, text)| (format!("{prefix}{key}"), text.clone())))
                }
                (None, Some(secret)) => {
                    self.unresolved.push(format!("variables of Secret {} are not known", secret.name));
                }
                (None, None) => {}
            }
        }
        for EnvVar { name, value, value_from, .. } in self.container.env.iter().flatten() {
            let text = match (value, value_from) {
                (Some(text), _) => Some(expand(text, &variables)),
                (None, Some(source)) => self.value_from(name, source),
                (None, None) => None,
            };
            variables.extend(text.map(|text| (name.clone(), text)));
        }
        variables
    }

    fn value_from(&mut self, variable: &str, source: &EnvVarSource) -> Option<String> {
        if let Some(reference) = &source.config_map_key_ref {
            let text = self.data(&reference.name).and_then(|data| data.get(&reference.key)).cloned();
            if text.is_none() && reference.optional != Some(true) {
                let (map, key) = (&reference.name, &reference.key);
                self.unresolved
                    .push(format!("{variable} is {key} of ConfigMap {map}, which could not be read"));
            }
            return text;
        }
        if let Some(secret) = &source.secret_key_ref {
            self.unresolved
                .push(format!("{variable} is {} of Secret {}, which is not read", secret.key, secret.name));
        }
        let field = source.field_ref.as_ref().map(|field| field.field_path.as_str());
        (field == Some("metadata.namespace")).then(|| self.namespace.to_owned())
    }

    /// The data of a ConfigMap in the namespace of the container.
    fn data(&self, name: &str) -> Option<&BTreeMap<String, String>> {
        self.objects.config_maps.get(&ObjectName::new(self.namespace, name))?.data.as_ref()
    }

    /// Where a file is from, and its text.
    fn text_of(&self, file: &Path) -> Option<(String, String)> {
        let (map, key) = self.mounted(file)?;
        let text = self.data(&map)?.get(&key)?;
        Some((format!("ConfigMap {}/{map}, {key}", self.namespace), text.clone()))
    }

    /// The ConfigMap that is mounted at a file, and the key of the file.
    fn mounted(&self, file: &Path) -> Option<(String, String)> {
        let (mount, volume) = mount_of(self.pod, self.container, file)?;
        let inner = file.strip_prefix(&mount.mount_path).ok()?.to_str()?;
        let path = if inner.is_empty() { mount.sub_path.as_deref()? } else { inner };
        let map = volume.config_map.as_ref()?;
        let item = map.items.iter().flatten().find(|item| item.path == path);
        Some((map.name.clone(), item.map_or(path, |item| &item.key).to_owned()))
    }
}

/// The volume that has a file of a container, and where it is mounted.
fn mount_of<'a>(
    pod: &'a PodSpec,
    container: &'a Container,
    file: &Path,
) -> Option<(&'a VolumeMount, &'a Volume)> {
    let mounts = container.volume_mounts.iter().flatten();
    let mount = mounts
        .filter(|mount| file.starts_with(&mount.mount_path))
        .max_by_key(|mount| mount.mount_path.len())?;
    let volume = pod.volumes.iter().flatten().find(|volume| volume.name == mount.name)?;
    Some((mount, volume))
}

/// The Secret that has a file of a container.
fn secret_of<'a>(pod: &'a PodSpec, container: &'a Container, file: &Path) -> Option<&'a str> {
    mount_of(pod, container, file)?.1.secret.as_ref()?.secret_name.as_deref()
}

/// `$(NAME)` replaced by the variable, where it is known.
fn expand(text: &str, variables: &BTreeMap<String, String>) -> String {
    let mut expanded = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("$(") {
        expanded.push_str(before);
        let variable = after.split_once(')').and_then(|(name, after)| Some((variables.get(name)?, after)));
        match variable {
            Some((value, after)) => {
                expanded.push_str(value);
                rest = after;
            }
            None => {
                expanded.push_str("$(");
                rest = after;
            }
        }
    }
    expanded + rest
}

/// The first line of an error, without clap's beginning.
fn first_line(error: &dyn std::fmt::Display) -> String {
    let text = error.to_string();
    let line = text.lines().next().unwrap_or_default();
    line.trim_start_matches("error: ").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_in_arguments_are_expanded_where_they_are_known() {
        let variables = BTreeMap::from([("NS".to_owned(), "llm".to_owned())]);
        for (text, expanded) in
            [("--watch-namespace=$(NS)", "--watch-namespace=llm"), ("$(X)$(NS)$(", "$(X)llm$("), ("", "")]
        {
            assert_eq!(expand(text, &variables), expanded);
        }
    }
}
