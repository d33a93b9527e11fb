//! The first sixteen bytes that each side sends, in plaintext:
//!
//! ```text
//!  0        8         10         11        12        16
//! +---------+---------+----------+---------+---------+
//! | magic   | version | identity | protect | zero    |
//! +---------+---------+----------+---------+---------+
//! ```
//! Both sides must have sent the same. An attacker who changes them can thus make the stream fail, and
//! nothing else. An accepting side that admits only its own user answers others by an opening with identity
//! 255.

use crate::identity::{IdentityKind, Security};
use crate::{BootstrapError, Protect};

/// Bytes of an opening.
pub(crate) const BYTES: usize = 16;
/// No other protocol begins so; the line end detects conversion of line ends.
const MAGIC: [u8; 8] = *b"farside\n";
/// The version of everything that follows.
const VERSION: u16 = 1;

/// Instead of an identity: this side is for processes of its own user only.
const OTHER_USER: u8 = 255;

/// The answer to a peer of another user.
pub(crate) fn refusal() -> [u8; BYTES] {
    let mut out = of(&Security::open());
    out[10] = OTHER_USER;
    out
}

/// The opening of this side.
pub(crate) fn of(security: &Security) -> [u8; BYTES] {
    let mut out = [0; BYTES];
    out[..8].copy_from_slice(&MAGIC);
    out[8..10].copy_from_slice(&VERSION.to_le_bytes());
    out[10] = security.identity().kind().to_bits();
    out[11] = security.protect().to_bits();
    out
}

/// Checks the peer's opening.
pub(crate) fn check(theirs: &[u8; BYTES], ours: &Security) -> Result<(), BootstrapError> {
    if theirs[..8] != MAGIC {
        return Err(BootstrapError::Stranger);
    }
    let version = u16::from_le_bytes([theirs[8], theirs[9]]);
    if version != VERSION {
        return Err(BootstrapError::Version { theirs: version, ours: VERSION });
    }
    if *theirs == of(ours) {
        return Ok(());
    }
    if *theirs == refusal() {
        return Err(BootstrapError::OtherUserThere);
    }
    match (IdentityKind::from_bits(theirs[10]), Protect::from_bits(theirs[11])) {
        (Some(identity), Some(protect)) if theirs[12..] == [0; 4] => {
            let theirs = format!("{} protecting {}", identity.name(), protect.name());
            let (identity, protect) = (ours.identity().kind().name(), ours.protect().name());
            let ours = format!("{identity} protecting {protect}");
            Err(BootstrapError::OtherSecurity { theirs, ours })
        }
        _ => Err(BootstrapError::Malformed("opening".to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ClusterKey, Identity};

    #[test]
    fn only_the_same_is_let_through() {
        let open = Security::open();
        assert!(check(&of(&open), &open).is_ok());
        for at in 0..BYTES {
            for bit in 0..8 {
                let mut changed = of(&open);
                changed[at] ^= 1 << bit;
                assert!(check(&changed, &open).is_err(), "bit {bit} of byte {at}");
            }
        }
        let key = Identity::cluster_key(&ClusterKey::generate().unwrap()).unwrap();
        let keyed = Security::new(key, Protect::Handshake).unwrap();
        let refused = check(&of(&open), &keyed).unwrap_err();
        let text = "the peer asks for no identity protecting nothing, this side for a cluster key \
                    protecting the handshake; give both the same";
        assert_eq!(refused.to_string(), text);
    }
}
