//! The wire form of coherence messages: a tag, the line, and the fields in the order of their declaration at fixed
//! offsets; the rest is zero.
//!
//! ```text
//! READ    0 tag, 1 line, 9 frame, 13 ticket, 21
//! WRITE   0 tag, 1 line, 9 frame, 13 ticket, 21 covers, 25 whether held, 26 [held, 34]
//! EVICT   0 tag, 1 line, 9 grant, 17 dirty, 18
//! RECALL  0 tag, 1 line, 9 grant, 17 down to, 18 whether forward, 19 [node, 21 frame, 25 ticket, 33]
//! GRANT   0 tag, 1 line, 9 ticket, 17 grant, 25 level, 26 supply, 27 owner, 29 first, 30 bytes, 34
//! REFUSE  0 tag, 1 line, 9 ticket, 17 code, 19 whether supplier, 20 [supplier, 22]
//! DATA    0 tag, 1 line, 9 ticket, 17
//! ACK     0 tag, 1 line, 9 grant, 17 had, 18 left, 19
//! WRITE BACK  0 tag, 1 line, 9 ticket, 17 whether with bytes, 18 [grant, 26]
//! WRITTEN 0 tag, 1 line, 9 ticket, 17
//! ```

use super::{CoherenceMessage, Extent, Frame, Had, Level, Requester, Supply};
use crate::wire::{BODY, Class, Violation, padding_from, put, u16_at, u32_at, u64_at};
use farside_base::{ErrorCode, Grant, LineAddress, NodeId, Ticket};

const READ: u8 = 1;
const WRITE: u8 = 2;
const EVICT: u8 = 3;
const RECALL: u8 = 4;
const GRANT: u8 = 5;
const REFUSE: u8 = 6;
const DATA: u8 = 7;
const ACK: u8 = 8;
const WRITE_BACK: u8 = 9;
const WRITTEN: u8 = 10;

impl CoherenceMessage {
    /// The line to which it refers.
    #[inline]
    pub const fn line(&self) -> LineAddress {
        match *self {
            Self::Read { line, .. }
            | Self::Write { line, .. }
            | Self::Evict { line, .. }
            | Self::WriteBack { line, .. }
            | Self::Written { line, .. }
            | Self::Recall { line, .. }
            | Self::Grant { line, .. }
            | Self::Refuse { line, .. }
            | Self::Data { line, .. }
            | Self::Ack { line, .. } => line,
        }
    }

    /// The class in which it travels: a request causes forwards and replies, a forward only replies.
    #[inline]
    pub const fn class(&self) -> Class {
        match self {
            Self::Read { .. }
            | Self::Write { .. }
            | Self::Evict { .. }
            | Self::WriteBack { .. } => Class::Request,
            Self::Recall { .. } => Class::Forward,
            Self::Grant { .. }
            | Self::Refuse { .. }
            | Self::Data { .. }
            | Self::Ack { .. }
            | Self::Written { .. } => Class::Reply,
        }
    }

    /// Returns the body of its wire form.
    #[inline]
    pub fn encode(&self) -> [u8; BODY] {
        let mut body = [0; BODY];
        self.encode_into(&mut body);
        body
    }

    /// Writes every part of the body that is not zero. Not inlined, for the same reason as the functions below.
    #[inline(never)]
    fn encode_into(&self, to: &mut [u8; BODY]) {
        put(to, 1, self.line().to_bits().to_le_bytes());
        to[0] = match *self {
            Self::Read { frame, ticket, .. } => {
                put(to, 9, frame.0.to_le_bytes());
                put(to, 13, ticket.0.to_le_bytes());
                READ
            }
            Self::Write { frame, ticket, held, covers, .. } => {
                put(to, 9, frame.0.to_le_bytes());
                put(to, 13, ticket.0.to_le_bytes());
                put(to, 21, covers.to_le_bytes());
                put_grant(to, 25, held);
                WRITE
            }
            Self::Evict { grant, dirty, .. } => {
                put(to, 9, grant.0.to_le_bytes());
                to[17] = dirty.into();
                EVICT
            }
            Self::Recall { grant, down_to, forward, .. } => {
                put(to, 9, grant.0.to_le_bytes());
                to[17] = level_bits(down_to);
                if let Some(requester) = forward {
                    to[18] = 1;
                    put(to, 19, requester.node.0.to_le_bytes());
                    put(to, 21, requester.frame.0.to_le_bytes());
                    put(to, 25, requester.ticket.0.to_le_bytes());
                }
                RECALL
            }
            Self::Grant { ticket, grant, level, supply, extent, .. } => {
                put(to, 9, ticket.0.to_le_bytes());
                put(to, 17, grant.0.to_le_bytes());
                to[25] = level_bits(level);
                let (kind, owner) = supply_bits(supply);
                to[26] = kind;
                put(to, 27, owner.0.to_le_bytes());
                to[29] = extent.first.into();
                put(to, 30, extent.bytes.to_le_bytes());
                GRANT
            }
            Self::Refuse { ticket, code, supplier, .. } => {
                put(to, 9, ticket.0.to_le_bytes());
                put(to, 17, code.entry().number.to_le_bytes());
                if let Some(node) = supplier {
                    to[19] = 1;
                    put(to, 20, node.0.to_le_bytes());
                }
                REFUSE
            }
            Self::Data { ticket, .. } => put_ticket(to, ticket, DATA),
            Self::WriteBack { ticket, owned, .. } => {
                put_grant(to, 17, owned);
                put_ticket(to, ticket, WRITE_BACK)
            }
            Self::Written { ticket, .. } => put_ticket(to, ticket, WRITTEN),
            Self::Ack { grant, had, left, .. } => {
                put(to, 9, grant.0.to_le_bytes());
                to[17] = had as u8;
                to[18] = level_bits(left);
                ACK
            }
        };
    }

