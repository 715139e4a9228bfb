//! `wva serve`: logging, configuration, and only then sockets.

use std::process::ExitCode;

use super::{USAGE, fail, run};
use crate::app;
use crate::config::{Config, ServeArgs};
use crate::telemetry::init_logging;

/// `wva serve`.
pub(super) type Args = ServeArgs;

pub(super) fn main(args: Args) -> ExitCode {
    if let Err(error) = init_logging(args.log.filter(), args.log.log_json) {
        return fail(USAGE, &error);
    }
    let config = match Config::try_from(args) {
        Ok(config) => config,
        Err(error) => return fail(USAGE, &error),
    };
    run(app::serve(config))
}
