//! Waiting: whoever waits, turns. A thread that is blocked on an operation drives the engine itself
//! while it spins, then parks; the node's own thread, which alone sleeps on the port, goes on for it.
//!
//! A turn disarms the port: an awake node costs its peers no wake-ups. So nobody may stop driving and
//! leave it at that while the node's own thread sleeps. Three rules:
//!
//! - Before a thread parks, the port is armed: what it waits for must wake somebody.
//! - When the node's own thread is in *deep* sleep, whoever has driven arms the port again before
//!   going back to its program, and turns once more if something came between.
//! - Arming costs more than a whole operation on a line that is at hand, and makes every message to
//!   this node dear for its sender. So a node whose program drives all the time has its own thread
//!   *doze* instead: the port stays disarmed, and the thread looks around every [`DOZE`]. It serves
//!   what came in while the program was away, and stops dozing when the program has driven fewer than
//!   [`DENSE`] times since its last look. `DOZE` is the longest that a peer waits for a program that
//!   went off to compute. Nodes whose operations are awaited on executors of the program's own never
//!   doze.
//!
//! **Deadlines.** A thread that is blocked looks at the clock itself. A task on an executor of the
//! program's own leaves an alarm in its session's slots, and the earliest of them in
//! [`Core::alarm_ns`]: threads that drive look at it now and then, and the node's own thread sleeps no
//! longer than that. A thread that sets an alarm earlier than the planned end of that sleep wakes
//! the thread: it has stored the end before it reads the alarm, so one of the two sees the other.

use crate::engine::Engine;
use crate::hit::Lines;
use crate::lock_hit::LockCells;
use crate::node::Drive;
use crate::operation::{SessionSlots, Slot, locked};
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

/// What the threads of a node share.
pub(crate) struct Core {
    pub(crate) engine: Mutex<Engine>,
    pub(crate) lines: Arc<Lines>,
    pub(crate) lock_cells: LockCells,
    pub(crate) waiter: Arc<dyn Waiter>,
    /// How the node's own thread sleeps on the waiter, or is about to.
    pub(crate) server: AtomicU8,
    /// Threads that are blocked on the engine's lock.
    pub(crate) blocked: AtomicU32,
    /// Program threads that are parked: the port must not stay disarmed meanwhile.
    pub(crate) parked: AtomicU32,
    /// Some task has waited on an executor of its own, which never drives.
    pub(crate) awaited: AtomicBool,
    /// How often program threads have driven since `counted_since`; roughly, for lost counts do no
    /// harm.
    pub(crate) driven: AtomicU32,
    pub(crate) counted_since: Mutex<Instant>,
    pub(crate) sleeps: AtomicU64,
    pub(crate) closing: AtomicBool,
    /// One multi-line atomic at a time may pin frames, so that two cannot starve each other of them.
    pub(crate) gate: AtomicBool,
    /// What times of alarms count from.
    pub(crate) began: Instant,
    /// No alarm of a session is earlier; `u64::MAX` when there is none.
    pub(crate) alarm_ns: AtomicU64,
    /// Until when the node's own thread sleeps; zero when it is awake or dozes.
    pub(crate) wakes_at_ns: AtomicU64,
    /// How long a session's calls wait at most, unless it says otherwise.
    pub(crate) timeout: Option<Duration>,
    /// How long a leave waits for the other nodes.
    pub(crate) leave_timeout: Duration,
    pub(crate) spin: Duration,
    pub(crate) limits: Limits,
    pub(crate) line_size: LineSize,
    pub(crate) drive: Drive,
    /// Keeps the regions alive and the control thread running.
    pub(crate) fabric: Arc<dyn Fabric>,
}

impl fmt::Debug for Core {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Core(node {})", self.lines.me())
    }
}

