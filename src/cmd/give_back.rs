//! `wva give-back`: lets the APIService that was taken over point to its owner again.

use std::io::Write as _;
use std::path::PathBuf;

use anyhow::anyhow;

use super::api::{self, ConnectionArgs};
use crate::cluster::pki::give_back_once;

/// Give the APIService of external metrics back to the program that it was taken from
///
/// `wva serve --fallback-take-over` lets v1beta1.external.metrics.k8s.io, which another program has installed, point to wva. This command
/// lets it point to what it did before, in one write, as the annotation wva.llmd.ai/before-take-over says. It is for when no `wva serve` is
/// left that would: before an uninstall (the chart's pre-delete hook runs it), before a rollback to a version without pass-through, and
/// after either. It does nothing where nothing was taken over.
///
/// It needs the rights to list and patch that APIService. A `wva serve` that still runs with --fallback-take-over takes it over again
/// after 5 minutes.
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(super) struct Args {
    /// Kubeconfig file. Default: $KUBECONFIG, else ~/.kube/config, else the service account of the pod.
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig. Default: its current one.
    #[arg(long, value_name = "NAME")]
    context: Option<String>,
    /// Only if this Service has taken it over.
    #[arg(long, value_name = "NAMESPACE/SERVICE")]
    service: Option<String>,
}

pub(super) async fn run(args: Args) -> anyhow::Result<()> {
    let connection = ConnectionArgs::new(args.kubeconfig, args.context);
    let client =
        api::client(&connection, "give --kubeconfig or --context").await.map_err(|error| anyhow!(error))?;
    let done = give_back_once(&client, args.service.as_deref()).await.map_err(|error| anyhow!(error))?;
    writeln!(std::io::stdout(), "{done}")?;
    Ok(())
}
