//! A reference implementation of Kubernetes' label selectors: which texts `labels.Parse` accepts, token by token from a
//! list, and what requirements mean. Shares no code with the tested implementation.

/// A requirement.
#[derive(Debug, Clone)]
pub(super) enum Clause {
    Exists(String),
    Absent(String),
    Equals(String, String),
    Differs(String, String),
    In(String, Vec<String>),
    NotIn(String, Vec<String>),
    Above(String, i64),
    Below(String, i64),
}

impl Clause {
    /// Its text, with `gap` for every space.
    pub(super) fn text(&self, gap: &str, equals: &str) -> String {
        match self {
            Self::Exists(key) => key.clone(),
            Self::Absent(key) => format!("!{gap}{key}"),
            Self::Equals(key, value) => format!("{key}{gap}{equals}{gap}{value}"),
            Self::Differs(key, value) => format!("{key}{gap}!={gap}{value}"),
            Self::In(key, values) => format!("{key} in{gap}({gap}{})", values.join(&format!("{gap},"))),
            Self::NotIn(key, values) => format!("{key}\tnotin{gap}({})", values.join(&format!(",{gap}"))),
            Self::Above(key, bound) => format!("{key}{gap}>{gap}{bound}"),
            Self::Below(key, bound) => format!("{key}<{gap}{bound}"),
        }
    }

    pub(super) fn holds(&self, labels: &[(String, String)]) -> bool {
        let get = |key: &String| labels.iter().find(|(own, _)| own == key).map(|(_, value)| value);
        let number = |key: &String| get(key).and_then(|value| value.parse::<i64>().ok());
        match self {
            Self::Exists(key) => get(key).is_some(),
            Self::Absent(key) => get(key).is_none(),
            Self::Equals(key, value) => get(key) == Some(value),
            Self::Differs(key, value) => get(key) != Some(value),
            Self::In(key, values) => get(key).is_some_and(|own| values.iter().any(|value| value == own)),
            Self::NotIn(key, values) => !get(key).is_some_and(|own| values.iter().any(|value| value == own)),
            Self::Above(key, bound) => number(key).is_some_and(|own| own > *bound),
            Self::Below(key, bound) => number(key).is_some_and(|own| own < *bound),
        }
    }
}

const SPECIAL: &str = "=!(),><";

/// Whether `labels.Parse` accepts `text`, which must not contain NUL.
pub(super) fn takes(text: &str) -> bool {
    let tokens = tokens(text);
    let words: Vec<&str> = tokens.iter().map(String::as_str).collect();
    words.is_empty() || all(&words)
}

fn tokens(text: &str) -> Vec<String> {
    let mut tokens: Vec<String> = Vec::new();
    let mut glued = false;
    for c in text.chars() {
        let space = " \t\r\n".contains(c);
        if !space {
            match tokens.last_mut() {
                Some(last) if glued && joins(last, c) => last.push(c),
                _ => tokens.push(c.into()),
            }
        }
        glued = !space;
    }
    tokens
}

fn joins(last: &str, c: char) -> bool {
    match last {
        "=" | "!" => c == '=',
        _ => !last.contains(|own| SPECIAL.contains(own)) && !SPECIAL.contains(c),
    }
}

/// Requirements separated by commas; a trailing comma is an error.
fn all(tokens: &[&str]) -> bool {
    let depth = |at: usize| {
        tokens[..at].iter().filter(|one| **one == "(").count()
            != tokens[..at].iter().filter(|one| **one == ")").count()
    };
    let end = (0..tokens.len()).find(|at| tokens[*at] == "," && !depth(*at));
    match end {
        None => one(tokens),
        Some(at) => one(&tokens[..at]) && all(&tokens[at + 1..]),
    }
}

fn one(tokens: &[&str]) -> bool {
    match tokens {
        [name] | ["!", name] => key(name),
        [name, "=" | "==" | "!="] => key(name),
        [name, "=" | "==" | "!=", given] => key(name) && value(given),
        [name, ">" | "<", given] => key(name) && value(given) && given.parse::<i64>().is_ok(),
        [name, "in" | "notin", "(", between @ .., ")"] => key(name) && set(between),
        _ => false,
    }
}

/// Values separated by commas, each of which may be empty.
fn set(tokens: &[&str]) -> bool {
    tokens.split(|one| *one == ",").all(|part| match part {
        [] => true,
        [given] => value(given),
        _ => false,
    })
}

fn key(text: &str) -> bool {
    let parts: Vec<&str> = text.split('/').collect();
    match parts[..] {
        [name] => !name.is_empty() && value(name),
        [prefix, name] => subdomain(prefix) && !name.is_empty() && value(name),
        _ => false,
    }
}

fn value(text: &str) -> bool {
    let plain = text.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c));
    text.is_empty()
        || (text.len() <= 63
            && plain
            && !text.starts_with(['-', '_', '.'])
            && !text.ends_with(['-', '_', '.']))
}

fn subdomain(text: &str) -> bool {
    let part = |part: &str| {
        let plain = part.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-');
        !part.is_empty() && plain && !part.starts_with('-') && !part.ends_with('-')
    };
    text.len() <= 253 && text.split('.').all(part)
}
