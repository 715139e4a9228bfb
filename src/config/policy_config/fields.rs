//! The fields of an entry, one by one: each is of a type and in a range, or is refused with its name, its value and what is
//! allowed. Reading goes on after a refusal, so that an author sees all that is wrong at once.

use std::collections::BTreeMap;
use std::str::FromStr;

use jiff::SignedDuration;
use smol_str::SmolStr;
use wva_core::units::Seconds;

use super::node::Node;

/// What is wrong with an entry.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Said {
    /// Why the entry does not count.
    pub(super) refused: Vec<String>,
    /// What its author should know; the entry counts.
    pub(super) notes: Vec<String>,
}

impl Said {
    pub(super) fn refuse(&mut self, problem: impl Into<String>) {
        self.refused.push(problem.into());
    }

    pub(super) fn note(&mut self, problem: impl Into<String>) {
        self.notes.push(problem.into());
    }
}

/// What a number may be.
#[derive(Debug, Clone, Copy)]
pub(super) struct Range {
    /// From here…
    pub(super) least: f64,
    /// …to here.
    pub(super) most: f64,
    /// In words.
    pub(super) words: &'static str,
    /// 0 is outside, and what the controllers before this one took for a field that is not there.
    pub(super) zero_is_absent: bool,
}

impl Range {
    pub(super) const SHARE: Self = Self { least: 0.0, most: 1.0, words: "0 to 1", zero_is_absent: false };
    pub(super) const THRESHOLD: Self =
        Self { least: f64::MIN_POSITIVE, most: 1.0, words: "above 0 and at most 1", zero_is_absent: true };
    pub(super) const AT_LEAST_0: Self =
        Self { least: 0.0, most: 1e15, words: "0 to 1e15", zero_is_absent: false };
    pub(super) const WEIGHT: Self = Self {
        least: f64::MIN_POSITIVE,
        most: 1e6,
        words: "above 0 and at most 1000000",
        zero_is_absent: true,
    };

    /// Above `least`, for numbers that the controllers before this one left out as 0.
    pub(super) const fn above(least: f64, most: f64, words: &'static str) -> Self {
        Self { least, most, words, zero_is_absent: true }
    }

    /// Both ends included.
    pub(super) const fn from(least: f64, most: f64, words: &'static str) -> Self {
        Self { least, most, words, zero_is_absent: false }
    }
}

/// The fields of one mapping.
pub(super) struct Fields<'a> {
    /// Where it is, with a dot at its end; empty at the top.
    path: String,
    given: &'a [(String, Node)],
    asked: Vec<&'static str>,
    said: &'a mut Said,
}

