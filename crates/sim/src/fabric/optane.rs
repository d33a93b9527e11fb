//! The cluster of paper 002 (Wei et al., *Characterizing and Optimizing Remote Persistent Memory with RDMA and NVM*,
//! USENIX ATC 2021), §3: Optane DIMMs behind ConnectX-5 of 100 Gb/s; and what its §5 expects next.

use super::hardware::{CONNECTX5_ROCE, HardwareProfile};
use super::locality::SocketCosts;
use super::nvm::NvmProfile;
use super::options::INFINIBAND;
use super::program::ProcessorCosts;
use farside_base::{Capabilities, FlushScope};

/// Six Optane DIMMs of one socket (002 §2.1, §3), as the server's firmware sets them up: DDIO on, caches not
/// persistent.
///
/// A number that comes from one of the paper's own measurements is an input: a figure that only repeats it shows
/// nothing, and `farside reproduce 002` marks it.
///
/// | number | source |
/// | --- | --- |
/// | 6 DIMMs, 4 KiB | 002 §3, §4.1 (H2) |
/// | media lines of 256 bytes, requests of 64 | 002 Table 1 |
/// | 64 lines in the combining buffer | 16 KB: Yang et al., *An Empirical Guide to the Behavior and Use of Scalable Persistent Memory*, FAST 2020, which 002 cites as 59 |
/// | media write 114.4 ns | 002 §3: 52 M lines a second of 6 DIMMs, which is 100 Gb/s of 2^30 bits |
/// | media read 35.8 ns, request for a read 8.9 ns | 002 §2.1: 320 Gb/s, of 256 and of 64 bytes at once |
/// | request for a write 20 ns | chosen, below the 28.6 ns that 100 Gb/s leave |
/// | change between reads and writes 79 ns | 002 §4.2: 31 M writes a second of 16 bytes, each with a read. An input |
/// | queue of 96 writes a DIMM | chosen above the 64 of a page, so that one stream of rising addresses reaches all DIMMs (002 Figure 11a) |
/// | 16 KiB posted by an adapter | chosen |
/// | load 271 ns, DRAM 82 ns | 002 §3, footnote 6 |
/// | non-temporal store 90 ns | Yang et al., as above |
/// | 1,024 lines cached for adapters | 002 Figure 11b: twice as many bytes on the media, from 64 KB on (§4.1). An input |
/// | 5,632 lines cached for stores | the same share of all 11 ways of the cache, of which DDIO writes 2 (Farshin et al., which 002 cites as 13) |
/// | 4 threads a DIMM, 3.7 % for each further one | 002 Figure 10a: 37 % less with 20 threads than with 4. An input: the paper leaves the cause open |
/// | crossing 52 ns a read, 13.4 ns a write | 002 §3: 15 M/s of 16 bytes, and 38 % of the bandwidth with 2,048 bytes. Inputs |
pub const OPTANE_NVM: NvmProfile = NvmProfile {
    dimms: 6,
    interleave_bytes: 4_096,
    media_bytes: 256,
    buffer_lines: 64,
    queue_lines: 96,
    posted_bytes: 16 << 10,
    request_read_ps: 8_900,
    request_write_ps: 20_000,
    switch_ps: 79_000,
    media_read_ps: 35_800,
    media_write_ps: 114_440,
    load_ns: 271,
    dram_load_ns: 82,
    store_ns: 90,
    adapter_cache_lines: 1_024,
    store_cache_lines: 5_632,
    writers_free: 4,
    writer_per_mille: 37,
    crossing_read_ps: 52_000,
    crossing_write_ps: 13_400,
    ddio: true,
    caches_persist: false,
};

