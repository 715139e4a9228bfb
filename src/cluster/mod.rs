//! Kubernetes, both ways: `watch` reads objects, `writers` report on them, `leadership` elects the leader and keeps its state
//! objects, `pki` keeps the certificates that the API server verifies us by.

pub mod crd;
pub mod leadership;
mod objects;
pub mod pki;
pub mod reviews;
mod text;
pub mod watch;
pub mod writers;

pub use leadership::{Election, StateStore, StateWriter};
pub use pki::{ApiServiceWatch, Bundle, CaBundle, Certificates, SelfCheck};
pub use watch::{ClusterReader, ClusterWatch, ConfigMapReader, ConfigMapWatch, Observed, Trust, TrustWatch};
pub use writers::{DeletionCostWriter, Events, StatusWriter};
