//! Time and memory used by this process, from the kernel.

use std::fmt;
use std::fs;
use std::ops::{Add, Div, Sub};

use anyhow::Context;
use tokio::time::Instant;

/// Clock ticks of `/proc/self/stat` a second: the kernel's ABI on Linux.
const TICKS: f64 = 100.0;

/// Wall-clock and processor seconds of all threads.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Cost {
    wall: f64,
    processor: f64,
}

impl Cost {
    /// The cost since the process started.
    pub(crate) fn now() -> anyhow::Result<Self> {
        static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
        let wall = START.get_or_init(Instant::now).elapsed().as_secs_f64();
        let stat = fs::read_to_string("/proc/self/stat")?;
        // The name, in parentheses, may contain anything. User and system time are the 14th and 15th field.
        let fields = stat.rsplit_once(')').context("no name")?.1.split_whitespace();
        let ticks: f64 = fields.skip(11).take(2).filter_map(|field| field.parse::<f64>().ok()).sum();
        Ok(Self { wall, processor: ticks / TICKS })
    }

    pub(crate) fn until_now(self) -> anyhow::Result<Self> {
        Ok(Self::now()? - self)
    }
}

impl Add for Cost {
    type Output = Self;
    fn add(self, right: Self) -> Self {
        Self { wall: self.wall + right.wall, processor: self.processor + right.processor }
    }
}

impl Sub for Cost {
    type Output = Self;
    fn sub(self, right: Self) -> Self {
        Self { wall: self.wall - right.wall, processor: self.processor - right.processor }
    }
}

impl Div<u32> for Cost {
    type Output = Self;
    fn div(self, count: u32) -> Self {
        let count = f64::from(count.max(1));
        Self { wall: self.wall / count, processor: self.processor / count }
    }
}

impl fmt::Display for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.3} s, {:.3} s of processor", self.wall, self.processor)
    }
}

/// Resident memory.
pub(crate) fn resident_mib() -> anyhow::Result<u64> {
    status("VmRSS:")
}

/// Peak of the resident memory since [`reset_peak`].
pub(crate) fn peak_mib() -> anyhow::Result<u64> {
    status("VmHWM:")
}

/// Resets the peak.
pub(crate) fn reset_peak() -> anyhow::Result<()> {
    Ok(fs::write("/proc/self/clear_refs", "5")?)
}

fn status(name: &str) -> anyhow::Result<u64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix(name)).context("no such line")?;
    let kib: u64 = line.trim().trim_end_matches(" kB").parse()?;
    Ok(kib / 1024)
}
