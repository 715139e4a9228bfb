//! A policy as a file, YAML or JSON: all of it, or only what differs from the policy that it is laid over.

use std::path::{Path, PathBuf};

use serde_json::Value;
use wva_core::Policy;

use super::document::{self, Diagnostics};

/// What a file changes.
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
    /// From the text of `path`, checked by laying it over the default policy.
    ///
    /// # Errors
    /// Names the file, the setting and the cause.
    pub fn parse(path: &Path, text: &str) -> Result<Self, PolicyError> {
        let content =
            document::parse(text).map_err(|cause| PolicyError::Syntax { path: path.into(), cause })?;
        let file = Self { path: path.into(), content };
        file.over(&Policy::default()).map(|_| file)
    }

    /// `base` with what the file says.
    ///
    /// # Errors
    /// Names the settings that are unknown or out of range.
    pub fn over(&self, base: &Policy) -> Result<Policy, PolicyError> {
        self.changed(base).map_err(|cause| PolicyError::Content { path: self.path.clone(), cause })
    }

    fn changed(&self, base: &Policy) -> Result<Policy, String> {
        let mut changed = serde_json::to_value(base).map_err(|error| error.to_string())?;
        match &self.content {
            // A file of comments changes nothing.
            Value::Null => {}
            Value::Object(_) => document::lay_over(&mut changed, self.content.clone()),
            _ => return Err("a policy is a mapping of settings".into()),
        }
        let mut diagnostics = Diagnostics::default();
        let policy: Option<Policy> = document::read(changed, &mut diagnostics);
        match policy.filter(|_| diagnostics.errors.is_empty()) {
            Some(policy) => policy.validated().map_err(|error| error.to_string()),
            None => Err(diagnostics.errors.join("; ")),
        }
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
