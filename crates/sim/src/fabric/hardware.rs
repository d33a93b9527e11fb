//! Hardware profiles: the costs of adapter, bus and wire, from which the simulated fabric computes delays instead of
//! drawing them.
//!
//! Every request passes the same resources, each of which serves one request at a time; an idle resource adds only
//! its latency:
//!
//! | stage | resource | time |
//! | --- | --- | --- |
//! | doorbell | the adapter's doorbells | `doorbell_ns`, busy `doorbell_busy_ns`; several requests of one post to one link are fetched with one more `pcie_read_ns`, a single one is inlined in its doorbell |
//! | work request | the send engine of the port, and that of the link | busy `send_ns` and `link_send_ns`, `gather_ns` for each slice after the first, `fetch_ns` and `link_fetch_ns` if its payload is fetched |
//! | payload | the bus, reading | `pcie_read_ns`, busy `pcie_ps_per_byte`; nothing for inline bytes and memory at the adapter |
//! | packets | the wire, out | busy `wire_ps_per_byte` for payload and `packet_header_bytes`; messages of several links are interleaved by packets |
//! | switch | | `path_ns`, cut through |
//! | packets | the wire, in | as out: messages of many senders contend here |
//! | inbound | the receive engine | busy `receive_ns` a request, `packet_ns` any other packet, `receive_request_ns` and `completion_ns` if a receive is consumed |
//! | WRITE, SEND | the bus, writing | `pcie_write_ns`, busy `pcie_ps_per_byte` |
//! | READ | the bus, reading | `pcie_read_ns`, and `fetches_max` outstanding READs and atomics of a link |
//! | atomic | the one atomic unit of the adapter | busy `atomic_host_ns`, or `atomic_device_ns` for memory at the adapter; answered no sooner than one access to that memory takes |
//! | answer | wire, switch, wire, receive engine | as above |
//! | completion | the bus, writing | `pcie_write_ns` and `completion_ns` |
//!
//! A [`Path`](super::Path) between two nodes can replace wires and switch.
//!
//! Persistent memory of a socket adds its own queues ([`NvmProfile`]).
//!
//! Caches of the adapter, its two ports and the sockets of the machine add to that ([`AdapterCaches`],
//! [`SocketCosts`], [`SocketPlacement`](super::SocketPlacement)).
//!
//! Not modelled: congestion control and loss, and the processors: their time is charged by [`stage`](crate::stage).

use super::locality::{ADAPTER_PORTS, AdapterCaches, SocketCosts, UsedCache};
use super::nvm::NvmProfile;
use super::resource::Resource;
use super::world::{LinkEnd, NodeKey};
use farside_base::RegionId;
use std::collections::VecDeque;
use std::fmt;

/// Latencies in nanoseconds, and rates as the busy time of one unit. A plain record, to be changed by struct update;
/// `Display` prints all fields on one line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HardwareProfile {
    /// Time from the processor's doorbell write until the adapter has it.
    pub doorbell_ns: u64,
    /// Minimum interval between two doorbells of the adapter.
    pub doorbell_busy_ns: u64,
    /// Time from the adapter's read request until the first bytes of main memory arrive.
    pub pcie_read_ns: u64,
    /// Time from the adapter's write until processors see it.
    pub pcie_write_ns: u64,
    /// Busy time of the bus, in each direction.
    pub pcie_ps_per_byte: u64,
    /// Time of an access to memory at the adapter.
    pub device_ns: u64,
    /// Busy time of the adapter's send engine for a request: the inverse of its message rate.
    pub send_ns: u64,
    /// Minimum interval between the starts of two requests of one link.
    pub link_send_ns: u64,
    /// Time that each slice after the first adds to both.
    pub gather_ns: u64,
    /// Time that a payload in main memory adds to `send_ns`.
    pub fetch_ns: u64,
    /// Time that it adds to `link_send_ns`, where an adapter does not overlap the fetches of one link.
    pub link_fetch_ns: u64,
    /// Latency of the idle adapter, in each direction.
    pub pipeline_ns: u64,
    /// Busy time of the wire, in each direction.
    pub wire_ps_per_byte: u64,
    /// Maximum payload of a packet.
    pub packet_bytes_max: u32,
    /// Overhead of each packet around its payload, gaps included.
    pub packet_header_bytes: u32,
    /// Latency of switches and cables.
    pub path_ns: u64,
    /// Busy time of the receive engine for an inbound request.
    pub receive_ns: u64,
    /// Busy time of the receive engine for a further packet, an acknowledgement or a response.
    pub packet_ns: u64,
    /// Time that consuming a receive adds to `receive_ns`.
    pub receive_request_ns: u64,
    /// Time to write a completion entry.
    pub completion_ns: u64,
    /// Maximum number of outstanding READs and atomics of one link.
    pub fetches_max: u32,
    /// Busy time of the atomic unit for an atomic on main memory.
    pub atomic_host_ns: u64,
    /// Busy time of the atomic unit for an atomic on memory at the adapter.
    pub atomic_device_ns: u64,
    /// Delay after which a SEND that found no receive is retried once a receive is posted.
    pub retry_ns: u64,
    /// Caches of the adapter.
    pub caches: AdapterCaches,
    /// Costs between the sockets of a machine.
    pub sockets: SocketCosts,
    /// Persistent memory of each socket, for the nodes that have some
    /// ([`SimNet::place_persistent`](super::SimNet::place_persistent)).
    pub nvm: Option<NvmProfile>,
}

