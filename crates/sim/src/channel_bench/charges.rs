//! Processor time of facade calls, without that of their ports, by kind of channel.
//!
//! | operation | charge | reason |
//! | --- | --- | --- |
//! | a message given as bytes | a copy of it | into the request, the staging memory or the ring |
//! | a checksum, of `read-ring-inlined` with prefetching | a comparison of the bytes, at both ends | it reads each of them |
//! | an unsuccessful check of a word | a load for each word | the line stays in the cache until it is written |
//! | a received message | a miss for its first line | the receiver reads the message, and the adapters of this machine write to memory, not to caches |
//! | a bell or last word in the same or the next line | no additional charge | a miss also fetches the adjacent line |
//! | a more distant bell or last word | a miss | |
//! | a bell separate from messages | a miss, if the previous check was unsuccessful | otherwise it was known to be ahead |
//! | zeroing a released record | a copy of its bytes | its lines are not in the cache, and are fetched for ownership before they are cleared: clearing cached memory would be twice as fast |
//! | a word of acknowledgement that unblocks the sender | a miss | the adapter wrote it |
//! | a word stored at the adapter | a doorbell | it crosses the bus, as a doorbell does |
//! | a copy into a log | a copy | 001 figure 4 |

use super::{BenchRequest, ChannelCluster};
use crate::fabric::ProcessorCosts;
use crate::stage::Spent;
use farside::channel::{Family, Kind};

/// Two lines: a miss fetches both.
const LINES: u32 = 128;

/// The way in which a receiver detects a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Shows {
    /// It checks a word.
    Word,
    /// It polls a completion: of a receive, or of a READ.
    Completion,
}

/// The local work of the two halves of a kind of channel.
#[derive(Clone, Copy, Debug)]
struct Local {
    shows: Shows,
    /// Bytes of bells in the record.
    bells: u32,
    /// Whether the bell is separate from the message.
    apart: bool,
    /// Whether both ends of a record are read, or only one, with the message adjacent to it.
    both_ends: bool,
    zeroes: bool,
}

const fn local(kind: Kind) -> Local {
    let completion =
        Local { shows: Shows::Completion, bells: 8, apart: false, both_ends: false, zeroes: false };
    let word = Local { shows: Shows::Word, both_ends: true, ..completion };
    match kind {
        Kind::Send
        | Kind::SendShared
        | Kind::SendBufferless
        | Kind::WriteSlotImmediate
        | Kind::WriteSlotReserved
        | Kind::RingImmediate
        | Kind::SharedRingImmediate
        | Kind::ReadSlotDetached
        | Kind::ReadSlotInlined
        | Kind::ReadSlotNotify
        | Kind::ReadSlotIndirect
        | Kind::ReadRingDetached
        | Kind::ReadRingInlined
        | Kind::ReadRingNotify => completion,
        Kind::WriteSlotDetached | Kind::RingDetached => {
            Local { both_ends: false, apart: true, ..word }
        }
        // The bell is the last word; the first line of the message is read too.
        Kind::WriteSlotInlined | Kind::RingInlined => word,
        Kind::RingInlinedZeroing | Kind::SharedRingInlinedZeroing => {
            Local { bells: 16, zeroes: true, ..word }
        }
    }
}

/// The charges of one study.
#[derive(Clone, Copy, Debug)]
pub(super) struct Charges {
    row: Local,
    costs: ProcessorCosts,
    bytes: u32,
    by_slices: bool,
    checksums: bool,
    copies_out: bool,
    integers: bool,
    /// Number of words that the sender stores at its adapter for a message, and the receiver at its adapter.
    device_stores: [u64; 2],
    /// Number of words that a receiver checks to find that there is no message.
    words: u64,
}

impl Charges {
    pub(super) fn new(request: &BenchRequest, cluster: &ChannelCluster, by_slices: bool) -> Self {
        let kind = request.kind;
        let (senders, _) = request.pattern.ends();
        Self {
            row: local(kind),
            costs: cluster.costs,
            bytes: request.bytes(),
            by_slices,
            checksums: kind == Kind::ReadRingInlined && request.prefetch_bytes > 0,
            copies_out: request.copies_out,
            integers: kind == Kind::SendBufferless,
            device_stores: device_stores(request),
            words: if kind.shares_receiver() { 1 } else { u64::from(senders) },
        }
    }

    /// Returns the time before a message is given to the sender.
    pub(super) fn before_send_ns(&self) -> u64 {
        let bytes = u64::from(self.bytes);
        let spent = Spent {
            copied_bytes: if self.by_slices { 0 } else { bytes },
            compared_bytes: if self.checksums { bytes } else { 0 },
            ..Spent::NOTHING
        };
        spent.local_ns(&self.costs) + self.device_stores[0] * self.costs.doorbell_ns
    }

    /// Returns the time to read an arrived word of acknowledgement.
    pub(super) const fn acknowledged_ns(&self) -> u64 {
        self.costs.miss_ns
    }

