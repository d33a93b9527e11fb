//! librdmacm, loaded at run time: identifiers, their events, and the states of this crate's queue
//! pairs.
//!
//! | who | may do | when |
//! | --- | --- | --- |
//! | the control thread | take events of an [`EventChannel`], copied and acknowledged at once | while it has it |
//! | holders of an [`Id`], any thread | start its next step (librdmacm locks) | until the last `Arc` is dropped |
//! | the last owner of an [`Id`]'s `Arc` | wait until the kernel has released it | never the control thread |
//!
//! Queue pairs are not created here: one is named by its number, which both of the kernel's connection
//! managers (InfiniBand's and iWARP's) accept from any context of the same device.

use super::device::{check, made, text};
use super::library::{NoLibrary, Opened, functions};
use super::queue_pair::QueuePairHandle;
use super::types::*;
use std::ffi::{c_int, c_void};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::ptr::{NonNull, null_mut};
use std::sync::{Arc, Mutex, PoisonError};

/// The default library.
pub const CONNECTION_MANAGER: &str = "librdmacm.so.1";

/// `RDMA_PS_TCP`: reliable connections.
const PORT_SPACE: c_int = 0x0106;

functions! {
    ManagerLibrary
    required {
        create_event_channel: "rdma_create_event_channel"
            unsafe extern "C" fn() -> *mut rdma_event_channel;
        destroy_event_channel: "rdma_destroy_event_channel"
            unsafe extern "C" fn(*mut rdma_event_channel);
        create_id: "rdma_create_id"
            unsafe extern "C" fn(
                *mut rdma_event_channel, *mut *mut rdma_cm_id, *mut c_void, c_int,
            ) -> c_int;
        destroy_id: "rdma_destroy_id" unsafe extern "C" fn(*mut rdma_cm_id) -> c_int;
        bind_addr: "rdma_bind_addr"
            unsafe extern "C" fn(*mut rdma_cm_id, *mut libc::sockaddr) -> c_int;
        listen: "rdma_listen" unsafe extern "C" fn(*mut rdma_cm_id, c_int) -> c_int;
        /// In network byte order.
        get_src_port: "rdma_get_src_port" unsafe extern "C" fn(*mut rdma_cm_id) -> u16;
        resolve_addr: "rdma_resolve_addr"
            unsafe extern "C" fn(
                *mut rdma_cm_id, *mut libc::sockaddr, *mut libc::sockaddr, c_int,
            ) -> c_int;
        resolve_route: "rdma_resolve_route" unsafe extern "C" fn(*mut rdma_cm_id, c_int) -> c_int;
        connect: "rdma_connect"
            unsafe extern "C" fn(*mut rdma_cm_id, *mut rdma_conn_param) -> c_int;
        accept: "rdma_accept"
            unsafe extern "C" fn(*mut rdma_cm_id, *mut rdma_conn_param) -> c_int;
        reject: "rdma_reject" unsafe extern "C" fn(*mut rdma_cm_id, *const c_void, u8) -> c_int;
        get_cm_event: "rdma_get_cm_event"
            unsafe extern "C" fn(*mut rdma_event_channel, *mut *mut rdma_cm_event) -> c_int;
        ack_cm_event: "rdma_ack_cm_event" unsafe extern "C" fn(*mut rdma_cm_event) -> c_int;
    }
    optional {
        establish: "rdma_establish" unsafe extern "C" fn(*mut rdma_cm_id) -> c_int;
        init_qp_attr: "rdma_init_qp_attr"
            unsafe extern "C" fn(*mut rdma_cm_id, *mut ibv_qp_attr, *mut c_int) -> c_int;
    }
}

impl ManagerLibrary {
    /// Returns the library of this name or path; opened once, never closed.
    ///
    /// # Errors
    /// If it is not installed, or not such a library.
    pub(crate) fn load(name: &str) -> Result<Arc<Self>, NoLibrary> {
        static LOADED: Mutex<Vec<(String, Arc<ManagerLibrary>)>> = Mutex::new(Vec::new());
        let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, known)) = loaded.iter().find(|(known, _)| known == name) {
            return Ok(Arc::clone(known));
        }
        let library = Arc::new(Self::of(Opened::open(name)?)?);
        loaded.push((name.to_owned(), Arc::clone(&library)));
        Ok(library)
    }
}

