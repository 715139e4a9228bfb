//! A run with a fault against the same run without it.

use wva_sim::Run;

use super::cases::{END, FAULT_FROM, FAULT_UNTIL, MAX_REPLICAS, RECOVERED};

/// Replicas that a number may be below the one without the fault, at any moment of the fault and after it.
const MAX_FEWER: f64 = 1.0;
/// Times the replica-hours.
const MAX_HOURS: f64 = 1.5;
/// Reversals more.
const MAX_REVERSALS: f64 = 2.0;
/// Replicas that a number may be away from the one without the fault when the signal is long back.
const MAX_AWAY: f64 = 1.0;
/// Seconds by which the same number may come sooner: one look of an analyzer.
const SOONER: usize = 15;
/// Seconds by which it may come later: a minute of evidence where the analyzer is not shown what it needs, a scrape, and a look.
const LATER: usize = 90;

/// What was asked for in a run, second by second from the fault's beginning on.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Timeline {
    /// What was answered; where there was no answer, the last one.
    pub(crate) answered: Vec<u32>,
    /// What the HPA made of it.
    pub(crate) asked: Vec<u32>,
    /// Changes of what was asked for in the other direction than the one before.
    pub(crate) reversals: u32,
    /// Share of requests that were served well.
    pub(crate) served_well: f64,
}

/// How far two runs are apart, by each criterion.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct Comparison {
    /// Most replicas fewer.
    pub(crate) fewer: f64,
    /// When, seconds after the start.
    pub(crate) fewer_at_s: usize,
    /// For how many seconds together it was too few.
    pub(crate) fewer_for_s: usize,
    /// Times the replica-hours, from the fault's beginning to the end.
    pub(crate) hours: f64,
    /// Reversals more.
    pub(crate) reversals: f64,
    /// Most replicas away once it has recovered, with the sign.
    pub(crate) away: f64,
    /// What it is held against.
    pub(crate) beside: Beside,
    /// Points by which fewer requests were served well, of a hundred; told, not judged.
    pub(crate) served_less: f64,
}

/// Runs without a fault that a run with one is held against.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Beside {
    /// Its own.
    #[default]
    Own,
    /// Its own and those with other seeds.
    Seeds,
    /// Of these nothing but the number in the end: that is held against a run that was made to have as many replicas when the
    /// fault ended.
    SameNumber,
}

impl Timeline {
    /// Of a run that begins with `replicas`.
    pub(crate) fn new(run: &Run, replicas: u32) -> Self {
        let sum = |numbers: &[Option<u32>]| -> Option<u32> { numbers.iter().copied().sum() };
        let known =
            run.published.iter().filter_map(|published| Some((published.at_s, sum(&published.numbers)?)));
        let written = run.writes.iter().map(|write| (write.at_s, write.to));
        let from_s = FAULT_FROM.as_secs_f64();
        let mut reversals = 0;
        for (index, write) in run.writes.iter().enumerate().skip(1).filter(|(_, write)| write.at_s >= from_s)
        {
            let before = &run.writes[index - 1];
            reversals += u32::from((before.to > before.from) != (write.to > write.from));
        }
        Self {
            answered: by_second(known, replicas),
            asked: by_second(written, replicas),
            reversals,
            served_well: run.slo_attainment,
        }
    }

    /// What the HPA asked for when the fault ended.
    pub(crate) fn at_end_of_fault(&self) -> u32 {
        self.asked[seconds(FAULT_UNTIL) - seconds(FAULT_FROM)]
    }

    /// The most replicas by which a removal left fewer than `free` has, a little sooner or later.
    pub(crate) fn lowered_below(&self, free: &Self) -> u32 {
        let least = Reference::new(free, &[]).least;
        let (mut most, mut fewer) = (0, 0);
        for (number, least) in self.asked.iter().zip(least) {
            most = most.max(*number);
            fewer = if *number < most { fewer.max(least.saturating_sub(*number)) } else { fewer };
        }
        fewer
    }

