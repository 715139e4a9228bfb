//! Whether the certificates that are served verify by a `caBundle`, as the API server verifies them before each request.
//! [`verify`] is pure; [`served_chain`] connects to our own listening address.

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
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};

/// Longest wait for a handshake with ourselves, on loopback.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// How the API server's probe begins its messages.
const PROBE_PREFIX: &str = "tls: failed to verify certificate: x509: ";

/// Why the served certificate does not verify.
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

    /// A refusal in the words of the API server's probe.
    fn refuse(self, message: impl AsRef<str>) -> Refusal {
        Refusal { fault: self, message: format!("{PROBE_PREFIX}{}", message.as_ref()) }
    }
}

/// Why the served certificate does not verify, in the words of the API server's own probe.
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
        authorities.into_iter().partition(|authority| check_validity(authority, now).is_ok());
    let verified = verify_by(&valid, chain, name, now);
    let is_unknown = verified.as_ref().is_err_and(|refusal| refusal.fault == Fault::UnknownAuthority);
    if is_unknown && verify_by(&expired, chain, name, now).is_ok() {
        return Err(outside_validity(None, now));
    }
    verified
}

/// Checks validity, name and authority, in Go's order.
fn verify_by(
    authorities: &[CertificateDer<'static>],
    chain: &[CertificateDer<'_>],
    name: &str,
    now: Timestamp,
) -> Result<(), Refusal> {
    let [leaf, intermediates @ ..] = chain else {
        return Err(Fault::Unusable.refuse("no certificate is served"));
    };
    let refusal = |error: Error| refusal(&error, leaf, name, now);
    let parsed = ParsedCertificate::try_from(leaf).map_err(refusal)?;
    check_validity(leaf, now)?;
    let server = ServerName::try_from(name).map_err(|error| Fault::Unusable.refuse(error.to_string()))?;
    verify_server_name(&parsed, &server).map_err(refusal)?;
    if authorities.contains(leaf) {
        // Like Go: a leaf that is in the bundle itself is trusted. webpki rejects one that is a CA, as `openssl req -x509`
        // makes them.
        return Ok(());
    }
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(authorities.iter().cloned());
    let at = UnixTime::since_unix_epoch(Duration::from_secs(now.as_second().try_into().unwrap_or(0)));
    let algorithms = aws_lc_rs::default_provider().signature_verification_algorithms.all;
    verify_server_cert_signed_by_trust_anchor(&parsed, &roots, intermediates, at, algorithms).map_err(refusal)
}

fn check_validity(certificate: &CertificateDer<'_>, now: Timestamp) -> Result<(), Refusal> {
    let Ok((_, certificate)) = X509Certificate::from_der(certificate) else {
        return Err(Fault::Unusable.refuse("malformed certificate"));
    };
    let validity = certificate.validity();
    let is_valid =
        (validity.not_before.timestamp()..=validity.not_after.timestamp()).contains(&now.as_second());
    if is_valid { Ok(()) } else { Err(outside_validity(Some(&certificate), now)) }
}

/// Without the current time, which the probe's message has: a condition must not change with every second.
fn outside_validity(leaf: Option<&X509Certificate<'_>>, now: Timestamp) -> Refusal {
    let message = "certificate has expired or is not yet valid";
    let time = |second| Timestamp::from_second(second).map(|at| at.to_string()).unwrap_or_default();
    let bounds = leaf.map(|leaf| leaf.validity());
    let bounds = bounds.map(|bounds| (bounds.not_before.timestamp(), bounds.not_after.timestamp()));
    Fault::NotValidNow.refuse(match bounds {
        Some((_, end)) if end < now.as_second() => format!("{message}: it expired {}", time(end)),
        Some((start, _)) if start > now.as_second() => format!("{message}: it is valid from {}", time(start)),
        // The leaf itself is valid.
        _ => format!("{message}: a CA that signed it"),
    })
}

fn refusal(error: &Error, leaf: &CertificateDer<'_>, name: &str, now: Timestamp) -> Refusal {
    let Error::InvalidCertificate(cause) = error else {
        return Fault::Unusable.refuse(error.to_string());
    };
    let parsed = X509Certificate::from_der(leaf).ok().map(|(_, certificate)| certificate);
    match cause {
        CertificateError::UnknownIssuer => {
            Fault::UnknownAuthority.refuse("certificate signed by unknown authority")
        }
        CertificateError::Expired
        | CertificateError::ExpiredContext { .. }
        | CertificateError::NotValidYet
        | CertificateError::NotValidYetContext { .. } => outside_validity(parsed.as_ref(), now),
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            let names = parsed.as_ref().map(dns_names).unwrap_or_default();
            Fault::WrongName.refuse(if names.is_empty() {
                format!("certificate is not valid for any names, but wanted to match {name}")
            } else {
                format!("certificate is valid for {}, not {name}", names.join(", "))
            })
        }
        other => Fault::Unusable.refuse(other.to_string()),
    }
}

/// The DNS names among the alternative names of a certificate.
pub(crate) fn dns_names(certificate: &X509Certificate<'_>) -> Vec<String> {
    let alternatives = certificate.subject_alternative_name().ok().flatten();
    let names = alternatives.iter().flat_map(|extension| &extension.value.general_names);
    names
        .filter_map(|name| match name {
            GeneralName::DNSName(name) => Some((*name).to_owned()),
            _ => None,
        })
        .collect()
}

/// The chain that is served at `address` to a client that expects `name`, such as the API server.
pub(crate) async fn served_chain(
    address: SocketAddr,
    name: &str,
) -> io::Result<Vec<CertificateDer<'static>>> {
    let handshake = async {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let mut config = ClientConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(io::Error::other)?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(AcceptAny(provider)))
            .with_no_client_auth();
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        let name = ServerName::try_from(name.to_owned()).map_err(io::Error::other)?;
        let tcp = TcpStream::connect(local_addresses(address).as_slice()).await?;
        let tls = TlsConnector::from(Arc::new(config)).connect(name, tcp).await?;
        let chain = tls.get_ref().1.peer_certificates().unwrap_or_default();
        Ok(chain.iter().map(|certificate| certificate.clone().into_owned()).collect())
    };
    timeout(HANDSHAKE_TIMEOUT, handshake).await?
}

