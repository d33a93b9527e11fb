//! Sleep until something arrives: one word a port, in memory that all its peers can write. Its low
//! byte is a state, the rest counts wake-ups from within the process.
//!
//! | state | means | set by |
//! | --- | --- | --- |
//! | `AWAKE` | the port polls | the port |
//! | `ARMED` | about to sleep, or asleep | the port |
//! | `RUNG` | was `ARMED`, and a peer has delivered something | that peer |
//!
//! No wake-up is lost. The sleeper stores `ARMED`, then executes a full barrier, then checks for arrivals; a
//! peer stores a message, then executes a full barrier, then loads the word. By the barriers one of them
//! sees the other's store: the sleeper does not sleep, or the peer changes `ARMED` to `RUNG` and wakes
//! it. The kernel sleeps only while the word is unchanged (futex), so a ring between check and sleep
//! ends the sleep too. An awake port costs its peers one load of a line that rarely changes.
//!
//! Any thread may wait, armed or not, while another uses the port: by a permit and the count of
//! wake-ups, `wake` reaches it however the state changes meanwhile.

use crate::layout::bells;
use farside_fabric::{Arena, Waiter};
use rustix::thread::futex;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// The atomics that a model search replaces.
mod searched {
    #[cfg(loom)]
    pub(super) use loom::sync::atomic::{AtomicBool, AtomicU32};
    #[cfg(shuttle)]
    pub(super) use shuttle::sync::atomic::{AtomicBool, AtomicU32};
    #[cfg(not(any(loom, shuttle)))]
    pub(super) use std::sync::atomic::{AtomicBool, AtomicU32};
}

pub(crate) const AWAKE: u32 = 0;
pub(crate) const ARMED: u32 = 2;
pub(crate) const RUNG: u32 = 3;

/// The bits of the word that are the state.
const STATE: u32 = 0xff;
/// One wake-up.
const WAKE: u32 = 0x100;

fn state(word: u32) -> u32 {
    word & STATE
}

/// The operations of the sleep protocol; the model checker implements them on searched memory.
pub(crate) trait Bell {
    /// Loads with acquire order, so that a thread that sees a count of wake-ups sees the permits too.
    fn load(&self) -> u32;
    /// Changes the word from `now` to `new`. Returns whether it was `now`.
    fn exchange(&self, now: u32, new: u32) -> bool;
    /// Adds with release order.
    fn add(&self, count: u32);
    /// Sleeps while the word is `now`. Returns false when the time is up.
    fn sleep(&self, now: u32, timeout: Option<Duration>) -> bool;
    /// Wakes all sleeping threads.
    fn wake(&self);
    fn barrier_full(&self);
}

/// Wakes the port if it sleeps. Call it after storing something for the port.
#[inline]
pub(crate) fn ring(bell: &impl Bell) {
    bell.barrier_full();
    if state(bell.load()) == ARMED {
        ring_armed(bell);
    }
}

#[cold]
fn ring_armed(bell: &impl Bell) {
    if change(bell, ARMED, RUNG) {
        bell.wake();
    }
}

/// Changes the state if it is `from`, and keeps the count. Returns whether it was.
fn change(bell: &impl Bell, from: u32, to: u32) -> bool {
    loop {
        let word = bell.load();
        if state(word) != from {
            return false;
        }
        if bell.exchange(word, word - from + to) {
            return true;
        }
    }
}

/// Sets the state and leaves the count as it is.
fn set(bell: &impl Bell, to: u32) {
    loop {
        let word = bell.load();
        if bell.exchange(word, (word & !STATE) | to) {
            return;
        }
    }
}

/// Announces the port's sleep. Whatever was stored before a [`ring`] that does not wake is visible afterwards.
pub(crate) fn arm(bell: &impl Bell) {
    set(bell, ARMED);
    bell.barrier_full();
}

/// Withdraws the announcement, if there is one.
pub(crate) fn disarm(bell: &impl Bell) {
    set(bell, AWAKE);
}

/// The sleep word of a port of this or of another process.
#[derive(Clone, Debug)]
pub(crate) struct SharedBell {
    word: NonNull<AtomicU32>,
    /// Keeps the memory mapped.
    _memory: Arena,
}

