//! `Accept`: which representation a client takes. Pure, and never fails: what cannot be read is not acceptable.

use http::HeaderMap;
use http::header::ACCEPT;

/// One media range with its parameters, in lower case.
struct Range {
    media: String,
    parameters: Vec<(String, String)>,
}

impl Range {
    fn parse(text: &str) -> Self {
        let mut parts = text.split(';').map(|part| part.trim().to_ascii_lowercase());
        let media = parts.next().unwrap_or_default();
        let parameters = parts.filter_map(|part| {
            let (key, value) = part.split_once('=')?;
            Some((key.trim().to_owned(), value.trim().trim_matches('"').to_owned()))
        });
        Self { media, parameters: parameters.collect() }
    }

    fn get(&self, key: &str) -> &str {
        self.parameters.iter().find(|(own, _)| own == key).map_or("", |(_, value)| value)
    }

    /// `q=0` refuses.
    fn refused(&self) -> bool {
        self.get("q").parse::<f32>().is_ok_and(|q| q <= 0.0)
    }

    fn is_plain_json(&self) -> bool {
        let json = matches!(self.media.as_str(), "application/json" | "application/*" | "*/*");
        json && self.get("as").is_empty() && !self.refused()
    }
}

fn ranges(headers: &HeaderMap) -> Vec<Range> {
    let values = headers.get_all(ACCEPT).into_iter().filter_map(|value| value.to_str().ok());
    values
        .flat_map(|value| value.split(','))
        .filter(|text| !text.trim().is_empty())
        .map(Range::parse)
        .collect()
}

/// True when plain JSON will do, as it does for a client that says nothing.
pub(crate) fn takes_json(headers: &HeaderMap) -> bool {
    let ranges = ranges(headers);
    ranges.is_empty() || ranges.iter().any(Range::is_plain_json)
}

/// How a client wants to see the list of groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Discovery {
    /// Everything in one document, `apidiscovery.k8s.io/v2`.
    V2,
    /// The same in the version before.
    V2Beta1,
    /// An `APIGroupList`.
    Legacy,
    /// Nothing that there is.
    NotAcceptable,
}

/// An aggregated range anywhere in the header wins, also behind plain JSON: this is what Go servers do.
pub(crate) fn discovery(headers: &HeaderMap) -> Discovery {
    let ranges = ranges(headers);
    let aggregated = ranges.iter().find_map(|range| {
        let asked = range.media == "application/json"
            && range.get("g") == "apidiscovery.k8s.io"
            && range.get("as") == "apigroupdiscoverylist"
            && !range.refused();
        match range.get("v") {
            "v2" if asked => Some(Discovery::V2),
            "v2beta1" if asked => Some(Discovery::V2Beta1),
            _ => None,
        }
    });
    let legacy = if takes_json(headers) { Discovery::Legacy } else { Discovery::NotAcceptable };
    aggregated.unwrap_or(legacy)
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use proptest::prelude::*;

    use super::*;

    fn headers(accept: &str) -> HeaderMap {
        HeaderMap::from_iter([(ACCEPT, HeaderValue::from_str(accept).unwrap())])
    }

    const V2: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
    const BETA: &str = "application/json; as=APIGroupDiscoveryList; v=v2beta1 ;g=apidiscovery.k8s.io";

    #[test]
    fn aggregated_discovery_is_found_anywhere_in_any_order() {
        for (accept, want) in [
            (format!("{V2},{BETA}"), Discovery::V2),
            (format!("{BETA},{V2}"), Discovery::V2Beta1),
            (format!("application/json,{V2}"), Discovery::V2),
            ("application/json".into(), Discovery::Legacy),
            ("*/*".into(), Discovery::Legacy),
            (format!("{V2};q=0,application/json"), Discovery::Legacy),
            (V2.replace("v2", "v9"), Discovery::NotAcceptable),
            ("application/xml".into(), Discovery::NotAcceptable),
        ] {
            assert_eq!(discovery(&headers(&accept)), want, "{accept}");
        }
        assert_eq!(discovery(&HeaderMap::new()), Discovery::Legacy);
    }

    #[test]
    fn the_hpas_and_kubectls_accept_get_json() {
        assert!(takes_json(&headers("application/vnd.kubernetes.protobuf, */*")));
        let table = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";
        assert!(takes_json(&headers(table)));
        assert!(!takes_json(&headers("application/json;as=Table;v=v1;g=meta.k8s.io")));
        assert!(!takes_json(&headers("application/vnd.kubernetes.protobuf")));
    }

    proptest! {
        #[test]
        fn no_header_harms(accept in "[ -~]{0,80}") {
            let headers = headers(&accept);
            let _ = (discovery(&headers), takes_json(&headers));
        }
    }
}
