//! `wva`: an aggregated Kubernetes API server that computes the desired replicas of LLM serving variants on read.
//!
//! The map (who may import whom is checked by `tests/it/tidy.rs`; the whole story is in `docs/ARCHITECTURE.md`):
//!
//! - [`config`]: flags, environment and files become one validated `Config`
//! - [`collect`]: input edge, metrics of model servers become samples
//! - [`cluster`]: input and output edge, Kubernetes
//! - [`engine`]: one evaluation (collect, assemble, decide, check, publish) and the board every output reads
//! - [`policy`]: ConfigMaps followed while the program runs; the engine gets the policy that they make
//! - [`record`]: evaluations kept, read back and decided again
//! - [`simulate`]: scenario files and traces for the closed-loop simulator of the core, and many runs of it
//! - [`serve`]: output edges, the metrics API on TLS
//! - [`telemetry`]: logs and our own metric families
//! - [`app`]: composition root
//! - [`cmd`] has the subcommands
//!
//! The decisions themselves are made in the pure package `wva-core`.

pub mod app;
pub mod cluster;
pub mod cmd;
pub mod collect;
pub mod config;
pub mod engine;
pub mod policy;
pub mod record;
pub mod serve;
pub mod simulate;
pub mod telemetry;
