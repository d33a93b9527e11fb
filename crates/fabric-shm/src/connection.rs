//! One end of a link as shared by its port and the control thread: the socket, the state of the link,
//! and questions with pending answers.

use crate::bell::{SharedBell, ring};
use crate::layout::{bells, board};
use crate::mapping::{View, map_writable};
use crate::message::{ControlMessage, DESCRIPTORS_MAX, Grant, Terms};
use crate::ring::Geometry;
use crate::socket;
use farside_base::{LinkId, RegionId};
use farside_fabric::{FabricError, Waiter};
use rustix::fd::{AsFd, OwnedFd};
use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// Locks; a thread that panicked under the lock left the value usable, as all values here are
/// changed in one step.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A port's knowledge of the process at the other end.
#[derive(Clone, Debug)]
pub(crate) struct KnownPeer {
    /// The other end's link memory and the layout of its ring.
    pub(crate) memory: View,
    pub(crate) geometry: Geometry,
    /// Its fabric's board.
    pub(crate) board: View,
    /// Its port's number, and sleep word.
    pub(crate) port: u32,
    pub(crate) bell: SharedBell,
    pub(crate) barriers: bool,
}

impl KnownPeer {
    /// Maps the memory that came with a hello or its answer.
    pub(crate) fn new(terms: &Terms, descriptors: &[OwnedFd]) -> io::Result<Self> {
        let [memory, fabric, sleep]: &[OwnedFd; DESCRIPTORS_MAX] =
            descriptors.try_into().map_err(|_| io::Error::other("wrong number of descriptors"))?;
        let sleep = map_writable(sleep.as_fd(), bells::BYTES)?;
        Ok(Self {
            memory: View::new(memory.as_fd(), terms.geometry.bytes())?,
            geometry: terms.geometry,
            board: View::new(fabric.as_fd(), board::BYTES)?,
            port: terms.port,
            bell: SharedBell::new(&sleep, terms.port)
                .ok_or_else(|| io::Error::other("no such bell"))?,
            barriers: terms.barriers,
        })
    }

    /// Returns the in-flight word of its port.
    pub(crate) fn in_flight(&self) -> u64 {
        self.board.load(board::in_flight(self.port), Ordering::SeqCst)
    }
}

/// An event from the control thread to a port.
pub(crate) enum Inbound {
    Requested { connection: Arc<Connection>, peer: KnownPeer, hello: Vec<u8> },
    Connected { link: LinkId, peer: KnownPeer, reply: Vec<u8> },
    Refused { link: LinkId, reason: Vec<u8> },
    Lost { link: LinkId },
}

/// The inbox in which the control thread leaves events for a port.
pub(crate) struct Inbox {
    /// `None` when the port is gone.
    news: Mutex<Option<VecDeque<Inbound>>>,
    /// Whether there may be events.
    pending: AtomicBool,
    /// A link has ended or a region is gone: the port must check before it posts or delivers.
    attention: AtomicBool,
    /// The port's own sleep word.
    bell: SharedBell,
    /// Woken by news too.
    other_waiter: Mutex<Option<Arc<dyn Waiter>>>,
    links_made: AtomicU32,
    links_open: AtomicU32,
}

impl Inbox {
    pub(crate) fn new(bell: SharedBell) -> Self {
        Self {
            news: Mutex::new(Some(VecDeque::new())),
            pending: AtomicBool::new(false),
            attention: AtomicBool::new(false),
            bell,
            other_waiter: Mutex::new(None),
            links_made: AtomicU32::new(0),
            links_open: AtomicU32::new(0),
        }
    }

    /// Returns the port's own sleep word.
    pub(crate) fn bell(&self) -> &SharedBell {
        &self.bell
    }

    /// Adds an event and wakes the port; false if the port is gone.
    pub(crate) fn push(&self, news: Inbound) -> bool {
        match lock(&self.news).as_mut() {
            None => return false,
            Some(waiting) => waiting.push_back(news),
        }
        self.pending.store(true, Ordering::Release);
        ring(&self.bell);
        if let Some(other) = &*lock(&self.other_waiter) {
            other.wake();
        }
        true
    }

    /// Wakes `waiter` too from now on.
    pub(crate) fn wake_also(&self, waiter: Arc<dyn Waiter>) {
        *lock(&self.other_waiter) = Some(waiter);
    }

