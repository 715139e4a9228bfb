//! A policy as a file: YAML or JSON, whole or only what is to be other than in the policy it changes.

use std::path::{Path, PathBuf};

use serde_json::Value;
use wva_core::Policy;

/// What a file wants otherwise.
#[derive(Debug, Clone)]
pub struct PolicyFile {
    path: PathBuf,
    content: Value,
}

/// A policy file that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    /// It is not YAML.
    #[error("--policy {path}: not YAML or JSON: {cause}")]
    Syntax {
        /// The file.
        path: PathBuf,
        /// Where and why.
        cause: String,
    },
    /// It does not make a policy.
    #[error("--policy {path}: {cause}; `wva decide --print-policy` shows every setting with its default")]
    Content {
        /// The file.
        path: PathBuf,
        /// Which setting and why.
        cause: String,
    },
}

impl PolicyFile {
    /// From the text of `path`, checked to make a policy of the default one.
    ///
    /// # Errors
    /// Names the file, the setting and the cause.
    pub fn parse(path: &Path, text: &str) -> Result<Self, PolicyError> {
        let content = serde_saphyr::from_str(text)
            .map_err(|error| PolicyError::Syntax { path: path.into(), cause: error.to_string() })?;
        let file = Self { path: path.into(), content };
        file.over(&Policy::default()).map(|_| file)
    }

    /// `base` with what the file says.
    ///
    /// # Errors
    /// Names the setting that is unknown or out of range.
    pub fn over(&self, base: &Policy) -> Result<Policy, PolicyError> {
        self.changed(base).map_err(|cause| PolicyError::Content { path: self.path.clone(), cause })
    }

    fn changed(&self, base: &Policy) -> Result<Policy, String> {
        let mut wanted = serde_json::to_value(base).map_err(|error| error.to_string())?;
        match &self.content {
            // A file of comments changes nothing.
            Value::Null => {}
            Value::Object(_) => lay_over(&mut wanted, &self.content),
            _ => return Err("a policy is a mapping of settings".into()),
        }
        let policy: Policy = serde_json::from_value(wanted).map_err(|error| error.to_string())?;
        let understood = serde_json::to_value(&policy).map_err(|error| error.to_string())?;
        if let Some(unknown) = unknown(&self.content, &understood) {
            return Err(format!("there is no setting {unknown}"));
        }
        policy.validated().map_err(|error| error.to_string())
    }
}

/// Mappings are merged, everything else is replaced.
fn lay_over(base: &mut Value, over: &Value) {
    match (base, over) {
        (Value::Object(base), Value::Object(over)) => {
            for (key, value) in over {
                lay_over(base.entry(key.clone()).or_insert(Value::Null), value);
            }
        }
        (base, over) => *base = over.clone(),
    }
}

/// The first setting that was given and that the policy has not taken up: a typo would change nothing and not be seen.
fn unknown(given: &Value, understood: &Value) -> Option<String> {
    let (Value::Object(given), Value::Object(understood)) = (given, understood) else { return None };
    given.iter().find_map(|(key, value)| match understood.get(key) {
        None if is_empty(value) => None,
        None => Some(key.clone()),
        Some(inside) => unknown(value, inside).map(|rest| format!("{key}.{rest}")),
    })
}

/// What a policy leaves out when it is written.
fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<PolicyFile, String> {
        PolicyFile::parse(Path::new("p.yaml"), text).map_err(|error| error.to_string())
    }

    #[test]
    fn a_file_changes_what_it_names_and_nothing_else() {
        let base = Policy { max_stale: wva_core::units::Seconds::whole(77), ..Policy::default() };
        let file = parse("# more room\nglobal: {default: {saturation: {kvSpareTrigger: 0.3}}}\n").unwrap();
        let policy = file.over(&base).unwrap();
        assert!((policy.global.default.saturation.kv_spare_trigger - 0.3).abs() < 1e-12);
        assert_eq!(policy.max_stale, base.max_stale);
        assert_eq!(parse("# nothing\n").unwrap().over(&base), Ok(base.clone()));
        let whole = serde_json::to_string(&base).unwrap();
        assert_eq!(parse(&whole).unwrap().over(&Policy::default()), Ok(base));
    }

    #[test]
    fn what_is_wrong_is_said_with_file_setting_and_the_next_step() {
        for (text, says) in [
            ("global: {default: {saturation: {kvSpareTigger: 0.3}}}", "kvSpareTigger"),
            ("global: {default: {saturation: {kvSpareTrigger: 3}}}", "kvSpareTrigger"),
            ("global: {default: {saturation: {kvSpareTrigger: .nan}}}", "p.yaml: "),
            ("cycle: soon", "p.yaml: "),
            ("cycle: -1", "p.yaml: "),
            ("- cycle", "a policy is a mapping"),
            ("cycle: [", "p.yaml: not YAML or JSON"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(says), "{text}: {error}");
        }
    }
}
