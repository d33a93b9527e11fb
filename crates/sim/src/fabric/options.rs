//! The options of a simulated network: declared capabilities, and the faults and delays within them.

use super::hardware::HardwareProfile;
use farside_base::Random;
use farside_base::{AtomicScope, BackPressure, Capabilities, FlushScope, WordScope};
use farside_fabric::Arena;
use std::fmt;

/// A reliable connection of an InfiniBand adapter: order within a link, atomics only against the same adapter, and
/// WRITEs that may complete before the target sees them.
pub const INFINIBAND: Capabilities = Capabilities {
    write: true,
    read: true,
    atomics: AtomicScope::Adapter,
    extended_atomics: true,
    atomic_write: false,
    flush: FlushScope::None,
    own_memory: false,
    protected: false,
    send: true,
    immediate: true,
    shared_receive_queue: true,
    message_order: true,
    byte_order: true,
    words: WordScope::Aligned,
    completion_means_placed: false,
    one_sided: true,
    loads: false,
    sleep: true,
    receiver_not_ready: BackPressure::Retried,
    inline_bytes_max: 220,
    send_bytes_max: 1 << 20,
    transfer_bytes_max: 1 << 30,
    slices_max: 16,
    outstanding_max: 256,
    links_max: 1 << 16,
    region_bytes_max: 1 << 40,
    mirrored_regions: Arena::MIRRORS,
    device_bytes_max: 256 << 10,
    device_words: true,
};

/// Processes of one machine with shared memory.
pub const SHARED_MEMORY: Capabilities = Capabilities {
    atomics: AtomicScope::System,
    words: WordScope::Any,
    completion_means_placed: true,
    receiver_not_ready: BackPressure::AtPost,
    loads: true,
    ..INFINIBAND
};

/// An adapter with relaxed ordering: requests of a link overtake each other.
pub const UNORDERED: Capabilities = Capabilities {
    atomics: AtomicScope::None,
    extended_atomics: false,
    message_order: false,
    byte_order: false,
    ..INFINIBAND
};

/// A range of delays in nanoseconds of virtual time, both ends included.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DelayRange {
    /// Minimum.
    pub min_ns: u64,
    /// Maximum; not less than `min_ns`.
    pub max_ns: u64,
}

impl DelayRange {
    /// The zero delay.
    pub const ZERO: Self = Self::new(0, 0);

    /// Creates the range between two delays, given in either order.
    pub const fn new(min_ns: u64, max_ns: u64) -> Self {
        if min_ns <= max_ns {
            Self { min_ns, max_ns }
        } else {
            Self { min_ns: max_ns, max_ns: min_ns }
        }
    }
}

impl fmt::Display for DelayRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}..{}", self.min_ns, self.max_ns)
    }
}

/// The settings of a [`SimNet`](super::SimNet). `Display` prints all of them on one line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SimOptions {
    /// The declared capabilities. All behaviour that they permit may happen.
    pub capabilities: Capabilities,
    /// Time from posting, or from the start of the previous request, until the adapter starts a request.
    pub issue_ns: DelayRange,
    /// Time from the start of a request until its arrival at the other adapter.
    pub flight_ns: DelayRange,
    /// Time until one piece of a request is read from or written to memory.
    pub place_ns: DelayRange,
    /// Time from the answer of the other adapter until its arrival.
    pub response_ns: DelayRange,
    /// Time of connecting, accepting and refusing.
    pub control_ns: DelayRange,
    /// Time from a death or closed link until the survivor's adapter detects it.
    pub loss_ns: DelayRange,
    /// Number of delays in a thousand that are stretched by `straggler_factor`.
    pub straggler_per_mille: u32,
    /// Factor by which stragglers are stretched.
    pub straggler_factor: u64,
    /// Whether READs and atomics are ordered with the other requests of a link, without `WorkFlags::fence` on later
    /// ones. A reliable connection does not guarantee this (IBTA 10.8.3.3); a fabric that executes requests at once
    /// does.
    pub reads_in_order: bool,
    /// Time that a SEND waits for a receive before it fails (`BackPressure::Retried`); `None` if it waits forever.
    pub receiver_not_ready_ns: Option<u64>,
    /// Maximum number of pieces of one transfer, cut between 64-byte lines.
    pub pieces_max: usize,
    /// Performs a WRITE as a request to READ, as in 1RMA: it is sent without its bytes, the target reads them from the
    /// requester's memory, and it completes when they are in memory.
    pub write_by_read: bool,
    /// Computes delays from these costs instead of drawing them: one schedule, legal for the capabilities. Of the
    /// delays above, only `control_ns` and `loss_ns` apply, with their mean; nothing straggles, and each message
    /// takes effect in one piece.
    pub hardware: Option<HardwareProfile>,
    /// Makes every node a separate host with its own address and names, which may become unreachable. A node detects
    /// the silence of a peer within this time. `None` if all nodes are on one machine.
    pub silence_ns: Option<u64>,
    /// Number of transcript lines that are kept; the fingerprint covers all.
    pub transcript_lines: usize,
}

