//! How answers are written: content negotiation, JSON, YAML, Kubernetes protobuf, tables, compression, and the `Status`
//! object of every error. Knows no metric.

pub(crate) mod negotiation;
pub(crate) mod object;
pub(crate) mod protobuf;
pub(crate) mod response;
pub(crate) mod status;
mod text;

pub(crate) use self::object::{Empty, Object, TypedMessage};
pub(crate) use self::status::{Reason, Status, internal_error};
pub(crate) use self::text::one_line;
