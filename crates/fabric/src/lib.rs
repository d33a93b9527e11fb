//! The transport interface of Farside. A [`Fabric`] registers memory and opens [`Port`]s; a port
//! connects, posts work requests and polls completions. Everything that differs between shared memory,
//! InfiniBand, sockets and simulation is below these two traits, and [`conformance`] holds every
//! backend to the same behaviour.
//!
//! Not here: threads, protocols, retries, policies. A fabric only moves bytes.

#![deny(unsafe_code)]

pub mod conformance;
mod count;
mod fault;
mod forward;
mod mem;
#[allow(unsafe_code, reason = "the home of memory that peers change")]
mod memory;
mod parts;
mod pending;
mod reached;
pub mod runtime;
mod trace;
#[cfg(target_os = "linux")]
pub mod user;
mod waiter;

#[doc(hidden)]
pub use farside_base as base;
use farside_base::{
    Access, Capabilities, Completion, FlushScope, LinkId, Receive, ReceiveQueueId, RegionId,
    RegionKind, RegionToken, RemoteRegionId, Work,
};
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

pub use count::{CountFabric, FabricCounts};
pub use farside_base::{Memory, OutOfBounds};
pub use fault::{FaultFabric, FaultPlan};
pub use mem::MemFabric;
pub use memory::{Arena, SharedWord};
pub use parts::Parts;
pub use pending::{PendingConnection, PendingLimits};
pub use reached::Reached;
pub use trace::{TraceEvent, TraceFabric};
pub use waiter::ThreadWaiter;

/// Most bytes of a hello, a reply or a reason, of every fabric, so that a peer cannot fill this
/// side's memory.
pub const HELLO_BYTES_MAX: usize = 16 << 10;

/// The specification of a region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RegionSpec {
    /// Bytes; of a mirrored region, those of one mapping. Rounded up to what the fabric registers (the
    /// region's arena has the actual length).
    pub bytes: u64,
    /// The access of peers.
    pub access: Access,
    /// The kind of memory.
    pub kind: RegionKind,
}

impl RegionSpec {
    /// Checks what every fabric refuses alike; `device_bytes` are those of its existing device regions.
    /// For implementations of fabrics.
    ///
    /// # Errors
    /// `Lacks` for a kind that is not supported, `Limit` for too many bytes.
    pub fn check(&self, has: &Capabilities, device_bytes: u64) -> Result<(), FabricError> {
        match self.kind {
            RegionKind::Memory | RegionKind::Sparse => {}
            RegionKind::Mirrored if has.mirrored_regions => {}
            RegionKind::Mirrored => return Err(FabricError::Lacks("mirrored_regions")),
            RegionKind::Device if has.device_bytes_max == 0 => {
                return Err(FabricError::Lacks("device_memory"));
            }
            RegionKind::Device => {
                if self.bytes > has.device_bytes_max.saturating_sub(device_bytes) {
                    return Err(FabricError::Limit("device_bytes_max"));
                }
            }
            _ => return Err(FabricError::Lacks("region kind")),
        }
        if self.access.allows(Access::FLUSH) && has.flush == FlushScope::None {
            return Err(FabricError::Lacks("flush"));
        }
        // Memory that a fabric allocates does not survive a power failure.
        if self.access.allows(Access::FLUSH_PERSISTENT) {
            return Err(FabricError::Lacks("persistent memory"));
        }
        if self.bytes > has.region_bytes_max / self.kind.turns() {
            return Err(FabricError::Limit("region_bytes_max"));
        }
        Ok(())
    }

    /// Allocates zeroed memory of this process for such a region. Device memory is ordinary memory too,
    /// for there is no adapter. For implementations of fabrics.
    ///
    /// # Errors
    /// `System` if there is no memory.
    pub fn memory(&self) -> Result<Arena, FabricError> {
        let bytes =
            usize::try_from(self.bytes).map_err(|_| FabricError::Limit("region_bytes_max"))?;
        let memory = match self.kind {
            RegionKind::Mirrored => Arena::mirrored(bytes),
            _ => Arena::try_heap(bytes),
        };
        memory.map_err(|reason| FabricError::System("memory", reason))
    }
}

/// Device memory that the processor cannot address: its owner reaches it by calls that copy.
///
/// *Order.* Words as [`Memory`] specifies, if [`Capabilities::device_words`] is true; otherwise a store
/// may be seen as its new low half with the old high half first. A load returns the word as it was at
/// one moment. Copies are of whole aligned words of four bytes.
pub trait DeviceMemory: Memory + fmt::Debug + Send + Sync {}

