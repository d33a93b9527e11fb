//! Membership messages between members.

use super::burial::Lane;
use super::hello::{ListedMember, decode_memory, encode_memory};
use crate::wire::{BODY, Class, Reader, Violation, Writer};
use farside_base::{Incarnation, NodeId, ViewNumber};

/// How a view differs from the previous one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Change {
    /// The node joined.
    Joined,
    /// The node's process ended.
    Died,
    /// The node was removed, and may be alive.
    Removed,
    /// The node left, after it had handed over everything that it held.
    Left,
}

/// A message of the family `Member`. A view is one change: the node that joined or went.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum MemberMessage {
    /// From the coordinator, or to a node that is becoming it: view `number` differs from the previous one by this
    /// node.
    View {
        /// The view's number.
        number: ViewNumber,
        /// The node that joined or went.
        member: ListedMember,
        /// What happened to it.
        change: Change,
    },
    /// From a node that found every earlier one dead: asks for the views after `number`.
    Takeover {
        /// The last view that the sender knows.
        number: ViewNumber,
    },
    /// Answers `Takeover`, after those views: the sender's last view is `number`.
    Report {
        /// The last view of the sender.
        number: ViewNumber,
        /// As in `Settled`.
        settled: ViewNumber,
    },
    /// To the coordinator: every removal up to this view is settled at the sender, which holds no state of the
    /// removed members.
    Settled {
        /// The view.
        number: ViewNumber,
    },
    /// To the coordinator: the sender has lost this node.
    Lost {
        /// The node.
        node: NodeId,
        /// Its incarnation.
        incarnation: Incarnation,
        /// Its process has ended.
        ended: bool,
    },
    /// To the coordinator: the sender cannot reach this member. From the coordinator: cut it off.
    Suspect {
        /// The node.
        node: NodeId,
        /// Its incarnation.
        incarnation: Incarnation,
    },
    /// From the coordinator: answer once every suspect reported by the coordinator is cut off.
    Vote {
        /// The number of the vote.
        round: u64,
    },
    /// Answers `Vote`.
    Voted {
        /// The number of the vote.
        round: u64,
    },
    /// The sender leaves. It holds nothing of other homes and will send no more requests; this follows everything
    /// that it sent before. Answer with `LeaveHeard`.
    Leave {
        /// Its memory is saved: its number is that of a node with state from now on.
        saved: bool,
        /// There is a directory of named roots in it.
        names: bool,
    },
    /// Answers `Leave`: everything that the leaving node sent before it has been processed.
    LeaveHeard,
    /// The sender has left, with its memory unless that is saved. Every linked member has answered its `Leave`.
    Left,
    /// The sender knows that this node is dead, and has sent everything that it will send in this class because of
    /// it: see [`super::burial`].
    Buried {
        /// The node.
        node: NodeId,
        /// The view that admitted it: its number may be reused.
        born: ViewNumber,
        /// The class in which it travels.
        lane: Lane,
        /// It answers the receiver's own `Buried`, and needs no answer.
        answer: bool,
    },
}

impl MemberMessage {
    /// The class in which it travels. Messages about views share one class, so that they arrive in the order of
    /// sending; `Buried` follows the messages of other machines to which it refers. Handling one never waits for room
    /// to send another, so classes cannot deadlock.
    pub const fn class(&self) -> Class {
        match self {
            Self::View { .. }
            | Self::Takeover { .. }
            | Self::Report { .. }
            | Self::Settled { .. }
            | Self::Lost { .. }
            | Self::Suspect { .. }
            | Self::Vote { .. }
            | Self::Voted { .. }
            | Self::Leave { .. }
            | Self::LeaveHeard
            | Self::Left => Class::Forward,
            Self::Buried { lane, .. } => lane.class(),
        }
    }