/// The channel of identifiers' events. Its descriptor is non-blocking.
pub(crate) struct EventChannel {
    library: Arc<ManagerLibrary>,
    raw: NonNull<rdma_event_channel>,
}

// SAFETY: librdmacm may be called from any thread; the descriptor is fixed.
unsafe impl Send for EventChannel {}
// SAFETY: as above.
unsafe impl Sync for EventChannel {}

/// Something that happened to an identifier.
#[derive(Debug)]
pub(crate) struct ManagerEvent {
    /// `rdma_cm_event_type`.
    pub(crate) number: u32,
    /// Zero, an error number (negative), or a reason of the peer's kernel.
    pub(crate) status: i32,
    /// The token with which the identifier was created or marked.
    pub(crate) token: u64,
    /// The private data of the peer, for a request; InfiniBand pads it with zeroes.
    pub(crate) said: Vec<u8>,
    /// Of a request: the identifier to accept or reject it with.
    pub(crate) request: Option<Id>,
}

/// `RDMA_CM_EVENT_CONNECT_REQUEST`.
const CONNECT_REQUEST: u32 = 4;

impl EventChannel {
    /// # Errors
    /// Errors of the system; `ENODEV` or `ENOENT` if the kernel's module `rdma_ucm` is not loaded.
    pub(crate) fn new(library: &Arc<ManagerLibrary>) -> io::Result<Arc<Self>> {
        // SAFETY: takes nothing.
        let raw = made(unsafe { (library.create_event_channel)() })?;
        let channel = Self { library: Arc::clone(library), raw };
        let descriptor = channel.descriptor();
        // SAFETY: changes flags of a descriptor of this channel.
        let done = unsafe {
            let flags = libc::fcntl(descriptor, libc::F_GETFL);
            libc::fcntl(descriptor, libc::F_SETFL, flags | libc::O_NONBLOCK)
        };
        if done < 0 { Err(io::Error::last_os_error()) } else { Ok(Arc::new(channel)) }
    }

    fn descriptor(&self) -> c_int {
        // SAFETY: lives as long as self; fixed.
        unsafe { self.raw.as_ref().fd }
    }

    /// Returns the descriptor to wait for.
    pub(crate) fn borrowed(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is open as long as self.
        unsafe { BorrowedFd::borrow_raw(self.descriptor()) }
    }

    /// Returns the next event, if there is one.
    pub(crate) fn next(self: &Arc<Self>) -> Option<ManagerEvent> {
        let mut event = null_mut();
        // SAFETY: writes one pointer; does not wait, since the descriptor does not block.
        let done = unsafe { (self.library.get_cm_event)(self.raw.as_ptr(), &raw mut event) };
        let event = NonNull::new(event).filter(|_| done == 0)?;
        // SAFETY: an event lives until it is acknowledged below, and its identifier as long; the
        // private data is as long as the event says.
        let taken = unsafe {
            let fields = event.as_ref();
            let (length, start) = (fields.conn.private_data_len, fields.conn.private_data);
            let is_request = fields.event == CONNECT_REQUEST;
            let said = match start.is_null() || !is_request {
                true => Vec::new(),
                false => std::slice::from_raw_parts(start.cast(), length.into()).to_vec(),
            };
            let request = NonNull::new(fields.id).filter(|_| is_request);
            ManagerEvent {
                number: fields.event,
                status: fields.status,
                token: NonNull::new(fields.id).map_or(0, |id| id.as_ref().context.addr() as u64),
                said,
                request: request.map(|raw| Id { channel: Arc::clone(self), raw }),
            }
        };
        // SAFETY: the event that was just taken, once.
        unsafe { (self.library.ack_cm_event)(event.as_ptr()) };
        Some(taken)
    }
}

impl Drop for EventChannel {
    fn drop(&mut self) {
        // SAFETY: every identifier held its `Arc`.
        unsafe { (self.library.destroy_event_channel)(self.raw.as_ptr()) };
    }
}

