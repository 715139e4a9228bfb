//! Results of parts as files, so that a long run can be made in pieces.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::Args;
use super::gates::Gate;
use super::parts::Part;
use super::seeds::Seeds;

/// What a part found.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct PartResults {
    pub(crate) title: String,
    pub(crate) about: String,
    pub(crate) gates: Vec<Gate>,
    pub(crate) tables: Vec<Table>,
    pub(crate) points: Vec<Point>,
    pub(crate) left_out: Vec<String>,
    /// Simulations that were made.
    pub(crate) runs: usize,
    /// How long they took, seconds.
    pub(crate) took_s: f64,
}

/// A table of the page.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Table {
    pub(crate) header: String,
    pub(crate) rows: Vec<String>,
}

/// A point of a plot.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Point {
    pub(crate) plot: String,
    pub(crate) series: String,
    pub(crate) x: f64,
    pub(crate) y: f64,
}

impl PartResults {
    pub(crate) fn new(title: &str, about: &str) -> Self {
        Self { title: title.into(), about: about.into(), ..Self::default() }
    }

    pub(crate) fn point(&mut self, plot: &str, series: &str, x: f64, y: f64) {
        self.points.push(Point { plot: plot.into(), series: series.into(), x, y });
    }
}

/// The file of a part's results. Its folder says what they depend on beside the part: the seeds, the program, the settings.
fn path(args: &Args, seeds: &Seeds, part: Part) -> PathBuf {
    let hash = seeds.hash.get(..12).unwrap_or(&seeds.hash);
    let short = if args.ci { "-ci" } else { "" };
    let (policy, program) = (args.policy.replace('/', "_"), program_hash());
    let settings = format!("{hash}-{program:016x}-{policy}-{}x{}{short}", args.sets, args.seeds);
    args.out.join(settings).join(format!("{part:?}.json").to_lowercase())
}

/// A hash of this program: what it simulates, and how.
fn program_hash() -> u64 {
    let program = std::env::current_exe().and_then(std::fs::read).unwrap_or_default();
    let mut hasher = DefaultHasher::new();
    program.hash(&mut hasher);
    hasher.finish()
}

/// The results of an earlier run of the same part.
pub(crate) fn load(args: &Args, seeds: &Seeds, part: Part) -> Option<PartResults> {
    let text = std::fs::read_to_string(path(args, seeds, part)).ok()?;
    serde_json::from_str(&text).ok()
}

/// Keeps the results of a part.
pub(crate) fn save(args: &Args, seeds: &Seeds, part: Part, results: &PartResults) -> Result<(), String> {
    let path = path(args, seeds, part);
    let text = serde_json::to_string(results).map_err(|error| error.to_string())?;
    let folder = path.parent().unwrap_or(Path::new("."));
    let written = std::fs::create_dir_all(folder).and_then(|()| std::fs::write(&path, text));
    written.map_err(|error| format!("{}: {error}", path.display()))
}
