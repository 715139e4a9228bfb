//! Parsers of flag values.

use std::path::PathBuf;

use clap::builder::{OsStringValueParser, TypedValueParser};

/// Parses a path, which may be empty, because manifests set variables to the empty string.
pub(super) fn path_or_empty() -> impl TypedValueParser<Value = PathBuf> {
    OsStringValueParser::new().map(PathBuf::from)
}

/// Parses a namespace, or `namespace/job`.
pub(super) fn collector(text: &str) -> Result<String, String> {
    let (namespace, job) = match text.split_once('/') {
        Some((namespace, job)) => (namespace, Some(job)),
        None => (text, None),
    };
    let is_name =
        namespace.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-');
    if namespace.is_empty() || namespace.len() > 63 || !is_name || job.is_some_and(str::is_empty) {
        return Err("must be a namespace, or namespace/job as the scrape target's labels have them".into());
    }
    Ok(text.to_owned())
}

/// Parses a switch as manifests write it: in any case, as 1 or 0, or empty for off.
pub(super) fn lenient_bool(text: &str) -> Result<bool, String> {
    match text.trim().to_ascii_lowercase().as_str() {
        "true" | "1" | "yes" | "on" => Ok(true),
        "false" | "0" | "no" | "off" | "" => Ok(false),
        _ => Err("must be true or false".into()),
    }
}

/// Parses a number of bytes as in Kubernetes: 1048576, 1024Ki, 1Mi, 1Gi; also MiB.
pub(super) fn parse_bytes(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|char: char| !char.is_ascii_digit());
    let unit = match text.get(digits.len()..).unwrap_or_default().trim_end_matches('B') {
        "" => Some(1_u64),
        "Ki" => Some(1 << 10),
        "Mi" => Some(1 << 20),
        "Gi" => Some(1 << 30),
        _ => None,
    };
    let bytes = digits.parse::<u64>().ok().zip(unit).and_then(|(count, unit)| count.checked_mul(unit));
    bytes.ok_or_else(|| "must be a number of bytes, such as 64Mi or 1Gi".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_parsed_as_kubernetes_and_people_write_them() {
        for (text, expected) in
            [("0", 0), ("4096", 4096), ("64Ki", 65536), ("1Mi", 1 << 20), ("2GiB", 2 << 30)]
        {
            assert_eq!(parse_bytes(text), Ok(expected), "{text}");
        }
        for invalid in ["", "Mi", "-1", "1.5Gi", "1M", "99999999999Gi", "1 Mi"] {
            assert!(parse_bytes(invalid).is_err(), "{invalid}");
        }
    }
}
