//! The wire form of calls.
//!
//! ```text
//! header (32 bits)  slot (8) | sequence (16) | verb (8)
//! ```
//! It travels as the immediate data of a SEND, or ahead of the body on a fabric without immediate data. Bodies:
//!
//! ```text
//! Invoke       program (8) | parameters
//! InvokeUntil  program (8) | nanoseconds (8) | parameters
//! Register     bytes of the whole (4) | offset of this part (4) | part
//! Unregister   program (8)
//! Cancel       slot (1) | zero (1) | sequence (2) | zero (4)
//! Listen       topic (8)
//! Leave        nothing
//! replies      result (8) | where there is output: its bytes (8)
//! ```
//! So the list search of 003 §4.1 takes 24 bytes for the request and 8 for the reply. Integers are little-endian.

use crate::wire::Violation;

/// The type of a message.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Verb {
    /// Run a program.
    Invoke = 1,
    /// Run a program with a timeout.
    InvokeUntil = 2,
    /// Register an object of programs, in parts; the last part completes it.
    Register = 3,
    /// Unregister a program.
    Unregister = 4,
    /// Cancel a call.
    Cancel = 5,
    /// Wait for the next notification of a topic.
    Listen = 6,
    /// The caller ends its session. Belongs to no slot, and is not answered.
    Leave = 7,
    /// The program returned, or the request was carried out.
    Returned = 16,
    /// The call was stopped; the result says why, and the output at which instruction.
    Stopped = 17,
    /// The request was refused; the result is an error number, the output has details.
    Refused = 18,
}

impl Verb {
    /// Decodes the byte of the wire form.
    pub const fn from_bits(bits: u8) -> Option<Self> {
        match bits {
            1 => Some(Self::Invoke),
            2 => Some(Self::InvokeUntil),
            3 => Some(Self::Register),
            4 => Some(Self::Unregister),
            5 => Some(Self::Cancel),
            6 => Some(Self::Listen),
            7 => Some(Self::Leave),
            16 => Some(Self::Returned),
            17 => Some(Self::Stopped),
            18 => Some(Self::Refused),
            _ => None,
        }
    }

    /// Whether it goes from the executor to the caller.
    pub const fn is_reply(self) -> bool {
        matches!(self, Self::Returned | Self::Stopped | Self::Refused)
    }
}

/// The header of every message.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Header {
    /// The slot of the session.
    pub slot: u8,
    /// The sequence number of the request within its slot; wraps.
    pub sequence: u16,
    /// The type of the message.
    pub verb: Verb,
}

impl Header {
    /// The header of `Leave`.
    pub const LEAVE: Self = Self { slot: 0, sequence: 0, verb: Verb::Leave };

    /// Its size in bytes on a fabric without immediate data.
    pub const BYTES: usize = 8;

    /// Encodes the 32 bits of the wire form.
    pub const fn encode(self) -> u32 {
        let [low, high] = self.sequence.to_le_bytes();
        u32::from_le_bytes([self.slot, low, high, self.verb as u8])
    }

    /// Decodes the 32 bits of the wire form.
    ///
    /// # Errors
    /// [`Violation`] for an unknown verb.
    pub const fn decode(bits: u32) -> Result<Self, Violation> {
        let [slot, low, high, verb] = bits.to_le_bytes();
        match Verb::from_bits(verb) {
            Some(verb) => Ok(Self { slot, sequence: u16::from_le_bytes([low, high]), verb }),
            None => Err(Violation("a call's message of an unknown kind")),
        }
    }
}

/// The body of `Invoke` and `InvokeUntil`, without parameters.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Invocation {
    /// The program.
    pub program: u64,
    /// The timeout, from the arrival of the request.
    pub timeout_ns: Option<u64>,
}

impl Invocation {
    /// The maximum number of bytes before the parameters of a request.
    pub const BYTES_MAX: u32 = 16;

