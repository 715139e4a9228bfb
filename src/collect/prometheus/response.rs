//! Parses the JSON of a query's answer while it is received. Each series is parsed and passed on as soon as it is complete, so that
//! the answer is never in memory as a whole, and the series before a failure are kept. The JSON around the series is parsed at the
//! end.

use std::borrow::Cow;
use std::fmt;

use jiff::Timestamp;
use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use wva_core::snapshot::Sample;

use crate::collect::series_labels::SeriesLabels;

/// Most warnings kept of one answer, and characters of each: Thanos sends one for every store that it cannot reach.
const MAX_WARNINGS: usize = 8;
const MAX_WARNING_CHARS: usize = 300;

/// Usual numbers of labels and samples of a series, to allocate for.
const USUAL_LABELS: usize = 16;
const USUAL_SAMPLES: usize = 8;

/// How infos about the query itself begin (of Prometheus, and of servers that use its engine). All others are about missing data.
const QUERY_INFO_PREFIX: &str = "PromQL info:";
/// The meaning of `isPartial`, which `VictoriaMetrics` sets when a storage node did not answer.
const PARTIAL: &str = "the answer is partial: a storage node did not answer (isPartial)";

/// The open brackets around a series: it is in the list `result` of the object `data` of the answer.
const RESULT_LIST: [u8; 3] = *b"{{[";

/// The labels of a series.
#[derive(Debug, Clone, Default)]
pub(super) struct Labels<'a>(pub(super) Vec<(Cow<'a, str>, Cow<'a, str>)>);

impl Labels<'_> {
    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(label, value)| (label.as_ref(), value.as_ref()))
    }
}

impl SeriesLabels for Labels<'_> {
    fn get(&self, label: &str) -> Option<&str> {
        self.iter().find(|(name, value)| *name == label && !value.is_empty()).map(|(_, value)| value)
    }

    fn count(&self) -> usize {
        self.0.len()
    }
}

/// One series of an answer. Its values have not been checked.
#[derive(Debug, Default)]
pub(super) struct QueriedSeries<'a> {
    pub(super) labels: Labels<'a>,
    pub(super) samples: Vec<Sample>,
}

/// The answer without its series.
#[derive(Debug, Default)]
pub(super) struct Envelope {
    /// `success` or `error`.
    pub(super) status: String,
    /// Whether there was a list of series, even a truncated one.
    pub(super) has_result: bool,
    pub(super) error_type: String,
    pub(super) error: String,
    /// What is missing, from `warnings`, `infos` and `isPartial`. Limited.
    pub(super) warnings: Vec<String>,
    /// Why the rest of the answer could not be parsed.
    pub(super) parse_error: Option<String>,
}

/// Parses an answer chunk by chunk.
#[derive(Debug, Default)]
pub(super) struct ResponseParser {
    /// The brackets that are open.
    open: Vec<u8>,
    in_string: bool,
    is_escaped: bool,
    /// The bytes of the current series so far.
    series: Vec<u8>,
    in_series: bool,
    /// Whether only white space has followed the last series.
    is_after_series: bool,
    /// Everything except the series and the commas between them.
    envelope: Vec<u8>,
    /// Why parsing has stopped.
    parse_error: Option<String>,
}

