//! The answer to a data read: one object in the representation that the client accepts.

use axum::response::{IntoResponse, Response};
use http::header::{CONTENT_TYPE, VARY};
use http::{HeaderMap, HeaderValue};

use super::negotiation::{self, Representation};
use super::object::{Object, encode, encode_text};
use super::status::{Reason, Status, internal_error};

/// The representations of data.
const AVAILABLE: [&str; 5] = [
    "application/json",
    "application/yaml",
    "application/vnd.kubernetes.protobuf",
    "application/json;as=Table;v=v1;g=meta.k8s.io",
    "application/json;as=Table;v=v1beta1;g=meta.k8s.io",
];

/// The representation for the client of a data read.
///
/// # Errors
/// When the client accepts none that is available.
pub(crate) fn representation(headers: &HeaderMap) -> Result<Representation, Status> {
    negotiation::representation(headers).ok_or_else(|| not_acceptable(&AVAILABLE))
}

/// The error for a client that accepts none of the `available` media types.
pub(crate) fn not_acceptable(available: &[&str]) -> Status {
    let available = available.join(", ");
    let message = format!("only the following media types are accepted: {available}");
    Status::new(Reason::NotAcceptable, message)
}

/// Answers with `object`.
///
/// # Errors
/// When the client wants a table and the object has none, or when the object cannot be encoded, which is a bug.
pub(crate) fn respond(representation: Representation, object: &impl Object) -> Result<Response, Status> {
    let encoding = representation.encoding;
    let body = match representation.table {
        None => encode(encoding, object),
        Some(version) => {
            let table = object.table().ok_or_else(|| not_acceptable(&AVAILABLE[..3]))?;
            encode_text(encoding, &table.versioned(version))
        }
    };
    let body = body.map_err(|error| internal_error(&error))?;
    let media_type = HeaderValue::from_static(encoding.media_type());
    Ok(([(CONTENT_TYPE, media_type), (VARY, HeaderValue::from_static("Accept"))], body).into_response())
}
