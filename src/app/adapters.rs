//! Glue between rooms that do not know each other: one room's port, filled by another room.

use futures::future::BoxFuture;

use crate::cluster::{CertificateBundle, EventRecorder, reviews};
use crate::serve::auth::{Access, Attributes, ReviewError, Reviewer, Token, User};
use crate::serve::tls::SharedPki;
use crate::serve::{AmbiguousSelector, EventSink};

/// The API server decides who may read.
pub(super) struct ClusterReviewer(pub kube::Client);

impl Reviewer for ClusterReviewer {
    fn token<'a>(&'a self, token: &'a Token) -> BoxFuture<'a, Result<Option<User>, ReviewError>> {
        Box::pin(async move {
            let subject = reviews::review_token(&self.0, token.secret()).await;
            let subject = subject.map_err(|error| undecided(&error))?;
            Ok(subject.map(|subject| User {
                name: subject.user,
                uid: Some(subject.uid).filter(|uid| !uid.is_empty()),
                groups: subject.groups,
                extra: subject.extra,
            }))
        })
    }

    fn access<'a>(
        &'a self,
        user: &'a User,
        attributes: &'a Attributes,
    ) -> BoxFuture<'a, Result<Access, ReviewError>> {
        Box::pin(async move {
            let decision = reviews::check_access(&self.0, &subject(user), &access(attributes)).await;
            let decision = decision.map_err(|error| undecided(&error))?;
            let reason = Some(decision.reason).filter(|reason| !reason.is_empty());
            Ok(if decision.allowed { Access::Allowed } else { Access::Denied { reason } })
        })
    }
}

fn undecided(error: &reviews::ReviewError) -> ReviewError {
    if error.is_rejection() {
        ReviewError::Refused(error.to_string())
    } else {
        ReviewError::Unavailable(error.to_string())
    }
}

fn subject(user: &User) -> reviews::Subject {
    reviews::Subject {
        user: user.name.clone(),
        uid: user.uid.clone().unwrap_or_default(),
        groups: user.groups.clone(),
        extra: user.extra.clone(),
    }
}

fn access(attributes: &Attributes) -> reviews::Access {
    match attributes {
        Attributes::Resource { verb, group, version, resource, subresource, namespace, name } => {
            reviews::Access::Resource {
                namespace: namespace.clone(),
                verb: (*verb).into(),
                group: (*group).into(),
                version: (*version).into(),
                resource: resource.clone(),
                subresource: subresource.clone(),
                name: name.clone(),
            }
        }
        Attributes::Path { verb, path } => {
            reviews::Access::Path { path: (*path).into(), verb: (*verb).into() }
        }
    }
}

/// What people should know becomes an event of the cluster.
impl EventSink for EventRecorder {
    fn ambiguous_selector(&self, read: &AmbiguousSelector<'_>) {
        self.record_ambiguous_selector(read.metric, read.selector, read.variants);
    }
}

/// The Secret's content, as the serving edge wants it.
pub(super) fn shared_pki(bundle: &CertificateBundle) -> SharedPki {
    SharedPki { ca_pem: bundle.trust(), cert_pem: bundle.cert.clone(), key_pem: bundle.key.clone() }
}
