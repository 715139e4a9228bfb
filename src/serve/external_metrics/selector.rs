//! Kubernetes label selectors, the whole grammar, from text to a predicate over labels. Pure; knows no variant.
//!
//! ```text
//! selector    = [ requirement { "," requirement } ]        (all must hold; empty matches everything)
//! requirement = key | "!" key | key ("="|"=="|"!=") value | key ("in"|"notin") "(" values ")" | key (">"|"<") integer
//! ```

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::fmt;

use super::lexer::{Lexer, Token};

/// The longest selector read, in bytes: two hundred requirements of the longest key and value fit.
pub(crate) const MAX_LENGTH: usize = 64 * 1024;

/// Most requirements of a selector, and most terms of a field selector. An HPA's has a few. Each is looked at for every
/// variant of a namespace on a thread that answers everybody: 256 × 10,000 variants are tens of milliseconds, and the 32,000 that fit
/// into the longest text would be seconds.
pub(crate) const MAX_REQUIREMENTS: usize = 256;

/// Longest prefix of a key, a DNS subdomain.
const MAX_PREFIX: usize = 253;

/// Longest name of a key, and longest value.
const MAX_NAME: usize = 63;

const NAME_RULE: &str =
    "must be at most 63 letters, digits, '-', '_' or '.', and start and end with a letter or digit";

/// A selector that cannot be understood; the texts are those that people know from other API servers.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SelectorError {
    #[error("found '{found}', expected: {expected}")]
    Unexpected { found: String, expected: &'static str },
    #[error(
        "key: Invalid value: \"{0}\": name part {NAME_RULE}, an optional prefix is a DNS subdomain and '/'"
    )]
    Key(String),
    #[error("values[0][{key}]: Invalid value: \"{value}\": {NAME_RULE}, or be empty")]
    Value { key: String, value: String },
    #[error("for 'Gt', 'Lt' operators, the value must be an integer; {key} is compared with \"{value}\"")]
    NotAnInteger { key: String, value: String },
    #[error("the label selector has {0} bytes; at most {MAX_LENGTH} are read")]
    TooLong(usize),
    #[error(
        "the label selector has more than {MAX_REQUIREMENTS} requirements, and no more are read: put the values of one key into \
         one requirement, such as variant_name in (a,b)"
    )]
    TooMany,
}

/// A predicate over labels: every requirement must hold.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Selector {
    requirements: Vec<Requirement>,
}

/// What a selector asks of one label.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Requirement {
    pub(crate) key: String,
    pub(crate) rule: Rule,
}

/// What one requirement asks of the value of its key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Rule {
    Exists,
    Absent,
    Equals(String),
    Differs(String),
    In(BTreeSet<String>),
    NotIn(BTreeSet<String>),
    Above(i64),
    Below(i64),
}

impl Selector {
    /// Reads a selector.
    pub(crate) fn parse(text: &str) -> Result<Self, SelectorError> {
        if text.len() > MAX_LENGTH {
            return Err(SelectorError::TooLong(text.len()));
        }
        let mut lexer = Lexer::new(text);
        let mut requirements = Vec::new();
        if lexer.peek() == Token::End {
            return Ok(Self { requirements });
        }
        loop {
            if requirements.len() == MAX_REQUIREMENTS {
                return Err(SelectorError::TooMany);
            }
            requirements.push(requirement(&mut lexer)?);
            match lexer.take() {
                Token::End => break,
                Token::Comma => {}
                other => return Err(unexpected(other, "',' or 'end of string'")),
            }
        }
        requirements.sort_by(by_key);
        Ok(Self { requirements })
    }

    /// The objects that meet one rule; its values may be such as no text of a selector can name.
    pub(crate) fn requiring(key: &str, rule: Rule) -> Self {
        Self { requirements: vec![Requirement { key: key.into(), rule }] }
    }

