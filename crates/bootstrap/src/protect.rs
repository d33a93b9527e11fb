//! The part of a stream that TLS protects.

/// The part of a stream that TLS protects.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Protect {
    /// Nothing: every peer is admitted, and all data can be read and changed in transit.
    Nothing,
    /// The identities and the control messages (including remote keys); other data is then plaintext.
    Handshake,
    /// Everything.
    Everything,
}

impl Protect {
    /// Its description.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::Handshake => "the handshake",
            Self::Everything => "everything",
        }
    }

    pub(crate) const fn to_bits(self) -> u8 {
        match self {
            Self::Nothing => 0,
            Self::Handshake => 1,
            Self::Everything => 2,
        }
    }

    pub(crate) const fn from_bits(bits: u8) -> Option<Self> {
        match bits {
            0 => Some(Self::Nothing),
            1 => Some(Self::Handshake),
            2 => Some(Self::Everything),
            _ => None,
        }
    }
}
