//! The port to whoever decides on access: the API server in a cluster, [`AllowAll`] in the demo.

use futures::future::BoxFuture;

use super::identity::{Token, User};

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
}
