//! Finds the line of a field in a YAML text. Errors that concern several fields are found after reading, and need it too.

use std::fmt;

use serde::de::{Deserialize as _, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_saphyr::{Location, Spanned};

/// A step on the path to a field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::simulate) enum Step {
    /// Into a mapping.
    Key(String),
    /// Into a list.
    Item(usize),
}

impl From<&str> for Step {
    fn from(key: &str) -> Self {
        Self::Key(key.to_owned())
    }
}

impl From<usize> for Step {
    fn from(index: usize) -> Self {
        Self::Item(index)
    }
}

/// The path to a field.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(in crate::simulate) struct FieldPath(pub(in crate::simulate) Vec<Step>);

impl fmt::Display for FieldPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, step) in self.0.iter().enumerate() {
            match step {
                Step::Key(key) if index == 0 => f.write_str(key)?,
                Step::Key(key) => write!(f, ".{key}")?,
                Step::Item(item) => write!(f, "[{item}]")?,
            }
        }
        Ok(())
    }
}

/// The line and column of the field at `path`, or of the last part of the path that exists.
pub(super) fn locate(text: &str, path: &FieldPath) -> Option<(u64, u64)> {
    let found = serde_saphyr::with_deserializer_from_str(text, |yaml| Find(&path.0).deserialize(yaml));
    found.ok().flatten().map(|location| (location.line(), location.column()))
}

/// Finds the rest of a path in what follows.
struct Find<'a>(&'a [Step]);

impl<'de> DeserializeSeed<'de> for Find<'_> {
    type Value = Option<Location>;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Self::Value, D::Error> {
        match self.0 {
            [] => Spanned::<IgnoredAny>::deserialize(from).map(|found| Some(found.referenced)),
            _ => from.deserialize_any(self),
        }
    }
}

impl<'de> Visitor<'de> for Find<'_> {
    type Value = Option<Location>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a mapping or a list")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut found = None;
        while let Some(key) = map.next_key::<Spanned<String>>()? {
            match self.0 {
                [Step::Key(name), rest @ ..] if *name == key.value => {
                    // Where the rest is missing, the key is the location.
                    found = map.next_value_seed(Find(rest))?.or(Some(key.referenced));
                }
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(found)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        let mut found = None;
        for index in 0.. {
            let next = match self.0 {
                [Step::Item(item), rest @ ..] if *item == index => list.next_element_seed(Find(rest))?,
                _ => list.next_element::<IgnoredAny>()?.map(|_| None),
            };
            match next {
                None => break,
                Some(location) => found = found.or(location),
            }
        }
        Ok(found)
    }

    fn visit_bool<E>(self, _: bool) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_str<E>(self, _: &str) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
about: x
load:
  rate:
  - {rps: 1, for: 5m}
  - rps: 2
    for: 5m
variants: [{name: a}]
";

    #[test]
    fn a_field_is_found_in_blocks_and_flows() {
        for (steps, place) in [
            (vec![Step::from("load"), "rate".into(), 1.into(), "for".into()], (6, 10)),
            (vec!["load".into(), "rate".into(), 0.into(), "rps".into()], (4, 11)),
            (vec!["variants".into(), 0.into()], (7, 12)),
            (vec!["load".into(), "trace".into()], (2, 1)),
        ] {
            assert_eq!(locate(TEXT, &FieldPath(steps.clone())), Some(place), "{}", FieldPath(steps));
        }
        assert_eq!(locate(TEXT, &FieldPath(vec!["no".into()])), None);
        assert_eq!(
            FieldPath(vec!["load".into(), "rate".into(), 1.into(), "for".into()]).to_string(),
            "load.rate[1].for"
        );
    }
}
