//! The wire form of calls.
//!
//! ```text
//! header (32 bits)  slot (8) | sequence (16) | verb (8)
//! ```
//! It travels as the immediate of a SEND, or before everything else where a fabric has none. Bodies:
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
//! So the list search of 003 §4.1 takes 24 bytes there and 8 back. Integers are little-endian.

use crate::wire::Violation;

/// What a message is for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Verb {
    /// Run a program.
    Invoke = 1,
    /// Run a program, for at most so long.
    InvokeUntil = 2,
    /// A part of an object whose programs shall be registered; the last part does it.
    Register = 3,
    /// A program is needed no more.
    Unregister = 4,
    /// Stop a call.
    Cancel = 5,
    /// Wait for the next notification of a topic.
    Listen = 6,
    /// The caller ends: its session is over. Of no slot, and not answered.
    Leave = 7,
    /// The program returned, or the request was carried out.
    Returned = 16,
    /// The call was stopped; the result tells why, the output where.
    Stopped = 17,
    /// The request was not carried out; the result is the number of an error, the output tells more.
    Refused = 18,
}

impl Verb {
    /// From the byte of the wire.
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

/// What every message begins with.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Header {
    /// The slot of the session.
    pub slot: u8,
    /// The number of the request among those of its slot; wraps.
    pub sequence: u16,
    /// What it is for.
    pub verb: Verb,
}

impl Header {
    /// Of the message that says that its caller ends.
    pub const LEAVE: Self = Self { slot: 0, sequence: 0, verb: Verb::Leave };

    /// Bytes where it travels as bytes.
    pub const BYTES: usize = 8;

    /// The 32 bits of the wire.
    pub const fn encode(self) -> u32 {
        let [low, high] = self.sequence.to_le_bytes();
        u32::from_le_bytes([self.slot, low, high, self.verb as u8])
    }

    /// Reads the 32 bits of the wire.
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
    /// How long it may take from its arrival.
    pub timeout_ns: Option<u64>,
}

impl Invocation {
    /// Most bytes before the parameters of a request.
    pub const BYTES_MAX: u32 = 16;

    /// What goes before the parameters, and the verb that says so.
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

    /// Reads it; the rest are the parameters.
    ///
    /// # Errors
    /// [`Violation`] when it is too short.
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
    /// Bytes of the whole.
    pub whole: u32,
    /// Where this part begins.
    pub offset: u32,
}

impl Part {
    /// Bytes before the part.
    pub const BYTES: usize = 8;

    /// What goes before the part.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..4].copy_from_slice(&self.whole.to_le_bytes());
        bytes[4..].copy_from_slice(&self.offset.to_le_bytes());
        bytes
    }

    /// Reads it; the rest is the part.
    ///
    /// # Errors
    /// [`Violation`] when it is too short, empty, or passes the whole.
    pub fn decode(body: &[u8]) -> Result<(Self, &[u8]), Violation> {
        let (both, rest) = word(body)?;
        let [a, b, c, d, e, f, g, h] = both.to_le_bytes();
        let whole = u32::from_le_bytes([a, b, c, d]);
        let offset = u32::from_le_bytes([e, f, g, h]);
        let length = u32::try_from(rest.len()).map_err(|_| Violation("too long a part"))?;
        let fits = offset.checked_add(length).is_some_and(|end| end <= whole);
        if rest.is_empty() || !fits {
            return Err(Violation("a part of an object that is none"));
        }
        Ok((Self { whole, offset }, rest))
    }
}

/// The body of `Unregister` and `Listen`.
///
/// # Errors
/// [`Violation`] when it has not 8 bytes.
pub(super) fn one_word(body: &[u8]) -> Result<u64, Violation> {
    match word(body)? {
        (value, []) => Ok(value),
        _ => Err(Violation("a call's message that is too long")),
    }
}

/// The body of `Cancel` for this request.
pub(super) fn encode_target(target: Header) -> [u8; 8] {
    let [low, high] = target.sequence.to_le_bytes();
    [target.slot, 0, low, high, 0, 0, 0, 0]
}

/// Reads the body of `Cancel`: slot and sequence.
pub(super) fn decode_target(body: &[u8]) -> Result<(u8, u16), Violation> {
    match *body {
        [slot, 0, low, high, 0, 0, 0, 0] => Ok((slot, u16::from_le_bytes([low, high]))),
        _ => Err(Violation("a cancellation of nothing")),
    }
}

