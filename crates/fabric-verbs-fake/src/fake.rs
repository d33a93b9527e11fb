//! The test's control of the fake library. The library is opened a second time by its path, so that it
//! is the one that the fabric uses.
//!
//! | who | may do | when |
//! | --- | --- | --- |
//! | [`Fake`] | call the library's `farside_fake_*` functions | as long as the process lives |
//! | those functions | change the script | under the world's lock |

use crate::world::{FakeRegion, RefusalTime, Script, world};
use std::ffi::{CString, c_void};
use std::path::{Path, PathBuf};

/// An attribute that the device can be told to report.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Odd {
    /// `atomic_cap`.
    AtomicCap = 1,
    /// `max_sge`.
    Slices = 2,
    /// `max_qp_wr`.
    Requests = 3,
    /// `max_srq`.
    SharedReceiveQueues = 4,
    /// `transport_type`.
    Transport = 5,
    /// Most inline bytes that a queue pair is made with.
    InlineBytes = 6,
    /// Whether bytes are reported to be placed in rising order.
    InOrder = 7,
    /// `rc_odp_caps`; with none of them on-demand paging is not supported at all.
    OnDemand = 8,
    /// `max_mw`; with none there are no memory windows of type 2B.
    Windows = 9,
    /// Whether binds after repeated requests are repeated too, which is an error.
    RepeatsBinds = 10,
    /// `max_dm_size`; with none the device has no memory of its own.
    DeviceBytes = 11,
}

/// A handle of the fake library.
#[derive(Clone, Copy, Debug)]
pub struct Fake {
    handle: *mut c_void,
}

// SAFETY: the handle is never closed, and its functions take a lock.
unsafe impl Send for Fake {}
// SAFETY: as above.
unsafe impl Sync for Fake {}

impl Fake {
    /// Returns the path of this build's library: next to the running test program, or above it.
    pub fn path() -> Option<PathBuf> {
        let program = std::env::current_exe().ok()?;
        let name = "libfarside_fabric_verbs_fake.so";
        program.ancestors().skip(1).take(2).map(|folder| folder.join(name)).find(|at| at.exists())
    }

    /// Opens the library.
    pub fn open(path: &Path) -> Option<Self> {
        let path = CString::new(path.to_str()?).ok()?;
        // SAFETY: a string that ends; the library's initialisers do nothing.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        (!handle.is_null()).then_some(Self { handle })
    }

    fn call(&self, name: &str, first: u64, second: u64) {
        let Ok(name) = CString::new(name) else {
            return;
        };
        // SAFETY: the handle is open, the name ends.
        let found = unsafe { libc::dlsym(self.handle, name.as_ptr()) };
        if !found.is_null() {
            // SAFETY: all functions of these names have this type.
            unsafe {
                let function: extern "C" fn(u64, u64) = std::mem::transmute(found);
                function(first, second);
            }
        }
    }

    /// Resets the script.
    pub fn reset(&self) {
        self.call("farside_fake_reset", 0, 0);
    }

    /// Fails the next request that runs with this `ibv_wc_status`.
    pub fn fail_next(&self, status: u32) {
        self.call("farside_fake_fail", u64::from(status), 0);
    }

    /// Lets the next request that runs hang.
    pub fn hang_next(&self) {
        self.call("farside_fake_hang", 0, 0);
    }

    /// Reports refused requests only to the side that refused them from now on.
    pub fn lose_refusals(&self) {
        self.call("farside_fake_refusals", 1, 0);
    }

    /// From now on requesters learn of a refused request by `answer`, unless the refusing queue pair is
    /// in the error state then.
    pub fn hold_refusals(&self) {
        self.call("farside_fake_refusals", 2, 0);
    }

    /// Delivers the delayed refusals.
    pub fn answer(&self) {
        self.call("farside_fake_answer", 0, 0);
    }

    /// Fails the requests that hang, as unanswered.
    pub fn give_up(&self) {
        self.call("farside_fake_give_up", 0, 0);
    }

    /// Changes the port's address, and notifies contexts.
    pub fn move_gid(&self) {
        self.call("farside_fake_move", 0, 0);
    }

    /// Removes the device, and notifies contexts.
    pub fn remove_device(&self) {
        self.call("farside_fake_remove", 0, 0);
    }

    /// Takes the port down or up, and notifies contexts. Requests wait while it is down.
    pub fn set_port(&self, up: bool) {
        self.call("farside_fake_port", u64::from(up), 0);
    }

    /// Delays binds of memory windows from now on.
    pub fn hold_binds(&self) {
        self.call("farside_fake_binds", 1, 0);
    }

