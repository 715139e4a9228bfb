//! Makes `docs/fault-matrix.md`: every analyzer under faults of every signal that it reads, in closed loop with the simulator,
//! compared with its own run without the fault. `tests/sim/fault-matrix` calls it.

#![allow(clippy::disallowed_methods, reason = "it reports how long it takes; no decision depends on it")]
#![allow(clippy::print_stderr, clippy::print_stdout, reason = "a program for developers")]

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

#[path = "../tests/matrix/mod.rs"]
mod matrix;
#[path = "../tests/matrix/page.rs"]
mod page;

use wva_core::model::Analyzer;
use wva_core::snapshot::Signal;
use wva_sim::Rng;

use matrix::cases::Case;
use matrix::compare::{Comparison, Timeline};
use matrix::{Cell, kinds, name, shares, signals};

const USAGE: &str = "Usage: fault_matrix [--ci] [--all-views] [--seeds N] [--random N [--draw D]] [--write FILE]\n\
                     [--failing] [--show] [--without-steps]\n\
                     and to choose: [--analyzer A] [--signal S] [--fault F] [--share P] [--case WORDS]\n\
                     --ci: the short form, every cell with one load     --failing: each failing cell by load\n\
                     --random: N random cells, each with a seed of its own that the page does not use; D selects others\n\
                     --without-steps: engines that count no steps, like SGLang and older versions of vLLM\n\
                     --show: the numbers of both runs every 15 s";

/// How often progress is reported.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(10);

/// The first seed of random cells: none of them was used to choose a constant.
const FIRST_RANDOM_SEED: u64 = 1_000_000;

/// The command line.
#[derive(Debug, Default)]
struct Args {
    ci: bool,
    all_views: bool,
    failing: bool,
    show: bool,
    without_steps: bool,
    seeds: u64,
    random: Option<usize>,
    draw: u64,
    write: Option<String>,
    chosen: BTreeMap<&'static str, String>,
}

fn parsed(mut words: impl Iterator<Item = String>) -> Result<Args, String> {
    let mut args = Args { seeds: 1, draw: 1, ..Args::default() };
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or_else(|| format!("{word} needs a value\n{USAGE}"));
        match word.as_str() {
            "--ci" => args.ci = true,
            "--all-views" => args.all_views = true,
            "--failing" => args.failing = true,
            "--show" => args.show = true,
            "--without-steps" => args.without_steps = true,
            "--seeds" => args.seeds = value()?.parse().map_err(|error| format!("--seeds: {error}"))?,
            "--random" => {
                args.random = Some(value()?.parse().map_err(|error| format!("--random: {error}"))?);
            }
            "--draw" => args.draw = value()?.parse().map_err(|error| format!("--draw: {error}"))?,
            "--write" => args.write = Some(value()?),
            "--analyzer" => drop(args.chosen.insert("analyzer", value()?)),
            "--signal" => drop(args.chosen.insert("signal", value()?)),
            "--fault" => drop(args.chosen.insert("fault", value()?)),
            "--share" => drop(args.chosen.insert("share", value()?)),
            "--case" => drop(args.chosen.insert("case", value()?)),
            _ => return Err(format!("{word}: unknown\n{USAGE}")),
        }
    }
    Ok(args)
}

impl Args {
    /// Whether `value` matches the choice for `option`, if there is one.
    fn selects(&self, option: &str, value: &str) -> bool {
        self.chosen.get(option).is_none_or(|chosen| {
            if option == "case" {
                value.to_lowercase().contains(&chosen.to_lowercase())
            } else {
                chosen.split(',').any(|name| name.eq_ignore_ascii_case(value))
            }
        })
    }

    fn cells(&self) -> Vec<Cell> {
        let mut cases = if self.all_views || self.random.is_some() { Case::all() } else { Case::in_turns() };
        for case in &mut cases {
            case.hides = self.without_steps.then_some(Signal::EngineSteps);
        }
        let mut cells = Vec::new();
        for analyzer in
            Analyzer::ALL.into_iter().filter(|analyzer| self.selects("analyzer", analyzer.as_str()))
        {
            for signals in
                signals(analyzer).into_iter().filter(|signals| self.selects("signal", &name(*signals)))
            {
                for kind in kinds(signals).iter().filter(|kind| self.selects("fault", kind.as_str())) {
                    for share in shares(signals).iter().filter(|share| self.selects("share", share.as_str()))
                    {
                        for seed in 1..=self.seeds {
                            let cell =
                                |case| Cell { analyzer, signals, kind: *kind, share: *share, case, seed };
                            cells.extend(cases.iter().copied().map(cell));
                        }
                    }
                }
            }
        }
        if self.ci {
            // One load for each cell, a different one for the next.
            let groups = cells.chunks(cases.len().max(1)).enumerate();
            cells = groups.map(|(index, cells)| cells[index * 7 % cells.len()]).collect();
        }
        cells.retain(|cell| self.selects("case", &cell.case.name()));
        match self.random {
            Some(count) => draw_cells(&cells, count, self.draw),
            None => cells,
        }
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
    let (sender, results) = mpsc::channel();
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let started = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..threads {
            let (sender, next, work) = (sender.clone(), &next, &work);
            scope.spawn(move || {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some(item) = items.get(index) else { break };
                    if sender.send((index, work(item))).is_err() {
                        break;
                    }
                }
            });
        }
        drop(sender);
        let mut done = BTreeMap::new();
        let mut reported = Instant::now();
        for (index, result) in results {
            done.insert(index, result);
            if reported.elapsed() >= PROGRESS_INTERVAL {
                reported = Instant::now();
                eprintln!(
                    "{what}: {} of {} after {} s",
                    done.len(),
                    items.len(),
                    started.elapsed().as_secs()
                );
            }
        }
        done.into_values().collect()
    })
}

fn main() -> ExitCode {
    let args = match parsed(std::env::args().skip(1)) {
        Ok(args) => args,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::from(64);
        }
    };
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
        eprintln!("fault_matrix: {path}: {error}");
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
        let (own, faulty) = (&fault_free[&key(cell)], cell.faulty());
        let alone = cell.compared(&faulty, own, || []);
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
