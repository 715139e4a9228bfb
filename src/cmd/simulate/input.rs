//! The scenario files and the trace of a command line.

use std::path::PathBuf;
use std::sync::Arc;

use super::super::output::CommandError;
use crate::simulate::{Plan, TraceOverride, plans};

/// A trace on the command line.
#[derive(Debug, clap::Args)]
pub(super) struct TraceArgs {
    /// A trace that replaces the scenario's load: an Azure LLM CSV, ServeGen rates, Mooncake JSON lines, or a recording of wva;
    /// gzipped or not.
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// The column or model of the trace, if it has several.
    #[arg(long, value_name = "NAME")]
    series: Option<String>,
}

impl TraceArgs {
    /// The plans of all `files` in their order. Their names must be unique.
    pub(super) fn read_plans(&self, files: &[PathBuf]) -> Result<Vec<Arc<Plan>>, CommandError> {
        let trace = TraceOverride { trace: self.trace.clone(), series: self.series.clone() };
        let mut all: Vec<Arc<Plan>> = Vec::new();
        for path in files {
            for plan in plans(path, &trace).map_err(|error| error.to_string())? {
                if all.iter().any(|previous| previous.name == plan.name) {
                    let (path, name) = (path.display(), &plan.name);
                    let message =
                        format!("{path}: another scenario is also named {name}; rename one of the files");
                    return Err(message.into());
                }
                all.push(Arc::new(plan));
            }
        }
        Ok(all)
    }
}
