//! The frame format: fixed little-endian headers, followed by payload.
//!
//! ```text
//! opening (16 B) | TLS 1.3 handshake, if protected |
//!     <- Greeting(challenge, incarnation)   Hello(challenge, name, hello) ->
//!     <- Accepted | Declined | NoListener       Confirm ->   (handshake alone: plain text from here on)
//! then, in both directions at once, frames:
//!
//! requests (48 bytes)                       answers and control (24 bytes)
//!  0  kind        1  flags                   0  kind        1  code
//!  2  zero                                   2  zero
//!  4  bytes that follow, or are asked for    4  bytes that follow
//!  8  sequence   12  acknowledged            8  sequence   12  acknowledged
//! 16  region     20  immediate, or which    16  value
//! 24  key
//! 32  offset
//! 40  value
//! ```
//! The header of an atomic is followed by four operands of 8 bytes. `acknowledged` is the last executed
//! request of the other direction, in every frame, so that most acknowledgements cost nothing. Sequence
//! numbers have 32 bits; at most [`OUTSTANDING_MAX`] requests are outstanding, so they are never
//! ambiguous. In greetings and hellos the sequence is the sender's lease in milliseconds.

use crate::staged::Staged;
use farside_base::{CompletionStatus, FlushScope, Operation};
use farside_fabric::HELLO_BYTES_MAX;

/// Bytes of a request's header.
pub(crate) const REQUEST: usize = 48;
/// Bytes of an atomic's header with its operands.
pub(crate) const ATOMIC: usize = REQUEST + 32;
/// Bytes of the header of everything else.
pub(crate) const SHORT: usize = 24;
/// The longest header.
pub(crate) const HEADER_MAX: usize = ATOMIC;
/// Most bytes after a control header: a hello with the name of its port.
pub(crate) const CONTROL_MAX: u32 = 20 << 10;
const _: () = assert!(HELLO_BYTES_MAX + 4096 <= 20 << 10, "a hello fits, with its name");
/// Most bytes of an answer to a READ in one frame; longer ones take several.
pub(crate) const CHUNK_MAX: u32 = 256 << 10;
/// Most outstanding requests of a direction.
pub(crate) const OUTSTANDING_MAX: u32 = 1024;
/// Most bytes of a WRITE or READ.
pub(crate) const TRANSFER_MAX: u32 = 1 << 30;
/// Most bytes of a SEND.
pub(crate) const SEND_MAX: u32 = 1 << 20;
/// The protocol version, carried by greetings.
pub(crate) const VERSION: u8 = 1;

/// Which frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum FrameKind {
    Write,
    Read,
    Atomic,
    AtomicWrite,
    Flush,
    Send,
    /// Everything up to `acknowledged` was executed.
    Acknowledge,
    /// A part of the bytes that READ `sequence` requested.
    Bytes,
    /// The previous value, for atomic `sequence`.
    Word,
    /// Request `sequence` failed, and nothing after it is executed; the code says why.
    Refused,
    /// Receiver-not-ready: request `sequence` and all after it must be repeated once `Ready` arrives.
    NotReady,
    /// Request `sequence` may be repeated.
    Ready,
    /// From the accepting side: its incarnation, and a challenge.
    Greeting,
    /// From the dialling side: the response to the challenge, the port's name, and the program's bytes.
    Hello,
    /// No port listens at that name.
    NoListener,
    /// The program accepted; its reply.
    Accepted,
    /// The program refused; its reason.
    Declined,
    /// The last protected frame of the dialling side: plain text follows.
    Confirm,
    /// Keepalive.
    Alive,
}

/// The request comes with an immediate.
pub(crate) const IMMEDIATE: u8 = 1;
/// The requester waits for the acknowledgement.
pub(crate) const SIGNALLED: u8 = 2;
/// The last part of a READ's answer (code of `Bytes`).
pub(crate) const LAST: u8 = 1;

