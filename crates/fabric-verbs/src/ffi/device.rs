//! Devices, contexts and protection domains.
//!
//! | who | may do | when |
//! | --- | --- | --- |
//! | holders of a [`Context`] | query, from any thread (libibverbs locks) | until the last `Arc` is dropped |
//! | one thread at a time | take asynchronous events | as above; each is acknowledged at once |
//! | objects of a context | keep its `Arc` | so that it is closed last |

use super::library::Library;
use super::types::*;
use std::ffi::{c_char, c_int};
use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::Arc;

/// A device that the library lists.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ListedDevice {
    pub(crate) name: String,
    pub(crate) transport: i32,
}

/// Checks a function that returns an error number, or -1 and `errno`.
pub(super) fn check(result: c_int) -> io::Result<()> {
    match result {
        0 => Ok(()),
        number if number > 0 => Err(io::Error::from_raw_os_error(number)),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Checks a function that returns null and `errno`.
pub(super) fn made<T>(object: *mut T) -> io::Result<NonNull<T>> {
    NonNull::new(object).ok_or_else(|| match io::Error::last_os_error() {
        error if error.raw_os_error() == Some(0) => io::ErrorKind::Other.into(),
        error => error,
    })
}

pub(super) fn text(bytes: &[c_char]) -> String {
    let bytes: Vec<u8> =
        bytes.iter().map(|byte| byte.cast_unsigned()).take_while(|byte| *byte != 0).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The library's list of devices, while it is read.
struct List<'l> {
    library: &'l Library,
    devices: NonNull<*mut ibv_device>,
    count: usize,
}

impl<'l> List<'l> {
    fn new(library: &'l Library) -> io::Result<Self> {
        let mut count = 0;
        // SAFETY: writes one number.
        let devices = made(unsafe { (library.get_device_list)(&raw mut count) })?;
        Ok(Self { library, devices, count: usize::try_from(count).unwrap_or(0) })
    }

    fn devices(&self) -> &[*mut ibv_device] {
        // SAFETY: the list has as many entries as reported, until it is freed.
        unsafe { std::slice::from_raw_parts(self.devices.as_ptr(), self.count) }
    }

    fn entries(&self) -> impl Iterator<Item = (*mut ibv_device, ListedDevice)> + '_ {
        self.devices().iter().map(|device| {
            // SAFETY: devices live as long as the list.
            let fields = unsafe { &**device };
            let listed =
                ListedDevice { name: text(&fields.name), transport: fields.transport_type };
            (*device, listed)
        })
    }
}

impl Drop for List<'_> {
    fn drop(&mut self) {
        // SAFETY: freed once; no reference to a device leaves this file.
        unsafe { (self.library.free_device_list)(self.devices.as_ptr()) }
    }
}

