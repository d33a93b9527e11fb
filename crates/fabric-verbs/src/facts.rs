//! Derives the fabric's capabilities from the attributes of a device: plain numbers in, plain numbers
//! out. The name of its vendor is not among them.

use farside_base::{AtomicScope, BackPressure, Capabilities, FlushScope, WordScope};
use farside_fabric::Arena;
use std::fmt;

/// Most posted and uncompleted requests of a link, if the device has more.
const OUTSTANDING_MAX: u32 = 256;
/// Most links of a port, if the device has more.
const LINKS_MAX: u32 = 4096;
/// Most slices of a list, if the device has more: a queue has room for that many in each entry.
const SLICES_MAX: u32 = 16;

/// `IBV_DEVICE_FLUSH_GLOBAL`.
const CAP_FLUSH_GLOBAL: u64 = 1 << 38;
/// `IBV_DEVICE_FLUSH_PERSISTENT`.
const CAP_FLUSH_PERSISTENT: u64 = 1 << 39;
/// `IBV_DEVICE_ATOMIC_WRITE`.
const CAP_ATOMIC_WRITE: u64 = 1 << 40;

/// The transport of a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[non_exhaustive]
pub enum Transport {
    /// InfiniBand's packets, on InfiniBand or (RoCE) on Ethernet.
    InfiniBand,
    /// RDMA over TCP (RFC 5040). Its queue pairs connect by rdma_cm only. Two WRITEs may be placed in
    /// either order, a message without a receive ends the connection, there are no immediates, and the
    /// adapter completes a request when it is sent, whatever the target does with it: a READ after the
    /// last one proves that all before it are done.
    Iwarp,
    /// Something without reliable connections.
    Other,
}

/// `ibv_device_attr::atomic_cap`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[non_exhaustive]
pub enum AtomicFact {
    /// `IBV_ATOMIC_NONE`.
    None,
    /// `IBV_ATOMIC_HCA`: atomic with others through this adapter.
    Adapter,
    /// `IBV_ATOMIC_GLOB`: against processors too.
    Global,
}

/// The attributes of a device and one of its ports, by queries and by creating a queue pair on trial.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeviceFacts {
    /// `ibv_device::transport_type`.
    pub transport: Transport,
    /// `max_mr_size`.
    pub region_bytes: u64,
    /// `max_qp`.
    pub queue_pairs: u32,
    /// `max_qp_wr`.
    pub requests: u32,
    /// `max_sge`.
    pub slices: u32,
    /// `max_sge_rd`; zero if the device does not report it.
    pub read_slices: u32,
    /// `max_cqe`.
    pub completions: u32,
    /// `max_srq`.
    pub shared_receive_queues: u32,
    /// `max_srq_wr`.
    pub shared_receives: u32,
    /// `atomic_cap`.
    pub atomics: AtomicFact,
    /// `device_cap_flags_ex`; zero from a library that does not know of it.
    pub flags: u64,
    /// `max_qp_rd_atom`: READs and atomics of a peer that it takes at a time.
    pub reads_in: u8,
    /// `max_qp_init_rd_atom`: READs and atomics that it has outstanding at a time.
    pub reads_out: u8,
    /// `max_msg_sz` of the port.
    pub message_bytes: u32,
    /// `max_dm_size`; zero if library or provider lack the calls.
    pub device_memory_bytes: u64,
    /// `max_mw`, if there are memory windows of type 2B (`IBV_DEVICE_MEM_WINDOW_TYPE_2B`).
    pub windows: u32,
    /// The operations that it supports in memory that is not pinned.
    pub on_demand: OnDemand,
    /// The results of creating queue pairs on trial.
    pub trial: Trial,
}

/// Operations of reliable connections that a device supports in memory that is not pinned:
/// `rc_odp_caps`, if `general_caps` declares support at all.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct OnDemand(u32);

impl OnDemand {
    const SEND: u32 = 1;
    const WRITE: u32 = 1 << 2;
    const READ: u32 = 1 << 3;
    const ATOMIC: u32 = 1 << 4;
    const SHARED_RECEIVE: u32 = 1 << 5;
    const FLUSH: u32 = 1 << 6;
    const ATOMIC_WRITE: u32 = 1 << 7;

    /// Decodes the two numbers of `ibv_odp_caps`.
    pub(crate) fn of(general: u64, connections: u32) -> Self {
        const SUPPORT: u64 = 1;
        Self(if general & SUPPORT != 0 { connections } else { 0 })
    }

    /// Returns whether the device has it for anything.
    pub const fn is_had(self) -> bool {
        self.0 != 0
    }

