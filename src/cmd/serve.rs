//! `wva serve`: reads WVA's configuration file, sets up logging, then reads the configuration, then opens sockets.

use std::error::Error;
use std::path::Path;
use std::process::ExitCode;

use tracing::warn;

use super::output::{EXIT_USAGE, report_error};
use super::runtime;
use crate::app;
use crate::cluster::watch::main_config_map::read_main_config_map;
use crate::config::{CommandLine, Config, ServeArgs, Settings, Unused};
use crate::telemetry::{ApiRequestMetrics, init_logging};

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
    let unused = line.unused(&args);
    name_unused(&unused, &[]);
    let config = match Config::try_from(args) {
        Ok(config) => config,
        Err(error) => return report_error(EXIT_USAGE, &error),
    };
    runtime::run(run(config, line, unused))
}

/// The arguments of `line` with the settings of the file at `path` that it does not make itself.
fn with_file(line: &mut CommandLine, path: &Path) -> Result<Args, Box<dyn Error>> {
    line.add(&Settings::read(path)?)?;
    Ok(line.args()?)
}

/// Completes the configuration of `line` by WVA's main ConfigMap, if one is named, and serves. `known` are the settings without
/// effect so far.
async fn run(mut config: Config, mut line: CommandLine, known: Vec<Unused>) -> anyhow::Result<()> {
    let requests = ApiRequestMetrics::default();
    let client = app::client(config.kubeconfig.as_deref(), requests.clone()).await?;
    if let Some(name) = &config.main_config_map
        && let Some(settings) = read_main_config_map(&client, &config.namespace, name).await?
    {
        for error in line.add_valid(&settings) {
            warn!(%error, "this setting of the main ConfigMap does not count");
        }
        let args = line.args()?;
        name_unused(&line.unused(&args), &known);
        config = Config::try_from(args)?;
    }
    app::serve(config, client, requests).await
}

/// Logs each setting without effect that is not in `known`.
fn name_unused(unused: &[Unused], known: &[Unused]) {
    for Unused { name, origin, why } in unused.iter().filter(|setting| !known.contains(setting)) {
        warn!(name, origin, why, "this setting has no effect");
    }
}
