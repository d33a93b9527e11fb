//! The configuration of rustls: only TLS 1.3, both sides authenticate, no resumption.

use crate::{BootstrapError, ClusterKey};
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{
    CryptoProvider, WebPkiSupportedAlgorithms, ring as provider,
    verify_tls13_signature_with_raw_key,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{
    CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, SubjectPublicKeyInfoDer,
    UnixTime,
};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::sign::CertifiedKey;
use rustls::{
    AlertDescription, CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName,
    Error, PeerIncompatible, RootCertStore, ServerConfig, SignatureScheme, version::TLS13,
};
use std::sync::Arc;
use subtle::ConstantTimeEq;

/// The TLS configuration of a host for either side of a stream.
pub(crate) struct Roles {
    pub(crate) connecting: Arc<ClientConfig>,
    pub(crate) accepting: Arc<ServerConfig>,
}

/// `ServerName` of streams that are authenticated by a key and not by a name; never sent.
pub(crate) const NAMELESS: &str = "farside.invalid";

/// The prefix of an Ed25519 private key as PKCS #8 (RFC 8410 §7), before its 32 bytes of seed.
const PKCS8_ED25519: [u8; 16] = [
    0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20,
];

pub(crate) fn of_cluster_key(key: &ClusterKey) -> Result<Roles, BootstrapError> {
    let provider = Arc::new(provider::default_provider());
    let (connecting, connecting_key) = key_pair(&provider, key, b"whoever connects")?;
    let (accepting, accepting_key) = key_pair(&provider, key, b"whoever accepts")?;
    let expects = |public| {
        Arc::new(OneKey { public, algorithms: provider.signature_verification_algorithms })
    };
    let client = client_builder(&provider)?
        .dangerous()
        .with_custom_certificate_verifier(expects(accepting_key))
        .with_client_cert_resolver(Arc::new(
            rustls::client::AlwaysResolvesClientRawPublicKeys::new(connecting),
        ));
    let server = server_builder(&provider)?
        .with_client_cert_verifier(expects(connecting_key))
        .with_cert_resolver(Arc::new(rustls::server::AlwaysResolvesServerRawPublicKeys::new(
            accepting,
        )));
    Ok(roles(client, server, false))
}

pub(crate) fn of_certificates(
    chain: &str,
    key: &str,
    trusted: &str,
) -> Result<Roles, BootstrapError> {
    let provider = Arc::new(provider::default_provider());
    let mut roots = RootCertStore::empty();
    for authority in certificates(trusted, "trusted authority")? {
        roots.add(authority).map_err(|e| unusable("trusted authority", &e))?;
    }
    let roots = Arc::new(roots);
    let chain = certificates(chain, "chain")?;
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes());
    let key = key.map_err(|e| unusable("private key", &e))?;
    let server_verifier =
        WebPkiServerVerifier::builder_with_provider(Arc::clone(&roots), Arc::clone(&provider));
    let server_verifier = server_verifier.build().map_err(|e| unusable("trusted authority", &e))?;
    let client_verifier = WebPkiClientVerifier::builder_with_provider(roots, Arc::clone(&provider));
    let client_verifier = client_verifier.build().map_err(|e| unusable("trusted authority", &e))?;
    let client = client_builder(&provider)?
        .with_webpki_verifier(server_verifier)
        .with_client_auth_cert(chain.clone(), key.clone_key());
    let server = server_builder(&provider)?
        .with_client_cert_verifier(client_verifier)
        .with_single_cert(chain, key);
    let client = client.map_err(|e| unusable("chain and private key", &e))?;
    Ok(roles(client, server.map_err(|e| unusable("chain and private key", &e))?, true))
}

type Builder<Side> = rustls::ConfigBuilder<Side, rustls::WantsVerifier>;

fn client_builder(provider: &Arc<CryptoProvider>) -> Result<Builder<ClientConfig>, BootstrapError> {
    let builder = ClientConfig::builder_with_provider(Arc::clone(provider));
    builder.with_protocol_versions(&[&TLS13]).map_err(|e| unusable("library", &e))
}

fn server_builder(provider: &Arc<CryptoProvider>) -> Result<Builder<ServerConfig>, BootstrapError> {
    let builder = ServerConfig::builder_with_provider(Arc::clone(provider));
    builder.with_protocol_versions(&[&TLS13]).map_err(|e| unusable("library", &e))
}

/// No resumption and no tickets: after the handshake each side sends only what its caller writes, which
/// `Stream::into_plain` relies on.
fn roles(mut client: ClientConfig, mut server: ServerConfig, named: bool) -> Roles {
    client.resumption = rustls::client::Resumption::disabled();
    client.enable_sni = named;
    client.enable_early_data = false;
    server.send_tls13_tickets = 0;
    server.session_storage = Arc::new(rustls::server::NoServerSessionStorage {});
    server.max_early_data_size = 0;
    Roles { connecting: Arc::new(client), accepting: Arc::new(server) }
}