    /// Returns an operation of a fabric with these capabilities that it does not support in its
    /// regions.
    pub(crate) fn lacks(self, has: &Capabilities) -> Option<&'static str> {
        let table = [
            (true, Self::SEND, "on-demand paging of sends"),
            (true, Self::SHARED_RECEIVE, "on-demand paging of shared receive queues"),
            (true, Self::WRITE, "on-demand paging of WRITEs"),
            (true, Self::READ, "on-demand paging of READs"),
            (has.atomics > AtomicScope::None, Self::ATOMIC, "on-demand paging of atomics"),
            (has.flush > FlushScope::None, Self::FLUSH, "on-demand paging of FLUSH"),
            (has.atomic_write, Self::ATOMIC_WRITE, "on-demand paging of ATOMIC WRITE"),
        ];
        if !self.is_had() {
            return Some("on-demand paging");
        }
        let lacking = table.into_iter().find(|(wanted, bit, _)| *wanted && self.0 & bit == 0);
        lacking.map(|(.., name)| name)
    }
}

impl fmt::Display for OnDemand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let table = [
            (Self::SEND, "sends"),
            (Self::SHARED_RECEIVE, "shared receives"),
            (Self::WRITE, "WRITEs"),
            (Self::READ, "READs"),
            (Self::ATOMIC, "atomics"),
            (Self::FLUSH, "FLUSH"),
            (Self::ATOMIC_WRITE, "ATOMIC WRITE"),
        ];
        let names = table.iter().filter(|(bit, _)| self.0 & bit != 0).map(|(_, name)| *name);
        let names: Vec<_> = names.collect();
        f.write_str(if names.is_empty() { "none" } else { "" })?;
        f.write_str(&names.join(", "))
    }
}

/// What queue pairs of a device can be created with.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Trial {
    /// With the extended interface of posting.
    pub extended: bool,
    /// With ATOMIC WRITE.
    pub atomic_write: bool,
    /// With FLUSH.
    pub flush: bool,
    /// With this many inline bytes.
    pub inline_bytes: u32,
    /// `ibv_query_qp_data_in_order` says that a whole WRITE is placed in the order of its bytes.
    pub in_order: bool,
    /// A WRITE of several slices by the extended interface arrives correctly. If not, such requests are
    /// posted as lists, each with a doorbell of its own.
    pub gathers: bool,
    /// A completion queue can be made longer while it is used.
    pub resizes: bool,
    /// A memory window of type 2 can be bound, and its rkey works for the operations of the device.
    pub windows: bool,
    /// Its rkey works for FLUSH too.
    pub windows_flush: bool,
    /// Bytes of memory that is not pinned arrive at their addresses. Tried if requested.
    pub on_demand: bool,
}

impl DeviceFacts {
    /// Returns whether a request's completion says nothing of its target, so that a READ after it must.
    pub(crate) fn needs_confirmation(&self) -> bool {
        self.transport == Transport::Iwarp
    }

    /// Returns the scope of FLUSH.
    fn flush(&self) -> FlushScope {
        let has = |flag| self.trial.flush && self.flags & flag != 0;
        match (has(CAP_FLUSH_GLOBAL), has(CAP_FLUSH_PERSISTENT)) {
            (_, true) => FlushScope::Persistent,
            (true, false) => FlushScope::Visible,
            (false, false) => FlushScope::None,
        }
    }

    /// Slices of a list that every kind of request can have.
    pub(crate) fn slices(&self) -> u32 {
        let reads = if self.read_slices == 0 { self.slices } else { self.read_slices };
        self.slices.min(reads).min(SLICES_MAX)
    }

    /// Returns the requests that a queue pair holds in addition to the program's: one checks whether
    /// those before it are done; with memory windows, one binds a window, and one before it waits.
    fn own_requests(&self) -> u32 {
        if self.trial.windows { 3 } else { 1 }
    }

    /// Requests of the program's that a queue pair holds.
    pub(crate) fn outstanding(&self) -> u32 {
        self.requests.saturating_sub(self.own_requests()).min(OUTSTANDING_MAX)
    }

    /// Requests that a queue pair holds.
    pub(crate) fn queue_requests(&self) -> u32 {
        self.outstanding() + self.own_requests()
    }

