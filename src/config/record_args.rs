//! The flags of `wva serve` about recording, as typed.

use std::path::PathBuf;

use super::args::path_or_empty;

/// Which evaluations are kept, and where.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Recording")]
pub struct RecordArgs {
    /// Keep the last evaluations in memory, with everything they were made from: /debug/snapshots shows them, and
    /// `wva explain --server` reads them. 0 keeps none.
    #[arg(long, default_value_t = 2, value_name = "COUNT")]
    pub record_snapshots: usize,
    /// The most that these may have together, as they are sent; in memory it is about half. One variant with two pods
    /// takes 10 to 40 KiB. An evaluation that is larger alone is not kept.
    #[arg(long, default_value = "16Mi", value_parser = bytes, value_name = "BYTES")]
    pub record_snapshots_size: u64,
    /// Append every evaluation to a file in this directory, for `wva replay`. Evaluations never wait for it: when the disk
    /// is slow some are left out, and counted. Several instances may share the directory.
    #[arg(long, env = "WVA_RECORD_DIR", value_parser = path_or_empty(), value_name = "DIR")]
    pub record_dir: Option<PathBuf>,
    /// The most that all recordings in the directory may have together; the oldest file goes first, and before that when
    /// the disk is full.
    #[arg(long, default_value = "256Mi", value_parser = bytes, value_name = "BYTES")]
    pub record_max_size: u64,
    /// From this size on a new file is begun; at most a quarter of --record-max-size, and an eighth by default.
    #[arg(long, value_parser = bytes, value_name = "BYTES")]
    pub record_file_size: Option<u64>,
}

/// Bytes as Kubernetes writes them: 1048576, 1024Ki, 1Mi, 1Gi; MiB is understood too.
fn bytes(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|letter: char| !letter.is_ascii_digit());
    let unit = match text.get(digits.len()..).unwrap_or_default().trim_end_matches('B') {
        "" => Some(1_u64),
        "Ki" => Some(1 << 10),
        "Mi" => Some(1 << 20),
        "Gi" => Some(1 << 30),
        _ => None,
    };
    let given = digits.parse::<u64>().ok().zip(unit).and_then(|(count, unit)| count.checked_mul(unit));
    given.ok_or_else(|| "give a number of bytes, such as 64Mi or 1Gi".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_kubernetes_and_people_write_them() {
        for (text, expected) in
            [("0", 0), ("4096", 4096), ("64Ki", 65536), ("1Mi", 1 << 20), ("2GiB", 2 << 30)]
        {
            assert_eq!(bytes(text), Ok(expected), "{text}");
        }
        for wrong in ["", "Mi", "-1", "1.5Gi", "1M", "99999999999Gi", "1 Mi"] {
            assert!(bytes(wrong).is_err(), "{wrong}");
        }
    }
}