impl ResponseParser {
    /// Parses the next chunk and passes the series that it completes to `each`. Returns false when parsing has failed and the rest
    /// would be ignored.
    pub(super) fn push(&mut self, chunk: &[u8], visit: &mut dyn FnMut(QueriedSeries<'_>)) -> bool {
        // The start of the bytes that have not been copied or parsed.
        let mut start = 0;
        for (index, byte) in chunk.iter().enumerate() {
            let was_in_series = self.in_series;
            self.follow(*byte);
            if self.in_series == was_in_series {
                continue;
            }
            let end = if was_in_series { index + 1 } else { index };
            let bytes = chunk.get(start..end).unwrap_or_default();
            start = end;
            if !was_in_series {
                self.push_envelope(bytes);
            } else if !self.parse_series(bytes, visit) {
                return false;
            }
        }
        let rest = chunk.get(start..).unwrap_or_default();
        if self.in_series {
            self.series.extend_from_slice(rest)
        } else {
            self.push_envelope(rest)
        }
        true
    }

    /// Keeps track of strings and brackets.
    fn follow(&mut self, byte: u8) {
        if self.in_string {
            match byte {
                _ if self.is_escaped => self.is_escaped = false,
                b'\\' => self.is_escaped = true,
                b'"' => self.in_string = false,
                _ => {}
            }
            return;
        }
        match byte {
            b'"' => self.in_string = true,
            b'{' | b'[' => {
                self.in_series |= byte == b'{' && self.open == RESULT_LIST;
                self.open.push(byte);
            }
            b'}' | b']' => {
                self.open.pop();
                self.in_series &= self.open.len() > RESULT_LIST.len();
            }
            _ => {}
        }
    }

    /// Keeps bytes of the envelope, without the comma after a series, which would follow nothing there.
    fn push_envelope(&mut self, bytes: &[u8]) {
        let mut bytes = bytes;
        if self.is_after_series {
            bytes = bytes.trim_ascii_start();
            self.is_after_series = bytes.is_empty();
            bytes = bytes.strip_prefix(b",").unwrap_or(bytes);
        }
        self.envelope.extend_from_slice(bytes);
    }

    /// Parses the series that ends with `end`; returns false when that fails.
    fn parse_series(&mut self, end: &[u8], visit: &mut dyn FnMut(QueriedSeries<'_>)) -> bool {
        let parsed = if self.series.is_empty() {
            serde_json::from_slice(end)
        } else {
            self.series.extend_from_slice(end);
            serde_json::from_slice(&self.series)
        };
        match parsed {
            Ok(series) => visit(series),
            Err(error) => self.parse_error = Some(error.to_string()),
        }
        self.series.clear();
        self.is_after_series = true;
        self.parse_error.is_none()
    }

    /// Parses the envelope at the end of the answer.
    pub(super) fn finish(self) -> Envelope {
        let mut envelope = Envelope::default();
        let mut json = serde_json::Deserializer::from_slice(&self.envelope);
        let parsed = EnvelopeSeed(&mut envelope).deserialize(&mut json).and_then(|()| json.end());
        envelope.parse_error = self.parse_error.or(parsed.err().map(|error| error.to_string()));
        envelope
    }
}

/// Fills an envelope in place, so that the fields before a failure are kept.
struct EnvelopeSeed<'a>(&'a mut Envelope);

impl<'de> DeserializeSeed<'de> for EnvelopeSeed<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for EnvelopeSeed<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an answer of the Prometheus query API")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key::<String>()? {
            match key.as_str() {
                "status" => self.0.status = map.next_value()?,
                "errorType" => self.0.error_type = map.next_value()?,
                "error" => self.0.error = map.next_value()?,
                "data" => map.next_value_seed(DataSeed(&mut self.0.has_result))?,
                "warnings" => {
                    let warnings: Option<Vec<String>> = map.next_value()?;
                    self.0.warn(warnings.unwrap_or_default());
                }
                "infos" => {
                    let infos: Option<Vec<String>> = map.next_value()?;
                    let infos = infos.unwrap_or_default().into_iter();
                    self.0.warn(infos.filter(|info| !info.starts_with(QUERY_INFO_PREFIX)));
                }
                "isPartial" => {
                    if map.next_value::<serde_json::Value>()? != serde_json::Value::Bool(false) {
                        self.0.warn([PARTIAL.to_owned()]);
                    }
                }
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(())
    }
}

impl Envelope {
    fn warn(&mut self, warnings: impl IntoIterator<Item = String>) {
        let free = MAX_WARNINGS.saturating_sub(self.warnings.len());
        let shortened =
            warnings.into_iter().map(|text| text.chars().take(MAX_WARNING_CHARS).collect::<String>());
        self.warnings.extend(shortened.take(free));
    }
}

