//! Who may read. Authentication: front proxy, then a user's certificate, then a bearer token, then anonymous. Authorisation:
//! by review, except for discovery, which every authenticated caller may read. Knows no route.

mod authenticate;
mod authorize;
mod certificate;
mod review;
mod reviewer;
pub(crate) mod trust;

pub(crate) use authenticate::AuthState;
pub use authenticate::TrustData;
pub(crate) use authorize::{
    admit_discovery, attributes_verb, authenticate_discovery, authorize, require_get,
};
pub(crate) use certificate::{Subject, VerifiedChains};
pub use reviewer::{Access, AllowAll, Attributes, ReviewError, Reviewer, Token, User};