/// The parameters of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Terms {
    pub(crate) queue_pair: u32,
    /// READs and atomics that this end may have outstanding, and that it takes.
    pub(crate) reads_out: u8,
    pub(crate) reads_in: u8,
    pub(crate) retries: u8,
    pub(crate) not_ready_retries: u8,
    /// `ibv_mtu`: the most that both ends take.
    pub(crate) mtu: u8,
    /// 4.096 us times two to this.
    pub(crate) timeout: u8,
    pub(crate) not_ready_timer: u8,
}

impl Terms {
    fn parameters(&self, said: &[u8]) -> rdma_conn_param {
        rdma_conn_param {
            private_data: if said.is_empty() { std::ptr::null() } else { said.as_ptr().cast() },
            private_data_len: u8::try_from(said.len()).unwrap_or(0),
            responder_resources: self.reads_in,
            initiator_depth: self.reads_out,
            flow_control: 1,
            retry_count: self.retries,
            rnr_retry_count: self.not_ready_retries,
            srq: 1,
            qp_num: self.queue_pair,
        }
    }
}

/// A connection to be, or one that is. Dropping it ends the connection, and may wait for the kernel.
#[derive(Debug)]
pub(crate) struct Id {
    channel: Arc<EventChannel>,
    raw: NonNull<rdma_cm_id>,
}

// SAFETY: librdmacm may be called from any thread, and locks what it must.
unsafe impl Send for Id {}
// SAFETY: as above; the one field that is written here needs `&mut`.
unsafe impl Sync for Id {}

impl Id {
    /// Creates an identifier whose events carry `token`.
    ///
    /// # Errors
    /// Errors of the system.
    pub(crate) fn new(channel: &Arc<EventChannel>, token: u64) -> io::Result<Self> {
        let mut raw = null_mut();
        let context = std::ptr::without_provenance_mut(usize::try_from(token).unwrap_or(0));
        let create = channel.library.create_id;
        // SAFETY: a channel that lives; the context is a number that is never dereferenced.
        check(unsafe { create(channel.raw.as_ptr(), &raw mut raw, context, PORT_SPACE) })?;
        Ok(Self { channel: Arc::clone(channel), raw: made(raw)? })
    }

    /// Lets its further events carry `token`.
    pub(crate) fn mark(&mut self, token: u64) {
        let context = std::ptr::without_provenance_mut(usize::try_from(token).unwrap_or(0));
        // SAFETY: it lives, and librdmacm only passes the field on.
        unsafe { self.raw.as_mut().context = context };
    }

    /// Takes an address of this host, any port; the device that it leads to follows from that.
    ///
    /// # Errors
    /// `ENODEV` when the address leads to no RDMA device, `EADDRNOTAVAIL` when it is none of this host.
    pub(crate) fn bind(&self, address: IpAddr) -> io::Result<()> {
        let mut at = storage(SocketAddr::new(address, 0));
        // SAFETY: it lives; the address is read during the call.
        check(unsafe { (self.channel.library.bind_addr)(self.raw.as_ptr(), (&raw mut at).cast()) })
    }

    /// # Errors
    /// Errors of the system.
    pub(crate) fn listen(&self, backlog: c_int) -> io::Result<u16> {
        let library = &self.channel.library;
        // SAFETY: it lives.
        check(unsafe { (library.listen)(self.raw.as_ptr(), backlog) })?;
        // SAFETY: it lives.
        Ok(u16::from_be(unsafe { (library.get_src_port)(self.raw.as_ptr()) }))
    }

    /// Device and port that it is bound to.
    pub(crate) fn device(&self) -> Option<(String, u8)> {
        // SAFETY: it lives; once it is bound, its context and device are never closed.
        unsafe {
            let fields = self.raw.as_ref();
            let context = NonNull::new(fields.verbs)?;
            let device = NonNull::new(context.as_ref().device)?;
            Some((text(&device.as_ref().name), fields.port_num))
        }
    }

    /// Starts to resolve the address of a peer; an event reports the result.
    ///
    /// # Errors
    /// Immediate errors of the system.
    pub(crate) fn resolve(&self, from: IpAddr, to: SocketAddr, time_ms: c_int) -> io::Result<()> {
        let (mut from, mut to) = (storage(SocketAddr::new(from, 0)), storage(to));
        let resolve = self.channel.library.resolve_addr;
        // SAFETY: it lives; the addresses are read during the call.
        check(unsafe {
            let (from, to) = ((&raw mut from).cast(), (&raw mut to).cast());
            resolve(self.raw.as_ptr(), from, to, time_ms)
        })
    }

