//! The query of a data request: Kubernetes' list options, of which only the label selector selects. Pure.

use axum::extract::Query;
use http::Uri;

use super::selector::{Selector, SelectorError};
use crate::serve::status::{Reason, Status};

/// The fields a `fieldSelector` may name; Kubernetes knows these for every kind. They select nothing here.
const FIELDS: [&str; 2] = ["metadata.name", "metadata.namespace"];

/// Reads the selector out of a query to `group` and refuses options that are wrong.
pub(crate) fn selector(group: &'static str, uri: &Uri) -> Result<Selector, Status> {
    let bad = |message: String| Status::new(Reason::BadRequest, message);
    let parameters = parameters(uri);
    let get =
        |key: &str| parameters.iter().find(|(own, _)| own == key).map_or("", |(_, value)| value.as_str());
    if watches(uri) {
        let message = format!("watch is not supported on resources of kind \"*.{group}\"");
        return Err(Status::new(Reason::MethodNotAllowed, message).about(group, "*", ""));
    }
    for number in ["limit", "timeoutSeconds"] {
        let value = get(number);
        if !value.is_empty() && value.parse::<i64>().is_err() {
            return Err(bad(format!("strconv.ParseInt: parsing {value:?}: invalid syntax ({number})")));
        }
    }
    for term in get("fieldSelector").split(',').map(str::trim).filter(|term| !term.is_empty()) {
        let field = term.split(['=', '!']).next().unwrap_or_default();
        if !FIELDS.contains(&field) {
            let known = FIELDS.map(|field| format!("{field:?}")).join(", ");
            return Err(bad(format!("{field:?} is not a known field selector: only {known}")));
        }
    }
    Selector::parse(get("labelSelector")).map_err(|error| bad(error.to_string()))
}

/// Reads the selector of series out of a query for the metrics of objects.
pub(crate) fn series_selector(uri: &Uri) -> Result<Selector, Status> {
    let parameters = parameters(uri);
    let asked = parameters.iter().find(|(key, _)| key == "metricLabelSelector");
    let bad = |error: SelectorError| Status::new(Reason::BadRequest, format!("metricLabelSelector: {error}"));
    Selector::parse(asked.map_or("", |(_, value)| value)).map_err(bad)
}

/// True for `?watch=1` and its spellings.
pub(crate) fn watches(uri: &Uri) -> bool {
    let on = |value: &str| !matches!(value, "0" | "false");
    parameters(uri).iter().any(|(key, value)| key == "watch" && on(value))
}

/// Decoded pairs; a part that cannot be decoded is dropped, as Go drops it.
fn parameters(uri: &Uri) -> Vec<(String, String)> {
    Query::try_from_uri(uri).map_or_else(|_| Vec::new(), |Query(pairs)| pairs)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(query: &str) -> Result<String, String> {
        let uri: Uri = format!("/x?{query}").parse().unwrap();
        let selector = selector("external.metrics.k8s.io", &uri);
        selector.map(|selector| selector.to_string()).map_err(|status| status.message().to_owned())
    }

    #[test]
    fn selectors_arrive_in_every_encoding() {
        for query in [
            "labelSelector=a%3D2%2Cm+in+%28x%2Cy%29",
            "labelSelector=a=2,m%20in%20(x,y)",
            "labelSelector=%61%3d2%2cm%20in(y%2Cx)",
            "limit=500&labelSelector=a=2,m+in+(x,y)&unknown=%zz",
        ] {
            assert_eq!(read(query).as_deref(), Ok("a=2,m in (x,y)"), "{query}");
        }
        assert_eq!(read("").as_deref(), Ok(""));
        assert_eq!(
            read("labelSelector=app.kubernetes.io%2Fname%3Dx").as_deref(),
            Ok("app.kubernetes.io/name=x")
        );
    }

    #[test]
    fn wrong_options_are_named() {
        assert_eq!(read("limit=x").unwrap_err(), "strconv.ParseInt: parsing \"x\": invalid syntax (limit)");
        assert!(
            read("fieldSelector=spec.x%3D1")
                .unwrap_err()
                .starts_with("\"spec.x\" is not a known field selector")
        );
        assert!(read("fieldSelector=metadata.name%3Dx").is_ok());
        assert!(read("watch=1").unwrap_err().starts_with("watch is not supported on resources of kind"));
        assert!(read("watch=false").is_ok());
    }
}
