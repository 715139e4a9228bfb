//! The port to whoever decides: the API server in a cluster, everybody's friend in the demo.

use futures::future::BoxFuture;

use super::identity::{Token, User};

/// What a caller wants to do.
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
    /// Anything else.
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
    /// Yes.
    Allowed,
    /// No, or no opinion.
    Denied {
        /// Why, when the reviewer says.
        reason: Option<String>,
    },
}

/// A review that could not be made: no decision.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReviewError {
    /// The reviewer cannot be reached, or has too much to do: what it decided before may still be so.
    #[error("{0}")]
    Unavailable(String),
    /// The reviewer does not take the question.
    #[error("{0}")]
    Refused(String),
}

/// Decides who somebody is and what they may do.
pub trait Reviewer: Send + Sync + 'static {
    /// The user that a token stands for; `None` when it stands for nobody.
    fn token<'a>(&'a self, token: &'a Token) -> BoxFuture<'a, Result<Option<User>, ReviewError>>;

    /// Whether a user may do something.
    fn access<'a>(
        &'a self,
        user: &'a User,
        attributes: &'a Attributes,
    ) -> BoxFuture<'a, Result<Access, ReviewError>>;
}

/// Lets every known caller do everything; knows one token. For the demo on loopback.
#[derive(Debug, Clone, Default)]
pub struct AllowAll {
    /// The token that is accepted, and the name it stands for.
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
    async fn the_demo_knows_its_own_token_and_no_other() {
        let demo = AllowAll { token: Some((Token::new("t"), "demo".into())) };
        assert_eq!(demo.token(&Token::new("t")).await, Ok(Some(User::named("demo"))));
        assert_eq!(demo.token(&Token::new("T")).await, Ok(None));
        assert_eq!(AllowAll::default().token(&Token::new("")).await, Ok(None));
    }
}