fn certificates(pem: &str, what: &str) -> Result<Vec<CertificateDer<'static>>, BootstrapError> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem.as_bytes()).collect();
    let found = found.map_err(|e| unusable(what, &e))?;
    if found.is_empty() {
        return Err(unusable(what, &"no certificate in it"));
    }
    Ok(found)
}

fn unusable(what: &str, reason: &dyn std::fmt::Display) -> BootstrapError {
    BootstrapError::Certificates(format!("{what}: {reason}"))
}

/// The key pair of one role, and its public half as peers will present it.
fn key_pair(
    provider: &CryptoProvider,
    key: &ClusterKey,
    role: &[u8],
) -> Result<(Arc<CertifiedKey>, Vec<u8>), BootstrapError> {
    let document = [&PKCS8_ED25519[..], &key.derive(role)].concat();
    let private = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(document));
    let pair = provider.key_provider.load_private_key(private);
    let pair = pair.map_err(|e| unusable("key of the cluster", &e))?;
    let public = pair.public_key().map(|public| public.as_ref().to_vec());
    let public = public.ok_or_else(|| unusable("key of the cluster", &"no public half"))?;
    let shown = vec![CertificateDer::from(public.clone())];
    Ok((Arc::new(CertifiedKey::new(shown, pair)), public))
}

/// Trusts one raw public key and nothing else.
#[derive(Debug)]
struct OneKey {
    public: Vec<u8>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl OneKey {
    fn check(&self, shown: &CertificateDer<'_>, more: &[CertificateDer<'_>]) -> Result<(), Error> {
        let same = bool::from(shown.as_ref().ct_eq(&self.public));
        if same && more.is_empty() {
            return Ok(());
        }
        Err(Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure))
    }

    fn signed(
        &self,
        message: &[u8],
        shown: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let key = SubjectPublicKeyInfoDer::from(shown.as_ref());
        verify_tls13_signature_with_raw_key(message, &key, signature, &self.algorithms)
    }
}

impl ServerCertVerifier for OneKey {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.check(end_entity, intermediates).map(|()| ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(Error::PeerIncompatible(PeerIncompatible::Tls12NotOffered))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.signed(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

impl ClientCertVerifier for OneKey {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.check(end_entity, intermediates).map(|()| ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(Error::PeerIncompatible(PeerIncompatible::Tls12NotOffered))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.signed(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

/// Maps an error of rustls to what to do about it.
pub(crate) fn explain(error: Error) -> BootstrapError {
    match error {
        Error::InvalidCertificate(reason) => BootstrapError::NotTrusted(distrust(&reason)),
        Error::NoCertificatesPresented => {
            BootstrapError::NotTrusted("it shows no proof; give it its key or certificate".into())
        }
        Error::AlertReceived(alert) => refused_there(alert),
        other => BootstrapError::Malformed(other.to_string()),
    }
}

fn distrust(reason: &CertificateError) -> String {
    use CertificateError as E;
    match reason {
        E::ApplicationVerificationFailure => {
            "it holds another cluster key; compare the fingerprints and copy the right file".into()
        }
        E::Expired | E::ExpiredContext { .. } => {
            "its certificate has expired; renew it, or set the clocks".into()
        }
        E::NotValidYet | E::NotValidYetContext { .. } => {
            "its certificate is not valid yet; set the clocks".into()
        }
        E::UnknownIssuer | E::BadSignature => {
            "no trusted authority signed its certificate; sign it, or trust its authority".into()
        }
        E::NotValidForName | E::NotValidForNameContext { .. } => {
            format!("its certificate is for other hosts ({reason}); add the name that was called")
        }
        other => format!("{other}; replace its certificate"),
    }
}

fn refused_there(alert: AlertDescription) -> BootstrapError {
    use AlertDescription as A;
    let text = match alert {
        A::AccessDenied => "it holds another cluster key; compare the fingerprints",
        A::CertificateExpired => "this host's certificate has expired; renew it, or set the clocks",
        A::UnknownCA => "it does not know the authority of this host's certificate",
        A::DecryptError => {
            "it finds a signature of this host wrong; it trusts another authority of the same name, \
             or something changes bytes on the way"
        }
        A::CertificateRequired => "this host shows no proof; give it its key or certificate",
        A::BadCertificate
        | A::UnsupportedCertificate
        | A::CertificateUnknown
        | A::CertificateRevoked => "it refuses this host's certificate; replace it",
        other => return BootstrapError::Malformed(format!("alert {other:?}")),
    };
    BootstrapError::NotTrustedThere(text.to_owned())
}
