//! Issues and judges CAs and leaves. Pure but for the random keys; when a step is due is in `rotation`, where the
//! certificates are kept in `certificates`.

use std::iter::once;

use jiff::{SignedDuration, Timestamp, tz::TimeZone};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, date_time_ymd,
};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;
use x509_parser::pem::parse_x509_pem;

use super::rotation::{RotationPhase, RotationStep};
use super::verification::verify;

/// Key of the Secret: every CA to trust, that of the leaf first.
pub(crate) const CA_CERT: &str = "ca.crt";
/// Key of the Secret: the key of the first CA.
pub(crate) const CA_KEY: &str = "ca.key";
/// Key of the Secret: the leaf.
pub(crate) const CERT: &str = "tls.crt";
/// Key of the Secret: the leaf's key.
pub(crate) const KEY: &str = "tls.key";
/// Key of the Secret: the CA that is being announced, if any; it is in `ca.crt` too.
pub(crate) const NEXT_CERT: &str = "next-ca.crt";
/// Key of the Secret: the key of the CA that is being announced.
pub(crate) const NEXT_KEY: &str = "next-ca.key";
const DAY: SignedDuration = SignedDuration::from_hours(24);
/// Validity of the CA: 10 years; it is private to one installation.
const CA_DAYS: i32 = 3650;
/// Validity of the leaf: one year.
const LEAF_DAYS: i32 = 365;
/// A leaf is renewed this many days before its end: time for a person to notice that renewing fails.
const RENEW_DAYS: i32 = 30;
/// A CA is replaced when it lasts no longer than a leaf issued today, and a month: no leaf outlives its CA, and a rotation
/// that is blocked has a year.
const REPLACE_DAYS: i32 = LEAF_DAYS + RENEW_DAYS;
/// Most names of a leaf: those of three installations that were renamed in turn, at 5 each, and one more. The newest come
/// first.
const MAX_NAMES: usize = 16;

/// A CA that signs, PEM.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Authority {
    pub(crate) cert: String,
    pub(crate) key: String,
}

/// All certificates and keys that the instances share, PEM.
#[derive(Clone, PartialEq, Eq)]
pub struct CertificateBundle {
    /// The leaf's certificate.
    pub cert: String,
    /// The leaf's key.
    pub key: String,
    /// The CA of the leaf.
    pub(crate) signer: Authority,
    /// The CA that is being announced: trusted, signs nothing yet.
    pub(crate) next: Option<Authority>,
    /// CAs that no longer sign and are still trusted.
    pub(crate) old: Vec<String>,
}

impl std::fmt::Debug for CertificateBundle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Keys are never printed.
        f.debug_struct("CertificateBundle").field("phase", &self.phase()).finish_non_exhaustive()
    }
}

impl CertificateBundle {
    /// Every CA to trust, the leaf's first: what the APIServices carry and the instances verify each other by.
    #[must_use]
    pub fn trust(&self) -> String {
        let next = self.next.iter().map(|next| &next.cert);
        once(&self.signer.cert)
            .chain(next)
            .chain(&self.old)
            .map(|pem| format!("{}\n", pem.trim_end()))
            .collect()
    }

    /// How far the replacement of the CA is.
    pub(crate) fn phase(&self) -> RotationPhase {
        match (&self.next, self.old.is_empty()) {
            (Some(_), _) => RotationPhase::Announcing,
            (None, false) => RotationPhase::Retiring,
            (None, true) => RotationPhase::Steady,
        }
    }
}

