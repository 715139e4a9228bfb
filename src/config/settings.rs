//! Settings in a document whose keys are the names of environment variables, as in the configuration file of WVA's controllers.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde_json::Value;

use super::document;
use super::ranged::shorten;
use super::secret::Secret;

/// The key of a ConfigMap that contains WVA's whole configuration file.
const CONFIG_FILE_KEY: &str = "config.yaml";
/// The variables that are needed to find and to read a ConfigMap, or before.
const BEFORE_CONFIG_MAPS: &[&str] =
    &["CONFIG_MAP_NAME", "KUBECONFIG", "LOG_LEVEL", "POD_IP", "POD_NAME", "POD_NAMESPACE"];
/// Characters of a key in a message.
const MAX_KEY_CHARS: usize = 60;

/// Settings by key, and where they are from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    origin: String,
    /// Some of them are secrets, such as a bearer token.
    values: BTreeMap<String, Secret>,
    /// The keys that are read too late to have an effect.
    too_late: &'static [&'static str],
}

/// Why settings cannot be used: where they are, the key, and the cause.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{origin}: {problem}")]
pub struct SettingsError {
    origin: String,
    problem: String,
}

impl Settings {
    /// Reads the YAML file of `--config-file`.
    ///
    /// # Errors
    /// When it cannot be read or parsed, or when a value is a list or a mapping. Names the file and the key.
    pub fn read(path: &Path) -> Result<Self, SettingsError> {
        let origin = format!("--config-file {}", path.display());
        match fs::read_to_string(path) {
            Ok(text) => Self::parse(origin, &text),
            Err(error) => Err(SettingsError { origin, problem: format!("cannot read it: {error}") }),
        }
    }

    /// Settings by the names of variables. An empty one counts as unset.
    #[must_use]
    pub fn of_variables(origin: String, variables: impl IntoIterator<Item = (String, String)>) -> Self {
        let set = variables.into_iter().filter(|(_, text)| !text.is_empty());
        let values = set.map(|(key, text)| (key, Secret::from(text))).collect();
        Self { origin, values, too_late: &[] }
    }

    /// Parses a YAML mapping of keys to texts, numbers and switches. As in WVA, the case of keys does not matter, and an empty
    /// value counts as unset.
    ///
    /// # Errors
    /// When it cannot be parsed, or when a value is a list or a mapping. Names the key.
    pub fn parse(origin: String, text: &str) -> Result<Self, SettingsError> {
        let fail = |problem: String| SettingsError { origin: origin.clone(), problem };
        let document = document::parse(text).map_err(|cause| fail(format!("it is not YAML: {cause}")))?;
        let fields = match document {
            Value::Null => serde_json::Map::new(),
            Value::Object(fields) => fields,
            _ => return Err(fail("must be a mapping of settings, such as WVA_SCALE_TO_ZERO: true".into())),
        };
        let mut values = BTreeMap::new();
        for (key, value) in fields {
            let key = shorten(&key.to_ascii_uppercase(), MAX_KEY_CHARS);
            let text = match value {
                Value::Null => String::new(),
                Value::String(text) => text,
                Value::Bool(_) | Value::Number(_) => value.to_string(),
                Value::Array(_) | Value::Object(_) => {
                    return Err(fail(format!("{key} must be a text, a number, true or false")));
                }
            };
            values.insert(key, Secret::from(text));
        }
        values.retain(|_, text| !text.as_str().is_empty());
        Ok(Self { origin, values, too_late: &[] })
    }

    /// The settings of WVA's main ConfigMap: those of its key `config.yaml`, or else of its keys.
    ///
    /// # Errors
    /// When `config.yaml` is no mapping of settings. Names the ConfigMap and the key.
    pub fn of_config_map(
        namespace: &str,
        name: &str,
        entries: &BTreeMap<String, String>,
    ) -> Result<Self, SettingsError> {
        let origin = format!("ConfigMap {namespace}/{name}");
        if let Some(text) = entries.get(CONFIG_FILE_KEY) {
            let settings = Self::parse(format!("{origin}, entry {CONFIG_FILE_KEY}"), text)?;
            return Ok(Self { too_late: BEFORE_CONFIG_MAPS, ..settings });
        }
        let values = entries.iter().map(|(key, text)| (shorten(key, MAX_KEY_CHARS), text.clone()));
        Ok(Self { too_late: BEFORE_CONFIG_MAPS, ..Self::of_variables(origin, values) })
    }

