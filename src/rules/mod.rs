//! The rules of prometheus-adapter: further metrics, external ones and those of objects, made of series of Prometheus. The format of the file
//! and the answers are those of its version 0.12; `docs/rules.md` lists what differs, and why.
//!
//! `config` reads the file. `rule`, `object_rule` and `usage_rule` say what query a read becomes (with `naming`, `query` and `object_names`, which they share).
//! `registry` and `object_registry` are the metrics at one time, and `book` keeps them up to date (with `lists`, and the `kinds` of the API
//! server in `kind_cache`; `object_series` finds their labels). `read`, `object_read` and `usage_read` answer reads with what they `ask`
//! Prometheus, in `shared_queries` for many of them at once (`sharing`) where that is exact, as `commute` says. `limits` is how long and how much they
//! keep. `review` says what is wrong with a file.

mod ask;
mod book;
mod commute;
mod config;
mod kind_cache;
mod kinds;
mod limits;
mod lists;
mod naming;
mod object_names;
mod object_read;
mod object_registry;
mod object_rule;
mod object_series;
mod ports;
mod query;
mod read;
mod registry;
mod review;
mod rule;
mod shared_queries;
mod sharing;
mod template;
mod usage_read;
mod usage_rule;

pub use book::RuleSettings;
pub use kinds::ObjectKind;
pub use ports::{ListedObject, ObjectApi, Selection};
pub use read::AdapterRules;
pub use review::{Review, ReviewSources, RuleProblem, review};