impl FrameKind {
    fn from_bits(bits: u8) -> Option<Self> {
        Some(match bits {
            1 => Self::Write,
            2 => Self::Read,
            3 => Self::Atomic,
            4 => Self::AtomicWrite,
            5 => Self::Flush,
            6 => Self::Send,
            16 => Self::Acknowledge,
            17 => Self::Bytes,
            18 => Self::Word,
            19 => Self::Refused,
            20 => Self::NotReady,
            21 => Self::Ready,
            32 => Self::Greeting,
            33 => Self::Hello,
            34 => Self::NoListener,
            35 => Self::Accepted,
            36 => Self::Declined,
            37 => Self::Confirm,
            38 => Self::Alive,
            _ => return None,
        })
    }

    const fn to_bits(self) -> u8 {
        match self {
            Self::Write => 1,
            Self::Read => 2,
            Self::Atomic => 3,
            Self::AtomicWrite => 4,
            Self::Flush => 5,
            Self::Send => 6,
            Self::Acknowledge => 16,
            Self::Bytes => 17,
            Self::Word => 18,
            Self::Refused => 19,
            Self::NotReady => 20,
            Self::Ready => 21,
            Self::Greeting => 32,
            Self::Hello => 33,
            Self::NoListener => 34,
            Self::Accepted => 35,
            Self::Declined => 36,
            Self::Confirm => 37,
            Self::Alive => 38,
        }
    }

    pub(crate) const fn is_request(self) -> bool {
        matches!(
            self,
            Self::Write | Self::Read | Self::Atomic | Self::AtomicWrite | Self::Flush | Self::Send
        )
    }

    /// Returns the bytes of its header.
    pub(crate) const fn header(self) -> usize {
        match self {
            Self::Atomic => ATOMIC,
            _ if self.is_request() => REQUEST,
            _ => SHORT,
        }
    }
}

/// The header of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RequestHeader {
    pub(crate) kind: FrameKind,
    pub(crate) flags: u8,
    pub(crate) bytes: u32,
    pub(crate) sequence: u32,
    pub(crate) acknowledged: u32,
    pub(crate) region: u32,
    /// The immediate; of an atomic, the operation; of a FLUSH, its scope.
    pub(crate) immediate: u32,
    pub(crate) key: u64,
    pub(crate) offset: u64,
    /// The value that an ATOMIC WRITE stores; the length of a FLUSH.
    pub(crate) value: u64,
    pub(crate) operands: [u64; 4],
}

/// The header of everything else.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Short {
    pub(crate) kind: FrameKind,
    pub(crate) code: u8,
    pub(crate) bytes: u32,
    pub(crate) sequence: u32,
    pub(crate) acknowledged: u32,
    pub(crate) value: u64,
}

/// A frame's header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Header {
    Request(RequestHeader),
    Short(Short),
}

fn word(bytes: &[u8], at: usize) -> u64 {
    bytes
        .get(at..)
        .and_then(|rest| rest.first_chunk())
        .map_or(0, |eight| u64::from_le_bytes(*eight))
}

fn half(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |four| u32::from_le_bytes(*four))
}

impl Header {
    /// Returns the length of the header with this first byte; `Err` for an unknown kind.
    pub(crate) fn size(first: u8) -> Result<usize, ()> {
        FrameKind::from_bits(first).map(FrameKind::header).ok_or(())
    }

    /// Decodes a whole header; `None` if it is invalid.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let kind = FrameKind::from_bits(*bytes.first()?)?;
        if bytes.len() != kind.header() || bytes[2..4] != [0, 0] {
            return None;
        }
        let (flags, length) = (bytes[1], half(bytes, 4));
        let (sequence, acknowledged) = (half(bytes, 8), half(bytes, 12));
        if !kind.is_request() {
            let value = word(bytes, 16);
            let short = Short { kind, code: flags, bytes: length, sequence, acknowledged, value };
            return Some(Self::Short(short));
        }
        if flags & !(IMMEDIATE | SIGNALLED) != 0 {
            return None;
        }
        let operands = match kind {
            FrameKind::Atomic => [0, 1, 2, 3].map(|at| word(bytes, REQUEST + 8 * at)),
            _ => [0; 4],
        };
        Some(Self::Request(RequestHeader {
            kind,
            flags,
            bytes: length,
            sequence,
            acknowledged,
            region: half(bytes, 16),
            immediate: half(bytes, 20),
            key: word(bytes, 24),
            offset: word(bytes, 32),
            value: word(bytes, 40),
            operands,
        }))
    }
}