    /// Whether `key` is read too late to have an effect.
    pub(super) fn is_too_late(&self, key: &str) -> bool {
        self.too_late.contains(&key)
    }

    /// Where they are from.
    pub(super) fn origin(&self) -> &str {
        &self.origin
    }

    /// Every setting: key and value.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.values.iter().map(|(key, value)| (key.as_str(), value.as_str()))
    }

    /// The error that `problem` is with them.
    pub(super) fn error(&self, problem: String) -> SettingsError {
        SettingsError { origin: self.origin.clone(), problem }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Vec<(String, String)>, String> {
        let settings = Settings::parse("f".into(), text).map_err(|error| error.to_string())?;
        Ok(settings.iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect())
    }

    #[test]
    fn values_are_texts_numbers_and_switches_and_empty_ones_count_as_unset() {
        let text = "# WVA\nPROMETHEUS_BASE_URL: https://p:9090\nwva_scale_to_zero: true\nN: 10\nE: \"\"\nU:\nT: 60s\n";
        let expected = [
            ("N", "10"),
            ("PROMETHEUS_BASE_URL", "https://p:9090"),
            ("T", "60s"),
            ("WVA_SCALE_TO_ZERO", "true"),
        ];
        let expected = expected.map(|(key, value)| (key.to_owned(), value.to_owned()));
        assert_eq!(parse(text), Ok(expected.into()));
        assert_eq!(parse("# nothing\n"), Ok(Vec::new()));
    }

    #[test]
    fn a_token_in_the_file_was_once_shown_by_debug_output() {
        let text = "PROMETHEUS_BEARER_TOKEN: s3cret\nPROMETHEUS_BASE_URL: https://user:s3cret@p\n";
        let shown = format!("{:?}", Settings::parse("f".into(), text).unwrap());
        assert!(shown.contains("PROMETHEUS_BEARER_TOKEN") && !shown.contains("s3cret"), "{shown}");
    }

    #[test]
    fn a_configmap_has_a_key_for_each_setting_or_one_for_the_whole_file() {
        let read = |entries: &[(&str, &str)]| {
            let entries = entries.iter().map(|(key, text)| ((*key).to_owned(), (*text).to_owned())).collect();
            let settings = Settings::of_config_map("wva", "main", &entries).unwrap();
            let values = settings.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>();
            (settings.origin().to_owned(), values.join(" "))
        };
        let flat = [("WVA_SCALE_TO_ZERO", "true"), ("PROMETHEUS_BASE_URL", "")];
        assert_eq!(read(&flat), ("ConfigMap wva/main".into(), "WVA_SCALE_TO_ZERO=true".into()));
        let file = [("config.yaml", "WVA_SCALE_TO_ZERO: \"true\"\n"), ("WVA_NODE_SELECTOR", "ignored")];
        let expected = ("ConfigMap wva/main, entry config.yaml".into(), "WVA_SCALE_TO_ZERO=true".into());
        assert_eq!(read(&file), expected);
    }

    #[test]
    fn a_document_that_is_no_mapping_of_settings_is_refused_with_its_place() {
        for (text, says) in [
            ("A: [1]", "f: A must be a text, a number, true or false"),
            ("A: {b: 1}", "f: A must be a text, a number, true or false"),
            ("- A", "f: must be a mapping of settings"),
            ("A: [", "f: it is not YAML: "),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.starts_with(says), "{text}: {error}");
        }
        let missing = Settings::read(Path::new("/nowhere/config.yaml")).unwrap_err().to_string();
        assert!(missing.starts_with("--config-file /nowhere/config.yaml: cannot read it: "), "{missing}");
    }
}
