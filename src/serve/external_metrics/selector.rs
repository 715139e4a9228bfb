//! Kubernetes label selectors, with their whole grammar. Pure; knows no variant.
//!
//! ```text
//! selector    = [ requirement { "," requirement } ]        (all must hold; empty matches everything)
//! requirement = key | "!" key | key ("="|"=="|"!=") value | key ("in"|"notin") "(" values ")" | key (">"|"<") integer
//! ```

use std::collections::BTreeSet;
use std::fmt;

use crate::serve::paths::MAX_NAME_BYTES;

/// The longest selector, in bytes: two hundred requirements with the longest key and value fit.
pub(crate) const MAX_SELECTOR_BYTES: usize = 64 * 1024;

/// Requirements of a label selector, and terms of a field selector. That of an HPA has a few. Each is checked for every variant
/// of a namespace, on a thread that answers all clients: 256 × 10,000 variants take tens of milliseconds; the 32,000
/// requirements that fit into the longest text would take seconds.
pub(crate) const MAX_REQUIREMENTS: usize = 256;

/// The longest name of a label's key, and its longest value, in bytes. The prefix of a key is a name of an object.
const MAX_LABEL_BYTES: usize = 63;

const NAME_RULE: &str =
    "must be at most 63 letters, digits, '-', '_' or '.', and start and end with a letter or digit";

/// An invalid selector; the messages are those of other API servers.
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
    #[error("the label selector has {0} bytes; at most {MAX_SELECTOR_BYTES} are allowed")]
    TooLong(usize),
    #[error(
        "the label selector has more than {MAX_REQUIREMENTS} requirements, which is the limit: put the values of one key into one \
         requirement, such as variant_name in (a,b)"
    )]
    TooMany,
}

/// A predicate over labels: every requirement must hold.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct LabelSelector {
    requirements: Vec<Requirement>,
}

/// A requirement on one label.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Requirement {
    key: String,
    operator: Operator,
}

/// A borrowed requirement.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RequirementRef<'a> {
    pub(crate) key: &'a str,
    pub(crate) operator: &'a Operator,
}

/// The condition on the value of a label.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Operator {
    Exists,
    DoesNotExist,
    Equals(String),
    NotEquals(String),
    In(BTreeSet<String>),
    NotIn(BTreeSet<String>),
    GreaterThan(i64),
    LessThan(i64),
}

impl LabelSelector {
    /// Parses a selector.
    pub(crate) fn parse(text: &str) -> Result<Self, SelectorError> {
        if text.len() > MAX_SELECTOR_BYTES {
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
            requirements.push(parse_requirement(&mut lexer)?);
            match lexer.take() {
                Token::End => break,
                Token::Comma => {}
                token => return Err(unexpected(token, "',' or 'end of string'")),
            }
        }
        // Stable: requirements on one key keep their order, as in Kubernetes.
        requirements.sort_by(|left, right| left.key.cmp(&right.key));
        Ok(Self { requirements })
    }

    /// The requirements, sorted by key.
    pub(crate) fn requirements(&self) -> impl Iterator<Item = RequirementRef<'_>> {
        self.requirements.iter().map(|Requirement { key, operator }| RequirementRef { key, operator })
    }

    /// True when every requirement holds for the labels that `get` looks up.
    pub(crate) fn matches<'a>(&self, get: impl Fn(&str) -> Option<&'a str>) -> bool {
        // Sorted by key, so that each label is looked up once.
        self.requirements.chunk_by(|left, right| left.key == right.key).all(|same_key| {
            let label = same_key.first().and_then(|requirement| get(&requirement.key));
            same_key.iter().all(|requirement| requirement.operator.holds(label))
        })
    }

    /// True when everything matches.
    pub(crate) fn is_empty(&self) -> bool {
        self.requirements.is_empty()
    }
}

impl Operator {
    /// True when an object without the label cannot match.
    pub(crate) fn needs_label(&self) -> bool {
        !matches!(self, Self::DoesNotExist | Self::NotEquals(_) | Self::NotIn(_))
    }