impl SimOptions {
    /// Creates options with the declared capabilities and delays like those of a rack, in order except for
    /// stragglers.
    pub const fn new(capabilities: Capabilities) -> Self {
        Self {
            capabilities,
            issue_ns: DelayRange::new(50, 300),
            flight_ns: DelayRange::new(300, 2_000),
            place_ns: DelayRange::new(10, 500),
            response_ns: DelayRange::new(300, 2_000),
            control_ns: DelayRange::new(1_000, 50_000),
            loss_ns: DelayRange::new(1_000, 1_000_000),
            straggler_per_mille: 20,
            straggler_factor: 30,
            reads_in_order: false,
            receiver_not_ready_ns: None,
            pieces_max: 8,
            write_by_read: false,
            hardware: None,
            silence_ns: None,
            transcript_lines: 4_096,
        }
    }

    /// Creates options with the declared capabilities on that hardware.
    pub const fn on_hardware(capabilities: Capabilities, hardware: HardwareProfile) -> Self {
        Self { hardware: Some(hardware), ..Self::new(capabilities) }
    }

    /// Draws delays and fault rates from `seed`, each stage sometimes slow and sometimes fast. The capabilities are
    /// unchanged.
    pub fn draw(seed: u64, capabilities: Capabilities) -> Self {
        let mut random = Random::new(seed ^ 0x006f_7074_696f_6e73);
        let mut range = |scales: &[u64]| {
            let scale = *random.pick(scales);
            DelayRange::new(random.below(scale / 2 + 1), scale)
        };
        let stage = [0, 10, 300, 3_000, 100_000];
        let options = Self {
            issue_ns: range(&stage),
            flight_ns: range(&stage),
            place_ns: range(&stage),
            response_ns: range(&stage),
            control_ns: range(&[0, 1_000, 100_000]),
            loss_ns: range(&[0, 10_000, 1_000_000]),
            ..Self::new(capabilities)
        };
        Self {
            straggler_per_mille: *random.pick(&[0, 10, 100]),
            straggler_factor: *random.pick(&[5, 50, 1_000]),
            pieces_max: *random.pick(&[2, 4, 8, 64]),
            ..options
        }
    }
}

impl fmt::Display for SimOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let has = &self.capabilities;
        write!(
            f,
            "atomics={:?} extended={} flush={:?} immediate={} order={} bytes={} words={:?} placed={} one_sided={} rnr={:?} ",
            has.atomics,
            u8::from(has.extended_atomics),
            has.flush,
            u8::from(has.immediate),
            u8::from(has.message_order),
            u8::from(has.byte_order),
            has.words,
            u8::from(has.completion_means_placed),
            u8::from(has.one_sided),
            has.receiver_not_ready,
        )?;
        write!(
            f,
            "issue={} flight={} place={} response={} control={} loss={} ",
            self.issue_ns,
            self.flight_ns,
            self.place_ns,
            self.response_ns,
            self.control_ns,
            self.loss_ns,
        )?;
        write!(
            f,
            "stragglers={}x{} reads_in_order={} rnr_ns={:?} pieces={}",
            self.straggler_per_mille,
            self.straggler_factor,
            u8::from(self.reads_in_order),
            self.receiver_not_ready_ns,
            self.pieces_max,
        )?;
        write!(f, " write_by_read={}", u8::from(self.write_by_read))?;
        match &self.hardware {
            Some(hardware) => write!(f, " hardware: {hardware}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drawn_options_fit_one_line_and_repeat() {
        let line = SimOptions::draw(5, INFINIBAND).to_string();
        assert_eq!(line.lines().count(), 1);
        assert_eq!(line, SimOptions::draw(5, INFINIBAND).to_string());
        assert_ne!(line, SimOptions::draw(6, INFINIBAND).to_string());
    }
}
