//! `wva serve`: sets up logging, then reads the configuration, then opens sockets.

use std::process::ExitCode;

use super::{EXIT_USAGE, fail, run};
use crate::app;
use crate::config::{Config, ServeArgs};
use crate::telemetry::init_logging;

/// `wva serve`.
pub(super) type Args = ServeArgs;

pub(super) fn main(args: Args) -> ExitCode {
    if let Err(error) = init_logging(args.log.filter(), args.log.log_json) {
        return fail(EXIT_USAGE, &error);
    }
    let config = match Config::try_from(args) {
        Ok(config) => config,
        Err(error) => return fail(EXIT_USAGE, &error),
    };
    run(app::serve(config))
}
