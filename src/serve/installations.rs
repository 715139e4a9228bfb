//! Several installations in one cluster, all read through the one that the APIService points to. A read that may be about variants
//! of others is forwarded to those that the administrator lists, and answered from the values of all. Each of them answers only
//! with its own variants and forwards no further. Who may read has been decided before. A read that is only about own variants
//! waits for nobody else.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::body::Bytes;
use axum::response::Response;
use futures::future::{join, join_all};
use http::header::WARNING;
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Request, StatusCode, Uri};
use http_body_util::{BodyExt, Empty};
use parking_lot::Mutex;
use tokio::sync::watch;
use wva_core::VariantId;

use super::data_read::{ReadState, add_warning};
use super::encoding::{Reason, Status, internal_error, one_line};
use super::external_metrics::{ForwardedValue, ForwardedValues, MetricRead, Ours, ReadScope};
use super::forward::{Destination, PooledConnection, RequestFailure};
use super::middleware::AuditId;
use super::paths::{ANSWERED_BY, AUDIT_ID, INSTALLATION, installation_path};
use super::tls::pem_file::PemFile;
use super::tls::{Permits, SharedPki};

/// The most time for an answer, with the connection that it may need. An HPA waits 30 s.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);

/// Bytes of an answer: the most values, each with its texts.
const MAX_ANSWER_BYTES: usize = 1024 * 1024;

/// Values of an answer; a read of an HPA needs one.
const MAX_VALUES: usize = 1_000;

/// Reads that wait for other installations: half of all reads at most, so that silent ones do not take the permits of reads of own
/// variants.
const MAX_FORWARDED_READS: usize = 256;

/// Reads that wait for one installation: half of these, shared evenly with the others, but enough for the HPAs of a namespace.
const MIN_READS_OF_ONE: usize = 16;

/// Bytes of a text of an installation in a message.
const MAX_TEXT_BYTES: usize = 512;

/// Variants of several installations that are logged.
const MAX_LOGGED_VARIANTS: usize = 100;

/// Another installation, which answers reads about its variants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OtherInstallation {
    /// Its name in messages.
    pub name: String,
    /// The host of its Service.
    pub host: String,
    /// The port of its Service.
    pub port: u16,
    /// The name in its serving certificate.
    pub server_name: String,
    /// The CA of its serving certificate, PEM.
    pub ca_file: PathBuf,
    /// The namespaces that it is asked about.
    pub namespaces: BTreeSet<String>,
    /// The label `controller_instance` of its variants; `None` for any.
    pub controller_instance: Option<String>,
}

/// The installation that may forward reads to this one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AcceptedForwarder {
    /// The CA of its client certificate, PEM.
    pub ca_file: PathBuf,
    /// The DNS name in the certificate.
    pub name: String,
}

/// How installations read each other's variants; by default not at all.
#[derive(Debug, Clone, Default)]
pub struct InstallationSettings {
    /// Those that reads are forwarded to.
    pub others: Vec<OtherInstallation>,
    /// That which may forward reads.
    pub forwarder: Option<AcceptedForwarder>,
    /// How often files with CAs are read again.
    pub recheck_interval: Duration,
}

/// Other installations, and what this one presents to them.
pub(crate) struct Installations {
    peers: Vec<Installation>,
    permits: Permits,
    pki: watch::Receiver<Option<SharedPki>>,
    /// Variants that several installations have, as far as that is logged.
    duplicates: Mutex<BTreeSet<VariantId>>,
}

struct Installation {
    settings: OtherInstallation,
    ca: Arc<PemFile>,
    connection: PooledConnection,
    permits: Permits,
    is_failing: AtomicBool,
}

/// What an installation has answered.
struct Received {
    values: Vec<ForwardedValue>,
    warnings: Vec<String>,
}

/// Why an installation could not be read, and what to do.
struct Unreadable {
    cause: String,
    next: &'static str,
}

impl Unreadable {
    fn new(cause: impl Into<String>, next: &'static str) -> Self {
        Self { cause: cause.into(), next }
    }
}

impl Installations {
    pub(crate) fn new(settings: &InstallationSettings, pki: watch::Receiver<Option<SharedPki>>) -> Self {
        let share = MAX_FORWARDED_READS / 2 / settings.others.len().max(1);
        let max_reads = share.max(MIN_READS_OF_ONE);
        let peers = settings.others.iter().map(|peer| Installation {
            settings: peer.clone(),
            ca: Arc::new(PemFile::new(peer.ca_file.clone(), settings.recheck_interval)),
            connection: PooledConnection::new(ANSWER_TIMEOUT, MAX_ANSWER_BYTES),
            permits: Permits::new(max_reads),
            is_failing: AtomicBool::new(false),
        });
        Self {
            peers: peers.collect(),
            permits: Permits::new(MAX_FORWARDED_READS),
            pki,
            duplicates: Mutex::default(),
        }
    }

