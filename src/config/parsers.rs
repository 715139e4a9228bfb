//! Parsers of flag values.

use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{OsStringValueParser, TypedValueParser};
use jiff::SignedDuration;

use super::error::ConfigError;
use super::ranged::Time;

/// The longest value of a label.
const MAX_LABEL_BYTES: usize = 63;
/// The longest time of a Lease. Longer ones only delay a change of the leader.
const MAX_LEASE: Duration = Duration::from_secs(3600);
/// The shortest time for which a leader acts. Two requests to renew the Lease fit into it, of 4 s each.
const MIN_LEASE: Duration = Duration::from_secs(8);
/// The shortest time between two of these requests. A shorter one only loads the API server.
const MIN_LEASE_RETRY: Duration = Duration::from_secs(1);

/// Parses a path, which may be empty, because manifests set variables to the empty string.
pub(super) fn path_or_empty() -> impl TypedValueParser<Value = PathBuf> {
    OsStringValueParser::new().map(PathBuf::from)
}

/// `text`, unless it is empty: manifests set variables to the empty string.
pub(super) fn non_empty(text: Option<String>) -> Option<String> {
    text.filter(|text| !text.is_empty())
}

/// `path`, unless it is empty.
pub(super) fn non_empty_path(path: Option<PathBuf>) -> Option<PathBuf> {
    path.filter(|path| !path.as_os_str().is_empty())
}

/// Parses the name of a namespace, which may be empty.
pub(super) fn namespace_or_empty(text: &str) -> Result<String, String> {
    if text.is_empty() || is_namespace(text) {
        return Ok(text.to_owned());
    }
    Err("must be the name of a namespace".into())
}

/// True for what the value of a label may be, except nothing.
pub(super) fn is_label_value(text: &str) -> bool {
    let is_end = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    let is_allowed = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.".contains(byte);
    let bytes = text.as_bytes();
    bytes.len() <= MAX_LABEL_BYTES
        && is_end(bytes.first())
        && is_end(bytes.last())
        && bytes.iter().all(is_allowed)
}

pub(super) fn is_namespace(text: &str) -> bool {
    let is_part = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    !text.is_empty() && text.len() <= 63 && text.bytes().all(is_part)
}

/// Parses a namespace, or `namespace/job`.
pub(super) fn collector(text: &str) -> Result<String, String> {
    let (namespace, job) = match text.split_once('/') {
        Some((namespace, job)) => (namespace, Some(job)),
        None => (text, None),
    };
    if !is_namespace(namespace) || job.is_some_and(str::is_empty) {
        return Err("must be a namespace, or namespace/job as the scrape target's labels have them".into());
    }
    Ok(text.to_owned())
}

/// Parses a switch as manifests write it: in any case, as 1 or 0, or empty for off.
pub(crate) fn lenient_bool(text: &str) -> Result<bool, String> {
    match text.trim().to_ascii_lowercase().as_str() {
        "true" | "1" | "yes" | "on" => Ok(true),
        "false" | "0" | "no" | "off" | "" => Ok(false),
        _ => Err("must be true or false".into()),
    }
}

/// Parses the duration of a Lease or its renew deadline; an empty text is zero.
pub(super) fn lease_time(text: &str) -> Result<Duration, String> {
    time(text, Time::between(MIN_LEASE, MAX_LEASE))
}

/// Parses the retry period of a Lease; an empty text is zero.
pub(super) fn lease_retry_period(text: &str) -> Result<Duration, String> {
    time(text, Time::between(MIN_LEASE_RETRY, MAX_LEASE))
}

/// Parses a duration in a range that excludes zero. An empty text is zero, because manifests set variables to the empty string.
fn time(text: &str, range: Time) -> Result<Duration, String> {
    if text.is_empty() {
        Ok(Duration::ZERO)
    } else {
        range.parse(text).ok_or_else(|| format!("must be {range}"))
    }
}

/// Parses an address as in Go, `[HOST]:PORT`, of which the port counts. Zero and an empty text are 0.
pub(super) fn port_of_address(text: &str) -> Result<u16, String> {
    if text.is_empty() {
        return Ok(0);
    }
    let port = text.rsplit_once(':').map_or(text, |(_, port)| port);
    let is_whole = text.contains(':') || port == "0";
    port.parse().ok().filter(|_| is_whole).ok_or_else(|| "must be :PORT, HOST:PORT, or 0".to_owned())
}

/// Parses a verbosity of WVA's controllers as a level of this program: 2 is their default, 4 shows debug messages, 5 traces.
pub(super) fn verbosity(text: &str) -> Result<&'static str, String> {
    match text.parse::<i32>() {
        Ok(..=2) => Ok("info"),
        Ok(3 | 4) => Ok("debug"),
        Ok(5..) => Ok("trace"),
        Err(_) => Err("must be a whole number, such as 2".into()),
    }
}

/// Parses a level of zap, the logger of WVA's controllers: a name or a verbosity.
pub(super) fn log_level(text: &str) -> Result<&'static str, String> {
    match text.to_ascii_lowercase().as_str() {
        "debug" => Ok("debug"),
        "info" => Ok("info"),
        "error" | "panic" => Ok("error"),
        number => {
            verbosity(number).map_err(|_| "must be debug, info, error, panic, or a whole number".into())
        }
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

pub(super) fn at_least(
    flag: &'static str,
    given: SignedDuration,
    min: Duration,
    note: &'static str,
) -> Result<Duration, ConfigError> {
    match Duration::try_from(given) {
        Ok(duration) if duration >= min => Ok(duration),
        _ => {
            let min = SignedDuration::try_from(min).unwrap_or(SignedDuration::MAX);
            Err(ConfigError::TooShort { flag, given, min, note })
        }
    }
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

    #[test]
    fn of_an_address_of_go_the_port_counts() {
        for (text, expected) in
            [(":8443", 8443), ("127.0.0.1:8080", 8080), ("[::]:9443", 9443), ("0", 0), (":0", 0), ("", 0)]
        {
            assert_eq!(port_of_address(text), Ok(expected), "{text}");
        }
        for invalid in ["8443", ":https", "host:", ":65536", ":-1"] {
            assert!(port_of_address(invalid).is_err(), "{invalid}");
        }
    }

    #[test]
    fn times_of_a_lease_are_as_in_go_and_the_error_says_the_range() {
        assert_eq!(lease_time("1m0s"), Ok(Duration::from_secs(60)));
        assert_eq!(lease_time(""), Ok(Duration::ZERO), "unset");
        assert_eq!(lease_retry_period("2s"), Ok(Duration::from_secs(2)));
        for invalid in ["7s", "0s", "2h", "60", "soon"] {
            let error = lease_time(invalid).unwrap_err();
            assert!(error.contains("must be 8s to 1h"), "{invalid}: {error}");
        }
    }

    #[test]
    fn levels_of_wvas_logger_are_those_of_this_program() {
        let levels = ["0", "2", "3", "4", "5", "10"].map(|number| verbosity(number).unwrap());
        assert_eq!(levels, ["info", "info", "debug", "debug", "trace", "trace"]);
        let levels = ["debug", "INFO", "error", "panic", "5"].map(|level| log_level(level).unwrap());
        assert_eq!(levels, ["debug", "info", "error", "error", "trace"]);
        assert!(verbosity("loud").is_err() && log_level("loud").is_err());
    }
}
