//! Quantities of processor time and memory, and durations, as Kubernetes prints them. Pure.

use std::time::Duration;

/// Thousandths of a core.
pub(super) fn cores(thousandths: i64) -> String {
    decimal(thousandths)
}

/// Thousandths of a byte: with a binary suffix if it is a whole number of bytes from 1 Ki.
pub(super) fn bytes(thousandths: i64) -> String {
    const SUFFIXES: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
    let mut bytes = thousandths / 1_000;
    if thousandths % 1_000 != 0 || bytes < 1_024 {
        return decimal(thousandths);
    }
    let mut suffix = 0;
    while bytes % 1_024 == 0 && suffix + 1 < SUFFIXES.len() {
        bytes /= 1_024;
        suffix += 1;
    }
    format!("{bytes}{}", SUFFIXES[suffix])
}

fn decimal(thousandths: i64) -> String {
    const SUFFIXES: [&str; 7] = ["m", "", "k", "M", "G", "T", "P"];
    if thousandths == 0 {
        return "0".to_owned();
    }
    let mut number = thousandths;
    let mut suffix = 0;
    while number % 1_000 == 0 && suffix + 1 < SUFFIXES.len() {
        number /= 1_000;
        suffix += 1;
    }
    format!("{number}{}", SUFFIXES[suffix])
}

/// As Go prints a duration: `5m0s`, `1h30m0s`, `1.5s`, `250ms`.
pub(super) fn duration(duration: Duration) -> String {
    let seconds = duration.as_secs();
    if seconds == 0 && !duration.is_zero() {
        return format!("{}ms", duration.as_millis());
    }
    let (hours, minutes) = (seconds / 3_600, seconds / 60 % 60);
    let fraction = match duration.subsec_millis() {
        0 => String::new(),
        milliseconds => format!(".{milliseconds:03}").trim_end_matches('0').to_owned(),
    };
    let rest = format!("{}{fraction}s", seconds % 60);
    match (hours, minutes) {
        (0, 0) => rest,
        (0, minutes) => format!("{minutes}m{rest}"),
        (hours, minutes) => format!("{hours}h{minutes}m{rest}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_and_durations_are_those_of_kubernetes() {
        for (thousandths, expected) in
            [(0, "0"), (1, "1m"), (2_500, "2500m"), (3_000, "3"), (2_000_000, "2k"), (1_500_000, "1500")]
        {
            assert_eq!(cores(thousandths), expected);
        }
        for (thousandths, expected) in [
            (0, "0"),
            (1_000, "1"),
            (1_000_000, "1k"),
            (1_024_000, "1Ki"),
            (1_536_000, "1536"),
            (1_073_741_824_000, "1Gi"),
            (1_048_576_500, "1048576500m"),
            (524_288_000, "512Ki"),
        ] {
            assert_eq!(bytes(thousandths), expected);
        }
        for (milliseconds, expected) in [
            (0, "0s"),
            (300_000, "5m0s"),
            (5_400_000, "1h30m0s"),
            (1_500, "1.5s"),
            (250, "250ms"),
            (30_000, "30s"),
        ] {
            assert_eq!(duration(Duration::from_millis(milliseconds)), expected);
        }
    }
}