    /// Decodes the body of its wire form.
    ///
    /// # Errors
    /// The body is not a message: an unknown tag or value, an invalid line, or padding in use.
    pub fn decode(body: &[u8; BODY]) -> Result<Self, Violation> {
        let line = LineAddress::from_bits(u64_at(body, 1))
            .ok_or(Violation("coherence message about no line"))?;
        match body[0] {
            READ => read(line, body),
            WRITE => write(line, body),
            EVICT => evict(line, body),
            RECALL => recall(line, body),
            GRANT => grant(line, body),
            REFUSE => refuse(line, body),
            DATA => data(line, body),
            ACK => ack(line, body),
            WRITE_BACK => write_back(line, body),
            WRITTEN => written(line, body),
            _ => Err(Violation("unknown coherence message")),
        }
    }
}

fn put_ticket(to: &mut [u8; BODY], ticket: Ticket, tag: u8) -> u8 {
    put(to, 9, ticket.0.to_le_bytes());
    tag
}

/// Writes whether there is a grant, and the grant.
fn put_grant(to: &mut [u8; BODY], at: usize, grant: Option<Grant>) {
    if let Some(grant) = grant {
        put(to, at, [1]);
        put(to, at + 1, grant.0.to_le_bytes());
    }
}

// One function per kind, never inlined, so that each stores its fields directly in the destination. In a single
// function the compiler splits the fields of all kinds into bytes and combines them in a common location.

#[inline(never)]
fn read(line: LineAddress, body: &[u8; BODY]) -> Result<CoherenceMessage, Violation> {
    let (frame, ticket) = (Frame(u32_at(body, 9)), Ticket(u64_at(body, 13)));
    padding_from(body, 21)?;
    Ok(CoherenceMessage::Read { line, frame, ticket })
}

#[inline(never)]
fn write(line: LineAddress, body: &[u8; BODY]) -> Result<CoherenceMessage, Violation> {
    let (frame, ticket) = (Frame(u32_at(body, 9)), Ticket(u64_at(body, 13)));
    let covers = u32_at(body, 21);
    let is_upgrade = flag(body[25])?;
    if is_upgrade { padding_from(body, 34) } else { padding_from(body, 26) }?;
    let held = is_upgrade.then(|| Grant(u64_at(body, 26)));
    if covers as usize > line.line_size().bytes() {
        return Err(Violation("a write of more than its line"));
    }
    Ok(CoherenceMessage::Write { line, frame, ticket, held, covers })
}

#[inline(never)]
fn evict(line: LineAddress, body: &[u8; BODY]) -> Result<CoherenceMessage, Violation> {
    let (grant, dirty) = (Grant(u64_at(body, 9)), flag(body[17])?);
    padding_from(body, 18)?;
    Ok(CoherenceMessage::Evict { line, grant, dirty })
}

#[inline(never)]
fn recall(line: LineAddress, body: &[u8; BODY]) -> Result<CoherenceMessage, Violation> {
    let (grant, down_to) = (Grant(u64_at(body, 9)), level(body[17])?);
    let is_forwarded = flag(body[18])?;
    if is_forwarded { padding_from(body, 33) } else { padding_from(body, 19) }?;
    let forward = is_forwarded.then(|| Requester {
        node: NodeId(u16_at(body, 19)),
        frame: Frame(u32_at(body, 21)),
        ticket: Ticket(u64_at(body, 25)),
    });
    Ok(CoherenceMessage::Recall { line, grant, down_to, forward })
}