impl RequestHeader {
    /// Appends the header.
    pub(crate) fn encode(&self, out: &mut Staged) {
        let mut header = [0; REQUEST];
        header[0] = self.kind.to_bits();
        header[1] = self.flags;
        header[4..8].copy_from_slice(&self.bytes.to_le_bytes());
        header[8..12].copy_from_slice(&self.sequence.to_le_bytes());
        header[12..16].copy_from_slice(&self.acknowledged.to_le_bytes());
        header[16..20].copy_from_slice(&self.region.to_le_bytes());
        header[20..24].copy_from_slice(&self.immediate.to_le_bytes());
        header[24..32].copy_from_slice(&self.key.to_le_bytes());
        header[32..40].copy_from_slice(&self.offset.to_le_bytes());
        header[40..48].copy_from_slice(&self.value.to_le_bytes());
        out.extend(&header);
        if self.kind == FrameKind::Atomic {
            for operand in self.operands {
                out.extend(&operand.to_le_bytes());
            }
        }
    }

    /// Returns whether it may change memory that an earlier READ has still to read.
    pub(crate) const fn changes(&self) -> bool {
        !matches!(self.kind, FrameKind::Read | FrameKind::Flush)
    }

    /// Returns whether it takes a receive.
    pub(crate) const fn takes_receive(&self) -> bool {
        matches!(self.kind, FrameKind::Send) || self.flags & IMMEDIATE != 0
    }

    /// Returns the immediate, if it has one.
    pub(crate) fn immediate(&self) -> Option<u32> {
        (self.flags & IMMEDIATE != 0).then_some(self.immediate)
    }

    /// Returns the bytes that follow the header.
    pub(crate) const fn body(&self) -> u32 {
        match self.kind {
            FrameKind::Write | FrameKind::Send => self.bytes,
            _ => 0,
        }
    }
}

impl Short {
    /// Encodes the header.
    pub(crate) fn encode(&self) -> [u8; SHORT] {
        let mut header = [0; SHORT];
        header[0] = self.kind.to_bits();
        header[1] = self.code;
        header[4..8].copy_from_slice(&self.bytes.to_le_bytes());
        header[8..12].copy_from_slice(&self.sequence.to_le_bytes());
        header[12..16].copy_from_slice(&self.acknowledged.to_le_bytes());
        header[16..24].copy_from_slice(&self.value.to_le_bytes());
        header
    }
}

/// Encodes why a request is refused.
pub(crate) fn refusal_to_bits(status: CompletionStatus) -> u8 {
    match status {
        CompletionStatus::RemoteAlignment => 2,
        CompletionStatus::LengthExceeded => 3,
        _ => 1,
    }
}

/// Decodes a refusal's code.
pub(crate) fn refusal_from_bits(bits: u8) -> Option<CompletionStatus> {
    match bits {
        1 => Some(CompletionStatus::RemoteAccess),
        2 => Some(CompletionStatus::RemoteAlignment),
        3 => Some(CompletionStatus::LengthExceeded),
        _ => None,
    }
}

/// Decodes the scope of a FLUSH; `None` for those that cannot be requested.
pub(crate) fn scope_from_bits(bits: u32) -> Option<FlushScope> {
    (bits == 1).then_some(FlushScope::Visible)
}

/// Encodes an atomic: its number and operands.
pub(crate) fn atomic(operation: &Operation<'_>) -> Option<(u32, [u64; 4])> {
    Some(match *operation {
        Operation::FetchAdd { add, .. } => (1, [add, 0, 0, 0]),
        Operation::CompareSwap { expected, new, .. } => (2, [expected, new, 0, 0]),
        Operation::Swap { new, .. } => (3, [new, 0, 0, 0]),
        Operation::MaskedCompareSwap { expected, compare_mask, new, swap_mask, .. } => {
            (4, [expected, compare_mask, new, swap_mask])
        }
        Operation::MaskedFetchAdd { add, boundaries, .. } => (5, [add, boundaries, 0, 0]),
        _ => return None,
    })
}