/// A certificate that cannot be issued or used. Never contains a key.
#[derive(Debug, thiserror::Error)]
pub enum PkiError {
    /// A key of the Secret.
    #[error("{0} is missing, empty or not text")]
    Missing(&'static str),
    /// Not a certificate.
    #[error("{0} is not a PEM certificate")]
    NotACertificate(&'static str),
    /// The CA and its key do not fit.
    #[error("{CA_KEY} and {CA_CERT} cannot sign: {0}")]
    Issuer(rcgen::Error),
    /// Issuing failed.
    #[error("no certificate could be issued: {0}")]
    Issue(#[from] rcgen::Error),
}

/// A new CA with its first leaf, valid for `names`.
pub(crate) fn issue(names: &[String], now: Timestamp) -> Result<CertificateBundle, PkiError> {
    let signer = new_authority(now)?;
    let (cert, key) = issue_leaf(&signer, names, now)?;
    Ok(CertificateBundle { cert, key, signer, next: None, old: Vec::new() })
}

/// `bundle` after a step.
pub(crate) fn take_step(
    step: RotationStep,
    bundle: &CertificateBundle,
    names: &[String],
    now: Timestamp,
) -> Result<CertificateBundle, PkiError> {
    let bundle = bundle.clone();
    match step {
        RotationStep::StartOver => issue(names, now),
        RotationStep::Renew => {
            let (cert, key) = issue_leaf(&bundle.signer, names, now)?;
            Ok(CertificateBundle { cert, key, ..bundle })
        }
        RotationStep::Announce => Ok(CertificateBundle { next: Some(new_authority(now)?), ..bundle }),
        RotationStep::Switch => {
            let Some(signer) = bundle.next else { return Err(PkiError::Missing(NEXT_KEY)) };
            let (cert, key) = issue_leaf(&signer, names, now)?;
            let old = once(bundle.signer.cert).chain(bundle.old).collect();
            Ok(CertificateBundle { cert, key, signer, next: None, old })
        }
        RotationStep::Retire => Ok(CertificateBundle { old: Vec::new(), ..bundle }),
    }
}

/// A new CA. Its common name has the time of issue, which distinguishes two CAs that are trusted together.
fn new_authority(now: Timestamp) -> Result<Authority, PkiError> {
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
    let mut params = with_validity(CertificateParams::new(Vec::new())?, CA_DAYS, now);
    params
        .distinguished_name
        .push(DnType::CommonName, format!("wva-ca {}", now.strftime("%Y-%m-%dT%H:%M:%SZ")));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages =
        vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign, KeyUsagePurpose::DigitalSignature];
    let cert = params.self_signed(&key)?.pem();
    Ok(Authority { cert, key: key.serialize_pem() })
}

/// A leaf's certificate and key.
fn issue_leaf(authority: &Authority, names: &[String], now: Timestamp) -> Result<(String, String), PkiError> {
    let key = KeyPair::from_pem(&authority.key).map_err(PkiError::Issuer)?;
    let issuer = Issuer::from_ca_cert_pem(&authority.cert, key).map_err(PkiError::Issuer)?;
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
    let mut params = with_validity(CertificateParams::new(names)?, LEAF_DAYS, now);
    // A common name has at most 64 characters; only the alternative names are verified.
    params.distinguished_name.push(DnType::CommonName, "wva");
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages =
        vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    params.use_authority_key_identifier_extension = true;
    let cert = params.signed_by(&key, &issuer)?.pem();
    Ok((cert, key.serialize_pem()))
}

/// From yesterday, because clocks of callers may be behind, for `days`.
fn with_validity(mut params: CertificateParams, days: i32, now: Timestamp) -> CertificateParams {
    let midnight = |time: Timestamp| {
        let date = time.to_zoned(TimeZone::UTC).date();
        date_time_ymd(date.year().into(), date.month().unsigned_abs(), date.day().unsigned_abs())
    };
    params.not_before = midnight(now - DAY);
    params.not_after = midnight(now + DAY * days);
    params
}

/// True when callers that trust its CA accept the leaf by every one of `names`, for longer than a renewal may take.
pub(crate) fn leaf_is_good(
    bundle: &CertificateBundle,
    names: &[String],
    now: Timestamp,
) -> Result<bool, PkiError> {
    let until = now + DAY * RENEW_DAYS;
    let lasts_with_names = with_certificate(CERT, &bundle.cert, |certificate| {
        let known = dns_names(certificate);
        certificate.validity().not_after.timestamp() > until.as_second()
            && names.iter().all(|name| known.contains(name))
    })?;
    let leaf = CertificateDer::from_pem_slice(bundle.cert.as_bytes());
    let leaf = leaf.map_err(|_| PkiError::NotACertificate(CERT))?;
    let is_accepted =
        |name: &String| verify(bundle.signer.cert.as_bytes(), std::slice::from_ref(&leaf), name, now).is_ok();
    Ok(lasts_with_names && names.first().is_none_or(is_accepted))
}

/// `ours`, and the other names of the leaf, [`MAX_NAMES`] in all: another instance may want those.
pub(crate) fn merge_names(ours: &[String], bundle: &CertificateBundle) -> Vec<String> {
    let known = with_certificate(CERT, &bundle.cert, dns_names).unwrap_or_default();
    let others = known.into_iter().filter(|name| name.is_ascii() && !ours.contains(name));
    ours.iter().cloned().chain(others).take(MAX_NAMES).collect()
}

/// How long the CA of the leaf remains valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CaLifetime {
    /// Long enough for every leaf that is issued now.
    Sufficient,
    /// Not that long: it is to be replaced.
    Expiring,
    /// It has expired: nothing that it signed is accepted any more.
    Expired,
}

/// The lifetime of `bundle`'s CA.
pub(crate) fn ca_lifetime(bundle: &CertificateBundle, now: Timestamp) -> Result<CaLifetime, PkiError> {
    let end = with_certificate(CA_CERT, &bundle.signer.cert, |ca| ca.validity().not_after.timestamp())?;
    Ok(if end <= now.as_second() {
        CaLifetime::Expired
    } else if end <= (now + DAY * REPLACE_DAYS).as_second() {
        CaLifetime::Expiring
    } else {
        CaLifetime::Sufficient
    })
}

/// The certificates of a PEM text, each as a PEM text of its own.
pub(crate) fn split_pem(pem: &str) -> Vec<String> {
    const END: &str = "-----END CERTIFICATE-----";
    let from_begin = |part: &str| {
        part.find("-----BEGIN CERTIFICATE-----").and_then(|at| part.get(at..)).map(str::to_owned)
    };
    pem.split_inclusive(END).filter(|part| part.ends_with(END)).filter_map(from_begin).collect()
}

/// The DNS names among the alternative names of a certificate.
fn dns_names(certificate: &X509Certificate<'_>) -> Vec<String> {
    let alternatives = certificate.subject_alternative_name().ok().flatten();
    let names = alternatives.iter().flat_map(|extension| &extension.value.general_names);
    names
        .filter_map(|name| match name {
            GeneralName::DNSName(name) => Some((*name).to_owned()),
            _ => None,
        })
        .collect()
}

/// Parses the certificate under `key` of the Secret, and reads something of it.
fn with_certificate<T>(
    key: &'static str,
    pem: &str,
    read: impl FnOnce(&X509Certificate<'_>) -> T,
) -> Result<T, PkiError> {
    let (_, pem) = parse_x509_pem(pem.as_bytes()).map_err(|_| PkiError::NotACertificate(key))?;
    let certificate = pem.parse_x509().map_err(|_| PkiError::NotACertificate(key))?;
    Ok(read(&certificate))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names() -> Vec<String> {
        ["wva.ns.svc", "wva-instance.ns.internal"].map(String::from).into()
    }

    fn day(days: i32) -> Timestamp {
        "2026-01-01T12:00:00Z".parse::<Timestamp>().unwrap() + DAY * days
    }

    /// True when the leaf of `served` verifies by the CAs of `trusting`.
    fn accepts(trusting: &CertificateBundle, served: &CertificateBundle, now: Timestamp) -> bool {
        let leaf = CertificateDer::from_pem_slice(served.cert.as_bytes()).unwrap();
        verify(trusting.trust().as_bytes(), &[leaf], "wva.ns.svc", now).is_ok()
    }

    #[test]
    fn a_new_certificate_is_good_at_once_and_for_all_its_names() {
        let bundle = issue(&names(), day(0)).unwrap();
        assert!(leaf_is_good(&bundle, &names(), day(0)).unwrap());
        assert!(!leaf_is_good(&bundle, &["other.ns.svc".to_owned()], day(0)).unwrap());
        assert_eq!(ca_lifetime(&bundle, day(0)).unwrap(), CaLifetime::Sufficient);
    }

    #[test]
    fn a_renewed_leaf_keeps_the_names_that_another_instance_wants_up_to_a_bound() {
        let bundle = issue(&names(), day(0)).unwrap();
        let renamed = ["new.ns.svc", "wva-instance.ns.internal"].map(String::from);
        let both = merge_names(&renamed, &bundle);
        assert_eq!(both, ["new.ns.svc", "wva-instance.ns.internal", "wva.ns.svc"]);
        let renewed = take_step(RotationStep::Renew, &bundle, &both, day(1)).unwrap();
        assert!(leaf_is_good(&renewed, &names(), day(1)).unwrap());
        assert!(leaf_is_good(&renewed, &renamed, day(1)).unwrap());
        let many: Vec<_> = (0..30).map(|index| format!("n{index}.ns.svc")).collect();
        let crowded = issue(&many, day(0)).unwrap();
        let merged = merge_names(&names(), &crowded);
        assert_eq!((merged.len(), &merged[..3]), (MAX_NAMES, &[&names()[..], &many[..1]].concat()[..]));
    }

    #[test]
    fn a_ca_is_replaced_before_a_leaf_could_outlive_it() {
        let bundle = issue(&names(), day(0)).unwrap();
        for (at, lifetime) in [
            (CA_DAYS - REPLACE_DAYS - 1, CaLifetime::Sufficient),
            (CA_DAYS - REPLACE_DAYS + 1, CaLifetime::Expiring),
            (CA_DAYS + 1, CaLifetime::Expired),
        ] {
            assert_eq!(ca_lifetime(&bundle, day(at)).unwrap(), lifetime, "day {at}");
        }
    }

    #[test]
    fn in_a_rotation_neighbouring_phases_accept_each_other_and_distant_ones_do_not() {
        let steady = issue(&names(), day(0)).unwrap();
        let announcing = take_step(RotationStep::Announce, &steady, &names(), day(1)).unwrap();
        let switched = take_step(RotationStep::Switch, &announcing, &names(), day(2)).unwrap();
        let retired = take_step(RotationStep::Retire, &switched, &names(), day(3)).unwrap();
        let phases = [&steady, &announcing, &switched, &retired].map(CertificateBundle::phase);
        assert_eq!(
            phases,
            [
                RotationPhase::Steady,
                RotationPhase::Announcing,
                RotationPhase::Retiring,
                RotationPhase::Steady
            ]
        );
        let bundles = [steady, announcing, switched, retired];
        for (before, after) in bundles.iter().zip(bundles.iter().skip(1)) {
            assert!(accepts(before, before, day(3)) && accepts(after, after, day(3)));
            assert!(accepts(after, before, day(3)) || before.phase() == RotationPhase::Retiring);
            assert!(accepts(before, after, day(3)) && leaf_is_good(after, &names(), day(3)).unwrap());
        }
        let [steady, _, switched, retired] = &bundles;
        assert!(!accepts(steady, switched, day(3)), "not before it is announced");
        assert!(!accepts(retired, steady, day(3)), "not after it is retired");
        assert_eq!(split_pem(&retired.trust()).len(), 1);
    }

    #[test]
    fn a_pem_text_is_split_whatever_is_between_its_certificates() {
        let first = issue(&names(), day(0)).unwrap();
        let second = issue(&names(), day(0)).unwrap();
        let text = format!("# first\n{}\n# second\r\n{}", first.trust(), second.trust().trim_end());
        let parts = split_pem(&text);
        assert_eq!(parts.len(), 2);
        assert!(first.signer.cert.starts_with(&parts[0]) && second.signer.cert.starts_with(&parts[1]));
        assert!(split_pem("-----BEGIN CERTIFICATE-----\nAAAA").is_empty());
    }

    #[test]
    fn an_invalid_certificate_is_named_and_never_printed() {
        let mut bundle = issue(&names(), day(0)).unwrap();
        bundle.cert = "secret words".into();
        let error = leaf_is_good(&bundle, &names(), day(0)).unwrap_err();
        assert_eq!(error.to_string(), "tls.crt is not a PEM certificate");
        assert!(!format!("{bundle:?}").contains("KEY"));
    }
}