    /// Replica-seconds asked for.
    fn spent(&self) -> f64 {
        self.asked.iter().map(|number| f64::from(*number)).sum()
    }

    /// `replicas` all the time.
    pub(crate) fn fixed(replicas: u32) -> Self {
        let numbers = by_second(std::iter::empty(), replicas);
        Self { answered: numbers.clone(), asked: numbers, reversals: 0, served_well: 1.0 }
    }

    /// The same without its removals.
    pub(crate) fn without_removals(&self) -> Self {
        let highest = |numbers: &[u32]| -> Vec<u32> {
            let climb = |most: &mut u32, number: &u32| {
                *most = (*most).max(*number);
                Some(*most)
            };
            numbers.iter().scan(0, climb).collect()
        };
        let (answered, asked) = (highest(&self.answered), highest(&self.asked));
        Self { answered, asked, reversals: 0, ..self.clone() }
    }
}

/// The numbers that hold from each moment on, second by second from the fault's beginning to the end.
fn by_second(changes: impl Iterator<Item = (f64, u32)>, first: u32) -> Vec<u32> {
    let mut changes = changes.peekable();
    let mut number = first;
    let mut at = |second: u64| {
        while let Some((_, next)) = changes.next_if(|(at_s, _)| *at_s <= second as f64) {
            number = next;
        }
        number
    };
    (0..END.as_secs()).map(&mut at).skip(seconds(FAULT_FROM)).collect()
}

fn seconds(of: std::time::Duration) -> usize {
    usize::try_from(of.as_secs()).unwrap()
}

/// What runs without a fault are held to be, by second.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Reference {
    /// The least that was answered, and the most that was answered or that the HPA made of it, a little sooner or later.
    least: Vec<u32>,
    most: Vec<u32>,
    /// What was answered when the fault begins.
    first: u32,
    /// Replica-seconds, the most.
    spent: f64,
    /// The most.
    reversals: f64,
    served_well: f64,
    /// Nothing was seen during the fault.
    is_blind: bool,
}

impl Reference {
    /// Of the run with the cell's own seed, and of those with other seeds. These count where chance alone, without any fault,
    /// would break the criteria: a policy that swings is held to the span in which it swings.
    pub(crate) fn new(own: &Timeline, others: &[Timeline]) -> Self {
        let single = Self::span(&[own]);
        if others.iter().all(|run| Comparison::of(&single, run).holds()) {
            return single;
        }
        let all: Vec<&Timeline> = std::iter::once(own).chain(others).collect();
        Self::span(&all)
    }

    /// The span of `runs`, of which the first is the cell's own. Several swing, and a fault may shift by when: once they have
    /// recovered they may be as far up or down as they are at any time since the fault, under the same load.
    fn span(runs: &[&Timeline]) -> Self {
        let [ended, recovered] = [FAULT_UNTIL, RECOVERED].map(|at| seconds(at) - seconds(FAULT_FROM));
        let around = |numbers: &[u32], second: usize, pick: fn(u32, u32) -> u32| {
            let from =
                if runs.len() > 1 && second >= recovered { ended } else { second.saturating_sub(LATER) };
            let until = (second + SOONER + 1).min(numbers.len());
            numbers[from..until].iter().copied().reduce(pick).unwrap()
        };
        let fold = |of: fn(&Timeline) -> [&[u32]; 2], pick: fn(u32, u32) -> u32| -> Vec<u32> {
            let at = |second| {
                let all = runs.iter().flat_map(|run| of(run)).map(|numbers| around(numbers, second, pick));
                all.reduce(pick).unwrap()
            };
            (0..runs[0].answered.len()).map(at).collect()
        };
        let most = |figure: fn(&Timeline) -> f64| runs.iter().map(|run| figure(run)).fold(0.0, f64::max);
        Self {
            least: fold(|run| [&run.answered, &run.answered], u32::min),
            most: fold(|run| [&run.answered, &run.asked], u32::max),
            first: runs[0].answered[0],
            spent: most(Timeline::spent),
            reversals: most(|run| f64::from(run.reversals)),
            served_well: runs[0].served_well,
            is_blind: false,
        }
    }