#[inline(never)]
fn grant(line: LineAddress, body: &[u8; BODY]) -> Result<CoherenceMessage, Violation> {
    let (ticket, grant) = (Ticket(u64_at(body, 9)), Grant(u64_at(body, 17)));
    let (level, supply) = (level(body[25])?, supply(body[26], u16_at(body, 27))?);
    let extent = extent(body[29], u32_at(body, 30), line)?;
    padding_from(body, 34)?;
    Ok(CoherenceMessage::Grant { line, ticket, grant, level, supply, extent })
}

#[inline(never)]
fn refuse(line: LineAddress, body: &[u8; BODY]) -> Result<CoherenceMessage, Violation> {
    let (ticket, code) = (Ticket(u64_at(body, 9)), code(u16_at(body, 17))?);
    let has_supplier = flag(body[19])?;
    if has_supplier { padding_from(body, 22) } else { padding_from(body, 20) }?;
    let supplier = has_supplier.then(|| NodeId(u16_at(body, 20)));
    Ok(CoherenceMessage::Refuse { line, ticket, code, supplier })
}

#[inline(never)]
fn data(line: LineAddress, body: &[u8; BODY]) -> Result<CoherenceMessage, Violation> {
    padding_from(body, 17)?;
    Ok(CoherenceMessage::Data { line, ticket: Ticket(u64_at(body, 9)) })
}

#[inline(never)]
fn ack(line: LineAddress, body: &[u8; BODY]) -> Result<CoherenceMessage, Violation> {
    let (grant, had, left) = (Grant(u64_at(body, 9)), had(body[17])?, level(body[18])?);
    padding_from(body, 19)?;
    Ok(CoherenceMessage::Ack { line, grant, had, left })
}

#[inline(never)]
fn write_back(line: LineAddress, body: &[u8; BODY]) -> Result<CoherenceMessage, Violation> {
    let has_bytes = flag(body[17])?;
    if has_bytes { padding_from(body, 26) } else { padding_from(body, 18) }?;
    let owned = has_bytes.then(|| Grant(u64_at(body, 18)));
    Ok(CoherenceMessage::WriteBack { line, ticket: Ticket(u64_at(body, 9)), owned })
}

#[inline(never)]
fn written(line: LineAddress, body: &[u8; BODY]) -> Result<CoherenceMessage, Violation> {
    padding_from(body, 17)?;
    Ok(CoherenceMessage::Written { line, ticket: Ticket(u64_at(body, 9)) })
}

const fn flag(bits: u8) -> Result<bool, Violation> {
    match bits {
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

const fn level(bits: u8) -> Result<Level, Violation> {
    match bits {
        0 => Ok(Level::Invalid),
        1 => Ok(Level::Shared),
        2 => Ok(Level::Dirty),
        _ => Err(Violation("unknown level")),
    }
}

const fn supply_bits(supply: Supply) -> (u8, NodeId) {
    match supply {
        Supply::Held => (0, NodeId(0)),
        Supply::Home => (1, NodeId(0)),
        Supply::Owner(node) => (2, node),
        Supply::Nothing => (3, NodeId(0)),
    }
}

const fn supply(kind: u8, node: u16) -> Result<Supply, Violation> {
    match (kind, node) {
        (0, 0) => Ok(Supply::Held),
        (1, 0) => Ok(Supply::Home),
        (2, node) => Ok(Supply::Owner(NodeId(node))),
        (3, 0) => Ok(Supply::Nothing),
        _ => Err(Violation("unknown supply")),
    }
}

const fn had(bits: u8) -> Result<Had, Violation> {
    match bits {
        0 => Ok(Had::Nothing),
        1 => Ok(Had::Clean),
        2 => Ok(Had::Bytes),
        3 => Ok(Had::Forwarded),
        _ => Err(Violation("unknown kind of acknowledgement")),
    }
}

fn extent(first: u8, bytes: u32, line: LineAddress) -> Result<Extent, Violation> {
    let first = flag(first)?;
    if bytes == 0 || bytes as usize > line.line_size().bytes() {
        return Err(Violation("an extent is empty or longer than its line"));
    }
    Ok(Extent { first, bytes })
}

/// Decodes one of the three reasons for which a home refuses.
fn code(number: u16) -> Result<ErrorCode, Violation> {
    match ErrorCode::from_number(number) {
        Some(code @ (ErrorCode::Unallocated | ErrorCode::LineLost | ErrorCode::HomeAway)) => {
            Ok(code)
        }
        _ => Err(Violation("unknown reason of a refusal")),
    }
}
