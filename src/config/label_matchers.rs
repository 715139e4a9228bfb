//! Parses label matchers as they are between the braces of a PromQL selector: `cluster="eu-1",env!~"dev.*"`.

use std::fmt::Write as _;

/// The operators, longest first.
const OPERATORS: [&str; 4] = ["=~", "!~", "!=", "="];

/// Parses a list of label matchers and returns it in one form: double quotes, no white space. Empty text is an empty list.
///
/// # Errors
/// What is wrong, and where. Regular expressions are left to Prometheus to check.
pub(super) fn label_matchers(text: &str) -> Result<String, String> {
    let mut matchers = String::new();
    let mut rest = text.trim();
    while !rest.is_empty() {
        let (label, after_label) = split_label(rest)?;
        check_label(label)?;
        let after_label = after_label.trim_start();
        let operator = OPERATORS.into_iter().find(|operator| after_label.starts_with(operator));
        let operator = operator.ok_or_else(|| format!("after {label} must be one of = != =~ !~"))?;
        let (value, after_value) = split_value(after_label.get(operator.len()..).unwrap_or_default(), label)?;
        let comma = if matchers.is_empty() { "" } else { "," };
        // Writing to a string cannot fail.
        let _ = write!(matchers, "{comma}{label}{operator}\"{}\"", escape(&value));
        rest = after_value.trim_start();
        rest = match rest.strip_prefix(',') {
            Some(next) => next.trim_start(),
            None if rest.is_empty() => rest,
            None => return Err(format!("after the value of {label} must be a comma or the end")),
        };
    }
    Ok(matchers)
}

/// The label at the start of `text`, and the rest.
fn split_label(text: &str) -> Result<(&str, &str), String> {
    let is_part = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    let end = text.find(|letter| !is_part(letter)).unwrap_or(text.len());
    let starts_well = text.starts_with(|letter: char| letter.is_ascii_alphabetic() || letter == '_');
    if !starts_well {
        return Err("must start with the name of a label, as in cluster=\"eu-1\"".into());
    }
    Ok(text.split_at(end))
}

/// Refuses the labels that every query sets itself.
fn check_label(label: &str) -> Result<(), String> {
    match label {
        "__name__" => Err("cannot match __name__: the queries choose the metrics".into()),
        "namespace" => Err("cannot match namespace: use --query-namespace".into()),
        _ => Ok(()),
    }
}

/// The quoted value at the start of `text`, and the rest. Escapes as in PromQL, between backticks none.
fn split_value<'t>(text: &'t str, label: &str) -> Result<(String, &'t str), String> {
    let text = text.trim_start();
    let quote = text.chars().next().filter(|quote| matches!(quote, '"' | '\'' | '`'));
    let quote =
        quote.ok_or_else(|| format!("the value of {label} must be in quotes, as in {label}=\"x\""))?;
    let mut value = String::new();
    let mut letters = text.char_indices().skip(1);
    while let Some((at, letter)) = letters.next() {
        match letter {
            _ if letter == quote => return Ok((value, text.get(at + 1..).unwrap_or_default())),
            '\\' if quote != '`' => {
                let escaped = letters.next().map(|(_, escaped)| escaped);
                let escaped = escaped.filter(|escaped| matches!(escaped, '\\' | '"' | '\''));
                value.push(escaped.ok_or_else(|| {
                    format!(
                        "the value of {label} has an unknown escape; write a backslash as \\\\, or use backticks"
                    )
                })?);
            }
            _ if letter.is_control() => return Err(format!("the value of {label} has a control character")),
            _ => value.push(letter),
        }
    }
    Err(format!("the value of {label} has no closing quote"))
}

/// The text of a value between double quotes.
fn escape(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Text of which many of the parts have a meaning in PromQL.
    fn fragments() -> impl Strategy<Value = String> {
        let parts = [
            "cluster", "=", "!=", "=~", "!~", "\"", "'", "`", "\\", ",", "}", "{", "[5m]", "#", "\n", " or ",
            "é", "\u{2028}", "\u{202e}", "a=\"x\"", "b=~'y.*'",
        ];
        prop::collection::vec(prop::sample::select(parts.to_vec()), 0..12).prop_map(|parts| parts.concat())
    }

    /// What is outside of double quotes; `None` if the last one is not closed.
    fn outside_quotes(text: &str) -> Option<String> {
        let (mut outside, mut is_quoted, mut letters) = (String::new(), false, text.chars());
        while let Some(letter) = letters.next() {
            match letter {
                '"' => is_quoted = !is_quoted,
                '\\' if is_quoted => {
                    letters.next();
                }
                _ if is_quoted => {}
                _ => outside.push(letter),
            }
        }
        (!is_quoted).then_some(outside)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(3000))]

        #[test]
        fn no_matcher_reaches_out_of_its_quotes_or_changes_when_read_again(text in fragments()) {
            if let Ok(matchers) = label_matchers(&text) {
                let outside = outside_quotes(&matchers);
                let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "_=!~,".contains(letter);
                prop_assert!(outside.is_some_and(|outside| outside.chars().all(is_plain)), "{matchers}");
                prop_assert_eq!(label_matchers(&matchers), Ok(matchers));
            }
        }
    }

    #[test]
    fn matchers_are_read_as_promql_has_them_and_written_in_one_form() {
        for (text, expected) in [
            (r#"cluster="eu-1""#, r#"cluster="eu-1""#),
            (r#" cluster = 'eu-1' , env !~ "dev.*", "#, r#"cluster="eu-1",env!~"dev.*""#),
            (r"zone=~`a\.b`", r#"zone=~"a\\.b""#),
            (r#"a!="x\"y\\z,}{""#, r#"a!="x\"y\\z,}{""#),
            (r#"a="",b=~'it\'s'"#, r#"a="",b=~"it's""#),
            ("", ""),
        ] {
            assert_eq!(label_matchers(text).as_deref(), Ok(expected), "{text}");
        }
    }

    #[test]
    fn anything_else_is_refused_with_what_is_wrong() {
        for (text, cause) in [
            ("cluster", "one of = != =~ !~"),
            ("cluster==\"x\"", "in quotes"),
            ("cluster=eu-1", "in quotes"),
            ("cluster=\"eu-1", "no closing quote"),
            ("cluster=\"a\" env=\"b\"", "a comma or the end"),
            ("cluster=\"x\"} or vector(1", "a comma or the end"),
            ("1a=\"x\"", "the name of a label"),
            ("{cluster=\"x\"}", "the name of a label"),
            ("a=\"\\d\"", "unknown escape"),
            ("a=\"x\ny\"", "control character"),
            ("__name__=\"up\"", "the queries choose"),
            ("cluster=\"x\",namespace=\"y\"", "--query-namespace"),
        ] {
            let error = label_matchers(text).unwrap_err();
            assert!(error.contains(cause), "{text}: {error}");
        }
    }
}
