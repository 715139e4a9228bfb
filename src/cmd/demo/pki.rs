//! Throw-away certificates: one CA, a leaf for the server on loopback, a leaf for the user `demo`. They live as long as
//! the process, and their keys are written nowhere but to the user's kubeconfig.

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};

/// The user in the client certificate.
pub(super) const USER: &str = "demo";
/// Its group, as the administrator of a real cluster has it.
const GROUP: &str = "system:masters";

/// Certificates and keys as PEM texts.
pub(super) struct Pki {
    pub(super) ca: String,
    pub(super) server: Leaf,
    pub(super) client: Leaf,
}

/// A certificate with its key.
pub(super) struct Leaf {
    pub(super) certificate: String,
    pub(super) key: String,
}

impl Pki {
    /// New keys; the server's certificate is for `host` and for `localhost`.
    pub(super) fn generate(host: &str) -> Result<Self, rcgen::Error> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "wva demo CA");
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        let certificate = params.self_signed(&key)?;
        let issuer = Issuer::new(params, key);
        let mut server = CertificateParams::new(vec![host.to_owned(), "localhost".to_owned()])?;
        server.distinguished_name.push(DnType::CommonName, "wva demo");
        server.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let mut client = CertificateParams::default();
        client.distinguished_name.push(DnType::CommonName, USER);
        client.distinguished_name.push(DnType::OrganizationName, GROUP);
        client.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        Ok(Self { ca: certificate.pem(), server: leaf(server, &issuer)?, client: leaf(client, &issuer)? })
    }
}

fn leaf(mut params: CertificateParams, issuer: &Issuer<'_, KeyPair>) -> Result<Leaf, rcgen::Error> {
    let key = KeyPair::generate()?;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.use_authority_key_identifier_extension = true;
    let certificate = params.signed_by(&key, issuer)?.pem();
    Ok(Leaf { certificate, key: key.serialize_pem() })
}
