//! A policy file, in YAML or JSON. It contains a whole policy, or only changes to another policy.

use std::path::{Path, PathBuf};

use serde_json::Value;
use wva_core::Policy;

use super::document::{self, Diagnostics};

/// The content of a policy file.
#[derive(Debug, Clone)]
pub struct PolicyFile {
    path: PathBuf,
    content: Value,
}

/// A policy file that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    /// It is neither YAML nor JSON.
    #[error("--policy {path}: not YAML or JSON: {cause}")]
    Syntax {
        /// The file.
        path: PathBuf,
        /// The location and cause.
        cause: String,
    },
    /// It is not a valid policy.
    #[error("--policy {path}: {cause}; `wva decide --print-policy` shows every setting with its default")]
    Content {
        /// The file.
        path: PathBuf,
        /// The setting and cause.
        cause: String,
    },
}

impl PolicyFile {
    /// Parses the text of `path`, and checks it by applying it to the default policy.
    ///
    /// # Errors
    /// Names the file, the setting and the cause.
    pub fn parse(path: &Path, text: &str) -> Result<Self, PolicyError> {
        let content =
            document::parse(text).map_err(|cause| PolicyError::Syntax { path: path.into(), cause })?;
        let file = Self { path: path.into(), content };
        file.apply_to(&Policy::default()).map(|_| file)
    }

    /// `base` with the changes in the file.
    ///
    /// # Errors
    /// Names the settings that are unknown or out of range.
    pub fn apply_to(&self, base: &Policy) -> Result<Policy, PolicyError> {
        self.try_apply_to(base).map_err(|cause| PolicyError::Content { path: self.path.clone(), cause })
    }

    fn try_apply_to(&self, base: &Policy) -> Result<Policy, String> {
        let mut changed = serde_json::to_value(base).map_err(|error| error.to_string())?;
        match &self.content {
            // A file with only comments.
            Value::Null => {}
            Value::Object(_) => document::merge(&mut changed, self.content.clone()),
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
        let policy = file.apply_to(&base).unwrap();
        assert!((policy.global.default.saturation.kv_spare_trigger - 0.3).abs() < 1e-12);
        assert_eq!(policy.max_stale, base.max_stale);
        assert_eq!(parse("# nothing\n").unwrap().apply_to(&base), Ok(base.clone()));
        let whole = serde_json::to_string(&base).unwrap();
        assert_eq!(parse(&whole).unwrap().apply_to(&Policy::default()), Ok(base));
    }

    #[test]
    fn errors_name_the_file_the_setting_and_the_next_step() {
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