    /// Encodes the bytes before the parameters, and the verb for them.
    pub fn encode(&self) -> (Verb, [u8; 16], usize) {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.program.to_le_bytes());
        match self.timeout_ns {
            Some(timeout_ns) => {
                bytes[8..].copy_from_slice(&timeout_ns.to_le_bytes());
                (Verb::InvokeUntil, bytes, 16)
            }
            None => (Verb::Invoke, bytes, 8),
        }
    }

    /// Decodes it and returns the parameters that follow.
    ///
    /// # Errors
    /// [`Violation`] if the body is too short.
    pub fn decode(verb: Verb, body: &[u8]) -> Result<(Self, &[u8]), Violation> {
        let (program, rest) = word(body)?;
        if verb != Verb::InvokeUntil {
            return Ok((Self { program, timeout_ns: None }, rest));
        }
        let (timeout_ns, rest) = word(rest)?;
        Ok((Self { program, timeout_ns: Some(timeout_ns) }, rest))
    }
}

/// The body of `Register`, without the part itself.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Part {
    /// The size in bytes of the whole object.
    pub whole: u32,
    /// The offset of this part.
    pub offset: u32,
}

impl Part {
    /// Bytes before the part.
    pub const BYTES: usize = 8;

    /// Encodes the bytes before the part.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..4].copy_from_slice(&self.whole.to_le_bytes());
        bytes[4..].copy_from_slice(&self.offset.to_le_bytes());
        bytes
    }

    /// Decodes it and returns the part that follows.
    ///
    /// # Errors
    /// [`Violation`] if the body is too short, the part empty, or beyond the end of the object.
    pub fn decode(body: &[u8]) -> Result<(Self, &[u8]), Violation> {
        let (both, rest) = word(body)?;
        let [a, b, c, d, e, f, g, h] = both.to_le_bytes();
        let whole = u32::from_le_bytes([a, b, c, d]);
        let offset = u32::from_le_bytes([e, f, g, h]);
        let length = u32::try_from(rest.len()).map_err(|_| Violation("a part that is too long"))?;
        let fits = offset.checked_add(length).is_some_and(|end| end <= whole);
        if rest.is_empty() || !fits {
            return Err(Violation("an empty part, or one beyond the end of its object"));
        }
        Ok((Self { whole, offset }, rest))
    }
}

/// Decodes the body of `Unregister` and `Listen`.
///
/// # Errors
/// [`Violation`] if it does not have 8 bytes.
pub(super) fn one_word(body: &[u8]) -> Result<u64, Violation> {
    match word(body)? {
        (value, []) => Ok(value),
        _ => Err(Violation("a call's message that is too long")),
    }
}

/// Encodes the body of `Cancel` for this request.
pub(super) fn encode_target(target: Header) -> [u8; 8] {
    let [low, high] = target.sequence.to_le_bytes();
    [target.slot, 0, low, high, 0, 0, 0, 0]
}

/// Decodes the body of `Cancel`: slot and sequence number.
pub(super) fn decode_target(body: &[u8]) -> Result<(u8, u16), Violation> {
    match *body {
        [slot, 0, low, high, 0, 0, 0, 0] => Ok((slot, u16::from_le_bytes([low, high]))),
        _ => Err(Violation("an invalid cancellation")),
    }
}

/// The result of a request. Its output is stored separately.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Reply {
    /// How it ended: `Returned`, `Stopped` or `Refused`.
    pub verb: Verb,
    /// The value returned, or the reason.
    pub result: u64,
    /// The size in bytes of the output.
    pub output_bytes: u32,
}

/// Why a call was stopped: the lower half of the result of `Stopped`. The upper half is the slot of the current
/// instruction, if known.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u32)]
pub enum Stopped {
    /// Its caller cancelled it.
    Cancelled = 1,
    /// Its timeout expired.
    Late = 2,
    /// It used up its budget.
    Budget = 3,
    /// It accessed a word that its caller may not access.
    NotPermitted = 4,
    /// It violated a property that the verifier guarantees, or its executor failed.
    Fault = 5,
    /// Its output exceeds its caller's buffer.
    TooMuchOutput = 6,
    /// The memory that it accesses is lost.
    MemoryLost = 7,
}

