//! Callers: what authentication produces and authorisation uses.

use std::collections::BTreeMap;
use std::fmt;

/// The group of all authenticated users.
pub(crate) const AUTHENTICATED: &str = "system:authenticated";

/// The group of all unauthenticated users.
pub(crate) const UNAUTHENTICATED: &str = "system:unauthenticated";

/// The name of unauthenticated users.
pub(crate) const ANONYMOUS: &str = "system:anonymous";

/// The group whose members may do everything.
pub(crate) const MASTERS: &str = "system:masters";

/// A caller, as Kubernetes describes users.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct User {
    /// The user's name.
    pub name: String,
    /// The unique id, if known.
    pub uid: Option<String>,
    /// The user's groups.
    pub groups: Vec<String>,
    /// Further attributes, by lower-case key.
    pub extra: BTreeMap<String, Vec<String>>,
}

impl User {
    /// A user without groups.
    #[must_use]
    pub fn named(name: impl Into<String>) -> Self {
        Self { name: name.into(), ..Self::default() }
    }

    /// Adds [`AUTHENTICATED`], as Kubernetes' `AuthenticatedGroupAdder` does: the aggregator omits the groups of its own
    /// requests. Not added to a caller whom the aggregator itself passes on as anonymous, by name or by group.
    pub(crate) fn authenticated(mut self) -> Self {
        let is_anonymous = self.name == ANONYMOUS || self.is_in(UNAUTHENTICATED);
        if !is_anonymous && !self.is_in(AUTHENTICATED) {
            self.groups.push(AUTHENTICATED.into());
        }
        self
    }

    pub(crate) fn is_in(&self, group: &str) -> bool {
        self.groups.iter().any(|member_of| member_of == group)
    }
}

/// A bearer token. Debug output hides it.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Token(String);

impl Token {
    /// Wraps the text of a token.
    #[must_use]
    pub fn new(token: impl Into<String>) -> Self {
        Self(token.into())
    }

    /// The secret itself, for the review that checks it.
    #[must_use]
    pub fn secret(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

/// The sender of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Caller {
    /// An authenticated user.
    Known(User),
    /// A caller without credentials.
    Anonymous,
}

impl Caller {
    /// The user's name for messages.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Known(user) => &user.name,
            Self::Anonymous => ANONYMOUS,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_anonymous_caller_of_the_front_proxy_stays_unauthenticated() {
        let groups = |name: &str, groups: &[&str]| {
            let groups = groups.iter().map(|group| (*group).to_owned()).collect();
            User { groups, ..User::named(name) }.authenticated().groups
        };
        assert_eq!(groups("alice", &["dev"]), ["dev", AUTHENTICATED]);
        assert_eq!(groups("alice", &[AUTHENTICATED]), [AUTHENTICATED]);
        assert_eq!(groups(ANONYMOUS, &[UNAUTHENTICATED]), [UNAUTHENTICATED]);
        assert_eq!(groups(ANONYMOUS, &[]), Vec::<String>::new());
        assert_eq!(groups("alice", &[UNAUTHENTICATED]), [UNAUTHENTICATED]);
    }
}