    /// Reads the files with CAs for ever.
    pub(crate) async fn follow(&self) {
        join_all(self.peers.iter().map(|peer| peer.ca.follow())).await;
    }

    /// Answers an authorised client.
    pub(crate) async fn answer<R: MetricRead>(
        &self,
        reads: &ReadState,
        request: &Parts,
        audit: &AuditId,
        read: &R,
    ) -> Result<Response, Status> {
        let Some((scope, recipients)) = self.recipients(reads, read) else {
            return reads.answer(request, audit, |published| read.render(reads, published)).await;
        };
        let Some(_permit) = self.permits.acquire() else {
            let cause = "too many reads are waiting for other installations; retry later";
            return Err(read.error(Reason::ServiceUnavailable, cause));
        };
        let path = installation_path(request.uri.path_and_query().map_or("", |path| path.as_str()));
        let own = async {
            match scope.ours {
                Ours::Nothing => None,
                Ours::Part | Ours::All => Some(own_values(reads, request, &path, audit, read).await),
            }
        };
        let theirs = recipients.iter().map(|peer| self.values_of(peer, &path, audit, &scope, read));
        let (own, theirs) = join(own, join_all(theirs)).await;
        self.merge(reads, read, own, recipients.iter().copied().zip(theirs))
    }

    /// What a read is about, and who else is asked; `None` when nobody is.
    fn recipients<'a, R: MetricRead>(
        &self,
        reads: &ReadState,
        read: &'a R,
    ) -> Option<(ReadScope<'a>, Vec<&Installation>)> {
        if self.peers.is_empty() {
            return None;
        }
        let scope = read.scope(reads);
        let recipients: Vec<_> = self.peers.iter().filter(|peer| peer.is_asked(&scope)).collect();
        (!recipients.is_empty()).then_some((scope, recipients))
    }

    /// What `peer` answers; 503 when it cannot be read.
    async fn values_of<R: MetricRead>(
        &self,
        peer: &Installation,
        path: &str,
        audit: &AuditId,
        scope: &ReadScope<'_>,
        read: &R,
    ) -> Result<Received, Status> {
        let received = match peer.permits.acquire() {
            Some(_permit) => {
                let received = self.receive(peer, path, audit, scope, read).await;
                peer.log_change(received.as_ref().err());
                received
            }
            None => Err(Unreadable::new("too many reads are waiting for it", "retry later")),
        };
        received.unwrap_or_else(|unreadable| Err(peer.error(read, &unreadable)))
    }

    async fn receive<R: MetricRead>(
        &self,
        peer: &Installation,
        path: &str,
        audit: &AuditId,
        scope: &ReadScope<'_>,
        read: &R,
    ) -> Result<Result<Received, Status>, Unreadable> {
        const INCOMPATIBLE: &str = "check that it runs a version of wva that fits this one";
        // Not a failure of the installation: other reads of it may succeed.
        let refused = |cause, next| Ok(Err(peer.error(read, &Unreadable { cause, next })));
        let destination = self.destination(peer)?;
        // The name in its certificate may be an address, so the request has another one.
        let request = Request::get(format!("https://wva{path}"))
            .header(AUDIT_ID, audit.header())
            .body(Empty::<Bytes>::new())
            .map_err(|error| Unreadable::new(error.to_string(), "shorten the selector"))?;
        let answer = match peer.connection.send(&destination, request).await {
            Ok(answer) => answer,
            Err(failure @ RequestFailure::TooLarge(_)) => {
                return refused(failure.to_string(), "check that the selector names the variant");
            }
            Err(failure) => {
                let next = "check that it runs, its address, ca and serverName, and that no NetworkPolicy is in the way";
                return Err(Unreadable::new(one_line(&failure.to_string(), MAX_TEXT_BYTES), next));
            }
        };
        let (head, body) = answer.into_parts();
        if head.status == StatusCode::TOO_MANY_REQUESTS {
            return refused("it answers too many reads".into(), "retry later");
        }
        if head.headers.get(ANSWERED_BY) != Some(&INSTALLATION) {
            return Err(unexpected(head.status));
        }
        let mut received = match parse(head.status, &head.headers, &body) {
            Err(cause) => return refused(cause, INCOMPATIBLE),
            Ok(Ok(received)) => received,
            Ok(Err(status)) => {
                let note = format!("answered by installation {}", peer.settings.name);
                return Ok(Err(status.with_note(&note)));
            }
        };
        match peer.problem(&mut received.values, scope, read) {
            Some(problem) => refused(format!("its answer is wrong: {problem}"), INCOMPATIBLE),
            None => Ok(Ok(received)),
        }
    }

    fn destination(&self, peer: &Installation) -> Result<Destination, Unreadable> {
        let pki = self.pki.borrow().clone().ok_or_else(|| {
            Unreadable::new(
                "the certificate of this installation has not been read yet",
                "see this server's log",
            )
        })?;
        let ca = peer.ca.text().map_err(|cause| {
            Unreadable::new(format!("its CA cannot be used: {cause}"), "check the ca of its --installation")
        })?;
        let OtherInstallation { host, port, server_name, .. } = peer.settings.clone();
        Ok(Destination { host, port, server_name, pki: SharedPki { ca_pem: ca.to_string(), ..pki } })
    }

    /// One answer from all: an error of any is the answer, because a sum without its values would be wrong, except that some may
    /// have nothing that the selector selects.
    fn merge<'a, R: MetricRead>(
        &self,
        reads: &ReadState,
        read: &R,
        own: Option<Result<Received, Status>>,
        theirs: impl Iterator<Item = (&'a Installation, Result<Received, Status>)>,
    ) -> Result<Response, Status> {
        let own = own.into_iter().map(|own| (None, own));
        let mut not_found = None;
        let (mut values, mut warnings) = (Vec::<ForwardedValue>::new(), Vec::new());
        let (mut keys, mut without) = (BTreeSet::new(), Vec::new());
        for (peer, received) in own.chain(theirs.map(|(peer, received)| (Some(peer), received))) {
            let name = peer.map(|peer| peer.settings.name.as_str());
            match received {
                Ok(received) => {
                    for value in received.values {
                        if keys.insert(value.key().to_owned()) {
                            values.push(value);
                        } else {
                            self.log_duplicate(&value.variant, name.unwrap_or_default());
                        }
                    }
                    warnings.extend(received.warnings.into_iter().map(|warning| match name {
                        Some(name) => format!("installation {name}: {warning}"),
                        None => warning,
                    }));
                }
                Err(status) if read.selects_nothing(&status) => match &not_found {
                    None => not_found = Some(status),
                    Some(_) => without.extend(name),
                },
                Err(status) => return Err(status),
            }
        }
        if let Some(status) = not_found.filter(|_| values.is_empty()) {
            let note = format!("asked as well: {}", without.join(", "));
            return Err(if without.is_empty() { status } else { status.with_note(&note) });
        }
        // Each installation sorts by these names.
        values.sort_by(|left, right| left.name.cmp(&right.name));
        let mut answer = read.render_merged(reads, &values)?;
        for warning in warnings {
            add_warning(answer.headers_mut(), &warning);
        }
        Ok(answer)
    }

    /// Names a variant that several installations have, once.
    fn log_duplicate(&self, variant: &VariantId, installation: &str) {
        let mut duplicates = self.duplicates.lock();
        if duplicates.len() < MAX_LOGGED_VARIANTS && duplicates.insert(variant.clone()) {
            tracing::warn!(
                variant = %variant,
                installation,
                "several installations have this variant; the number of this installation, else of the first in the list, is \
                 answered: give it to one of them"
            );
        }
    }
}

