//! Callers, what they request, and the port to whoever decides on access: the API server in a cluster, [`AllowAll`] in the
//! demo.

use std::collections::BTreeMap;
use std::fmt;

use futures::future::BoxFuture;

/// What a request is about, as authorisation sees it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Attributes {
    /// An object of an API.
    Resource {
        /// `list` for an external metric, `get` for the metric of an object.
        verb: &'static str,
        /// The API group.
        group: &'static str,
        /// The API version.
        version: &'static str,
        /// The resource: the external metric's name, or the kind of object that a metric is of.
        resource: String,
        /// The metric of an object; empty for an external one.
        subresource: String,
        /// The namespace.
        namespace: String,
        /// The object's name, `*` for all; empty for an external metric.
        name: String,
    },
    /// A path that belongs to no API object.
    Path {
        /// The method in lower case.
        verb: &'static str,
        /// The path of the URL.
        path: &'static str,
    },
}

impl Attributes {
    /// The same about all objects of the kind, if it reads some by their name. An authorizer grants that only to those who may do so with
    /// any of them.
    pub(crate) fn of_all_objects(&self) -> Option<Self> {
        let mut all = match self {
            Self::Resource { verb: "get", name, .. } if !name.is_empty() => self.clone(),
            _ => return None,
        };
        if let Self::Resource { name, .. } = &mut all {
            name.clear();
        }
        Some(all)
    }
}

/// What the reviewer decided.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Access {
    /// Allowed.
    Allowed,
    /// Denied, or no opinion.
    Denied {
        /// Why, if the reviewer says so.
        reason: Option<String>,
    },
}

/// A review that led to no decision.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReviewError {
    /// The reviewer cannot be reached or is overloaded. Its earlier decisions may still hold.
    #[error("{0}")]
    Unavailable(String),
    /// The reviewer rejected the review itself.
    #[error("{0}")]
    Refused(String),
}

/// Authenticates tokens and decides on access.
pub trait Reviewer: Send + Sync + 'static {
    /// The token's user; `None` for an invalid token.
    fn token<'a>(&'a self, token: &'a Token) -> BoxFuture<'a, Result<Option<User>, ReviewError>>;

    /// Whether `user` may do what `attributes` describe.
    fn access<'a>(
        &'a self,
        user: &'a User,
        attributes: &'a Attributes,
    ) -> BoxFuture<'a, Result<Access, ReviewError>>;
}

/// Allows every authenticated caller everything, and knows one token. For the demo on loopback.
#[derive(Debug, Clone, Default)]
pub struct AllowAll {
    /// The accepted token and its user's name.
    pub token: Option<(Token, String)>,
}

impl Reviewer for AllowAll {
    fn token<'a>(&'a self, token: &'a Token) -> BoxFuture<'a, Result<Option<User>, ReviewError>> {
        let known = self.token.as_ref().filter(|(known, _)| known == token);
        let user = known.map(|(_, name)| User::named(name));
        Box::pin(async move { Ok(user) })
    }

    fn access<'a>(&'a self, _: &'a User, _: &'a Attributes) -> BoxFuture<'a, Result<Access, ReviewError>> {
        Box::pin(async { Ok(Access::Allowed) })
    }
}

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
pub(crate) enum Caller {
    /// An authenticated user.
    Known(User),
    /// A user whose request the API server has passed on, and has authorised before with all its attributes.
    Proxied(User),
    /// A caller without credentials.
    Anonymous,
}

impl Caller {
    /// The user's name for messages.
    pub(crate) fn name(&self) -> &str {
        match self {
            Self::Known(user) | Self::Proxied(user) => &user.name,
            Self::Anonymous => ANONYMOUS,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_the_configured_token_is_accepted() {
        let demo = AllowAll { token: Some((Token::new("t"), "demo".into())) };
        assert_eq!(demo.token(&Token::new("t")).await, Ok(Some(User::named("demo"))));
        assert_eq!(demo.token(&Token::new("T")).await, Ok(None));
        assert_eq!(AllowAll::default().token(&Token::new("")).await, Ok(None));
    }

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
