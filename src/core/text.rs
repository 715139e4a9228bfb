//! Untrusted text: which characters may be shown, and how text is bounded and kept on one line before it is kept, logged or shown. Names
//! that tenants choose end up in logs, messages and labels.

use std::fmt::Write;

/// Longest part of a value in a message about it: the beginning of any name is enough to find it.
const MAX_QUOTED_BYTES: usize = 64;

/// True for a character that a terminal, a log or a page shows as itself and in its place: no control character, no line or
/// paragraph separator, nothing that changes the direction of text.
#[must_use]
pub fn is_plain(character: char) -> bool {
    !(character.is_control()
        || matches!(character, '\u{2028}' | '\u{2029}' | '\u{200e}' | '\u{200f}' | '\u{061c}' | '\u{feff}')
        || matches!(character, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}'))
}

/// `text` with all characters escaped that are not [plain](is_plain), in at most `max_bytes` bytes.
#[must_use]
pub fn plain(text: &str, max_bytes: usize) -> String {
    let mut plain = String::with_capacity(text.len().min(max_bytes));
    for character in text.chars() {
        let before = plain.len();
        if is_plain(character) {
            plain.push(character);
        } else {
            // Writing to a String does not fail.
            let _ = write!(plain, "{}", character.escape_default());
        }
        if plain.len() > max_bytes {
            plain.truncate(before);
            break;
        }
    }
    plain
}

/// A value in quotes, for a message about it: escaped, and only its beginning if it is long.
#[must_use]
pub fn quoted(text: &str) -> String {
    let beginning = shortened(text, MAX_QUOTED_BYTES);
    let more = if beginning.len() < text.len() { "…" } else { "" };
    format!("{beginning:?}{more}")
}

/// The first `max` of `names` with `separator` between them, and how many more there are.
#[must_use]
pub fn first_names(names: impl ExactSizeIterator<Item = String>, max: usize, separator: &str) -> String {
    let more = names.len().saturating_sub(max);
    let text = names.take(max).collect::<Vec<_>>().join(separator);
    if more > 0 { format!("{text} and {more} more") } else { text }
}

/// The longest beginning of `text` that has at most `bytes` bytes.
#[must_use]
pub fn shortened(text: &str, bytes: usize) -> &str {
    &text[..text.floor_char_boundary(bytes)]
}

/// A sentence in lines of at most `width` characters. A longer word stays whole.
#[must_use]
pub fn wrapped(sentence: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in sentence.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forged_log_line_stays_on_its_own_line() {
        let forged = "nothere\n2026-01-01T00:00:00Z  INFO wva: FORGED\u{1b}[2K\u{202e}\u{2028}\u{85}é";
        let plain = plain(forged, 1000);
        assert!(plain.chars().all(is_plain), "{plain}");
        assert!(plain.starts_with("nothere\\n2026") && plain.ends_with('é'), "{plain}");
    }

    #[test]
    fn text_is_cut_between_characters_and_never_within_an_escape() {
        assert_eq!(plain("ééé", 5), "éé");
        assert_eq!(plain("ab\n\n", 5), "ab\\n");
        assert_eq!(plain(&"x".repeat(10_000), 256).len(), 256);
    }

    #[test]
    fn a_value_in_a_message_is_short_and_in_quotes() {
        assert_eq!(quoted("a\nb"), "\"a\\nb\"");
        assert_eq!(quoted(&"9".repeat(400)), format!("\"{}\"…", "9".repeat(MAX_QUOTED_BYTES)));
    }
}
