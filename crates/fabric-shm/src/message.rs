//! The messages of two fabrics over a link's socket, byte by byte.
//!
//! One datagram is one message: magic, version, kind, then fixed fields, then free bytes, all
//! little-endian. Anything else is no message, and its link is closed.

use crate::layout::{PORTS_MAX, REGIONS_MAX, VERSION};
use crate::options::{bulk_fits, slots_fit};
use crate::ring::Geometry;
use farside_base::{Access, RegionId, RegionKind, RemoteKey};
use farside_fabric::HELLO_BYTES_MAX;

/// Most bytes of a message.
pub(crate) const MESSAGE_BYTES_MAX: usize = HELLO_BYTES_MAX + 64;

/// Most descriptors that travel with a message.
pub(crate) const DESCRIPTORS_MAX: usize = 3;

const MAGIC: u32 = u32::from_le_bytes(*b"FsSh");

/// One end as described to the other. Sent with three descriptors: this end's link memory, its fabric's
/// board, its fabric's bells.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Terms {
    pub(crate) geometry: Geometry,
    /// Number of the port within its fabric.
    pub(crate) port: u32,
    /// Whether its process can do both halves of the light and heavy barrier.
    pub(crate) barriers: bool,
}

/// The owner's region and its access. Sent with its memfd, unless peers have no access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Grant {
    /// Of its memfd, which a mirrored region maps twice.
    pub(crate) bytes: u64,
    pub(crate) kind: RegionKind,
    pub(crate) access: Access,
    /// Number of the key word on the owner's board.
    pub(crate) place: u32,
}

/// One message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum ControlMessage<'a> {
    /// First message of the connecting end.
    Hello { terms: Terms, bytes: &'a [u8] },
    /// The answer that makes the link usable.
    Accept { terms: Terms, bytes: &'a [u8] },
    /// The answer that ends it.
    Refuse { bytes: &'a [u8] },
    /// Requests a region.
    Import { question: u64, region: RegionId, key: RemoteKey },
    /// A request on the link has failed: neither end runs further requests.
    Broken,
    /// Answers `Import`; `None` if there is no such region or the key is wrong.
    Imported { question: u64, grant: Option<Grant> },
}

impl<'a> ControlMessage<'a> {
    /// Writes it at the end of `out`.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        let kind: u16 = match self {
            Self::Hello { .. } => 1,
            Self::Accept { .. } => 2,
            Self::Refuse { .. } => 3,
            Self::Import { .. } => 4,
            Self::Imported { .. } => 5,
            Self::Broken => 6,
        };
        out.extend_from_slice(&MAGIC.to_le_bytes());
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.extend_from_slice(&kind.to_le_bytes());
        match self {
            Self::Hello { terms, bytes } | Self::Accept { terms, bytes } => {
                terms.encode(out);
                out.extend_from_slice(bytes);
            }
            Self::Refuse { bytes } => out.extend_from_slice(bytes),
            Self::Broken => {}
            Self::Import { question, region, key } => {
                out.extend_from_slice(&question.to_le_bytes());
                out.extend_from_slice(&region.0.to_le_bytes());
                out.extend_from_slice(&key.0.to_le_bytes());
            }
            Self::Imported { question, grant } => {
                out.extend_from_slice(&question.to_le_bytes());
                if let Some(grant) = grant {
                    out.extend_from_slice(&grant.bytes.to_le_bytes());
                    let (access, kind) = (grant.access.to_bits(), grant.kind.to_bits());
                    out.extend_from_slice(&[access, kind, 0, 0]);
                    out.extend_from_slice(&grant.place.to_le_bytes());
                }
            }
        }
    }

    /// Reads a datagram; `None` when it is no message of this version.
    pub(crate) fn decode(datagram: &'a [u8]) -> Option<Self> {
        let mut rest = FieldReader(datagram);
        if rest.word()? != MAGIC || rest.half()? != VERSION {
            return None;
        }
        let kind = rest.half()?;
        let message = match kind {
            1 => Self::Hello { terms: Terms::decode(&mut rest)?, bytes: rest.free_bytes()? },
            2 => Self::Accept { terms: Terms::decode(&mut rest)?, bytes: rest.free_bytes()? },
            3 => Self::Refuse { bytes: rest.free_bytes()? },
            4 => Self::Import {
                question: rest.long()?,
                region: RegionId(rest.word()?),
                key: RemoteKey(rest.long()?),
            },
            5 => Self::Imported { question: rest.long()?, grant: Grant::decode(&mut rest)? },
            6 => Self::Broken,
            _ => return None,
        };
        rest.0.is_empty().then_some(message)
    }

    /// Returns how many descriptors are sent with it.
    pub(crate) fn descriptors(&self) -> usize {
        match self {
            Self::Hello { .. } | Self::Accept { .. } => DESCRIPTORS_MAX,
            Self::Imported { grant: Some(grant), .. } if grant.access != Access::NONE => 1,
            Self::Refuse { .. } | Self::Import { .. } | Self::Imported { .. } | Self::Broken => 0,
        }
    }
}

impl Terms {
    fn encode(&self, out: &mut Vec<u8>) {
        let Geometry { slots, bulk } = self.geometry;
        for word in [slots, bulk, self.port, u32::from(self.barriers)] {
            out.extend_from_slice(&word.to_le_bytes());
        }
    }

