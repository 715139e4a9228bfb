//! Who may read. Authentication: front proxy, then a user's certificate, then a bearer token, then anonymous. Authorisation:
//! by review, except for discovery, which every authenticated caller may read. Knows no route.

mod authorize;
mod certificate;
mod review;
mod reviewer;
pub(crate) mod trust;

pub use authorize::TrustData;
pub(crate) use authorize::{AuthState, attributes_verb, authenticate_discovery, authorize, require_get};
pub(crate) use certificate::{Subject, VerifiedChains};
pub use reviewer::{Access, AllowAll, Attributes, ReviewError, Reviewer, Token, User};
