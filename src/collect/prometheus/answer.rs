//! The JSON of a query's answer, read as it streams in: every whole series is cut out, parsed in place and handed on at
//! once, so that an answer is never held as a whole and one that breaks off still gives what came before. What is left
//! around the series is read at the end. Not here: HTTP, and what labels mean.

use std::borrow::Cow;
use std::fmt;

use jiff::Timestamp;
use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use wva_core::snapshot::Sample;

/// Warnings kept of one answer, and characters of each: Thanos sends one for every store it couldn't reach.
const MAX_WARNINGS: usize = 8;
const MAX_WARNING_CHARS: usize = 300;

/// Room for the labels and the samples of a series as it usually is.
const USUAL_LABELS: usize = 16;
const USUAL_SAMPLES: usize = 8;

/// How infos begin that are remarks on the query (Prometheus, and who uses its engine). Any other one tells of data.
const ABOUT_THE_QUERY: &str = "PromQL info:";
/// What a mark of `VictoriaMetrics` means: a storage node did not answer, and series that only it has are left out.
const PARTIAL: &str = "the answer is partial: a storage node did not answer (isPartial)";

/// Where a series stands: in the list `result` of the object `data` of the answer.
const LIST: [u8; 3] = *b"{{[";

/// The labels of a series.
#[derive(Debug, Clone, Default)]
pub(super) struct Labels<'a>(pub(super) Vec<(Cow<'a, str>, Cow<'a, str>)>);

impl Labels<'_> {
    /// The value of a label; `None` when it is absent or empty, which Prometheus takes for the same.
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(key, value)| key == name && !value.is_empty()).map(|(_, value)| value.as_ref())
    }
}

/// One series of an answer, as it came: values may be anything.
#[derive(Debug, Default)]
pub(super) struct Element<'a> {
    pub(super) labels: Labels<'a>,
    pub(super) points: Vec<Sample>,
}

/// What surrounds the series in an answer.
#[derive(Debug, Default)]
pub(super) struct Envelope {
    /// `success` or `error`.
    pub(super) status: String,
    /// Whether there was a list of series, were it cut in its middle.
    pub(super) has_result: bool,
    pub(super) error_type: String,
    pub(super) error: String,
    /// What is missing, as warnings, remarks that are not about the query, or a mark say it; bounded.
    pub(super) warnings: Vec<String>,
    /// Why the answer could not be read to its end.
    pub(super) broken: Option<String>,
}

/// Reads an answer piece by piece.
#[derive(Debug, Default)]
pub(super) struct Reader {
    /// The brackets that are open.
    open: Vec<u8>,
    in_string: bool,
    escaped: bool,
    /// The part of a series that has come so far.
    series: Vec<u8>,
    /// A series is open.
    in_series: bool,
    /// Nothing but white space has come since the last series.
    after_series: bool,
    /// Everything but the series and the commas between them.
    around: Vec<u8>,
    /// Why no more is read.
    broken: Option<String>,
}