/// What came of a request. Its output lies apart.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Reply {
    /// How it ended: `Returned`, `Stopped` or `Refused`.
    pub verb: Verb,
    /// What was returned, or why not.
    pub result: u64,
    /// Bytes of output.
    pub output_bytes: u32,
}

/// Why a call was stopped: the lower half of the result of `Stopped`; the upper one is the slot of the
/// instruction where it stood, if that is known.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u32)]
pub enum Stopped {
    /// Its caller cancelled it.
    Cancelled = 1,
    /// Its time was up.
    Late = 2,
    /// It used up its budget.
    Budget = 3,
    /// It asked for a word that its caller may not access.
    NotPermitted = 4,
    /// It did what no verified program does, or its executor did.
    Fault = 5,
    /// Its output is longer than its caller has room for.
    TooMuchOutput = 6,
    /// The memory that it works on is gone.
    MemoryLost = 7,
}

/// Why a request was not carried out: the lower half of the result of `Refused`; the upper one is zero, or
/// with `Calls` how many the tenant may have in progress.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u32)]
pub enum Refused {
    /// There are as many sessions as there can be, of all tenants together.
    Sessions = 1,
    /// The tenant has as many programs as it may.
    Programs = 2,
    /// The program's state would be over what the tenant may have.
    State = 3,
    /// The tenant has as many calls in progress as it may.
    Calls = 4,
    /// The session has registered no such program.
    NoProgram = 5,
    /// It is no object with programs; the output says why.
    Object = 6,
    /// The verifier refused a program; the output says where and why.
    Unsafe = 7,
    /// The parameters are too short or too long for the program, or it does not fit its budget.
    Parameters = 8,
    /// The executor lacks a helper that the program calls, or memory for it.
    Lacks = 9,
    /// The session waits on as many topics as it may have.
    Topics = 10,
    /// The tenant has as many sessions as it may.
    TenantSessions = 11,
    /// As much is being registered as may be at once; the output says what to do.
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

    /// As in a reply, with the slot of the instruction.
    pub const fn result(self, place: Option<u32>) -> u64 {
        let place = match place {
            Some(place) => place,
            None => u32::MAX,
        };
        let ([a, b, c, d], [e, f, g, h]) = ((self as u32).to_le_bytes(), place.to_le_bytes());
        u64::from_le_bytes([a, b, c, d, e, f, g, h])
    }

    /// Reads a result: why, and the slot of the instruction.
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

    /// Reads a result: why, and with `Calls` how many there may be.
    pub fn of(result: u64) -> Option<(Self, u32)> {
        let [a, b, c, d, e, f, g, h] = result.to_le_bytes();
        let (why, most) = (u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, g, h]));
        let why = Self::ALL.into_iter().find(|one| *one as u32 == why)?;
        (why == Self::Calls || most == 0).then_some((why, most))
    }
}

impl Reply {
    /// The request was carried out.
    pub const fn returned(result: u64, output_bytes: u32) -> Self {
        Self { verb: Verb::Returned, result, output_bytes }
    }

    /// The call was stopped.
    pub const fn stopped(why: Stopped, place: Option<u32>) -> Self {
        Self { verb: Verb::Stopped, result: why.result(place), output_bytes: 0 }
    }

    /// The request was not carried out; so much of the output says more.
    pub const fn refused(why: Refused, output_bytes: u32) -> Self {
        Self { verb: Verb::Refused, result: why.result(0), output_bytes }
    }

    /// The call was not begun, since its tenant has as many in progress as it may: so many.
    pub const fn over_calls(calls_max: u32) -> Self {
        Self { verb: Verb::Refused, result: Refused::Calls.result(calls_max), output_bytes: 0 }
    }
}

/// The body of a reply and how much of it travels.
pub fn encode_reply(reply: &Reply) -> ([u8; 16], usize) {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&reply.result.to_le_bytes());
    bytes[8..].copy_from_slice(&u64::from(reply.output_bytes).to_le_bytes());
    (bytes, if reply.output_bytes == 0 { 8 } else { 16 })
}

/// Reads the body of a reply.
///
/// # Errors
/// [`Violation`] for a wrong length or a verb of requests.
pub fn decode_reply(verb: Verb, body: &[u8]) -> Result<Reply, Violation> {
    if !verb.is_reply() {
        return Err(Violation("a request where replies come"));
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
        assert!(Part::decode(&[&body[..], b"d"].concat()).is_err(), "passes the whole");
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
