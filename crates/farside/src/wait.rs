//! Help-while-waiting: a thread that is blocked on an operation polls the progress engine itself. It spins
//! for its spin budget, then parks. The node's own thread (the server thread) polls while no other thread
//! does, and it alone sleeps on the port's waiter.
//!
//! Sleep follows the protocol of an eventcount: arm the port, check for work, park. [`Engine::arm`] reports
//! work that arrived before the arming, in which case the thread polls again instead of parking, so no
//! wake-up is lost. A poll disarms the port, so that an awake node costs its peers no wake-ups. Invariants:
//!
//! - A thread arms the port before it parks: the arrival that it waits for must wake a thread.
//! - While the server thread is in state [`DEEP`], a thread that has polled arms the port again before it
//!   returns to its program, and polls once more if work arrived in between.
//! - Arming costs more than an operation that hits the cache, and an armed port makes every message to this
//!   node expensive for its sender. If program threads poll all the time ([`DENSE_POLLS`] times within [`TIMED_SLEEP`]),
//!   the server thread is therefore in state [`DOZING`]: the port stays disarmed and the thread polls every
//!   `TIMED_SLEEP`. It leaves this state when a `TIMED_SLEEP` had fewer such polls. `TIMED_SLEEP` bounds how long a peer waits
//!   for a program that computes. A node with operations awaited on an external executor never dozes.
//!
//! **Deadlines.** A blocked thread checks the clock itself. A task on an external executor stores an alarm
//! in the slots of its session and lowers [`Core::alarm_ns`], the minimum of all alarms. Polling threads
//! check it now and then; the server thread sleeps no longer than that. A thread that sets an alarm before
//! the planned end of that sleep wakes the server thread: the server thread stores the end before it loads
//! the alarm, so one of the two sees the other's store.

use crate::direct::DirectHomes;
use crate::engine::Engine;
use crate::hit::Lines;
use crate::lock_hit::LockCells;
use crate::mutex::locked;
use crate::operation::{OperationSlot, SessionSlots};
use crate::progress::Progress;
use farside_base::waiting::{
    DENSE_POLLS, LOCK_SPINS, NODE_BUSY_POLLS_PER_CLOCK, NODE_IDLE_POLLS_PER_CLOCK,
    NODE_POLLS_PER_LOCK, PARK_MAX, TICK, TIMED_SLEEP,
};
use farside_base::{Limits, LineSize};
use farside_fabric::{Fabric, Waiter};
use std::fmt;
use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

/// The driver of a node's engine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Drive {
    /// The node's own thread, and waiting program threads.
    Threads,
    /// The caller, by [`Node::progress`]; nothing in the node ever blocks.
    Caller,
}

/// State that the threads of a node share.
pub(crate) struct Core {
    pub(crate) engine: Mutex<Engine>,
    pub(crate) lines: Arc<Lines>,
    pub(crate) lock_cells: LockCells,
    /// The number of steps of the membership machine, as the engine counts them.
    pub(crate) member_steps: Arc<AtomicU64>,
    /// The homes that sessions of this node read directly.
    pub(crate) direct_homes: Arc<DirectHomes>,
    pub(crate) waiter: Arc<dyn Waiter>,
    /// The state of the server thread: [`AWAKE`], [`DEEP`] or [`DOZING`].
    pub(crate) server: AtomicU8,
    /// Threads that are blocked on the engine's lock.
    pub(crate) blocked: AtomicU32,
    /// Parked program threads. The port must not stay disarmed while there are any.
    pub(crate) parked: AtomicU32,
    /// Set once a task has awaited an operation on an external executor, which never polls the engine.
    pub(crate) awaited: AtomicBool,
    /// Polls by program threads since `counted_since`. Approximate: lost increments do no harm.
    pub(crate) driven: AtomicU32,
    pub(crate) counted_since: Mutex<Instant>,
    pub(crate) sleeps: AtomicU64,
    pub(crate) closing: AtomicBool,
    /// The origin of alarm times.
    pub(crate) began: Instant,
    /// A lower bound on the alarms of all sessions; `u64::MAX` when there is none.
    pub(crate) alarm_ns: AtomicU64,
    /// The planned end of the server thread's sleep; zero while it is awake or dozes.
    pub(crate) wakes_at_ns: AtomicU64,
    /// The default timeout of a session's calls.
    pub(crate) timeout: Option<Duration>,
    /// The timeout of a leave, which waits for the other nodes.
    pub(crate) leave_timeout: Duration,
    pub(crate) spin: Duration,
    pub(crate) limits: Limits,
    pub(crate) line_size: LineSize,
    /// Bytes of memory that this node lends.
    pub(crate) memory_bytes: u64,
    /// The node is a witness: it has no sessions.
    pub(crate) is_witness: bool,
    pub(crate) drive: Drive,
    /// Keeps the regions alive and the control thread running.
    pub(crate) fabric: Arc<dyn Fabric>,
}