/// Reads `data`, an object with the list `result`, or null, and sets whether there is a list.
struct DataSeed<'a>(&'a mut bool);

impl<'de> DeserializeSeed<'de> for DataSeed<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for DataSeed<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the data of an answer of the query API")
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key::<String>()? {
            if key == "result" {
                *self.0 = true;
                map.next_value::<Vec<IgnoredAny>>()?;
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(())
    }
}

impl<'de> Deserialize<'de> for QueriedSeries<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct SeriesVisitor;
        impl<'de> Visitor<'de> for SeriesVisitor {
            type Value = QueriedSeries<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a series with its labels and samples")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<QueriedSeries<'de>, A::Error> {
                let mut series = QueriedSeries::default();
                while let Some(JsonString(key)) = map.next_key()? {
                    match &*key {
                        "metric" => series.labels = map.next_value()?,
                        "values" => series.samples = map.next_value::<SampleList>()?.0,
                        "value" => series.samples = map.next_value::<SamplePair>()?.0.into_iter().collect(),
                        _ => drop(map.next_value::<IgnoredAny>()?),
                    }
                }
                Ok(series)
            }
        }
        deserializer.deserialize_map(SeriesVisitor)
    }
}

impl<'de> Deserialize<'de> for Labels<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct LabelsVisitor;
        impl<'de> Visitor<'de> for LabelsVisitor {
            type Value = Labels<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("labels")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Labels<'de>, A::Error> {
                let mut labels = Vec::with_capacity(USUAL_LABELS);
                while let Some((JsonString(name), JsonString(value))) = map.next_entry()? {
                    labels.push((name, value));
                }
                Ok(Labels(labels))
            }
        }
        deserializer.deserialize_map(LabelsVisitor)
    }
}

/// A string, borrowed from the answer unless it contains escapes.
struct JsonString<'a>(Cow<'a, str>);

impl<'de> Deserialize<'de> for JsonString<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct StringVisitor;
        impl<'de> Visitor<'de> for StringVisitor {
            type Value = JsonString<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }

            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<JsonString<'de>, E> {
                Ok(JsonString(Cow::Borrowed(text)))
            }

            fn visit_str<E>(self, text: &str) -> Result<JsonString<'de>, E> {
                Ok(JsonString(Cow::Owned(text.to_owned())))
            }
        }
        deserializer.deserialize_str(StringVisitor)
    }
}

/// Samples, without those whose time is out of range.
struct SampleList(Vec<Sample>);

impl<'de> Deserialize<'de> for SampleList {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ListVisitor;
        impl<'de> Visitor<'de> for ListVisitor {
            type Value = SampleList;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of samples")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<SampleList, A::Error> {
                let mut samples = Vec::with_capacity(USUAL_SAMPLES);
                while let Some(SamplePair(sample)) = list.next_element()? {
                    samples.extend(sample);
                }
                // All series of a fleet are in memory together, and often half of a grown list is unused. A copy, because
                // an allocation that shrinks mostly keeps its size.
                Ok(SampleList(samples.as_slice().to_vec()))
            }
        }
        deserializer.deserialize_seq(ListVisitor)
    }
}

/// `[seconds, "value"]`; `None` if the time is out of range.
struct SamplePair(Option<Sample>);

