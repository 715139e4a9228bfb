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

/// State objects that cannot be read after so many tries are done without: a leader that never decides helps nobody.
const MAX_LOAD_TRIES: u32 = 5;
/// How long to wait between two tries.
const LOAD_BACKOFF: Duration = Duration::from_secs(2);

/// Whenever the lease becomes ours: starts from what `load` finds of the last leader, and evaluates at once. Ends with `leadership`.
pub async fn take_over<L: Future<Output = Result<Restored, E>>, E: Display>(
    engine: Arc<Engine>,
    reader: Reader,
    mut leadership: watch::Receiver<Leadership>,
    load: impl Fn() -> L,
) {
    let mut taken = None;
    let mut failures = 0;
    loop {
        let is_new = |now: &Leadership| now.is_mine() && now.term() != taken;
        let term = match leadership.wait_for(is_new).await {
            Ok(now) => now.term(),
            Err(_) => return,
        };
        let Some(term) = term else { continue };
        let found = match load().await {
            Ok(found) => found,
            Err(error) if failures < MAX_LOAD_TRIES => {
                warn!(%error, "cannot read the state objects to take over yet; trying again");
                failures += 1;
                sleep(LOAD_BACKOFF).await;
                continue;
            }
            Err(error) => {
                error!(%error, "deciding without the state objects, from what the objects' status says");
                Restored::default()
            }
        };
        info!(epoch = term.epoch, decisions = found.decisions.len(), "this instance decides now");
        engine.take_over(found, term.clone());
        taken = Some(term);
        failures = 0;
        reader.refresh().await;
    }
}
