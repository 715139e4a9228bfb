//! Makes `docs/fault-matrix.md`: every analyzer under faults of every signal that it reads, in closed loop with the simulator,
//! compared with its own run without the fault. `tests/sim/fault-matrix` calls it.

#![allow(clippy::disallowed_methods, reason = "it reports how long it takes; no decision depends on it")]
#![allow(clippy::print_stderr, clippy::print_stdout, reason = "a program for developers")]

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

#[path = "../tests/matrix/mod.rs"]
mod matrix;
#[path = "../tests/matrix/page.rs"]
mod page;

use clap::Parser;
use wva_core::model::Analyzer;
use wva_core::snapshot::Signal;
use wva_sim::{FaultSignals, Rng};

use matrix::cases::Case;
use matrix::compare::{Comparison, Timeline};
use matrix::{Cell, kinds, name, shares, signals, word};

/// After how many runs progress is reported.
const PROGRESS_RUNS: usize = 500;

/// The first seed of random cells: none of them was used to choose a constant.
const FIRST_RANDOM_SEED: u64 = 1_000_000;

/// Run the fault matrix
#[derive(Debug, Parser)]
struct Args {
    /// The short form: every cell with one load.
    #[arg(long)]
    ci: bool,
    /// Every load on both kinds of hardware, each scraped both ways.
    #[arg(long)]
    all_views: bool,
    /// Print each failing cell by load.
    #[arg(long)]
    failing: bool,
    /// Only print the numbers of both runs every 15 s.
    #[arg(long)]
    show: bool,
    /// Engines that count no steps, like SGLang and older versions of vLLM.
    #[arg(long)]
    without_steps: bool,
    /// Seeds of each cell.
    #[arg(long, default_value_t = 1)]
    seeds: u64,
    /// This many random cells, each with a seed of its own that the page does not use.
    #[arg(long)]
    random: Option<usize>,
    /// Selects other random cells.
    #[arg(long, default_value_t = 1)]
    draw: u64,
    /// Write the page to this file.
    #[arg(long)]
    write: Option<PathBuf>,
    /// Only these analyzers.
    #[arg(long, value_delimiter = ',')]
    analyzer: Vec<String>,
    /// Only these signals.
    #[arg(long, value_delimiter = ',')]
    signal: Vec<String>,
    /// Only these faults.
    #[arg(long, value_delimiter = ',')]
    fault: Vec<String>,
    /// Only these shares of pods.
    #[arg(long, value_delimiter = ',')]
    share: Vec<String>,
    /// Only the cases whose name has these words.
    #[arg(long, default_value = "")]
    case: String,
}

/// Whether `value` is among `chosen`, or nothing is chosen.
fn is_selected(chosen: &[String], value: &str) -> bool {
    chosen.is_empty() || chosen.iter().any(|name| name.eq_ignore_ascii_case(value))
}

impl Args {
    fn cells(&self) -> Vec<Cell> {
        let mut cases = if self.all_views || self.random.is_some() { Case::all() } else { Case::in_turns() };
        for case in &mut cases {
            case.hides = self.without_steps.then_some(Signal::EngineSteps);
        }
        let mut cells = Vec::new();
        let analyzers = Analyzer::ALL.into_iter();
        for analyzer in analyzers.filter(|analyzer| is_selected(&self.analyzer, analyzer.as_str())) {
            let signals = signals(analyzer).into_iter();
            for signals in signals.filter(|signals| is_selected(&self.signal, &name(*signals))) {
                cells.extend(self.cells_of(analyzer, signals, &cases));
            }
        }
        if self.ci {
            // One load for each fault, a different one for the next: 7 steps through the ten cases of `Case::in_turns`.
            let groups = cells.chunks(cases.len().max(1)).enumerate();
            cells = groups.map(|(index, cells)| cells[index * 7 % cells.len()]).collect();
        }
        cells.retain(|cell| cell.case.name().to_lowercase().contains(&self.case.to_lowercase()));
        match self.random {
            Some(count) => draw_cells(&cells, count, self.draw),
            None => cells,
        }
    }

    /// The selected faults of `signals`, with every seed and each of `cases`.
    fn cells_of(&self, analyzer: Analyzer, signals: FaultSignals, cases: &[Case]) -> Vec<Cell> {
        let mut cells = Vec::new();
        for kind in kinds(signals).iter().filter(|kind| is_selected(&self.fault, &word(kind))) {
            for share in shares(signals).iter().filter(|share| is_selected(&self.share, &word(share))) {
                for seed in 1..=self.seeds {
                    let cell = |case| Cell { analyzer, signals, kind: *kind, share: *share, case, seed };
                    cells.extend(cases.iter().copied().map(cell));
                }
            }
        }
        cells
    }
}

/// `count` random cells, each with a seed of its own.
fn draw_cells(cells: &[Cell], count: usize, draw: u64) -> Vec<Cell> {
    let mut rng = Rng::stream(draw, FIRST_RANDOM_SEED);
    let mut next = || {
        let cell = cells.get(usize::try_from(rng.bits()).ok()? % cells.len().max(1))?;
        Some(Cell { seed: FIRST_RANDOM_SEED + rng.bits() % FIRST_RANDOM_SEED, ..*cell })
    };
    (0..count).map_while(|_| next()).collect()
}

