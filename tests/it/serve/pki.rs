//! A throw-away PKI: one authority for each role that a cluster has.

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType, ExtendedKeyUsagePurpose,
    IsCa, KeyPair, KeyUsagePurpose, date_time_ymd,
};
use wva::serve::tls::SharedPki;

/// The server name by which instances call each other in these tests.
pub(crate) const INSTANCE: &str = "wva-instance.wva.internal";

/// The name that API clients use.
pub(crate) const SERVICE: &str = "wva.wva.svc";

/// A certificate authority.
pub(crate) struct Authority(CertifiedIssuer<'static, KeyPair>);

/// A certificate with its key, PEM.
#[derive(Clone)]
pub(crate) struct Leaf {
    pub(crate) certificate: String,
    pub(crate) key: String,
}

/// The subject of a leaf.
#[derive(Default)]
pub(crate) struct Subject<'a> {
    pub(crate) common_name: &'a str,
    pub(crate) organisations: &'a [&'a str],
    pub(crate) names: &'a [&'a str],
    pub(crate) usages: &'a [ExtendedKeyUsagePurpose],
}

impl Authority {
    pub(crate) fn new(name: &str) -> Self {
        Self::with(name, CertificateParams::default())
    }

    /// An authority whose own certificate has expired; its leaves have not.
    pub(crate) fn expired(name: &str) -> Self {
        let mut params = CertificateParams::default();
        (params.not_before, params.not_after) = (date_time_ymd(2020, 1, 1), date_time_ymd(2021, 1, 1));
        Self::with(name, params)
    }

    fn with(name: &str, mut params: CertificateParams) -> Self {
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        params.distinguished_name = distinguished(name, &[]);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    pub(crate) fn pem(&self) -> String {
        self.0.pem()
    }

    pub(crate) fn issue(&self, subject: &Subject<'_>) -> Leaf {
        let names: Vec<_> = subject.names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        params.distinguished_name = distinguished(subject.common_name, subject.organisations);
        params.extended_key_usages = subject.usages.to_vec();
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.0).unwrap().pem();
        Leaf { certificate, key: key.serialize_pem() }
    }

    /// A client certificate for `common_name`.
    pub(crate) fn client(&self, common_name: &str, organisations: &[&str]) -> Leaf {
        let usages = &[ExtendedKeyUsagePurpose::ClientAuth];
        self.issue(&Subject { common_name, organisations, usages, ..Subject::default() })
    }

    /// The certificate that instances share, for the Service and for each other as client and server.
    pub(crate) fn shared(&self) -> SharedPki {
        let usages = &[ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let names = &[SERVICE, INSTANCE];
        let leaf = self.issue(&Subject { common_name: INSTANCE, names, usages, ..Subject::default() });
        SharedPki { ca_pem: self.pem(), cert_pem: leaf.certificate, key_pem: leaf.key }
    }
}

fn distinguished(common_name: &str, organisations: &[&str]) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    name.push(DnType::CommonName, common_name);
    for organisation in organisations {
        name.push(DnType::OrganizationName, *organisation);
    }
    name
}