/// Why a request was refused: the lower half of the result of `Refused`. The upper half is zero, or with `Calls` the
/// maximum number of calls in progress of the tenant.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u32)]
pub enum Refused {
    /// The session limit of all tenants together is reached.
    Sessions = 1,
    /// The tenant's program limit is reached.
    Programs = 2,
    /// The program's state would exceed the tenant's limit.
    State = 3,
    /// The tenant's limit of calls in progress is reached.
    Calls = 4,
    /// The session has registered no such program.
    NoProgram = 5,
    /// The bytes are not an object with programs; the output says why.
    Object = 6,
    /// The verifier rejected a program; the output says at which instruction and why.
    Unsafe = 7,
    /// The parameters have the wrong length for the program, or it does not fit its budget.
    Parameters = 8,
    /// The executor lacks a helper that the program calls, or memory for it.
    Lacks = 9,
    /// The session's topic limit is reached.
    Topics = 10,
    /// The tenant's session limit is reached.
    TenantSessions = 11,
    /// Too much is being registered at once; the output says what to do.
    Registrations = 12,
}

impl Stopped {
    const ALL: [Self; 7] = [
        Self::Cancelled,
        Self::Late,
        Self::Budget,
        Self::NotPermitted,
        Self::Fault,
        Self::TooMuchOutput,
        Self::MemoryLost,
    ];

    /// Encodes the result of a reply, with the slot of the instruction.
    pub const fn result(self, place: Option<u32>) -> u64 {
        let place = match place {
            Some(place) => place,
            None => u32::MAX,
        };
        let ([a, b, c, d], [e, f, g, h]) = ((self as u32).to_le_bytes(), place.to_le_bytes());
        u64::from_le_bytes([a, b, c, d, e, f, g, h])
    }

    /// Decodes a result: the reason, and the slot of the instruction.
    pub fn of(result: u64) -> Option<(Self, Option<u32>)> {
        let [a, b, c, d, e, f, g, h] = result.to_le_bytes();
        let (why, place) = (u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, g, h]));
        let why = Self::ALL.into_iter().find(|one| *one as u32 == why)?;
        Some((why, (place != u32::MAX).then_some(place)))
    }
}

impl Refused {
    const ALL: [Self; 12] = [
        Self::Sessions,
        Self::Programs,
        Self::State,
        Self::Calls,
        Self::NoProgram,
        Self::Object,
        Self::Unsafe,
        Self::Parameters,
        Self::Lacks,
        Self::Topics,
        Self::TenantSessions,
        Self::Registrations,
    ];

    const fn result(self, calls_max: u32) -> u64 {
        let ([a, b, c, d], [e, f, g, h]) = ((self as u32).to_le_bytes(), calls_max.to_le_bytes());
        u64::from_le_bytes([a, b, c, d, e, f, g, h])
    }

    /// Decodes a result: the reason, and with `Calls` the limit.
    pub fn of(result: u64) -> Option<(Self, u32)> {
        let [a, b, c, d, e, f, g, h] = result.to_le_bytes();
        let (why, most) = (u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, g, h]));
        let why = Self::ALL.into_iter().find(|one| *one as u32 == why)?;
        (why == Self::Calls || most == 0).then_some((why, most))
    }
}

impl Reply {
    /// A reply to a request that was carried out.
    pub const fn returned(result: u64, output_bytes: u32) -> Self {
        Self { verb: Verb::Returned, result, output_bytes }
    }

    /// A reply to a call that was stopped.
    pub const fn stopped(why: Stopped, place: Option<u32>) -> Self {
        Self { verb: Verb::Stopped, result: why.result(place), output_bytes: 0 }
    }

    /// A reply to a refused request, with `output_bytes` of details.
    pub const fn refused(why: Refused, output_bytes: u32) -> Self {
        Self { verb: Verb::Refused, result: why.result(0), output_bytes }
    }

    /// A reply to a call that was refused because its tenant has `calls_max` calls in progress.
    pub const fn over_calls(calls_max: u32) -> Self {
        Self { verb: Verb::Refused, result: Refused::Calls.result(calls_max), output_bytes: 0 }
    }
}

/// Encodes the body of a reply; returns it with the number of bytes to send.
pub fn encode_reply(reply: &Reply) -> ([u8; 16], usize) {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&reply.result.to_le_bytes());
    bytes[8..].copy_from_slice(&u64::from(reply.output_bytes).to_le_bytes());
    (bytes, if reply.output_bytes == 0 { 8 } else { 16 })
}