    /// `!=` and `notin` hold for objects without the label, as everywhere in Kubernetes.
    pub(crate) fn holds(&self, label: Option<&str>) -> bool {
        let integer = || label.and_then(|label| label.parse::<i64>().ok());
        match self {
            Self::Exists => label.is_some(),
            Self::DoesNotExist => label.is_none(),
            Self::Equals(value) => label == Some(value),
            Self::NotEquals(value) => label != Some(value),
            Self::In(values) => label.is_some_and(|label| values.contains(label)),
            Self::NotIn(values) => label.is_none_or(|label| !values.contains(label)),
            Self::GreaterThan(bound) => integer().is_some_and(|label| label > *bound),
            Self::LessThan(bound) => integer().is_some_and(|label| label < *bound),
        }
    }
}

fn unexpected(found: Token<'_>, expected: &'static str) -> SelectorError {
    SelectorError::Unexpected { found: found.to_string(), expected }
}

fn parse_requirement(lexer: &mut Lexer<'_>) -> Result<Requirement, SelectorError> {
    let first = lexer.take();
    let is_negated = first == Token::Not;
    let key = if is_negated { lexer.take() } else { first };
    let Token::Word(key) = key else {
        let expected = if is_negated { "identifier" } else { "!, identifier, or 'end of string'" };
        return Err(unexpected(key, expected));
    };
    if !is_key(key) {
        return Err(SelectorError::Key(key.into()));
    }
    let operator = match lexer.peek() {
        _ if is_negated => Operator::DoesNotExist,
        Token::End | Token::Comma => Operator::Exists,
        _ => parse_operator(lexer, key)?,
    };
    Ok(Requirement { key: key.into(), operator })
}

fn parse_operator(lexer: &mut Lexer<'_>, key: &str) -> Result<Operator, SelectorError> {
    match lexer.take() {
        Token::Equal | Token::DoubleEqual => Ok(Operator::Equals(parse_value(lexer, key)?)),
        Token::NotEqual => Ok(Operator::NotEquals(parse_value(lexer, key)?)),
        Token::Word("in") => Ok(Operator::In(parse_values(lexer, key)?)),
        Token::Word("notin") => Ok(Operator::NotIn(parse_values(lexer, key)?)),
        Token::Greater => Ok(Operator::GreaterThan(parse_integer(lexer, key)?)),
        Token::Less => Ok(Operator::LessThan(parse_integer(lexer, key)?)),
        token => Err(unexpected(token, "in, notin, =, ==, !=, >, <")),
    }
}

fn parse_value(lexer: &mut Lexer<'_>, key: &str) -> Result<String, SelectorError> {
    if matches!(lexer.peek(), Token::End | Token::Comma) {
        return Ok(String::new());
    }
    match lexer.take() {
        Token::Word(value) => validate(key, value),
        token => Err(unexpected(token, "identifier")),
    }
}

fn parse_integer(lexer: &mut Lexer<'_>, key: &str) -> Result<i64, SelectorError> {
    let value = parse_value(lexer, key)?;
    value.parse().map_err(|_| SelectorError::NotAnInteger { key: key.into(), value })
}

/// `(a,b)`; a missing value, also between empty brackets, is the empty value.
fn parse_values(lexer: &mut Lexer<'_>, key: &str) -> Result<BTreeSet<String>, SelectorError> {
    match lexer.take() {
        Token::Open => {}
        token => return Err(unexpected(token, "'('")),
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
        values.insert(validate(key, value)?);
        match lexer.take() {
            Token::Comma => {}
            Token::Close => return Ok(values),
            token => return Err(unexpected(token, "',' or ')'")),
        }
    }
}

fn validate(key: &str, value: &str) -> Result<String, SelectorError> {
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
    let is_edge = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    let is_inner = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.".contains(byte);
    bytes.len() <= MAX_LABEL_BYTES
        && is_edge(bytes.first())
        && is_edge(bytes.last())
        && bytes.iter().all(is_inner)
}