    /// Whether each poll of the receiver polls its port.
    pub(super) fn polls_port(&self) -> bool {
        self.row.shows == Shows::Completion
    }

    /// Returns the time of an unsuccessful check, without the poll of the port.
    pub(super) fn check_ns(&self) -> u64 {
        match self.row.shows {
            Shows::Word => self.words * self.costs.load_ns,
            Shows::Completion => 0,
        }
    }

    /// Returns the time to receive a message: checking it, and copying it out if requested. `after_unsuccessful`:
    /// whether the previous check was unsuccessful.
    pub(super) fn received_ns(&self, after_unsuccessful: bool) -> u64 {
        let far = self.row.both_ends && self.bytes + self.row.bells > LINES;
        let two = far || self.row.apart && after_unsuccessful;
        let spent = Spent {
            misses: if self.integers { 0 } else { 1 + u64::from(two) },
            loads: if self.polls_port() { 0 } else { self.words },
            compared_bytes: if self.checksums { u64::from(self.bytes) } else { 0 },
            copied_bytes: if self.copies_out { u64::from(self.bytes) } else { 0 },
            ..Spent::NOTHING
        };
        spent.local_ns(&self.costs)
    }

    /// Returns the time before a message is released.
    pub(super) fn before_release_ns(&self) -> u64 {
        let record = u64::from(self.bytes.next_multiple_of(8) + self.row.bells);
        let zeroed =
            Spent { copied_bytes: if self.row.zeroes { record } else { 0 }, ..Spent::NOTHING };
        zeroed.local_ns(&self.costs) + self.device_stores[1] * self.costs.doorbell_ns
    }
}

/// Returns the numbers of words stored at an adapter per message: by the sender, by the receiver.
fn device_stores(request: &BenchRequest) -> [u64; 2] {
    let (head, tail) = (request.device.has_head(), request.device.has_tail());
    match request.kind.family() {
        Family::SharedRing => [0, u64::from(tail)],
        Family::ReadSlot | Family::ReadRing => {
            let bells = matches!(request.kind, Kind::ReadSlotDetached | Kind::ReadRingDetached);
            [u64::from(bells && head), 0]
        }
        Family::SendReceive | Family::WriteSlot | Family::Ring => [0, 0],
    }
}

#[cfg(test)]
mod tests {
    use super::super::{CONNECTX5, Pattern};
    use super::*;
    use farside::channel::DeviceWords;

    fn charges(kind: Kind, bytes: u32, change: impl FnOnce(&mut BenchRequest)) -> Charges {
        let mut request = BenchRequest::new(kind, bytes, Pattern::ManyToOne(4));
        change(&mut request);
        Charges::new(&request, &CONNECTX5, false)
    }

    #[test]
    fn adjacent_bell_is_free_and_distant_bell_costs_a_miss() {
        let near = charges(Kind::RingInlined, 64, |_| ());
        let far = charges(Kind::RingInlined, 1_024, |_| ());
        let costs = CONNECTX5.costs;
        assert_eq!(near.received_ns(true), costs.miss_ns + 4 * costs.load_ns);
        assert_eq!(far.received_ns(true), near.received_ns(true) + costs.miss_ns);
        let apart = charges(Kind::RingDetached, 1_024, |_| ());
        assert_eq!(apart.received_ns(true), apart.received_ns(false) + costs.miss_ns);
        assert_eq!(charges(Kind::SendBufferless, 64, |_| ()).received_ns(true), 0);
    }

    #[test]
    fn copies_and_zeroing_are_charged() {
        let costs = CONNECTX5.costs;
        let ring = charges(Kind::RingInlinedZeroing, 1_000, |_| ());
        assert_eq!(ring.before_send_ns(), 1_000 / costs.copy_bytes_per_ns);
        assert_eq!(ring.before_release_ns(), 1_016_u64.div_ceil(costs.copy_bytes_per_ns));
        assert_eq!(charges(Kind::RingInlined, 1_000, |_| ()).before_release_ns(), 0);
        let kind = Kind::SharedRingInlinedZeroing;
        let tail = charges(kind, 64, |request| request.device = DeviceWords::Tail);
        let head = charges(kind, 64, |request| request.device = DeviceWords::Head);
        let more_ns = tail.before_release_ns() - head.before_release_ns();
        assert_eq!((more_ns, tail.before_send_ns()), (costs.doorbell_ns, head.before_send_ns()));
        let kind = Kind::SharedRingImmediate;
        let log = charges(kind, 1_000, |request| request.copies_out = true);
        let none = charges(kind, 1_000, |_| ());
        assert_eq!(log.received_ns(true) - none.received_ns(true), 100);
        let kind = Kind::ReadRingInlined;
        let checked = charges(kind, 1_000, |request| request.prefetch_bytes = 64);
        assert_eq!(checked.before_send_ns() - charges(kind, 1_000, |_| ()).before_send_ns(), 50);
    }
}
