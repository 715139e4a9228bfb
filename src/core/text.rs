//! Which text may be shown: names that tenants choose end up in logs, messages and labels.

/// True for a character that a terminal, a log or a page shows as itself and in its place: no control character, no line or
/// paragraph separator, nothing that changes the direction of text.
#[must_use]
pub fn is_plain(character: char) -> bool {
    !(character.is_control()
        || matches!(character, '\u{2028}' | '\u{2029}' | '\u{200e}' | '\u{200f}' | '\u{061c}' | '\u{feff}')
        || matches!(character, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}'))
}
