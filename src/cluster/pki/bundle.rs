//! Makes and judges CAs and leaves, and takes the steps of their life. Pure but for the random keys; when a step is due is
//! in `rotation`, where they are kept in `certificates`.

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

use super::rotation::{Place, Step};
use super::verification;

/// A day.
const DAY: SignedDuration = SignedDuration::from_hours(24);
/// Validity of the CA: 10 years; it is private to one installation.
const CA_DAYS: i32 = 3650;
/// Validity of the leaf: one year.
const LEAF_DAYS: i32 = 365;
/// A leaf is renewed this many days before its end: time for a person to see that renewing fails.
const RENEW_DAYS: i32 = 30;
/// A CA is replaced when it lasts no longer than a leaf made today, and a month: no leaf outlives its CA, and a rotation
/// that waits for somebody has a year.
const REPLACE_DAYS: i32 = LEAF_DAYS + RENEW_DAYS;

/// Names of a leaf: those of three installations that were renamed in turn, at 5 each, and one more. The newest come first.
const MAX_NAMES: usize = 16;

/// A CA that signs.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Authority {
    /// Its certificate, PEM.
    pub(crate) cert: String,
    /// Its key, PEM.
    pub(crate) key: String,
}

/// All that the instances share, in PEM.
#[derive(Clone, PartialEq, Eq)]
pub struct Bundle {
    /// The leaf's certificate.
    pub cert: String,
    /// The leaf's key.
    pub key: String,
    /// The CA of the leaf.
    pub(crate) signer: Authority,
    /// The CA that is being announced: trusted, signs nothing yet.
    pub(crate) next: Option<Authority>,
    /// CAs that sign nothing any more, still trusted.
    pub(crate) old: Vec<String>,
}

impl std::fmt::Debug for Bundle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Bundle").field("place", &self.place()).finish_non_exhaustive() // keys are never printed
    }
}

impl Bundle {
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

    /// How far a change of the CA is.
    pub(crate) fn place(&self) -> Place {
        match (&self.next, self.old.is_empty()) {
            (Some(_), _) => Place::Announcing,
            (None, false) => Place::Retiring,
            (None, true) => Place::Steady,
        }
    }
}