impl<M: Memory + fmt::Debug + Send + Sync> DeviceMemory for M {}

/// A registered region: memory that this process uses through `arena` and peers through `token`.
#[derive(Clone, Debug)]
pub struct Region {
    /// Its number, for work requests of this process.
    pub id: RegionId,
    /// The memory; empty if `device` has the bytes.
    pub arena: Arena,
    /// What a peer needs to import it.
    pub token: RegionToken,
    /// The memory of a region at an adapter that the processor cannot address.
    pub device: Option<Arc<dyn DeviceMemory>>,
}

impl Region {
    /// Returns the memory, of either kind.
    #[inline]
    pub fn memory(&self) -> &dyn Memory {
        match &self.device {
            Some(device) => &**device,
            None => &self.arena,
        }
    }
}

/// Why a control call failed.
#[derive(Debug)]
#[non_exhaustive]
pub enum FabricError {
    /// The fabric lacks what was requested; the name of the capability.
    Lacks(&'static str),
    /// A number or token is unknown or stale.
    Unknown(&'static str),
    /// The address is in use.
    AddressInUse(String),
    /// No port listens at the address.
    NoListener(String),
    /// The peer belongs to another user.
    NotPermitted(String),
    /// The peer's process is gone.
    PeerLost,
    /// A limit of [`Capabilities`] was passed; its name.
    Limit(&'static str),
    /// The operating system refused: the operation, and its reason.
    System(&'static str, std::io::Error),
}

/// Returns the remedy for a missing capability, if it is not obvious.
fn remedy(name: &str) -> &'static str {
    match name {
        "flush" | "persistent flush" => {
            ": see `Capabilities::flush_way` for its replacement on this fabric"
        }
        "persistent memory" => {
            ": what it makes itself is gone with the power; map a DAX device or file and bring that to \
             `register_memory`"
        }
        _ => "",
    }
}

/// Returns the limit that an error of the system means, of this process or the machine, with its value
/// and the remedy; empty if it means none. `what` was requested.
#[cfg(target_os = "linux")]
pub fn limit_reached(what: &str, reason: &std::io::Error) -> String {
    use rustix::io::Errno;
    use rustix::process::{Resource, getrlimit};
    let (name, resource, option) = match Errno::from_io_error(reason) {
        Some(Errno::MFILE) => ("RLIMIT_NOFILE", Resource::Nofile, "-n"),
        Some(Errno::AGAIN) if what.ends_with("thread") => ("RLIMIT_NPROC", Resource::Nproc, "-u"),
        Some(Errno::NFILE) => {
            return "; the machine has no descriptor left: raise fs.file-max (sysctl)".to_owned();
        }
        _ => return String::new(),
    };
    let most =
        getrlimit(resource).current.map_or("without end".to_owned(), |most| most.to_string());
    format!(
        "; {name} is {most}: raise that limit (ulimit {option}), or start fewer nodes and links"
    )
}

/// Limits of a process are known by name on Linux alone.
#[cfg(not(target_os = "linux"))]
pub const fn limit_reached(_: &str, _: &std::io::Error) -> String {
    String::new()
}

impl fmt::Display for FabricError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lacks(name) => write!(f, "the fabric lacks `{name}`{}", remedy(name)),
            Self::Unknown(what) => write!(f, "unknown {what}"),
            Self::AddressInUse(address) => write!(f, "address {address} is in use"),
            Self::NoListener(address) => write!(f, "no port listens at {address}"),
            Self::NotPermitted(who) => write!(f, "not permitted: {who}"),
            Self::PeerLost => write!(f, "the peer is gone"),
            Self::Limit(name) => write!(f, "over the fabric's limit `{name}`"),
            Self::System(what, reason) => {
                write!(f, "{what}: {reason}{}", limit_reached(what, reason))
            }
        }
    }
}

impl std::error::Error for FabricError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::System(_, reason) => Some(reason),
            _ => None,
        }
    }
}

/// The specification of a port.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PortSpec {
    /// Name to listen at, unique within the fabric's scope; `None` for a port that only connects.
    /// For shm the scope is the folder of this user that its documentation names. For fabrics between
    /// hosts it is the fabric's own listening address, and peers connect to `HOST:PORT/NAME`
    /// ([`Port::address`]).
    pub listen: Option<String>,
}

/// The control path of a transport: rare operations, which may block for a system call.
pub trait Fabric: Send + Sync {
    /// `shm`, `mem`, `sim`, ...
    fn name(&self) -> &'static str;

