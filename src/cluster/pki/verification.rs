//! Whether a certificate chain verifies by a `caBundle`, as the API server verifies it before each request. Pure.

use std::time::Duration;

use jiff::Timestamp;
use rustls::client::{verify_server_cert_signed_by_trust_anchor, verify_server_name};
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, Error, RootCertStore};
use x509_parser::prelude::{FromDer, X509Certificate};

/// How the API server's probe begins its messages.
const PROBE_PREFIX: &str = "tls: failed to verify certificate: x509: ";

/// Why a chain does not verify.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// There is no CA to verify by.
    NoAuthority,
    /// None of the CAs signed it.
    UnknownAuthority,
    /// It has expired, or is not valid yet.
    NotValidNow,
    /// It is for other names.
    WrongName,
    /// It cannot be used for another reason.
    Unusable,
}

impl Fault {
    /// As the reason of a condition.
    pub(crate) const fn reason(self) -> &'static str {
        match self {
            Self::NoAuthority => "NoAuthority",
            Self::UnknownAuthority => "UnknownAuthority",
            Self::NotValidNow => "CertificateNotValidNow",
            Self::WrongName => "WrongName",
            Self::Unusable => "CertificateUnusable",
        }
    }

    fn refuse(self, message: impl AsRef<str>) -> Refusal {
        Refusal { fault: self, message: format!("{PROBE_PREFIX}{}", message.as_ref()) }
    }
}

/// Why a chain does not verify, in the words of the API server's own probe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) fault: Fault,
    pub(crate) message: String,
}