    /// Starts to resolve the route to the address; an event reports the result.
    ///
    /// # Errors
    /// Immediate errors of the system.
    pub(crate) fn resolve_route(&self, time_ms: c_int) -> io::Result<()> {
        // SAFETY: it lives.
        check(unsafe { (self.channel.library.resolve_route)(self.raw.as_ptr(), time_ms) })
    }

    /// Requests a connection from the peer. The kernel's iWARP part may wait for the peer's TCP
    /// meanwhile.
    ///
    /// # Errors
    /// Immediate errors of the system; an event reports later ones.
    pub(crate) fn connect(&self, terms: &Terms, said: &[u8]) -> io::Result<()> {
        let mut parameters = terms.parameters(said);
        // SAFETY: it lives; parameters and what they point to are read during the call.
        check(unsafe { (self.channel.library.connect)(self.raw.as_ptr(), &raw mut parameters) })
    }

    /// Accepts a request.
    ///
    /// # Errors
    /// Immediate errors of the system; an event reports later ones.
    pub(crate) fn accept(&self, terms: &Terms) -> io::Result<()> {
        let mut parameters = terms.parameters(&[]);
        // SAFETY: it lives; the parameters are read during the call.
        check(unsafe { (self.channel.library.accept)(self.raw.as_ptr(), &raw mut parameters) })
    }

    /// Refuses a request.
    pub(crate) fn reject(&self) {
        let reject = self.channel.library.reject;
        // SAFETY: it lives. Fails only for a request that is gone, which needs no refusal.
        let _ = unsafe { reject(self.raw.as_ptr(), std::ptr::null(), 0) };
    }

    /// Reports to the peer that this side's queue pair is connected. InfiniBand only.
    ///
    /// # Errors
    /// Errors of the system; `Unsupported` for a library that is too old.
    pub(crate) fn establish(&self) -> io::Result<()> {
        let establish = self.channel.library.establish.ok_or(io::ErrorKind::Unsupported)?;
        // SAFETY: it lives.
        check(unsafe { establish(self.raw.as_ptr()) })
    }

    /// Moves an initialised queue pair to ready-to-receive and ready-to-send, as negotiated by the
    /// kernel's handshake and within the terms. InfiniBand only; may wait for the peer's hardware
    /// address.
    ///
    /// # Errors
    /// Errors of the system; `Unsupported` for a library that is too old.
    pub(crate) fn join(&self, pair: &QueuePairHandle, terms: &Terms) -> io::Result<()> {
        let (mut attributes, mut mask) = self.attributes(IBV_QPS_RTR)?;
        attributes.path_mtu = attributes.path_mtu.min(terms.mtu.into());
        attributes.min_rnr_timer = terms.not_ready_timer;
        mask |= IBV_QP_MIN_RNR_TIMER;
        pair.modify(&mut attributes, mask)?;
        let (mut attributes, mask) = self.attributes(IBV_QPS_RTS)?;
        attributes.timeout = terms.timeout;
        attributes.retry_cnt = terms.retries;
        attributes.rnr_retry = terms.not_ready_retries;
        pair.modify(&mut attributes, mask)
    }

    fn attributes(&self, state: c_int) -> io::Result<(ibv_qp_attr, c_int)> {
        let init = self.channel.library.init_qp_attr.ok_or(io::ErrorKind::Unsupported)?;
        let mut attributes = ibv_qp_attr { qp_state: state, ..Default::default() };
        let mut mask = 0;
        // SAFETY: it lives; fills both.
        check(unsafe { init(self.raw.as_ptr(), &raw mut attributes, &raw mut mask) })?;
        Ok((attributes, mask))
    }
}

impl Drop for Id {
    fn drop(&mut self) {
        // SAFETY: destroyed once; every event of it is acknowledged when it is taken.
        unsafe { (self.channel.library.destroy_id)(self.raw.as_ptr()) };
    }
}

impl std::fmt::Debug for EventChannel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("EventChannel")
    }
}

