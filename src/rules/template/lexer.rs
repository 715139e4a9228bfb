//! The parts of a template: text, and the words of the actions between `<<` and `>>`.

use super::value::TemplateError;

const OPEN: &str = "<<";
const CLOSE: &str = ">>";

/// A part of a template.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Part {
    Text(String),
    Action(Vec<Token>),
}

/// A word of an action.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Token {
    /// `.a.b`; without names `.` itself.
    Field(Vec<String>),
    /// `$name`, and what is read of it: `$name.a`.
    Variable(String, Vec<String>),
    Word(String),
    Text(String),
    Number(i64),
    Declare,
    Assign,
    Comma,
    Pipe,
    Open,
    Close,
}

/// Splits a template. A `-` beside a delimiter removes the white space there.
pub(super) fn parts(text: &str) -> Result<Vec<Part>, TemplateError> {
    let mut parts = Vec::new();
    let (mut rest, mut trims) = (text, false);
    while let Some(at) = rest.find(OPEN) {
        let (mut before, action) = (&rest[..at], &rest[at + OPEN.len()..]);
        if trims {
            before = before.trim_start();
        }
        let starts_trimmed = action.strip_prefix('-').filter(|rest| rest.starts_with(char::is_whitespace));
        let action = starts_trimmed.unwrap_or(action);
        if starts_trimmed.is_some() {
            before = before.trim_end();
        }
        if !before.is_empty() {
            parts.push(Part::Text(before.to_owned()));
        }
        let (tokens, after) = tokens(action)?;
        (rest, trims) = after;
        if !tokens.is_empty() {
            parts.push(Part::Action(tokens));
        }
    }
    let last = if trims { rest.trim_start() } else { rest };
    if !last.is_empty() {
        parts.push(Part::Text(last.to_owned()));
    }
    Ok(parts)
}

/// The words of an action, what follows it, and whether that loses its white space. A comment has no words.
fn tokens(action: &str) -> Result<(Vec<Token>, (&str, bool)), TemplateError> {
    let unclosed = || TemplateError::new(format!("{OPEN}{action:.40} is not closed by {CLOSE}"));
    let mut tokens = Vec::new();
    let mut rest = action;
    loop {
        let is_spaced = rest.starts_with(char::is_whitespace);
        rest = rest.trim_start();
        if let Some(after) = rest.strip_prefix(CLOSE) {
            return Ok((tokens, (after, false)));
        }
        if is_spaced && let Some(after) = rest.strip_prefix('-').and_then(|rest| rest.strip_prefix(CLOSE)) {
            return Ok((tokens, (after, true)));
        }
        if let Some(comment) = rest.strip_prefix("/*") {
            rest = comment.split_once("*/").ok_or_else(unclosed)?.1;
            continue;
        }
        let (token, after) = token(rest).ok_or_else(unclosed)??;
        if !is_spaced && matches!((tokens.last(), &token), (Some(Token::Close), Token::Field(_))) {
            return Err(TemplateError::new(
                "a field of what is in parentheses is not read here: give it to a variable",
            ));
        }
        tokens.push(token);
        rest = after;
    }
}

/// The first word of `text`; `None` at the end.
fn token(text: &str) -> Option<Result<(Token, &str), TemplateError>> {
    let first = text.chars().next()?;
    let after = &text[first.len_utf8()..];
    let simple = |token| Some(Ok((token, after)));
    match first {
        '(' => simple(Token::Open),
        ')' => simple(Token::Close),
        '|' => simple(Token::Pipe),
        ',' => simple(Token::Comma),
        '=' => simple(Token::Assign),
        ':' => after.strip_prefix('=').map(|after| Ok((Token::Declare, after))),
        '"' => Some(quoted(after)),
        '`' => {
            let (raw, after) = after.split_once('`')?;
            Some(Ok((Token::Text(raw.to_owned()), after)))
        }
        '.' | '$' => {
            let (name, after) = if first == '$' { name(after) } else { ("", text) };
            let (path, after) = path(after);
            let token =
                if first == '$' { Token::Variable(name.to_owned(), path) } else { Token::Field(path) };
            Some(Ok((token, after)))
        }
        '-' | '0'..='9' => {
            let end = after.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(after.len());
            let digits = &text[..end + first.len_utf8()];
            let number = digits.parse().map(|number| (Token::Number(number), &after[end..]));
            Some(number.map_err(|_| TemplateError::new(format!("{digits:?} is not a whole number"))))
        }
        _ => {
            let (word, after) = name(text);
            let unknown = || TemplateError::new(format!("unexpected {first:?} between {OPEN} and {CLOSE}"));
            Some(if word.is_empty() { Err(unknown()) } else { Ok((Token::Word(word.to_owned()), after)) })
        }
    }
}

/// A text up to its closing quote, with those escapes of Go that JSON has too.
fn quoted(text: &str) -> Result<(Token, &str), TemplateError> {
    let mut is_escaped = false;
    for (at, letter) in text.char_indices() {
        match letter {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            '"' => {
                let literal = format!("\"{}\"", &text[..at]);
                let value = serde_json::from_str(&literal)
                    .map_err(|error| TemplateError::new(format!("{literal} is not a text: {error}")))?;
                return Ok((Token::Text(value), &text[at + 1..]));
            }
            _ => {}
        }
    }
    Err(TemplateError::new(format!("\"{text:.40} is not closed by a quote")))
}

/// The names after dots.
fn path(mut text: &str) -> (Vec<String>, &str) {
    let mut names = Vec::new();
    while let Some(after) = text.strip_prefix('.') {
        let (found, rest) = name(after);
        text = rest;
        if found.is_empty() {
            break;
        }
        names.push(found.to_owned());
    }
    (names, text)
}

fn name(text: &str) -> (&str, &str) {
    let is_letter = |letter: char| letter.is_alphanumeric() || letter == '_';
    text.split_at(text.find(|letter| !is_letter(letter)).unwrap_or(text.len()))
}