/// Spins between looks at the clock, which costs as much as several turns.
const SPINS_PER_LOOK: u32 = 4;
/// Turns without anything to do before others may have the engine.
const TURNS_PER_LOCK: u32 = 4;
/// Busy polls of the engine between looks at the clock.
const BUSY_PER_LOOK: u32 = 64;
/// Nobody sleeps longer than this without a look around: a net under the wake-up protocol.
const NAP: Duration = Duration::from_millis(500);
/// How often the node's own thread looks around while the program drives: rarely enough to cost the
/// program under a hundredth of a processor, often enough that a peer hardly notices.
const DOZE: Duration = Duration::from_micros(500);
/// Driving so often in that time is driving all the time.
const DENSE: u32 = 40;

/// The node's own thread is awake: it drives.
pub(crate) const AWAKE: u8 = 0;
/// It sleeps until the armed port wakes it.
const DEEP: u8 = 1;
/// It sleeps until its next look around; the port need not be armed.
const DOZING: u8 = 2;

impl Core {
    /// The engine, waiting for whoever has it.
    pub(crate) fn engine(&self) -> MutexGuard<'_, Engine> {
        for _ in 0..64 {
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

    /// Does something with the engine and posts what comes of it.
    pub(crate) fn with_engine<R>(&self, act: impl FnOnce(&mut Engine) -> R) -> R {
        let mut engine = self.engine();
        let result = act(&mut engine);
        engine.post();
        self.driven(&mut engine);
        result
    }

    /// This thread has driven and goes back to its program.
    fn driven(&self, engine: &mut Engine) {
        if self.may_leave() {
            return;
        }
        if engine.homes.is_runnable() {
            return self.waiter.wake(); // slices go on though no program thread drives
        }
        if let Some(in_ns) = engine.take_first_due() {
            self.wake_in(in_ns);
        }
        if engine.armed {
            return;
        }
        self.arm(engine);
        if self.is_driven_densely() {
            self.waiter.wake(); // the node's own thread finds the same, and dozes
        }
    }

    /// Whether program threads have driven [`DENSE`] times within the last [`DOZE`].
    fn is_driven_densely(&self) -> bool {
        if self.driven.load(Ordering::Relaxed) < DENSE {
            return false;
        }
        let now = Instant::now();
        let dense = now - std::mem::replace(&mut *locked(&self.counted_since), now) < DOZE;
        if !dense {
            self.driven.store(0, Ordering::Relaxed);
        }
        dense
    }

    /// How often program threads have driven since the count began, which begins anew.
    fn take_driven(&self) -> u32 {
        *locked(&self.counted_since) = Instant::now();
        self.driven.swap(0, Ordering::Relaxed)
    }

    /// Whether a thread that has driven may leave the port disarmed. Counts that it has driven.
    fn may_leave(&self) -> bool {
        let driven = self.driven.load(Ordering::Relaxed);
        self.driven.store(driven.saturating_add(1), Ordering::Relaxed);
        match self.server.load(Ordering::SeqCst) {
            AWAKE => true,
            DOZING => !self.somebody_waits(),
            _ => false,
        }
    }

    /// Whether what arrives may be for somebody who does not drive.
    fn somebody_waits(&self) -> bool {
        self.parked.load(Ordering::SeqCst) > 0 || self.awaited.load(Ordering::SeqCst)
    }

    /// A task waits for an operation and its executor goes on to other things.
    #[cold]
    pub(crate) fn awaits(&self) {
        if !self.awaited.load(Ordering::Relaxed) {
            self.awaited.store(true, Ordering::SeqCst);
        }
        self.drove();
    }

    /// Arms the port, and turns as long as there is something to do instead.
    fn arm(&self, engine: &mut Engine) {
        while !engine.armed && engine.arm() {
            engine.turn();
        }
    }

    /// Polls the engine until `done` says so or the time is over; when there was nothing to do for a
    /// while, calls `sleep` with the time that is left.
    fn drive(
        &self,
        until: Option<Instant>,
        mut done: impl FnMut() -> bool,
        mut sleep: impl FnMut(Option<Duration>),
    ) {
        let (mut spun, mut busy) = (0_u32, 0_u32);
        let mut since: Option<Instant> = None;
        let mut slicing = false;
        while !done() {
            // The lock is not fair: a driver with slices to do would take it again before any other thread.
            if slicing && self.blocked.load(Ordering::Relaxed) > 0 {
                std::thread::yield_now();
                continue;
            }
            let turn = |mut engine: MutexGuard<'_, Engine>| {
                let busy = (0..TURNS_PER_LOCK).any(|_| engine.turn());
                slicing = engine.homes.is_runnable();
                busy
            };
            let turned = self.try_engine().is_some_and(turn);
            if turned {
                since = None;
                busy += 1;
            } else {
                spun += 1;
            }
            if !(if turned {
                busy.is_multiple_of(BUSY_PER_LOOK)
            } else {
                spun.is_multiple_of(SPINS_PER_LOOK)
            }) {
                if !turned {
                    std::hint::spin_loop();
                }
                continue;
            }
            let now = Instant::now();
            self.ring(now);
            if until.is_some_and(|until| now >= until) {
                return;
            }
            if !turned && now.duration_since(*since.get_or_insert(now)) >= self.spin {
                sleep(until.map(|until| until - now));
                since = None;
            }
        }
    }