/// Verifies `chain`, leaf first, for the server name `name` by the CAs of a PEM bundle.
pub(crate) fn verify(
    bundle: &[u8],
    chain: &[CertificateDer<'_>],
    name: &str,
    now: Timestamp,
) -> Result<(), Refusal> {
    let authorities: Vec<_> = CertificateDer::pem_slice_iter(bundle).filter_map(Result::ok).collect();
    if authorities.is_empty() {
        let message = "unable to load root certificates: spec.caBundle contains no certificate".into();
        return Err(Refusal { fault: Fault::NoAuthority, message });
    }
    // Of a trust anchor, webpki takes only name and key; Go rejects one that has expired.
    let (valid, expired): (Vec<_>, Vec<_>) =
        authorities.into_iter().partition(|authority| is_valid_at(authority, now));
    let refusal = match verify_by(&valid, chain, name, now) {
        Ok(()) => return Ok(()),
        Err(error) => refusal(&error),
    };
    if refusal.fault == Fault::UnknownAuthority && verify_by(&expired, chain, name, now).is_ok() {
        return Err(outside_validity("a CA that signed it"));
    }
    Err(refusal)
}

fn is_valid_at(certificate: &CertificateDer<'_>, now: Timestamp) -> bool {
    X509Certificate::from_der(certificate).is_ok_and(|(_, certificate)| {
        let validity = certificate.validity();
        (validity.not_before.timestamp()..=validity.not_after.timestamp()).contains(&now.as_second())
    })
}

fn verify_by(
    authorities: &[CertificateDer<'static>],
    chain: &[CertificateDer<'_>],
    name: &str,
    now: Timestamp,
) -> Result<(), Error> {
    let (leaf, intermediates) = chain.split_first().ok_or(CertificateError::BadEncoding)?;
    let parsed = ParsedCertificate::try_from(leaf)?;
    let server = ServerName::try_from(name).map_err(|error| Error::General(error.to_string()))?;
    verify_server_name(&parsed, &server)?;
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(authorities.iter().cloned());
    let at = UnixTime::since_unix_epoch(Duration::from_secs(now.as_second().try_into().unwrap_or(0)));
    let algorithms = aws_lc_rs::default_provider().signature_verification_algorithms.all;
    match verify_server_cert_signed_by_trust_anchor(&parsed, &roots, intermediates, at, algorithms) {
        // Like Go: a leaf that is in the bundle itself is trusted. webpki rejects one that is a CA, as `openssl req -x509`
        // makes them.
        Err(Error::InvalidCertificate(CertificateError::Other(_))) if authorities.contains(leaf) => Ok(()),
        verified => verified,
    }
}

fn refusal(error: &Error) -> Refusal {
    let Error::InvalidCertificate(cause) = error else { return Fault::Unusable.refuse(error.to_string()) };
    let time = |time: &UnixTime| {
        let second = i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
        Timestamp::from_second(second).map(|at| at.to_string()).unwrap_or_default()
    };
    match cause {
        CertificateError::UnknownIssuer => {
            Fault::UnknownAuthority.refuse("certificate signed by unknown authority")
        }
        CertificateError::ExpiredContext { not_after, .. } => {
            outside_validity(&format!("it expired {}", time(not_after)))
        }
        CertificateError::NotValidYetContext { not_before, .. } => {
            outside_validity(&format!("it is valid from {}", time(not_before)))
        }
        CertificateError::NotValidForNameContext { .. } => Fault::WrongName.refuse(cause.to_string()),
        other => Fault::Unusable.refuse(other.to_string()),
    }
}

/// Without the current time, which the probe's message has: a condition must not change with every second.
fn outside_validity(what: &str) -> Refusal {
    Fault::NotValidNow.refuse(format!("certificate has expired or is not yet valid: {what}"))
}

#[cfg(test)]
mod tests {
    use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, date_time_ymd};

    use super::*;

    const NAME: &str = "rec.kube-system.svc";

    fn now() -> Timestamp {
        "2026-06-01T12:00:00Z".parse().unwrap()
    }

    /// Valid from the first day of year `from` to that of year `until`.
    fn params(names: &[&str], from: i32, until: i32) -> CertificateParams {
        let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        params.not_before = date_time_ymd(from, 1, 1);
        params.not_after = date_time_ymd(until, 1, 1);
        params
    }

    fn ca(name: &str, until: i32) -> CertifiedIssuer<'static, KeyPair> {
        let mut params = params(&[], 2025, until);
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
    }

    fn leaf(
        by: &CertifiedIssuer<'_, KeyPair>,
        names: &[&str],
        from: i32,
        until: i32,
    ) -> CertificateDer<'static> {
        params(names, from, until).signed_by(&KeyPair::generate().unwrap(), by).unwrap().der().clone()
    }

    /// The verdict about `chain` by the CAs in `bundle`.
    fn verdict(bundle: &str, chain: &[&CertificateDer<'static>]) -> String {
        let chain: Vec<_> = chain.iter().map(|certificate| (*certificate).clone()).collect();
        match verify(bundle.as_bytes(), &chain, NAME, now()) {
            Ok(()) => "accepted".into(),
            Err(refusal) => refusal.message.replace(PROBE_PREFIX, ""),
        }
    }

    #[test]
    fn a_chain_is_accepted_by_any_ca_of_the_bundle_that_signed_it() {
        let right = ca("ca", 2035);
        let other = ca("other", 2035);
        let namesake = ca("ca", 2035);
        let good = leaf(&right, &[NAME], 2025, 2027);
        let damaged = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        for before in ["", &other.pem(), &namesake.pem(), damaged] {
            assert_eq!(verdict(&(before.to_owned() + &right.pem()), &[&good]), "accepted", "{before}");
        }
        assert_ne!(verdict(&namesake.pem(), &[&good]), "accepted", "same name, other key");
        let mut params = params(&[], 2025, 2035);
        params.distinguished_name.push(rcgen::DnType::CommonName, "intermediate");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let intermediate = CertifiedIssuer::signed_by(params, KeyPair::generate().unwrap(), &right).unwrap();
        let lower = leaf(&intermediate, &[NAME], 2025, 2027);
        assert_eq!(verdict(&right.pem(), &[&lower, intermediate.der()]), "accepted");
        assert_eq!(verdict(&right.pem(), &[&lower]), "certificate signed by unknown authority");
    }

    #[test]
    fn a_refusal_has_the_cause_in_the_words_of_the_api_servers_probe() {
        let right = ca("ca", 2035);
        let expired = ca("ca", 2026);
        let good = leaf(&right, &[NAME], 2025, 2027);
        for (bundle, leaf, expected) in [
            (ca("other", 2035).pem(), &good, "certificate signed by unknown authority"),
            (
                right.pem(),
                &leaf(&right, &["localhost"], 2025, 2027),
                "certificate not valid for name \"rec.kube-system.svc\"; certificate is only valid for \
                 DnsName(\"localhost\")",
            ),
            (
                right.pem(),
                &leaf(&right, &[], 2025, 2027),
                "certificate not valid for name \"rec.kube-system.svc\"; certificate is not valid for any names \
                 (according to its subjectAltName extension)",
            ),
            (
                right.pem(),
                &leaf(&right, &[NAME], 2025, 2026),
                "certificate has expired or is not yet valid: it expired 2026-01-01T00:00:00Z",
            ),
            (
                right.pem(),
                &leaf(&right, &[NAME], 2027, 2028),
                "certificate has expired or is not yet valid: it is valid from 2027-01-01T00:00:00Z",
            ),
            (
                expired.pem(),
                &leaf(&expired, &[NAME], 2025, 2027),
                "certificate has expired or is not yet valid: a CA that signed it",
            ),
            (
                "no certificate".into(),
                &good,
                "unable to load root certificates: spec.caBundle contains no certificate",
            ),
        ] {
            assert_eq!(verdict(&bundle, &[leaf]), expected);
        }
    }

    #[test]
    fn a_self_signed_leaf_is_accepted_when_it_is_the_bundle_itself() {
        for is_ca in [IsCa::NoCa, IsCa::Ca(BasicConstraints::Unconstrained)] {
            for (until, expected) in [
                (2027, "accepted"),
                (2026, "certificate has expired or is not yet valid: it expired 2026-01-01T00:00:00Z"),
            ] {
                let mut params = params(&[NAME], 2025, until);
                params.is_ca = is_ca;
                let leaf = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
                assert_eq!(verdict(&leaf.pem(), &[leaf.der()]), expected);
            }
        }
    }
}