    /// Executes the delayed binds and further ones.
    pub fn let_binds(&self) {
        self.call("farside_fake_binds", 0, 0);
    }

    /// Fails the next bind of a memory window, which moves the queue pair to the error state.
    pub fn fail_bind(&self) {
        self.call("farside_fake_binds", 0, 1);
    }

    /// Lets the next request use the rkey and address of the last successful one.
    pub fn borrow_key(&self) {
        self.call("farside_fake_borrow", 0, 0);
    }

    /// Returns the number of memory windows.
    pub fn windows(&self) -> u64 {
        self.count(0)
    }

    /// Doorbells that were rung, and requests that were posted by them.
    pub fn posted(&self) -> (u64, u64) {
        (self.count(1), self.count(2))
    }

    /// Returns the number of allocations of device memory.
    pub fn allocations(&self) -> u64 {
        self.count(4)
    }

    /// Queue pairs and regions that were ended before the windows bound to them.
    pub fn violations(&self) -> u64 {
        self.count(3)
    }

    fn count(&self, what: u64) -> u64 {
        let mut count = 0u64;
        let place = (&raw mut count).expose_provenance() as u64;
        self.call("farside_fake_count", what, place);
        count
    }

    /// Returns how many regions are registered now with all of these `ibv_access_flags`.
    pub fn registered(&self, flags: u32) -> u64 {
        let mut count = 0u64;
        let place = (&raw mut count).expose_provenance() as u64;
        self.call("farside_fake_registered", flags.into(), place);
        count
    }

    /// Sets an attribute that the device reports from now on.
    pub fn say(&self, what: Odd, number: u64) {
        self.call("farside_fake_say", what as u64, number);
    }
}

const EVENT_DEVICE_FATAL: u32 = 8;
const EVENT_PORT_ACTIVE: u32 = 9;
const EVENT_PORT_ERR: u32 = 10;
const EVENT_GID_CHANGE: u32 = 18;

fn tell_all(element: usize, number: u32) {
    let mut world = world();
    let contexts: Vec<usize> = world.contexts.keys().copied().collect();
    for context in contexts {
        world.tell(context, element, number);
    }
}

macro_rules! told {
    ($($name:ident($first:ident, $second:ident) $body:block)*) => {
        $(#[unsafe(no_mangle)]
        extern "C" fn $name($first: u64, $second: u64) $body)*
    };
}

told! {
    farside_fake_reset(_first, _second) {
        world().script = Script::default();
    }
    farside_fake_fail(status, _unused) {
        world().script.fail = Some(status as u32);
    }
    farside_fake_hang(_first, _second) {
        world().script.hang = true;
    }
    farside_fake_refusals(what, _unused) {
        world().script.refusal = if what == 1 { RefusalTime::Lost } else { RefusalTime::Late };
    }
    farside_fake_answer(_first, _second) {
        world().answer();
    }
    farside_fake_give_up(_first, _second) {
        world().give_up();
    }
    farside_fake_move(_first, _second) {
        world().script.moves += 1;
        tell_all(1, EVENT_GID_CHANGE);
    }
    farside_fake_remove(_first, _second) {
        world().script.removed = true;
        tell_all(0, EVENT_DEVICE_FATAL);
    }
    farside_fake_port(up, _second) {
        world().script.down = up == 0;
        tell_all(1, if up == 0 { EVENT_PORT_ERR } else { EVENT_PORT_ACTIVE });
        world().go_on();
    }
    farside_fake_binds(hold, fails) {
        let mut world = world();
        world.script.fail_bind = fails != 0;
        world.script.hold_binds = hold != 0;
        world.go_on();
    }
    farside_fake_borrow(_first, _second) {
        world().script.borrow = true;
    }
    farside_fake_count(what, place) {
        let world = world();
        let count = match what {
            0 => world.windows.len() as u64,
            1 | 2 => world.posted[what as usize - 1],
            4 => world.device.len() as u64,
            _ => world.violations,
        };
        let place: *mut u64 = std::ptr::with_exposed_provenance_mut(place as usize);
        // SAFETY: the caller's number.
        unsafe { *place = count };
    }
    farside_fake_registered(flags, place) {
        let has = |region: &&FakeRegion| region.access as u64 & flags == flags;
        let count = world().regions.values().filter(has).count() as u64;
        let place: *mut u64 = std::ptr::with_exposed_provenance_mut(place as usize);
        // SAFETY: the caller's number.
        unsafe { *place = count };
    }
    farside_fake_say(what, number) {
        world().script.odd.insert(what as u32, number);
    }
}