    fn time_ns(&self, at: Instant) -> u64 {
        u64::try_from(at.saturating_duration_since(self.began).as_nanos()).unwrap_or(u64::MAX)
    }

    /// The node's own thread has something to do in so long, which it may not know of.
    fn wake_in(&self, in_ns: u64) {
        self.wake_by(self.time_ns(Instant::now()).saturating_add(in_ns));
    }

    /// A task of this session awaits a call until `at`: its waker will be woken then.
    pub(crate) fn set_alarm(&self, slots: &SessionSlots, at: Instant) {
        let at_ns = self.time_ns(at);
        slots.alarm_ns.store(at_ns, Ordering::SeqCst);
        self.wake_by(at_ns);
    }

    /// The node's own thread sleeps no longer than until then.
    fn wake_by(&self, at_ns: u64) {
        self.alarm_ns.fetch_min(at_ns, Ordering::SeqCst);
        if self.wakes_at_ns.load(Ordering::SeqCst) > at_ns {
            self.waiter.wake();
        }
    }

    /// Wakes tasks whose calls have reached their deadlines, if there are alarms.
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
        // Before the look at the sessions: an alarm that is set after it lowers this again.
        self.alarm_ns.store(u64::MAX, Ordering::SeqCst);
        let engine = self.engine();
        for slots in engine.sessions.iter().flatten() {
            let at_ns = slots.alarm_ns.load(Ordering::SeqCst);
            if at_ns > now_ns {
                self.alarm_ns.fetch_min(at_ns, Ordering::SeqCst);
                continue;
            }
            let (old, new) = (at_ns, u64::MAX);
            let rung =
                slots.alarm_ns.compare_exchange(old, new, Ordering::SeqCst, Ordering::SeqCst);
            if rung.is_ok() {
                slots.slots.iter().for_each(Slot::rouse);
            }
        }
    }

    /// As [`driven`](Self::driven), without the engine.
    pub(crate) fn drove(&self) {
        if !self.may_leave() {
            self.driven(&mut self.engine());
        }
    }

    /// Drives a little for whoever waits for operations and has other things to do too.
    pub(crate) fn drive_a_little(&self) {
        if let Some(mut engine) = self.try_engine() {
            let _ = (0..TURNS_PER_LOCK).any(|_| engine.turn());
        }
        self.drove();
    }

    /// Sleeps otherwise than by [`park`](Self::park), until [`wakes`](Self::wakes): whatever arrives must
    /// wake the node's own thread.
    pub(crate) fn sleeps(&self) {
        self.parked.fetch_add(1, Ordering::SeqCst);
        if self.server.load(Ordering::SeqCst) != AWAKE {
            self.arm(&mut self.engine());
        }
    }

    /// It does not sleep any more.
    pub(crate) fn wakes(&self) {
        self.parked.fetch_sub(1, Ordering::SeqCst);
    }

    /// Waits for an operation until `until`, driving; whether it has ended.
    pub(crate) fn wait_for(
        &self,
        slot: &Slot,
        until: Option<Instant>,
        parker: &Arc<Parker>,
        waker: &Waker,
    ) -> bool {
        let sleep = |left| {
            parker.notified.store(false, Ordering::SeqCst);
            if !slot.watch(waker) {
                self.park(parker, left);
            }
        };
        self.drive(until, || slot.outcome().is_some(), sleep);
        self.drove();
        slot.outcome().is_some()
    }

    /// Parks this thread, which drives no more: whatever arrives must wake the node's own thread.
    fn park(&self, parker: &Parker, left: Option<Duration>) {
        self.sleeps();
        self.sleeps.fetch_add(1, Ordering::Relaxed);
        parker.park(left.map_or(NAP, |left| left.min(NAP)));
        self.wakes();
    }

    /// Sleeps, as the node's own thread, until there is something for it to do.
    fn sleep(&self) {
        while self.take_driven() >= DENSE && !self.closing() {
            self.server.store(DOZING, Ordering::SeqCst);
            if self.somebody_waits() {
                break; // whoever waits from now on sees that the port is to be armed
            }
            self.nap(DOZE);
            self.server.store(AWAKE, Ordering::SeqCst);
            if let Some(mut engine) = self.try_engine() {
                engine.turn();
            }
            self.ring_due();
        }
        self.server.store(DEEP, Ordering::SeqCst);
        let time = {
            let mut engine = self.engine();
            engine.probe();
            let quiet = !engine.turn() && !engine.arm();
            quiet.then(|| NAP.min(Duration::from_nanos(engine.wakes_in_ns())))
        };
        if let Some(time) = time {
            self.nap_until_alarm(time);
        }
        self.server.store(AWAKE, Ordering::SeqCst);
    }

    /// Sleeps for so long, or until the first alarm.
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

