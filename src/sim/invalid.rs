//! Validation of scenarios and controllers: the invalid field, its value, and what is allowed.

use std::time::Duration;

use smol_str::{SmolStr, ToSmolStr, format_smolstr};

/// An invalid field of a scenario or a controller.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field} is {value}: must be {allowed}")]
pub struct Invalid {
    /// The path of the field, for example `variants[1].start_up.mean`.
    pub field: SmolStr,
    /// Its value.
    pub value: SmolStr,
    /// What is allowed.
    pub allowed: SmolStr,
}

/// A path to a field. A linked list on the stack, so that valid fields allocate nothing.
#[derive(Debug, Clone, Copy)]
pub(super) struct Field<'a> {
    parent: Option<&'a Field<'a>>,
    step: Step,
}

#[derive(Debug, Clone, Copy)]
enum Step {
    Root,
    Name(&'static str),
    Item(usize),
}

impl Field<'_> {
    pub(super) const fn root() -> Field<'static> {
        Field { parent: None, step: Step::Root }
    }

    pub(super) const fn at(&self, name: &'static str) -> Field<'_> {
        Field { parent: Some(self), step: Step::Name(name) }
    }

    pub(super) const fn item(&self, index: usize) -> Field<'_> {
        Field { parent: Some(self), step: Step::Item(index) }
    }

    fn path(&self) -> SmolStr {
        let before = self.parent.map_or(SmolStr::default(), Field::path);
        match self.step {
            Step::Root => before,
            Step::Name(name) if before.is_empty() => SmolStr::new_static(name),
            Step::Name(name) => format_smolstr!("{before}.{name}"),
            Step::Item(index) => format_smolstr!("{before}[{index}]"),
        }
    }

    pub(super) fn rule(&self, holds: bool, value: &str, allowed: &str) -> Result<(), Invalid> {
        if holds {
            return Ok(());
        }
        Err(Invalid { field: self.path(), value: value.to_smolstr(), allowed: allowed.to_smolstr() })
    }

    pub(super) fn number(&self, value: f64, min: f64, max: f64) -> Result<(), Invalid> {
        if value.is_finite() && (min..=max).contains(&value) {
            return Ok(());
        }
        self.rule(false, &value.to_smolstr(), &format_smolstr!("{min} to {max}"))
    }

    pub(super) fn span(&self, value: Duration, min: Duration, max: Duration) -> Result<(), Invalid> {
        if (min..=max).contains(&value) {
            return Ok(());
        }
        self.rule(false, &format_smolstr!("{value:?}"), &format_smolstr!("{min:?} to {max:?}"))
    }
}