/// How to reach an address that we listen on, in the order to try: a listener on `[::]` accepts IPv4 too, and there is no
/// `::1` where IPv6 is disabled.
fn local_addresses(address: SocketAddr) -> Vec<SocketAddr> {
    let ips = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => vec![Ipv4Addr::LOCALHOST.into()],
        IpAddr::V6(ip) if ip.is_unspecified() => vec![Ipv6Addr::LOCALHOST.into(), Ipv4Addr::LOCALHOST.into()],
        ip => vec![ip],
    };
    ips.into_iter().map(|ip| SocketAddr::new(ip, address.port())).collect()
}

/// Accepts any certificate whose key the server has. Nothing is sent on such a connection, and [`verify`] judges the
/// certificate afterwards.
#[derive(Debug)]
struct AcceptAny(Arc<CryptoProvider>);

impl ServerCertVerifier for AcceptAny {
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

    fn verdict(bundle: &str, leaf: &CertificateDer<'static>) -> String {
        match verify(bundle.as_bytes(), std::slice::from_ref(leaf), NAME, now()) {
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
        for bundle in [
            right.pem(),
            other.pem() + &right.pem(),
            namesake.pem() + &right.pem(),
            damaged.to_owned() + &right.pem(),
        ] {
            assert_eq!(verdict(&bundle, &good), "accepted", "{bundle}");
        }
        assert_ne!(verdict(&namesake.pem(), &good), "accepted", "same name, other key");
    }

    #[test]
    fn a_refusal_has_the_words_of_the_api_servers_probe() {
        let right = ca("ca", 2035);
        let other = ca("other", 2035);
        let expired = ca("ca", 2026);
        let good = leaf(&right, &[NAME], 2025, 2027);
        let wrong_name = leaf(&right, &["localhost"], 2025, 2027);
        let no_name = leaf(&right, &[], 2025, 2027);
        let past = leaf(&right, &[NAME], 2025, 2026);
        let future = leaf(&right, &[NAME], 2027, 2028);
        let of_expired = leaf(&expired, &[NAME], 2025, 2027);
        for (bundle, leaf, expected) in [
            (other.pem(), &good, "certificate signed by unknown authority"),
            (right.pem(), &wrong_name, "certificate is valid for localhost, not rec.kube-system.svc"),
            (
                right.pem(),
                &no_name,
                "certificate is not valid for any names, but wanted to match rec.kube-system.svc",
            ),
            (
                right.pem(),
                &past,
                "certificate has expired or is not yet valid: it expired 2026-01-01T00:00:00Z",
            ),
            (
                right.pem(),
                &future,
                "certificate has expired or is not yet valid: it is valid from 2027-01-01T00:00:00Z",
            ),
            (expired.pem(), &of_expired, "certificate has expired or is not yet valid: a CA that signed it"),
            (
                "no certificate".into(),
                &good,
                "unable to load root certificates: spec.caBundle contains no certificate",
            ),
        ] {
            assert_eq!(verdict(&bundle, leaf), expected);
        }
    }

    #[test]
    fn a_self_signed_leaf_is_accepted_when_it_is_the_bundle_itself() {
        for is_ca in [IsCa::NoCa, IsCa::Ca(BasicConstraints::Unconstrained)] {
            let self_signed = |until| {
                let mut params = params(&[NAME], 2025, until);
                params.is_ca = is_ca;
                params.self_signed(&KeyPair::generate().unwrap()).unwrap()
            };
            let good = self_signed(2027);
            assert_eq!(verdict(&good.pem(), good.der()), "accepted");
            let expired = self_signed(2026);
            assert!(verdict(&expired.pem(), expired.der()).contains("it expired 2026-01-01"));
        }
    }

    #[test]
    fn an_intermediate_is_verified_with_the_leaf() {
        let root = ca("root", 2035);
        let mut intermediate = params(&[], 2025, 2035);
        intermediate.distinguished_name.push(rcgen::DnType::CommonName, "intermediate");
        intermediate.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let intermediate =
            CertifiedIssuer::signed_by(intermediate, KeyPair::generate().unwrap(), &root).unwrap();
        let leaf = leaf(&intermediate, &[NAME], 2025, 2027);
        let chain = [leaf.clone(), intermediate.der().clone()];
        assert_eq!(verify(root.pem().as_bytes(), &chain, NAME, now()), Ok(()));
        let alone = verify(root.pem().as_bytes(), &[leaf], NAME, now()).unwrap_err();
        assert_eq!(alone.fault, Fault::UnknownAuthority);
    }

    #[test]
    fn a_listener_on_every_address_is_reached_by_both_families() {
        let local = |text: &str| {
            local_addresses(text.parse().unwrap()).iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(local("[::]:8443"), ["[::1]:8443", "127.0.0.1:8443"]);
        assert_eq!(local("0.0.0.0:8443"), ["127.0.0.1:8443"]);
        assert_eq!(local("10.1.2.3:8443"), ["10.1.2.3:8443"]);
    }
}