impl Reader {
    /// Takes the next piece and hands on the series that are whole with it. False when the rest isn't worth reading.
    pub(super) fn take(&mut self, piece: &[u8], each: &mut dyn FnMut(Element<'_>)) -> bool {
        // From where on the piece is not yet kept anywhere.
        let mut kept = 0;
        for (at, byte) in piece.iter().enumerate() {
            let was_in_series = self.in_series;
            self.step(*byte);
            if self.in_series == was_in_series {
                continue;
            }
            let until = if was_in_series { at + 1 } else { at };
            let part = piece.get(kept..until).unwrap_or_default();
            kept = until;
            if !was_in_series {
                self.keep_around(part);
            } else if !self.hand_on(part, each) {
                return false;
            }
        }
        let rest = piece.get(kept..).unwrap_or_default();
        if self.in_series {
            self.series.extend_from_slice(rest)
        } else {
            self.keep_around(rest)
        }
        true
    }

    /// Follows strings and brackets.
    fn step(&mut self, byte: u8) {
        if self.in_string {
            match byte {
                _ if self.escaped => self.escaped = false,
                b'\\' => self.escaped = true,
                b'"' => self.in_string = false,
                _ => {}
            }
            return;
        }
        match byte {
            b'"' => self.in_string = true,
            b'{' | b'[' => {
                self.in_series |= byte == b'{' && self.open == LIST;
                self.open.push(byte);
            }
            b'}' | b']' => {
                self.open.pop();
                self.in_series &= self.open.len() > LIST.len();
            }
            _ => {}
        }
    }

    /// Between two series there is nothing but a comma, which nothing stands before any more.
    fn keep_around(&mut self, part: &[u8]) {
        let mut part = part;
        if self.after_series {
            part = part.trim_ascii_start();
            self.after_series = part.is_empty();
            part = part.strip_prefix(b",").unwrap_or(part);
        }
        self.around.extend_from_slice(part);
    }

    /// Parses the series that `end` completes; false when it can't be.
    fn hand_on(&mut self, end: &[u8], each: &mut dyn FnMut(Element<'_>)) -> bool {
        let parsed = if self.series.is_empty() {
            serde_json::from_slice(end)
        } else {
            self.series.extend_from_slice(end);
            serde_json::from_slice(&self.series)
        };
        match parsed {
            Ok(element) => each(element),
            Err(error) => self.broken = Some(error.to_string()),
        }
        self.series.clear();
        self.after_series = true;
        self.broken.is_none()
    }

    /// What was around the series.
    pub(super) fn end(self) -> Envelope {
        let mut envelope = Envelope::default();
        let mut json = serde_json::Deserializer::from_slice(&self.around);
        let end = EnvelopeSeed(&mut envelope).deserialize(&mut json).and_then(|()| json.end());
        envelope.broken = self.broken.or(end.err().map(|error| error.to_string()));
        envelope
    }
}

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
                    let told: Option<Vec<String>> = map.next_value()?;
                    keep_warnings(&mut self.0.warnings, told.unwrap_or_default());
                }
                "infos" => {
                    let told: Option<Vec<String>> = map.next_value()?;
                    let of_data = told.unwrap_or_default().into_iter();
                    let of_data = of_data.filter(|info| !info.starts_with(ABOUT_THE_QUERY)).collect();
                    keep_warnings(&mut self.0.warnings, of_data);
                }
                "isPartial" => {
                    if map.next_value::<serde_json::Value>()? != serde_json::Value::Bool(false) {
                        keep_warnings(&mut self.0.warnings, vec![PARTIAL.to_owned()]);
                    }
                }
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(())
    }
}

fn keep_warnings(kept: &mut Vec<String>, told: Vec<String>) {
    for warning in told {
        if kept.len() < MAX_WARNINGS {
            kept.push(warning.chars().take(MAX_WARNING_CHARS).collect());
        }
    }
}

/// `data`: an object with the list `result`, or null.
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
        f.write_str("the data of a query's answer")
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

impl<'de> Deserialize<'de> for Element<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Series;
        impl<'de> Visitor<'de> for Series {
            type Value = Element<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a series with its labels and samples")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Element<'de>, A::Error> {
                let mut element = Element::default();
                while let Some(Text(key)) = map.next_key()? {
                    match &*key {
                        "metric" => element.labels = map.next_value()?,
                        "values" => element.points = map.next_value::<Points>()?.0,
                        "value" => element.points = map.next_value::<Point>()?.0.into_iter().collect(),
                        _ => drop(map.next_value::<IgnoredAny>()?),
                    }
                }
                Ok(element)
            }
        }
        deserializer.deserialize_map(Series)
    }
}

impl<'de> Deserialize<'de> for Labels<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Pairs;
        impl<'de> Visitor<'de> for Pairs {
            type Value = Labels<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("labels")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Labels<'de>, A::Error> {
                let mut labels = Vec::with_capacity(USUAL_LABELS);
                while let Some((Text(name), Text(value))) = map.next_entry()? {
                    labels.push((name, value));
                }
                Ok(Labels(labels))
            }
        }
        deserializer.deserialize_map(Pairs)
    }
}

/// A string as it stands in the answer, or without its escapes.
struct Text<'a>(Cow<'a, str>);

impl<'de> Deserialize<'de> for Text<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Words;
        impl<'de> Visitor<'de> for Words {
            type Value = Text<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }

            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Borrowed(text)))
            }

            fn visit_str<E>(self, text: &str) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Owned(text.to_owned())))
            }
        }
        deserializer.deserialize_str(Words)
    }
}

/// Samples, those with a time outside the calendar left out.
struct Points(Vec<Sample>);

impl<'de> Deserialize<'de> for Points {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct List;
        impl<'de> Visitor<'de> for List {
            type Value = Points;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of samples")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Points, A::Error> {
                let mut points = Vec::with_capacity(USUAL_SAMPLES);
                while let Some(Point(point)) = list.next_element()? {
                    points.extend(point);
                }
                // All series of a fleet are here together, and a list that grew has half as much room again.
                if points.capacity() > points.len() + USUAL_SAMPLES {
                    points = points.as_slice().to_vec();
                }
                Ok(Points(points))
            }
        }
        deserializer.deserialize_seq(List)
    }
}

/// `[seconds, "value"]`; a time outside the calendar is dropped.
struct Point(Option<Sample>);

