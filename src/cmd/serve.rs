//! `wva serve`: reads WVA's configuration file, sets up logging, then reads the configuration, then opens sockets.

use std::error::Error;
use std::path::Path;
use std::process::ExitCode;

use tracing::warn;

use super::output::{EXIT_USAGE, report_error};
use super::runtime;
use crate::app;
use crate::config::{CommandLine, Config, ServeArgs, Settings};
use crate::telemetry::init_logging;

/// `wva serve`.
pub(super) type Args = ServeArgs;

/// `line` is the command line that `args` are from.
pub(super) fn main(args: Args, mut line: CommandLine) -> ExitCode {
    let args = match args.config_file.clone().filter(|path| !path.as_os_str().is_empty()) {
        Some(path) => match with_file(&mut line, &path) {
            Ok(args) => args,
            Err(error) => return report_error(EXIT_USAGE, &error),
        },
        None => args,
    };
    if let Err(error) = init_logging(args.log.filter(), args.log.is_json()) {
        return report_error(EXIT_USAGE, &error);
    }
    for unused in line.unused(&args) {
        warn!(name = unused.name, origin = unused.origin, why = unused.why, "this setting has no effect");
    }
    let config = match Config::try_from(args) {
        Ok(config) => config,
        Err(error) => return report_error(EXIT_USAGE, &error),
    };
    runtime::run(app::serve(config))
}

/// The arguments of `line` with the settings of the file at `path` that it does not make itself.
fn with_file(line: &mut CommandLine, path: &Path) -> Result<Args, Box<dyn Error>> {
    line.add(&Settings::read(path)?)?;
    Ok(line.args()?)
}
