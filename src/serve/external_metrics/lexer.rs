//! Splits label selectors into tokens. Never fails: what is neither punctuation nor space belongs to a word, and the parser
//! validates words.

use std::fmt;

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
