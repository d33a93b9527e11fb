//! Options and capabilities of a TCP fabric.

use crate::wire::{OUTSTANDING_MAX, SEND_MAX, TRANSFER_MAX};
use farside_base::{AtomicScope, BackPressure, Capabilities, FlushScope, WordScope};
use farside_bootstrap::{Endpoint, Protect, Security};
use farside_fabric::{Arena, PendingLimits};
use std::time::Duration;

/// Options of a [`TcpFabric`](crate::TcpFabric). All hosts of a cluster need the same `security`.
#[derive(Clone, Debug)]
pub struct TcpOptions {
    /// The endpoint at which it listens; port 0 lets the system choose. `None` for a fabric that only
    /// connects.
    pub listen: Option<Endpoint>,
    /// The endpoint that peers dial, if it differs from `listen`: behind address translation, or if the
    /// fabric listens at all addresses of a host.
    pub advertise: Option<Endpoint>,
    /// Endpoints of other fabrics: searched, in this order, for a name without a host.
    pub hosts: Vec<Endpoint>,
    /// Which peers are trusted and what is encrypted.
    pub security: Security,
    /// How long a peer may be silent before its links are lost (`Unreachable`). Each side sends a
    /// keepalive after a sixth of the shorter lease of both without traffic, with timers checked every
    /// twelfth. An outage of up to a third of a lease is survived; the closer it comes to a whole
    /// lease, the less likely.
    pub lease: Duration,
    /// How long the engine polls for more before it sleeps. On dedicated cores some tens of
    /// microseconds save wake-ups; on shared cores they take time from other threads.
    pub spin: Duration,
    /// How long a connection attempt may take at each host, all handshakes included.
    pub connect_timeout: Duration,
    /// How long a request that the peer has received may go without any progress.
    pub request_timeout: Duration,
    /// Which of the kernel's congestion controls its connections use.
    pub congestion: Congestion,
    /// Limits on what peers may use of this host.
    pub limits: TcpLimits,
}

/// Which of the kernel's congestion controls a connection uses. `Port::path` reports the one in use.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Congestion {
    /// The system's, unless that paces by timers (BBR) and another one is permitted: then `cubic`, or
    /// else `reno`. A timer for every segment may cost more than everything else between hosts near
    /// each other, above all in virtual machines.
    #[default]
    Unpaced,
    /// The system's: for long paths that lose packets, for which BBR was made.
    System,
}

impl Congestion {
    /// Returns whether a connection keeps the system's congestion control of this name, if another is
    /// permitted.
    ///
    /// ```
    /// use farside_fabric_tcp::Congestion;
    ///
    /// assert!(Congestion::Unpaced.keeps("cubic") && !Congestion::Unpaced.keeps("bbr"));
    /// assert!(Congestion::System.keeps("bbr"));
    /// ```
    pub fn keeps(self, name: &str) -> bool {
        self == Self::System || !name.starts_with("bbr")
    }
}

/// Limits on what peers may use of a host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TcpLimits {
    /// Connections that have not yet named a port.
    pub handshakes_max: usize,
    /// The same from one address.
    pub handshakes_per_host_max: usize,
    /// Links that one address may have to one port: requests and accepted ones together.
    pub links_per_host_max: usize,
    /// Imported regions of a link.
    pub imports_max: usize,
}

impl TcpLimits {
    /// The defaults.
    pub const DEFAULT: Self = Self {
        handshakes_max: PendingLimits::DEFAULT.pending_max,
        handshakes_per_host_max: PendingLimits::DEFAULT.per_peer_max,
        links_per_host_max: 2048,
        imports_max: 1 << 16,
    };
}

impl TcpLimits {
    /// Returns the limits of connections that have not named a port yet.
    pub(crate) const fn pending(&self) -> PendingLimits {
        let (pending_max, per_peer_max) = (self.handshakes_max, self.handshakes_per_host_max);
        PendingLimits { pending_max, per_peer_max }
    }
}