    /// Returns the wire form.
    pub fn encode(&self) -> [u8; BODY] {
        let writer = Writer::new();
        match *self {
            Self::View { number, member, change } => writer
                .u8(1)
                .u8(match change {
                    Change::Died => 0,
                    Change::Joined => 1,
                    Change::Left => 2,
                    Change::Removed => 3,
                })
                .u16(encode_memory(member.shared()))
                .u16(member.node.0)
                .u64(number.0)
                .u64(member.born.0)
                .u64(member.incarnation.0)
                .host(member.host),
            Self::Takeover { number } => writer.u8(2).u64(number.0),
            Self::Report { number, settled } => writer.u8(3).u64(number.0).u64(settled.0),
            Self::Lost { node, incarnation, ended } => {
                writer.u8(4).u8(u8::from(ended)).u16(node.0).u64(incarnation.0)
            }
            Self::Leave { saved, names } => writer.u8(5).u8(u8::from(saved)).u8(u8::from(names)),
            Self::Buried { node, born, lane, answer } => {
                let lane = match lane {
                    Lane::Forward => 0,
                    Lane::Reply => 2,
                };
                writer.u8(6).u8(lane | u8::from(answer)).u16(node.0).u64(born.0)
            }
            Self::Suspect { node, incarnation } => writer.u8(7).u16(node.0).u64(incarnation.0),
            Self::Vote { round } => writer.u8(8).u64(round),
            Self::Voted { round } => writer.u8(9).u64(round),
            Self::LeaveHeard => writer.u8(10),
            Self::Left => writer.u8(11),
            Self::Settled { number } => writer.u8(12).u64(number.0),
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
            1 => {
                let change = match reader.u8()? {
                    0 => Change::Died,
                    1 => Change::Joined,
                    2 => Change::Left,
                    3 => Change::Removed,
                    _ => return Err(Violation("unknown change of a view")),
                };
                let shared = decode_memory(reader.u16()?)?;
                let node = NodeId(reader.u16()?);
                let (number, born) = (ViewNumber(reader.u64()?), ViewNumber(reader.u64()?));
                if (number == born) != (change == Change::Joined) || born > number {
                    return Err(Violation("an invalid admitting view"));
                }
                let incarnation = Incarnation(reader.u64()?);
                let member = shared.listed((node, incarnation), born, reader.host()?);
                Self::View { number, member, change }
            }
            2 => Self::Takeover { number: ViewNumber(reader.u64()?) },
            3 => Self::Report {
                number: ViewNumber(reader.u64()?),
                settled: ViewNumber(reader.u64()?),
            },
            4 => {
                let ended = reader.flag("an invalid flag of an ended process")?;
                let (node, incarnation) = (NodeId(reader.u16()?), Incarnation(reader.u64()?));
                Self::Lost { node, incarnation, ended }
            }
            5 => Self::Leave {
                saved: reader.flag("an invalid flag of a saved memory")?,
                names: reader.flag("an invalid flag of names in a saved memory")?,
            },
            6 => {
                let (lane, answer) = match reader.u8()? {
                    0 => (Lane::Forward, false),
                    1 => (Lane::Forward, true),
                    2 => (Lane::Reply, false),
                    3 => (Lane::Reply, true),
                    _ => return Err(Violation("an invalid lane")),
                };
                let node = NodeId(reader.u16()?);
                Self::Buried { node, born: ViewNumber(reader.u64()?), lane, answer }
            }
            7 => Self::Suspect {
                node: NodeId(reader.u16()?),
                incarnation: Incarnation(reader.u64()?),
            },
            8 => Self::Vote { round: reader.u64()? },
            9 => Self::Voted { round: reader.u64()? },
            10 => Self::LeaveHeard,
            11 => Self::Left,
            12 => Self::Settled { number: ViewNumber(reader.u64()?) },
            _ => return Err(Violation("unknown member message")),
        };
        reader.finish()?;
        Ok(message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::net::SocketAddr;
    use farside_base::Generation;

    fn samples() -> [MemberMessage; 19] {
        let (node, incarnation, number) = (NodeId(7), Incarnation(u64::MAX), ViewNumber(1 << 40));
        let host = Some(SocketAddr::from(([10, 1, 2, 3], 7411)));
        let memory = Some(Generation(1_023));
        let view = |change| {
            let born = if change == Change::Joined { number } else { ViewNumber(1) };
            let state = change != Change::Left;
            MemberMessage::View {
                number,
                member: ListedMember {
                    witness: false,
                    node,
                    incarnation,
                    born,
                    host,
                    memory,
                    state,
                    names: change == Change::Joined,
                },
                change,
            }
        };
        let born = number;
        let member = ListedMember {
            node,
            incarnation,
            born,
            host,
            memory: None,
            state: false,
            names: false,
            witness: true,
        };
        let witness = MemberMessage::View { number, member, change: Change::Joined };
        [
            view(Change::Joined),
            view(Change::Died),
            view(Change::Left),
            view(Change::Removed),
            witness,
            MemberMessage::Takeover { number },
            MemberMessage::Report { number, settled: ViewNumber(9) },
            MemberMessage::Settled { number },
            MemberMessage::Lost { node, incarnation, ended: true },
            MemberMessage::Lost { node, incarnation, ended: false },
            MemberMessage::Leave { saved: false, names: false },
            MemberMessage::Leave { saved: true, names: true },
            MemberMessage::LeaveHeard,
            MemberMessage::Left,
            MemberMessage::Buried { node, born: number, lane: Lane::Forward, answer: false },
            MemberMessage::Buried { node, born: number, lane: Lane::Reply, answer: true },
            MemberMessage::Suspect { node, incarnation },
            MemberMessage::Vote { round: 1 << 50 },
            MemberMessage::Voted { round: 3 },
        ]
    }

    #[test]
    fn whatever_is_read_is_what_would_be_written() {
        for message in samples() {
            for at in 0..BODY {
                for value in 0..=255 {
                    let mut body = message.encode();
                    body[at] = value;
                    if let Ok(read) = MemberMessage::decode(&body) {
                        assert_eq!(read.encode(), body, "byte {at} = {value} of {message:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn bodies_come_back_and_junk_does_not() {
        for message in samples() {
            let mut body = message.encode();
            assert_eq!(MemberMessage::decode(&body), Ok(message));
            if matches!(message, MemberMessage::View { .. }) {
                continue; // it has no padding
            }
            body[BODY - 1] = 1;
            assert_eq!(MemberMessage::decode(&body), Err(Violation("padding is not zero")));
        }
        for kind in [0, 13, 255] {
            let body = Writer::new().u8(kind).finish();
            assert_eq!(MemberMessage::decode(&body), Err(Violation("unknown member message")));
        }
        let body = Writer::new().u8(1).u8(4).finish();
        assert_eq!(MemberMessage::decode(&body), Err(Violation("unknown change of a view")));
    }
}