    /// Returns what it supports and guarantees. Fixed for the life of the fabric.
    fn capabilities(&self) -> Capabilities;

    /// Returns the address at which other hosts reach the listening ports of this fabric, for `connect`
    /// of `HOST:PORT/NAME`. `None` if all reachable ports share one scope of names, and for fabrics
    /// that only connect.
    fn host(&self) -> Option<SocketAddr> {
        None
    }

    /// Returns the NUMA node of the adapter. `None` without an adapter, and where the system does not report it.
    fn numa_node(&self) -> Option<u32> {
        None
    }

    /// Returns how long a peer may be silent before its links are lost as [`Loss::Unreachable`]. Zero
    /// if a live peer is always reached.
    fn lease_ns(&self) -> u64 {
        0
    }

    /// Returns the time by which programs over this fabric measure waits, from a start of its own; rises only.
    fn time_ns(&self) -> u64 {
        runtime::Instant::now().ns()
    }

    /// Registers a region of zeroed memory with a fresh random key.
    ///
    /// # Errors
    /// `Limit` (`region_bytes_max`, `device_bytes_max`), `Lacks` for a kind that is not supported
    /// (`mirrored_regions`, `device_memory`) or for access that it cannot grant (`flush`, `persistent
    /// memory`), `System` if there is no memory.
    fn register(&self, spec: &RegionSpec) -> Result<Region, FabricError>;

    /// Registers memory that the caller provides and keeps mapped (a file of persistent memory, for
    /// example). Peers reach it until the region is deregistered; the memory stays mapped while its
    /// arena lives.
    ///
    /// # Errors
    /// `Lacks("own_memory")`, `Limit`, `System` if the adapter refuses this kind of memory or such
    /// access to it.
    fn register_memory(&self, memory: Arena, access: Access) -> Result<Region, FabricError>;

    /// Ends a region: when this returns, no request of any peer reaches the memory any more.
    ///
    /// # Errors
    /// `Unknown` when it was ended before.
    fn deregister(&self, region: RegionId) -> Result<(), FabricError>;

    /// Opens a port. Regions of this fabric can be used by all its ports.
    ///
    /// # Errors
    /// `AddressInUse` when another port listens at that name already; `System`.
    fn open(&self, spec: &PortSpec) -> Result<Box<dyn Port>, FabricError>;
}

/// The result of `post`: how many requests it took, and why it stopped if it did not take all.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub struct Posted {
    /// Requests taken, from the front. After a poll that left nothing, a link takes at least
    /// `outstanding_max` of them before the next poll.
    pub accepted: usize,
    /// Why the next one was not taken.
    pub stop: Option<Stop>,
}

/// Why `post` did not take a request. Nothing of that request has happened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Stop {
    /// No room for its completion or in its send queue: poll, then post it again.
    QueueFull,
    /// The peer has posted no receive (`BackPressure::AtPost`): post it again later.
    ReceiverNotReady,
    /// The request is invalid at this fabric; the reason: `link`, `local region`, `local bounds`,
    /// `remote region`, `too many slices`, `inline too long`, `send too long`, `transfer too long`,
    /// `atomic slice`, `receive queue`, `lacks <capability>`.
    Invalid(&'static str),
}

/// An event of a link, outside the data path.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum LinkEvent {
    /// A peer wants to connect; answer with `accept` or `refuse`.
    Requested {
        /// The new link, not yet usable.
        link: LinkId,
        /// The peer's hello.
        hello: Vec<u8>,
    },
    /// The peer accepted; the link is usable.
    Connected {
        /// The link of `connect`.
        link: LinkId,
        /// The peer's reply.
        reply: Vec<u8>,
    },
    /// The peer refused; the link is gone.
    Refused {
        /// The link of `connect`.
        link: LinkId,
        /// Why.
        reason: Vec<u8>,
    },
    /// `connect` failed: no port listens at the address, or it cannot be reached. The link is gone.
    /// Fabrics that know at once return an error from `connect` instead.
    NotReached {
        /// The link of `connect`.
        link: LinkId,
        /// Why.
        why: NotReached,
    },
    /// The peer's process or port is gone, or closed the link. Work on it completes as `PeerLost`, then
    /// `Flushed`. Messages that arrived before are delivered before this event. The link counts towards
    /// `links_max` until it is closed locally too.
    Lost {
        /// The link.
        link: LinkId,
        /// What is known of the peer.
        loss: Loss,
    },
}