/// What a thread needs that runs a future of a session, which borrows the session meanwhile.
pub(crate) struct Blocking {
    pub(crate) core: Arc<Core>,
    pub(crate) parker: Arc<Parker>,
    pub(crate) waker: Waker,
    pub(crate) slots: Arc<SessionSlots>,
}

impl Blocking {
    /// Runs a future of the session to its end on this thread.
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
                core.drive_a_little(); // it waits for another session of this node, and looks again
            }
        }
    }
}

/// Lets some time pass between two looks while joining or leaving, which happen once in a node's life
/// and wait for several things at a time.
pub(crate) fn tick() {
    pause(Duration::from_micros(200));
}

/// Lets some time pass between two attempts to join.
#[allow(clippy::disallowed_methods, reason = "no single event ends these waits")]
pub(crate) fn pause(time: Duration) {
    std::thread::sleep(time);
}

/// The node's own thread: serves peers while no program thread does, and alone sleeps on the port.
pub(crate) fn serve(core: &Core) {
    while !core.closing() {
        core.drive(None, || core.closing() || core.is_driven_densely(), |_| core.sleep());
        if !core.closing() {
            core.sleep();
        }
    }
}

/// Wakes the thread of a session that waits in [`Core::wait_for`].
#[derive(Debug)]
pub(crate) struct Parker {
    notified: AtomicBool,
    /// Who is parked; a session may move from thread to thread.
    thread: Mutex<Option<Thread>>,
    /// What the future that [`Blocking`] runs waits for: a slot, and until when.
    awaited: Mutex<Option<(usize, Option<Instant>)>>,
}

impl Parker {
    pub(crate) fn new() -> Arc<Self> {
        let notified = AtomicBool::new(false);
        Arc::new(Self { notified, thread: Mutex::new(None), awaited: Mutex::new(None) })
    }

    /// The future waits for this slot.
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
