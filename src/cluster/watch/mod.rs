//! Watched objects: their parsing, what is kept of them, and the view that an evaluation gets.

mod accelerator;
mod claims;
mod cluster_watch;
pub mod config_maps;
mod convert;
mod inventory;
pub(crate) mod object_store;
mod partial_objects;
mod pods;
mod template;
mod trust;
pub(crate) mod watch_health;

pub use cluster_watch::{ClusterReader, ClusterWatch, Settings};
pub use config_maps::{ConfigMapReader, ConfigMapWatch};
pub use object_store::Observed;
pub use trust::{Trust, TrustWatch};
