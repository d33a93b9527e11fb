//! The wire form of lock messages: a tag, then the fields in the order of the declaration.
//!
//! Modes, patience and options are single bytes; padding is zero. All other values are refused.

use super::{Ask, Delegation, LockMessage, Mode, Patience, Probe, ProbedWait, Range, Token};
use crate::wire::{BODY, Class, Reader, Violation, Writer};
use farside_base::{ErrorCode, LineAddress, NodeId, SessionId, Ticket};

const REQUEST: u8 = 1;
const RELEASE: u8 = 2;
const CANCEL: u8 = 3;
const OFFER: u8 = 4;
const RECALL: u8 = 5;
const GRANTED: u8 = 6;
const REFUSED: u8 = 7;
const CANCELLED: u8 = 8;
const MOVED: u8 = 9;
const HOLDER: u8 = 10;
const WAITER: u8 = 11;
const RETURNED: u8 = 12;
const PROBE: u8 = 13;
const VISIT: u8 = 14;
const ABORT: u8 = 15;
const ABORTED: u8 = 16;

impl LockMessage {
    /// The class in which it travels.
    pub const fn class(&self) -> Class {
        match self {
            Self::Request { .. }
            | Self::Release { .. }
            | Self::Cancel { .. }
            | Self::Offer { .. } => Class::Request,
            Self::Recall { .. } => Class::Forward,
            Self::Granted { .. }
            | Self::Refused { .. }
            | Self::Cancelled { .. }
            | Self::Moved { .. }
            | Self::Holder { .. }
            | Self::Waiter { .. }
            | Self::Returned { .. }
            | Self::Probe { .. }
            | Self::Visit { .. }
            | Self::Abort { .. }
            | Self::Aborted { .. } => Class::Reply,
        }
    }

    /// The line to which it refers.
    pub const fn line(&self) -> LineAddress {
        match self {
            Self::Request { line, .. }
            | Self::Release { line, .. }
            | Self::Cancel { line, .. }
            | Self::Offer { line, .. }
            | Self::Recall { line, .. }
            | Self::Granted { line, .. }
            | Self::Refused { line, .. }
            | Self::Cancelled { line, .. }
            | Self::Moved { line, .. }
            | Self::Holder { line, .. }
            | Self::Waiter { line, .. }
            | Self::Returned { line, .. }
            | Self::Probe { line, .. }
            | Self::Visit { line, .. }
            | Self::Abort { line, .. }
            | Self::Aborted { line, .. } => *line,
        }
    }

    /// Returns the wire form.
    pub fn encode(&self) -> [u8; BODY] {
        let writer = Writer::new();
        match *self {
            Self::Request { line, range, ask, session, ticket, birth, holds } => {
                let writer = put_range(put_line(writer, REQUEST, line), range);
                let writer = writer.u8(ask_bits(ask)).u64(session.0).u64(ticket.0);
                writer.u64(birth).u8(holds.into())
            }
            Self::Release { line, token, untold } => {
                put_line(writer, RELEASE, line).u64(token.0).u8(untold.into())
            }
            Self::Cancel { line, ticket } => put_line(writer, CANCEL, line).u64(ticket.0),
            Self::Offer { line, number } => put_line(writer, OFFER, line).u64(number.0),
            Self::Recall { line, number } => put_line(writer, RECALL, line).u64(number.0),
            Self::Granted { line, ticket, token, delegation, abandoned } => {
                let writer = put_line(writer, GRANTED, line).u64(ticket.0).u64(token.0);
                let writer = writer.u8(abandoned.into());
                match delegation {
                    None => writer.u8(0),
                    Some(Delegation { tokens, bytes }) => writer.u8(1).u32(tokens).u32(bytes),
                }
            }
            Self::Refused { line, ticket, code } => {
                put_line(writer, REFUSED, line).u64(ticket.0).u16(code.entry().number)
            }
            Self::Cancelled { line, ticket } => put_line(writer, CANCELLED, line).u64(ticket.0),
            Self::Moved { line, ticket } => put_line(writer, MOVED, line).u64(ticket.0),
            Self::Holder { line, session, range, mode, token } => {
                let writer = put_line(writer, HOLDER, line).u64(session.0);
                put_range(writer, range).u8(mode_bits(mode)).u64(token.0)
            }
            Self::Waiter { line, session, range, ask, ticket, birth, overtaken, holds } => {
                let writer = put_range(put_line(writer, WAITER, line).u64(session.0), range);
                let writer = writer.u8(ask_bits(ask)).u64(ticket.0).u64(birth);
                writer.u32(overtaken).u8(holds.into())
            }
            Self::Returned { line, number, holders, waiters } => {
                put_line(writer, RETURNED, line).u64(number.0).u32(holders).u32(waiters)
            }
            Self::Probe { line, token, probe } => {
                put_probe(put_line(writer, PROBE, line).u64(token.0), probe)
            }
            Self::Visit { line, ticket, probe } => {
                put_probe(put_line(writer, VISIT, line).u64(ticket.0), probe)
            }
            Self::Abort { line, ticket, number } => {
                put_line(writer, ABORT, line).u64(ticket.0).u64(number)
            }
            Self::Aborted { line, number } => put_line(writer, ABORTED, line).u64(number),
        }
        .finish()
    }

