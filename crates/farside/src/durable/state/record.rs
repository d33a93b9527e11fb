//! Records of a memory's state: their kinds and their bytes.
//!
//! | kind | record | counter | address | payload |
//! | --- | --- | --- | --- | --- |
//! | 32 | identity | version | bytes of the memory | node, generation (2 B each), name of the cluster |
//! | 33 | directory | lines | offset | |
//! | 34 | fresh allocation | bytes | offset | lines (8 B), class (1 B), zeros |
//! | 35 | freed | 0 | offset | |
//! | 36 | write | 0 | offset | bytes |
//! | 37 | write of two ranges | bytes of the first | offset | distance of the second (8 B), bytes of both |
//! | 38 | pass begins | 0 | 0 | |
//! | 39 | restated allocation | bytes | offset | as 34, then its first bytes |
//! | 40 | restated bytes | 0 | offset | bytes |
//! | 41 | pass ends | where it began | bytes restated | |
//! | 42 | identity of a memory that is being saved: 32 follows when all is | as 32 | as 32 | as 32 |
//!
//! Numbers are little-endian. Kinds of other programs begin with 1, so their logs are not taken for a state.

use super::types::{Allocation, StateIdentity};
use crate::durable::RecordTag;
use farside_base::LineSize;

/// The version of this form.
pub(super) const VERSION: u64 = 1;
/// Bytes before the contents in the payload of an allocation.
pub(super) const ALLOCATION_BYTES: usize = 16;
/// Bytes before the contents in the payload of a write of two ranges.
const TWO_RANGES_BYTES: usize = 8;
/// Bytes before the name in the payload of an identity.
const IDENTITY_BYTES: usize = 4;

/// A record of a memory's state.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum StateRecord<'a> {
    Identity(StateIdentity),
    Saving(StateIdentity),
    Directory { offset: u64, lines: u64 },
    Fresh { offset: u64, allocation: Allocation },
    Freed { offset: u64 },
    Write { offset: u64, bytes: &'a [u8] },
    WriteTwo { offset: u64, first: &'a [u8], second_offset: u64, second: &'a [u8] },
    PassBegin,
    Restated { offset: u64, allocation: Allocation, bytes: &'a [u8] },
    RestatedBytes { offset: u64, bytes: &'a [u8] },
    PassEnd { begin: u64, restated: u64 },
}

/// Why a record cannot be read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum RecordFault {
    /// It is of another version of this form.
    Version(u64),
    /// It has no meaning.
    Meaningless(String),
}

impl<'a> StateRecord<'a> {
    /// Returns the tag, and the payload, which is made in `scratch` unless the record has it already.
    pub(super) fn encode<'b>(&self, scratch: &'b mut Vec<u8>) -> (RecordTag, &'b [u8])
    where
        'a: 'b,
    {
        scratch.clear();
        let tag = |kind, counter, address| RecordTag { kind, counter, address };
        match self {
            Self::Identity(identity) | Self::Saving(identity) => {
                scratch.extend_from_slice(&identity.node.to_le_bytes());
                scratch.extend_from_slice(&identity.generation.to_le_bytes());
                scratch.extend_from_slice(identity.cluster.as_bytes());
                let kind = if matches!(self, Self::Identity(_)) { 32 } else { 42 };
                (tag(kind, VERSION, identity.memory_bytes), scratch)
            }
            Self::Directory { offset, lines } => (tag(33, *lines, *offset), scratch),
            Self::Fresh { offset, allocation } => {
                extend_by_allocation(scratch, allocation);
                (tag(34, allocation.bytes, *offset), scratch)
            }
            Self::Freed { offset } => (tag(35, 0, *offset), scratch),
            Self::Write { offset, bytes } => (tag(36, 0, *offset), bytes),
            Self::WriteTwo { offset, first, second_offset, second } => {
                scratch.extend_from_slice(&(second_offset - offset).to_le_bytes());
                scratch.extend_from_slice(first);
                scratch.extend_from_slice(second);
                (tag(37, first.len() as u64, *offset), scratch)
            }
            Self::PassBegin => (tag(38, 0, 0), scratch),
            Self::Restated { offset, allocation, bytes } => {
                extend_by_allocation(scratch, allocation);
                scratch.extend_from_slice(bytes);
                (tag(39, allocation.bytes, *offset), scratch)
            }
            Self::RestatedBytes { offset, bytes } => (tag(40, 0, *offset), bytes),
            Self::PassEnd { begin, restated } => (tag(41, *begin, *restated), scratch),
        }
    }

    /// Returns the record of a tag and a payload.
    pub(super) fn decode(tag: RecordTag, payload: &'a [u8]) -> Result<Self, RecordFault> {
        let RecordTag { kind, counter, address: offset } = tag;
        let decoded = match kind {
            32 | 42 if counter != VERSION => return Err(RecordFault::Version(counter)),
            32 => identity(payload, offset).map(Self::Identity),
            33 => Some(Self::Directory { offset, lines: counter }),
            34 => allocation(payload, counter)
                .filter(|_| payload.len() == ALLOCATION_BYTES)
                .map(|allocation| Self::Fresh { offset, allocation }),
            35 => Some(Self::Freed { offset }),
            36 => Some(Self::Write { offset, bytes: payload }),
            37 => write_two(offset, counter, payload),
            38 => Some(Self::PassBegin),
            39 => allocation(payload, counter).map(|allocation| Self::Restated {
                offset,
                allocation,
                bytes: payload.get(ALLOCATION_BYTES..).unwrap_or_default(),
            }),
            40 => Some(Self::RestatedBytes { offset, bytes: payload }),
            41 => Some(Self::PassEnd { begin: counter, restated: offset }),
            42 => identity(payload, offset).map(Self::Saving),
            _ => None,
        };
        let text = || format!("kind {kind} with {} B", payload.len());
        decoded.ok_or_else(|| RecordFault::Meaningless(text()))
    }
}

fn extend_by_allocation(scratch: &mut Vec<u8>, allocation: &Allocation) {
    scratch.extend_from_slice(&allocation.lines.to_le_bytes());
    scratch.extend_from_slice(&u64::from(allocation.class).to_le_bytes());
}

fn word(payload: &[u8], at: usize) -> Option<u64> {
    let bytes = payload.get(at..at + 8)?;
    Some(u64::from_le_bytes(bytes.try_into().ok()?))
}

fn identity(payload: &[u8], memory_bytes: u64) -> Option<StateIdentity> {
    let (numbers, name) = payload.split_at_checked(IDENTITY_BYTES)?;
    let cluster = std::str::from_utf8(name).ok()?.to_owned();
    let node = u16::from_le_bytes([numbers[0], numbers[1]]);
    let generation = u16::from_le_bytes([numbers[2], numbers[3]]);
    Some(StateIdentity { cluster, node, generation, memory_bytes })
}

fn allocation(payload: &[u8], bytes: u64) -> Option<Allocation> {
    let class = u8::try_from(word(payload, 8)?).ok()?;
    LineSize::from_class(class)?;
    Some(Allocation { bytes, lines: word(payload, 0)?, class })
}

fn write_two(offset: u64, first_bytes: u64, payload: &[u8]) -> Option<StateRecord<'_>> {
    let distance = word(payload, 0)?;
    let bytes = payload.get(TWO_RANGES_BYTES..)?;
    let (first, second) = bytes.split_at_checked(usize::try_from(first_bytes).ok()?)?;
    let second_offset = offset.checked_add(distance)?;
    Some(StateRecord::WriteTwo { offset, first, second_offset, second })
}