impl fmt::Debug for Core {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Core(node {})", self.lines.me())
    }
}

/// The server thread is awake and polls.
pub(crate) const AWAKE: u8 = 0;
/// It sleeps until the armed port wakes it.
const DEEP: u8 = 1;
/// It sleeps until its next periodic poll; the port need not be armed.
const DOZING: u8 = 2;

impl Core {
    /// Locks the engine; spins for a while, then blocks.
    pub(crate) fn engine(&self) -> MutexGuard<'_, Engine> {
        for _ in 0..LOCK_SPINS {
            if let Some(engine) = self.try_engine() {
                return engine;
            }
            std::hint::spin_loop();
        }
        self.blocked.fetch_add(1, Ordering::Relaxed);
        let engine = locked(&self.engine);
        self.blocked.fetch_sub(1, Ordering::Relaxed);
        engine
    }

    fn try_engine(&self) -> Option<MutexGuard<'_, Engine>> {
        match self.engine.try_lock() {
            Ok(engine) => Some(engine),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Runs `act` on the engine and posts the work requests that result.
    pub(crate) fn with_engine<R>(&self, act: impl FnOnce(&mut Engine) -> R) -> R {
        let mut engine = self.engine();
        let result = act(&mut engine);
        engine.post();
        self.driven(&mut engine);
        result
    }

    /// Runs after a program thread has polled, before it returns to its program.
    fn driven(&self, engine: &mut Engine) {
        if self.may_leave() {
            return;
        }
        if engine.has_slices() {
            return self.waiter.wake(); // allocation slices continue without a program thread
        }
        if let Some(in_ns) = engine.take_first_due() {
            self.wake_in(in_ns);
        }
        if engine.is_armed() {
            return;
        }
        self.arm(engine);
        if self.is_driven_densely() {
            self.waiter.wake(); // the server thread then observes the density and dozes
        }
    }

    /// Whether program threads have polled [`DENSE_POLLS`] times within the last [`TIMED_SLEEP`].
    fn is_driven_densely(&self) -> bool {
        if self.driven.load(Ordering::Relaxed) < DENSE_POLLS {
            return false;
        }
        let now = Instant::now();
        let dense = now - std::mem::replace(&mut *locked(&self.counted_since), now) < TIMED_SLEEP;
        if !dense {
            self.driven.store(0, Ordering::Relaxed);
        }
        dense
    }

    /// Returns the polls by program threads since the count began, and restarts the count.
    fn take_driven(&self) -> u32 {
        *locked(&self.counted_since) = Instant::now();
        self.driven.swap(0, Ordering::Relaxed)
    }

    /// Whether a thread that has polled may leave the port disarmed. Counts the poll.
    fn may_leave(&self) -> bool {
        let driven = self.driven.load(Ordering::Relaxed);
        self.driven.store(driven.saturating_add(1), Ordering::Relaxed);
        match self.server.load(Ordering::SeqCst) {
            AWAKE => true,
            DOZING => !self.has_waiters(),
            _ => false,
        }
    }

    /// Whether arrivals may be for a thread or task that does not poll.
    fn has_waiters(&self) -> bool {
        self.parked.load(Ordering::SeqCst) > 0 || self.awaited.load(Ordering::SeqCst)
    }

    /// Notes that a task awaits an operation while its executor runs other tasks.
    #[cold]
    pub(crate) fn awaits(&self) {
        if !self.awaited.load(Ordering::Relaxed) {
            self.awaited.store(true, Ordering::SeqCst);
        }
        self.drove();
    }

    /// Arms the port; polls while there is work instead.
    fn arm(&self, engine: &mut Engine) {
        while !engine.is_armed() && engine.arm() {
            engine.poll();
        }
    }

    /// Polls the engine until `done` returns true or `until` has passed. After [`Core::spin`] without work,
    /// calls `sleep` with the remaining time.
    pub(crate) fn drive(
        &self,
        until: Option<Instant>,
        mut done: impl FnMut() -> bool,
        mut sleep: impl FnMut(Option<Duration>),
    ) {
        let (mut spun, mut busy) = (0_u32, 0_u32);
        let mut since: Option<Instant> = None;
        let mut slicing = false;
        while !done() {
            // The lock is unfair: a thread with slices to run would take it again before any other thread.
            if slicing && self.blocked.load(Ordering::Relaxed) > 0 {
                std::thread::yield_now();
                continue;
            }
            let progress = |mut engine: MutexGuard<'_, Engine>| {
                let worked = (0..NODE_POLLS_PER_LOCK).any(|_| engine.poll());
                slicing = engine.has_slices();
                worked
            };
            let worked = self.try_engine().is_some_and(progress);
            if worked {
                since = None;
                busy += 1;
            } else {
                spun += 1;
            }
            if !(if worked {
                busy.is_multiple_of(NODE_BUSY_POLLS_PER_CLOCK)
            } else {
                spun.is_multiple_of(NODE_IDLE_POLLS_PER_CLOCK)
            }) {
                if !worked {
                    std::hint::spin_loop();
                }
                continue;
            }
            let now = Instant::now();
            self.ring(now);
            if until.is_some_and(|until| now >= until) {
                return;
            }
            if !worked && now.duration_since(*since.get_or_insert(now)) >= self.spin {
                sleep(until.map(|until| until - now));
                since = None;
            }
        }
    }

    fn time_ns(&self, at: Instant) -> u64 {
        u64::try_from(at.saturating_duration_since(self.began).as_nanos()).unwrap_or(u64::MAX)
    }

    /// Makes the server thread wake in `in_ns`, for work that it may not know of.
    fn wake_in(&self, in_ns: u64) {
        self.wake_by(self.time_ns(Instant::now()).saturating_add(in_ns));
    }

    /// Sets the alarm of a session whose task awaits a call until `at`; its waker is called then.
    pub(crate) fn set_alarm(&self, slots: &SessionSlots, at: Instant) {
        let at_ns = self.time_ns(at);
        slots.alarm_ns.store(at_ns, Ordering::SeqCst);
        self.wake_by(at_ns);
    }

    /// Makes the server thread sleep no longer than until `at_ns`.
    fn wake_by(&self, at_ns: u64) {
        self.alarm_ns.fetch_min(at_ns, Ordering::SeqCst);
        if self.wakes_at_ns.load(Ordering::SeqCst) > at_ns {
            self.waiter.wake();
        }
    }

    /// Wakes tasks whose calls have reached their deadlines, if any alarm is set.
    pub(crate) fn ring_due(&self) {
        if self.alarm_ns.load(Ordering::Relaxed) != u64::MAX {
            self.ring(Instant::now());
        }
    }

    /// Wakes tasks whose calls have reached their deadlines.
    fn ring(&self, now: Instant) {
        let alarm_ns = self.alarm_ns.load(Ordering::Relaxed);
        if alarm_ns == u64::MAX || self.time_ns(now) < alarm_ns {
            return;
        }
        let now_ns = self.time_ns(now);
        // Reset before the sessions are read: an alarm that is set later lowers it again.
        self.alarm_ns.store(u64::MAX, Ordering::SeqCst);
        let engine = self.engine();
        for slots in engine.sessions().iter() {
            let at_ns = slots.alarm_ns.load(Ordering::SeqCst);
            if at_ns > now_ns {
                self.alarm_ns.fetch_min(at_ns, Ordering::SeqCst);
                continue;
            }
            let (old, new) = (at_ns, u64::MAX);
            let rung =
                slots.alarm_ns.compare_exchange(old, new, Ordering::SeqCst, Ordering::SeqCst);
            if rung.is_ok() {
                slots.slots.iter().for_each(OperationSlot::rouse);
            }
        }
    }

    /// As [`driven`](Self::driven), for a caller that does not hold the engine's lock.
    pub(crate) fn drove(&self) {
        if !self.may_leave() {
            self.driven(&mut self.engine());
        }
    }

    /// Polls a few times, for a thread that waits for operations and has other work too.
    pub(crate) fn drive_a_little(&self) {
        if let Some(mut engine) = self.try_engine() {
            let _ = (0..NODE_POLLS_PER_LOCK).any(|_| engine.poll());
        }
        self.drove();
    }

    /// Announces a sleep other than [`park`](Self::park), until [`wakes`](Self::wakes): arrivals must wake
    /// the server thread meanwhile.
    pub(crate) fn sleeps(&self) {
        self.parked.fetch_add(1, Ordering::SeqCst);
        if self.server.load(Ordering::SeqCst) != AWAKE {
            self.arm(&mut self.engine());
        }
    }

    /// Ends the sleep announced by [`sleeps`](Self::sleeps).
    pub(crate) fn wakes(&self) {
        self.parked.fetch_sub(1, Ordering::SeqCst);
    }

    /// Polls until the operation has ended or `until` has passed; returns whether it has ended.
    pub(crate) fn wait_for(
        &self,
        slot: &OperationSlot,
        until: Option<Instant>,
        parker: &Arc<Parker>,
        waker: &Waker,
    ) -> bool {
        let sleep = |left| {
            parker.reset();
            if !slot.watch(waker) {
                self.park(parker, left);
            }
        };
        self.drive(until, || slot.outcome().is_some(), sleep);
        self.drove();
        slot.outcome().is_some()
    }

    /// Parks this thread, which polls no more: arrivals must wake the server thread.
    pub(crate) fn park(&self, parker: &Parker, left: Option<Duration>) {
        self.sleeps();
        self.sleeps.fetch_add(1, Ordering::Relaxed);
        parker.park(left.map_or(PARK_MAX, |left| left.min(PARK_MAX)));
        self.wakes();
    }

    /// Sleeps, as the server thread, until it has work.
    fn sleep(&self) {
        while self.take_driven() >= DENSE_POLLS && !self.closing() {
            self.server.store(DOZING, Ordering::SeqCst);
            if self.has_waiters() {
                break; // a thread that waits from now on sees that it must arm the port
            }
            self.nap(TIMED_SLEEP);
            self.server.store(AWAKE, Ordering::SeqCst);
            if let Some(mut engine) = self.try_engine() {
                engine.poll();
            }
            self.ring_due();
        }
        self.server.store(DEEP, Ordering::SeqCst);
        let time = {
            let mut engine = self.engine();
            engine.probe();
            let quiet = !engine.poll() && !engine.arm();
            quiet.then(|| PARK_MAX.min(Duration::from_nanos(engine.wakes_in_ns())))
        };
        if let Some(time) = time {
            self.nap_until_alarm(time);
        }
        self.server.store(AWAKE, Ordering::SeqCst);
    }

    /// Sleeps for `time`, or until the first alarm.
    fn nap_until_alarm(&self, time: Duration) {
        let now_ns = self.time_ns(Instant::now());
        let end_ns = now_ns.saturating_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
        self.wakes_at_ns.store(end_ns, Ordering::SeqCst);
        let alarm_ns = self.alarm_ns.load(Ordering::SeqCst);
        let time = Duration::from_nanos(end_ns.min(alarm_ns).saturating_sub(now_ns));
        if !time.is_zero() {
            self.nap(time);
        }
        self.wakes_at_ns.store(0, Ordering::SeqCst);
        self.ring_due();
    }

    fn closing(&self) -> bool {
        self.closing.load(Ordering::SeqCst)
    }

    fn nap(&self, time: Duration) {
        if !self.closing() {
            self.sleeps.fetch_add(1, Ordering::Relaxed);
            self.waiter.wait(Some(time));
        }
    }
}

