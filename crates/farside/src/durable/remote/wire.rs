//! The messages of a write by the program at the target: a request with its bytes, and an answer. Little-endian.

use super::plan::TargetStores;

/// Bytes of a request before its parts.
const HEADER: usize = 16;
/// Bytes of the description of a part.
const PART: usize = 16;
/// Bytes of an answer.
pub(super) const ANSWER: usize = 16;
/// Parts of a request.
pub(super) const PARTS_MAX: usize = 64;

/// A part of a request: where its bytes go, and where they are in the message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct StorePart {
    pub(super) offset: u64,
    pub(super) start: usize,
    pub(super) bytes: usize,
}

/// A request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct StoreRequest {
    pub(super) number: u64,
    pub(super) stores: TargetStores,
    /// Whether the last part is a word that makes the others valid.
    pub(super) has_word: bool,
    pub(super) parts: Vec<StorePart>,
}

/// How a request ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum StoreStatus {
    /// All of it is kept.
    Kept,
    /// It is malformed, or names bytes outside of the memory.
    Refused,
    /// The memory failed.
    Failed,
}

impl StoreStatus {
    const fn to_bits(self) -> u8 {
        match self {
            Self::Kept => 0,
            Self::Refused => 1,
            Self::Failed => 2,
        }
    }

    const fn from_bits(bits: u8) -> Option<Self> {
        match bits {
            0 => Some(Self::Kept),
            1 => Some(Self::Refused),
            2 => Some(Self::Failed),
            _ => None,
        }
    }
}

/// Encodes a request: `parts` are offsets at the target with their bytes.
pub(super) fn encode(
    number: u64,
    stores: TargetStores,
    has_word: bool,
    parts: &[(u64, &[u8])],
) -> Option<Vec<u8>> {
    if parts.len() > PARTS_MAX {
        return None;
    }
    let mut out = number.to_le_bytes().to_vec();
    out.extend(u32::try_from(parts.len()).ok()?.to_le_bytes());
    out.extend([u8::from(stores == TargetStores::NonTemporal), u8::from(has_word), 0, 0]);
    for (offset, bytes) in parts {
        out.extend(offset.to_le_bytes());
        out.extend(u64::try_from(bytes.len()).ok()?.to_le_bytes());
    }
    for (_, bytes) in parts {
        out.extend_from_slice(bytes);
    }
    Some(out)
}

/// Decodes a request; `Err` with its number if the rest is malformed.
pub(super) fn decode(message: &[u8]) -> Result<StoreRequest, u64> {
    let number = word(message, 0).unwrap_or_default();
    decoded(message).ok_or(number)
}

fn decoded(message: &[u8]) -> Option<StoreRequest> {
    let number = word(message, 0)?;
    let count = word(message, 8)? & 0xffff_ffff;
    let count = usize::try_from(count).ok().filter(|count| *count <= PARTS_MAX)?;
    let stores = match message.get(12)? {
        0 => TargetStores::WriteBack,
        1 => TargetStores::NonTemporal,
        _ => return None,
    };
    let has_word = match message.get(13)? {
        0 => false,
        1 if count > 0 => true,
        _ => return None,
    };
    if message.get(14..HEADER)? != [0, 0] {
        return None;
    }
    let mut parts = Vec::with_capacity(count);
    let mut start = HEADER + count * PART;
    for part in 0..count {
        let at = HEADER + part * PART;
        let (offset, bytes) = (word(message, at)?, usize::try_from(word(message, at + 8)?).ok()?);
        let end = start.checked_add(bytes).filter(|end| *end <= message.len())?;
        parts.push(StorePart { offset, start, bytes });
        start = end;
    }
    let is_whole = start == message.len();
    let is_word = !has_word || parts.last().is_some_and(|part| part.bytes == 8);
    (is_whole && is_word).then_some(StoreRequest { number, stores, has_word, parts })
}

pub(super) fn encode_answer(number: u64, status: StoreStatus) -> [u8; ANSWER] {
    let mut out = [0; ANSWER];
    out[..8].copy_from_slice(&number.to_le_bytes());
    out[8] = status.to_bits();
    out
}

pub(super) fn decode_answer(message: &[u8]) -> Option<(u64, StoreStatus)> {
    let rest = message.get(9..ANSWER)?;
    let is_plain = message.len() == ANSWER && rest.iter().all(|byte| *byte == 0);
    let status = StoreStatus::from_bits(*message.get(8)?)?;
    is_plain.then_some((word(message, 0)?, status))
}

fn word(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk().copied().map(u64::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_and_answers_survive_the_wire_and_junk_does_not() {
        let parts: [(u64, &[u8]); 2] = [(64, b"some bytes"), (128, &[1; 8])];
        let message = encode(7, TargetStores::NonTemporal, true, &parts).unwrap();
        let request = decode(&message).unwrap();
        assert_eq!((request.number, request.has_word), (7, true));
        let found: Vec<_> = request
            .parts
            .iter()
            .map(|part| (part.offset, &message[part.start..part.start + part.bytes]))
            .collect();
        assert_eq!(found, parts);
        for length in 0..message.len() {
            assert!(decode(&message[..length]).is_err(), "{length}");
        }
        for (at, value) in [(8, 3), (8, 255), (12, 2), (13, 2), (14, 1), (24, 255), (31, 255)] {
            let mut changed = message.clone();
            changed[at] = value;
            assert_eq!(decode(&changed), Err(7), "{at}");
        }
        for status in [StoreStatus::Kept, StoreStatus::Refused, StoreStatus::Failed] {
            assert_eq!(decode_answer(&encode_answer(9, status)), Some((9, status)));
        }
        assert_eq!(decode_answer(&[3; ANSWER]), None);
        assert_eq!(decode_answer(&[0; ANSWER - 1]), None);
    }
}