/// C's form of an address.
fn storage(address: SocketAddr) -> libc::sockaddr_storage {
    // SAFETY: plain numbers, for which zero is a value.
    let mut out: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
    let start = &raw mut out;
    match address {
        SocketAddr::V4(four) => {
            // SAFETY: plain numbers, for which zero is a value.
            let mut fields: libc::sockaddr_in = unsafe { std::mem::zeroed() };
            fields.sin_family = libc::AF_INET as libc::sa_family_t;
            fields.sin_port = four.port().to_be();
            fields.sin_addr.s_addr = u32::from_ne_bytes(four.ip().octets());
            // SAFETY: a storage has room and alignment for each form.
            unsafe { start.cast::<libc::sockaddr_in>().write(fields) };
        }
        SocketAddr::V6(six) => {
            // SAFETY: plain numbers, for which zero is a value.
            let mut fields: libc::sockaddr_in6 = unsafe { std::mem::zeroed() };
            fields.sin6_family = libc::AF_INET6 as libc::sa_family_t;
            fields.sin6_port = six.port().to_be();
            fields.sin6_addr.s6_addr = six.ip().octets();
            fields.sin6_scope_id = six.scope_id();
            // SAFETY: as above.
            unsafe { start.cast::<libc::sockaddr_in6>().write(fields) };
        }
    }
    out
}

/// Returns the addresses of this host's network devices, in the system's order, without loopback and
/// link-local addresses.
///
/// # Errors
/// Errors of the system.
pub(crate) fn own_addresses() -> io::Result<Vec<IpAddr>> {
    let mut first = null_mut();
    // SAFETY: writes the start of a list, which is freed below.
    check(unsafe { libc::getifaddrs(&raw mut first) })?;
    let (mut all, mut next) = (Vec::new(), first);
    while let Some(entry) = NonNull::new(next) {
        // SAFETY: an entry of the list, which is not freed yet.
        let entry = unsafe { entry.as_ref() };
        next = entry.ifa_next;
        // SAFETY: an address of the list, or null.
        all.extend(unsafe { number(entry.ifa_addr) });
    }
    // SAFETY: the list of above, once; nothing points into it any more.
    unsafe { libc::freeifaddrs(first) };
    all.retain(|address| {
        let local = matches!(address, IpAddr::V6(six) if six.is_unicast_link_local());
        !address.is_loopback() && !local
    });
    Ok(all)
}

/// Returns the number of an address.
///
/// # Safety
/// It is null, or an address as long as its family has them.
unsafe fn number(address: *const libc::sockaddr) -> Option<IpAddr> {
    if address.is_null() {
        return None;
    }
    // SAFETY: as promised; read without a claim about alignment.
    unsafe {
        match c_int::from((*address).sa_family) {
            libc::AF_INET => {
                let fields = address.cast::<libc::sockaddr_in>().read_unaligned();
                Some(Ipv4Addr::from(fields.sin_addr.s_addr.to_ne_bytes()).into())
            }
            libc::AF_INET6 => {
                let fields = address.cast::<libc::sockaddr_in6>().read_unaligned();
                Some(Ipv6Addr::from(fields.sin6_addr.s6_addr).into())
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive_their_form_in_c() {
        for text in ["10.77.0.1:4791", "[2001:db8::7]:1", "0.0.0.0:0", "[fe80::1]:65535"] {
            let address: SocketAddr = text.parse().unwrap();
            let out = storage(address);
            // SAFETY: a whole storage, of the family that was just written.
            let back = unsafe { number((&raw const out).cast()) };
            assert_eq!(back, Some(address.ip()));
        }
        // SAFETY: null.
        assert_eq!(unsafe { number(std::ptr::null()) }, None);
    }

    #[test]
    fn own_addresses_are_of_no_use_on_this_host_alone() {
        let all = own_addresses().unwrap();
        assert!(all.iter().all(|address| !address.is_loopback()), "{all:?}");
    }

    #[test]
    fn a_library_that_is_absent_or_another_is_said() {
        let absent = ManagerLibrary::load("librdmacm-that-is-absent.so.1");
        assert!(matches!(absent, Err(NoLibrary::Absent(_))));
        let other = ManagerLibrary::load("libc.so.6");
        assert_eq!(other.err(), Some(NoLibrary::Lacks("rdma_create_event_channel")));
    }
}
