//! Runs the asynchronous commands: the TLS provider, the tokio runtime and its end.

use std::process::ExitCode;
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};

use super::output::{EXIT_FAILURE, report_error};

/// How long blocking threads may take to end at exit. A thread that never ends must not keep the process alive.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(1);

/// Installs the TLS provider, runs `command` on a new runtime, and reports its error.
pub(super) fn run<E: Into<anyhow::Error>>(command: impl Future<Output = Result<(), E>>) -> ExitCode {
    if rustls::crypto::aws_lc_rs::default_provider().install_default().is_err() {
        let message = "a second TLS provider is installed in this process; this is a bug";
        return report_error(EXIT_FAILURE, &message);
    }
    let runtime = match Builder::new_multi_thread().enable_all().thread_name("wva").build() {
        Ok(runtime) => runtime,
        Err(error) => return report_error(EXIT_FAILURE, &format!("cannot start: {error}")),
    };
    match block_on(runtime, command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => report_error(EXIT_FAILURE, &format!("{:#}", error.into())),
    }
}

/// Runs `command` to its end and shuts the runtime down.
fn block_on<T>(runtime: Runtime, command: impl Future<Output = T>) -> T {
    let result = runtime.block_on(command);
    runtime.shutdown_timeout(SHUTDOWN_TIMEOUT);
    result
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    #[test]
    fn a_thread_that_never_ends_does_not_keep_the_process_alive() {
        let runtime = Builder::new_multi_thread().enable_all().build().unwrap();
        let started = Instant::now();
        let result = block_on(runtime, async {
            let (sender, receiver) = tokio::sync::oneshot::channel();
            tokio::task::spawn_blocking(|| {
                let _ = sender.send(());
                loop {
                    std::thread::park();
                }
            });
            receiver.await.is_ok()
        });
        assert!(result && started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
    }
}
