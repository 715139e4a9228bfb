//! Long-lived tasks by name. One that ends or panics before it is told to takes the process with it: half a program
//! is worse than a restart.

use std::collections::HashMap;
use std::future::Future;
use std::time::Duration;

use tokio::task::{Id, JoinSet};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

/// What is told to stop, and waited for, together in a shutdown.
#[derive(Default)]
pub(super) struct Phase {
    stop: CancellationToken,
    tasks: Tasks,
}

impl Phase {
    /// Starts a task that ends when the phase is told to stop.
    pub(super) fn start<F: Future<Output = ()> + Send + 'static>(
        &mut self,
        name: &'static str,
        task: impl FnOnce(CancellationToken) -> F,
    ) {
        self.tasks.spawn(name, task(self.stop.clone()));
    }

    /// Tells its tasks to stop and waits for them; what is left after `limit` is cut off and named.
    pub(super) async fn end(self, limit: Duration) {
        self.stop.cancel();
        self.tasks.finish(limit).await;
    }

    /// Resolves with the name of the first task that ended, and how. Never, while all run.
    pub(super) async fn first_end(&mut self) -> (&'static str, String) {
        self.tasks.first_end().await
    }
}

/// Tasks with their names.
#[derive(Default)]
struct Tasks {
    set: JoinSet<()>,
    names: HashMap<Id, &'static str>,
}

impl Tasks {
    /// Starts `task`.
    fn spawn(&mut self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        let id = self.set.spawn(task).id();
        self.names.insert(id, name);
    }

    /// Resolves with the name of the first task that ended, and how. Never, while all run.
    async fn first_end(&mut self) -> (&'static str, String) {
        match self.set.join_next_with_id().await {
            Some(Ok((id, ()))) => (self.name(id), "ended".into()),
            Some(Err(failure)) => (self.name(failure.id()), failure.to_string()),
            None => std::future::pending().await,
        }
    }

    /// Waits until all have ended; what is left after `limit` is cut off and named.
    async fn finish(mut self, limit: Duration) {
        let all = async {
            while let Some(ended) = self.set.join_next_with_id().await {
                let id = ended.map_or_else(|failure| failure.id(), |(id, ())| id);
                let name = self.names.remove(&id).unwrap_or_default();
                debug!(task = name, "ended");
            }
        };
        if timeout(limit, all).await.is_err() {
            let left: Vec<_> = self.names.values().copied().collect();
            warn!(tasks = ?left, "cut off: not done in time");
            self.set.shutdown().await;
        }
    }

    fn name(&self, id: Id) -> &'static str {
        self.names.get(&id).copied().unwrap_or_default()
    }
}
