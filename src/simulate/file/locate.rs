//! Finds the line of a field in a YAML text. Errors that concern several fields are found after reading, and need it too.

use std::fmt;

use serde::de::{Deserialize as _, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_saphyr::{Location, Spanned};

/// The line and column of the field at `path`, as `load.rate[1].for`, or of the last part of the path that exists.
pub(super) fn locate(text: &str, path: &str) -> Option<(u64, u64)> {
    let steps = path.split(['.', '[']).map(|step| step.trim_end_matches(']'));
    let steps: Vec<&str> = steps.filter(|step| !step.is_empty()).collect();
    let found = serde_saphyr::with_deserializer_from_str(text, |yaml| Find(&steps).deserialize(yaml));
    found.ok().flatten().map(|location| (location.line(), location.column()))
}

/// Finds the rest of a path, keys and indices, in what follows.
struct Find<'a>(&'a [&'a str]);

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
                [name, rest @ ..] if *name == key.value => {
                    // Where the rest is missing, or the value is neither mapping nor list, the key is the location.
                    found = map.next_value_seed(Find(rest)).unwrap_or_default().or(Some(key.referenced));
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
                [item, rest @ ..] if item.parse() == Ok(index) => list.next_element_seed(Find(rest))?,
                _ => list.next_element::<IgnoredAny>()?.map(|_| None),
            };
            match next {
                None => break,
                Some(location) => found = found.or(location),
            }
        }
        Ok(found)
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
        for (path, place) in [
            ("load.rate[1].for", Some((6, 10))),
            ("load.rate[0].rps", Some((4, 11))),
            ("variants[0]", Some((7, 12))),
            ("load.trace", Some((2, 1))),
            ("about.x", Some((1, 1))),
            ("no", None),
        ] {
            assert_eq!(locate(TEXT, path), place, "{path}");
        }
    }
}
