//! The query of a read: Kubernetes' list options, of which `labelSelector` and `fieldSelector` select. Pure.

use std::borrow::Cow;

use http::Uri;

use super::field_selector::{self, FieldRule};
use super::selector::{Selector, SelectorError};
use crate::serve::encoding::{Reason, Status};

/// The selectors of a read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ListOptions {
    pub(crate) labels: Selector,
    pub(crate) fields: Vec<FieldRule>,
}

impl ListOptions {
    /// Parses the query of a read in `group`.
    ///
    /// # Errors
    /// 405 for a watch, 400 for an invalid option.
    pub(crate) fn parse(group: &'static str, uri: &Uri) -> Result<Self, Status> {
        if is_watch(uri) {
            let message = format!("watch is not supported on resources of kind \"*.{group}\"");
            return Err(Status::new(Reason::MethodNotAllowed, message).about(group, "*", ""));
        }
        let bad_request = |message: String| Status::new(Reason::BadRequest, message);
        for option in ["limit", "timeoutSeconds"] {
            let value = first(uri, option);
            if !value.is_empty() && value.parse::<i64>().is_err() {
                let message = format!("strconv.ParseInt: parsing {value:?}: invalid syntax ({option})");
                return Err(bad_request(message));
            }
        }
        let fields = field_selector::parse(&first(uri, "fieldSelector"));
        let fields = fields.map_err(|error| bad_request(error.to_string()))?;
        let labels = Selector::parse(&first(uri, "labelSelector"));
        let labels = labels.map_err(|error| bad_request(error.to_string()))?;
        Ok(Self { labels, fields })
    }
}

/// The selector of series in a read of the metrics of objects.
///
/// # Errors
/// 400 for an invalid selector.
pub(crate) fn metric_label_selector(uri: &Uri) -> Result<Selector, Status> {
    let bad_request =
        |error: SelectorError| Status::new(Reason::BadRequest, format!("metricLabelSelector: {error}"));
    Selector::parse(&first(uri, "metricLabelSelector")).map_err(bad_request)
}

/// True for `?watch=1` and its other spellings.
pub(crate) fn is_watch(uri: &Uri) -> bool {
    let is_true = |value: &str| value != "0" && !value.eq_ignore_ascii_case("false");
    values(uri, "watch").any(|value| is_true(&value))
}

/// The first value of `key`; empty when there is none.
fn first<'a>(uri: &'a Uri, key: &str) -> Cow<'a, str> {
    values(uri, key).next().unwrap_or_default()
}

/// The decoded values of `key`. An invalid escape stays as it is: in a selector it is then an error, where to drop it would
/// select everything.
fn values<'a>(uri: &'a Uri, key: &str) -> impl Iterator<Item = Cow<'a, str>> {
    let pairs = form_urlencoded::parse(uri.query().unwrap_or_default().as_bytes());
    pairs.filter(move |(name, _)| name == key).map(|(_, value)| value)
}

#[cfg(test)]
mod tests {
    use super::super::variant_selector::VariantSelector;
    use super::*;

    fn read(query: &str) -> Result<String, String> {
        let uri: Uri = format!("/x?{query}").parse().unwrap();
        let options = ListOptions::parse("external.metrics.k8s.io", &uri);
        let ListOptions { labels, fields } = options.map_err(|status| status.message().to_owned())?;
        Ok(VariantSelector { labels: &[labels], fields: &fields }.to_string())
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
    fn an_invalid_escape_is_an_error_and_not_dropped() {
        for query in ["labelSelector=a%zz", "labelSelector=a%3", "labelSelector=a%", "labelSelector=a%FF%FE"]
        {
            assert!(read(query).is_err(), "{query}");
        }
        assert!(read("labelSelector=a%2B1").is_err(), "an escaped plus sign is not a space");
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
