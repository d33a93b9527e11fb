//! Options and capabilities of a shared-memory fabric.

use farside_base::{AtomicScope, BackPressure, Capabilities, FlushScope, WordScope};
use farside_fabric::Arena;
use std::path::PathBuf;
use std::time::Duration;

/// Most bytes of one SEND, and of bytes that travel in a request.
pub const SEND_BYTES_MAX: u32 = 8192;

/// The longest time for a hello.
const HELLO_TIMEOUT_MAX: Duration = Duration::from_secs(3600);

/// Options of a shared-memory fabric. The two ends of a link may differ in all of them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ShmOptions {
    /// Messages that a link holds in each direction before `ReceiverNotReady`; a power of two from
    /// 16 to 65,536. Each takes 64 bytes.
    pub ring_slots: u32,
    /// Bytes that a link holds in each direction for messages of more than 56 bytes; a power of two
    /// from 64 KiB to 64 MiB. Memory is taken as it is first used.
    pub bulk_bytes: u32,
    /// Most bytes of a region that are populated when it is registered, and when it is imported; at
    /// most half of the machine's available memory. The rest is allocated at first touch, 4 KiB and
    /// some 2 us at a time.
    pub prefault_bytes_max: u64,
    /// Request pages of 2 MiB for regions of at least that size.
    pub huge_pages: bool,
    /// How long `import`, `try_import` and `deregister` wait for a live peer that does not run
    /// (stopped, or starved), before they fail with `System`.
    pub control_timeout: Duration,
    /// How long a connection may be without a hello before it is closed.
    pub hello_timeout: Duration,
    /// The folder of the names of ports: of this user, with mode 700, created if there is none. `None`
    /// for the one that all processes of this user find by the same rule (see the crate's
    /// documentation). Processes with different folders do not find each other.
    pub folder: Option<PathBuf>,
}

impl ShmOptions {
    /// The defaults.
    pub const DEFAULT: Self = Self {
        ring_slots: 256,
        bulk_bytes: 64 << 10,
        prefault_bytes_max: 1 << 30,
        huge_pages: true,
        control_timeout: Duration::from_secs(10),
        hello_timeout: Duration::from_secs(3),
        folder: None,
    };

    /// Returns the name of the first option that is out of its range.
    pub(crate) fn wrong(&self) -> Option<&'static str> {
        if !slots_fit(self.ring_slots) {
            Some("ring_slots")
        } else if !bulk_fits(self.bulk_bytes) {
            Some("bulk_bytes")
        } else if self.hello_timeout.is_zero() || self.hello_timeout > HELLO_TIMEOUT_MAX {
            Some("hello_timeout")
        } else {
            None
        }
    }
}

impl Default for ShmOptions {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// Returns whether a ring may have this many slots; peers are held to the same limit.
pub(crate) fn slots_fit(slots: u32) -> bool {
    slots.is_power_of_two() && (16..=1 << 16).contains(&slots)
}

/// Returns whether a ring may have so much bulk; peers are held to the same.
pub(crate) fn bulk_fits(bytes: u32) -> bool {
    bytes.is_power_of_two() && (64 << 10..=64 << 20).contains(&bytes)
}

// The receiver returns bulk a quarter at a time and a message may have to skip to the start, so the
// largest one fits into the rest at any position of the ring.
const _: () = assert!(SEND_BYTES_MAX * 4 <= 64 << 10);

/// The capabilities of every shared-memory fabric. Bytes of one WRITE are stored in rising order if the
/// processor shows stores in order, so pollers may check for its last word there. Device memory is
/// modelled as a kind of region with a budget of its own: it is ordinary memory.
pub(crate) const CAPABILITIES: Capabilities = Capabilities {
    write: true,
    read: true,
    atomics: AtomicScope::System,
    extended_atomics: true,
    atomic_write: true,
    flush: FlushScope::Visible,
    own_memory: false,
    protected: false,
    send: true,
    immediate: true,
    shared_receive_queue: true,
    message_order: true,
    byte_order: Arena::RISING,
    words: WordScope::Any,
    completion_means_placed: true,
    one_sided: true,
    loads: true,
    sleep: true,
    receiver_not_ready: BackPressure::AtPost,
    inline_bytes_max: SEND_BYTES_MAX,
    send_bytes_max: SEND_BYTES_MAX,
    transfer_bytes_max: u32::MAX as u64,
    slices_max: 16,
    outstanding_max: 1024,
    links_max: crate::layout::LINKS_MAX,
    region_bytes_max: 1 << 40,
    mirrored_regions: true,
    device_bytes_max: 256 << 10,
    device_words: true,
};
