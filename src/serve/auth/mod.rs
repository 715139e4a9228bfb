//! Who may read. Authentication: front proxy, then a user's certificate, then a bearer token, then anonymous. Authorisation:
//! by review, except for discovery, which every authenticated caller may read. Knows no route.

mod authorize;
mod certificate;
pub(crate) mod headers;
mod identity;
mod review;
mod reviewer;
mod state;
pub(crate) mod trust;

pub(crate) use authorize::{attributes_verb, authenticate_discovery, authorize, require_get};
pub(crate) use certificate::{Subject, VerifiedChains};
pub use identity::{Caller, Token, User};
pub use reviewer::{Access, AllowAll, Attributes, ReviewError, Reviewer};
pub(crate) use state::AuthState;
pub use state::TrustData;
pub use trust::{Trust, TrustError};