impl<'a> Fields<'a> {
    /// Reads all of `node`. `None` when it is no mapping; what is left unread is refused.
    pub(super) fn read<T>(
        node: &'a Node,
        said: &'a mut Said,
        read: impl FnOnce(&mut Fields<'_>) -> T,
    ) -> Option<T> {
        Self::at(String::new(), node, said, read)
    }

    fn at<T>(
        path: String,
        node: &'a Node,
        said: &'a mut Said,
        read: impl FnOnce(&mut Fields<'_>) -> T,
    ) -> Option<T> {
        let given = match node {
            Node::Map(given) => given.as_slice(),
            Node::Null => &[],
            other => {
                let what = path.trim_end_matches('.');
                let what = if what.is_empty() { "the entry" } else { what };
                said.refuse(format!("{what} is {other}: must be a mapping of fields"));
                return None;
            }
        };
        let mut fields = Fields { path, given, asked: Vec::new(), said };
        let value = read(&mut fields);
        fields.refuse_the_rest();
        Some(value)
    }

    fn refuse_the_rest(self) {
        let known = self.asked.join(", ");
        for (name, _) in self.given.iter().filter(|(name, _)| !self.asked.contains(&name.as_str())) {
            let name = Node::Text(name.clone());
            self.said.refuse(format!("{}{name} is not a field: must be one of {known}", self.path));
        }
    }

    /// The value of a field that is there.
    fn take(&mut self, name: &'static str) -> Option<&'a Node> {
        self.asked.push(name);
        let found = self.given.iter().find(|(own, _)| own == name).map(|(_, node)| node);
        found.filter(|node| **node != Node::Null)
    }

    /// True when a field says something.
    pub(super) fn has(&self, name: &str) -> bool {
        self.given.iter().any(|(own, node)| own == name && *node != Node::Null)
    }

    /// Refuses what a field says.
    pub(super) fn refuse(&mut self, name: &str, value: &Node, allowed: &str) {
        self.said.refuse(format!("{}{name} {value} is out of range: must be {allowed}", self.path));
    }

    /// Tells the author about a field.
    pub(super) fn note(&mut self, name: &str, text: &str) {
        self.said.note(format!("{}{name} {text}", self.path));
    }

    /// Refuses what several fields say together.
    pub(super) fn refuse_all(&mut self, problem: &str) {
        self.said.refuse(format!("{}{problem}", self.path));
    }

    pub(super) fn number(&mut self, name: &'static str, range: Range) -> Option<f64> {
        let node = self.take(name)?;
        match node {
            Node::Number(0.0) if range.zero_is_absent => {
                self.note(name, "0 counts as left out");
                None
            }
            Node::Number(value) if *value >= range.least && *value <= range.most => Some(*value),
            Node::Number(_) => {
                self.refuse(name, node, range.words);
                None
            }
            _ => {
                self.refuse(name, node, &format!("a number, {}", range.words));
                None
            }
        }
    }

    /// A number that must be there, and may be in quotes.
    pub(super) fn needed(&mut self, name: &'static str, range: Range) -> Option<f64> {
        let Some(node) = self.take(name) else {
            self.refuse_all(&format!("{name} is missing: must be {}", range.words));
            return None;
        };
        let value = match node {
            Node::Number(value) => Some(*value),
            Node::Text(text) => text.trim().parse().ok(),
            _ => None,
        };
        let value = value.filter(|value| (range.least..=range.most).contains(value));
        if value.is_none() {
            self.refuse(name, node, range.words);
        }
        value
    }

    /// A whole number.
    pub(super) fn whole(&mut self, name: &'static str, least: u32, most: u32) -> Option<u32> {
        let node = self.take(name)?;
        let whole = as_whole(node).and_then(|value| u32::try_from(value).ok());
        let whole = whole.filter(|value| (least..=most).contains(value));
        if whole.is_none() {
            self.refuse(name, node, &format!("a whole number, {least} to {most}"));
        }
        whole
    }

    /// A switch, in words of YAML 1.1 too.
    pub(super) fn switch(&mut self, name: &'static str) -> Option<bool> {
        let node = self.take(name)?;
        let word = match node {
            Node::Bool(value) => return Some(*value),
            Node::Text(text) => text.to_ascii_lowercase(),
            _ => String::new(),
        };
        match word.as_str() {
            "y" | "yes" | "on" => Some(true),
            "n" | "no" | "off" => Some(false),
            _ => {
                self.refuse(name, node, "true or false");
                None
            }
        }
    }

    /// A text; an empty one counts as left out.
    pub(super) fn text(&mut self, name: &'static str) -> Option<&'a str> {
        match self.take(name)? {
            Node::Text(text) => Some(text.as_str()).filter(|text| !text.is_empty()),
            node => {
                self.refuse(name, node, "text: put it in quotes");
                None
            }
        }
    }

    /// A length of time as flags have it.
    pub(super) fn duration(&mut self, name: &'static str, least: Seconds, most: Seconds) -> Option<Seconds> {
        let node = self.take(name)?;
        let seconds = match node {
            Node::Text(text) => duration(text),
            Node::Number(0.0) => Some(Seconds::ZERO),
            _ => None,
        };
        let seconds = seconds.filter(|value| *value >= least && *value <= most);
        if seconds.is_none() {
            let allowed = format!("a duration such as 90s or 10m, {} to {}", shown(least), shown(most));
            self.refuse(name, node, &allowed);
        }
        seconds
    }

    /// A mapping in this one.
    pub(super) fn within<T>(
        &mut self,
        name: &'static str,
        read: impl FnOnce(&mut Fields<'_>) -> T,
    ) -> Option<T> {
        let node = self.take(name)?;
        Fields::at(format!("{}{name}.", self.path), node, self.said, read)
    }

    /// A list of mappings.
    pub(super) fn each<T>(
        &mut self,
        name: &'static str,
        mut read: impl FnMut(&mut Fields<'_>) -> T,
    ) -> Option<Vec<T>> {
        let nodes = self.list(name, "a list")?;
        let one = |(at, node)| Fields::at(format!("{}{name}[{at}].", self.path), node, self.said, &mut read);
        Some(nodes.iter().enumerate().filter_map(one).collect())
    }

    /// A list of texts.
    pub(super) fn texts(&mut self, name: &'static str) -> Option<Vec<SmolStr>> {
        let nodes = self.list(name, "a list of texts")?;
        let mut texts = Vec::new();
        for (at, node) in nodes.iter().enumerate() {
            match node {
                Node::Text(text) => texts.push(text.into()),
                other => self.refuse(&format!("{name}[{at}]"), other, "text: put it in quotes"),
            }
        }
        Some(texts)
    }

    fn list(&mut self, name: &'static str, allowed: &str) -> Option<&'a [Node]> {
        match self.take(name)? {
            Node::List(nodes) => Some(nodes),
            node => {
                self.refuse(name, node, allowed);
                None
            }
        }
    }

    /// Values by names that the author chooses.
    pub(super) fn by_name<T>(
        &mut self,
        name: &'static str,
        mut read: impl FnMut(&mut Fields<'_>, &str, &Node) -> Option<T>,
    ) -> Option<BTreeMap<SmolStr, T>> {
        let node = self.take(name)?;
        self.entries(name, node, &mut read)
    }

    /// Values by two names.
    pub(super) fn by_two_names<T>(
        &mut self,
        name: &'static str,
        mut read: impl FnMut(&mut Fields<'_>, &str, &Node) -> Option<T>,
    ) -> Option<BTreeMap<SmolStr, BTreeMap<SmolStr, T>>> {
        let node = self.take(name)?;
        self.entries(name, node, &mut |fields, path, inner| fields.entries(path, inner, &mut read))
    }

    fn entries<T>(
        &mut self,
        path: &str,
        node: &Node,
        read: &mut impl FnMut(&mut Fields<'_>, &str, &Node) -> Option<T>,
    ) -> Option<BTreeMap<SmolStr, T>> {
        let given = match node {
            Node::Map(given) => given.as_slice(),
            Node::Null => &[],
            other => {
                self.refuse(path, other, "a mapping");
                return None;
            }
        };
        let one = |(own, node): &(String, Node)| {
            Some((SmolStr::from(own), read(self, &format!("{path}.{own}"), node)?))
        };
        Some(given.iter().filter_map(one).collect())
    }
}

/// A number without a fraction that 53 bits hold.
pub(super) fn as_whole(node: &Node) -> Option<i64> {
    const EXACT: f64 = 9_007_199_254_740_992.0;
    match node {
        #[expect(clippy::cast_possible_truncation, reason = "whole, and small enough to be exact")]
        Node::Number(value) if value.fract() == 0.0 && value.abs() <= EXACT => Some(*value as i64),
        _ => None,
    }
}

/// A duration as Go and flags write it; `None` when it is none, or negative.
fn duration(text: &str) -> Option<Seconds> {
    let text = text.trim();
    if text == "0" {
        return Some(Seconds::ZERO);
    }
    let span = SignedDuration::from_str(text).ok()?;
    Seconds::new(span.as_secs_f64()).ok()
}

fn shown(time: Seconds) -> String {
    let whole = time.get();
    if whole >= 3600.0 { format!("{}h", whole / 3600.0) } else { format!("{whole}s") }
}
