//! `wva`: an aggregated Kubernetes API server that computes the desired replicas of LLM serving variants on read.
//!
//! The modules (`tests/it/tidy.rs` checks which of them may import which; `docs/ARCHITECTURE.md` has the details):
//!
//! - [`config`]: turns flags, environment and files into one validated `Config`
//! - [`collect`]: input edge, turns metrics of model servers into samples
//! - [`cluster`]: input and output edge, reads from and writes to Kubernetes
//! - [`engine`]: evaluates (collect, assemble, decide, check, publish), and owns the board that every output reads
//! - `explain`: explains the decision about one variant, as data and as text
//! - [`otlp`]: pushes the desired replicas to an OpenTelemetry collector
//! - [`policy`]: watches the ConfigMaps and passes the resulting policy to the engine
//! - [`record`]: stores evaluations, reads them back and replays them
//! - [`pass_through`]: asks the former owner of external metrics for what is not served here
//! - [`rules`]: further external metrics, by the rules of prometheus-adapter
//! - [`simulate`]: runs scenario files and traces through the closed-loop simulator `wva-sim`
//! - [`lint`]: judges the autoscalers of a scale target, and says what mends them
//! - [`migrate`]: compares an installation of WVA with this program, and says how to replace it
//! - [`serve`]: output edge, serves the metrics APIs on TLS
//! - [`telemetry`]: logs, and the program's own metrics
//! - [`app`]: composition root
//! - [`cmd`]: the subcommands
//!
//! The pure package `wva-core` makes the decisions.

pub mod app;
pub mod cluster;
pub mod cmd;
pub mod collect;
pub mod config;
pub mod engine;
mod explain;
pub mod lint;
pub mod migrate;
pub mod otlp;
pub mod pass_through;
pub mod policy;
pub mod record;
pub mod rules;
pub mod serve;
pub mod simulate;
pub mod telemetry;