    /// Returns the capabilities of the fabric on this device.
    ///
    /// On InfiniBand and RoCE messages of one link arrive in order, as on any reliable connection; a
    /// completed WRITE has reached the peer's adapter, not yet its memory (IBTA 9.7.5.1.4, 10.7.3), so
    /// that is not promised. On iWARP the order in which WRITEs are placed is not promised (RFC 5040
    /// 5.5), and a WRITE completes when a READ of memory after it has, which the target answers after
    /// placing it. No query reports the atomicity of words (`Capabilities::words`).
    ///
    /// Device memory (`ibv_alloc_dm`) can be regions, except on iWARP, whose short READs and WRITEs the
    /// processor copies. **It has never run on an adapter**: no software device has such memory, so
    /// only the fake library has exercised it. The owner has no address of it and copies
    /// (`ibv_memcpy_to_dm`), of which nothing but the copy is promised; mlx5's provider copies words of
    /// four bytes (rdma-core 65), so peers may see the halves of a word apart
    /// (`Capabilities::device_words`), and mana's has no copies at all. Masked atomics are not part of
    /// the library's interface.
    ///
    /// # Errors
    /// The name of what the device lacks and this fabric needs.
    pub fn capabilities(&self) -> Result<Capabilities, &'static str> {
        let iwarp = self.transport == Transport::Iwarp;
        let least = [
            (iwarp && (self.reads_in == 0 || self.reads_out == 0), "READs"),
            (self.transport == Transport::Other, "reliable connections"),
            (self.shared_receive_queues == 0 || self.shared_receives == 0, "shared receive queues"),
            (self.queue_pairs == 0 || self.outstanding() == 0, "queue pairs"),
            (self.slices() == 0, "slices"),
            (self.message_bytes == 0, "messages (max_msg_sz is zero)"),
        ];
        if let Some((_, name)) = least.iter().find(|(lacks, _)| *lacks) {
            return Err(name);
        }
        // An eighth of the completion queue is for receives.
        let links = (self.completions - self.completions / 8) / self.queue_requests();
        Ok(Capabilities {
            write: true,
            read: true,
            atomics: match self.atomics {
                AtomicFact::None => AtomicScope::None,
                AtomicFact::Adapter => AtomicScope::Adapter,
                AtomicFact::Global => AtomicScope::System,
            },
            extended_atomics: false,
            atomic_write: self.trial.atomic_write && self.flags & CAP_ATOMIC_WRITE != 0,
            flush: self.flush(),
            own_memory: true,
            protected: false,
            send: true,
            // RFC 5040 has none, and no library supports those of RFC 7306.
            immediate: !iwarp,
            shared_receive_queue: true,
            message_order: !iwarp,
            byte_order: self.trial.in_order,
            words: if iwarp { WordScope::None } else { WordScope::Aligned },
            completion_means_placed: self.needs_confirmation(),
            one_sided: true,
            loads: false,
            sleep: true,
            receiver_not_ready: match iwarp {
                true => BackPressure::EndsLink,
                false => BackPressure::Retried,
            },
            inline_bytes_max: self.trial.inline_bytes,
            send_bytes_max: self.message_bytes,
            transfer_bytes_max: u64::from(self.message_bytes),
            slices_max: self.slices(),
            outstanding_max: self.outstanding(),
            links_max: self.queue_pairs.min(LINKS_MAX).min(links),
            region_bytes_max: self.region_bytes.min(1 << 46),
            mirrored_regions: Arena::MIRRORS,
            device_bytes_max: if iwarp { 0 } else { self.device_memory_bytes },
            device_words: false,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Soft-RoCE of Linux 7.3 with rdma-core 56.
    const RXE: DeviceFacts = DeviceFacts {
        transport: Transport::InfiniBand,
        region_bytes: u64::MAX,
        queue_pairs: 1_048_560,
        requests: 1_048_576,
        slices: 32,
        read_slices: 32,
        completions: 32_767,
        shared_receive_queues: 917_503,
        shared_receives: 1_048_576,
        atomics: AtomicFact::Adapter,
        flags: CAP_FLUSH_GLOBAL | CAP_FLUSH_PERSISTENT | CAP_ATOMIC_WRITE,
        reads_in: 128,
        reads_out: 128,
        message_bytes: 8_388_608,
        device_memory_bytes: 0,
        windows: 1 << 20,
        on_demand: OnDemand(0),
        trial: Trial {
            extended: true,
            atomic_write: true,
            flush: true,
            inline_bytes: 512,
            in_order: false,
            gathers: true,
            resizes: true,
            windows: true,
            windows_flush: true,
            on_demand: false,
        },
    };

    /// Soft-iWARP of Linux 7.3 with rdma-core 56.
    const SIW: DeviceFacts = DeviceFacts {
        transport: Transport::Iwarp,
        read_slices: 1,
        atomics: AtomicFact::None,
        flags: 0,
        windows: 0,
        trial: Trial {
            extended: false,
            atomic_write: false,
            flush: false,
            resizes: false,
            windows: false,
            windows_flush: false,
            ..RXE.trial
        },
        ..RXE
    };

    #[test]
    fn facts_become_promises() {
        let has = RXE.capabilities().unwrap();
        assert_eq!(has.atomics, AtomicScope::Adapter);
        assert_eq!(has.flush, FlushScope::Persistent);
        assert!(has.atomic_write && has.immediate && has.message_order);
        assert!(!has.byte_order && !has.completion_means_placed && !has.protected);
        assert_eq!((has.slices_max, has.inline_bytes_max), (16, 512));
        assert_eq!(has.transfer_bytes_max, 8_388_608);
        assert!(has.links_max * has.outstanding_max <= RXE.completions);
    }

    #[test]
    fn a_flag_without_a_trial_or_the_other_way_round_promises_nothing() {
        let older = DeviceFacts { trial: Trial { flush: false, ..RXE.trial }, ..RXE };
        assert_eq!(older.capabilities().unwrap().flush, FlushScope::None);
        let older = DeviceFacts { flags: CAP_FLUSH_GLOBAL, ..RXE };
        let has = older.capabilities().unwrap();
        assert_eq!((has.flush, has.atomic_write), (FlushScope::Visible, false));
    }

    #[test]
    fn atomic_scope_is_as_the_device_says() {
        for (fact, scope) in [
            (AtomicFact::None, AtomicScope::None),
            (AtomicFact::Adapter, AtomicScope::Adapter),
            (AtomicFact::Global, AtomicScope::System),
        ] {
            let device = DeviceFacts { atomics: fact, ..RXE };
            assert_eq!(device.capabilities().unwrap().atomics, scope);
        }
    }

    #[test]
    fn what_cannot_be_done_without_is_named() {
        let table: [(DeviceFacts, &str); 6] = [
            (DeviceFacts { reads_out: 0, ..SIW }, "READs"),
            (DeviceFacts { transport: Transport::Other, ..RXE }, "reliable connections"),
            (DeviceFacts { shared_receive_queues: 0, ..RXE }, "shared receive queues"),
            (DeviceFacts { requests: 1, ..RXE }, "queue pairs"),
            (DeviceFacts { slices: 0, ..RXE }, "slices"),
            (DeviceFacts { message_bytes: 0, ..RXE }, "messages (max_msg_sz is zero)"),
        ];
        for (device, lacks) in table {
            assert_eq!(device.capabilities(), Err(lacks));
        }
    }

    #[test]
    fn on_demand_paging_is_had_for_all_that_is_done_or_refused_by_name() {
        let has = RXE.capabilities().unwrap();
        let all = OnDemand::of(1, 0xff);
        assert_eq!((all.lacks(&has), OnDemand::of(2, 0xff).is_had()), (None, false));
        assert_eq!(OnDemand::default().lacks(&has), Some("on-demand paging"));
        for (bit, name) in [(0, "sends"), (2, "WRITEs"), (3, "READs"), (4, "atomics"), (6, "FLUSH")]
        {
            let lacking = OnDemand::of(1, 0xff & !(1 << bit));
            assert_eq!(lacking.lacks(&has), Some(format!("on-demand paging of {name}")).as_deref());
            assert!(!lacking.to_string().contains(name) && all.to_string().contains(name));
        }
        // An operation that the device does not have need not be paged.
        let has = DeviceFacts { atomics: AtomicFact::None, ..RXE }.capabilities().unwrap();
        assert_eq!(OnDemand::of(1, 0xff & !OnDemand::ATOMIC).lacks(&has), None);
    }

    #[test]
    fn iwarp_promises_what_its_standard_does() {
        let has = SIW.capabilities().unwrap();
        assert!(has.write && has.read && has.send && has.shared_receive_queue);
        assert!(!has.immediate && !has.message_order && !has.atomic_write);
        assert_eq!((has.atomics, has.flush), (AtomicScope::None, FlushScope::None));
        assert!(has.completion_means_placed);
        assert_eq!(has.receiver_not_ready, BackPressure::EndsLink);
        assert_eq!(has.slices_max, 1);
    }

    #[test]
    fn a_smaller_limit_of_reads_binds_all_lists() {
        let device = DeviceFacts { read_slices: 1, ..RXE };
        assert_eq!(device.capabilities().unwrap().slices_max, 1);
        let device = DeviceFacts { read_slices: 0, slices: 4, ..RXE };
        assert_eq!(device.capabilities().unwrap().slices_max, 4);
    }
}
