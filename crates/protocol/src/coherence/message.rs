//! Messages on the wire: a tag, the line, and the fields in the order of their declaration.

use super::{Extent, Frame, Had, Level, Message, Requester, Supply};
use crate::wire::{BODY, Class, Reader, Violation, Writer};
use farside_base::{ErrorCode, Grant, LineAddress, NodeId, Ticket};

const READ: u8 = 1;
const WRITE: u8 = 2;
const EVICT: u8 = 3;
const RECALL: u8 = 4;
const GRANT: u8 = 5;
const REFUSE: u8 = 6;
const DATA: u8 = 7;
const ACK: u8 = 8;

impl Message {
    /// The line it speaks of.
    pub const fn line(&self) -> LineAddress {
        match *self {
            Self::Read { line, .. }
            | Self::Write { line, .. }
            | Self::Evict { line, .. }
            | Self::Recall { line, .. }
            | Self::Grant { line, .. }
            | Self::Refuse { line, .. }
            | Self::Data { line, .. }
            | Self::Ack { line, .. } => line,
        }
    }

    /// The class it travels in: a request causes forwards and replies, a forward replies only.
    pub const fn class(&self) -> Class {
        match self {
            Self::Read { .. } | Self::Write { .. } | Self::Evict { .. } => Class::Request,
            Self::Recall { .. } => Class::Forward,
            Self::Grant { .. } | Self::Refuse { .. } | Self::Data { .. } | Self::Ack { .. } => {
                Class::Reply
            }
        }
    }

    /// The body of its wire form.
    pub fn encode(&self) -> [u8; BODY] {
        let start = |tag: u8| Writer::new().u8(tag).u64(self.line().to_bits());
        match *self {
            Self::Read { frame, ticket, .. } => start(READ).u32(frame.0).u64(ticket.0),
            Self::Write { frame, ticket, held, .. } => {
                let body = start(WRITE).u32(frame.0).u64(ticket.0);
                optional(body, held, |body, grant| body.u64(grant.0))
            }
            Self::Evict { grant, dirty, .. } => start(EVICT).u64(grant.0).u8(dirty.into()),
            Self::Recall { grant, down_to, forward, .. } => {
                let body = start(RECALL).u64(grant.0).u8(level_bits(down_to));
                optional(body, forward, |body, to| {
                    body.u16(to.node.0).u32(to.frame.0).u64(to.ticket.0)
                })
            }
            Self::Grant { ticket, grant, level, supply, extent, .. } => {
                let body = start(GRANT).u64(ticket.0).u64(grant.0);
                let body = supply_to(body.u8(level_bits(level)), supply);
                body.u8(extent.first.into()).u32(extent.bytes)
            }
            Self::Refuse { ticket, code, supplier, .. } => {
                let body = start(REFUSE).u64(ticket.0).u16(code.entry().number);
                optional(body, supplier, |body, node| body.u16(node.0))
            }
            Self::Data { ticket, .. } => start(DATA).u64(ticket.0),
            Self::Ack { grant, had, left, .. } => {
                start(ACK).u64(grant.0).u8(had as u8).u8(level_bits(left))
            }
        }
        .finish()
    }

    /// From the body of its wire form.
    ///
    /// # Errors
    /// When the body is no message: an unknown tag or value, a line that is none, padding in use.
    pub fn decode(body: &[u8; BODY]) -> Result<Self, Violation> {
        let mut reader = Reader::new(body);
        let tag = reader.u8()?;
        let line = LineAddress::from_bits(reader.u64()?)
            .ok_or(Violation("coherence message about no line"))?;
        let message = Self::decode_rest(tag, line, &mut reader)?;
        reader.finish()?;
        Ok(message)
    }

