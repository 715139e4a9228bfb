//! Decisions away from a cluster: one decision repeated (`decide`) or explained (`explain`), or whole recordings repeated
//! and compared (`replay`). All of them read what `/debug/snapshots` and `--record-dir` give.

pub(super) mod decide;
pub(super) mod explain;
mod explanation;
mod input;
pub(super) mod replay;
mod server;
