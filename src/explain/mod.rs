//! Explains the decision about one variant: as data, as a text that fits on one screen, and as the answer to why the number is
//! not another one. The commands and the server's explanations are made here.

mod explanation;
mod format;
mod screen;
mod why_not;

pub(crate) use explanation::Explanation;
pub(crate) use format::{explanation_text, number_and_reason};
pub(crate) use screen::{elapsed, screen};
pub(crate) use why_not::WhyNot;