/// The cluster of 001 §6: two ConnectX-5 of 100 Gb/s, one switch, RoCEv2, EPYC 7742.
///
/// Together they reproduce what is published about such clusters: 0.94 us for a small inline WRITE to a polled word
/// (perftest measures 0.8 us without a switch); 2 us for one one-sided request with its completion (002 §5, on
/// ConnectX-5 of 100 Gb/s); 98 Gb/s for long WRITEs.
///
/// | number | source |
/// | --- | --- |
/// | wire 80 ps/B, 82 bytes a packet | 100 Gb/s; Ethernet with preamble, gap and checksum 38, IPv4 20, UDP 8, BTH 12, ICRC 4 (RoCEv2 annex A17 of the IBTA specification) |
/// | packets of 4 KiB | the largest InfiniBand MTU, which RoCE takes with jumbo frames; 1,024 without |
/// | bus 72 ps/B | ConnectX-5 user manual: PCIe 3.0 x16, that is 15.75 GB/s, less the headers of transactions of 256 bytes |
/// | PCIe read 600 ns | Neugebauer et al., *Understanding PCIe performance for end host networking*, SIGCOMM 2018, from which 003 §3.2 takes 0.6 us to 1.2 us |
/// | through the adapter 100 ns each way, PCIe write 250 ns, doorbell 150 ns | chosen to give the sums above; the ConnectX-5 EN product brief says "sub-600ns" for the adapter |
/// | switch and cables 300 ns | chosen, as usual for cut-through switches of 100 Gb/s |
/// | send and receive engines 14 ns, 70 M/s | chosen above the about 50 M READs a second that 003 §3.2 quotes from FaSST (Kalia et al., OSDI 2016) for the previous generation |
/// | one link 80 ns, 12 M/s | chosen; perftest with one queue pair gives 7 M/s to 15 M/s |
/// | receive 40 ns, completion entry 20 ns, slice 30 ns | chosen; 001 §6.2 finds receives to be the limit of small messages, and 001 §7 says one DMA read a slice |
/// | atomics 420 ns | 000 §III: 2.2 M/s to 2.5 M/s a port |
/// | atomics at the adapter 90 ns | 001 Figure 9a: more than four times the rate of main memory; Wang et al., *Sherman*, SIGMOD 2022, for 256 KiB of such memory on ConnectX-5 |
/// | 16 READs and atomics a link | `max_qp_rd_atom` of ConnectX adapters |
/// | retry 12 us | chosen: a usual receiver-not-ready timer |
pub const CONNECTX5_ROCE: HardwareProfile = HardwareProfile {
    doorbell_ns: 150,
    doorbell_busy_ns: 10,
    pcie_read_ns: 600,
    pcie_write_ns: 250,
    pcie_ps_per_byte: 72,
    device_ns: 40,
    send_ns: 14,
    link_send_ns: 80,
    gather_ns: 30,
    fetch_ns: 0,
    link_fetch_ns: 0,
    pipeline_ns: 100,
    wire_ps_per_byte: 80,
    packet_bytes_max: 4_096,
    packet_header_bytes: 82,
    path_ns: 300,
    receive_ns: 14,
    packet_ns: 4,
    receive_request_ns: 40,
    completion_ns: 20,
    fetches_max: 16,
    atomic_host_ns: 420,
    atomic_device_ns: 90,
    retry_ns: 12_000,
    caches: AdapterCaches::NONE,
    sockets: SocketCosts::NONE,
    nvm: None,
};

