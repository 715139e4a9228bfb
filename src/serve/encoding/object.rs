//! One object in the representation that a client asks for: JSON, YAML, Kubernetes protobuf, or a table for people.
//! Knows no metric: what can be shown says how, by [`Show`].

pub(crate) mod protobuf;
pub(crate) mod table;
mod wire;

use axum::response::{IntoResponse, Response};
use http::header::{CONTENT_TYPE, VARY};
use http::{HeaderMap, HeaderValue};
use serde::Serialize;

pub(crate) use self::table::Table;
pub(crate) use self::wire::Wire;
use super::accept::{self, Encoding, Representation};
use super::internal_error;
use super::status::{Reason, Status};

/// An object of the API. `Serialize` writes all of it, `kind` and `apiVersion` included.
pub(crate) trait Show: Serialize {
    /// `apiVersion` and `kind`.
    fn type_meta(&self) -> (&'static str, &'static str);

    /// Appends the object alone in protobuf, without its envelope.
    fn protobuf(&self, to: &mut Vec<u8>);

    /// As people want to see it; `None` when it has no such form.
    fn table(&self) -> Option<Table> {
        None
    }
}

/// Room for a list of one item, which has about 400 bytes: the usual answer is written without growing.
const ONE_ITEM: usize = 512;

/// What the client of a data read gets.
///
/// # Errors
/// When it takes nothing that there is.
pub(crate) fn asked(headers: &HeaderMap) -> Result<Representation, Status> {
    accept::representation(headers).ok_or_else(|| not_acceptable(&AVAILABLE))
}

/// What data can be had in.
const AVAILABLE: [&str; 5] = [
    "application/json",
    "application/yaml",
    "application/vnd.kubernetes.protobuf",
    "application/json;as=Table;v=v1;g=meta.k8s.io",
    "application/json;as=Table;v=v1beta1;g=meta.k8s.io",
];

/// The refusal of a client that takes nothing of what is `available`.
pub(crate) fn not_acceptable(available: &[&str]) -> Status {
    let available = available.join(", ");
    let message = format!("only the following media types are accepted: {available}");
    Status::new(Reason::NotAcceptable, message)
}

/// The answer that is `object`.
///
/// # Errors
/// When a table is asked for and there is none, or the object cannot be written, which is a bug.
pub(crate) fn show(asked: Representation, object: &impl Show) -> Result<Response, Status> {
    let body = match asked.table {
        None => encoded(asked.encoding, object)?,
        Some(version) => {
            let table = object.table().ok_or_else(|| not_acceptable(&AVAILABLE[..3]))?;
            written(asked.encoding, &table.versioned(version))?
        }
    };
    let media = HeaderValue::from_static(asked.encoding.media());
    Ok(([(CONTENT_TYPE, media), (VARY, HeaderValue::from_static("Accept"))], body).into_response())
}

/// `object` as bytes.
pub(crate) fn encoded(encoding: Encoding, object: &impl Show) -> Result<Vec<u8>, Status> {
    match encoding {
        Encoding::Protobuf => Ok(protobuf::enveloped(object.type_meta(), |to| object.protobuf(to))),
        text => written(text, object),
    }
}

/// What has only a text form, as JSON or YAML.
fn written(encoding: Encoding, object: &impl Serialize) -> Result<Vec<u8>, Status> {
    match encoding {
        Encoding::Yaml => yaml(object).map(String::into_bytes).map_err(|error| internal_error(&error)),
        Encoding::Json | Encoding::Protobuf => {
            let mut body = Vec::with_capacity(ONE_ITEM);
            serde_json::to_writer(&mut body, object).map_err(|error| internal_error(&error))?;
            Ok(body)
        }
    }
}

/// YAML that every reader takes for the same: a string that one of YAML's versions would read as something else is in
/// quotes, and a long one stays on its line.
pub(crate) fn yaml(object: &impl Serialize) -> Result<String, serde_saphyr::ser::Error> {
    let options = serde_saphyr::ser_options! { prefer_block_scalars: false };
    serde_saphyr::to_string_with_options(object, options)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn reads_back(text: &str) -> Result<(), TestCaseError> {
        let object = BTreeMap::from([("value", text), (text, "x")]);
        let yaml = yaml(&object).unwrap();
        let read: serde_json::Value = serde_saphyr::from_str(&yaml).unwrap();
        prop_assert_eq!(&read, &serde_json::to_value(&object).unwrap(), "{}", yaml);
        Ok(())
    }

    #[test]
    fn a_string_that_looks_like_something_else_stays_a_string() {
        for text in [
            "3",
            "1e1",
            "1500m",
            "2k",
            "-1",
            "0x1F",
            "0o17",
            "017",
            "1_000",
            "1:30",
            ".5",
            ".inf",
            "NaN",
            "no",
            "Yes",
            "on",
            "y",
            "true",
            "null",
            "~",
            "",
            " ",
            "- a",
            "a: b",
            "a #b",
            "#",
            "&a",
            "*a",
            "!a",
            "|",
            ">",
            "%a",
            "@a",
            "`a",
            "'",
            "\"",
            "\\",
            "{}",
            "[]",
            "?",
            "<<",
            "=",
            "2026-11-21",
            "2026-11-21T10:00:05Z",
            "é",
            "\u{85}",
            "\u{feff}",
            "a\nb",
            "a\tb",
            "---",
            "...",
            "\u{7f}",
            "\u{2028}",
        ] {
            reads_back(text).unwrap();
            let plain = format!("v: {text}\n");
            let yaml = yaml(&BTreeMap::from([("v", text)])).unwrap();
            let other = text.contains(|c: char| c.is_ascii_digit())
                || matches!(text, "no" | "Yes" | "on" | "y" | "~");
            assert!(!other || text.ends_with(['m', 'k']) || yaml != plain, "{text:?} must be quoted: {yaml}");
        }
    }

    proptest! {
        #[test]
        fn every_string_survives_yaml(text: String) {
            reads_back(&text)?;
        }
    }
}