impl<'de> Deserialize<'de> for SamplePair {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let (seconds, JsonString(text)): (f64, JsonString<'_>) = Deserialize::deserialize(deserializer)?;
        // Values are strings because of `NaN` and `+Inf`, which JSON numbers cannot be.
        let value = text.parse().map_err(|_| D::Error::custom("a sample value is not a number"))?;
        // Prometheus stores whole milliseconds, which a binary number of seconds does not represent exactly. The cast saturates,
        // and what is out of range then is no timestamp.
        let at = Timestamp::from_millisecond((seconds * 1e3).round() as i64);
        Ok(Self(at.ok().map(|at| Sample { at, value })))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHOLE: &str = r#"{"status":"success","data":{"resultType":"matrix","result":[
        {"metric":{"__name__":"a","pod":"p"},"values":[[1800000000.123,"0.5"],[1800000015,"NaN"]]},
        {"metric":{"__name__":"b"},"values":[[1800000000,"+Inf"]]}]},"warnings":["store gone"],"infos":["PromQL info: hm"]}"#;

    /// The envelope and the series of `text`, which is received in chunks of `size`.
    fn parse_in(text: &str, size: usize) -> (Envelope, Vec<QueriedSeries<'static>>) {
        let (mut parser, mut found) = (ResponseParser::default(), Vec::new());
        let mut keep = |QueriedSeries { labels: Labels(labels), samples }: QueriedSeries<'_>| {
            let own = |text: Cow<'_, str>| Cow::Owned(text.into_owned());
            let labels = labels.into_iter().map(|(name, value)| (own(name), own(value))).collect();
            found.push(QueriedSeries { labels: Labels(labels), samples });
        };
        let _ = text.as_bytes().chunks(size).all(|chunk| parser.push(chunk, &mut keep));
        (parser.finish(), found)
    }

    fn parse(text: &str) -> (Envelope, Vec<QueriedSeries<'static>>) {
        parse_in(text, usize::MAX)
    }

    #[test]
    fn a_complete_answer_has_series_with_true_times_and_warnings() {
        let (envelope, found) = parse(WHOLE);
        assert_eq!(envelope.parse_error, None);
        assert_eq!(envelope.status, "success");
        assert_eq!(envelope.warnings, ["store gone"], "an info about the query is no warning");
        assert_eq!(found.len(), 2);
        assert_eq!(found[0].labels.get("pod"), Some("p"));
        assert_eq!(found[0].samples[0].at.as_millisecond(), 1_800_000_000_123);
        assert!(found[0].samples[1].value.is_nan() && found[1].samples[0].value.is_infinite());
    }

    #[test]
    fn a_truncated_answer_keeps_the_complete_series_and_never_panics() {
        for end in 0..WHOLE.len() {
            let (envelope, found) = parse(&WHOLE[..end]);
            assert!(envelope.parse_error.is_some(), "truncated at {end}");
            assert!(found.len() <= 2);
        }
        let (_, found) = parse(&WHOLE[..WHOLE.len() / 2 + 60]);
        assert_eq!(found.len(), 1);
    }

    #[test]
    fn the_chunks_of_an_answer_do_not_matter() {
        let hostile = r#"{"status":"success","infos":["PromQL info: [{"],"data":{"stats":{"a":[{"b":1}]},"result" : [
            {"metric":{"pod":"a\"}],[{\\"},"values":[[1,"2"]]} , {"metric":{},"value":[3,"4"]}]},"warnings":["}]"]}"#;
        for text in [WHOLE, hostile] {
            for size in 1..text.len() {
                let (envelope, found) = parse_in(text, size);
                assert_eq!((envelope.parse_error, found.len()), (None, 2), "in chunks of {size}");
                assert!(envelope.has_result && envelope.status == "success" && envelope.warnings.len() == 1);
            }
        }
        assert_eq!(parse(hostile).1[0].labels.get("pod"), Some(r#"a"}],[{\"#));
    }

    #[test]
    fn an_invalid_series_ends_the_parsing_with_an_error() {
        let (envelope, found) = parse(&WHOLE.replace("[1800000015,\"NaN\"]", "[1800000015,\"x\"]"));
        assert!(envelope.parse_error.is_some_and(|error| error.contains("not a number")));
        assert!(found.is_empty());
    }

    #[test]
    fn an_error_answer_is_parsed_too() {
        let (envelope, found) =
            parse(r#"{"status":"error","errorType":"execution","error":"too much","data":null}"#);
        assert_eq!((envelope.status.as_str(), envelope.error.as_str()), ("error", "too much"));
        assert!(found.is_empty() && envelope.parse_error.is_none());
    }
}
