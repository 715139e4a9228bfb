//! The query of a data request: Kubernetes' list options, of which the label and the field selector select. Pure.

use std::borrow::Cow;

use http::Uri;
use percent_encoding::percent_decode_str;

use super::fields::{self, Term};
use super::selector::{Selector, SelectorError};
use crate::serve::status::{Reason, Status};

/// What a query selects by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Options {
    pub(crate) labels: Selector,
    pub(crate) fields: Vec<Term>,
}

impl Options {
    /// The variants that all of it selects.
    pub(crate) fn of_variants(self) -> Selector {
        self.fields.iter().fold(self.labels, |all, term| all.and(&term.of_variants()))
    }
}

/// Reads what a query to `group` selects by, and refuses options that are wrong.
pub(crate) fn options(group: &'static str, uri: &Uri) -> Result<Options, Status> {
    let bad = |message: String| Status::new(Reason::BadRequest, message);
    let get = |key: &str| get(uri, key);
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
    let fields = fields::parse(&get("fieldSelector")).map_err(|error| bad(error.to_string()))?;
    let labels = Selector::parse(&get("labelSelector")).map_err(|error| bad(error.to_string()))?;
    Ok(Options { labels, fields })
}

/// Reads the selector of series out of a query for the metrics of objects.
pub(crate) fn series_selector(uri: &Uri) -> Result<Selector, Status> {
    let bad = |error: SelectorError| Status::new(Reason::BadRequest, format!("metricLabelSelector: {error}"));
    Selector::parse(&get(uri, "metricLabelSelector")).map_err(bad)
}

/// True for `?watch=1` and its spellings.
pub(crate) fn watches(uri: &Uri) -> bool {
    let on = |value: &str| value != "0" && !value.eq_ignore_ascii_case("false");
    values(uri, "watch").any(|value| on(&value))
}

/// The first value of `key`; empty when there is none.
fn get<'a>(uri: &'a Uri, key: &str) -> Cow<'a, str> {
    values(uri, key).next().unwrap_or_default()
}

/// The values of `key` in a query, decoded. What cannot be decoded stays as it is: in a selector it is then an error, where
/// to drop it would select everything.
fn values<'a>(uri: &'a Uri, key: &str) -> impl Iterator<Item = Cow<'a, str>> {
    let parts = uri.query().unwrap_or_default().split('&').filter(|part| !part.is_empty());
    let pairs = parts.map(|part| part.split_once('=').unwrap_or((part, "")));
    let is_key = move |own: &str| own == key || (own.contains(['%', '+']) && decoded(own) == key);
    pairs.filter(move |(own, _)| is_key(own)).map(|(_, value)| decoded(value))
}

fn decoded(text: &str) -> Cow<'_, str> {
    if text.contains('+') {
        let spaced = text.replace('+', " ");
        return Cow::Owned(percent_decode_str(&spaced).decode_utf8_lossy().into_owned());
    }
    percent_decode_str(text).decode_utf8_lossy()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(query: &str) -> Result<String, String> {
        let uri: Uri = format!("/x?{query}").parse().unwrap();
        let options = options("external.metrics.k8s.io", &uri);
        options.map(|options| options.of_variants().to_string()).map_err(|status| status.message().to_owned())
    }

    #[test]
    fn selectors_arrive_in_every_encoding() {
        for query in [
            "labelSelector=a%3D2%2Cm+in+%28x%2Cy%29",
            "labelSelector=a=2,m%20in%20(x,y)",
            "labelSelector=%61%3d2%2cm%20in(y%2Cx)",
            "limit=500&labelSelector=a=2,m+in+(x,y)&unknown=%zz",
            "label%53elector=a%3D2%2Cm%09in%0A(x%2cy)",
            "labelSelector=m+in+(x,y),a=2&labelSelector=b",
            "&&labelSelector=a=2,m+in+(x,y)&=&",
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
    fn what_cannot_be_decoded_is_refused_rather_than_dropped_for_then_everything_would_match() {
        for query in ["labelSelector=a%zz", "labelSelector=a%3", "labelSelector=a%", "labelSelector=a%FF%FE"]
        {
            assert!(read(query).is_err(), "{query}");
        }
        assert!(read("labelSelector=a%2B1").is_err(), "a plus sign that is meant is no space");
        assert!(read("labelSelector=a=1;b=2").is_err());
    }

    #[test]
    fn a_field_selector_selects_beside_the_labels() {
        for query in [
            "fieldSelector=metadata.name%3Dx&labelSelector=a%3D2",
            "labelSelector=a=2&fieldSelector=metadata.name%3D%3Dx",
        ] {
            assert_eq!(read(query).as_deref(), Ok("a=2,variant_name=x"), "{query}");
        }
    }

    #[test]
    fn wrong_options_are_named() {
        assert_eq!(read("limit=x").unwrap_err(), "strconv.ParseInt: parsing \"x\": invalid syntax (limit)");
        assert!(
            read("fieldSelector=spec.x%3D1")
                .unwrap_err()
                .starts_with("\"spec.x\" is not a known field selector")
        );
        let terms = "metadata.name!=a,".repeat(257);
        assert!(read(&format!("fieldSelector={terms}")).unwrap_err().contains("more than 256 terms"));
        assert_eq!(
            read("fieldSelector=metadata.name").unwrap_err(),
            "invalid selector: 'metadata.name'; can't understand 'metadata.name'"
        );
        assert!(read("watch=1").unwrap_err().starts_with("watch is not supported on resources of kind"));
        for (query, on) in
            [("w%61tch=true", true), ("watch", true), ("watch=False", false), ("watch=0", false)]
        {
            assert_eq!(read(query).is_err(), on, "{query}");
        }
    }
}
