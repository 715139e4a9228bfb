//! Who asks: the values that authentication produces and authorisation uses.

use std::collections::BTreeMap;
use std::fmt;

/// The group of everybody who is known.
pub(crate) const AUTHENTICATED: &str = "system:authenticated";

/// The group of everybody who is not known.
pub(crate) const UNAUTHENTICATED: &str = "system:unauthenticated";

/// The name of everybody who is not known.
pub(crate) const ANONYMOUS: &str = "system:anonymous";

/// The group that may do everything.
pub(crate) const MASTERS: &str = "system:masters";

/// A caller, as Kubernetes describes users.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct User {
    /// The name.
    pub name: String,
    /// The unique id, when one is known.
    pub uid: Option<String>,
    /// The groups.
    pub groups: Vec<String>,
    /// Further attributes, by lower-case key.
    pub extra: BTreeMap<String, Vec<String>>,
}

impl User {
    /// A user of that name, without groups.
    #[must_use]
    pub fn named(name: impl Into<String>) -> Self {
        Self { name: name.into(), ..Self::default() }
    }

    /// Adds [`AUTHENTICATED`], as Kubernetes' `AuthenticatedGroupAdder`: the aggregator leaves the groups of its own requests
    /// out. Not to whom the aggregator itself does not know: then it says so by name or group.
    pub(crate) fn authenticated(mut self) -> Self {
        let is_anonymous = self.name == ANONYMOUS || self.is_in(UNAUTHENTICATED);
        if !is_anonymous && !self.is_in(AUTHENTICATED) {
            self.groups.push(AUTHENTICATED.into());
        }
        self
    }

    pub(crate) fn is_in(&self, group: &str) -> bool {
        self.groups.iter().any(|own| own == group)
    }
}

/// A bearer token. Never printed.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Token(String);

impl Token {
    /// Wraps a token.
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

/// Who asks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Caller {
    /// Somebody who proved who they are.
    Known(User),
    /// Nobody in particular.
    Anonymous,
}

impl Caller {
    /// The user's name as error texts give it.
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
    fn an_anonymous_caller_of_the_front_proxy_does_not_become_an_authenticated_one() {
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
