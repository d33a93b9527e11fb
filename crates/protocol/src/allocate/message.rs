//! Messages between nodes about memory.

use crate::wire::{BODY, Class, Reader, Violation, Writer};
use farside_base::{ErrorCode, GlobalAddress, LineSize, Ticket};

/// Options for an allocation.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct AllocateFlags {
    /// Fill it with zeroes.
    pub zeroed: bool,
    /// Return the directory of named roots of this home, and create it if it does not exist yet.
    pub directory: bool,
    /// Refuse it unless the home keeps its memory like this.
    pub needs: StateNeeds,
}

/// How the home of an allocation has to keep its memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct StateNeeds {
    /// The home is a node with state.
    pub state: bool,
    /// The state is in memory of at least this many other processes.
    pub copies: u8,
    /// The state survives a loss of power.
    pub survives_power: bool,
}

impl AllocateFlags {
    const fn to_bits(self) -> u8 {
        let Self { zeroed, directory, needs } = self;
        zeroed as u8
            | (directory as u8) << 1
            | (needs.state as u8) << 2
            | (needs.survives_power as u8) << 3
    }

    fn from_bits(bits: u8, copies: u8) -> Option<Self> {
        let has = |bit: u8| bits & 1 << bit != 0;
        let needs = StateNeeds { state: has(2), copies, survives_power: has(3) };
        let is_possible = bits < 16 && (needs.state || needs == StateNeeds::default());
        is_possible.then_some(Self { zeroed: has(0), directory: has(1), needs })
    }
}

/// A message of the family `Allocate`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum AllocateMessage {
    /// Requester to home: requests memory.
    Allocate {
        /// Returned in the answer.
        ticket: Ticket,
        /// The size.
        bytes: u64,
        /// The line size.
        line_size: LineSize,
        /// The options.
        flags: AllocateFlags,
    },
    /// Home to requester: the memory is allocated.
    Allocated {
        /// Of the request.
        ticket: Ticket,
        /// The first byte.
        address: GlobalAddress,
        /// The number of lines.
        lines: u64,
    },
    /// Requester to home: frees memory.
    Free {
        /// Returned in the answer.
        ticket: Ticket,
        /// The address from `Allocated`.
        address: GlobalAddress,
    },
    /// Home to requester: the memory is freed, and no node can access it any more.
    Freed {
        /// Of the request.
        ticket: Ticket,
    },
    /// Home to requester: the request is refused.
    Refused {
        /// Of the request.
        ticket: Ticket,
        /// Why.
        code: ErrorCode,
    },
    /// To every node: the number of free bytes of the sender.
    FreeBytes {
        /// In whole lines, possibly scattered.
        bytes: u64,
    },
}

impl AllocateMessage {
    /// The class in which it travels.
    pub const fn class(&self) -> Class {
        match self {
            Self::Allocate { .. } | Self::Free { .. } => Class::Request,
            Self::Allocated { .. }
            | Self::Freed { .. }
            | Self::Refused { .. }
            | Self::FreeBytes { .. } => Class::Reply,
        }
    }

    /// Returns the wire form.
    pub fn encode(&self) -> [u8; BODY] {
        let writer = Writer::new();
        match *self {
            Self::Allocate { ticket, bytes, line_size, flags } => {
                let writer = writer.u8(1).u8(line_size.class());
                writer.u8(flags.to_bits()).u8(flags.needs.copies).u64(ticket.0).u64(bytes)
            }
            Self::Allocated { ticket, address, lines } => {
                writer.u8(2).u64(ticket.0).u64(address.to_bits()).u64(lines)
            }
            Self::Free { ticket, address } => writer.u8(3).u64(ticket.0).u64(address.to_bits()),
            Self::Freed { ticket } => writer.u8(4).u64(ticket.0),
            Self::Refused { ticket, code } => writer.u8(5).u64(ticket.0).u16(code.entry().number),
            Self::FreeBytes { bytes } => writer.u8(6).u64(bytes),
        }
        .finish()
    }

