//! The identity of a host, the peers that it trusts, and the protection of its streams.

use crate::tls::{self, Roles};
use crate::{BootstrapError, ClusterKey, Protect};
use std::fmt;
use std::sync::Arc;

/// The identity of a host, and the identities that it admits. Clones share it.
#[derive(Clone)]
pub struct Identity {
    kind: IdentityKind,
    roles: Option<Arc<Roles>>,
}

/// The kinds of identity.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum IdentityKind {
    Open,
    ClusterKey,
    Certificates,
}

/// An identity, and the protection under it.
#[derive(Clone, Debug)]
pub struct Security {
    identity: Identity,
    protect: Protect,
}

impl Identity {
    /// No identity, and every peer is admitted: for networks without untrusted hosts.
    pub const fn open() -> Self {
        Self { kind: IdentityKind::Open, roles: None }
    }

    /// Proof that this host holds the cluster's key. Both ends derive one key pair for the connecting and
    /// one for the accepting role (HKDF-SHA256, Ed25519), present it as a raw public key (RFC 7250) and
    /// accept exactly that of the other role.
    ///
    /// # Errors
    /// `Certificates` if the TLS library refuses the derived keys, which happens for no known key.
    pub fn cluster_key(key: &ClusterKey) -> Result<Self, BootstrapError> {
        let roles = Some(Arc::new(tls::of_cluster_key(key)?));
        Ok(Self { kind: IdentityKind::ClusterKey, roles })
    }

    /// Proof by X.509 certificates: this host's `chain` and its private `key`, and the `trusted`
    /// authorities for other hosts, all as PEM. The connecting side checks that the certificate is for the
    /// host that it dialled; the accepting side takes any that an authority signed.
    ///
    /// # Errors
    /// `Certificates`, which says what cannot be used.
    pub fn certificates(chain: &str, key: &str, trusted: &str) -> Result<Self, BootstrapError> {
        let roles = Some(Arc::new(tls::of_certificates(chain, key, trusted)?));
        Ok(Self { kind: IdentityKind::Certificates, roles })
    }

    /// Its description.
    pub const fn name(&self) -> &'static str {
        self.kind.name()
    }

    pub(crate) const fn kind(&self) -> IdentityKind {
        self.kind
    }

    pub(crate) fn roles(&self) -> Option<&Roles> {
        self.roles.as_deref()
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Identity({})", self.name())
    }
}

impl IdentityKind {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Open => "no identity",
            Self::ClusterKey => "a cluster key",
            Self::Certificates => "certificates",
        }
    }

    pub(crate) const fn to_bits(self) -> u8 {
        match self {
            Self::Open => 0,
            Self::ClusterKey => 1,
            Self::Certificates => 2,
        }
    }

    pub(crate) const fn from_bits(bits: u8) -> Option<Self> {
        match bits {
            0 => Some(Self::Open),
            1 => Some(Self::ClusterKey),
            2 => Some(Self::Certificates),
            _ => None,
        }
    }
}

impl Security {
    /// The valid combinations: an open identity with `Nothing`, every other with `Handshake` or
    /// `Everything`.
    ///
    /// # Errors
    /// `Combination` otherwise.
    pub fn new(identity: Identity, protect: Protect) -> Result<Self, BootstrapError> {
        let open = identity.kind == IdentityKind::Open;
        if open != (protect == Protect::Nothing) {
            return Err(BootstrapError::Combination(protect));
        }
        Ok(Self { identity, protect })
    }

    /// Every peer is admitted, and nothing is protected.
    pub const fn open() -> Self {
        Self { identity: Identity::open(), protect: Protect::Nothing }
    }

    /// The identity.
    pub const fn identity(&self) -> &Identity {
        &self.identity
    }

    /// The protection.
    pub const fn protect(&self) -> Protect {
        self.protect
    }

    /// Whether there is no identity.
    pub(crate) fn is_open(&self) -> bool {
        self.identity.kind == IdentityKind::Open
    }

    /// A short description for people: `TLS 1.3 with a cluster key`.
    pub fn describe(&self) -> String {
        let identity = self.identity.name();
        match self.protect {
            Protect::Nothing => "open, plain text".to_owned(),
            Protect::Handshake => format!("TLS 1.3 handshake with {identity}, data in plain text"),
            Protect::Everything => format!("TLS 1.3 with {identity}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_makes_sense_goes_together() {
        let keyed = Identity::cluster_key(&ClusterKey::generate().unwrap()).unwrap();
        for (identity, allowed) in
            [(Identity::open(), [true, false, false]), (keyed, [false, true, true])]
        {
            let all = [Protect::Nothing, Protect::Handshake, Protect::Everything];
            for (protect, allowed) in all.into_iter().zip(allowed) {
                assert_eq!(Security::new(identity.clone(), protect).is_ok(), allowed);
                assert_eq!(Protect::from_bits(protect.to_bits()), Some(protect));
            }
        }
        for bits in 0..=2 {
            assert_eq!(IdentityKind::from_bits(bits).map(IdentityKind::to_bits), Some(bits));
        }
    }

    #[test]
    fn useless_certificates_are_refused() {
        let refused = Identity::certificates("", "", "").unwrap_err();
        assert!(matches!(refused, BootstrapError::Certificates(_)), "{refused}");
    }
}