    fn decode_rest(tag: u8, line: LineAddress, reader: &mut Reader<'_>) -> Result<Self, Violation> {
        Ok(match tag {
            READ => Self::Read { line, frame: Frame(reader.u32()?), ticket: Ticket(reader.u64()?) },
            WRITE => Self::Write {
                line,
                frame: Frame(reader.u32()?),
                ticket: Ticket(reader.u64()?),
                held: optional_from(reader, |reader| Ok(Grant(reader.u64()?)))?,
            },
            EVICT => Self::Evict { line, grant: Grant(reader.u64()?), dirty: flag_from(reader)? },
            RECALL => Self::Recall {
                line,
                grant: Grant(reader.u64()?),
                down_to: level_from(reader)?,
                forward: optional_from(reader, requester_from)?,
            },
            GRANT => Self::Grant {
                line,
                ticket: Ticket(reader.u64()?),
                grant: Grant(reader.u64()?),
                level: level_from(reader)?,
                supply: supply_from(reader)?,
                extent: extent_from(reader, line)?,
            },
            REFUSE => Self::Refuse {
                line,
                ticket: Ticket(reader.u64()?),
                code: code_from(reader)?,
                supplier: optional_from(reader, |reader| Ok(NodeId(reader.u16()?)))?,
            },
            DATA => Self::Data { line, ticket: Ticket(reader.u64()?) },
            ACK => Self::Ack {
                line,
                grant: Grant(reader.u64()?),
                had: had_from(reader)?,
                left: level_from(reader)?,
            },
            _ => return Err(Violation("unknown coherence message")),
        })
    }
}

fn optional<T>(body: Writer, value: Option<T>, write: impl FnOnce(Writer, T) -> Writer) -> Writer {
    match value {
        Some(value) => write(body.u8(1), value),
        None => body.u8(0),
    }
}

fn optional_from<T>(
    reader: &mut Reader<'_>,
    read: impl FnOnce(&mut Reader<'_>) -> Result<T, Violation>,
) -> Result<Option<T>, Violation> {
    if flag_from(reader)? { read(reader).map(Some) } else { Ok(None) }
}

fn flag_from(reader: &mut Reader<'_>) -> Result<bool, Violation> {
    match reader.u8()? {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(Violation("a flag is neither 0 nor 1")),
    }
}

const fn level_bits(level: Level) -> u8 {
    match level {
        Level::Invalid => 0,
        Level::Shared => 1,
        Level::Dirty => 2,
    }
}

fn level_from(reader: &mut Reader<'_>) -> Result<Level, Violation> {
    match reader.u8()? {
        0 => Ok(Level::Invalid),
        1 => Ok(Level::Shared),
        2 => Ok(Level::Dirty),
        _ => Err(Violation("unknown level")),
    }
}

fn supply_to(body: Writer, supply: Supply) -> Writer {
    match supply {
        Supply::Held => body.u8(0).u16(0),
        Supply::Home => body.u8(1).u16(0),
        Supply::Owner(node) => body.u8(2).u16(node.0),
    }
}

fn supply_from(reader: &mut Reader<'_>) -> Result<Supply, Violation> {
    match (reader.u8()?, reader.u16()?) {
        (0, 0) => Ok(Supply::Held),
        (1, 0) => Ok(Supply::Home),
        (2, node) => Ok(Supply::Owner(NodeId(node))),
        _ => Err(Violation("unknown supply")),
    }
}

fn had_from(reader: &mut Reader<'_>) -> Result<Had, Violation> {
    match reader.u8()? {
        0 => Ok(Had::Nothing),
        1 => Ok(Had::Clean),
        2 => Ok(Had::Bytes),
        3 => Ok(Had::Forwarded),
        _ => Err(Violation("unknown kind of acknowledgement")),
    }
}

fn requester_from(reader: &mut Reader<'_>) -> Result<Requester, Violation> {
    Ok(Requester {
        node: NodeId(reader.u16()?),
        frame: Frame(reader.u32()?),
        ticket: Ticket(reader.u64()?),
    })
}

fn extent_from(reader: &mut Reader<'_>, line: LineAddress) -> Result<Extent, Violation> {
    let first = flag_from(reader)?;
    let bytes = reader.u32()?;
    if bytes == 0 || bytes as usize > line.line_size().bytes() {
        return Err(Violation("an extent is empty or longer than its line"));
    }
    Ok(Extent { first, bytes })
}

/// A home refuses for these two reasons only.
fn code_from(reader: &mut Reader<'_>) -> Result<ErrorCode, Violation> {
    match ErrorCode::from_number(reader.u16()?) {
        Some(code @ (ErrorCode::Unallocated | ErrorCode::LineLost)) => Ok(code),
        _ => Err(Violation("unknown reason of a refusal")),
    }
}
