//! Long-lived tasks by name. If one ends or panics early, the process ends: a restart is better than half a program.

use std::collections::HashMap;
use std::future::Future;
use std::time::Duration;

use tokio::task::{Id, JoinSet};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

/// Tasks that are stopped together in a shutdown.
#[derive(Default)]
pub(super) struct Phase {
    stop: CancellationToken,
    tasks: JoinSet<()>,
    names: HashMap<Id, &'static str>,
}

/// What a shutdown ends, in order.
#[derive(Default)]
pub(super) struct Phases {
    /// Readiness; everything else continues.
    pub(super) stopping: CancellationToken,
    /// Decisions and writers; the state is written once more.
    pub(super) work: Phase,
    /// The candidacy: the lease is released, another instance decides, and this one forwards.
    pub(super) election: CancellationToken,
    /// The listener; running requests are finished.
    pub(super) serving: Phase,
    /// The watches.
    pub(super) watches: Phase,
}

/// How a task ended.
pub(super) struct TaskEnd {
    /// Its name.
    pub(super) task: &'static str,
    pub(super) how: String,
}

impl Phase {
    /// Starts a task, which ends when its token is cancelled.
    pub(super) fn start<F: Future<Output = ()> + Send + 'static>(
        &mut self,
        name: &'static str,
        task: impl FnOnce(CancellationToken) -> F,
    ) {
        let id = self.tasks.spawn(task(self.stop.clone())).id();
        self.names.insert(id, name);
    }

    /// Waits for the first task that ends.
    pub(super) async fn first_end(&mut self) -> TaskEnd {
        let (id, how) = match self.tasks.join_next_with_id().await {
            Some(Ok((id, ()))) => (id, "ended".into()),
            Some(Err(failure)) => (failure.id(), failure.to_string()),
            None => std::future::pending().await,
        };
        TaskEnd { task: self.names.get(&id).copied().unwrap_or_default(), how }
    }

    /// Stops the tasks and waits for them; those that still run after `limit` are aborted, and named in the log.
    pub(super) async fn end(mut self, limit: Duration) {
        self.stop.cancel();
        let all = async {
            while let Some(ended) = self.tasks.join_next_with_id().await {
                let id = ended.map_or_else(|failure| failure.id(), |(id, ())| id);
                let name = self.names.remove(&id).unwrap_or_default();
                debug!(task = name, "ended");
            }
        };
        if timeout(limit, all).await.is_err() {
            let running: Vec<_> = self.names.values().copied().collect();
            warn!(tasks = ?running, "aborted: these tasks did not end in time");
            self.tasks.shutdown().await;
        }
    }
}
