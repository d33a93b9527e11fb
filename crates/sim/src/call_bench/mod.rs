//! Remote memory calls in virtual time, as modelled in 003 §4: a client, a host with memory, and a processor on the
//! host's adapter that reaches the memory over a local link.
//!
//! The real callers and executors run over the simulated fabric, with adapters that take no time (`NO_TIME`). Only
//! the following takes time:
//!
//! | item and time | source |
//! | --- | --- |
//! | client and host, one-sided: 2.7 us round trip | 003 Figure 2 |
//! | client to the adapter's processor: 1.8 us | 003 §4.1, step 1 |
//! | the adapter's processor to the client: 1.35 us | half of 2.7 us; 003 gives no value. From 0.7 us to 1.7 us the crossover of the middle one of the three is at 4 nodes; at 1.8 us it would be at 4.1 |
//! | scheduling of a call at that processor: 0.5 us | 003 §4 |
//! | round trip from that processor to host memory: 0.6, 1.7 or 3.1 us | 003 Figure 2: NFP6000, LiquidIOII, BlueField-1 |
//! | network: 80 ps a byte | 100 Gb/s |
//! | local link: 72 ps a byte | PCIe 3.0 x16 less headers, as in [`CONNECTX5_ROCE`](crate::fabric::CONNECTX5_ROCE); of BlueField-1 80 ps, since its processor reads through the adapter |
//! | the host's processor: 5 us until it starts a call, 0.1 us an access | chosen: the processor is shared (003 §5.1), and an access is a cache miss |
//!
//! Programs take no other time; the computation of a checksum is free, as in 003 §4.2.

mod charged;
mod document;
mod figures;
mod scene;
mod study;

use crate::fabric::Path;
use std::fmt;

pub use document::document;
pub use figures::{Figure, FigureLine, PRICES, figures};
pub use scene::{CallScene, Counted, NODES_MAX};
pub use study::{CALLS, PHASES, Phase, PhaseTimes, Study};

/// The site at which a call runs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum SimSite {
    /// At the client, by one-sided requests.
    Client,
    /// At the host.
    Host,
    /// At the processor on the host's adapter.
    Nic,
}

impl SimSite {
    /// All sites, in the order of a scene's placement models.
    pub const ALL: [Self; 3] = [Self::Client, Self::Host, Self::Nic];
}

impl fmt::Display for SimSite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Client => "one-sided",
            Self::Nic => "call at the NIC",
            Self::Host => "call at the host",
        })
    }
}

/// An adapter with a processor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Nic {
    /// Its name for tables.
    pub name: &'static str,
    /// Round trip time from its processor to host memory.
    pub host_round_trip_ns: u64,
    /// Busy time per byte of the link between them.
    pub ps_per_byte: u64,
}

/// An adapter with a DMA engine at its processor.
pub const NFP6000: Nic = Nic { name: "NFP6000", host_round_trip_ns: 600, ps_per_byte: 72 };
/// An adapter with a DMA engine at its processor.
pub const LIQUIDIO: Nic = Nic { name: "LiquidIOII", host_round_trip_ns: 1_700, ps_per_byte: 72 };
/// An adapter with a processor that accesses host memory by RDMA.
pub const BLUEFIELD: Nic = Nic { name: "BlueField-1", host_round_trip_ns: 3_100, ps_per_byte: 80 };
/// The three adapters of 003 Figure 2.
pub const NICS: [Nic; 3] = [NFP6000, LIQUIDIO, BLUEFIELD];

/// Round trip time between client and host.
pub const ROUND_TRIP_NS: u64 = 2_700;
/// Latency from the client to the adapter's processor.
pub const TO_NIC_NS: u64 = 1_800;
/// Latency from the adapter's processor to the client.
pub const FROM_NIC_NS: u64 = 1_350;
/// Time until the adapter's processor starts a call.
pub const NIC_START_NS: u64 = 500;
/// Time until a shared processor of the host starts a call.
pub const HOST_START_NS: u64 = 5_000;
/// Time of a memory access of the host's processor.
pub const HOST_ACCESS_NS: u64 = 100;
/// Transmission time per byte at 100 Gb/s.
const NETWORK_PS_PER_BYTE: u64 = 80;

const fn network(latency_ns: u64) -> Path {
    Path { latency_ns, ps_per_byte: NETWORK_PS_PER_BYTE }
}
