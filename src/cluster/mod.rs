//! Kubernetes, both ways: `watch` reads objects, `writers` report on them, `leadership` elects the leader and keeps its state
//! objects, `pki` keeps the certificates that the API server verifies us by.

pub mod crd;
pub mod leadership;
pub(crate) mod object_lists;
pub(crate) mod objects;
pub mod pki;
pub(crate) mod requests;
pub(crate) mod reviews;
pub mod rights;
mod timer;
pub mod watch;
pub mod writers;

pub use leadership::{CallRegister, Election, ElectionSettings, StateStore, StateWriter};
pub use pki::{
    ApiServiceWatch, CaBundleWriter, CertificateBundle, CertificateManager, CertificateSettings, SelfCheck,
    ServiceRef,
};
pub use watch::{
    ClusterReader, ClusterState, ClusterWatch, ConfigMapReader, ConfigMapWatch, ScalerService, TrustData,
    TrustWatch, WatchSettings,
};
pub use writers::{
    AnnotatedEventWriter, DeletionCostWriter, EventRecorder, EventType, ExternalOf, Recorded, ScaleWriter,
    StatusWriter,
};
