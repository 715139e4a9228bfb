//! The controller for a `--policy`: a baseline, an analyzer of wva, a fixed number of replicas, or a policy file.

use std::path::Path;
use std::time::Duration;

use serde::Deserialize;
use serde::de::IntoDeserializer as _;
use serde::de::value::{Error as NameError, StrDeserializer};
use wva_core::Policy;
use wva_core::model::Analyzer;
use wva_sim::Controller;

use crate::config::PolicyFile;

/// A policy that cannot be simulated.
#[derive(Debug, thiserror::Error)]
pub enum PolicyError {
    /// Neither a name nor a file.
    #[error(
        "--policy {0}: no such policy and no such file: give rate, wva-v2, wva-v1, keda-epp, static:N, an analyzer's name, or a \
         policy file (`wva decide --print-policy` prints one)"
    )]
    Unknown(String),
    /// An invalid number of replicas.
    #[error("--policy static:{0}: must be a whole number of replicas, 0 to 10000, as static:3")]
    Static(String),
    /// A file that cannot be read.
    #[error("--policy {path}: {source}; give a file that you may read")]
    Unreadable {
        /// The file.
        path: String,
        /// The cause.
        source: std::io::Error,
    },
    /// An invalid policy file.
    #[error(transparent)]
    File(#[from] crate::config::PolicyError),
}

/// The controller for `word`.
///
/// # Errors
/// `word` is neither a name nor a readable policy file.
pub fn policy(word: &str) -> Result<Controller, PolicyError> {
    match word {
        "wva-v1" => return Ok(Controller::wva_v1()),
        "wva-v2" => return Ok(Controller::wva_v2()),
        "keda-epp" => return Ok(Controller::keda_epp()),
        _ => {}
    }
    if let Some(count) = word.strip_prefix("static:") {
        let replicas = count.parse::<u32>().ok().filter(|count| *count <= 10_000);
        return replicas.map(Controller::fixed).ok_or_else(|| PolicyError::Static(count.into()));
    }
    let name: StrDeserializer<'_, NameError> = word.into_deserializer();
    if let Ok(analyzer) = Analyzer::deserialize(name) {
        let mut policy = Policy::default();
        policy.global.default.analyzer = analyzer;
        return Ok(core_controller(word, policy));
    }
    let path = Path::new(word);
    if !path.is_file() {
        return Err(PolicyError::Unknown(word.into()));
    }
    let text = std::fs::read_to_string(path)
        .map_err(|source| PolicyError::Unreadable { path: word.into(), source })?;
    let policy = PolicyFile::parse(path, &text)?.over(&Policy::default())?;
    let name = path.file_stem().map_or_else(|| word.into(), |stem| stem.to_string_lossy().into_owned());
    Ok(core_controller(&name, policy))
}

/// wva with `policy`. The rate analyzer stabilizes its own numbers, so its HPA scales down without a window, as its page
/// recommends. All others keep the scenario's window.
fn core_controller(name: &str, policy: Policy) -> Controller {
    let is_rate = policy.global.default.analyzer.as_str() == "rate";
    Controller { scale_down_window: is_rate.then_some(Duration::ZERO), ..Controller::core(name, policy) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_in_the_help_is_a_policy() {
        for word in ["wva-v2", "wva-v1", "keda-epp", "static:3", "throughput", "saturation-percent"] {
            let controller = policy(word).unwrap();
            assert_eq!(controller.name, word);
            controller.check().unwrap();
        }
    }

    #[test]
    fn an_unknown_policy_is_answered_with_the_known_ones() {
        assert!(
            policy("raet").unwrap_err().to_string().contains("no such policy and no such file: give rate")
        );
        let error = policy("static:many").unwrap_err().to_string();
        assert_eq!(
            error,
            "--policy static:many: must be a whole number of replicas, 0 to 10000, as static:3"
        );
    }
}
