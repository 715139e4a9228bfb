//! Content negotiation: what `Accept` and `Accept-Encoding` allow. Pure, and never fails: a range that cannot be parsed is
//! one that this server does not offer. Parses the headers in place, without a copy.

use http::header::{ACCEPT, ACCEPT_ENCODING};
use http::{HeaderMap, HeaderName};

/// A serialization format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Encoding {
    /// `application/json`
    Json,
    /// `application/yaml`
    Yaml,
    /// `application/vnd.kubernetes.protobuf`
    Protobuf,
}

impl Encoding {
    /// In the order of preference for a wildcard.
    pub(crate) const ALL: [Self; 3] = [Self::Json, Self::Yaml, Self::Protobuf];

    pub(crate) const fn media_type(self) -> &'static str {
        match self {
            Self::Json => "application/json",
            Self::Yaml => "application/yaml",
            Self::Protobuf => "application/vnd.kubernetes.protobuf",
        }
    }
}

/// The versions of `meta.k8s.io` that define a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TableVersion {
    V1,
    V1Beta1,
}

/// The form of the answer to one client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Representation {
    pub(crate) encoding: Encoding,
    /// A table for people instead of the object itself.
    pub(crate) table: Option<TableVersion>,
}

impl Representation {
    /// The media range that accepts this representation and no other.
    pub(crate) const fn media_range(self) -> &'static str {
        match (self.encoding, self.table) {
            (Encoding::Yaml, Some(TableVersion::V1)) => "application/yaml;as=Table;v=v1;g=meta.k8s.io",
            (Encoding::Yaml, Some(TableVersion::V1Beta1)) => {
                "application/yaml;as=Table;v=v1beta1;g=meta.k8s.io"
            }
            (Encoding::Json, Some(TableVersion::V1)) => "application/json;as=Table;v=v1;g=meta.k8s.io",
            (Encoding::Json, Some(TableVersion::V1Beta1)) => {
                "application/json;as=Table;v=v1beta1;g=meta.k8s.io"
            }
            // There is no table in protobuf.
            (encoding, _) => encoding.media_type(),
        }
    }
}

/// One media range, its parameters unparsed.
#[derive(Debug, Clone, Copy)]
struct Range<'a> {
    media_type: &'a str,
    parameters: &'a str,
}

impl<'a> Range<'a> {
    fn parse(text: &'a str) -> Self {
        let (media_type, parameters) = text.split_once(';').unwrap_or((text, ""));
        Self { media_type: media_type.trim(), parameters }
    }

    /// The value of a parameter; empty when it is missing.
    fn parameter(&self, key: &str) -> &'a str {
        if self.parameters.is_empty() {
            return "";
        }
        let parameters = self.parameters.split(';').filter_map(|part| part.split_once('='));
        let mut values = parameters.filter(|(name, _)| name.trim().eq_ignore_ascii_case(key));
        values.next().map_or("", |(_, value)| value.trim().trim_matches('"'))
    }

    fn has_parameter(&self, key: &str, value: &str) -> bool {
        self.parameter(key).eq_ignore_ascii_case(value)
    }

    /// The `q` value in thousandths; 0 rejects. An unparsable `q` counts as 1, as if it were missing.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 0 and 1000")]
    fn weight(&self) -> u16 {
        let q = self.parameter("q").parse::<f32>().ok().filter(|q| q.is_finite()).unwrap_or(1.0);
        (q.clamp(0.0, 1.0) * 1000.0).round() as u16
    }

    fn is_wildcard(&self) -> bool {
        self.media_type == "*/*" || self.media_type.eq_ignore_ascii_case("application/*")
    }

    fn names(&self, encoding: Encoding) -> bool {
        let alias = match encoding {
            Encoding::Yaml => "application/x-yaml",
            Encoding::Json | Encoding::Protobuf => encoding.media_type(),
        };
        self.media_type.eq_ignore_ascii_case(encoding.media_type())
            || self.media_type.eq_ignore_ascii_case(alias)
    }

    /// The preferred encoding among those that the range accepts.
    fn encoding(&self, rejected: Rejected) -> Option<Encoding> {
        Encoding::ALL.into_iter().find(|encoding| self.accepts(*encoding, rejected))
    }

    /// True when the range accepts `encoding`, by name or by wildcard, and no more specific range rejects it.
    fn accepts(&self, encoding: Encoding, rejected: Rejected) -> bool {
        let by_wildcard = self.is_wildcard() && !(rejected.application_wildcard && self.media_type == "*/*");
        !rejected.contains(encoding) && (by_wildcard || self.names(encoding))
    }

    /// The preferred representation among those that the range accepts: the object itself, or a table. There is no table in
    /// protobuf.
    fn representation(&self, rejected: Rejected) -> Option<Representation> {
        let encoding = self.encoding(rejected)?;
        if self.parameter("as").is_empty() {
            return Some(Representation { encoding, table: None });
        }
        let is_table = self.has_parameter("as", "Table")
            && self.has_parameter("g", "meta.k8s.io")
            && encoding != Encoding::Protobuf;
        let table = match self.parameter("v") {
            "v1" if is_table => TableVersion::V1,
            "v1beta1" if is_table => TableVersion::V1Beta1,
            _ => return None,
        };
        Some(Representation { encoding, table: Some(table) })
    }
}