/// A certificate that cannot be made or used. Never contains a key.
#[derive(Debug, thiserror::Error)]
pub enum PkiError {
    /// A key of the Secret.
    #[error("{0} is missing, empty or not text")]
    Missing(&'static str),
    /// Not a certificate.
    #[error("{0} is not a PEM certificate")]
    NotACertificate(&'static str),
    /// The key of the CA cannot sign.
    #[error("ca.key and ca.crt cannot sign: {0}")]
    Issuer(rcgen::Error),
    /// No certificate could be made.
    #[error("no certificate could be made: {0}")]
    Make(#[from] rcgen::Error),
}

/// A new CA with its first leaf, good for `names`.
pub(crate) fn make(names: &[String], now: Timestamp) -> Result<Bundle, PkiError> {
    let signer = authority(now)?;
    let (cert, key) = signed(&signer, names, now)?;
    Ok(Bundle { cert, key, signer, next: None, old: Vec::new() })
}

/// What `bundle` is after a step.
pub(crate) fn after(
    step: Step,
    bundle: &Bundle,
    names: &[String],
    now: Timestamp,
) -> Result<Bundle, PkiError> {
    let bundle = bundle.clone();
    match step {
        Step::StartOver => make(names, now),
        Step::Renew => {
            let (cert, key) = signed(&bundle.signer, names, now)?;
            Ok(Bundle { cert, key, ..bundle })
        }
        Step::Announce => Ok(Bundle { next: Some(authority(now)?), ..bundle }),
        Step::Switch => {
            let Some(signer) = bundle.next else { return Err(PkiError::Missing("next-ca.key")) };
            let (cert, key) = signed(&signer, names, now)?;
            let old = once(bundle.signer.cert).chain(bundle.old).collect();
            Ok(Bundle { cert, key, signer, next: None, old })
        }
        Step::Retire => Ok(Bundle { old: Vec::new(), ..bundle }),
    }
}

/// Its name says when it was made: two CAs that are trusted together are told apart by it.
fn authority(now: Timestamp) -> Result<Authority, PkiError> {
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
    let mut params = valid(CertificateParams::new(Vec::new())?, CA_DAYS, now);
    params
        .distinguished_name
        .push(DnType::CommonName, format!("wva-ca {}", now.strftime("%Y-%m-%dT%H:%M:%SZ")));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages =
        vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign, KeyUsagePurpose::DigitalSignature];
    let cert = params.self_signed(&key)?.pem();
    Ok(Authority { cert, key: key.serialize_pem() })
}

fn signed(authority: &Authority, names: &[String], now: Timestamp) -> Result<(String, String), PkiError> {
    let key = KeyPair::from_pem(&authority.key).map_err(PkiError::Issuer)?;
    leaf(&Issuer::from_ca_cert_pem(&authority.cert, key).map_err(PkiError::Issuer)?, names, now)
}

fn leaf(
    issuer: &Issuer<'_, impl rcgen::SigningKey>,
    names: &[String],
    now: Timestamp,
) -> Result<(String, String), PkiError> {
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
    let mut params = valid(CertificateParams::new(names)?, LEAF_DAYS, now);
    // A common name has at most 64 characters; nobody verifies it, the alternative names count.
    params.distinguished_name.push(DnType::CommonName, "wva");
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages =
        vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    params.use_authority_key_identifier_extension = true;
    let cert = params.signed_by(&key, issuer)?.pem();
    Ok((cert, key.serialize_pem()))
}

/// From yesterday (clocks of callers may be behind) for `days`.
fn valid(mut params: CertificateParams, days: i32, now: Timestamp) -> CertificateParams {
    let midnight = |time: Timestamp| {
        let date = time.to_zoned(TimeZone::UTC).date();
        date_time_ymd(date.year().into(), date.month().unsigned_abs(), date.day().unsigned_abs())
    };
    params.not_before = midnight(now - DAY);
    params.not_after = midnight(now + DAY * days);
    params
}

/// True when callers who trust its CA accept the leaf by every one of `names`, for longer than a renewal may take.
pub(crate) fn leaf_is_good(bundle: &Bundle, names: &[String], now: Timestamp) -> Result<bool, PkiError> {
    let until = now + DAY * RENEW_DAYS;
    let named = parsed("tls.crt", &bundle.cert, |cert| {
        let alternatives = cert.subject_alternative_name().ok().flatten();
        let has = |name: &String| {
            let mut known = alternatives.iter().flat_map(|san| &san.value.general_names);
            known.any(|known| matches!(known, GeneralName::DNSName(known) if known == name))
        };
        cert.validity().not_after.timestamp() > until.as_second() && names.iter().all(has)
    })?;
    let chain = CertificateDer::from_pem_slice(bundle.cert.as_bytes());
    let chain = chain.map_err(|_| PkiError::NotACertificate("tls.crt"))?;
    let accepted = |name: &String| {
        verification::verify(bundle.signer.cert.as_bytes(), std::slice::from_ref(&chain), name, now).is_ok()
    };
    Ok(named && names.first().is_none_or(accepted))
}

/// `ours`, and the names that the leaf has beside them, [`MAX_NAMES`] in all: another instance may want those.
pub(crate) fn names_with(ours: &[String], bundle: &Bundle) -> Vec<String> {
    let had = parsed("tls.crt", &bundle.cert, |cert| {
        let alternatives = cert.subject_alternative_name().ok().flatten();
        let known = alternatives.iter().flat_map(|san| &san.value.general_names);
        let names = known.filter_map(|name| match name {
            GeneralName::DNSName(name) if name.is_ascii() => Some((*name).to_owned()),
            _ => None,
        });
        names.filter(|name| !ours.contains(name)).collect::<Vec<_>>()
    });
    ours.iter().cloned().chain(had.unwrap_or_default()).take(MAX_NAMES).collect()
}

/// How long the CA of the leaf goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lasts {
    /// Long enough for every leaf that is made now.
    Long,
    /// Not that long: it is to be replaced.
    ToBeReplaced,
    /// It has ended: nothing that it signed is accepted any more.
    Over,
}

/// How long `bundle`'s CA lasts.
pub(crate) fn lasts(bundle: &Bundle, now: Timestamp) -> Result<Lasts, PkiError> {
    let ends = parsed("ca.crt", &bundle.signer.cert, |ca| ca.validity().not_after.timestamp())?;
    Ok(if ends <= now.as_second() {
        Lasts::Over
    } else if ends <= (now + DAY * REPLACE_DAYS).as_second() {
        Lasts::ToBeReplaced
    } else {
        Lasts::Long
    })
}

/// The certificates of a PEM text, each as a PEM text of its own.
pub(crate) fn split(pem: &str) -> Vec<String> {
    const END: &str = "-----END CERTIFICATE-----";
    let whole = |part: &str| {
        part.find("-----BEGIN CERTIFICATE-----").and_then(|at| part.get(at..)).map(str::to_owned)
    };
    pem.split_inclusive(END).filter(|part| part.ends_with(END)).filter_map(whole).collect()
}

fn parsed<T>(
    what: &'static str,
    pem: &str,
    look: impl FnOnce(&X509Certificate<'_>) -> T,
) -> Result<T, PkiError> {
    let (_, pem) = parse_x509_pem(pem.as_bytes()).map_err(|_| PkiError::NotACertificate(what))?;
    let cert = pem.parse_x509().map_err(|_| PkiError::NotACertificate(what))?;
    Ok(look(&cert))
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

    fn accepts(trust: &Bundle, shown: &Bundle, now: Timestamp) -> bool {
        let leaf = CertificateDer::from_pem_slice(shown.cert.as_bytes()).unwrap();
        verification::verify(trust.trust().as_bytes(), &[leaf], "wva.ns.svc", now).is_ok()
    }

    #[test]
    fn a_new_certificate_is_good_at_once_and_for_all_its_names() {
        let bundle = make(&names(), day(0)).unwrap();
        assert!(leaf_is_good(&bundle, &names(), day(0)).unwrap());
        assert!(!leaf_is_good(&bundle, &["other.ns.svc".to_owned()], day(0)).unwrap());
        assert_eq!(lasts(&bundle, day(0)).unwrap(), Lasts::Long);
    }

    #[test]
    fn a_leaf_is_renewed_a_month_before_its_end_by_the_same_authority() {
        let bundle = make(&names(), day(0)).unwrap();
        assert!(leaf_is_good(&bundle, &names(), day(334)).unwrap());
        assert!(!leaf_is_good(&bundle, &names(), day(336)).unwrap());
        let renewed = after(Step::Renew, &bundle, &names(), day(336)).unwrap();
        assert_eq!(renewed.trust(), bundle.trust());
        assert_ne!(renewed.cert, bundle.cert);
        assert!(leaf_is_good(&renewed, &names(), day(336)).unwrap());
    }

    #[test]
    fn a_renewed_leaf_keeps_the_names_that_another_instance_wants_up_to_a_bound() {
        let bundle = make(&names(), day(0)).unwrap();
        let other = ["new.ns.svc", "wva-instance.ns.internal"].map(String::from);
        let both = names_with(&other, &bundle);
        assert_eq!(both, ["new.ns.svc", "wva-instance.ns.internal", "wva.ns.svc"]);
        let renewed = after(Step::Renew, &bundle, &both, day(1)).unwrap();
        assert!(leaf_is_good(&renewed, &names(), day(1)).unwrap());
        assert!(leaf_is_good(&renewed, &other, day(1)).unwrap());
        let many: Vec<_> = (0..30).map(|n| format!("n{n}.ns.svc")).collect();
        let crowded = make(&many, day(0)).unwrap();
        let kept = names_with(&names(), &crowded);
        assert_eq!((kept.len(), &kept[..3]), (MAX_NAMES, &[&names()[..], &many[..1]].concat()[..]));
    }

    #[test]
    fn an_authority_is_replaced_before_a_leaf_could_outlive_it() {
        let bundle = make(&names(), day(0)).unwrap();
        assert_eq!(lasts(&bundle, day(CA_DAYS - REPLACE_DAYS - 1)).unwrap(), Lasts::Long);
        assert_eq!(lasts(&bundle, day(CA_DAYS - REPLACE_DAYS + 1)).unwrap(), Lasts::ToBeReplaced);
        assert_eq!(lasts(&bundle, day(CA_DAYS + 1)).unwrap(), Lasts::Over);
    }

    #[test]
    fn in_a_rotation_neighbours_accept_each_other_and_strangers_do_not() {
        let steady = make(&names(), day(0)).unwrap();
        let announcing = after(Step::Announce, &steady, &names(), day(1)).unwrap();
        let switched = after(Step::Switch, &announcing, &names(), day(2)).unwrap();
        let retired = after(Step::Retire, &switched, &names(), day(3)).unwrap();
        let places = [&steady, &announcing, &switched, &retired].map(Bundle::place);
        assert_eq!(places, [Place::Steady, Place::Announcing, Place::Retiring, Place::Steady]);
        let all = [steady, announcing, switched, retired];
        for (one, other) in all.iter().zip(all.iter().skip(1)) {
            assert!(accepts(one, one, day(3)) && accepts(other, other, day(3)));
            assert!(accepts(other, one, day(3)) || one.place() == Place::Retiring);
            assert!(accepts(one, other, day(3)) && leaf_is_good(other, &names(), day(3)).unwrap());
        }
        let [steady, _, switched, retired] = &all;
        assert!(!accepts(steady, switched, day(3)), "not before it is announced");
        assert!(!accepts(retired, steady, day(3)), "not after it is retired");
        assert_eq!(split(&retired.trust()).len(), 1);
    }

    #[test]
    fn a_bundle_is_taken_apart_whatever_stands_between_its_certificates() {
        let (one, other) = (make(&names(), day(0)).unwrap(), make(&names(), day(0)).unwrap());
        let text = format!("# one\n{}\n# other\r\n{}", one.trust(), other.trust().trim_end());
        let parts = split(&text);
        assert_eq!(parts.len(), 2);
        assert!(one.signer.cert.starts_with(&parts[0]) && other.signer.cert.starts_with(&parts[1]));
        assert!(split("-----BEGIN CERTIFICATE-----\nAAAA").is_empty());
    }

    #[test]
    fn nonsense_is_told_and_never_printed() {
        let mut bundle = make(&names(), day(0)).unwrap();
        bundle.cert = "secret words".into();
        let error = leaf_is_good(&bundle, &names(), day(0)).unwrap_err();
        assert_eq!(error.to_string(), "tls.crt is not a PEM certificate");
        assert!(!format!("{bundle:?}").contains("KEY"));
    }
}
