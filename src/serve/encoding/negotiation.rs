//! `Accept` and `Accept-Encoding`: which representation a client takes. Pure, and never fails: what cannot be read is
//! not acceptable. Reads the headers where they are, without a copy.

use http::header::{ACCEPT, ACCEPT_ENCODING};
use http::{HeaderMap, HeaderName};

/// How an object is written.
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
    /// In the order in which a wildcard chooses.
    pub(crate) const ALL: [Self; 3] = [Self::Json, Self::Yaml, Self::Protobuf];

    /// The media type.
    pub(crate) const fn media(self) -> &'static str {
        match self {
            Self::Json => "application/json",
            Self::Yaml => "application/yaml",
            Self::Protobuf => "application/vnd.kubernetes.protobuf",
        }
    }
}

/// The versions of `meta.k8s.io` that a table is written in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TableVersion {
    V1,
    V1Beta1,
}

/// What a client gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Representation {
    /// How it is written.
    pub(crate) encoding: Encoding,
    /// As a table for people instead of as the object itself.
    pub(crate) table: Option<TableVersion>,
}

impl Representation {
    /// The media type that asks for this and nothing else.
    pub(crate) const fn media(self) -> &'static str {
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
            (encoding, _) => encoding.media(),
        }
    }
}

/// One media range, its parameters unread.
#[derive(Debug, Clone, Copy)]
struct Range<'a> {
    media: &'a str,
    parameters: &'a str,
}

impl<'a> Range<'a> {
    fn parse(text: &'a str) -> Self {
        let (media, parameters) = text.split_once(';').unwrap_or((text, ""));
        Self { media: media.trim(), parameters }
    }

    /// The value of a parameter; empty when it is not there.
    fn get(&self, key: &str) -> &'a str {
        if self.parameters.is_empty() {
            return "";
        }
        let pairs = self.parameters.split(';').filter_map(|part| part.split_once('='));
        let mut named = pairs.filter(|(own, _)| own.trim().eq_ignore_ascii_case(key));
        named.next().map_or("", |(_, value)| value.trim().trim_matches('"'))
    }

    fn is(&self, key: &str, value: &str) -> bool {
        self.get(key).eq_ignore_ascii_case(value)
    }

    /// How much it is wanted, in thousandths; 0 refuses. What cannot be read is 1, as if it were not there.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 0 and 1000")]
    fn weight(&self) -> u16 {
        let q = self.get("q").parse::<f32>().ok().filter(|q| q.is_finite()).unwrap_or(1.0);
        (q.clamp(0.0, 1.0) * 1000.0).round() as u16
    }

    fn is_wildcard(&self) -> bool {
        self.media == "*/*" || self.media.eq_ignore_ascii_case("application/*")
    }

    fn names(&self, encoding: Encoding) -> bool {
        let other = match encoding {
            Encoding::Yaml => "application/x-yaml",
            _ => encoding.media(),
        };
        self.media.eq_ignore_ascii_case(encoding.media()) || self.media.eq_ignore_ascii_case(other)
    }

    /// The encoding it asks for: the first that it takes.
    fn encoding(&self, refused: Refused) -> Option<Encoding> {
        Encoding::ALL.into_iter().find(|encoding| self.takes(*encoding, refused))
    }

    /// True when it means `encoding`, by name or as a wildcard, and nothing more exact refuses it.
    fn takes(&self, encoding: Encoding, refused: Refused) -> bool {
        let by_wildcard = self.is_wildcard() && !(refused.application && self.media == "*/*");
        !refused.names(encoding) && (by_wildcard || self.names(encoding))
    }

    /// Whether it asks for the object itself or for a table; `None` when for something else. There is no table in
    /// protobuf.
    fn table(&self, encoding: Encoding) -> Option<Option<TableVersion>> {
        if self.get("as").is_empty() {
            return Some(None);
        }
        let table = self.is("as", "Table") && self.is("g", "meta.k8s.io") && encoding != Encoding::Protobuf;
        match self.get("v") {
            "v1" if table => Some(Some(TableVersion::V1)),
            "v1beta1" if table => Some(Some(TableVersion::V1Beta1)),
            _ => None,
        }
    }
}

/// What `q=0` refuses: a wildcard does not mean it.
#[derive(Debug, Clone, Copy, Default)]
struct Refused {
    /// Each encoding, by its name.
    named: [bool; 3],
    /// `application/*`: all that `*/*` could mean here.
    application: bool,
}