    /// What both select.
    #[must_use]
    pub(crate) fn and(mut self, other: &Self) -> Self {
        self.requirements.extend_from_slice(&other.requirements);
        self.requirements.sort_by(by_key);
        self
    }

    /// Its requirements, sorted by key.
    pub(crate) fn requirements(&self) -> impl Iterator<Item = &Requirement> {
        self.requirements.iter()
    }

    /// True when every requirement holds for the labels that `get` answers from.
    pub(crate) fn matches<'a>(&self, get: impl Fn(&str) -> Option<&'a str>) -> bool {
        // Sorted by key: each label is looked up once.
        self.requirements.chunk_by(|one, next| one.key == next.key).all(|of_key| {
            let label = of_key.first().and_then(|requirement| get(&requirement.key));
            of_key.iter().all(|requirement| requirement.rule.holds(label))
        })
    }

    /// True when it selects everything.
    pub(crate) fn is_empty(&self) -> bool {
        self.requirements.is_empty()
    }

    /// The values that it requires of one of `keys`, each once: what it names. None when it names nothing by them.
    pub(crate) fn required(&self, keys: &[&str]) -> Vec<&str> {
        let asked = self.requirements.iter().filter(|own| keys.contains(&own.key.as_str()));
        let mut named = Vec::new();
        for own in asked {
            match &own.rule {
                Rule::Equals(value) => named.push(value.as_str()),
                Rule::In(values) => named.extend(values.iter().map(String::as_str)),
                _ => {}
            }
        }
        named.retain(|value| !value.is_empty());
        named.sort_unstable();
        named.dedup();
        named
    }
}

/// Requirements on one key stay in the order they came in, as Kubernetes leaves them.
fn by_key(a: &Requirement, b: &Requirement) -> Ordering {
    a.key.cmp(&b.key)
}

impl Rule {
    /// True when no object without the label meets it.
    pub(crate) fn wants_label(&self) -> bool {
        !matches!(self, Self::Absent | Self::Differs(_) | Self::NotIn(_))
    }

    /// `!=` and `notin` hold for objects without the label, as everywhere in Kubernetes.
    pub(crate) fn holds(&self, label: Option<&str>) -> bool {
        let integer = || label.and_then(|label| label.parse::<i64>().ok());
        match self {
            Self::Exists => label.is_some(),
            Self::Absent => label.is_none(),
            Self::Equals(value) => label == Some(value),
            Self::Differs(value) => label != Some(value),
            Self::In(values) => label.is_some_and(|label| values.contains(label)),
            Self::NotIn(values) => label.is_none_or(|label| !values.contains(label)),
            Self::Above(bound) => integer().is_some_and(|label| label > *bound),
            Self::Below(bound) => integer().is_some_and(|label| label < *bound),
        }
    }
}

fn unexpected(found: Token<'_>, expected: &'static str) -> SelectorError {
    SelectorError::Unexpected { found: found.to_string(), expected }
}

fn requirement(lexer: &mut Lexer<'_>) -> Result<Requirement, SelectorError> {
    let first = lexer.take();
    let (negated, key) = if first == Token::Not { (true, lexer.take()) } else { (false, first) };
    let Token::Word(key) = key else {
        let expected = if negated { "identifier" } else { "!, identifier, or 'end of string'" };
        return Err(unexpected(key, expected));
    };
    if !is_key(key) {
        return Err(SelectorError::Key(key.into()));
    }
    let rule = match lexer.peek() {
        _ if negated => Rule::Absent,
        Token::End | Token::Comma => Rule::Exists,
        _ => operation(lexer, key)?,
    };
    Ok(Requirement { key: key.into(), rule })
}