/// What a thread needs to run a future that borrows its session.
pub(crate) struct Blocking {
    pub(crate) core: Arc<Core>,
    pub(crate) parker: Arc<Parker>,
    pub(crate) waker: Waker,
    pub(crate) slots: Arc<SessionSlots>,
}

impl Blocking {
    /// Runs a future of the session to completion on this thread.
    pub(crate) fn run<F: Future>(&self, future: F) -> F::Output {
        let Self { core, parker, waker, slots } = self;
        let mut future = pin!(future);
        let mut context = Context::from_waker(waker);
        loop {
            *locked(&parker.awaited) = None;
            if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
                return output;
            }
            let awaited = *locked(&parker.awaited);
            if let Some((slot, until)) = awaited {
                core.wait_for(&slots.slots[slot], until, parker, waker);
            } else {
                core.drive_a_little();
            }
        }
    }
}

/// Pauses between two checks while joining or leaving, which happen once in a node's life and wait for
/// several events at a time.
pub(crate) fn tick() {
    pause(TICK);
}

/// Pauses between two attempts to join.
#[allow(clippy::disallowed_methods, reason = "no single event ends these waits")]
pub(crate) fn pause(time: Duration) {
    std::thread::sleep(time);
}

/// Runs the server thread: serves peers while no program thread polls, and alone sleeps on the port.
pub(crate) fn serve(core: &Core) {
    while !core.closing() {
        core.drive(None, || core.closing() || core.is_driven_densely(), |_| core.sleep());
        if !core.closing() {
            core.sleep();
        }
    }
}