impl Refused {
    fn of(headers: &HeaderMap) -> Self {
        let no = ranges(headers).filter(|range| range.weight() == 0 && range.get("as").is_empty());
        no.fold(Self::default(), |mut refused, range| {
            refused.application |= range.media.eq_ignore_ascii_case("application/*");
            for (encoding, refused) in Encoding::ALL.into_iter().zip(&mut refused.named) {
                *refused |= range.names(encoding);
            }
            refused
        })
    }

    fn names(self, encoding: Encoding) -> bool {
        Encoding::ALL.into_iter().zip(self.named).any(|(own, refused)| refused && own == encoding)
    }
}

/// The elements of a header that is a list. One that is no ASCII is left out, and no other with it.
fn elements<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = Range<'a>> {
    let values = headers.get_all(name).into_iter();
    let parts = values.flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
    let texts = parts.filter(|part| part.is_ascii()).filter_map(|part| std::str::from_utf8(part).ok());
    texts.filter(|text| !text.trim().is_empty()).map(Range::parse)
}

fn ranges(headers: &HeaderMap) -> impl Iterator<Item = Range<'_>> {
    elements(headers, &ACCEPT)
}

/// The wanted with the greatest weight, the first among equals; `nothing` to a client that says nothing.
fn best<T>(headers: &HeaderMap, nothing: T, meaning: impl Fn(&Range<'_>, Refused) -> Option<T>) -> Option<T> {
    let mut ranges = ranges(headers).peekable();
    if ranges.peek().is_none() {
        return Some(nothing);
    }
    let refused = Refused::of(headers);
    let mut best: Option<(u16, T)> = None;
    for range in ranges {
        let weight = range.weight();
        if weight == 0 || best.as_ref().is_some_and(|(most, _)| *most >= weight) {
            continue;
        }
        if let Some(found) = meaning(&range, refused) {
            best = Some((weight, found));
        }
    }
    best.map(|(_, found)| found)
}

/// The representation of data that a client wants most; `None` when there is none that it takes.
pub(crate) fn representation(headers: &HeaderMap) -> Option<Representation> {
    best(headers, Representation { encoding: Encoding::Json, table: None }, |range, refused| {
        let encoding = range.encoding(refused)?;
        Some(Representation { encoding, table: range.table(encoding)? })
    })
}

/// The encoding of an object that has no table.
pub(crate) fn encoding(headers: &HeaderMap) -> Option<Encoding> {
    best(headers, Encoding::Json, |range, refused| {
        range.encoding(refused).filter(|_| range.get("as").is_empty())
    })
}

/// True when plain JSON will do, for what exists in nothing else.
pub(crate) fn takes_json(headers: &HeaderMap) -> bool {
    let json = |range: &Range<'_>, refused: Refused| {
        (range.get("as").is_empty() && range.takes(Encoding::Json, refused)).then_some(())
    };
    best(headers, (), json).is_some()
}

/// The encoding of an error: whatever shape was asked for, and JSON rather than nothing.
pub(crate) fn encoding_of_errors(headers: &HeaderMap) -> Encoding {
    best(headers, Encoding::Json, |range, refused| range.encoding(refused)).unwrap_or(Encoding::Json)
}

/// True when the body may be compressed with gzip.
pub(crate) fn gzip(headers: &HeaderMap) -> bool {
    let weight = |name: &str| {
        let mut named =
            elements(headers, &ACCEPT_ENCODING).filter(|range| range.media.eq_ignore_ascii_case(name));
        named.next().map(|range| range.weight())
    };
    weight("gzip").or_else(|| weight("*")).is_some_and(|weight| weight > 0)
}

/// How a client wants to see the list of groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Discovery {
    /// Everything in one document, `apidiscovery.k8s.io/v2`.
    V2,
    /// The same in the version before.
    V2Beta1,
    /// An `APIGroupList`.
    Legacy(Encoding),
    /// Nothing that there is.
    NotAcceptable,
}

/// An aggregated range anywhere in the header wins, also behind plain JSON: this is what Go servers do.
pub(crate) fn discovery(headers: &HeaderMap) -> Discovery {
    let aggregated = ranges(headers).find_map(|range| {
        let asked = range.media.eq_ignore_ascii_case(Encoding::Json.media())
            && range.is("g", "apidiscovery.k8s.io")
            && range.is("as", "APIGroupDiscoveryList")
            && range.weight() > 0;
        match range.get("v") {
            "v2" if asked => Some(Discovery::V2),
            "v2beta1" if asked => Some(Discovery::V2Beta1),
            _ => None,
        }
    });
    let legacy = || encoding(headers).map_or(Discovery::NotAcceptable, Discovery::Legacy);
    aggregated.unwrap_or_else(legacy)
}

#[cfg(test)]
#[path = "accept_tests.rs"]
mod tests;
