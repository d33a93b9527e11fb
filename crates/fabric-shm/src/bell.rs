//! Sleep until something arrives: one word a port, in memory that all its peers can write. Its low
//! byte is a state, the rest counts wake-ups from within the process.
//!
//! | state | means | set by |
//! | --- | --- | --- |
//! | `CAREFUL` | awake; whoever brings something uses a full barrier before it looks here | the port |
//! | `BRISK` | awake, and will use a heavy barrier before it sleeps: a light one is enough | the port |
//! | `ARMED` | about to sleep, or asleep | the port |
//! | `RUNG` | was `ARMED`, and somebody has brought something | whoever did |
//!
//! No wake-up is lost. The sleeper stores `ARMED`, then a barrier, then looks for something; the
//! bringer stores something, then a barrier, then looks at the word. By the barriers one of them
//! sees the other's store: the sleeper does not sleep, or the bringer changes `ARMED` to `RUNG`
//! and wakes. The kernel sleeps only while the word is as it was, so a ring between look and sleep
//! ends the sleep too. Which barriers: a bringer that reads `BRISK` behind a light one, while the
//! port had stored `ARMED` already, read it before the port's heavy barrier, so what it brought is
//! visible behind that barrier. In every other case both sides use a full one.
//!
//! So an awake port costs its peers one load of a line that rarely changes, and a heavy barrier is
//! paid for only when a port falls asleep that was awake for long enough (see [`Pace`]).
//!
//! Any thread may wait, armed or not, while another uses the port: a permit and the count of
//! wake-ups see to it that `wake` reaches it however the state changes meanwhile.

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

pub(crate) const CAREFUL: u32 = 0;
pub(crate) const BRISK: u32 = 1;
pub(crate) const ARMED: u32 = 2;
pub(crate) const RUNG: u32 = 3;

/// The bits of the word that are the state.
const STATE: u32 = 0xff;
/// One wake-up.
const WAKE: u32 = 0x100;

fn state(word: u32) -> u32 {
    word & STATE
}

/// What the sleep protocol is made of; the tests put a searched memory in its place.
pub(crate) trait Bell {
    /// With acquire order, so that whoever sees a count of wake-ups sees the permits too.
    fn load(&self) -> u32;
    /// From `now` to `new`; whether it was `now`.
    fn exchange(&self, now: u32, new: u32) -> bool;
    /// With release order.
    fn add(&self, count: u32);
    /// Sleeps while the word is `now`; false when the time is up.
    fn sleep(&self, now: u32, timeout: Option<Duration>) -> bool;
    /// Wakes all who sleep.
    fn wake(&self);
    fn barrier_light(&self);
    fn barrier_full(&self);
    fn barrier_heavy(&self);
}

/// To be called after storing something for the port: wakes it if it sleeps.
#[inline]
pub(crate) fn ring(bell: &impl Bell) {
    bell.barrier_light();
    if state(bell.load()) != BRISK {
        ring_carefully(bell);
    }
}

/// As [`ring`], whatever state the port is in.
#[cold]
pub(crate) fn ring_carefully(bell: &impl Bell) {
    bell.barrier_full();
    if change(bell, ARMED, RUNG) {
        bell.wake();
    }
}

/// Changes the state, if it is `from`, and leaves the count as it is; whether it was.
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

/// The port's own side: announces sleep, takes it back, and decides when to be brisk, which is
/// once the port has done enough since it last slept that the heavy barrier of its next sleep is
/// small beside it.
#[derive(Debug)]
pub(crate) struct Pace {
    /// What is left to do until then.
    left: u32,
    brisk: bool,
    /// Some peer cannot do its half of the light and heavy pair.
    careful: bool,
}

impl Pace {
    /// A port is brisk when one of two things, or a sum of parts of both, would pay for the heavy
    /// barrier of its next sleep, which takes up to 12 us. Either it was awake for so many polls,
    /// which at 5 to 10 ns are some 80 to 160 us: the barrier is at most a seventh of that.
    const START: u32 = 16_384;
    /// Or it got so many messages that their senders, whom each cost a full barrier of some 130 ns
    /// just behind a line that this port polls, have paid as much as a heavy one: 128 of them, some
    /// 17 us. So all together never pay much more than twice what the better choice would cost.
    const MESSAGE: u32 = 128;

    pub(crate) fn new(careful: bool) -> Self {
        Self { left: Self::START, brisk: false, careful }
    }

    /// Counts a look that found `messages`.
    #[inline(always)]
    pub(crate) fn polled(&mut self, messages: u32, bell: &impl Bell) {
        if self.left == 0 {
            return;
        }
        let done = messages.saturating_mul(Self::MESSAGE).saturating_add(1);
        self.left = self.left.saturating_sub(done);
        if self.left == 0 {
            self.be_brisk(bell);
        }
    }

    #[cold]
    fn be_brisk(&mut self, bell: &impl Bell) {
        if !self.careful {
            self.brisk = true;
            set(bell, BRISK);
        }
    }

    /// Announces sleep. Whatever was stored before a [`ring`] that does not wake is visible
    /// afterwards.
    pub(crate) fn arm(&mut self, bell: &impl Bell) {
        set(bell, ARMED);
        if self.brisk {
            bell.barrier_heavy();
        } else {
            bell.barrier_full();
        }
        self.brisk = false;
        self.left = Self::START;
    }

    /// Takes the announcement back, if there is one.
    pub(crate) fn disarm(&mut self, bell: &impl Bell) {
        if !self.brisk {
            set(bell, CAREFUL);
        }
    }

    /// From now on every bringer uses full barriers. To be called before a peer that cannot do
    /// otherwise can bring anything.
    pub(crate) fn be_careful(&mut self, bell: &impl Bell) {
        self.careful = true;
        if self.brisk {
            // Others may have read `BRISK` just now; the next sleep is still a brisk one.
            change(bell, BRISK, CAREFUL);
        }
    }
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
    /// The word of port `port` in the bells of a fabric.
    pub(crate) fn new(memory: &Arena, port: u32) -> Option<Self> {
        let word = memory.at(bells::word(port), 4).ok()?;
        Some(Self { word: NonNull::new(word)?.cast(), _memory: memory.clone() })
    }

    fn word(&self) -> &AtomicU32 {
        // SAFETY: in bounds and 64-byte aligned, as `new` found; mapped for writing while
        // `_memory` lives; nobody accesses these four bytes but by 32-bit atomics.
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
        // Not private: the waker may be another process. Whatever else ends the sleep, a signal or
        // a changed word, the caller looks again.
        let slept = futex::wait(self.word(), futex::Flags::empty(), now, timeout.as_ref());
        slept != Err(rustix::io::Errno::TIMEDOUT)
    }

    fn wake(&self) {
        // Fails only for an address that is not mapped.
        let _ = futex::wake(self.word(), futex::Flags::empty(), i32::MAX as u32);
    }

    #[inline]
    fn barrier_light(&self) {
        crate::barrier::light();
    }

    fn barrier_full(&self) {
        crate::barrier::full();
    }

    fn barrier_heavy(&self) {
        crate::barrier::heavy();
    }
}

/// What threads sleep on: the port's word, and a permit for wake-ups within the process.
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

    /// The word is loaded before the permit is looked at. So either this sees the permit, or the
    /// wake-up counts after the load, and the kernel does not let it sleep on the old word. A state
    /// that is none of ours counts as rung.
    fn wait_until(&self, end: Option<Instant>) -> bool {
        loop {
            let word = self.bell.load();
            let quiet = matches!(state(word), CAREFUL | BRISK | ARMED);
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
