//! Table 2 of paper 001: as printed in the paper, and as measured here.
//!
//! `crates/sim/tests/channel_table.rs` measures every cell on the simulated fabric with default options: counts and
//! memory from the requests posted and the memory registered, order by weakening guarantees until messages are lost
//! or corrupted. It fails if a cell of [`MEASURED`] differs; [`DEVIATIONS`] gives the reason for each cell that
//! differs from the paper, and the same test fails if a reason is missing or superfluous.

use super::Kind;
use std::fmt;

/// A number of half round trips or requests.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Count {
    /// Exactly this number.
    Exactly(u32),
    /// This number, or more if a bell must be fetched again or space awaited.
    AtLeast(u32),
}

impl Count {
    /// Returns the number, or the minimum.
    pub const fn least(self) -> u32 {
        match self {
            Self::Exactly(count) | Self::AtLeast(count) => count,
        }
    }
}

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            Self::Exactly(count) => count.to_string(),
            Self::AtLeast(count) => format!(">={count}"),
        };
        f.pad(&text)
    }
}

/// Whether a channel has a feature.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Feature {
    /// Yes.
    Yes,
    /// No.
    No,
    /// As its second channel (note a of the table).
    SecondChannel,
    /// Not applicable.
    NotApplicable,
}

impl Feature {
    /// Whether the feature is available.
    pub const fn can_be_had(self) -> bool {
        !matches!(self, Self::No)
    }
}

impl fmt::Display for Feature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Yes => "yes",
            Self::No => "no",
            Self::SecondChannel => "yes/no",
            Self::NotApplicable => "n/a",
        })
    }
}

/// How memory grows with the number of peers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Growth {
    /// Independent of the peers: O(1).
    Constant,
    /// Proportional to the peers: O(N).
    Linear,
}

impl fmt::Display for Growth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Constant => "O(1)",
            Self::Linear => "O(N)",
        })
    }
}

/// What must be ordered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    /// Nothing.
    Nothing,
    /// Messages of a link.
    Messages,
    /// The bytes of a message.
    Bytes,
    /// Both.
    MessagesAndBytes,
    /// As required by the second channel.
    SecondChannel,
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Nothing => "no",
            Self::Messages => "messages",
            Self::Bytes => "bytes",
            Self::MessagesAndBytes => "messages, bytes",
            Self::SecondChannel => "no/yes",
        })
    }
}

/// The request kinds that carry messages: SEND, WRITE, READ, atomics.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Requests {
    /// SEND.
    pub send: bool,
    /// WRITE.
    pub write: bool,
    /// READ.
    pub read: bool,
    /// Atomics.
    pub atomic: bool,
}

impl fmt::Display for Requests {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kinds = [
            (self.send, "send"),
            (self.write, "write"),
            (self.read, "read"),
            (self.atomic, "atomic"),
        ];
        let names: Vec<&str> =
            kinds.iter().filter(|(has, _)| *has).map(|(_, name)| *name).collect();
        f.pad(&names.join(", "))
    }
}

/// A row of the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Row {
    /// The kind of channel.
    pub kind: Kind,
    /// From the call of the sender until the receiver has the message; if the receiver polls by READ, from its
    /// first request.
    pub half_round_trips: Count,
    /// Requests that the sender posts per message.
    pub sender_requests: Count,
    /// Requests that the receiver posts per message.
    pub receiver_requests: Count,
    /// Whether the receiver can sleep until a message arrives.
    pub blocking: Feature,
    /// Whether a message is sent in place.
    pub zero_copy_send: Feature,
    /// Whether the initiator of the transfer can choose the destination.
    pub zero_copy_receive: Feature,
    /// Whether a short message takes less memory than a long one.
    pub variable_size: Feature,
    /// Memory at the sender of many receivers.
    pub memory_one_to_many: Growth,
    /// Memory at the receiver of many senders.
    pub memory_many_to_one: Growth,
    /// The request kinds that carry messages.
    pub requests: Requests,
    /// What must be ordered.
    pub order: Order,
}

const SEND: Requests = Requests { send: true, write: false, read: false, atomic: false };
const WRITE: Requests = Requests { send: false, write: true, read: false, atomic: false };
const READ: Requests = Requests { send: false, write: false, read: true, atomic: false };
const WRITE_ATOMIC: Requests = Requests { send: false, write: true, read: false, atomic: true };

use Count::{AtLeast, Exactly};
use Feature::{No, NotApplicable, SecondChannel, Yes};
use Growth::{Constant, Linear};

macro_rules! rows {
    ($($kind:ident $trips:expr, $sender:expr, $receiver:expr, $blocking:ident, $send:ident $receive:ident
        $variable:ident, $one:ident $many:ident, $requests:expr, $order:ident;)*) => {
        [$(Row {
            kind: Kind::$kind,
            half_round_trips: $trips,
            sender_requests: $sender,
            receiver_requests: $receiver,
            blocking: $blocking,
            zero_copy_send: $send,
            zero_copy_receive: $receive,
            variable_size: $variable,
            memory_one_to_many: $one,
            memory_many_to_one: $many,
            requests: $requests,
            order: Order::$order,
        },)*]
    };
}