fn is_subdomain(text: &str) -> bool {
    let is_alphanumeric = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let is_label = |label: &str| {
        let bytes = label.as_bytes();
        let has_edges =
            bytes.first().is_some_and(is_alphanumeric) && bytes.last().is_some_and(is_alphanumeric);
        has_edges && bytes.iter().all(|byte| is_alphanumeric(byte) || *byte == b'-')
    };
    text.len() <= MAX_NAME_BYTES && text.split('.').all(is_label)
}

/// As Kubernetes prints it: sorted by key, no spaces after commas.
impl fmt::Display for LabelSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, requirement) in self.requirements().enumerate() {
            f.write_str(if index == 0 { "" } else { "," })?;
            requirement.fmt(f)?;
        }
        Ok(())
    }
}

impl fmt::Display for RequirementRef<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, operator } = self;
        match operator {
            Operator::Exists => write!(f, "{key}"),
            Operator::DoesNotExist => write!(f, "!{key}"),
            Operator::Equals(value) => write!(f, "{key}={value}"),
            Operator::NotEquals(value) => write!(f, "{key}!={value}"),
            Operator::In(values) => write!(f, "{key} in ({})", joined(values)),
            Operator::NotIn(values) => write!(f, "{key} notin ({})", joined(values)),
            Operator::GreaterThan(bound) => write!(f, "{key}>{bound}"),
            Operator::LessThan(bound) => write!(f, "{key}<{bound}"),
        }
    }
}

fn joined(values: &BTreeSet<String>) -> String {
    values.iter().map(String::as_str).collect::<Vec<_>>().join(",")
}

/// A token of a label selector.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Token<'a> {
    Word(&'a str),
    Not,
    Equal,
    DoubleEqual,
    NotEqual,
    Greater,
    Less,
    Open,
    Close,
    Comma,
    End,
}

impl fmt::Display for Token<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Word(word) => word,
            Self::Not => "!",
            Self::Equal => "=",
            Self::DoubleEqual => "==",
            Self::NotEqual => "!=",
            Self::Greater => ">",
            Self::Less => "<",
            Self::Open => "(",
            Self::Close => ")",
            Self::Comma => ",",
            Self::End => "",
        })
    }
}

/// Returns the tokens of a text, one at a time.
#[derive(Debug, Clone)]
pub(crate) struct Lexer<'a> {
    rest: &'a str,
}

impl<'a> Lexer<'a> {
    pub(crate) const fn new(text: &'a str) -> Self {
        Self { rest: text }
    }

    /// The next token, without consuming it.
    pub(crate) fn peek(&self) -> Token<'a> {
        self.clone().take()
    }

    /// Consumes the next token; after the last one, always [`Token::End`].
    pub(crate) fn take(&mut self) -> Token<'a> {
        self.rest = self.rest.trim_start_matches([' ', '\t', '\r', '\n']);
        let (token, length) = self.punctuation().unwrap_or_else(|| self.word());
        self.rest = &self.rest[length..];
        token
    }

    fn punctuation(&self) -> Option<(Token<'a>, usize)> {
        let mut bytes = self.rest.bytes();
        Some(match (bytes.next()?, bytes.next()) {
            (b'=', Some(b'=')) => (Token::DoubleEqual, 2),
            (b'!', Some(b'=')) => (Token::NotEqual, 2),
            (b'=', _) => (Token::Equal, 1),
            (b'!', _) => (Token::Not, 1),
            (b'>', _) => (Token::Greater, 1),
            (b'<', _) => (Token::Less, 1),
            (b'(', _) => (Token::Open, 1),
            (b')', _) => (Token::Close, 1),
            (b',', _) => (Token::Comma, 1),
            _ => return None,
        })
    }

    fn word(&self) -> (Token<'a>, usize) {
        let is_end = |letter: char| {
            matches!(letter, '=' | '!' | '>' | '<' | '(' | ')' | ',' | ' ' | '\t' | '\r' | '\n')
        };
        let length = self.rest.find(is_end).unwrap_or(self.rest.len());
        if length == 0 { (Token::End, 0) } else { (Token::Word(&self.rest[..length]), length) }
    }
}

#[cfg(test)]
mod tests;