    fn decode(rest: &mut FieldReader<'_>) -> Option<Self> {
        let (slots, bulk) = (rest.word()?, rest.word()?);
        let (port, barriers) = (rest.word()?, rest.word()?);
        let right = slots_fit(slots) && bulk_fits(bulk) && port < PORTS_MAX && barriers <= 1;
        right.then_some(Self { geometry: Geometry { slots, bulk }, port, barriers: barriers == 1 })
    }
}

impl Grant {
    #[expect(clippy::option_option, reason = "no grant is a message, a wrong one is none")]
    fn decode(rest: &mut FieldReader<'_>) -> Option<Option<Self>> {
        if rest.0.is_empty() {
            return Some(None);
        }
        let bytes = rest.long()?;
        let [access, kind, 0, 0] = rest.take()? else { return None };
        let (access, kind) = (Access::from_bits(access)?, RegionKind::from_bits(kind)?);
        let place = rest.word()?;
        let right = place < REGIONS_MAX && bytes > 0;
        right.then_some(Some(Self { bytes, kind, access, place }))
    }
}

/// Takes fields from the front.
struct FieldReader<'a>(&'a [u8]);

impl<'a> FieldReader<'a> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (front, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*front)
    }

    fn half(&mut self) -> Option<u16> {
        self.take().map(u16::from_le_bytes)
    }

    fn word(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    fn long(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }

    fn free_bytes(&mut self) -> Option<&'a [u8]> {
        let all = std::mem::take(&mut self.0);
        (all.len() <= HELLO_BYTES_MAX).then_some(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn examples() -> Vec<ControlMessage<'static>> {
        let geometry = Geometry { slots: 256, bulk: 64 << 10 };
        let terms = Terms { geometry, port: PORTS_MAX - 1, barriers: true };
        let grant = Grant {
            bytes: 1 << 40,
            kind: RegionKind::Mirrored,
            access: Access::READ,
            place: REGIONS_MAX - 1,
        };
        vec![
            ControlMessage::Hello { terms, bytes: b"hello" },
            ControlMessage::Accept { terms, bytes: b"" },
            ControlMessage::Refuse { bytes: &[7; HELLO_BYTES_MAX] },
            ControlMessage::Import { question: 1, region: RegionId(2), key: RemoteKey(3) },
            ControlMessage::Imported { question: u64::MAX, grant: Some(grant) },
            ControlMessage::Imported { question: 0, grant: None },
            ControlMessage::Broken,
        ]
    }

    #[test]
    fn messages_survive_the_wire() {
        for message in examples() {
            let mut bytes = Vec::new();
            message.encode(&mut bytes);
            assert!(bytes.len() <= MESSAGE_BYTES_MAX);
            assert_eq!(ControlMessage::decode(&bytes), Some(message));
        }
    }

    #[test]
    fn cut_or_prolonged_messages_are_none() {
        for message in examples() {
            let mut bytes = Vec::new();
            message.encode(&mut bytes);
            // The free bytes at the end may have any length.
            let free = match &message {
                ControlMessage::Hello { bytes, .. }
                | ControlMessage::Accept { bytes, .. }
                | ControlMessage::Refuse { bytes } => Some(bytes.len()),
                ControlMessage::Import { .. }
                | ControlMessage::Imported { .. }
                | ControlMessage::Broken => None,
            };
            for length in 0..bytes.len() - free.unwrap_or(0) {
                let refusal = matches!(message, ControlMessage::Imported { .. }) && length == 16;
                let got = ControlMessage::decode(&bytes[..length]);
                assert_eq!(got.is_some(), refusal, "{message:?} cut to {length}");
            }
            if free.is_none() {
                bytes.push(0);
                assert_eq!(ControlMessage::decode(&bytes), None, "{message:?} with a byte more");
            }
        }
    }

    #[test]
    fn grants_out_of_range_are_none() {
        let grant = |at: usize, byte: u8| {
            let mut bytes = Vec::new();
            examples()[4].encode(&mut bytes);
            bytes[at] = byte;
            bytes
        };
        assert!(ControlMessage::decode(&grant(24, 7)).is_some(), "the place of the access");
        for (at, byte, what) in [
            (24, 64, "access"),
            (25, 4, "kind"),
            (25, 255, "kind"),
            (26, 1, "what follows the kind"),
            (27, 1, "what follows the kind"),
            (30, 0xff, "place"),
        ] {
            assert_eq!(ControlMessage::decode(&grant(at, byte)), None, "{what}");
        }
    }

    #[test]
    fn values_out_of_range_are_none() {
        let mut bytes = Vec::new();
        examples()[0].encode(&mut bytes);
        let changed = |at: usize, value: u32| {
            let mut bytes = bytes.clone();
            bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
            bytes
        };
        for (at, value, what) in [
            (0, 0, "magic"),
            (4, u32::from(VERSION + 1) | 1 << 16, "version"),
            (4, u32::from(VERSION) | 9 << 16, "kind"),
            (8, 255, "slots"),
            (8, 1 << 17, "too many slots"),
            (12, 0, "bulk"),
            (16, PORTS_MAX, "port"),
            (20, 2, "barriers"),
        ] {
            assert_eq!(ControlMessage::decode(&changed(at, value)), None, "{what}");
        }
    }
}