/// Returns the devices. `ENOSYS` says that the kernel has no RDMA at all.
pub(crate) fn list(library: &Library) -> io::Result<Vec<ListedDevice>> {
    match List::new(library) {
        Ok(list) => Ok(list.entries().map(|(_, listed)| listed).collect()),
        Err(error) if error.raw_os_error() == Some(libc::ENOSYS) => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// An open device.
pub(crate) struct Context {
    pub(super) library: Arc<Library>,
    pub(super) raw: NonNull<ibv_context>,
    pub(crate) listed: ListedDevice,
}

// SAFETY: libibverbs may be called from any thread, and locks what it must.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

/// The subject of an asynchronous event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct AsyncEvent {
    /// `ibv_event_type`.
    pub(crate) number: u32,
    /// The number of a port or the address of a queue, by the kind of event.
    pub(crate) element: u64,
}

impl Context {
    /// Opens a device by name.
    ///
    /// # Errors
    /// `NotFound` if there is none of that name; errors of the system.
    pub(crate) fn open(library: &Arc<Library>, name: &str) -> io::Result<Arc<Self>> {
        let list = List::new(library)?;
        let found = list.entries().find(|(_, listed)| listed.name == name);
        let (device, listed) = found.ok_or(io::ErrorKind::NotFound)?;
        // SAFETY: a device of the list, which is freed after this; a context outlives the list.
        let raw = made(unsafe { (library.open_device)(device) })?;
        let context = Self { library: Arc::clone(library), raw, listed };
        context.unblock(context.async_fd())?;
        Ok(Arc::new(context))
    }

    /// Lets reads of this descriptor return at once.
    pub(super) fn unblock(&self, descriptor: c_int) -> io::Result<()> {
        // SAFETY: changes flags of a descriptor of this context.
        let done = unsafe {
            let flags = libc::fcntl(descriptor, libc::F_GETFL);
            libc::fcntl(descriptor, libc::F_SETFL, flags | libc::O_NONBLOCK)
        };
        if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    fn fields(&self) -> &ibv_context {
        // SAFETY: lives as long as self; its fields are fixed once it is open.
        unsafe { self.raw.as_ref() }
    }

    pub(super) fn operations(&self) -> &ibv_context_ops {
        &self.fields().ops
    }

    fn async_fd(&self) -> c_int {
        self.fields().async_fd
    }

    /// Becomes readable when there is an asynchronous event.
    pub(crate) fn events(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is open as long as self.
        unsafe { BorrowedFd::borrow_raw(self.async_fd()) }
    }

    /// Returns the extended operations, if the structure reaches as far as `at` bytes from its tail's start.
    pub(super) fn extended(&self, at: usize) -> Option<&verbs_context_tail> {
        if self.fields().abi_compat.addr() != usize::MAX {
            return None;
        }
        let back = std::mem::offset_of!(verbs_context_tail, context);
        // SAFETY: `abi_compat` says that a `verbs_context` surrounds the context; every such
        // structure has had this tail.
        let tail = unsafe {
            let start = self.raw.as_ptr().cast::<u8>().sub(back);
            &*start.cast::<verbs_context_tail>()
        };
        (tail.sz >= size_of::<verbs_context_tail>() - at).then_some(tail)
    }

    /// Returns the operations of a longer tail, if the structure reaches as far.
    pub(super) fn wide(&self) -> Option<&verbs_context_wide> {
        let sz = self.extended(0)?.sz;
        let before = std::mem::offset_of!(verbs_context_wide, tail);
        let back = before + std::mem::offset_of!(verbs_context_tail, context);
        if sz < size_of::<verbs_context_wide>() {
            return None;
        }
        // SAFETY: `sz` says that the structure around the context begins there or before.
        Some(unsafe { &*self.raw.as_ptr().cast::<u8>().sub(back).cast::<verbs_context_wide>() })
    }

    pub(crate) fn query_device(&self) -> io::Result<ibv_device_attr> {
        // SAFETY: plain numbers, for which zero is a value.
        let mut attributes: ibv_device_attr = unsafe { std::mem::zeroed() };
        // SAFETY: fills the structure.
        check(unsafe { (self.library.query_device)(self.raw.as_ptr(), &raw mut attributes) })?;
        Ok(attributes)
    }

    /// Returns the extended attributes; `None` if this library has none.
    pub(crate) fn query_device_extended(&self) -> Option<ibv_device_attr_ex> {
        let at = std::mem::offset_of!(verbs_context_tail, query_device_ex);
        let query = self.extended(at)?.query_device_ex?;
        // SAFETY: plain numbers, for which zero is a value.
        let mut attributes: ibv_device_attr_ex = unsafe { std::mem::zeroed() };
        let bytes = size_of::<ibv_device_attr_ex>();
        // SAFETY: fills at most that many bytes.
        let done =
            unsafe { query(self.raw.as_ptr(), std::ptr::null(), &raw mut attributes, bytes) };
        (done == 0).then_some(attributes)
    }

    pub(crate) fn query_port(&self, port: u8) -> io::Result<ibv_port_attr> {
        // SAFETY: plain numbers, for which zero is a value.
        let mut attributes: ibv_port_attr = unsafe { std::mem::zeroed() };
        // SAFETY: fills the structure.
        check(unsafe { (self.library.query_port)(self.raw.as_ptr(), port, &raw mut attributes) })?;
        Ok(attributes)
    }

    /// Returns the entries of all ports' GID tables that are set, with their types; `None` if the
    /// library or the kernel does not report them.
    pub(crate) fn query_gid_table(&self, most: usize) -> Option<Vec<ibv_gid_entry>> {
        let query = self.library.query_gid_table?;
        let blank =
            ibv_gid_entry { gid: [0; 16], gid_index: 0, port_num: 0, gid_type: 0, ndev_ifindex: 0 };
        let mut entries = vec![blank; most];
        let bytes = size_of::<ibv_gid_entry>();
        // SAFETY: fills at most `most` entries of that size.
        let count = unsafe { query(self.raw.as_ptr(), entries.as_mut_ptr(), most, 0, bytes) };
        entries.truncate(usize::try_from(count).ok()?);
        Some(entries)
    }

    pub(crate) fn query_gid(&self, port: u8, index: u32) -> io::Result<Gid> {
        let mut gid = Gid8([0; 16]);
        let index = c_int::try_from(index).map_err(|_| io::ErrorKind::InvalidInput)?;
        // SAFETY: fills 16 bytes.
        check(unsafe { (self.library.query_gid)(self.raw.as_ptr(), port, index, &raw mut gid) })?;
        Ok(gid.0)
    }

    /// Returns the next asynchronous event, if there is one.
    pub(crate) fn next_event(&self) -> Option<AsyncEvent> {
        let mut event = ibv_async_event { element: std::ptr::null_mut(), event_type: 0 };
        // SAFETY: fills the structure; does not wait, since the descriptor does not block.
        let done = unsafe { (self.library.get_async_event)(self.raw.as_ptr(), &raw mut event) };
        if done != 0 {
            return None;
        }
        let taken = AsyncEvent { number: event.event_type, element: event.element.addr() as u64 };
        // SAFETY: the event that was just taken, once.
        unsafe { (self.library.ack_async_event)(&raw mut event) };
        Some(taken)
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: everything of the context held its `Arc`, so nothing of it is left.
        unsafe { (self.library.close_device)(self.raw.as_ptr()) };
    }
}

/// A protection domain: regions and queue pairs that may access each other.
pub(crate) struct ProtectionDomain {
    pub(crate) context: Arc<Context>,
    pub(super) raw: NonNull<ibv_pd>,
}

// SAFETY: as for the context.
unsafe impl Send for ProtectionDomain {}
// SAFETY: as above.
unsafe impl Sync for ProtectionDomain {}

impl ProtectionDomain {
    pub(crate) fn new(context: &Arc<Context>) -> io::Result<Arc<Self>> {
        // SAFETY: an open context.
        let raw = made(unsafe { (context.library.alloc_pd)(context.raw.as_ptr()) })?;
        Ok(Arc::new(Self { context: Arc::clone(context), raw }))
    }
}

impl Drop for ProtectionDomain {
    fn drop(&mut self) {
        // SAFETY: everything of the domain held its `Arc`.
        unsafe { (self.context.library.dealloc_pd)(self.raw.as_ptr()) };
    }
}
