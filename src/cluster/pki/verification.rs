//! Whether the API server accepts what we show: the verification that it does before it sends us a request, done by
//! ourselves. [`verify`] is pure; [`shown`] looks at our own listening address.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{verify_server_cert_signed_by_trust_anchor, verify_server_name};
use rustls::crypto::{CryptoProvider, aws_lc_rs, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use x509_parser::prelude::{FromDer, X509Certificate};

/// Longest wait for a handshake with ourselves, on loopback.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// Why what we show is not accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// There is no CA to verify by.
    NoAuthority,
    /// None of the CAs signed it.
    UnknownAuthority,
    /// It has ended, or has not begun.
    NotValidNow,
    /// It is for other names.
    WrongName,
    /// It cannot be used for another reason.
    Unusable,
}

/// A refusal, in the words of the API server's own probe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) fault: Fault,
    pub(crate) words: String,
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

    fn because(self, words: impl AsRef<str>) -> Refusal {
        let words = format!("tls: failed to verify certificate: x509: {}", words.as_ref());
        Refusal { fault: self, words }
    }
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
        let words = "unable to load root certificates: spec.caBundle holds no certificate".into();
        return Err(Refusal { fault: Fault::NoAuthority, words });
    }
    verify_by(authorities, chain, name, now)
}