    /// Decodes the wire form.
    ///
    /// # Errors
    /// [`Violation`]: no correct peer sends this. Close the link.
    pub fn decode(body: &[u8; BODY]) -> Result<Self, Violation> {
        let mut reader = Reader::new(body);
        let message = match reader.u8()? {
            1 => Self::read_allocate(&mut reader)?,
            2 => Self::Allocated {
                ticket: Ticket(reader.u64()?),
                address: read_address(&mut reader)?,
                lines: reader.u64()?,
            },
            3 => Self::Free { ticket: Ticket(reader.u64()?), address: read_address(&mut reader)? },
            4 => Self::Freed { ticket: Ticket(reader.u64()?) },
            5 => Self::Refused {
                ticket: Ticket(reader.u64()?),
                code: ErrorCode::from_number(reader.u16()?).ok_or(Violation("unknown error"))?,
            },
            6 => Self::FreeBytes { bytes: reader.u64()? },
            _ => return Err(Violation("unknown allocate message")),
        };
        reader.finish()?;
        Ok(message)
    }

    fn read_allocate(reader: &mut Reader<'_>) -> Result<Self, Violation> {
        let line_size = LineSize::from_class(reader.u8()?).ok_or(Violation("unknown line size"))?;
        let flags = AllocateFlags::from_bits(reader.u8()?, reader.u8()?);
        let flags = flags.ok_or(Violation("unknown flags"))?;
        Ok(Self::Allocate { ticket: Ticket(reader.u64()?), bytes: reader.u64()?, line_size, flags })
    }
}

fn read_address(reader: &mut Reader<'_>) -> Result<GlobalAddress, Violation> {
    GlobalAddress::from_bits(reader.u64()?).map_err(|_| Violation("impossible address"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use farside_base::NodeId;

    fn samples() -> [AllocateMessage; 7] {
        let ticket = Ticket(u64::MAX - 1);
        let address = GlobalAddress::new(NodeId(255), LineSize::MAX, 1 << 41).unwrap();
        [
            AllocateMessage::Allocate {
                ticket,
                bytes: 1 << 40,
                line_size: LineSize::MIN,
                flags: AllocateFlags { zeroed: true, directory: true, ..AllocateFlags::default() },
            },
            AllocateMessage::Allocate {
                ticket,
                bytes: 1,
                line_size: LineSize::MAX,
                flags: AllocateFlags {
                    needs: StateNeeds { state: true, copies: 255, survives_power: true },
                    ..AllocateFlags::default()
                },
            },
            AllocateMessage::Allocated { ticket, address, lines: 1 << 34 },
            AllocateMessage::Free { ticket, address },
            AllocateMessage::Freed { ticket },
            AllocateMessage::Refused { ticket, code: ErrorCode::OutOfMemory },
            AllocateMessage::FreeBytes { bytes: u64::MAX },
        ]
    }

    #[test]
    fn bodies_come_back() {
        for message in samples() {
            assert_eq!(AllocateMessage::decode(&message.encode()), Ok(message));
        }
        for code in ErrorCode::ALL {
            let message = AllocateMessage::Refused { ticket: Ticket(1), code: *code };
            assert_eq!(AllocateMessage::decode(&message.encode()), Ok(message));
        }
    }

    #[test]
    fn whatever_is_read_is_what_would_be_written() {
        // Every body is either refused or the one encoding of its message.
        for message in samples() {
            for at in 0..BODY {
                for value in 0..=255 {
                    let mut body = message.encode();
                    body[at] = value;
                    if let Ok(read) = AllocateMessage::decode(&body) {
                        assert_eq!(read.encode(), body, "byte {at} = {value} of {message:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn junk_is_named() {
        let cases: [(usize, u8, &str); 7] = [
            (0, 0, "unknown allocate message"),
            (0, 7, "unknown allocate message"),
            (1, 11, "unknown line size"),
            (2, 16, "unknown flags"),
            (2, 8, "unknown flags"),
            (3, 1, "unknown flags"),
            (BODY - 1, 1, "padding is not zero"),
        ];
        for (at, value, name) in cases {
            let mut body = samples()[0].encode();
            body[at] = value;
            assert_eq!(AllocateMessage::decode(&body), Err(Violation(name)));
        }
    }
}