    /// Wakes the port for an answer that it waits for.
    fn wake(&self) {
        self.pending.store(true, Ordering::Release);
        ring(&self.bell);
    }

    /// Makes the port check its links and regions.
    pub(crate) fn call_attention(&self) {
        self.attention.store(true, Ordering::Release);
    }

    /// Returns whether the port must check them.
    #[inline(always)]
    pub(crate) fn wants_attention(&self) -> bool {
        self.attention.load(Ordering::Acquire)
    }

    /// Resets the flag; called before the port checks.
    pub(crate) fn attend(&self) {
        self.attention.swap(false, Ordering::AcqRel);
    }

    /// Returns whether [`take`](Self::take) may find something.
    #[inline]
    pub(crate) fn is_pending(&self) -> bool {
        self.pending.load(Ordering::Acquire)
    }

    /// Takes all events.
    pub(crate) fn take(&self) -> VecDeque<Inbound> {
        self.pending.store(false, Ordering::Release);
        let mut news = lock(&self.news);
        news.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Refuses further events. Returns those that are left.
    pub(crate) fn close(&self) -> VecDeque<Inbound> {
        lock(&self.news).take().unwrap_or_default()
    }

    /// Returns a number for a further link, unless there are `most` already.
    pub(crate) fn open_link(&self, most: u32) -> Option<LinkId> {
        let more = |open: u32| (open < most).then_some(open + 1);
        let order = Ordering::Relaxed;
        self.links_open.fetch_update(order, order, more).ok()?;
        // Four thousand million links in the life of one port; then it opens no more.
        let count = |made: u32| made.checked_add(1);
        let made = self.links_made.fetch_update(order, order, count).ok();
        if made.is_none() {
            self.link_closed();
        }
        made.map(LinkId)
    }

    /// Counts a closed link.
    pub(crate) fn link_closed(&self) {
        self.links_open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The state of an end of a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum ConnectionStage {
    /// Sent a request and has no answer.
    Connecting,
    /// Received a request and has not answered.
    Requested,
    /// Usable.
    Ready,
    /// Ended, by either side.
    Ended,
}

impl ConnectionStage {
    fn from_number(number: u8) -> Self {
        match number {
            0 => Self::Connecting,
            1 => Self::Requested,
            2 => Self::Ready,
            _ => Self::Ended,
        }
    }
}

/// The longest wait for an answer, whatever the options say.
const WAIT_MAX: Duration = Duration::from_secs(24 * 3600);

/// The answer of a peer to a question.
pub(crate) type Answer = Option<(Grant, Option<OwnedFd>)>;

#[derive(Default)]
struct Questions {
    asked: u64,
    /// Open questions, and those with an answer that was not taken yet.
    open: HashMap<u64, Option<Answer>>,
}

/// One end of a link.
pub(crate) struct Connection {
    /// Its number at the control thread.
    pub(crate) token: u64,
    pub(crate) socket: Arc<OwnedFd>,
    pub(crate) link: LinkId,
    pub(crate) inbox: Arc<Inbox>,
    stage: AtomicU8,
    /// A request of the other end has failed.
    broken: AtomicBool,
    /// The memory that a requester at the other end shows to an owner of regions at this one.
    pub(crate) peer: OnceLock<KnownPeer>,
    /// Regions of this process that the other end has imported.
    pub(crate) held: Mutex<Vec<RegionId>>,
    questions: Mutex<Questions>,
    answered: Condvar,
}

impl Connection {
    pub(crate) fn new(
        token: u64,
        socket: Arc<OwnedFd>,
        link: LinkId,
        inbox: Arc<Inbox>,
        stage: ConnectionStage,
    ) -> Self {
        Self {
            token,
            socket,
            link,
            inbox,
            stage: AtomicU8::new(stage as u8),
            broken: AtomicBool::new(false),
            peer: OnceLock::new(),
            held: Mutex::default(),
            questions: Mutex::default(),
            answered: Condvar::new(),
        }
    }

    pub(crate) fn stage(&self) -> ConnectionStage {
        ConnectionStage::from_number(self.stage.load(Ordering::Acquire))
    }

    /// Returns whether the link is over, as far as the control thread knows.
    pub(crate) fn has_ended(&self) -> bool {
        self.stage() == ConnectionStage::Ended
    }

    /// Returns whether requests cannot run any more, though messages may still be waiting.
    pub(crate) fn is_down(&self) -> bool {
        self.has_ended() || self.broken.load(Ordering::Acquire)
    }

    /// Notifies the other end that a request of this one has failed.
    pub(crate) fn tell_broken(&self) {
        let mut bytes = Vec::new();
        ControlMessage::Broken.encode(&mut bytes);
        // Best effort: a peer that does not receive it is gone, or has its socket full of such
        // messages.
        let _ = socket::send(self.socket.as_fd(), &bytes, &[]);
    }

    /// Records that the other end has reported a failed request.
    pub(crate) fn hear_broken(&self) {
        self.broken.store(true, Ordering::Release);
        self.inbox.call_attention();
    }

    /// Changes the stage from `from` to `to`. Returns whether it was `from`.
    pub(crate) fn advance(&self, from: ConnectionStage, to: ConnectionStage) -> bool {
        let order = Ordering::AcqRel;
        self.stage.compare_exchange(from as u8, to as u8, order, Ordering::Acquire).is_ok()
    }

    /// Ends it on this side, and with it the conversation; the stage before.
    pub(crate) fn end(&self) -> ConnectionStage {
        let before = self.stage.swap(ConnectionStage::Ended as u8, Ordering::AcqRel);
        socket::end(self.socket.as_fd());
        self.inbox.call_attention();
        // Under the lock, so that an asker either sees the end or is already waiting.
        drop(lock(&self.questions));
        self.answered.notify_all();
        ConnectionStage::from_number(before)
    }

    /// Sends a question to the peer's fabric and waits for the answer; `send` gets the number of the
    /// question.
    ///
    /// # Errors
    /// `PeerLost`; `System` if the peer did not answer in time.
    pub(crate) fn ask(
        &self,
        timeout: Duration,
        send: impl FnOnce(u64) -> Result<(), FabricError>,
    ) -> Result<Answer, FabricError> {
        let number = self.begin(send)?;
        let answer = self.wait(number, timeout);
        lock(&self.questions).open.remove(&number);
        answer
    }

    /// Sends a question to the peer's fabric. Returns its number, which `send` gets too.
    ///
    /// # Errors
    /// Those of `send`.
    pub(crate) fn begin(
        &self,
        send: impl FnOnce(u64) -> Result<(), FabricError>,
    ) -> Result<u64, FabricError> {
        let number = {
            let mut questions = lock(&self.questions);
            questions.asked += 1;
            let number = questions.asked;
            questions.open.insert(number, None);
            number
        };
        match send(number) {
            Ok(()) => Ok(number),
            Err(reason) => {
                lock(&self.questions).open.remove(&number);
                Err(reason)
            }
        }
    }

    /// Returns the answer to a question, if it has arrived. Its arrival wakes the port.
    ///
    /// # Errors
    /// `PeerLost`.
    pub(crate) fn take_answer(&self, number: u64) -> Result<Option<Answer>, FabricError> {
        let mut questions = lock(&self.questions);
        match questions.open.get_mut(&number).and_then(Option::take) {
            Some(answer) => {
                questions.open.remove(&number);
                Ok(Some(answer))
            }
            None if self.has_ended() => Err(FabricError::PeerLost),
            None => Ok(None),
        }
    }

    /// Returns the error of a question without an answer in time.
    pub(crate) fn no_answer() -> FabricError {
        let reason = io::ErrorKind::TimedOut.into();
        FabricError::System("the peer's fabric does not answer", reason)
    }

    fn wait(&self, number: u64, timeout: Duration) -> Result<Answer, FabricError> {
        let end = Instant::now() + timeout.min(WAIT_MAX);
        let mut questions = lock(&self.questions);
        loop {
            if let Some(answer) = questions.open.get_mut(&number).and_then(Option::take) {
                return Ok(answer);
            }
            if self.has_ended() {
                return Err(FabricError::PeerLost);
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Self::no_answer());
            }
            let waited = self.answered.wait_timeout(questions, left);
            questions = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Stores an answer. Returns false if no question has this number, which violates the protocol; the
    /// answer to an abandoned question is dropped.
    pub(crate) fn answer(&self, number: u64, answer: Answer) -> bool {
        let mut questions = lock(&self.questions);
        let known = (1..=questions.asked).contains(&number);
        if let Some(place) = questions.open.get_mut(&number) {
            *place = Some(answer);
        }
        drop(questions);
        self.answered.notify_all();
        self.inbox.wake();
        known
    }
}
