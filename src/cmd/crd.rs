//! `wva crd`: the custom resource definition, generated from the types that read it.

use std::process::ExitCode;

use super::fail;
use crate::cluster::crd::crd_yaml;

/// Print the CustomResourceDefinition of VariantAutoscaling as YAML.
///
/// Helm installs it once and never upgrades it: after an upgrade, apply it with `wva crd | kubectl apply -f -`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {}

#[expect(clippy::print_stdout, reason = "this is what the command is for")]
pub(super) fn main(_: &Args) -> ExitCode {
    match crd_yaml() {
        Ok(yaml) => {
            print!("{yaml}");
            ExitCode::SUCCESS
        }
        Err(error) => fail(1, &error),
    }
}