/// Decodes the body of a reply.
///
/// # Errors
/// [`Violation`] for a wrong length or a verb of requests.
pub fn decode_reply(verb: Verb, body: &[u8]) -> Result<Reply, Violation> {
    if !verb.is_reply() {
        return Err(Violation("a request instead of a reply"));
    }
    let (result, rest) = word(body)?;
    let output = if rest.is_empty() { 0 } else { one_word(rest)? };
    let output_bytes = u32::try_from(output).map_err(|_| Violation("too much output"))?;
    Ok(Reply { verb, result, output_bytes })
}

fn word(bytes: &[u8]) -> Result<(u64, &[u8]), Violation> {
    let (word, rest) =
        bytes.split_first_chunk().ok_or(Violation("a call's message that is too short"))?;
    Ok((u64::from_le_bytes(*word), rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_lead_back_and_unknown_verbs_are_refused() {
        for bits in 0..=255u8 {
            let header =
                Verb::from_bits(bits).map(|verb| Header { slot: 7, sequence: 65_000, verb });
            match header {
                Some(header) => assert_eq!(Header::decode(header.encode()), Ok(header)),
                None => assert!(Header::decode(u32::from(bits) << 24).is_err()),
            }
        }
    }

    #[test]
    fn reasons_lead_back() {
        for why in Stopped::ALL {
            for place in [None, Some(0), Some(77)] {
                assert_eq!(Stopped::of(Reply::stopped(why, place).result), Some((why, place)));
            }
        }
        for why in Refused::ALL {
            assert_eq!(Refused::of(Reply::refused(why, 0).result), Some((why, 0)));
        }
        assert_eq!((Stopped::of(0), Refused::of(0), Refused::of(1 << 32)), (None, None, None));
        let over = Reply::over_calls(u32::MAX).result;
        assert_eq!(Refused::of(over), Some((Refused::Calls, u32::MAX)));
        assert_eq!(Refused::of(over + 1), None, "a number that is not one of calls");
    }

    #[test]
    fn the_search_of_the_paper_takes_24_bytes_there_and_8_back() {
        let (verb, bytes, length) = Invocation { program: 9, timeout_ns: None }.encode();
        let body = [&bytes[..length], &[1; 16]].concat();
        assert_eq!((verb, body.len()), (Verb::Invoke, 24));
        let (read, parameters) = Invocation::decode(verb, &body).unwrap();
        assert_eq!((read.program, parameters), (9, &[1; 16][..]));
        let reply = Reply { verb: Verb::Returned, result: 5, output_bytes: 0 };
        let (bytes, length) = encode_reply(&reply);
        assert_eq!(length, 8);
        assert_eq!(decode_reply(Verb::Returned, &bytes[..length]), Ok(reply));
    }

    #[test]
    fn bodies_lead_back_and_no_other_length_is_one() {
        let until = Invocation { program: u64::MAX, timeout_ns: Some(3) };
        let (verb, bytes, length) = until.encode();
        assert_eq!(Invocation::decode(verb, &bytes[..length]), Ok((until, &[][..])));
        assert!((0..length).all(|short| Invocation::decode(verb, &bytes[..short]).is_err()));
        let part = Part { whole: 10, offset: 7 };
        let body = [&part.encode()[..], b"abc"].concat();
        assert_eq!(Part::decode(&body), Ok((part, &b"abc"[..])));
        assert!((0..=8).all(|short| Part::decode(&body[..short]).is_err()));
        assert!(Part::decode(&[&body[..], b"d"].concat()).is_err(), "beyond the end");
        let target = Header { slot: 255, sequence: 513, verb: Verb::Invoke };
        assert_eq!(decode_target(&encode_target(target)), Ok((255, 513)));
        assert!(decode_target(&[1; 8]).is_err() && decode_target(&[0; 7]).is_err());
        let reply = Reply { verb: Verb::Stopped, result: 1, output_bytes: u32::MAX };
        let (bytes, length) = encode_reply(&reply);
        assert_eq!(decode_reply(Verb::Stopped, &bytes[..length]), Ok(reply));
        assert!(decode_reply(Verb::Invoke, &bytes[..8]).is_err());
        assert!(
            (1..16)
                .filter(|short| *short != 8)
                .all(|short| { decode_reply(Verb::Returned, &bytes[..short]).is_err() })
        );
        assert!(
            decode_reply(Verb::Returned, &[0xff; 16]).is_err(),
            "more output than 32 bits tell"
        );
    }
}