/// Verifies `chain` by the authorities of this machine: what the API server does with its own when `caBundle` is empty.
pub(crate) fn verify_by_system(
    chain: &[CertificateDer<'_>],
    name: &str,
    now: Timestamp,
) -> Result<(), Refusal> {
    verify_by(rustls_native_certs::load_native_certs().certs, chain, name, now)
}

fn verify_by(
    authorities: Vec<CertificateDer<'static>>,
    chain: &[CertificateDer<'_>],
    name: &str,
    now: Timestamp,
) -> Result<(), Refusal> {
    // Of an authority webpki takes name and key alone; for Go, one that has ended vouches for nobody.
    let (lasting, ended): (Vec<_>, Vec<_>) =
        authorities.into_iter().partition(|authority| in_time(authority, now).is_ok());
    let verified = chain_of(&lasting, chain, name, now);
    match verified {
        Err(refusal)
            if refusal.fault == Fault::UnknownAuthority && chain_of(&ended, chain, name, now).is_ok() =>
        {
            Err(out_of_time(None, now))
        }
        verified => verified,
    }
}

fn chain_of(
    authorities: &[CertificateDer<'static>],
    chain: &[CertificateDer<'_>],
    name: &str,
    now: Timestamp,
) -> Result<(), Refusal> {
    let [leaf, between @ ..] = chain else {
        return Err(Fault::Unusable.because("no certificate is shown"));
    };
    let unusable = |error: Error| refusal(&error, leaf, name, now);
    let parsed = ParsedCertificate::try_from(leaf).map_err(unusable)?;
    // In Go's order: times, name, authority. As in Go, a leaf that is itself in the bundle is trusted like a CA.
    in_time(leaf, now)?;
    let server = ServerName::try_from(name).map_err(|error| Fault::Unusable.because(error.to_string()))?;
    verify_server_name(&parsed, &server).map_err(unusable)?;
    let read = X509Certificate::from_der(leaf).map(|(_, read)| read);
    match read {
        _ if authorities.contains(leaf) => Ok(()),
        Ok(read) if read.is_ca() => signatures(&read, leaf, authorities, between, now),
        _ => {
            let mut roots = RootCertStore::empty();
            roots.add_parsable_certificates(authorities.iter().cloned());
            let seconds = now.as_second().try_into().unwrap_or(0);
            let at = UnixTime::since_unix_epoch(Duration::from_secs(seconds));
            let algorithms = aws_lc_rs::default_provider().signature_verification_algorithms;
            verify_server_cert_signed_by_trust_anchor(&parsed, &roots, between, at, algorithms.all)
                .map_err(unusable)
        }
    }
}

/// What is left to look at of a leaf that is itself a CA: webpki takes none, Go does.
fn signatures(
    read: &X509Certificate<'_>,
    leaf: &CertificateDer<'_>,
    authorities: &[CertificateDer<'static>],
    between: &[CertificateDer<'_>],
    now: Timestamp,
) -> Result<(), Refusal> {
    let usage = read.extended_key_usage().ok().flatten().map(|usage| usage.value);
    if usage.is_some_and(|usage| !usage.any && !usage.server_auth) {
        return Err(Fault::Unusable.because("certificate specifies an incompatible key usage"));
    }
    if vouched_for(leaf, authorities, between, now) {
        return Ok(());
    }
    Err(Fault::UnknownAuthority.because("certificate signed by unknown authority"))
}

/// True when one of `authorities` signed `cert`, or the next one of `between` did, which is vouched for itself.
fn vouched_for(
    cert: &CertificateDer<'_>,
    authorities: &[CertificateDer<'static>],
    between: &[CertificateDer<'_>],
    now: Timestamp,
) -> bool {
    authorities.iter().any(|authority| has_signed(authority, cert))
        || between.split_first().is_some_and(|(next, above)| {
            let good = in_time(next, now).is_ok() && has_signed(next, cert);
            good && vouched_for(next, authorities, above, now)
        })
}

fn has_signed(issuer: &CertificateDer<'_>, cert: &CertificateDer<'_>) -> bool {
    let (Ok((_, issuer)), Ok((_, cert))) =
        (X509Certificate::from_der(issuer), X509Certificate::from_der(cert))
    else {
        return false;
    };
    let key = &issuer.public_key().subject_public_key.data;
    let (message, signature) = (cert.tbs_certificate.as_ref(), &cert.signature_value.data);
    let algorithms = aws_lc_rs::default_provider().signature_verification_algorithms.all;
    // A key and a signature fit one of them at most.
    issuer.is_ca()
        && issuer.subject().as_raw() == cert.issuer().as_raw()
        && algorithms.iter().any(|one| one.verify_signature(key, message, signature).is_ok())
}

fn in_time(cert: &CertificateDer<'_>, now: Timestamp) -> Result<(), Refusal> {
    let Ok((_, cert)) = X509Certificate::from_der(cert) else {
        return Err(Fault::Unusable.because("malformed certificate"));
    };
    let (from, to) = (cert.validity().not_before.timestamp(), cert.validity().not_after.timestamp());
    if (from..=to).contains(&now.as_second()) { Ok(()) } else { Err(out_of_time(Some(&cert), now)) }
}

/// Without the current time, which the probe's message has: a text that changes every second is news every second.
fn out_of_time(leaf: Option<&X509Certificate<'_>>, now: Timestamp) -> Refusal {
    let said = "certificate has expired or is not yet valid";
    let day = |second| Timestamp::from_second(second).map(|at| at.to_string()).unwrap_or_default();
    let validity = leaf.map(|leaf| leaf.validity());
    Fault::NotValidNow.because(match validity {
        Some(validity) if validity.not_after.timestamp() < now.as_second() => {
            format!("{said}: it ended {}", day(validity.not_after.timestamp()))
        }
        Some(validity) if validity.not_before.timestamp() > now.as_second() => {
            format!("{said}: it begins {}", day(validity.not_before.timestamp()))
        }
        // The leaf is in time, so it is a CA above it.
        _ => format!("{said}: a CA above it"),
    })
}

fn refusal(error: &Error, leaf: &CertificateDer<'_>, name: &str, now: Timestamp) -> Refusal {
    let Error::InvalidCertificate(cause) = error else {
        return Fault::Unusable.because(error.to_string());
    };
    let parsed = X509Certificate::from_der(leaf).ok().map(|(_, cert)| cert);
    match cause {
        CertificateError::UnknownIssuer => {
            Fault::UnknownAuthority.because("certificate signed by unknown authority")
        }
        CertificateError::Expired
        | CertificateError::ExpiredContext { .. }
        | CertificateError::NotValidYet
        | CertificateError::NotValidYetContext { .. } => out_of_time(parsed.as_ref(), now),
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            let names = parsed.as_ref().map(dns_names).unwrap_or_default();
            Fault::WrongName.because(if names.is_empty() {
                format!("certificate is not valid for any names, but wanted to match {name}")
            } else {
                format!("certificate is valid for {}, not {name}", names.join(", "))
            })
        }
        other => Fault::Unusable.because(other.to_string()),
    }
}

fn dns_names(cert: &X509Certificate<'_>) -> Vec<String> {
    let san = cert.subject_alternative_name().ok().flatten();
    let names = san.iter().flat_map(|san| &san.value.general_names);
    names
        .filter_map(|name| match name {
            x509_parser::extensions::GeneralName::DNSName(name) => Some((*name).to_owned()),
            _ => None,
        })
        .collect()
}

/// The chain that is shown at `address` to whoever asks for `name`, the API server for one.
pub(crate) async fn shown(address: SocketAddr, name: &str) -> io::Result<Vec<CertificateDer<'static>>> {
    let looking = async {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let mut config = ClientConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(io::Error::other)?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Look(provider)))
            .with_no_client_auth();
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        let name = ServerName::try_from(name.to_owned()).map_err(io::Error::other)?;
        let tcp = TcpStream::connect(here(address).as_slice()).await?;
        let tls = TlsConnector::from(Arc::new(config)).connect(name, tcp).await?;
        let chain = tls.get_ref().1.peer_certificates().unwrap_or_default();
        Ok(chain.iter().map(|cert| cert.clone().into_owned()).collect())
    };
    timeout(HANDSHAKE_TIMEOUT, looking).await?
}

/// Where an address that we listen on is reached from here, to be tried in this order: who listens on all addresses of
/// IPv6 listens on those of IPv4 too, and where IPv6 is switched off there is no `::1`.
fn here(address: SocketAddr) -> Vec<SocketAddr> {
    let ips = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => vec![Ipv4Addr::LOCALHOST.into()],
        IpAddr::V6(ip) if ip.is_unspecified() => vec![Ipv6Addr::LOCALHOST.into(), Ipv4Addr::LOCALHOST.into()],
        ip => vec![ip],
    };
    ips.into_iter().map(|ip| SocketAddr::new(ip, address.port())).collect()
}

/// Takes any certificate whose key the server has. Nothing is sent on such a connection: the certificate is all that is
/// wanted of it, and it is judged afterwards.
#[derive(Debug)]
struct Look(Arc<CryptoProvider>);

impl ServerCertVerifier for Look {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{
        BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
        SigningKey, date_time_ymd,
    };

    use super::*;

    const NAME: &str = "rec.kube-system.svc";

    fn now() -> Timestamp {
        "2026-06-01T12:00:00Z".parse().unwrap()
    }

    fn ca(name: &str, until: i32) -> CertifiedIssuer<'static, KeyPair> {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.not_before = date_time_ymd(2025, 1, 1);
        params.not_after = date_time_ymd(until, 1, 1);
        CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
    }

    fn leaf(
        by: &Issuer<'_, impl SigningKey>,
        names: &[&str],
        from: i32,
        until: i32,
    ) -> CertificateDer<'static> {
        let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        params.not_before = date_time_ymd(from, 1, 1);
        params.not_after = date_time_ymd(until, 1, 1);
        params.signed_by(&KeyPair::generate().unwrap(), by).unwrap().der().clone()
    }

    fn said(bundle: &str, leaf: CertificateDer<'static>) -> String {
        match verify(bundle.as_bytes(), &[leaf], NAME, now()) {
            Ok(()) => "accepted".into(),
            Err(refusal) => refusal.words.replace("tls: failed to verify certificate: x509: ", ""),
        }
    }

    #[test]
    fn what_the_api_server_accepts_is_accepted() {
        let (right, other) = (ca("ca", 2035), ca("other", 2035));
        let good = leaf(&right, &[NAME], 2025, 2027);
        assert_eq!(said(&right.pem(), good.clone()), "accepted");
        assert_eq!(
            said(&format!("{}{}", other.pem(), right.pem()), good.clone()),
            "accepted",
            "in any place"
        );
        let damaged =
            format!("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n{}", right.pem());
        assert_eq!(said(&damaged, good), "accepted", "what cannot be parsed is left out");
    }

    #[test]
    fn a_refusal_says_what_the_api_server_s_probe_says() {
        let (right, other) = (ca("ca", 2035), ca("other", 2035));
        let good = leaf(&right, &[NAME], 2025, 2027);
        assert_eq!(said(&other.pem(), good.clone()), "certificate signed by unknown authority");
        assert_eq!(
            said(&right.pem(), leaf(&right, &["localhost"], 2025, 2027)),
            "certificate is valid for localhost, not rec.kube-system.svc"
        );
        assert_eq!(
            said(&right.pem(), leaf(&right, &[], 2025, 2027)),
            "certificate is not valid for any names, but wanted to match rec.kube-system.svc"
        );
        let ended = "certificate has expired or is not yet valid: it ended 2026-01-01T00:00:00Z";
        assert_eq!(said(&right.pem(), leaf(&right, &[NAME], 2025, 2026)), ended);
        let begins = "certificate has expired or is not yet valid: it begins 2027-01-01T00:00:00Z";
        assert_eq!(said(&right.pem(), leaf(&right, &[NAME], 2027, 2028)), begins);
        let none = "unable to load root certificates: spec.caBundle holds no certificate";
        assert_eq!(said("no certificate", good), none);
    }

    #[test]
    fn a_ca_of_the_same_name_and_another_key_does_not_do() {
        let (right, namesake) = (ca("ca", 2035), ca("ca", 2035));
        let good = leaf(&right, &[NAME], 2025, 2027);
        assert_ne!(said(&namesake.pem(), good.clone()), "accepted");
        assert_eq!(said(&format!("{}{}", namesake.pem(), right.pem()), good), "accepted");
    }

    #[test]
    fn an_authority_that_has_ended_vouches_for_nobody() {
        let ended = ca("ca", 2026);
        let said = said(&ended.pem(), leaf(&ended, &[NAME], 2025, 2027));
        assert!(said.starts_with("certificate has expired or is not yet valid: a CA"), "{said}");
    }

    /// A leaf that says that it is a CA.
    fn ca_leaf(by: &Issuer<'_, impl SigningKey>, usage: ExtendedKeyUsagePurpose) -> CertificateDer<'static> {
        let mut params = CertificateParams::new([NAME.to_owned()]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.extended_key_usages = vec![usage];
        params.not_before = date_time_ymd(2025, 1, 1);
        params.not_after = date_time_ymd(2027, 1, 1);
        params.signed_by(&KeyPair::generate().unwrap(), by).unwrap().der().clone()
    }

    #[test]
    fn a_leaf_that_is_a_ca_itself_is_accepted_as_the_api_server_accepts_it() {
        let (right, namesake) = (ca("ca", 2035), ca("ca", 2035));
        let server = ca_leaf(&right, ExtendedKeyUsagePurpose::ServerAuth);
        assert_eq!(said(&format!("{}{}", namesake.pem(), right.pem()), server.clone()), "accepted");
        assert_eq!(said(&namesake.pem(), server), "certificate signed by unknown authority");
        let client = ca_leaf(&right, ExtendedKeyUsagePurpose::ClientAuth);
        assert_eq!(said(&right.pem(), client), "certificate specifies an incompatible key usage");
        let ended = ca("ca", 2026);
        let said = said(&ended.pem(), ca_leaf(&ended, ExtendedKeyUsagePurpose::ServerAuth));
        assert!(said.starts_with("certificate has expired or is not yet valid: a CA"), "{said}");
    }

    #[test]
    fn a_leaf_that_is_a_ca_may_have_another_between_itself_and_the_authority() {
        let root = ca("root", 2035);
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(rcgen::DnType::CommonName, "between");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.not_before = date_time_ymd(2025, 1, 1);
        params.not_after = date_time_ymd(2035, 1, 1);
        let between = CertifiedIssuer::signed_by(params, KeyPair::generate().unwrap(), &root).unwrap();
        let leaf = ca_leaf(&between, ExtendedKeyUsagePurpose::ServerAuth);
        let chain = [leaf.clone(), between.der().clone()];
        assert_eq!(verify(root.pem().as_bytes(), &chain, NAME, now()), Ok(()));
        let alone = verify(root.pem().as_bytes(), &[leaf], NAME, now()).unwrap_err();
        assert_eq!(alone.fault, Fault::UnknownAuthority);
    }

    #[test]
    fn who_listens_on_every_address_is_looked_for_by_both_families() {
        let here =
            |text: &str| here(text.parse().unwrap()).iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(here("[::]:8443"), ["[::1]:8443", "127.0.0.1:8443"]);
        assert_eq!(here("0.0.0.0:8443"), ["127.0.0.1:8443"]);
        assert_eq!(here("10.1.2.3:8443"), ["10.1.2.3:8443"]);
    }

    #[test]
    fn a_self_signed_certificate_is_accepted_when_it_is_the_bundle_itself() {
        let signed = |until| {
            let mut params = CertificateParams::new([NAME.to_owned()]).unwrap();
            params.not_before = date_time_ymd(2025, 1, 1);
            params.not_after = date_time_ymd(until, 1, 1);
            params.self_signed(&KeyPair::generate().unwrap()).unwrap()
        };
        let good = signed(2027);
        assert_eq!(said(&good.pem(), good.der().clone()), "accepted");
        let ended = signed(2026);
        assert!(said(&ended.pem(), ended.der().clone()).contains("it ended 2026-01-01"));
    }
}