/// What ranges with `q=0` exclude from wildcards.
#[derive(Debug, Clone, Copy, Default)]
struct Rejected {
    /// In the order of [`Encoding::ALL`].
    encodings: [bool; 3],
    /// `application/*`, which is all that `*/*` could match here.
    application_wildcard: bool,
}

impl Rejected {
    fn from_headers(headers: &HeaderMap) -> Self {
        let mut rejected = Self::default();
        for range in ranges(headers).filter(|range| range.weight() == 0 && range.parameter("as").is_empty()) {
            rejected.application_wildcard |= range.media_type.eq_ignore_ascii_case("application/*");
            for (encoding, is_rejected) in Encoding::ALL.into_iter().zip(&mut rejected.encodings) {
                *is_rejected |= range.names(encoding);
            }
        }
        rejected
    }

    fn contains(self, encoding: Encoding) -> bool {
        Encoding::ALL
            .into_iter()
            .zip(self.encodings)
            .any(|(candidate, rejected)| rejected && candidate == encoding)
    }
}

/// The elements of a list header. An element that is not ASCII is skipped; the others count.
fn elements<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = Range<'a>> {
    let values = headers.get_all(name).into_iter();
    let elements = values.flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
    let texts =
        elements.filter(|element| element.is_ascii()).filter_map(|element| std::str::from_utf8(element).ok());
    texts.filter(|text| !text.trim().is_empty()).map(Range::parse)
}

fn ranges(headers: &HeaderMap) -> impl Iterator<Item = Range<'_>> {
    elements(headers, &ACCEPT)
}

/// The match with the greatest weight, the first among equals; `default` for a client without `Accept`.
fn best<T>(
    headers: &HeaderMap,
    default: T,
    matching: impl Fn(&Range<'_>, Rejected) -> Option<T>,
) -> Option<T> {
    let mut ranges = ranges(headers).peekable();
    if ranges.peek().is_none() {
        return Some(default);
    }
    let rejected = Rejected::from_headers(headers);
    let mut best: Option<(u16, T)> = None;
    for range in ranges {
        let weight = range.weight();
        if weight == 0 || best.as_ref().is_some_and(|(best_weight, _)| *best_weight >= weight) {
            continue;
        }
        if let Some(matched) = matching(&range, rejected) {
            best = Some((weight, matched));
        }
    }
    best.map(|(_, matched)| matched)
}

/// The representation of data that the client prefers; `None` when it accepts none.
pub(crate) fn representation(headers: &HeaderMap) -> Option<Representation> {
    let default = Representation { encoding: Encoding::Json, table: None };
    best(headers, default, |range, rejected| range.representation(rejected))
}

/// The encoding that the client prefers for an object without a table.
pub(crate) fn encoding(headers: &HeaderMap) -> Option<Encoding> {
    best(headers, Encoding::Json, |range, rejected| {
        range.encoding(rejected).filter(|_| range.parameter("as").is_empty())
    })
}

/// True when the client accepts plain JSON, for documents that exist in no other encoding.
pub(crate) fn accepts_json(headers: &HeaderMap) -> bool {
    let json = |range: &Range<'_>, rejected: Rejected| {
        (range.parameter("as").is_empty() && range.accepts(Encoding::Json, rejected)).then_some(())
    };
    best(headers, (), json).is_some()
}

/// The encoding of an error: whatever form the client wanted the object in, and JSON rather than none.
pub(crate) fn error_encoding(headers: &HeaderMap) -> Encoding {
    best(headers, Encoding::Json, |range, rejected| range.encoding(rejected)).unwrap_or(Encoding::Json)
}

/// True when the body may be compressed with gzip.
pub(crate) fn accepts_gzip(headers: &HeaderMap) -> bool {
    let weight = |coding: &str| {
        let mut matching =
            elements(headers, &ACCEPT_ENCODING).filter(|range| range.media_type.eq_ignore_ascii_case(coding));
        matching.next().map(|range| range.weight())
    };
    weight("gzip").or_else(|| weight("*")).is_some_and(|weight| weight > 0)
}

/// The form of the list of API groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Discovery {
    /// Everything in one document, `apidiscovery.k8s.io/v2`.
    V2,
    /// The same document in `apidiscovery.k8s.io/v2beta1`.
    V2Beta1,
    /// An `APIGroupList`.
    Legacy(Encoding),
    /// The client accepts nothing that is available.
    NotAcceptable,
}

/// The form of the list of API groups for a client. An aggregated range anywhere in the header wins, even after plain JSON,
/// as in the API servers written in Go.
pub(crate) fn discovery(headers: &HeaderMap) -> Discovery {
    let aggregated = ranges(headers).find_map(|range| {
        let is_aggregated = range.media_type.eq_ignore_ascii_case(Encoding::Json.media_type())
            && range.has_parameter("g", "apidiscovery.k8s.io")
            && range.has_parameter("as", "APIGroupDiscoveryList")
            && range.weight() > 0;
        match range.parameter("v") {
            "v2" if is_aggregated => Some(Discovery::V2),
            "v2beta1" if is_aggregated => Some(Discovery::V2Beta1),
            _ => None,
        }
    });
    let legacy = || encoding(headers).map_or(Discovery::NotAcceptable, Discovery::Legacy);
    aggregated.unwrap_or_else(legacy)
}

#[cfg(test)]
mod tests;
