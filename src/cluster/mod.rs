//! Kubernetes, both ways: custom resources, watches, ownership, status, state objects, lease and access reviews.

pub mod apiservice;
pub mod certificates;
mod convert;
pub mod crd;
pub mod lease;
mod pki;
pub mod reviews;
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

pub use apiservice::CaBundle;
pub use certificates::{Bundle, Certificates};
pub use lease::Election;
pub use state::StateStore;
pub use state_writer::StateWriter;
pub use status_writer::StatusWriter;
pub use trust::{Trust, TrustWatch};
pub use view::Observed;
pub use watch::{ClusterReader, ClusterWatch};
