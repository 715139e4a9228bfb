//! The certificates that the API server and the instances verify us by: issuing, rotation, the `caBundle` of our
//! APIServices, and the check that both fit.

pub mod apiservice;
mod ca_bundle;
mod certificate_bundle;
pub mod certificates;
mod give_back;
mod rotation;
pub mod self_check;
mod take_over;
mod take_over_history;
mod taken;
mod verification;

pub use apiservice::{ApiServiceWatch, ServiceRef};
pub use ca_bundle::CaBundleWriter;
pub use certificate_bundle::{CertificateBundle, PkiError};
pub use certificates::{CertificateManager, CertificateSettings};
pub use give_back::give_back_once;
pub use self_check::SelfCheck;
pub use take_over::{FallbackState, PreviousOwner, TAKEN_OVER_CONDITION, TakeOver};
pub(crate) use taken::{TAKEN_FROM_ANOTHER, refusal as take_over_refusal};
pub(crate) use verification::verify;