impl Installation {
    /// Whether this installation may have what the read is about. Beside the settings, this depends only on whether the read names
    /// own variants alone, so that the sum of a namespace never comes from some of its installations.
    fn is_asked(&self, scope: &ReadScope<'_>) -> bool {
        let OtherInstallation { namespaces, controller_instance, .. } = &self.settings;
        let allows = |instance: &String| scope.selector.allows_instance(Some(instance));
        scope.ours != Ours::All
            && namespaces.contains(scope.namespace)
            && controller_instance.as_ref().is_none_or(allows)
    }

    /// What is wrong with the values of an answer to `read`, if anything is.
    fn problem<R: MetricRead>(
        &self,
        values: &mut [ForwardedValue],
        scope: &ReadScope<'_>,
        read: &R,
    ) -> Option<&'static str> {
        let instance = &self.settings.controller_instance;
        if values.len() > MAX_VALUES {
            return Some("it has more than 1000 values");
        }
        for value in &mut *values {
            if let Some(problem) = value.validate(scope).err().or_else(|| read.mismatch(value)) {
                return Some(problem);
            }
            if instance.is_some() && value.controller_instance != *instance {
                return Some("it has a variant with another controller_instance than in --installation");
            }
        }
        let keys: BTreeSet<_> = values.iter().map(ForwardedValue::key).collect();
        (keys.len() < values.len()).then_some("it has one name twice")
    }

    fn error<R: MetricRead>(&self, read: &R, Unreadable { cause, next }: &Unreadable) -> Status {
        let OtherInstallation { name, host, port, .. } = &self.settings;
        let cause = format!("installation {name} at {host}:{port} cannot be read: {cause}; {next}");
        read.error(Reason::ServiceUnavailable, &cause)
    }

    /// Logs the first failure after a success, and the first success after a failure.
    fn log_change(&self, failure: Option<&Unreadable>) {
        let has_changed = self.is_failing.swap(failure.is_some(), Ordering::Relaxed) != failure.is_some();
        let installation = &self.settings.name;
        match failure {
            Some(Unreadable { cause, next }) if has_changed => {
                tracing::warn!(installation, cause, next, "an installation cannot be read");
            }
            None if has_changed => tracing::info!(installation, "an installation can be read again"),
            _ => {}
        }
    }
}

