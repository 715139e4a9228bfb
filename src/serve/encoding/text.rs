//! Text that another server has sent: bounded and on one line before it is shown.

use wva_core::text::is_plain;

/// The beginning of `text`, at most `max_bytes`, without characters that are not [plain](is_plain).
pub(crate) fn one_line(text: &str, max_bytes: usize) -> String {
    text[..text.floor_char_boundary(max_bytes)].chars().filter(|letter| is_plain(*letter)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shown_is_one_short_line() {
        assert_eq!(one_line("a\nb\u{1b}[2K\u{202e}\u{2028}c", 100), "ab[2Kc");
        assert_eq!(one_line("ééé", 5), "éé");
    }
}
