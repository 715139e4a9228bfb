//! The text of reasons: the only place that makes sentences of them. Nothing reads these texts back.

mod basis;
mod capacity_constraint;
mod explanation;
mod quantity;
mod scorecard;
mod step;

use std::fmt::{self, Display, Formatter};

use crate::model::Role;
use crate::units::Replicas;

/// Writes clauses with `; ` between them.
pub(super) struct Clauses<'a, 'f> {
    pub(super) f: &'a mut Formatter<'f>,
    pub(super) is_first: bool,
}

impl Clauses<'_, '_> {
    pub(super) fn add(&mut self, clause: impl Display) -> fmt::Result {
        if !std::mem::take(&mut self.is_first) {
            self.f.write_str("; ")?;
        }
        write!(self.f, "{clause}")
    }
}

/// Something that is written by a function.
pub(in crate::report) struct Text<F>(pub(in crate::report) F);

impl<F: Fn(&mut Formatter<'_>) -> fmt::Result> Display for Text<F> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.0(f)
    }
}

/// A count with its noun.
pub(super) fn counted(count: u32, noun: &'static str) -> impl Display {
    Text(move |f: &mut Formatter<'_>| {
        let plural = if count == 1 { "" } else { "s" };
        write!(f, "{count} {noun}{plural}")
    })
}

pub(super) fn replicas(count: Replicas) -> impl Display {
    counted(count.get(), "replica")
}

/// A quantity with about three digits.
pub(super) fn amount(value: f64) -> impl Display {
    Text(move |f: &mut Formatter<'_>| match value.abs() {
        0.0..9.995 => write!(f, "{value:.2}"),
        9.995..999.95 => write!(f, "{value:.1}"),
        _ => write!(f, "{value:.0}"),
    })
}

pub(super) fn percent(share: f64) -> impl Display {
    Text(move |f: &mut Formatter<'_>| write!(f, "{:.0} %", share * 100.0))
}

pub(super) fn role_name(role: Role) -> &'static str {
    match role {
        Role::Both => "both",
        Role::Decode => "decode",
        Role::Prefill => "prefill",
    }
}