impl Default for TcpLimits {
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl Default for TcpOptions {
    fn default() -> Self {
        Self {
            listen: None,
            advertise: None,
            hosts: Vec::new(),
            security: Security::open(),
            lease: Duration::from_secs(1),
            spin: farside_base::waiting::TCP_SPIN,
            connect_timeout: Duration::from_secs(3),
            request_timeout: Duration::from_secs(5),
            congestion: Congestion::default(),
            limits: TcpLimits::DEFAULT,
        }
    }
}

impl TcpOptions {
    /// Returns the longest time between two ticks of all links.
    pub(crate) fn tick(&self) -> Duration {
        tick_of(self.lease)
    }

    /// Returns the lease as sent to peers.
    pub(crate) fn lease_ms(&self) -> u32 {
        u32::try_from(self.lease.as_millis()).unwrap_or(u32::MAX)
    }

    /// Returns the name of the first option that is out of its range.
    pub(crate) fn wrong(&self) -> Option<&'static str> {
        let minute = Duration::from_secs(60);
        let table = [
            (self.lease < LEASE_MIN || self.lease > 10 * minute, "lease"),
            (self.spin > Duration::from_millis(10), "spin"),
            (self.connect_timeout.is_zero() || self.connect_timeout > minute, "connect_timeout"),
            (self.request_timeout < self.lease, "request_timeout"),
            (self.limits.handshakes_max == 0, "handshakes_max"),
            (self.limits.handshakes_per_host_max == 0, "handshakes_per_host_max"),
            (self.limits.links_per_host_max == 0, "links_per_host_max"),
        ];
        table.into_iter().find(|(wrong, _)| *wrong).map(|(_, name)| name)
    }
}

/// Returns the time between two ticks of a link with this lease.
pub(crate) fn tick_of(lease: Duration) -> Duration {
    (lease / 12).min(Duration::from_millis(100))
}

/// Returns the lease of a peer from its handshake: very short ones would cost too many keepalives.
pub(crate) fn peer_lease(lease_ms: u32) -> Duration {
    Duration::from_millis(u64::from(lease_ms)).max(LEASE_MIN)
}

/// The shortest lease.
pub(crate) const LEASE_MIN: Duration = Duration::from_millis(10);
/// Most bytes of `Source::Inline`.
pub(crate) const INLINE_MAX: u32 = 512;
/// Most links of a port.
pub(crate) const LINKS_MAX: u32 = 4096;
/// Most slices of a list.
pub(crate) const SLICES_MAX: u32 = 16;

/// Returns the capabilities of every TCP fabric. Bytes of a WRITE are stored by the target's engine, in
/// whole words, and in rising order if the processor shows stores in order. Device memory is modelled
/// as a kind of region with a budget of its own.
pub(crate) fn capabilities(security: &Security) -> Capabilities {
    Capabilities {
        write: true,
        read: true,
        atomics: AtomicScope::System,
        extended_atomics: true,
        atomic_write: true,
        flush: FlushScope::Visible,
        own_memory: true,
        protected: security.protect() == Protect::Everything,
        send: true,
        immediate: true,
        shared_receive_queue: true,
        message_order: true,
        byte_order: Arena::RISING,
        words: WordScope::Any,
        completion_means_placed: true,
        one_sided: true,
        loads: false,
        sleep: true,
        receiver_not_ready: BackPressure::Retried,
        inline_bytes_max: INLINE_MAX,
        send_bytes_max: SEND_MAX,
        transfer_bytes_max: TRANSFER_MAX as u64,
        slices_max: SLICES_MAX,
        outstanding_max: OUTSTANDING_MAX,
        links_max: LINKS_MAX,
        region_bytes_max: 1 << 40,
        mirrored_regions: Arena::MIRRORS,
        device_bytes_max: 256 << 10,
        device_words: true,
    }
}
