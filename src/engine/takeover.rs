//! The loop that takes over whenever this instance becomes the leader.

use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::sleep;
use tracing::{error, info, warn};

use super::evaluate::Engine;
use super::leadership::Leadership;
use super::reader::Reader;
use super::restored::Restored;

/// After so many attempts the leader decides without the state objects: one that never decides is useless.
const MAX_LOAD_ATTEMPTS: u32 = 5;
/// The wait between two attempts.
const LOAD_BACKOFF: Duration = Duration::from_secs(2);

/// Whenever this instance becomes the leader, starts from the last leader's state, which `load` reads, and evaluates at once. Ends
/// with `leadership`.
pub async fn take_over<L: Future<Output = Result<Restored, E>>, E: Display>(
    engine: Arc<Engine>,
    reader: Reader,
    mut leadership: watch::Receiver<Leadership>,
    load: impl Fn() -> L,
) {
    let mut current = None;
    let mut failures = 0;
    loop {
        let is_new = |now: &Leadership| now.is_mine() && now.term() != current;
        let term = match leadership.wait_for(is_new).await {
            Ok(now) => now.term(),
            Err(_) => return,
        };
        let Some(term) = term else { continue };
        let restored = match load().await {
            Ok(restored) => restored,
            Err(error) if failures < MAX_LOAD_ATTEMPTS => {
                warn!(%error, "cannot read the state objects to take over yet; retrying");
                failures += 1;
                sleep(LOAD_BACKOFF).await;
                continue;
            }
            Err(error) => {
                error!(
                    %error,
                    "cannot read the state objects: starting from the numbers in the statuses of the VariantAutoscalings; variants \
                     whose object names no model have none until a Ready pod names it"
                );
                Restored::default()
            }
        };
        engine.models().restore(&engine.parts().cluster.view(), &restored).await;
        if leadership.borrow().term().as_ref() != Some(&term) {
            continue; // lost while it waited for models: another leader's numbers are newer
        }
        info!(
            epoch = term.epoch,
            decisions = restored.decisions.len(),
            "this instance is the leader and decides now"
        );
        engine.take_over(restored, term.clone());
        current = Some(term);
        failures = 0;
        reader.refresh().await;
    }
}
