//! The cluster of paper 000 (*Thinking More about RDMA Memory Semantics*), §III: dual-port ConnectX-3 of 40 Gb/s in
//! machines of two sockets.

use super::hardware::HardwareProfile;
use super::locality::{AdapterCaches, SocketCosts};
use super::options::INFINIBAND;
use super::program::ProcessorCosts;
use farside_base::Capabilities;

/// The cluster of 000 §III: ConnectX-3 of 40 Gb/s, an InfiniScale IV switch, two E5-2640 v2 a machine.
///
/// A number that comes from one of the paper's own measurements is an input: a figure that only repeats it shows
/// nothing, and `farside reproduce 000` marks it.
///
/// | number | source |
/// | --- | --- |
/// | wire 250 ps/B | 40 Gb/s, of which 8b/10b leaves 32 Gb/s |
/// | packets of 4 KiB with 26 bytes | the largest InfiniBand MTU; LRH 8, BTH 12, ICRC 4, VCRC 2 |
/// | bus 140 ps/B | PCIe 3.0 x8, 7.88 GB/s, less the headers of transactions of 256 bytes |
/// | switch and cables 110 ns | InfiniScale IV data sheet: 100 ns from port to port |
/// | PCIe read 750 ns | 000 Figure 1, between its READ less its WRITE (0.84 us) and what its WRITE of 256 bytes adds (0.63 us) |
/// | doorbell 150 ns, PCIe write 250 ns | as [`CONNECTX5_ROCE`](super::CONNECTX5_ROCE) |
/// | through the adapter 10 ns each way | chosen to give a small WRITE 1.1 us, between 1.16 us (000 Figure 1) and 0.93 us (Table III) |
/// | send engine 142 ns | 000 Table III: 7.06 M WRITEs a second and port |
/// | fetched payload 71 ns | 000 Figure 1: 4.7 M WRITEs a second |
/// | fetched payload of one link 608 ns | with the send engine's 142 ns one PCIe read: the fetches of one queue pair do not overlap. 000 Figure 4: lists of 32 raise the rate by 153 % only |
/// | slice 100 ns | 000 §III-A: SP is 2.14 times SGL at batch 32 |
/// | receive engine 38 ns | 26 M requests a second: Kalia et al., *Using RDMA efficiently for key-value services* (HERD), SIGCOMM 2014 |
/// | further packets 10 ns, receive 40 ns, completion entry 20 ns | chosen; the latter two as [`CONNECTX5_ROCE`](super::CONNECTX5_ROCE) |
/// | atomics 420 ns | 000 §III-E: 2.2 M/s to 2.5 M/s a port |
/// | 16 READs and atomics a link | `max_qp_rd_atom` of ConnectX adapters |
/// | 1,024 translations of 4 KiB | 000 §III-B: below 4 MB there is no difference; `posix_memalign` gives pages of 4 KiB |
/// | missing translation 320 ns | 000 §II-B2: with ten times the regions small accesses are worse by about 60 %, so 213 ns become 533 ns |
/// | 64 queue pairs, missing one 142 ns | Chen et al., *Scalable RDMA RPC on reliable connection*, EuroSys 2019, as 000 §II-B2 cites it: half the rate from 40 to 120 clients; 64 is chosen between |
/// | crossing of sockets 70 ns | 000 Table II: 162 ns less 92 ns |
/// | read from the other socket 320 ns, write 172 ns | 000 Table III: 3.11 M READs a second, and 4.76 M WRITEs with the 38 ns of the receive engine |
/// | interconnect 69 ps/B | E5-2640 v2 data sheet: QPI of 7.2 GT/s, 14.4 GB/s a direction |
/// | retry 12 us, memory at the adapter | not used by the paper |
pub const CONNECTX3_IB: HardwareProfile = HardwareProfile {
    doorbell_ns: 150,
    doorbell_busy_ns: 10,
    pcie_read_ns: 750,
    pcie_write_ns: 250,
    pcie_ps_per_byte: 140,
    device_ns: 40,
    send_ns: 142,
    link_send_ns: 142,
    gather_ns: 100,
    fetch_ns: 71,
    link_fetch_ns: 608,
    pipeline_ns: 10,
    wire_ps_per_byte: 250,
    packet_bytes_max: 4_096,
    packet_header_bytes: 26,
    path_ns: 110,
    receive_ns: 38,
    packet_ns: 10,
    receive_request_ns: 40,
    completion_ns: 20,
    fetches_max: 16,
    atomic_host_ns: 420,
    atomic_device_ns: 420,
    retry_ns: 12_000,
    caches: AdapterCaches {
        page_bytes: 4_096,
        translations_max: 1_024,
        translation_miss_ns: 320,
        queue_pairs_max: 64,
        queue_pair_miss_ns: 142,
    },
    sockets: SocketCosts {
        crossing_ns: 70,
        read_busy_ns: 320,
        write_busy_ns: 172,
        ps_per_byte: 69,
    },
    nvm: None,
};

/// One core of the E5-2640 v2 of 000 §III, 2.0 GHz.
///
/// Posting, polling and receives as [`EPYC_7742`](super::EPYC_7742), a third slower by its clock; a miss 92 ns and
/// copies of 4 bytes a nanosecond by 000 Table II (92 ns, 3.70 GB/s).
pub const E5_2640_V2: ProcessorCosts = ProcessorCosts {
    post_ns: 40,
    doorbell_ns: 100,
    poll_ns: 20,
    completion_ns: 33,
    receive_ns: 27,
    receive_post_ns: 27,
    arm_ns: 80,
    wake_ns: 4_000,
    load_ns: 2,
    miss_ns: 92,
    copy_bytes_per_ns: 4,
    zero_bytes_per_ns: 8,
    compare_bytes_per_ns: 8,
};

/// What ConnectX-3 offers: lists of up to 32 slices.
pub const VERBS_CONNECTX3: Capabilities = Capabilities { slices_max: 32, ..INFINIBAND };