fn operation(lexer: &mut Lexer<'_>, key: &str) -> Result<Rule, SelectorError> {
    match lexer.take() {
        Token::Equal | Token::DoubleEqual => Ok(Rule::Equals(one_value(lexer, key)?)),
        Token::NotEqual => Ok(Rule::Differs(one_value(lexer, key)?)),
        Token::Word("in") => Ok(Rule::In(values(lexer, key)?)),
        Token::Word("notin") => Ok(Rule::NotIn(values(lexer, key)?)),
        Token::Greater => Ok(Rule::Above(integer(lexer, key)?)),
        Token::Less => Ok(Rule::Below(integer(lexer, key)?)),
        other => Err(unexpected(other, "in, notin, =, ==, !=, >, <")),
    }
}

fn one_value(lexer: &mut Lexer<'_>, key: &str) -> Result<String, SelectorError> {
    if matches!(lexer.peek(), Token::End | Token::Comma) {
        return Ok(String::new());
    }
    match lexer.take() {
        Token::Word(value) => checked(key, value),
        other => Err(unexpected(other, "identifier")),
    }
}

fn integer(lexer: &mut Lexer<'_>, key: &str) -> Result<i64, SelectorError> {
    let value = one_value(lexer, key)?;
    value.parse().map_err(|_| SelectorError::NotAnInteger { key: key.into(), value })
}

/// `(a,b)`; a missing value, also between empty brackets, is the empty value.
fn values(lexer: &mut Lexer<'_>, key: &str) -> Result<BTreeSet<String>, SelectorError> {
    match lexer.take() {
        Token::Open => {}
        other => return Err(unexpected(other, "'('")),
    }
    let mut values = BTreeSet::new();
    loop {
        let value = match lexer.peek() {
            Token::Word(value) => {
                lexer.take();
                value
            }
            _ => "",
        };
        values.insert(checked(key, value)?);
        match lexer.take() {
            Token::Comma => {}
            Token::Close => return Ok(values),
            other => return Err(unexpected(other, "',' or ')'")),
        }
    }
}

fn checked(key: &str, value: &str) -> Result<String, SelectorError> {
    if value.is_empty() || is_name(value) {
        return Ok(value.into());
    }
    Err(SelectorError::Value { key: key.into(), value: value.into() })
}

fn is_key(key: &str) -> bool {
    match key.split_once('/') {
        None => is_name(key),
        Some((prefix, name)) => is_subdomain(prefix) && is_name(name),
    }
}

fn is_name(text: &str) -> bool {
    let bytes = text.as_bytes();
    let edge = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    let inner = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.".contains(byte);
    bytes.len() <= MAX_NAME && edge(bytes.first()) && edge(bytes.last()) && bytes.iter().all(inner)
}

fn is_subdomain(text: &str) -> bool {
    let plain = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let label = |label: &str| {
        let bytes = label.as_bytes();
        let edges = bytes.first().is_some_and(plain) && bytes.last().is_some_and(plain);
        edges && bytes.iter().all(|byte| plain(byte) || *byte == b'-')
    };
    text.len() <= MAX_PREFIX && text.split('.').all(label)
}

/// As Kubernetes prints it: sorted by key, no spaces after commas.
impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, requirement) in self.requirements.iter().enumerate() {
            f.write_str(if index == 0 { "" } else { "," })?;
            requirement.fmt(f)?;
        }
        Ok(())
    }
}

impl fmt::Display for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, rule } = self;
        match rule {
            Rule::Exists => write!(f, "{key}"),
            Rule::Absent => write!(f, "!{key}"),
            Rule::Equals(value) => write!(f, "{key}={value}"),
            Rule::Differs(value) => write!(f, "{key}!={value}"),
            Rule::In(values) => write!(f, "{key} in ({})", joined(values)),
            Rule::NotIn(values) => write!(f, "{key} notin ({})", joined(values)),
            Rule::Above(bound) => write!(f, "{key}>{bound}"),
            Rule::Below(bound) => write!(f, "{key}<{bound}"),
        }
    }
}

fn joined(values: &BTreeSet<String>) -> String {
    values.iter().map(String::as_str).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
#[path = "selector_tests.rs"]
mod tests;
