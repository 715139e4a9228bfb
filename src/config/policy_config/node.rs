//! One YAML document as it is written: any text gives a value or an error, and a value can be shown to its author.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::options::NonFiniteFloatPolicy;

/// Deeper documents than this are refused: the deepest field has four levels.
const MAX_DEPTH: usize = 16;
/// Documents of more values than this are refused, aliases counted as often as they are used: an entry has some dozens.
const MAX_NODES: usize = 20_000;
/// What is shown of a value, and of what the parser says of a document, in letters.
const SHOWN: usize = 60;
const SAID: usize = 200;

/// A value.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Node {
    /// Nothing, which is the same as a field that is not there.
    Null,
    Bool(bool),
    Number(f64),
    Text(String),
    List(Vec<Node>),
    Map(Vec<(String, Node)>),
}

/// Reads one document.
///
/// # Errors
/// Where and why it is not one.
pub(super) fn read(text: &str) -> Result<Node, String> {
    let budget = serde_saphyr::budget! {
        max_depth: MAX_DEPTH,
        max_nodes: MAX_NODES,
        max_events: 4 * MAX_NODES,
        max_documents: 1,
    };
    let options = serde_saphyr::options! {
        budget: budget,
        with_snippet: false,
        // A model may be called n or off.
        strict_booleans: true,
        // Shown as written, and then refused as no number.
        non_finite_float_policy: NonFiniteFloatPolicy::AsString,
    };
    serde_saphyr::from_str_with_options(text, options).map_err(|error| short(&error.to_string(), SAID))
}

/// At most `most` letters of a text, in one line.
pub(super) fn short(text: &str, most: usize) -> String {
    let letters = || text.chars().map(|one| if one.is_control() { ' ' } else { one });
    if letters().nth(most).is_none() {
        letters().collect()
    } else {
        letters().take(most).chain(['…']).collect()
    }
}

impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null => f.write_str("nothing"),
            Self::Bool(value) => value.fmt(f),
            Self::Number(value) => value.fmt(f),
            Self::Text(text) if text.chars().count() > SHOWN => {
                write!(f, "{:?}…", text.chars().take(SHOWN).collect::<String>())
            }
            Self::Text(text) => write!(f, "{text:?}"),
            Self::List(list) => write!(f, "a list of {}", list.len()),
            Self::Map(map) => write!(f, "a mapping of {}", map.len()),
        }
    }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AnyValue)
    }
}

struct AnyValue;

impl<'de> Visitor<'de> for AnyValue {
    type Value = Node;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<Node, E> {
        Ok(Node::Null)
    }

    fn visit_none<E>(self) -> Result<Node, E> {
        Ok(Node::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Node, D::Error> {
        Node::deserialize(deserializer)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Node, E> {
        Ok(Node::Bool(value))
    }

    #[expect(clippy::cast_precision_loss, reason = "every range ends long before whole numbers lose a digit")]
    fn visit_i64<E>(self, value: i64) -> Result<Node, E> {
        Ok(Node::Number(value as f64))
    }

    #[expect(clippy::cast_precision_loss, reason = "every range ends long before whole numbers lose a digit")]
    fn visit_u64<E>(self, value: u64) -> Result<Node, E> {
        Ok(Node::Number(value as f64))
    }

    #[expect(clippy::cast_precision_loss, reason = "every range ends long before whole numbers lose a digit")]
    fn visit_i128<E>(self, value: i128) -> Result<Node, E> {
        Ok(Node::Number(value as f64))
    }

    #[expect(clippy::cast_precision_loss, reason = "every range ends long before whole numbers lose a digit")]
    fn visit_u128<E>(self, value: u128) -> Result<Node, E> {
        Ok(Node::Number(value as f64))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Node, E> {
        Ok(Node::Number(value))
    }

    fn visit_str<E>(self, text: &str) -> Result<Node, E> {
        Ok(Node::Text(text.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Node, A::Error> {
        let mut nodes = Vec::new();
        while let Some(node) = list.next_element()? {
            nodes.push(node);
        }
        Ok(Node::List(nodes))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Node, A::Error> {
        let mut nodes = Vec::new();
        while let Some(entry) = map.next_entry()? {
            nodes.push(entry);
        }
        Ok(Node::Map(nodes))
    }
}