/// What is known of the process at the other end of a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum PeerProcess {
    /// It is this process, or on another machine, or the link is not up.
    Elsewhere,
    /// It is on this machine, in another namespace of processes.
    Hidden,
    /// It has this process number in this namespace.
    Number(u32),
}

/// Why `connect` reached no port.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[non_exhaustive]
pub enum NotReached {
    /// The host is there, but no port listens at that name.
    NoListener,
    /// The peer does not trust this process, or this process does not trust the peer.
    NotPermitted,
    /// The connection was made and closed before an answer: the peer has ended, or its listener was
    /// full and dropped this connection for another. A later attempt may succeed.
    HungUp,
    /// No answer in time, or no route to the host.
    Unreachable,
}

/// What is known of the peer of a link that was lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[non_exhaustive]
pub enum Loss {
    /// Its process or port has ended, or it closed the link.
    Ended,
    /// It was silent for too long, or the network path failed: the peer may live on and believe that
    /// this side is gone.
    Unreachable,
}

impl LinkEvent {
    /// Returns the link of the event.
    pub const fn link(&self) -> LinkId {
        match self {
            Self::Requested { link, .. }
            | Self::Connected { link, .. }
            | Self::Refused { link, .. }
            | Self::NotReached { link, .. }
            | Self::Lost { link, .. } => *link,
        }
    }
}

/// Wakes and puts to sleep, without holding the port.
pub trait Waiter: Send + Sync {
    /// Sleeps until something arrives after the port was armed, `wake` is called or the timeout
    /// expires. Returns false only on timeout. May return early.
    fn wait(&self, timeout: Option<Duration>) -> bool;

    /// Wakes the sleeper, or lets the next `wait` return at once.
    fn wake(&self);
}

/// The outcome of [`Port::run_now`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum RunNow {
    /// It has moved this number of bytes.
    Done(u32),
    /// It has had no effect. Post it, which also reports what is wrong with it.
    NotRun,
    /// An atomic whose link ended meanwhile: it has had its effect or not.
    Unknown,
}

