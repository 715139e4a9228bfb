//! Ports of one room, implemented by another: `serve` and `cluster` do not import each other.

use std::sync::Arc;

use futures::future::BoxFuture;
use k8s_openapi::api::authorization::v1::{
    NonResourceAttributes, ResourceAttributes, SubjectAccessReviewSpec,
};

use wva_core::VariantId;

use crate::cluster::pki::certificates::DEFAULT_SECRET_NAME;
use crate::cluster::pki::{CertificateSettings, ServiceRef};
use crate::cluster::reviews::{self, AccessDecision};
use crate::cluster::{CallRegister, CertificateBundle, ClusterReader, EventRecorder};
use crate::config::{Config, Installation};
use crate::serve::auth::{Access, Attributes, ReviewError, Reviewer, Token, User};
use crate::serve::tls::{RECHECK_INTERVAL, ServingCertificate, SharedPki};
use crate::serve::{
    AcceptedForwarder, AmbiguousSelector, EventSink, InstallationSettings, OtherInstallation,
    ScaledObjectCalls,
};

/// Authentication and authorisation by the API server.
pub(super) struct ClusterReviewer(pub kube::Client);

impl Reviewer for ClusterReviewer {
    fn token<'a>(&'a self, token: &'a Token) -> BoxFuture<'a, Result<Option<User>, ReviewError>> {
        Box::pin(async move {
            let user = reviews::review_token(&self.0, token.secret()).await;
            let user = user.map_err(|error| undecided(&error))?;
            Ok(user.map(|user| User {
                name: user.username.unwrap_or_default(),
                uid: user.uid.filter(|uid| !uid.is_empty()),
                groups: user.groups.unwrap_or_default(),
                extra: user.extra.unwrap_or_default(),
            }))
        })
    }

    fn access<'a>(
        &'a self,
        user: &'a User,
        attributes: &'a Attributes,
    ) -> BoxFuture<'a, Result<Access, ReviewError>> {
        Box::pin(async move {
            let decision = reviews::check_access(&self.0, review_spec(user, attributes)).await;
            let AccessDecision { allowed, reason } = decision.map_err(|error| undecided(&error))?;
            Ok(if allowed { Access::Allowed } else { Access::Denied { reason } })
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

fn review_spec(user: &User, attributes: &Attributes) -> SubjectAccessReviewSpec {
    let text = |text: &str| Some(text).filter(|text| !text.is_empty()).map(str::to_owned);
    let mut spec = SubjectAccessReviewSpec {
        user: text(&user.name),
        uid: user.uid.as_deref().and_then(text),
        groups: Some(user.groups.clone()),
        extra: Some(user.extra.clone()),
        ..SubjectAccessReviewSpec::default()
    };
    match attributes {
        Attributes::Resource { verb, group, version, resource, subresource, namespace, name } => {
            spec.resource_attributes = Some(ResourceAttributes {
                namespace: text(namespace),
                verb: text(verb),
                group: text(group),
                version: text(version),
                resource: text(resource),
                subresource: text(subresource),
                name: text(name),
                ..ResourceAttributes::default()
            });
        }
        Attributes::Path { verb, path } => {
            spec.non_resource_attributes = Some(NonResourceAttributes { path: text(path), verb: text(verb) });
        }
    }
    spec
}

/// An ambiguous selector is recorded as an event.
impl EventSink for EventRecorder {
    fn ambiguous_selector(&self, read: &AmbiguousSelector<'_>) {
        self.record_ambiguous_selector(read.metric, read.selector, read.variants);
    }
}

/// ScaledObjects that KEDA's calls make variants.
pub(super) struct NotedCalls {
    register: CallRegister,
    cluster: ClusterReader,
}

impl NotedCalls {
    pub(super) fn port(register: CallRegister, cluster: ClusterReader) -> Arc<dyn ScaledObjectCalls> {
        Arc::new(Self { register, cluster })
    }
}

impl ScaledObjectCalls for NotedCalls {
    fn verdict(&self, namespace: &str, name: &str) -> Option<Result<(), String>> {
        let (state, id) = (self.cluster.state(), VariantId::new(namespace, name));
        if let Some(verdict) = state.annotated_verdict(&id) {
            return Some(verdict);
        }
        Some(state.called.get(&id)?.clone().map_err(String::from))
    }

    fn note(&self, namespace: &str, name: &str) -> Result<(), String> {
        let state = self.cluster.state();
        if state.annotated_verdict(&VariantId::new(namespace, name)).is_some() {
            return Ok(());
        }
        self.register.note(namespace, name, || state.idle_calls())
    }

    fn renew(&self, namespace: &str, name: &str) {
        self.register.renew(namespace, name);
    }
}

/// What is served with.
pub(super) fn serving_certificate(config: &Config) -> ServingCertificate {
    match &config.certificate {
        Some(files) => ServingCertificate::Files {
            certificate: files.chain.clone(),
            key: files.key.clone(),
            recheck_interval: RECHECK_INTERVAL,
        },
        None => ServingCertificate::Shared,
    }
}

/// The other installations, for `serve`.
pub(super) fn installation_settings(config: &Config) -> InstallationSettings {
    let others = config.installations.iter().cloned().map(|installation| {
        let Installation { name, host, port, server_name, ca, namespaces, controller_instance } =
            installation;
        OtherInstallation { name, host, port, server_name, ca_file: ca, namespaces, controller_instance }
    });
    let forwarder = config
        .forwarder
        .clone()
        .map(|forwarder| AcceptedForwarder { ca_file: forwarder.ca, name: forwarder.name });
    InstallationSettings { others: others.collect(), forwarder, recheck_interval: RECHECK_INTERVAL }
}

/// The shared certificates, for `serve`.
pub(super) fn shared_pki(bundle: &CertificateBundle) -> SharedPki {
    SharedPki { ca_pem: bundle.trust(), cert_pem: bundle.cert.clone(), key_pem: bundle.key.clone() }
}

/// The Service of this program, by which the API server reaches it.
pub(super) fn service_ref(config: &Config) -> ServiceRef {
    ServiceRef { namespace: config.namespace.clone(), name: config.service.clone() }
}

/// How the certificates of this program are issued.
pub(super) fn certificate_settings(config: &Config) -> CertificateSettings {
    CertificateSettings {
        secret: DEFAULT_SECRET_NAME.into(),
        service: service_ref(config),
        settle: config.ca_settle,
    }
}
