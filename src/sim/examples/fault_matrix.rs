//! Makes `docs/fault-matrix.md`: every analyzer under faults of every signal that it reads, in the closed loop with the simulator,
//! against its own run without the fault. `tests/sim/fault-matrix` calls it.

#![allow(clippy::disallowed_methods, reason = "it says how long it takes; no decision depends on it")]
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
                     --ci: a short form, every cell with one load     --failing: each failing cell by load\n\
                     --random: N of all cells, each with a seed of its own, never those of the page; another D draws others\n\
                     --without-steps: of engines that count no steps, as SGLang and older versions of vLLM\n\
                     --show: the numbers of both runs, every 15 s";

/// How often it says how far it is.
const TELL_EVERY: Duration = Duration::from_secs(10);

/// The seeds of cells that are drawn at random begin here: no constant was ever chosen by them.
const RANDOM_SEEDS: u64 = 1_000_000;

/// What is asked for.
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
    /// `found` is what was chosen, or nothing was chosen.
    fn chose(&self, what: &str, found: &str) -> bool {
        self.chosen.get(what).is_none_or(|chosen| {
            if what == "case" {
                found.to_lowercase().contains(&chosen.to_lowercase())
            } else {
                chosen.split(',').any(|one| one.eq_ignore_ascii_case(found))
            }
        })
    }

    fn cells(&self) -> Vec<Cell> {
        let mut cases = if self.all_views || self.random.is_some() { Case::all() } else { Case::in_turns() };
        for case in &mut cases {
            case.hides = self.without_steps.then_some(Signal::EngineSteps);
        }
        let mut cells = Vec::new();
        for analyzer in Analyzer::ALL.into_iter().filter(|own| self.chose("analyzer", own.as_str())) {
            for signals in signals(analyzer).into_iter().filter(|own| self.chose("signal", &name(*own))) {
                for kind in kinds(signals).iter().filter(|own| self.chose("fault", own.as_str())) {
                    for share in shares(signals).iter().filter(|own| self.chose("share", own.as_str())) {
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
            // One load each, another one for the next.
            let turn = cells.chunks(cases.len().max(1)).enumerate();
            cells = turn.map(|(index, cells)| cells[index * 7 % cells.len()]).collect();
        }
        cells.retain(|cell| self.chose("case", &cell.case.name()));
        match self.random {
            Some(count) => drawn(&cells, count, self.draw),
            None => cells,
        }
    }
}

/// So many of `cells`, each as often as chance has it and with a seed of its own.
fn drawn(cells: &[Cell], count: usize, draw: u64) -> Vec<Cell> {
    let mut rng = Rng::stream(draw, RANDOM_SEEDS);
    let mut next = || {
        let cell = cells.get(usize::try_from(rng.bits()).ok()? % cells.len().max(1))?;
        Some(Cell { seed: RANDOM_SEEDS + rng.bits() % RANDOM_SEEDS, ..*cell })
    };
    (0..count).map_while(|_| next()).collect()
}

/// Does `work` for each of `items` on all processors, in their order, and says now and then how far it is.
fn all<T: Sync, R: Send>(what: &str, items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let (sender, results) = mpsc::channel();
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let begun = Instant::now();
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
        let mut told = Instant::now();
        for (index, result) in results {
            done.insert(index, result);
            if told.elapsed() >= TELL_EVERY {
                told = Instant::now();
                eprintln!("{what}: {} of {} after {} s", done.len(), items.len(), begun.elapsed().as_secs());
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
    let begun = Instant::now();
    let cells = args.cells();
    let free = by_key("without faults", &cells, key, Cell::free);
    if args.show {
        cells.iter().for_each(|cell| show(cell, &free[&key(cell)]));
        return ExitCode::SUCCESS;
    }
    let results = compared(cells, &free);
    let failing = results.iter().filter(|(_, compared)| !compared.holds()).count();
    if args.failing {
        print!("{}", page::failing(&results));
    }
    let table = page::table(&results);
    println!("{table}");
    println!("{failing} of {} runs fail, {} s", results.len(), begun.elapsed().as_secs());
    if let Some(path) = &args.write
        && let Err(error) = std::fs::write(path, page::text(&results))
    {
        eprintln!("fault_matrix: {path}: {error}");
        return ExitCode::from(2);
    }
    for (cell, compared) in results.iter().filter(|(_, compared)| !compared.holds()) {
        eprintln!("FAIL {}: {}", page::title(cell), compared.words());
    }
    if failing == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Compares each of `cells` with its run in `free`.
fn compared(cells: Vec<Cell>, free: &BTreeMap<Key, Timeline>) -> Vec<(Cell, Comparison)> {
    let first = all("with faults", &cells, |cell| {
        let (own, bent) = (&free[&key(cell)], cell.bent());
        let alone = cell.compared(&bent, own, || []);
        (alone, (!alone.holds()).then_some(bent))
    });
    let open = cells.iter().zip(&first).filter(|(_, (_, bent))| bent.is_some());
    let open: Vec<Cell> = open.map(|(cell, _)| *cell).collect();
    let others =
        by_key("without faults, other seeds", &open, |cell| (cell.analyzer, cell.case), Cell::others);
    let last = |(cell, (alone, bent)): (Cell, (Comparison, Option<Timeline>))| match bent {
        Some(bent) => {
            (cell, cell.compared(&bent, &free[&key(&cell)], || &others[&(cell.analyzer, cell.case)]))
        }
        None => (cell, alone),
    };
    cells.into_iter().zip(first).map(last).collect()
}

/// What `runs` gives for each key of `cells`.
fn by_key<K: Ord, R: Send>(
    what: &str,
    cells: &[Cell],
    key: impl Fn(&Cell) -> K,
    runs: impl Fn(&Cell) -> R + Sync,
) -> BTreeMap<K, R> {
    let mut wanted = cells.to_vec();
    wanted.sort_by_key(&key);
    wanted.dedup_by_key(|cell| key(cell));
    let found = all(what, &wanted, runs);
    wanted.iter().map(key).zip(found).collect()
}

type Key = (Analyzer, Case, u64);

/// What a run without a fault depends on.
const fn key(cell: &Cell) -> Key {
    (cell.analyzer, cell.case, cell.seed)
}

/// Both runs of a cell, every 15 s.
fn show(cell: &Cell, free: &Timeline) {
    let bent = cell.bent();
    println!("{}: {}", page::title(cell), cell.compared(&bent, free, || cell.others()).words());
    let row =
        |numbers: &[u32]| numbers.iter().step_by(15).map(|number| format!("{number:3}")).collect::<String>();
    println!("  free     {}", row(&free.answered));
    println!("  bent     {}", row(&bent.answered));
    println!("  free HPA {}", row(&free.asked));
    println!("  bent HPA {}", row(&bent.asked));
    println!("  served well: {:.1} %, {:.1} %", 100.0 * free.served_well, 100.0 * bent.served_well);
}
