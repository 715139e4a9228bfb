//! Values in templates, and errors.

use std::collections::BTreeMap;
use std::fmt;

/// A template that is wrong, or that cannot be filled in.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(in crate::rules) struct TemplateError(String);

impl TemplateError {
    pub(super) fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }
}

/// A value in a template.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::rules) enum Value {
    /// What a key of a map has that is not there.
    Missing,
    Bool(bool),
    Number(i64),
    Text(String),
    List(Vec<Self>),
    Map(BTreeMap<String, Self>),
    /// The fields of a structure: another one is an error.
    Fields(BTreeMap<&'static str, Self>),
}

impl Value {
    /// Whether `if` holds.
    pub(super) fn is_true(&self) -> bool {
        match self {
            Self::Missing => false,
            Self::Bool(value) => *value,
            Self::Number(number) => *number != 0,
            Self::Text(text) => !text.is_empty(),
            Self::List(list) => !list.is_empty(),
            Self::Map(map) => !map.is_empty(),
            Self::Fields(_) => true,
        }
    }

    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::Missing => "a missing value",
            Self::Bool(_) => "a truth value",
            Self::Number(_) => "a number",
            Self::Text(_) => "a text",
            Self::List(_) => "a list",
            Self::Map(_) => "a map",
            Self::Fields(_) => "the fields of the rule",
        }
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

/// As Go prints it.
impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing => f.write_str("<no value>"),
            Self::Bool(value) => write!(f, "{value}"),
            Self::Number(number) => write!(f, "{number}"),
            Self::Text(text) => f.write_str(text),
            Self::List(list) => {
                let texts: Vec<_> = list.iter().map(ToString::to_string).collect();
                write!(f, "[{}]", texts.join(" "))
            }
            Self::Map(map) => {
                let texts: Vec<_> = map.iter().map(|(key, value)| format!("{key}:{value}")).collect();
                write!(f, "map[{}]", texts.join(" "))
            }
            Self::Fields(fields) => {
                let texts: Vec<_> = fields.values().map(ToString::to_string).collect();
                write!(f, "{{{}}}", texts.join(" "))
            }
        }
    }
}
