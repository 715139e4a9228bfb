//! The JSON of a query's answer, read as it streams in: every whole series is handed on at once, so that an answer that
//! breaks off still gives what came before. Not here: HTTP, and what labels mean.

use std::fmt;
use std::io;

use jiff::Timestamp;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// Warnings kept of one answer, and characters of each: Thanos sends one for every store it couldn't reach.
const MAX_WARNINGS: usize = 8;
const MAX_WARNING_CHARS: usize = 300;

/// The labels of a series.
#[derive(Debug, Clone, Default)]
pub(super) struct Labels(pub(super) Vec<(String, String)>);

impl Labels {
    /// The value of a label; `None` when it is absent or empty, which Prometheus takes for the same.
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(key, value)| key == name && !value.is_empty()).map(|(_, value)| value.as_str())
    }
}

/// One series of an answer, as it came: values may be anything.
#[derive(Debug, Default)]
pub(super) struct Element {
    pub(super) labels: Labels,
    pub(super) points: Vec<(Timestamp, f64)>,
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
    /// Warnings, bounded. Infos are remarks on the query, not on what is missing.
    pub(super) warnings: Vec<String>,
    /// Why the answer could not be read to its end.
    pub(super) broken: Option<String>,
}

/// Reads an answer, handing on its series one by one.
pub(super) fn read(body: impl io::Read, each: &mut dyn FnMut(Element)) -> Envelope {
    let mut envelope = Envelope::default();
    let mut json = serde_json::Deserializer::from_reader(body);
    let seed = EnvelopeSeed { envelope: &mut envelope, each };
    let end = seed.deserialize(&mut json).and_then(|()| json.end());
    if let Err(error) = end {
        envelope.broken = Some(error.to_string());
    }
    envelope
}

struct EnvelopeSeed<'a> {
    envelope: &'a mut Envelope,
    each: &'a mut dyn FnMut(Element),
}

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
                "status" => self.envelope.status = map.next_value()?,
                "errorType" => self.envelope.error_type = map.next_value()?,
                "error" => self.envelope.error = map.next_value()?,
                "data" => {
                    let has_result = &mut self.envelope.has_result;
                    map.next_value_seed(DataSeed { has_result, each: &mut *self.each })?;
                }
                "warnings" => {
                    let told: Option<Vec<String>> = map.next_value()?;
                    keep_warnings(&mut self.envelope.warnings, told.unwrap_or_default());
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
struct DataSeed<'a> {
    has_result: &'a mut bool,
    each: &'a mut dyn FnMut(Element),
}

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
            match key.as_str() {
                "result" => {
                    *self.has_result = true;
                    map.next_value_seed(ResultSeed { each: &mut *self.each })?;
                }
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(())
    }
}

struct ResultSeed<'a> {
    each: &'a mut dyn FnMut(Element),
}

impl<'de> DeserializeSeed<'de> for ResultSeed<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for ResultSeed<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of series")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        while let Some(element) = list.next_element_seed(ElementSeed)? {
            (self.each)(element);
        }
        Ok(())
    }
}

struct ElementSeed;

impl<'de> DeserializeSeed<'de> for ElementSeed {
    type Value = Element;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Element, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for ElementSeed {
    type Value = Element;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a series with its labels and samples")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Element, A::Error> {
        let mut element = Element::default();
        while let Some(key) = map.next_key::<String>()? {
            match key.as_str() {
                "metric" => element.labels = map.next_value_seed(LabelsSeed)?,
                "values" => {
                    element.points = map.next_value::<Vec<Point>>()?.into_iter().flat_map(|p| p.0).collect()
                }
                "value" => element.points = map.next_value::<Point>()?.0.into_iter().collect(),
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(element)
    }
}

struct LabelsSeed;

impl<'de> DeserializeSeed<'de> for LabelsSeed {
    type Value = Labels;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Labels, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for LabelsSeed {
    type Value = Labels;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("labels")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Labels, A::Error> {
        let mut labels = Vec::new();
        while let Some(label) = map.next_entry()? {
            labels.push(label);
        }
        Ok(Labels(labels))
    }
}

/// `[seconds, "value"]`; a time outside the calendar is dropped.
struct Point(Option<(Timestamp, f64)>);

impl<'de> serde::Deserialize<'de> for Point {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let (seconds, value): (f64, Value) = serde::Deserialize::deserialize(deserializer)?;
        // Prometheus keeps milliseconds; rounding takes back what binary seconds lost.
        let at = Timestamp::from_millisecond((seconds * 1e3).round() as i64);
        Ok(Self(at.ok().map(|at| (at, value.0))))
    }
}

/// A number as Prometheus writes it, in a string: `1.5`, `NaN`, `+Inf`.
struct Value(f64);

impl<'de> serde::Deserialize<'de> for Value {
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
        {"metric":{"__name__":"b"},"values":[[1800000000,"+Inf"]]}]},"warnings":["store gone"],"infos":["hm"]}"#;

    fn parse(text: &str) -> (Envelope, Vec<Element>) {
        let mut found = Vec::new();
        let envelope = read(text.as_bytes(), &mut |element| found.push(element));
        (envelope, found)
    }

    #[test]
    fn a_whole_answer_gives_series_with_true_times_and_warnings() {
        let (envelope, found) = parse(WHOLE);
        assert_eq!(envelope.broken, None);
        assert_eq!(envelope.status, "success");
        assert_eq!(envelope.warnings, ["store gone"], "infos are not gaps");
        assert_eq!(found.len(), 2);
        assert_eq!(found[0].labels.get("pod"), Some("p"));
        assert_eq!(found[0].points[0].0.as_millisecond(), 1_800_000_000_123);
        assert!(found[0].points[1].1.is_nan() && found[1].points[0].1.is_infinite());
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
    fn an_error_answer_is_read_too() {
        let (envelope, found) =
            parse(r#"{"status":"error","errorType":"execution","error":"too much","data":null}"#);
        assert_eq!((envelope.status.as_str(), envelope.error.as_str()), ("error", "too much"));
        assert!(found.is_empty() && envelope.broken.is_none());
    }
}
