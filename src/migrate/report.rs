//! The result: sentences and commands, by section. All text of objects in it is on one line and bounded.

use std::fmt;

use serde::Serialize;

use wva_core::text::plain;

/// Longest sentence, in bytes: a few names of 253 characters and what to do.
const MAX_TEXT_BYTES: usize = 2048;

/// A namespace and a name. The namespace of a cluster object is empty.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ObjectName {
    pub(super) namespace: String,
    pub(super) name: String,
}

impl ObjectName {
    pub(super) fn new(namespace: &str, name: &str) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }
}

impl fmt::Display for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { namespace, name } = self;
        if namespace.is_empty() { f.write_str(name) } else { write!(f, "{namespace}/{name}") }
    }
}

/// What a migration would be.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// What was found.
    pub found: Vec<String>,
    /// What stays as it is.
    pub same: Vec<String>,
    /// What changes.
    pub changes: Vec<Finding>,
    /// What is lost.
    pub lost: Vec<Finding>,
    /// The commands of the migration, in their order.
    pub commands: Vec<Step>,
    /// The commands that undo it.
    pub back: Vec<Step>,
    /// What could not be read, each with its cause and what to do.
    pub unread: Vec<String>,
}

/// Something that changes, or is lost.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Finding {
    /// The object.
    pub object: String,
    /// What happens to it, and why.
    pub cause: String,
    /// What to do; `None` if nothing needs to be done.
    pub next_step: Option<String>,
}

/// A step, and its commands for a POSIX shell.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Step {
    /// What it does.
    pub title: String,
    /// One or more lines each; none if it is to be done by hand.
    pub commands: Vec<String>,
}

/// Whether a migration can begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Readiness {
    /// Only the commands are to be run.
    Ready,
    /// So many findings have a next step of their own.
    NeedsAction(usize),
    /// Something could not be read, so there may be more to do.
    Incomplete,
}

impl Report {
    /// Whether the migration can begin.
    #[must_use]
    pub fn readiness(&self) -> Readiness {
        let actions = self.changes.iter().chain(&self.lost).filter(|finding| finding.next_step.is_some());
        match (self.unread.is_empty(), actions.count()) {
            (false, _) => Readiness::Incomplete,
            (true, 0) => Readiness::Ready,
            (true, actions) => Readiness::NeedsAction(actions),
        }
    }

    pub(super) fn found(&mut self, text: impl fmt::Display) {
        self.found.push(sentence(text));
    }

    pub(super) fn same(&mut self, text: impl fmt::Display) {
        self.same.push(sentence(text));
    }

    /// A change that needs nothing to be done.
    pub(super) fn change(&mut self, object: impl fmt::Display, cause: impl fmt::Display) {
        self.changes.push(Finding { object: sentence(object), cause: sentence(cause), next_step: None });
    }

    /// A change that needs `next_step`.
    pub(super) fn act(
        &mut self,
        object: impl fmt::Display,
        cause: impl fmt::Display,
        next_step: impl fmt::Display,
    ) {
        self.changes.push(Finding::new(object, cause, next_step));
    }

    /// A loss that `next_step` avoids.
    pub(super) fn lose(
        &mut self,
        object: impl fmt::Display,
        cause: impl fmt::Display,
        next_step: impl fmt::Display,
    ) {
        self.lost.push(Finding::new(object, cause, next_step));
    }

    pub(super) fn unread(&mut self, text: impl fmt::Display) {
        self.unread.push(sentence(text));
    }
}

impl Finding {
    fn new(object: impl fmt::Display, cause: impl fmt::Display, next_step: impl fmt::Display) -> Self {
        let next_step = Some(sentence(next_step));
        Self { object: sentence(object), cause: sentence(cause), next_step }
    }
}

impl Step {
    pub(super) fn new(title: impl fmt::Display, commands: Vec<String>) -> Self {
        Self { title: sentence(title), commands }
    }
}

/// A number of things, of which `thing` is one.
pub(super) fn count(number: usize, thing: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {thing}{plural}")
}

fn sentence(text: impl fmt::Display) -> String {
    plain(&without_userinfo(&text.to_string()), MAX_TEXT_BYTES)
}

/// `text` without the users and passwords of the URLs in it: what is before an `@` in the same word is left out.
pub(super) fn without_userinfo(text: &str) -> String {
    let mut kept = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("://") {
        let end = after.find([' ', '\n', '"', '\'']).unwrap_or(after.len());
        let (url, next) = after.split_at(end);
        kept.push_str(before);
        kept.push_str("://");
        kept.push_str(url.rsplit_once('@').map_or(url, |(_, host)| host));
        rest = next;
    }
    kept + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_in_a_url_is_never_shown_wherever_the_url_is() {
        for (text, shown) in [
            ("https://user:geheim@p:9090/x", "https://p:9090/x"),
            (
                "--prometheus-url 'http://u:ge/heim@p' and \"https://geheim@q\"",
                "--prometheus-url 'http://p' and \"https://q\"",
            ),
            ("https://p:9090", "https://p:9090"),
            ("a@b", "a@b"),
        ] {
            assert_eq!(without_userinfo(text), shown);
        }
    }
}
