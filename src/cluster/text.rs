//! Text that somebody else wrote: bounded, and on one line, before it is kept, logged or told.

use std::fmt::Write;

/// What is shown of a value in a message about it, in bytes: the beginning of any name is enough to find it.
const MAX_SHOWN_BYTES: usize = 64;

/// True for a character that a terminal, a log or a page shows as itself, on the same line and in its place: no control
/// character, no line or paragraph separator, nothing that changes the direction of what follows.
pub(crate) fn is_plain(letter: char) -> bool {
    !(letter.is_control()
        || matches!(letter, '\u{2028}' | '\u{2029}' | '\u{200e}' | '\u{200f}' | '\u{061c}' | '\u{feff}')
        || matches!(letter, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}'))
}

/// `text` with what is not plain escaped, in at most `max_bytes` bytes.
pub(crate) fn plain(text: &str, max_bytes: usize) -> String {
    let mut plain = String::with_capacity(text.len().min(max_bytes));
    for letter in text.chars() {
        let before = plain.len();
        if is_plain(letter) {
            plain.push(letter);
        } else {
            // Writing to a String does not fail.
            let _ = write!(plain, "{}", letter.escape_default());
        }
        if plain.len() > max_bytes {
            plain.truncate(before);
            break;
        }
    }
    plain
}

/// A value in quotes, for a message about it: escaped, and only its beginning when it is long.
pub(crate) fn quoted(text: &str) -> String {
    let beginning = shortened(text, MAX_SHOWN_BYTES);
    let more = if beginning.len() < text.len() { "…" } else { "" };
    format!("{beginning:?}{more}")
}

/// The longest beginning of `text` that has at most `bytes` bytes.
pub(crate) fn shortened(text: &str, bytes: usize) -> &str {
    &text[..text.floor_char_boundary(bytes)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_somebody_forged_stays_in_its_own_line() {
        let forged = "nothere\n2026-01-01T00:00:00Z  INFO wva: FORGED\u{1b}[2K\u{202e}\u{2028}\u{85}é";
        let plain = plain(forged, 1000);
        assert!(plain.chars().all(is_plain), "{plain}");
        assert!(plain.starts_with("nothere\\n2026") && plain.ends_with('é'), "{plain}");
    }

    #[test]
    fn a_text_is_cut_between_letters_and_never_within_an_escape() {
        assert_eq!(plain("ééé", 5), "éé");
        assert_eq!(plain("ab\n\n", 5), "ab\\n");
        assert_eq!(plain(&"x".repeat(10_000), 256).len(), 256);
    }

    #[test]
    fn a_value_in_a_message_is_short_and_in_quotes() {
        assert_eq!(quoted("a\nb"), "\"a\\nb\"");
        assert_eq!(quoted(&"9".repeat(400)), format!("\"{}\"…", "9".repeat(MAX_SHOWN_BYTES)));
    }
}
