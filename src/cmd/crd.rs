//! `wva crd`: prints the custom resource definition, generated from the Rust types.

use std::process::ExitCode;

use super::fail;
use crate::cluster::crd::crd_yaml;

/// Print the CustomResourceDefinition of VariantAutoscaling as YAML.
///
/// Helm installs it once and never upgrades it. After an upgrade of wva, apply it with `wva crd | kubectl apply -f -`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {}

#[expect(clippy::print_stdout, reason = "the output of the command")]
pub(super) fn main(_: &Args) -> ExitCode {
    match crd_yaml() {
        Ok(yaml) => {
            print!("{yaml}");
            ExitCode::SUCCESS
        }
        Err(error) => fail(1, &error),
    }
}
