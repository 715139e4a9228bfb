//! Makes, judges and renews a CA and a leaf. Pure but for the random keys; where they are kept is in `certificates`.

use jiff::{SignedDuration, Timestamp, tz::TimeZone};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, date_time_ymd,
};
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;
use x509_parser::pem::parse_x509_pem;

use super::certificates::Bundle;

/// A day.
const DAY: SignedDuration = SignedDuration::from_hours(24);
/// Validity of the CA: 10 years; it is private to one installation and made anew by deleting the Secret.
const CA_DAYS: i32 = 3650;
/// Validity of the leaf: one year.
const LEAF_DAYS: i32 = 365;
/// A leaf is renewed this many days before its end: time for a person to see that renewing fails.
const RENEW_DAYS: i32 = 30;

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
    let ca_key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
    let mut params = valid(CertificateParams::new(Vec::new())?, CA_DAYS, now);
    params.distinguished_name.push(DnType::CommonName, "wva-ca");
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages =
        vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign, KeyUsagePurpose::DigitalSignature];
    let ca_cert = params.self_signed(&ca_key)?.pem();
    let (cert, key) = leaf(&Issuer::from_params(&params, &ca_key), names, now)?;
    Ok(Bundle { ca_cert, ca_key: ca_key.serialize_pem(), cert, key })
}

/// A new leaf of the same CA; a CA that would end before it is replaced too.
pub(crate) fn renew(old: &Bundle, names: &[String], now: Timestamp) -> Result<Bundle, PkiError> {
    let needed = now + DAY * LEAF_DAYS;
    if parsed("ca.crt", &old.ca_cert, |ca| ca.validity().not_after.timestamp() <= needed.as_second())? {
        return make(names, now);
    }
    let ca_key = KeyPair::from_pem(&old.ca_key).map_err(PkiError::Issuer)?;
    let issuer = Issuer::from_ca_cert_pem(&old.ca_cert, ca_key).map_err(PkiError::Issuer)?;
    let (cert, key) = leaf(&issuer, names, now)?;
    Ok(Bundle { cert, key, ..old.clone() })
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

/// True when the leaf is of this CA, lasts long enough and is good for every one of `names`.
pub(crate) fn is_good(bundle: &Bundle, names: &[String], now: Timestamp) -> Result<bool, PkiError> {
    let until = now + DAY * RENEW_DAYS;
    let lasts = |cert: &X509Certificate<'_>| {
        let validity = cert.validity();
        validity.not_before.timestamp() <= now.as_second()
            && validity.not_after.timestamp() > until.as_second()
    };
    let issuer = parsed("ca.crt", &bundle.ca_cert, |ca| lasts(ca).then(|| ca.subject().as_raw().to_vec()))?;
    let Some(issuer) = issuer else { return Ok(false) };
    parsed("tls.crt", &bundle.cert, |cert| {
        let alternatives = cert.subject_alternative_name().ok().flatten();
        let has = |name: &String| {
            let mut known = alternatives.iter().flat_map(|san| &san.value.general_names);
            known.any(|known| matches!(known, GeneralName::DNSName(known) if known == name))
        };
        lasts(cert) && cert.issuer().as_raw() == issuer && names.iter().all(has)
    })
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

    #[test]
    fn a_new_certificate_is_good_at_once_and_for_all_its_names() {
        let bundle = make(&names(), day(0)).unwrap();
        assert!(is_good(&bundle, &names(), day(0)).unwrap());
        assert!(!is_good(&bundle, &["other.ns.svc".to_owned()], day(0)).unwrap());
    }

    #[test]
    fn a_leaf_is_renewed_a_month_before_its_end_by_the_same_authority() {
        let bundle = make(&names(), day(0)).unwrap();
        assert!(is_good(&bundle, &names(), day(334)).unwrap());
        assert!(!is_good(&bundle, &names(), day(336)).unwrap());
        let renewed = renew(&bundle, &names(), day(336)).unwrap();
        assert_eq!(renewed.ca_cert, bundle.ca_cert);
        assert_ne!(renewed.cert, bundle.cert);
        assert!(is_good(&renewed, &names(), day(336)).unwrap());
    }

    #[test]
    fn an_authority_that_ends_soon_is_replaced_too() {
        let bundle = make(&names(), day(0)).unwrap();
        let renewed = renew(&bundle, &names(), day(3600)).unwrap();
        assert_ne!(renewed.ca_cert, bundle.ca_cert);
    }

    #[test]
    fn nonsense_is_told_and_never_printed() {
        let mut bundle = make(&names(), day(0)).unwrap();
        bundle.cert = "secret words".into();
        let error = is_good(&bundle, &names(), day(0)).unwrap_err();
        assert_eq!(error.to_string(), "tls.crt is not a PEM certificate");
        assert!(!format!("{bundle:?}").contains("KEY"));
    }
}
