//! `wva serve`: logging, crypto provider, configuration, and only then sockets.

use std::process::ExitCode;

use super::{USAGE, fail, install_crypto_provider, runtime};
use crate::app;
use crate::config::{Config, ServeArgs};
use crate::telemetry::init_logging;

/// `wva serve`.
pub(super) type Args = ServeArgs;

pub(super) fn main(args: Args) -> ExitCode {
    if let Err(error) = init_logging(&args.log.log_level, args.log.log_json) {
        return fail(USAGE, &error);
    }
    let config = match Config::try_from(args) {
        Ok(config) => config,
        Err(error) => return fail(USAGE, &error),
    };
    if let Err(error) = install_crypto_provider() {
        return fail(1, &error);
    }
    let ran = runtime().map_err(anyhow::Error::from).and_then(|runtime| runtime.block_on(app::serve(config)));
    match ran {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(1, &format!("{error:#}")),
    }
}
