//! Kubernetes, both ways: custom resources, watches, ownership, status, state objects, lease and access reviews.

pub mod apiservice;
mod ca_bundle;
mod ca_check;
pub mod certificates;
mod convert;
pub mod crd;
pub mod events;
pub mod lease;
mod pki;
pub mod reviews;
mod rotation;
pub mod self_check;
mod shards;
pub mod state;
pub mod state_writer;
mod status;
pub mod status_writer;
mod trouble;
pub mod trust;
pub mod view;
pub mod watch;
mod wire;

pub use apiservice::ApiServiceWatch;
pub use ca_bundle::CaBundle;
pub use certificates::Certificates;
pub use events::Events;
pub use lease::Election;
pub use pki::Bundle;
pub use self_check::SelfCheck;
pub use state::StateStore;
pub use state_writer::StateWriter;
pub use status_writer::StatusWriter;
pub use trust::{Trust, TrustWatch};
pub use view::Observed;
pub use watch::{ClusterReader, ClusterWatch};