/// The table as printed in the paper.
#[rustfmt::skip]
pub const PAPER: [Row; 20] = rows! {
    Send                     Exactly(1), Exactly(1), Exactly(0), Yes,           Yes No  No,  Constant Linear,   SEND, Nothing;
    SendShared               Exactly(1), Exactly(1), Exactly(0), Yes,           Yes No  No,  Constant Constant, SEND, Nothing;
    SendBufferless           Exactly(1), Exactly(1), Exactly(0), Yes,           NotApplicable NotApplicable NotApplicable, Constant Constant, SEND, Nothing;
    WriteSlotDetached        Exactly(1), Exactly(2), Exactly(0), SecondChannel, Yes Yes No,  Constant Linear,   WRITE, Messages;
    WriteSlotInlined         Exactly(1), Exactly(1), Exactly(0), No,            Yes Yes No,  Constant Linear,   WRITE, Bytes;
    WriteSlotImmediate       Exactly(1), Exactly(1), Exactly(0), Yes,           Yes Yes No,  Constant Linear,   WRITE, Nothing;
    WriteSlotReserved        Exactly(3), AtLeast(2), Exactly(1), SecondChannel, Yes Yes No,  Constant Constant, WRITE, SecondChannel;
    RingDetached             Exactly(1), Exactly(2), Exactly(0), No,            Yes No  Yes, Constant Linear,   WRITE, Messages;
    RingImmediate            Exactly(1), Exactly(1), Exactly(0), Yes,           Yes No  Yes, Constant Linear,   WRITE, Nothing;
    RingInlinedZeroing       Exactly(1), Exactly(1), Exactly(0), No,            Yes No  Yes, Constant Linear,   WRITE, Bytes;
    RingInlined              Exactly(1), Exactly(1), Exactly(0), No,            Yes No  Yes, Constant Linear,   WRITE, MessagesAndBytes;
    SharedRingImmediate      Exactly(3), AtLeast(2), Exactly(0), Yes,           Yes No  Yes, Constant Constant, WRITE_ATOMIC, Nothing;
    SharedRingInlinedZeroing Exactly(3), AtLeast(2), Exactly(0), No,            Yes No  Yes, Constant Constant, WRITE_ATOMIC, Bytes;
    ReadSlotDetached         AtLeast(4), Exactly(0), AtLeast(2), No,            Yes Yes Yes, Constant Constant, READ, Nothing;
    ReadSlotInlined          AtLeast(2), Exactly(0), AtLeast(1), No,            Yes Yes No,  Constant Constant, READ, Nothing;
    ReadSlotNotify           Exactly(3), Exactly(1), Exactly(1), SecondChannel, Yes Yes Yes, Constant Constant, READ, Nothing;
    ReadSlotIndirect         Exactly(2), Exactly(1), Exactly(1), SecondChannel, Yes Yes No,  Constant Constant, WRITE, SecondChannel;
    ReadRingDetached         AtLeast(4), Exactly(0), AtLeast(2), No,            No  Yes Yes, Constant Constant, READ, Nothing;
    ReadRingInlined          AtLeast(4), Exactly(0), AtLeast(2), No,            No  Yes Yes, Constant Constant, READ, Nothing;
    ReadRingNotify           Exactly(3), Exactly(1), Exactly(1), SecondChannel, No  Yes Yes, Constant Constant, READ, Nothing;
};

const SEND_WRITE: Requests = Requests { send: true, write: true, read: false, atomic: false };
const SEND_READ: Requests = Requests { send: true, write: false, read: true, atomic: false };

