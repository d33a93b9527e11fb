//! Events from the control thread to a port, and how a sleeping port is woken.

use crate::ffi::Channel;
use crate::intake::Intake;
use crate::token::{Token, lock};
use crate::wire::{Imported, NotImported, Parting, QueuePairEnd};
use farside_base::CompletionStatus;
use farside_fabric::{FabricError, Loss, NotReached, Waiter};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// An event for a port.
#[derive(Debug)]
pub(crate) enum Inbound {
    /// A peer wants to connect.
    Requested { token: Token, peer: QueuePairEnd, from: String, hello: Vec<u8> },
    /// The peer accepted and this side's queue pair is connected; the path in words.
    Connected { token: Token, peer: QueuePairEnd, from: String, reply: Vec<u8> },
    /// The peer refused.
    Refused { token: Token, reason: Vec<u8> },
    /// No peer was reached; why, in words too.
    NotReached { token: Token, why: NotReached, words: String },
    /// The link is lost: what is known of the peer, how its first request completes, and why in words.
    Lost { token: Token, loss: Loss, status: CompletionStatus, words: String },
    /// The adapters' connection of a link has ended, though neither end closed it; what the peer knows.
    Parted { token: Token, why: Parting },
    /// The link's queue pair is broken, while nothing is known against the peer; `Flushed` when it has
    /// refused a request of the peer's.
    Fault { token: Token, status: CompletionStatus, words: String },
    /// The device's local port is down.
    PortDown,
    /// The completion queue or receive queue of this address, or the whole device, is broken.
    Broken { queue: Option<u64>, words: String },
}

/// The event queue of a port.
pub(crate) struct Inbox {
    /// Unlike any other's of this fabric.
    pub(crate) number: u64,
    items: Mutex<VecDeque<Inbound>>,
    filled: AtomicBool,
    pub(crate) bell: Arc<PortWaker>,
    /// Woken by events too.
    other_waiter: Mutex<Option<Arc<dyn Waiter>>>,
    pub(crate) intake: Intake,
    /// Links and connection requests of the port, for its limit.
    pub(crate) links: AtomicU64,
}

impl Inbox {
    pub(crate) fn new(number: u64, bell: Arc<PortWaker>, intake: Intake) -> Self {
        let (items, filled) = (Mutex::default(), AtomicBool::new(false));
        let (other_waiter, links) = (Mutex::new(None), AtomicU64::new(0));
        Self { number, items, filled, bell, other_waiter, intake, links }
    }

    pub(crate) fn push(&self, item: Inbound) {
        lock(&self.items).push_back(item);
        self.filled.store(true, Ordering::Release);
        self.bell.ring();
        if let Some(other) = &*lock(&self.other_waiter) {
            other.wake();
        }
    }

    /// Wakes `waiter` too from now on.
    pub(crate) fn wake_also(&self, waiter: Arc<dyn Waiter>) {
        *lock(&self.other_waiter) = Some(waiter);
    }

    /// Returns whether `take` would return something. One load.
    #[inline]
    pub(crate) fn is_filled(&self) -> bool {
        self.filled.load(Ordering::Acquire)
    }

    pub(crate) fn take(&self) -> VecDeque<Inbound> {
        let mut items = lock(&self.items);
        self.filled.store(false, Ordering::Release);
        std::mem::take(&mut *items)
    }
}

/// Wakes a port's sleeping thread: an event counter next to the channel of its completion queue.
pub(crate) struct PortWaker {
    counter: OwnedFd,
    channel: Arc<Channel>,
    /// Set while the port is armed, so that an awake port is not rung.
    pub(crate) armed: AtomicBool,
    /// When it was armed with requests in flight, in ticks; zero otherwise.
    pub(crate) watched_since: AtomicU64,
}

impl PortWaker {
    pub(crate) fn new(channel: Arc<Channel>) -> std::io::Result<Self> {
        let counter = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let (armed, watched_since) = (AtomicBool::new(false), AtomicU64::new(0));
        Ok(Self { counter, channel, armed, watched_since })
    }

    /// Wakes the port if it sleeps or is about to.
    pub(crate) fn ring(&self) {
        // After storing something for the port: either this load sees that it is armed, or its check
        // after arming sees what was stored.
        std::sync::atomic::fence(Ordering::SeqCst);
        if self.armed.load(Ordering::Relaxed) {
            self.add();
        }
    }

    fn add(&self) {
        // Fails only at its largest value, which wakes as well.
        let _ = rustix::io::write(&self.counter, &1u64.to_ne_bytes());
    }

    /// Returns whether it was rung; takes it back.
    fn take(&self) -> bool {
        rustix::io::read(&self.counter, &mut [0; 8]).is_ok()
    }

    fn channel_descriptor(&self) -> BorrowedFd<'_> {
        self.channel.borrowed()
    }
}

impl Waiter for PortWaker {
    fn wait(&self, timeout: Option<Duration>) -> bool {
        if self.take() {
            return true;
        }
        let end = timeout.map(|timeout| Instant::now() + timeout);
        loop {
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
            let time = left.and_then(|left| Timespec::try_from(left).ok());
            let counter = self.counter.as_fd();
            let mut descriptors = [
                PollFd::from_borrowed_fd(counter, PollFlags::IN),
                PollFd::from_borrowed_fd(self.channel_descriptor(), PollFlags::IN),
            ];
            match poll(&mut descriptors, time.as_ref()) {
                Ok(0) if end.is_some() => return false,
                Ok(0) | Err(rustix::io::Errno::INTR) => {}
                Ok(_) => {
                    self.take();
                    return true;
                }
                // No descriptor to wait for: the caller polls.
                Err(_) => return true,
            }
        }
    }

    fn wake(&self) {
        self.add();
    }
}

/// A reply that a thread waits for.
pub(crate) struct PendingReply<T> {
    answer: Mutex<Option<Result<T, FabricError>>>,
    given: Condvar,
}

impl<T> PendingReply<T> {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { answer: Mutex::new(None), given: Condvar::new() })
    }

    /// Stores the answer; only the first one counts.
    pub(crate) fn give(&self, answer: Result<T, FabricError>) {
        lock(&self.answer).get_or_insert(answer);
        self.given.notify_all();
    }

    /// Waits for the answer, at most for a time.
    pub(crate) fn wait(&self, most: Duration) -> Option<Result<T, FabricError>> {
        let answer = lock(&self.answer);
        let waited = self.given.wait_timeout_while(answer, most, |answer| answer.is_none());
        let (mut answer, _) = waited.unwrap_or_else(PoisonError::into_inner);
        answer.take()
    }
}

/// A remote region, once the peer has answered.
pub(crate) type ImportReply = PendingReply<Result<Imported, NotImported>>;