/// Maps `items` with `work` on all processors, and reports progress.
fn parallel_map<T: Sync, R: Send>(what: &str, items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let results = Mutex::new(BTreeMap::new());
    let started = Instant::now();
    let work_on_all = || {
        while let index = next.fetch_add(1, Ordering::Relaxed)
            && let Some(item) = items.get(index)
        {
            let result = work(item);
            let mut results = results.lock().unwrap_or_else(PoisonError::into_inner);
            results.insert(index, result);
            if results.len().is_multiple_of(PROGRESS_RUNS) {
                let elapsed_s = started.elapsed().as_secs();
                eprintln!("{what}: {} of {} after {elapsed_s} s", results.len(), items.len());
            }
        }
    };
    std::thread::scope(|scope| {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        for _ in 0..threads {
            scope.spawn(work_on_all);
        }
    });
    results.into_inner().unwrap_or_else(PoisonError::into_inner).into_values().collect()
}

fn main() -> ExitCode {
    let args = Args::parse();
    let started = Instant::now();
    let cells = args.cells();
    let fault_free = by_key("without faults", &cells, key, Cell::fault_free);
    if args.show {
        cells.iter().for_each(|cell| show(cell, &fault_free[&key(cell)]));
        return ExitCode::SUCCESS;
    }
    let results = compared(cells, &fault_free);
    let failing = results.iter().filter(|(_, compared)| !compared.holds()).count();
    if args.failing {
        print!("{}", page::failing(&results));
    }
    let table = page::table(&results);
    println!("{table}");
    println!("{failing} of {} runs fail, {} s", results.len(), started.elapsed().as_secs());
    if let Some(path) = &args.write
        && let Err(error) = std::fs::write(path, page::text(&results))
    {
        eprintln!("fault_matrix: {}: {error}", path.display());
        return ExitCode::from(2);
    }
    for (cell, compared) in results.iter().filter(|(_, compared)| !compared.holds()) {
        eprintln!("FAIL {}: {}", page::title(cell), compared.cell_text());
    }
    if failing == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Compares each of `cells` with its run in `fault_free`.
fn compared(cells: Vec<Cell>, fault_free: &BTreeMap<Key, Timeline>) -> Vec<(Cell, Comparison)> {
    let first = parallel_map("with faults", &cells, |cell| {
        let faulty = cell.faulty();
        let alone = cell.compared(&faulty, &fault_free[&key(cell)], || []);
        (alone, (!alone.holds()).then_some(faulty))
    });
    let open = cells.iter().zip(&first).filter(|(_, (_, faulty))| faulty.is_some());
    let open: Vec<Cell> = open.map(|(cell, _)| *cell).collect();
    let others = by_key(
        "without faults, other seeds",
        &open,
        |cell| (cell.analyzer, cell.case),
        Cell::fault_free_with_other_seeds,
    );
    let last = |(cell, (alone, faulty)): (Cell, (Comparison, Option<Timeline>))| match faulty {
        Some(faulty) => {
            (cell, cell.compared(&faulty, &fault_free[&key(&cell)], || &others[&(cell.analyzer, cell.case)]))
        }
        None => (cell, alone),
    };
    cells.into_iter().zip(first).map(last).collect()
}

/// The result of `runs` for each different key of `cells`.
fn by_key<K: Ord, R: Send>(
    what: &str,
    cells: &[Cell],
    key: impl Fn(&Cell) -> K,
    runs: impl Fn(&Cell) -> R + Sync,
) -> BTreeMap<K, R> {
    let mut different = cells.to_vec();
    different.sort_by_key(&key);
    different.dedup_by_key(|cell| key(cell));
    let found = parallel_map(what, &different, runs);
    different.iter().map(key).zip(found).collect()
}

type Key = (Analyzer, Case, u64);

/// The properties of a cell that its run without the fault depends on.
const fn key(cell: &Cell) -> Key {
    (cell.analyzer, cell.case, cell.seed)
}

/// Prints both runs of a cell every 15 s.
fn show(cell: &Cell, fault_free: &Timeline) {
    let faulty = cell.faulty();
    println!(
        "{}: {}",
        page::title(cell),
        cell.compared(&faulty, fault_free, || cell.fault_free_with_other_seeds()).cell_text()
    );
    let row =
        |numbers: &[u32]| numbers.iter().step_by(15).map(|number| format!("{number:3}")).collect::<String>();
    println!("  without fault      {}", row(&fault_free.published));
    println!("  with fault         {}", row(&faulty.published));
    println!("  HPA without fault  {}", row(&fault_free.spec));
    println!("  HPA with fault     {}", row(&faulty.spec));
    println!("  within SLO: {:.1} %, {:.1} %", 100.0 * fault_free.within_slo, 100.0 * faulty.within_slo);
}