    /// The same where nothing that is told of any pod is true: nobody can follow a load that nobody sees, so until it has
    /// recovered the number when the fault began is enough, and what has gathered until then may take more. HPAs go on to ask for
    /// that for as long as they look back, so that in the end the answers are judged.
    pub(crate) fn blind(mut self) -> Self {
        self.is_blind = true;
        let until = seconds(RECOVERED) - seconds(FAULT_FROM);
        self.least[..until].iter_mut().for_each(|least| *least = (*least).min(self.first));
        let after = seconds(FAULT_UNTIL) - seconds(FAULT_FROM);
        self.most[after..until].iter_mut().for_each(|most| *most = (*most).max(MAX_REPLICAS));
        self
    }
}

impl Comparison {
    /// How far the replicas of `bent` are from what `free` answered.
    pub(crate) fn of(free: &Reference, bent: &Timeline) -> Self {
        let (mut fewer, mut fewer_at, mut fewer_for_s, mut away) = (0.0, 0, 0, 0.0_f64);
        let recovered = seconds(RECOVERED) - seconds(FAULT_FROM);
        for (second, number) in bent.asked.iter().enumerate() {
            let [number, least, most] = [*number, free.least[second], free.most[second]].map(f64::from);
            fewer_for_s += usize::from(least - number > MAX_FEWER);
            if least - number > fewer {
                (fewer, fewer_at) = (least - number, second);
            }
            let number = if free.is_blind { f64::from(bent.answered[second]) } else { number };
            let apart = number - number.clamp(least, most);
            if second >= recovered && apart.abs() > away.abs() {
                away = apart;
            }
        }

        Self {
            fewer,
            fewer_at_s: fewer_at + seconds(FAULT_FROM),
            fewer_for_s,
            hours: bent.spent() / free.spent.max(1.0),
            reversals: f64::from(bent.reversals) - free.reversals,
            away,
            beside: Beside::Own,
            served_less: 100.0 * (free.served_well - bent.served_well),
        }
    }

    pub(crate) fn holds(&self) -> bool {
        self.broken().is_empty()
    }

    /// Beside `same`, the comparison with a run that had as many replicas when the fault ended: what a policy keeps of a number
    /// without any fault, no fault has done.
    pub(crate) fn or_same_number(self, same: &Self) -> Self {
        if same.away.abs() >= self.away.abs() {
            return self;
        }
        Self { away: same.away, beside: Beside::SameNumber, ..self }
    }

    /// The criteria that are broken, each with by how much.
    pub(crate) fn broken(&self) -> Vec<(f64, String)> {
        let all = [
            (self.fewer - MAX_FEWER, format!("−{}", self.fewer)),
            ((self.hours - MAX_HOURS) * 4.0, format!("{:.1}×", self.hours)),
            ((self.reversals - MAX_REVERSALS) / 2.0, format!("{}↕", self.reversals)),
            (self.away.abs() - MAX_AWAY, format!("{:+}…", self.away)),
        ];
        all.into_iter().filter(|(over, _)| *over > 0.0).collect()
    }

    /// How badly it is broken: 0 when it holds. To find the worst.
    pub(crate) fn badness(&self) -> f64 {
        self.broken().iter().map(|(over, _)| over).sum()
    }

    /// What a cell of the table says of it.
    pub(crate) fn words(&self) -> String {
        let broken = self.broken();
        if broken.is_empty() {
            return "ok".into();
        }
        broken.into_iter().map(|(_, words)| words).collect::<Vec<_>>().join(" ")
    }
}
