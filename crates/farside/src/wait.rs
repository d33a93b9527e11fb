//! Waiting: whoever waits, turns. A thread that is blocked on an operation drives the engine itself
//! while it spins, then parks; the node's own thread, which alone sleeps on the port, goes on for it.
//!
//! The rule that no wake-up is lost: while the node's own thread sleeps, the port is armed whenever
//! nobody drives. A turn disarms it (an awake node costs its peers no wake-ups), so whoever stops
//! driving arms it again, and turns once more if something came between.

use crate::engine::Engine;
use crate::hit::Lines;
use crate::node::Drive;
use crate::operation::locked;
use farside_base::{Limits, LineSize};
use farside_fabric::{Fabric, Waiter};
use std::fmt;
use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

/// What the threads of a node share.
pub(crate) struct Core {
    pub(crate) engine: Mutex<Engine>,
    pub(crate) lines: Arc<Lines>,
    pub(crate) waiter: Arc<dyn Waiter>,
    /// The node's own thread sleeps on the waiter, or is about to.
    pub(crate) server_asleep: AtomicBool,
    pub(crate) sleeps: AtomicU64,
    pub(crate) closing: AtomicBool,
    /// One multi-line atomic at a time may pin frames, so that two cannot starve each other of them.
    pub(crate) gate: AtomicBool,
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
const SPINS_PER_LOOK: u32 = 16;
/// Nobody sleeps longer than this without a look around: a net under the wake-up protocol.
const NAP: Duration = Duration::from_millis(500);

impl Core {
    /// The engine, waiting for whoever has it.
    pub(crate) fn engine(&self) -> MutexGuard<'_, Engine> {
        for _ in 0..64 {
            if let Some(engine) = self.try_engine() {
                return engine;
            }
            std::hint::spin_loop();
        }
        locked(&self.engine)
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
        self.rearm(&mut engine);
        result
    }

    /// Arms the port again if the node's own thread sleeps on it.
    fn rearm(&self, engine: &mut Engine) {
        while self.server_asleep.load(Ordering::SeqCst) && !engine.armed && engine.arm() {
            engine.turn();
        }
    }

    /// Turns until `done` says so; when there was nothing to do for a while, calls `sleep`.
    fn drive(&self, mut done: impl FnMut() -> bool, mut sleep: impl FnMut()) {
        let mut spun = 0_u32;
        let mut since: Option<Instant> = None;
        while !done() {
            let busy = self.try_engine().is_some_and(|mut engine| engine.turn());
            if busy {
                since = None;
                continue;
            }
            spun += 1;
            if !spun.is_multiple_of(SPINS_PER_LOOK) {
                std::hint::spin_loop();
                continue;
            }
            let now = Instant::now();
            if now.duration_since(*since.get_or_insert(now)) >= self.spin {
                sleep();
                since = None;
            }
        }
    }

    /// Stops driving: from now on whatever arrives must wake the node's own thread, if it sleeps.
    fn hand_over(&self) {
        if self.server_asleep.load(Ordering::SeqCst) {
            let mut engine = self.engine();
            self.rearm(&mut engine);
        }
    }

    /// Runs a future to its end on this thread.
    pub(crate) fn block_on<F: Future>(
        &self,
        parker: &Arc<Parker>,
        waker: &Waker,
        future: F,
    ) -> F::Output {
        let mut future = pin!(future);
        let mut context = Context::from_waker(waker);
        loop {
            parker.notified.store(false, Ordering::SeqCst);
            if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
                return output;
            }
            self.drive(
                || parker.notified.load(Ordering::Acquire),
                || {
                    self.hand_over();
                    self.sleeps.fetch_add(1, Ordering::Relaxed);
                    parker.park();
                },
            );
            self.hand_over();
        }
    }
}

/// Lets some time pass between two looks while joining or leaving, which happen once in a node's life
/// and wait for several things at a time.
#[allow(clippy::disallowed_methods, reason = "no single event ends these waits")]
pub(crate) fn tick() {
    std::thread::sleep(Duration::from_micros(200));
}

/// The node's own thread: serves peers while no program thread does, and alone sleeps on the port.
pub(crate) fn serve(core: &Core) {
    core.drive(
        || core.closing.load(Ordering::Acquire),
        || {
            core.server_asleep.store(true, Ordering::SeqCst);
            let quiet = {
                let mut engine = core.engine();
                engine.probe();
                !engine.turn() && !engine.arm()
            };
            if quiet && !core.closing.load(Ordering::SeqCst) {
                core.sleeps.fetch_add(1, Ordering::Relaxed);
                core.waiter.wait(Some(NAP));
            }
            core.server_asleep.store(false, Ordering::SeqCst);
        },
    );
}

/// Wakes the thread of a session that waits in [`Core::block_on`].
#[derive(Debug)]
pub(crate) struct Parker {
    notified: AtomicBool,
    /// Who is parked; a session may move from thread to thread.
    thread: Mutex<Option<Thread>>,
}

impl Parker {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { notified: AtomicBool::new(false), thread: Mutex::new(None) })
    }

    fn park(&self) {
        *locked(&self.thread) = Some(std::thread::current());
        if !self.notified.load(Ordering::SeqCst) {
            std::thread::park_timeout(NAP);
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