// SAFETY: points to an atomic in memory that `_memory` keeps mapped.
unsafe impl Send for SharedBell {}
// SAFETY: as above.
unsafe impl Sync for SharedBell {}

impl SharedBell {
    /// Returns the word of port `port` in the bells of a fabric.
    pub(crate) fn new(memory: &Arena, port: u32) -> Option<Self> {
        let word = memory.at(bells::word(port), 4).ok()?;
        Some(Self { word: NonNull::new(word)?.cast(), _memory: memory.clone() })
    }

    fn word(&self) -> &AtomicU32 {
        // SAFETY: in bounds and 64-byte aligned, as `new` found; mapped for writing while
        // `_memory` lives; these four bytes are accessed by 32-bit atomics only.
        unsafe { self.word.as_ref() }
    }
}

impl Bell for SharedBell {
    #[inline]
    fn load(&self) -> u32 {
        self.word().load(Ordering::Acquire)
    }

    fn exchange(&self, now: u32, new: u32) -> bool {
        let order = Ordering::Relaxed;
        self.word().compare_exchange(now, new, order, order).is_ok()
    }

    fn add(&self, count: u32) {
        self.word().fetch_add(count, Ordering::Release);
    }

    fn sleep(&self, now: u32, timeout: Option<Duration>) -> bool {
        let timeout = timeout.and_then(|left| left.try_into().ok());
        // Not private: the waker may be another process. Whatever else ends the sleep, a signal or a
        // changed word, the caller checks again.
        let slept = futex::wait(self.word(), futex::Flags::empty(), now, timeout.as_ref());
        slept != Err(rustix::io::Errno::TIMEDOUT)
    }

    fn wake(&self) {
        // Fails only for an address that is not mapped.
        let _ = futex::wake(self.word(), futex::Flags::empty(), i32::MAX as u32);
    }

    #[inline]
    fn barrier_full(&self) {
        crate::barrier::full();
    }
}

/// The waiter of a port: its word, and a permit for wake-ups within the process.
pub(crate) struct ShmWaiter<B> {
    bell: B,
    /// The next `wait` returns at once.
    woken: searched::AtomicBool,
    /// Threads in `wait`.
    waiting: searched::AtomicU32,
}

impl<B: Bell> ShmWaiter<B> {
    pub(crate) fn new(bell: B) -> Self {
        Self { bell, woken: searched::AtomicBool::new(false), waiting: searched::AtomicU32::new(0) }
    }

    fn take_permit(&self) -> bool {
        self.woken.load(Ordering::Acquire) && self.woken.swap(false, Ordering::AcqRel)
    }

    /// The word is loaded before the permit is checked. So either this sees the permit, or the wake-up
    /// counts after the load, and the kernel does not sleep on the old word. An unknown state counts as
    /// rung.
    fn wait_until(&self, end: Option<Instant>) -> bool {
        loop {
            let word = self.bell.load();
            let quiet = matches!(state(word), AWAKE | ARMED);
            if self.take_permit() || !quiet {
                return true;
            }
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) || !self.bell.sleep(word, left) {
                return false;
            }
        }
    }
}

impl<B: Bell + Send + Sync> Waiter for ShmWaiter<B> {
    fn wait(&self, timeout: Option<Duration>) -> bool {
        let end = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        self.waiting.fetch_add(1, Ordering::Relaxed);
        // Either `wake` sees this thread waiting, or this thread sees the permit.
        self.bell.barrier_full();
        let woken = self.wait_until(end);
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        woken
    }

    fn wake(&self) {
        self.woken.store(true, Ordering::Release);
        self.bell.add(WAKE);
        self.bell.barrier_full();
        if self.waiting.load(Ordering::Relaxed) != 0 {
            self.bell.wake();
        }
    }
}

/// Writes anything into a sleep word, as a wild process might.
#[cfg(test)]
pub(crate) fn spoil(bell: &SharedBell, word: u32) {
    bell.word().store(word, Ordering::SeqCst);
    bell.wake();
}