impl<'de> Deserialize<'de> for Point {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let (seconds, value): (f64, Value) = Deserialize::deserialize(deserializer)?;
        // Prometheus keeps milliseconds; rounding takes back what binary seconds lost.
        let at = Timestamp::from_millisecond((seconds * 1e3).round() as i64);
        Ok(Self(at.ok().map(|at| Sample { at, value: value.0 })))
    }
}

/// A number as Prometheus writes it, in a string: `1.5`, `NaN`, `+Inf`.
struct Value(f64);

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;
        impl Visitor<'_> for Text {
            type Value = Value;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number in a string")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Value, E> {
                text.parse().map(Value).map_err(|_| E::custom("a sample value is not a number"))
            }
        }
        deserializer.deserialize_str(Text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHOLE: &str = r#"{"status":"success","data":{"resultType":"matrix","result":[
        {"metric":{"__name__":"a","pod":"p"},"values":[[1800000000.123,"0.5"],[1800000015,"NaN"]]},
        {"metric":{"__name__":"b"},"values":[[1800000000,"+Inf"]]}]},"warnings":["store gone"],"infos":["PromQL info: hm"]}"#;

    /// The series with owned labels, and the envelope; the text comes in pieces of `size`.
    fn parse_in(text: &str, size: usize) -> (Envelope, Vec<Element<'static>>) {
        let (mut reader, mut found) = (Reader::default(), Vec::new());
        let mut keep = |Element { labels: Labels(labels), points }: Element<'_>| {
            let own = |text: Cow<'_, str>| Cow::Owned(text.into_owned());
            let labels = labels.into_iter().map(|(name, value)| (own(name), own(value))).collect();
            found.push(Element { labels: Labels(labels), points });
        };
        let _ = text.as_bytes().chunks(size).all(|piece| reader.take(piece, &mut keep));
        (reader.end(), found)
    }

    fn parse(text: &str) -> (Envelope, Vec<Element<'static>>) {
        parse_in(text, usize::MAX)
    }

    #[test]
    fn a_whole_answer_gives_series_with_true_times_and_warnings() {
        let (envelope, found) = parse(WHOLE);
        assert_eq!(envelope.broken, None);
        assert_eq!(envelope.status, "success");
        assert_eq!(envelope.warnings, ["store gone"], "a remark on the query is no gap");
        assert_eq!(found.len(), 2);
        assert_eq!(found[0].labels.get("pod"), Some("p"));
        assert_eq!(found[0].points[0].at.as_millisecond(), 1_800_000_000_123);
        assert!(found[0].points[1].value.is_nan() && found[1].points[0].value.is_infinite());
    }

    #[test]
    fn an_answer_cut_anywhere_keeps_the_whole_series_before_the_cut_and_never_panics() {
        for end in 0..WHOLE.len() {
            let (envelope, found) = parse(&WHOLE[..end]);
            assert!(envelope.broken.is_some(), "cut at {end}");
            assert!(found.len() <= 2);
        }
        let (_, found) = parse(&WHOLE[..WHOLE.len() / 2 + 60]);
        assert_eq!(found.len(), 1);
    }

    #[test]
    fn it_does_not_matter_in_which_pieces_an_answer_comes() {
        let hostile = r#"{"status":"success","infos":["PromQL info: [{"],"data":{"stats":{"a":[{"b":1}]},"result" : [
            {"metric":{"pod":"a\"}],[{\\"},"values":[[1,"2"]]} , {"metric":{},"value":[3,"4"]}]},"warnings":["}]"]}"#;
        for text in [WHOLE, hostile] {
            for size in 1..text.len() {
                let (envelope, found) = parse_in(text, size);
                assert_eq!((envelope.broken, found.len()), (None, 2), "in pieces of {size}");
                assert!(envelope.has_result && envelope.status == "success" && envelope.warnings.len() == 1);
            }
        }
        assert_eq!(parse(hostile).1[0].labels.get("pod"), Some(r#"a"}],[{\"#));
    }

    #[test]
    fn a_series_that_is_none_ends_the_reading_and_is_told() {
        let (envelope, found) = parse(&WHOLE.replace("[1800000015,\"NaN\"]", "[1800000015,\"x\"]"));
        assert!(envelope.broken.is_some_and(|why| why.contains("not a number")));
        assert!(found.is_empty());
    }

    #[test]
    fn an_error_answer_is_read_too() {
        let (envelope, found) =
            parse(r#"{"status":"error","errorType":"execution","error":"too much","data":null}"#);
        assert_eq!((envelope.status.as_str(), envelope.error.as_str()), ("error", "too much"));
        assert!(found.is_empty() && envelope.broken.is_none());
    }
}