    /// Decodes the wire form.
    ///
    /// # Errors
    /// These bytes encode no message; close the link.
    pub fn decode(body: &[u8; BODY]) -> Result<Self, Violation> {
        let mut reader = Reader::new(body);
        let message = match reader.u8()? {
            tag @ REQUEST..=RECALL => Self::decode_asked(tag, &mut reader)?,
            tag @ GRANTED..=MOVED => Self::decode_answer(tag, &mut reader)?,
            tag => Self::decode_told(tag, &mut reader)?,
        };
        reader.finish()?;
        Ok(message)
    }

    fn decode_asked(tag: u8, reader: &mut Reader<'_>) -> Result<Self, Violation> {
        let line = take_line(reader)?;
        Ok(match tag {
            REQUEST => {
                let (range, ask) = (take_range(reader)?, take_ask(reader)?);
                let (session, ticket) = (SessionId(reader.u64()?), Ticket(reader.u64()?));
                let (birth, holds) = (reader.u64()?, take_flag(reader)?);
                Self::Request { line, range, ask, session, ticket, birth, holds }
            }
            RELEASE => {
                let token = Token(reader.u64()?);
                Self::Release { line, token, untold: take_flag(reader)? }
            }
            CANCEL => Self::Cancel { line, ticket: Ticket(reader.u64()?) },
            OFFER => Self::Offer { line, number: Token(reader.u64()?) },
            RECALL => Self::Recall { line, number: Token(reader.u64()?) },
            _ => return Err(Violation("unknown message about locks")),
        })
    }

    fn decode_answer(tag: u8, reader: &mut Reader<'_>) -> Result<Self, Violation> {
        let (line, ticket) = (take_line(reader)?, Ticket(reader.u64()?));
        Ok(match tag {
            GRANTED => {
                let (token, abandoned) = (Token(reader.u64()?), take_flag(reader)?);
                let delegation = match take_flag(reader)? {
                    false => None,
                    true => Some(Delegation { tokens: reader.u32()?, bytes: reader.u32()? }),
                };
                Self::Granted { line, ticket, token, delegation, abandoned }
            }
            REFUSED => {
                let code = ErrorCode::from_number(reader.u16()?);
                let code = code.ok_or(Violation("unknown error number"))?;
                Self::Refused { line, ticket, code }
            }
            CANCELLED => Self::Cancelled { line, ticket },
            MOVED => Self::Moved { line, ticket },
            _ => return Err(Violation("unknown message about locks")),
        })
    }

