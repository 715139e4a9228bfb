//! Watches: the objects, what is kept of them, and the state of the cluster that an evaluation sees.

mod accelerator;
mod claims;
mod cluster_watch;
pub mod config_maps;
mod convert;
mod inventory;
mod kind_store;
mod known_targets;
pub mod main_config_map;
mod metrics_address;
mod model_server;
mod object_store;
mod partial_objects;
mod pod_join;
mod pods;
mod read_queue;
mod scale_target;
mod served_kinds;
mod store_events;
mod target_api;
mod target_reads;
mod target_watch;
mod template;
mod trust;
pub(crate) mod watch_health;

pub use cluster_watch::{ClusterReader, ClusterWatch, WatchSettings};
pub use config_maps::{ConfigMapReader, ConfigMapWatch};
pub use object_store::ClusterState;
pub use trust::{TrustData, TrustWatch};
