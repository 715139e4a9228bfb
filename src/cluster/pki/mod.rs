//! The certificates that the API server and the instances verify us by: issuing, rotation, the `caBundle` of our
//! APIServices, and the check that both fit.

pub mod apiservice;
mod bundle;
mod ca_bundle;
pub mod certificates;
mod rotation;
pub mod self_check;
mod verification;

pub use apiservice::ApiServiceWatch;
pub use bundle::{Bundle, PkiError};
pub use ca_bundle::CaBundle;
pub use certificates::Certificates;
pub use self_check::SelfCheck;