    fn decode_told(tag: u8, reader: &mut Reader<'_>) -> Result<Self, Violation> {
        if !(HOLDER..=ABORTED).contains(&tag) {
            return Err(Violation("unknown message about locks"));
        }
        let line = take_line(reader)?;
        Ok(match tag {
            HOLDER => {
                let (session, range) = (SessionId(reader.u64()?), take_range(reader)?);
                let mode = take_mode(reader.u8()?)?;
                Self::Holder { line, session, range, mode, token: Token(reader.u64()?) }
            }
            WAITER => {
                let (session, range) = (SessionId(reader.u64()?), take_range(reader)?);
                let (ask, ticket) = (take_ask(reader)?, Ticket(reader.u64()?));
                let (birth, overtaken) = (reader.u64()?, reader.u32()?);
                let holds = take_flag(reader)?;
                Self::Waiter { line, session, range, ask, ticket, birth, overtaken, holds }
            }
            RETURNED => {
                let number = Token(reader.u64()?);
                let (holders, waiters) = (reader.u32()?, reader.u32()?);
                Self::Returned { line, number, holders, waiters }
            }
            PROBE => {
                let token = Token(reader.u64()?);
                Self::Probe { line, token, probe: take_probe(reader)? }
            }
            VISIT => {
                let ticket = Ticket(reader.u64()?);
                Self::Visit { line, ticket, probe: take_probe(reader)? }
            }
            ABORT => {
                let (ticket, number) = (Ticket(reader.u64()?), reader.u64()?);
                Self::Abort { line, ticket, number }
            }
            _ => Self::Aborted { line, number: reader.u64()? },
        })
    }
}

fn put_line(writer: Writer, tag: u8, line: LineAddress) -> Writer {
    writer.u8(tag).u64(line.to_bits())
}

fn take_line(reader: &mut Reader<'_>) -> Result<LineAddress, Violation> {
    LineAddress::from_bits(reader.u64()?).ok_or(Violation("not the address of a line"))
}

fn take_flag(reader: &mut Reader<'_>) -> Result<bool, Violation> {
    match reader.u8()? {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(Violation("a flag is neither 0 nor 1")),
    }
}

fn put_range(writer: Writer, range: Range) -> Writer {
    writer.u32(range.start).u32(range.bytes)
}

fn take_range(reader: &mut Reader<'_>) -> Result<Range, Violation> {
    Ok(Range { start: reader.u32()?, bytes: reader.u32()? })
}

fn put_probe(writer: Writer, probe: Probe) -> Writer {
    let ProbedWait { birth, node, ticket } = probe.youngest;
    writer.u16(probe.origin.0).u64(probe.number).u64(birth).u16(node.0).u64(ticket.0)
}

fn take_probe(reader: &mut Reader<'_>) -> Result<Probe, Violation> {
    let (origin, number) = (NodeId(reader.u16()?), reader.u64()?);
    let (birth, node) = (reader.u64()?, NodeId(reader.u16()?));
    let youngest = ProbedWait { birth, node, ticket: Ticket(reader.u64()?) };
    Ok(Probe { origin, number, youngest })
}

const fn mode_bits(mode: Mode) -> u8 {
    match mode {
        Mode::Read => 0,
        Mode::Write => 1,
    }
}

fn take_mode(bits: u8) -> Result<Mode, Violation> {
    match bits {
        0 => Ok(Mode::Read),
        1 => Ok(Mode::Write),
        _ => Err(Violation("unknown lock mode")),
    }
}

const fn patience_bits(patience: Patience) -> u8 {
    match patience {
        Patience::Try => 0,
        Patience::Wait => 2,
    }
}

/// Bit 0: write, bit 1: wait, bit 2: upgrade (then bit 0 is zero).
const fn ask_bits(ask: Ask) -> u8 {
    match ask {
        Ask::Lock { mode, patience } => mode_bits(mode) | patience_bits(patience),
        Ask::Upgrade { patience } => 4 | patience_bits(patience),
    }
}

fn take_ask(reader: &mut Reader<'_>) -> Result<Ask, Violation> {
    let bits = reader.u8()?;
    let patience = if bits & 2 == 0 { Patience::Try } else { Patience::Wait };
    match bits & !2 {
        4 => Ok(Ask::Upgrade { patience }),
        mode => Ok(Ask::Lock { mode: take_mode(mode)?, patience }),
    }
}