/// Encodes a hello: the length of the port's name, the name, the program's bytes.
pub(crate) fn encode_hello(name: &str, hello: &[u8]) -> Vec<u8> {
    let length = u16::try_from(name.len()).unwrap_or(u16::MAX);
    [&length.to_le_bytes()[..], name.as_bytes(), hello].concat()
}

/// Decodes a hello; `None` if it is invalid.
pub(crate) fn decode_hello(bytes: &[u8]) -> Option<(&str, &[u8])> {
    let (length, rest) = bytes.split_first_chunk()?;
    let (name, hello) = rest.split_at_checked(usize::from(u16::from_le_bytes(*length)))?;
    let name = std::str::from_utf8(name).ok()?;
    (hello.len() <= HELLO_BYTES_MAX).then_some((name, hello))
}

#[cfg(test)]
mod tests {
    use super::*;

    const KINDS: [(FrameKind, u8); 19] = [
        (FrameKind::Write, 1),
        (FrameKind::Read, 2),
        (FrameKind::Atomic, 3),
        (FrameKind::AtomicWrite, 4),
        (FrameKind::Flush, 5),
        (FrameKind::Send, 6),
        (FrameKind::Acknowledge, 16),
        (FrameKind::Bytes, 17),
        (FrameKind::Word, 18),
        (FrameKind::Refused, 19),
        (FrameKind::NotReady, 20),
        (FrameKind::Ready, 21),
        (FrameKind::Greeting, 32),
        (FrameKind::Hello, 33),
        (FrameKind::NoListener, 34),
        (FrameKind::Accepted, 35),
        (FrameKind::Declined, 36),
        (FrameKind::Confirm, 37),
        (FrameKind::Alive, 38),
    ];

    #[test]
    fn every_header_survives_the_wire() {
        for (at, (kind, bits)) in KINDS.into_iter().enumerate() {
            assert_eq!((FrameKind::from_bits(bits), kind.to_bits()), (Some(kind), bits));
            let at = at as u32;
            let operands = if kind == FrameKind::Atomic { [1, 2, 3, u64::MAX] } else { [0; 4] };
            let mut bytes = Vec::new();
            let header = if kind.is_request() {
                let request = RequestHeader {
                    kind,
                    flags: SIGNALLED,
                    bytes: at,
                    sequence: u32::MAX - at,
                    acknowledged: 7,
                    region: 9,
                    immediate: 10,
                    key: u64::MAX - 1,
                    offset: 1 << 40,
                    value: 3,
                    operands,
                };
                let mut staged = Staged::default();
                request.encode(&mut staged);
                bytes.extend_from_slice(staged.bytes());
                Header::Request(request)
            } else {
                let value = 1 << 63;
                let short = Short { kind, code: 3, bytes: at, sequence: 1, acknowledged: 2, value };
                bytes.extend_from_slice(&short.encode());
                Header::Short(short)
            };
            assert_eq!(Header::size(bytes[0]), Ok(bytes.len()));
            assert_eq!(Header::decode(&bytes), Some(header));
            bytes[2] = 1;
            assert_eq!(Header::decode(&bytes), None, "what must be zero");
        }
        assert_eq!(
            (0..=255).filter(|bits| FrameKind::from_bits(*bits).is_some()).count(),
            KINDS.len()
        );
    }

    #[test]
    fn hellos_of_any_form_are_read_or_refused() {
        let bytes = encode_hello("name", b"says");
        assert_eq!(decode_hello(&bytes), Some(("name", &b"says"[..])));
        for bad in [&b""[..], &[1], &[9, 0, 65], &[1, 0, 0xff], &[0xff, 0xff, 0, 0]] {
            assert_eq!(decode_hello(bad), None, "{bad:?}");
        }
        assert_eq!(decode_hello(&encode_hello("n", &[0; HELLO_BYTES_MAX + 1])), None);
        assert_eq!(decode_hello(&encode_hello("", &[])), Some(("", &b""[..])));
    }
}
