//! What is known of the machine whose persistent memory is written.

use crate::canary;

/// A fact that may be unknown.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Default)]
pub enum Known {
    /// The fact holds.
    Yes,
    /// The fact does not hold.
    No,
    /// Not known. No plan relies on it.
    #[default]
    Unknown,
}

/// Facts of a target: its platform and its persistent memory. `farside doctor` at the target finds most of them.
///
/// The default knows nothing, and so permits FLUSH and the program at the target alone.
#[derive(Clone, PartialEq, Eq, Debug, Hash, Default)]
pub struct TargetFacts {
    /// Whether adapters write into the last-level cache (Data Direct I/O). If they do, a READ after a WRITE does not
    /// make it persistent.
    pub ddio: Known,
    /// Whether an adapter writes the bytes of a WRITE to memory, and no processor. Over shared memory, TCP and soft-RoCE a
    /// processor does, into its cache, whatever DDIO is.
    pub adapter_writes: Known,
    /// Whether caches keep their bytes without power (eADR).
    pub caches_persist: Known,
    /// Whether a program at the target stores what messages bring ([`RemoteStore`](super::RemoteStore)).
    pub has_program: bool,
    /// Bytes that the medium writes at once (XPLine); 0 if unknown, and then taken for 256.
    pub media_bytes: u32,
    /// Socket of the memory.
    pub memory_socket: Option<u16>,
    /// Socket of each port of the target's adapters, by the caller's numbering.
    pub port_sockets: Vec<Option<u16>>,
    /// DIMMs of the interleave set; 0 if unknown.
    pub dimms: u32,
    /// Bytes after which the next DIMM follows; 0 if unknown.
    pub interleave_bytes: u32,
}

impl TargetFacts {
    /// The memory of 002 §2.1 and §3: lines of 256 bytes, six DIMMs interleaved by 4 KiB; nothing about its platform.
    pub fn optane() -> Self {
        Self { media_bytes: 256, dimms: 6, interleave_bytes: 4_096, ..Self::default() }
    }

    /// Returns whether bytes that a WRITE has brought to the target's memory system are persistent once a READ behind it
    /// is answered: they are in no cache, or caches persist.
    pub fn read_means_persistent(&self) -> bool {
        let is_unknown = self.ddio == Known::Unknown;
        let is_off = self.ddio == Known::No
            || (is_unknown && canary::mutant!(canary::nodes(), RemoteReadUnknown));
        is_off && self.adapter_writes == Known::Yes || self.caches_persist == Known::Yes
    }

    /// Returns the number of the DIMM that has a byte, counted from a memory that begins at the first DIMM; `None` if
    /// the interleaving is unknown (002 §4.1, H2).
    pub fn dimm_of(&self, offset: u64) -> Option<u32> {
        let stripe = offset.checked_div(u64::from(self.interleave_bytes))?;
        let dimm = stripe.checked_rem(u64::from(self.dimms))?;
        u32::try_from(dimm).ok()
    }

    /// Returns the first port on the socket of the memory; `None` if there is none or a socket is unknown.
    pub fn near_port(&self) -> Option<usize> {
        let socket = self.memory_socket?;
        self.port_sockets.iter().position(|port| *port == Some(socket))
    }
}
