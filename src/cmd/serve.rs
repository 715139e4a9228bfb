//! `wva serve`: sets up logging, then reads the configuration, then opens sockets.

use std::process::ExitCode;

use super::output::{EXIT_USAGE, report_error};
use super::runtime;
use crate::app;
use crate::config::{Config, ServeArgs};
use crate::telemetry::init_logging;

/// `wva serve`.
pub(super) type Args = ServeArgs;

pub(super) fn main(args: Args) -> ExitCode {
    if let Err(error) = init_logging(args.log.filter(), args.log.log_json) {
        return report_error(EXIT_USAGE, &error);
    }
    let config = match Config::try_from(args) {
        Ok(config) => config,
        Err(error) => return report_error(EXIT_USAGE, &error),
    };
    runtime::run(app::serve(config))
}