/// Adapters that take no time, with packets of any length: all delays come from
/// [`SimNet::set_path`](super::SimNet::set_path). For models that know only end-to-end latencies.
pub const NO_TIME: HardwareProfile = HardwareProfile {
    doorbell_ns: 0,
    doorbell_busy_ns: 0,
    pcie_read_ns: 0,
    pcie_write_ns: 0,
    pcie_ps_per_byte: 0,
    device_ns: 0,
    send_ns: 0,
    link_send_ns: 0,
    gather_ns: 0,
    fetch_ns: 0,
    link_fetch_ns: 0,
    pipeline_ns: 0,
    wire_ps_per_byte: 0,
    packet_bytes_max: u32::MAX,
    packet_header_bytes: 0,
    path_ns: 0,
    receive_ns: 0,
    packet_ns: 0,
    receive_request_ns: 0,
    completion_ns: 0,
    fetches_max: 16,
    atomic_host_ns: 0,
    atomic_device_ns: 0,
    retry_ns: 1_000,
    caches: AdapterCaches::NONE,
    sockets: SocketCosts::NONE,
    nvm: None,
};

impl fmt::Display for HardwareProfile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "doorbell={}/{} ", self.doorbell_ns, self.doorbell_busy_ns)?;
        write!(f, "pcie={}/{}/", self.pcie_read_ns, self.pcie_write_ns)?;
        write!(f, "{}ps device={} ", self.pcie_ps_per_byte, self.device_ns)?;
        write!(f, "send={}/{}+{} ", self.send_ns, self.link_send_ns, self.gather_ns)?;
        write!(f, "pipeline={} wire={}ps ", self.pipeline_ns, self.wire_ps_per_byte)?;
        write!(f, "packet={}+{}B ", self.packet_bytes_max, self.packet_header_bytes)?;
        write!(f, "path={} receive={}/{}", self.path_ns, self.receive_ns, self.packet_ns)?;
        write!(f, "+{} completion={} ", self.receive_request_ns, self.completion_ns)?;
        write!(f, "fetches={} atomic={}", self.fetches_max, self.atomic_host_ns)?;
        write!(f, "/{} retry={}", self.atomic_device_ns, self.retry_ns)?;
        if (self.fetch_ns, self.link_fetch_ns) != (0, 0) {
            write!(f, " fetch={}/{}", self.fetch_ns, self.link_fetch_ns)?;
        }
        let (caches, sockets) = (&self.caches, &self.sockets);
        if *caches != AdapterCaches::NONE {
            write!(f, " translations={}x{}B", caches.translations_max, caches.page_bytes)?;
            write!(f, "/{} ", caches.translation_miss_ns)?;
            write!(f, "pairs={}/{}", caches.queue_pairs_max, caches.queue_pair_miss_ns)?;
        }
        if *sockets != SocketCosts::NONE {
            write!(f, " crossing={}/{}", sockets.crossing_ns, sockets.read_busy_ns)?;
            write!(f, "/{}/{}ps", sockets.write_busy_ns, sockets.ps_per_byte)?;
        }
        match &self.nvm {
            Some(nvm) => write!(f, " nvm: {nvm}"),
            None => Ok(()),
        }
    }
}

/// Writes on their way to memory that may take no more, in order.
#[derive(Clone, Default, Debug)]
pub(super) struct PostedWrites {
    /// When the memory takes each, and its bytes.
    writes: VecDeque<(u64, u64)>,
    bytes: u64,
}

impl PostedWrites {
    /// Returns when the memory takes the last one: no later write is taken before.
    pub(super) fn last_ns(&self) -> u64 {
        self.writes.back().map_or(0, |write| write.0)
    }

    /// Adds a write that the memory takes at `taken_ns`. Returns when no more than `bytes_max` bytes wait.
    pub(super) fn add(&mut self, taken_ns: u64, bytes: u64, bytes_max: u64) -> u64 {
        self.writes.push_back((taken_ns, bytes));
        self.bytes += bytes;
        let mut free_ns = 0;
        while self.bytes > bytes_max && self.writes.len() > 1 {
            if let Some((taken_ns, bytes)) = self.writes.pop_front() {
                (free_ns, self.bytes) = (taken_ns, self.bytes - bytes);
            }
        }
        free_ns
    }
}

