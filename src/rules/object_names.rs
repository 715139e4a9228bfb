//! Which namespaces and names of objects are read. They become parts of queries, and of paths of the API server. Pure.

/// # Errors
/// Says that the text is no name of a namespace.
pub(super) fn check_namespace(text: &str) -> Result<(), String> {
    let is_part = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let is_valid = text.len() <= 63 && text.bytes().all(is_part);
    if is_valid { Ok(()) } else { Err(format!("{text:?} is no name of a namespace")) }
}

/// Whether an object of a kind that rules read can have this name. The API server allows more letters in a few kinds; in a query, these
/// could begin another part of it.
pub(super) fn is_object_name(text: &str) -> bool {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"._:-".contains(&byte);
    !text.is_empty() && text.bytes().all(is_part)
}

/// # Errors
/// Says that the text is no name of an object.
pub(super) fn check_name(text: &str) -> Result<(), String> {
    if is_object_name(text) { Ok(()) } else { Err(format!("{text:?} is no name of an object")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_ends_a_string_read_the_series_of_another_namespace() {
        for name in ["web-0", "system:node_1.example", "A"] {
            assert_eq!(check_name(name), Ok(()), "{name}");
        }
        for name in ["", "=n", "a\"} or secret{x=\"", "a|b", "a b", "a\\", "ä", "*", "a,b"] {
            assert!(check_name(name).is_err(), "{name}");
        }
        // Empty for objects without one.
        for namespace in ["", "llm", "kube-system"] {
            assert_eq!(check_namespace(namespace), Ok(()), "{namespace}");
        }
        for namespace in ["kube-system/secrets?x=", "a.b", "A", "..", "a\"b", &"n".repeat(64)] {
            assert!(check_namespace(namespace).is_err(), "{namespace}");
        }
    }
}