/// The table as measured.
#[rustfmt::skip]
pub const MEASURED: [Row; 20] = rows! {
    Send                     Exactly(1), Exactly(1), Exactly(0), Yes,           Yes No  No,  Constant Linear,   SEND, Nothing;
    SendShared               Exactly(1), Exactly(1), Exactly(0), Yes,           Yes No  No,  Constant Constant, SEND, Nothing;
    SendBufferless           Exactly(1), Exactly(1), Exactly(0), Yes,           NotApplicable NotApplicable NotApplicable, Constant Constant, SEND, Nothing;
    WriteSlotDetached        Exactly(1), Exactly(2), Exactly(0), SecondChannel, Yes Yes No,  Constant Linear,   WRITE, Messages;
    WriteSlotInlined         Exactly(1), Exactly(1), Exactly(0), No,            Yes Yes No,  Constant Linear,   WRITE, Bytes;
    WriteSlotImmediate       Exactly(1), Exactly(1), Exactly(0), Yes,           Yes Yes No,  Constant Linear,   WRITE, Nothing;
    WriteSlotReserved        Exactly(3), AtLeast(2), Exactly(1), SecondChannel, Yes Yes No,  Constant Constant, SEND_WRITE, SecondChannel;
    RingDetached             Exactly(1), Exactly(2), Exactly(0), No,            Yes No  Yes, Constant Linear,   WRITE, Messages;
    RingImmediate            Exactly(1), Exactly(1), Exactly(0), Yes,           Yes No  Yes, Constant Linear,   WRITE, Nothing;
    RingInlinedZeroing       Exactly(1), Exactly(1), Exactly(0), No,            Yes No  Yes, Constant Linear,   WRITE, Bytes;
    RingInlined              Exactly(1), Exactly(1), Exactly(0), No,            Yes No  Yes, Constant Linear,   WRITE, MessagesAndBytes;
    SharedRingImmediate      Exactly(3), AtLeast(2), Exactly(0), Yes,           Yes No  Yes, Linear Constant,   WRITE_ATOMIC, Nothing;
    SharedRingInlinedZeroing Exactly(3), AtLeast(2), Exactly(0), No,            Yes No  Yes, Linear Constant,   WRITE_ATOMIC, Bytes;
    ReadSlotDetached         AtLeast(4), Exactly(0), AtLeast(2), No,            Yes Yes Yes, Constant Linear,   READ, Nothing;
    ReadSlotInlined          AtLeast(2), Exactly(0), AtLeast(1), No,            Yes Yes No,  Constant Linear,   READ, Nothing;
    ReadSlotNotify           Exactly(3), Exactly(1), Exactly(1), SecondChannel, Yes Yes Yes, Constant Linear,   SEND_READ, Nothing;
    ReadSlotIndirect         Exactly(2), Exactly(1), Exactly(1), SecondChannel, Yes Yes No,  Constant Linear,   WRITE, SecondChannel;
    ReadRingDetached         AtLeast(4), Exactly(0), AtLeast(2), No,            Yes Yes Yes, Constant Linear,   READ, Nothing;
    ReadRingInlined          AtLeast(4), Exactly(0), AtLeast(2), No,            Yes Yes Yes, Constant Linear,   READ, Nothing;
    ReadRingNotify           Exactly(3), Exactly(1), Exactly(1), SecondChannel, Yes Yes Yes, Constant Linear,   SEND_READ, Nothing;
};

/// A column of the table, by field name.
pub type Column = &'static str;

/// Why a cell differs from the paper.
#[rustfmt::skip]
pub const DEVIATIONS: &[(Kind, Column, &str)] = &[
    (Kind::WriteSlotReserved, "requests", SECOND),
    (Kind::SharedRingImmediate, "memory_one_to_many", STAGED),
    (Kind::SharedRingInlinedZeroing, "memory_one_to_many", STAGED),
    (Kind::ReadSlotDetached, "memory_many_to_one", FETCHED),
    (Kind::ReadSlotInlined, "memory_many_to_one", FETCHED),
    (Kind::ReadSlotNotify, "memory_many_to_one", FETCHED),
    (Kind::ReadSlotNotify, "requests", SECOND),
    (Kind::ReadSlotIndirect, "memory_many_to_one", LANDING),
    (Kind::ReadRingDetached, "zero_copy_send", LOAN),
    (Kind::ReadRingDetached, "memory_many_to_one", FETCHED),
    (Kind::ReadRingInlined, "zero_copy_send", LOAN),
    (Kind::ReadRingInlined, "memory_many_to_one", FETCHED),
    (Kind::ReadRingNotify, "zero_copy_send", LOAN),
    (Kind::ReadRingNotify, "memory_many_to_one", FETCHED),
    (Kind::ReadRingNotify, "requests", SECOND),
];

const SECOND: &str = "The requests of the second channel are counted too: by default it is a \
    bufferless one, so SENDs are added to the requests of the paper's cell, which marks it with \
    note a.";
const STAGED: &str = "Each of the sender's halves keeps a staging buffer, since a \
    message waits there for its FETCH_ADD; a program that sends slices of registered memory uses none \
    of it.";
const LANDING: &str = "Each sender writes into a separate area at the receiver, so that one slow \
    sender does not delay others; the paper's receiver lends one area to one sender at a time.";
const FETCHED: &str = "By default the receiver keeps memory to fetch messages into for each of its \
    senders. With `Options::offers_only` it fetches only into memory of the program's choice and keeps \
    none, which is the paper's cell.";
const LOAN: &str = "The ring lends the slot of the next message, so that a program can build it \
    where the readers fetch it; the paper's sender copies it there.";

/// Returns the measured row of a channel.
pub fn measured(kind: Kind) -> &'static Row {
    let found = MEASURED.iter().find(|row| row.kind == kind);
    // Every kind has a row: the test of the table checks it.
    found.unwrap_or(&MEASURED[0])
}