/// The cluster of 002 §3: ConnectX-5 InfiniBand of 100 Gb/s, one switch, [`OPTANE_NVM`] at each socket.
///
/// | number | source |
/// | --- | --- |
/// | wire 80 ps/B, 82 bytes a packet | 100 Gb/s; 002 §4.2: 37 M WRITEs a second of 256 bytes to DRAM, an input. Headers alone are 42 |
/// | PCIe read 600 ns | as [`CONNECTX5_ROCE`]; 002 §3 says about 1,000 ns, with which one request takes more than the 2 us of its §4.3 |
/// | receive engine 15 ns, acknowledgement 2 ns, receive 1 ns, completion entry 0 | chosen to let the 54 M messages a second of 002 §4.1 through, of which each answer is acknowledged; processors limit them then |
/// | crossing of sockets 70 ns, 48 ps/B | latency as [`CONNECTX3_IB`](super::CONNECTX3_IB); UPI of 10.4 GT/s, 20.8 GB/s a direction |
/// | everything else | as [`CONNECTX5_ROCE`] |
pub const OPTANE_CX5: HardwareProfile = HardwareProfile {
    packet_header_bytes: 82,
    receive_ns: 15,
    packet_ns: 2,
    receive_request_ns: 1,
    completion_ns: 0,
    sockets: SocketCosts { crossing_ns: 70, read_busy_ns: 0, write_busy_ns: 0, ps_per_byte: 48 },
    nvm: Some(OPTANE_NVM),
    ..CONNECTX5_ROCE
};

/// One thread of the Xeon Gold 5215M of 002 §3, 2.5 GHz, 10 cores of two threads.
///
/// Chosen to answer a message in 370 ns, so that 20 threads answer 54 M a second (002 §4.1): the doorbell is most of
/// it, as in [`EPYC_7742`](super::EPYC_7742). A miss 82 ns (002 §3, footnote 6).
pub const XEON_5215M: ProcessorCosts = ProcessorCosts {
    post_ns: 35,
    doorbell_ns: 120,
    poll_ns: 20,
    completion_ns: 33,
    receive_ns: 27,
    receive_post_ns: 27,
    arm_ns: 80,
    wake_ns: 4_000,
    load_ns: 2,
    miss_ns: 82,
    copy_bytes_per_ns: 8,
    zero_bytes_per_ns: 16,
    compare_bytes_per_ns: 16,
};

/// What the adapters of 002 offer: no FLUSH.
pub const VERBS_CONNECTX5: Capabilities = Capabilities { flush: FlushScope::None, ..INFINIBAND };

/// An adapter with IBTA annex A19: FLUSH to visibility and to persistence, the *one-sided commit* that 002 §5 cites, and
/// ATOMIC WRITE.
pub const VERBS_FLUSH: Capabilities =
    Capabilities { flush: FlushScope::Persistent, atomic_write: true, ..INFINIBAND };

/// The next generation of 002 §5: a quarter more bandwidth (its reference 21), and caches in the persistent domain
/// (its reference 4).
pub const NEXT_NVM: NvmProfile = NvmProfile {
    request_read_ps: OPTANE_NVM.request_read_ps * 4 / 5,
    request_write_ps: OPTANE_NVM.request_write_ps * 4 / 5,
    switch_ps: OPTANE_NVM.switch_ps * 4 / 5,
    media_read_ps: OPTANE_NVM.media_read_ps * 4 / 5,
    media_write_ps: OPTANE_NVM.media_write_ps * 4 / 5,
    caches_persist: true,
    ..OPTANE_NVM
};

/// Adapters of 200 Gb/s (002 §5, its reference 3) with [`OPTANE_NVM`]: wire, bus and engines twice as fast as those of
/// [`OPTANE_CX5`], latencies unchanged.
pub const ADAPTERS_200G: HardwareProfile = HardwareProfile {
    pcie_ps_per_byte: OPTANE_CX5.pcie_ps_per_byte / 2,
    wire_ps_per_byte: OPTANE_CX5.wire_ps_per_byte / 2,
    send_ns: OPTANE_CX5.send_ns / 2,
    link_send_ns: OPTANE_CX5.link_send_ns / 2,
    receive_ns: OPTANE_CX5.receive_ns / 2,
    packet_ns: OPTANE_CX5.packet_ns / 2,
    ..OPTANE_CX5
};

/// A memory behind CXL with a load of 200 ns and 32 GB/s, in the persistent domain: lines of 64 bytes, so nothing is
/// amplified. Not from the paper; both numbers are chosen as those of a device of 16 lanes of PCIe 4.0.
pub const CXL_NVM: NvmProfile = NvmProfile {
    dimms: 1,
    media_bytes: 64,
    buffer_lines: 256,
    queue_lines: 96,
    request_read_ps: 2_000,
    request_write_ps: 2_000,
    switch_ps: 0,
    media_read_ps: 2_000,
    media_write_ps: 2_000,
    load_ns: 200,
    store_ns: 90,
    writers_free: 64,
    writer_per_mille: 0,
    ..OPTANE_NVM
};