/// The values of this installation: its own, or those of its leader.
async fn own_values<R: MetricRead>(
    reads: &ReadState,
    request: &Parts,
    path: &str,
    audit: &AuditId,
    read: &R,
) -> Result<Received, Status> {
    let mut request = request.clone();
    request.uri = path.parse::<Uri>().map_err(|error| internal_error(&error))?;
    request.headers = HeaderMap::new();
    let answer = reads.answer(&request, audit, |published| read.render_values(reads, published)).await?;
    let (head, body) = answer.into_parts();
    let body = body.collect().await.map(http_body_util::Collected::to_bytes).unwrap_or_default();
    parse(head.status, &head.headers, &body)
        .unwrap_or_else(|cause| Err(read.error(Reason::InternalError, &cause)))
}

/// The values or the error in an answer.
///
/// # Errors
/// When it is neither.
fn parse(status: StatusCode, headers: &HeaderMap, body: &[u8]) -> Result<Result<Received, Status>, String> {
    if status != StatusCode::OK {
        let error = Status::from_json(body).ok_or_else(|| format!("it answered {status} without a Status"));
        return error.map(Err);
    }
    let ForwardedValues { values } = serde_json::from_slice(body).map_err(|error| {
        format!("its answer cannot be parsed: {}", one_line(&error.to_string(), MAX_TEXT_BYTES))
    })?;
    if values.is_empty() {
        return Err("its answer has no value".to_owned());
    }
    let text = |value: &HeaderValue| {
        value.to_str().ok().map(|text| one_line(text.trim_start_matches("299 - "), MAX_TEXT_BYTES))
    };
    let warnings = headers.get_all(WARNING).iter().filter_map(text).collect();
    Ok(Ok(Received { values, warnings }))
}

/// Why an answer is not that of an installation.
fn unexpected(status: StatusCode) -> Unreadable {
    let next = match status {
        StatusCode::FORBIDDEN => {
            "check that its --forwarder-ca-file and --forwarder-name are those of this installation's certificate"
        }
        _ => "check that its address is that of wva, in a version that answers other installations",
    };
    Unreadable::new(format!("it answered with status {}", status.as_u16()), next)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::serve::external_metrics::VariantSelector;

    /// Text that begins like an answer.
    fn text() -> impl Strategy<Value = String> {
        let value = r#"\{"variant":"[^"]{0,8}","name":"[^"]{0,8}","timestamp":"2026-11-21T10:00:0[0-9x]Z","thousandths":-?[0-9]{1,20},"reason":"[^"]{0,8}","model":"","message":"[^"]{0,8}"\}"#;
        prop_oneof![
            ".{0,64}",
            value.prop_map(|value: String| format!("{{\"values\":[{value}]}}")),
            r#"\{"kind":"(Status|List)","reason":"(NotFound|Conflict)","message":"[^"]{0,8}"\}"#,
        ]
    }

    proptest! {
        #[test]
        fn whatever_an_installation_answers_is_valid_values_an_error_or_refused(text in text(), code in 200_u16..600) {
            let status = StatusCode::from_u16(code).unwrap();
            let selector = VariantSelector { labels: &[], fields: &[] };
            let now = "2026-11-21T10:00:05Z".parse().unwrap();
            let scope = ReadScope { namespace: "blue", selector, ours: Ours::Nothing, now };
            match parse(status, &HeaderMap::new(), text.as_bytes()) {
                Ok(Ok(received)) => {
                    prop_assert_eq!(status, StatusCode::OK);
                    prop_assert!(!received.values.is_empty());
                    for mut value in received.values {
                        if value.validate(&scope).is_ok() {
                            prop_assert_eq!(value.variant.namespace.as_str(), "blue");
                            prop_assert!(value.validate(&scope).is_ok(), "once more");
                        }
                    }
                }
                Ok(Err(_)) => prop_assert!(status != StatusCode::OK),
                Err(cause) => prop_assert!(!cause.is_empty()),
            }
        }
    }
}