/// The cached metadata of one adapter.
#[derive(Clone, Default, Debug)]
pub(super) struct CachedMetadata {
    pub(super) translations: UsedCache<(RegionId, u64)>,
    pub(super) queue_pairs: UsedCache<LinkEnd>,
}

/// The resources of one port of an adapter.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct AdapterPort {
    pub(super) send: Resource,
    pub(super) receive: Resource,
    pub(super) wire_out: Resource,
    pub(super) wire_in: Resource,
    pub(super) atomics: Resource,
}

/// The resources of one node's adapter.
#[derive(Clone, Default, Debug)]
pub(super) struct Adapter {
    pub(super) ports: [AdapterPort; ADAPTER_PORTS],
    pub(super) doorbells: Resource,
    pub(super) bus_read: Resource,
    pub(super) bus_write: Resource,
    /// Reads of the adapter from the other socket.
    pub(super) interconnect: Resource,
    /// Writes to persistent memory that it has not taken.
    pub(super) posted: PostedWrites,
    pub(super) cached: CachedMetadata,
}

/// All adapters, created on first use.
#[derive(Default, Debug)]
pub(super) struct Adapters(Vec<Adapter>);

impl Adapters {
    pub(super) fn of(&mut self, node: NodeKey) -> &mut Adapter {
        if self.0.len() <= node.0 {
            self.0.resize(node.0 + 1, Adapter::default());
        }
        &mut self.0[node.0]
    }
}

/// The two queues that leave one end of a link: requests and answers do not wait for each other.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Lane {
    Requests,
    Answers,
}

/// The event that the arrival of a message causes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Then {
    /// A request arrives.
    Arrive,
    /// An answer returns.
    Response,
    /// The target of a WRITE by READ requests the bytes.
    Fetch,
    /// The fetched bytes arrive.
    Fetched,
}

/// A packet in flight.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Packet {
    pub(super) bytes: u32,
    pub(super) first: bool,
    pub(super) last: bool,
    pub(super) then: Then,
}

/// A message in transmission, packet by packet.
#[derive(Clone, Copy, Debug)]
pub(super) struct DepartingMessage {
    pub(super) number: u64,
    pub(super) then: Then,
    /// Payload that is not transmitted yet.
    pub(super) bytes: u64,
    /// Whether no packet is transmitted yet.
    pub(super) whole: bool,
    /// Earliest time at which its first bytes are at the wire.
    pub(super) ready_ns: u64,
}

impl DepartingMessage {
    pub(super) fn new(number: u64, then: Then, bytes: u64, ready_ns: u64) -> Self {
        Self { number, then, bytes, whole: true, ready_ns }
    }

    /// Removes the next packet.
    pub(super) fn packet(&mut self, bytes_max: u32) -> Packet {
        let bytes = self.bytes.min(u64::from(bytes_max.max(1)));
        let first = std::mem::take(&mut self.whole);
        self.bytes -= bytes;
        Packet { bytes: bytes as u32, first, last: self.bytes == 0, then: self.then }
    }
}

/// The messages in transmission at one end of a link.
#[derive(Default, Debug)]
pub(super) struct Lanes {
    /// The link's share of the send engine.
    pub(super) send: Resource,
    pub(super) requests: VecDeque<DepartingMessage>,
    pub(super) answers: VecDeque<DepartingMessage>,
}

impl Lanes {
    pub(super) fn of(&mut self, lane: Lane) -> &mut VecDeque<DepartingMessage> {
        match lane {
            Lane::Requests => &mut self.requests,
            Lane::Answers => &mut self.answers,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flight_is_cut_into_packets() {
        let mut flight = DepartingMessage::new(1, Then::Arrive, 5_000, 0);
        let packets = [flight.packet(4_096), flight.packet(4_096)];
        assert_eq!(packets.map(|packet| packet.bytes), [4_096, 904]);
        assert_eq!(packets.map(|packet| packet.first), [true, false]);
        assert_eq!(packets.map(|packet| packet.last), [false, true]);
        let empty = DepartingMessage::new(1, Then::Arrive, 0, 0).packet(4_096);
        assert!(empty.first && empty.last && empty.bytes == 0);
    }

    #[test]
    fn a_profile_fits_one_line() {
        assert_eq!(CONNECTX5_ROCE.to_string().lines().count(), 1);
    }
}
