//! The controller for a `--policy`: a baseline, an analyzer of wva, a fixed number of replicas, or a policy file.

use std::path::Path;
use std::time::Duration;

use serde::Deserialize;
use serde::de::IntoDeserializer as _;
use serde::de::value::{Error as NameError, StrDeserializer};
use wva_core::Policy;
use wva_core::model::Analyzer;
use wva_sim::{Controller, Peer, Scenario};

use super::input::InputError;
use crate::config::PolicyFile;

/// The controller that `word` of `--policy` selects.
///
/// # Errors
/// `word` is neither a name nor a readable policy file.
pub fn controller_for(word: &str) -> Result<Controller, InputError> {
    let error = |cause: &str| InputError::new(format!("--policy {word}"), cause);
    match word {
        "wva-v1" => return Ok(Controller::wva_v1()),
        "wva-v2" => return Ok(Controller::wva_v2()),
        "keda-epp" => return Ok(Controller::keda_epp()),
        _ => {}
    }
    if let Some(count) = word.strip_prefix("static:") {
        let replicas = count.parse::<u32>().ok().filter(|count| *count <= Scenario::MAX_PODS);
        let cause =
            || format!("must be a whole number of replicas, 0 to {}, as static:3", Scenario::MAX_PODS);
        return replicas.map(Controller::fixed).ok_or_else(|| error(&cause()));
    }
    if let Some(setting) = word.strip_prefix("keda-epp:") {
        let in_pod = setting.parse::<f64>().ok().filter(|in_pod| (1.0..=10_000.0).contains(in_pod));
        let keda = in_pod.map(|in_pod| Controller::keda_epp_at(word, in_pod));
        return keda.ok_or_else(|| error("must be requests in a pod, 1 to 10000, as keda-epp:24"));
    }
    if let Some(share) = word.strip_prefix("utilisation:") {
        let share = share.parse::<f64>().ok().filter(|share| (0.05..=1.0).contains(share));
        return share
            .map(Controller::fixed_utilisation)
            .ok_or_else(|| error("must be 0.05 to 1, as utilisation:0.6"));
    }
    if let Some(peer) = Peer::named(word) {
        return Ok(Controller::peer(peer));
    }
    let name: StrDeserializer<'_, NameError> = word.into_deserializer();
    if let Ok(analyzer) = Analyzer::deserialize(name) {
        return Ok(with_window(Controller::analyzer(analyzer), analyzer));
    }
    let path = Path::new(word);
    if !path.is_file() {
        return Err(error(
            "no such policy and no such file: give rate, wva-v2, wva-v1, keda-epp, static:N, an analyzer's name, or a policy file \
             (`wva decide --print-policy` prints one)",
        ));
    }
    let text = std::fs::read_to_string(path);
    let text = text.map_err(|cause| error(&format!("{cause}; give a file that you may read")))?;
    let policy = PolicyFile::parse(path, &text).and_then(|file| file.apply_to(&Policy::default()));
    let policy = policy.map_err(InputError::located)?;
    let name = path.file_stem().map_or_else(|| word.into(), |stem| stem.to_string_lossy().into_owned());
    let analyzer = policy.global.default.analyzer;
    Ok(with_window(Controller::core(name, policy), analyzer))
}

/// The rate analyzer stabilises its own numbers, so its HPA scales down without a window, as its page recommends. All others
/// keep the scenario's window.
fn with_window(controller: Controller, analyzer: Analyzer) -> Controller {
    let scale_down_window = (analyzer == Analyzer::Rate).then_some(Duration::ZERO);
    Controller { scale_down_window, ..controller }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_in_the_help_is_a_policy() {
        let peers = [
            "hpa-running:16",
            "kpa:70",
            "aibrix-apa:0.5",
            "kthena:10",
            "load-planner:180",
            "utilisation:0.6",
        ];
        let own =
            ["wva-v2", "wva-v1", "keda-epp", "keda-epp:24", "static:3", "throughput", "saturation-percent"];
        for word in own.into_iter().chain(peers) {
            assert_eq!(controller_for(word).unwrap().name, word);
        }
    }

    #[test]
    fn an_unknown_policy_is_answered_with_the_known_ones() {
        assert!(
            controller_for("raet")
                .unwrap_err()
                .to_string()
                .contains("no such policy and no such file: give rate")
        );
        let error = controller_for("static:many").unwrap_err().to_string();
        assert_eq!(
            error,
            "--policy static:many: must be a whole number of replicas, 0 to 10000, as static:3"
        );
    }
}