/// One queue pair set: links, one completion queue, receive queues. Used by one thread at a time.
pub trait Port: Send {
    /// Posts requests in order, with one doorbell. Requests on one link take effect in order if
    /// `Capabilities::message_order` says so. A request to a lost link is taken and completes with an
    /// error. Never blocks, never allocates; calls the kernel only if the fabric has no other way (to
    /// send through a socket, to wake a peer).
    fn post(&mut self, work: &[Work<'_>]) -> Posted;

    /// Carries out one request within the call, on fabrics whose requests the processor of the poster executes. There is
    /// no completion.
    ///
    /// *Order*: takes effect after all that was posted on its link before. Never messages. Never blocks, never
    /// allocates, never calls the kernel.
    fn run_now(&mut self, _work: &Work<'_>) -> RunNow {
        RunNow::NotRun
    }

    /// Adds receives to their queues. Never blocks.
    fn post_receives(&mut self, receives: &[Receive]) -> Posted;

    /// Takes completions, oldest first per link. Returns how many were written to the front of `out`.
    /// Never blocks; calls the kernel as [`post`](Self::post) does.
    fn poll(&mut self, out: &mut [Completion]) -> usize;

    /// Takes the link events since the last call. Costs one load if there are none.
    fn link_events(&mut self, out: &mut Vec<LinkEvent>);

    /// Announces that the caller is about to sleep on the waiter: from now on any arrival wakes it.
    /// Returns true if something has already arrived, so the caller must poll instead of sleeping.
    fn arm(&mut self) -> bool;

    /// Takes the announcement back after sleeping.
    fn disarm(&mut self);

    /// Returns the waiter to sleep on.
    fn waiter(&self) -> Arc<dyn Waiter>;

    /// Wakes `waiter` too for every link event of this port from now on, armed or not; of several the
    /// last counts, and completions wake none. For a thread that has several ports and sleeps on one of
    /// them. Never blocks.
    fn wake_also(&mut self, waiter: Arc<dyn Waiter>);

    /// Returns the address by which peers reach this port: the name at which it listens, with host and
    /// port if the fabric has hosts. `None` for a port that only connects.
    fn address(&self) -> Option<String>;

    /// Creates a receive queue for at most `depth` receives, which links may share.
    ///
    /// # Errors
    /// `Limit`.
    fn create_receive_queue(&mut self, depth: usize) -> Result<ReceiveQueueId, FabricError>;

    /// Destroys a receive queue that no link uses any more. Receives without a message are dropped
    /// without completions; completed ones may still be polled. Its number may be reused.
    ///
    /// # Errors
    /// `Unknown` if there is none, `Limit("receive queue in use")` while a link that is not closed uses
    /// it; nothing has happened then.
    fn destroy_receive_queue(&mut self, queue: ReceiveQueueId) -> Result<(), FabricError>;

    /// Starts to connect; `Connected`, `Refused`, `NotReached` or `Lost` follows as an event. Never
    /// waits for the network.
    ///
    /// # Errors
    /// `NoListener` and `NotPermitted` if that is known at once, `Unknown` for an invalid address,
    /// `Limit`, `System`.
    fn connect(
        &mut self,
        to: &str,
        hello: &[u8],
        receives: ReceiveQueueId,
    ) -> Result<LinkId, FabricError>;

    /// Accepts a requested link; it is usable when this returns.
    ///
    /// # Errors
    /// `Unknown` if there is no such request, `PeerLost` if the peer has gone meanwhile.
    fn accept(
        &mut self,
        link: LinkId,
        reply: &[u8],
        receives: ReceiveQueueId,
    ) -> Result<(), FabricError>;

    /// Refuses a requested link.
    ///
    /// # Errors
    /// `Unknown` when there is no such request.
    fn refuse(&mut self, link: LinkId, reason: &[u8]) -> Result<(), FabricError>;

    /// Makes a peer's region usable on a link. May block for one control round trip to the peer's
    /// fabric (never to its program).
    ///
    /// # Errors
    /// `Unknown` when the token is not valid (any more), `PeerLost`.
    fn import(&mut self, link: LinkId, token: &RegionToken) -> Result<RemoteRegionId, FabricError>;

    /// As [`import`](Self::import), without waiting for the peer: `None` while its answer is pending.
    /// Call it again then, with the same arguments; the answer wakes a thread that sleeps on the port.
    ///
    /// # Errors
    /// As `import`; `System` when the peer has not answered in time.
    fn try_import(
        &mut self,
        link: LinkId,
        token: &RegionToken,
    ) -> Result<Option<RemoteRegionId>, FabricError> {
        self.import(link, token).map(Some)
    }

    /// Returns an imported region itself, if this processor reaches it by loads: for reading its bytes
    /// without a request or a copy. `None` if it must be READ, for regions without READ access, and for
    /// links that are not up. See [`Reached`] for the visibility of stores.
    fn reach(&self, link: LinkId, region: RemoteRegionId) -> Option<Reached>;

    /// Returns one aligned word of an imported region, if this processor reaches it by loads and
    /// stores. `None` where [`reach`](Self::reach) returns it, for regions without READ and WRITE
    /// access, and for a word that passes the end.
    ///
    /// *Guarantees*: stays readable and writable after the link was closed or lost, and after the
    /// region was deregistered, so that it can notify its owner when nothing else can. A store is seen
    /// by the owner's processor like that of another thread of the owner.
    fn reach_word(&self, link: LinkId, region: RemoteRegionId, offset: u64) -> Option<SharedWord>;

    /// Closes a link; the peer sees `Lost`, and no local event about it follows. Requests that the peer
    /// knows to be complete are complete. Never waits for the peer. Idempotent.
    ///
    /// *Guarantees*: no request of the peer that begins after this reaches memory here. Once
    /// [`may_land`](Self::may_land) returns false, none that began before does either: memory that the
    /// peer could write may be reused from then on.
    fn close(&mut self, link: LinkId);

    /// Returns whether a request that the peer began before this end closed the link may still reach
    /// memory here. True only if the peer's processor itself copies into this memory: its thread may be
    /// stopped within a copy, and continue at any time. Until this returns false, do not reuse memory
    /// that the peer could write. Once false for a closed link it does not change. False for a link
    /// that is not closed.
    ///
    /// *Cost*: after a close without such a request, a table lookup; else up to one system call.
    fn may_land(&mut self, _link: LinkId) -> bool {
        false
    }

    /// Returns the process at the other end of a link.
    fn peer_process(&self, _link: LinkId) -> PeerProcess {
        PeerProcess::Elsewhere
    }

    /// Returns which path a link uses and why, for display.
    fn path(&self, link: LinkId) -> String;

    /// Returns why a link failed: cause, fault and remedy, for display. `None` for a link without a
    /// failure, and if no more is known than its completions say.
    fn trouble(&self, link: LinkId) -> Option<String>;
}
