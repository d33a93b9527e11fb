//! The layout of memory shared by processes. Part of the protocol between processes: a change here is a
//! new [`VERSION`].
//!
//! Three kinds of shared memory exist in addition to the regions, each a memfd of its own:
//!
//! | memory | one a | written by | mapped by peers | holds |
//! | --- | --- | --- | --- | --- |
//! | board | fabric | its fabric | read-only | the keys of its regions, in-flight words of its ports |
//! | bells | fabric | every peer | writable | the sleep word of each of its ports |
//! | link | end of a link | that end | read-only | what it sends, and how much it has received |
//!
//! Only the bells have more than one writer, so a faulty process damages only its own links.

/// Number of the protocol between two processes: layouts, control messages, key and sleep rules.
pub(crate) const VERSION: u16 = 3;

/// Bytes of a cache line and of a slot of a ring.
pub(crate) const LINE: u64 = 64;

/// Ports of one fabric at a time: each has a line on the board and one among the bells.
pub(crate) const PORTS_MAX: u32 = 64;

/// Regions of one fabric at a time; their numbers are drawn from a far larger space.
pub(crate) const REGIONS_MAX: u32 = 4096;

/// Links of a port at a time.
pub(crate) const LINKS_MAX: u32 = 1024;

/// The board: a line for each port, then a key word for each region.
pub(crate) mod board {
    use super::{LINE, PORTS_MAX, REGIONS_MAX};

    /// Odd while port `port` executes requests, even otherwise.
    pub(crate) const fn in_flight(port: u32) -> u64 {
        port as u64 * LINE
    }

    /// Returns the key of region number `place`, or zero if there is none.
    pub(crate) const fn key(place: u32) -> u64 {
        PORTS_MAX as u64 * LINE + place as u64 * 8
    }

    /// Bytes of it.
    pub(crate) const BYTES: u64 = key(REGIONS_MAX);
}

/// The bells: a line for each port, whose first 32 bits are its sleep word.
pub(crate) mod bells {
    use super::{LINE, PORTS_MAX};

    /// Returns the sleep word of port `port`.
    pub(crate) const fn word(port: u32) -> u64 {
        port as u64 * LINE
    }

    /// Bytes of them.
    pub(crate) const BYTES: u64 = word(PORTS_MAX);
}

/// One end's link memory: its counts of received slots and bulk, its state, the slots, the bulk.
pub(crate) mod link {
    use super::LINE;

    /// Messages that this end has taken from the other end's slots.
    pub(crate) const SLOTS_TAKEN: u64 = 0;
    /// Bytes, padding included, that it has taken from the other end's bulk.
    pub(crate) const BULK_TAKEN: u64 = 8;
    /// Not zero when this end found the ring full and waits for room.
    pub(crate) const BLOCKED: u64 = LINE;
    /// Not zero when this end has closed the link: no request of the other end runs any more.
    pub(crate) const CLOSED: u64 = 2 * LINE;
    /// First slot.
    pub(crate) const SLOTS: u64 = 4096;
}

const _: () = assert!(board::BYTES.is_multiple_of(4096) && bells::BYTES.is_multiple_of(4096));
const _: () = assert!(link::CLOSED + 8 <= link::SLOTS);