/// Unparks the thread of a session that waits in [`Core::wait_for`].
#[derive(Debug)]
pub(crate) struct Parker {
    notified: AtomicBool,
    /// The parked thread; a session may move from thread to thread.
    thread: Mutex<Option<Thread>>,
    /// The slot that the future run by [`Blocking`] waits for, and its deadline.
    awaited: Mutex<Option<(usize, Option<Instant>)>>,
}

impl Parker {
    pub(crate) fn new() -> Arc<Self> {
        let notified = AtomicBool::new(false);
        Arc::new(Self { notified, thread: Mutex::new(None), awaited: Mutex::new(None) })
    }

    /// Forgets earlier wake-ups.
    pub(crate) fn reset(&self) {
        self.notified.store(false, Ordering::SeqCst);
    }

    /// Records the slot that the future waits for.
    pub(crate) fn awaits(&self, slot: usize, until: Option<Instant>) {
        *locked(&self.awaited) = Some((slot, until));
    }

    fn park(&self, time: Duration) {
        *locked(&self.thread) = Some(std::thread::current());
        if !self.notified.load(Ordering::SeqCst) {
            std::thread::park_timeout(time);
        }
        *locked(&self.thread) = None;
    }
}

impl Wake for Parker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.notified.store(true, Ordering::SeqCst);
        if let Some(thread) = locked(&self.thread).as_ref() {
            thread.unpark();
        }
    }
}
