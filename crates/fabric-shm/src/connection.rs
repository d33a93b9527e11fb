//! One end of a link as its port and the control thread share it: the socket, how the link
//! stands, and questions that wait for answers.

use crate::bell::{SharedBell, ring};
use crate::layout::{bells, board};
use crate::mapping::{View, map_writable};
use crate::message::{DESCRIPTORS_MAX, Grant, Message, Terms};
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

/// What a port knows of the process at the other end.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    /// The other end's link memory and how its ring lies in it.
    pub(crate) memory: View,
    pub(crate) geometry: Geometry,
    /// Its fabric's board.
    pub(crate) board: View,
    /// Its port's number, and sleep word.
    pub(crate) port: u32,
    pub(crate) bell: SharedBell,
    pub(crate) barriers: bool,
}

impl Peer {
    /// Maps what came with a hello or its answer.
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

    /// The in-flight word of its port.
    pub(crate) fn in_flight(&self) -> u64 {
        self.board.load(board::in_flight(self.port), Ordering::SeqCst)
    }
}

/// What the control thread tells a port.
pub(crate) enum Inbound {
    Requested { connection: Arc<Connection>, peer: Peer, hello: Vec<u8> },
    Connected { link: LinkId, peer: Peer, reply: Vec<u8> },
    Refused { link: LinkId, reason: Vec<u8> },
    Lost { link: LinkId },
}

/// Where the control thread leaves news for a port.
pub(crate) struct Inbox {
    /// `None` when the port is gone.
    news: Mutex<Option<VecDeque<Inbound>>>,
    /// Whether there may be some.
    pending: AtomicBool,
    /// A link has ended or a region has gone: the port must look before it posts or delivers.
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

    /// The port's own sleep word.
    pub(crate) fn bell(&self) -> &SharedBell {
        &self.bell
    }

    /// Leaves news and wakes the port; false when it is gone.
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

    /// From now on `waiter` is woken too.
    pub(crate) fn wake_also(&self, waiter: Arc<dyn Waiter>) {
        *lock(&self.other_waiter) = Some(waiter);
    }

    /// Wakes the port: an answer that it waits for has come.
    fn wake(&self) {
        self.pending.store(true, Ordering::Release);
        ring(&self.bell);
    }

    /// Makes the port look at its links and regions.
    pub(crate) fn call_attention(&self) {
        self.attention.store(true, Ordering::Release);
    }

    /// Whether the port must look.
    #[inline(always)]
    pub(crate) fn wants_attention(&self) -> bool {
        self.attention.load(Ordering::Acquire)
    }

    /// To be called before the port looks.
    pub(crate) fn attend(&self) {
        self.attention.swap(false, Ordering::AcqRel);
    }

    /// Whether [`take`](Self::take) may find something.
    #[inline]
    pub(crate) fn is_pending(&self) -> bool {
        self.pending.load(Ordering::Acquire)
    }

    /// Everything that has come.
    pub(crate) fn take(&self) -> VecDeque<Inbound> {
        self.pending.store(false, Ordering::Release);
        let mut news = lock(&self.news);
        news.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Takes no news any more; what had come.
    pub(crate) fn close(&self) -> VecDeque<Inbound> {
        lock(&self.news).take().unwrap_or_default()
    }

    /// A number for a further link, unless there are `most` already.
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

    /// One link less.
    pub(crate) fn link_closed(&self) {
        self.links_open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// How an end of a link stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Stage {
    /// Asked the peer and has no answer.
    Connecting,
    /// Was asked and has not answered.
    Requested,
    /// Usable.
    Ready,
    /// Over, whoever ended it.
    Ended,
}

impl Stage {
    fn from_number(number: u8) -> Self {
        match number {
            0 => Self::Connecting,
            1 => Self::Requested,
            2 => Self::Ready,
            _ => Self::Ended,
        }
    }
}

/// Nobody waits longer for an answer, whatever the options say.
const WAIT_MAX: Duration = Duration::from_secs(24 * 3600);

/// What a peer answered to a question.
pub(crate) type Answer = Option<(Grant, Option<OwnedFd>)>;

#[derive(Default)]
struct Questions {
    asked: u64,
    /// Open ones, and those whose answers nobody has taken yet.
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
    /// What a requester at the other end shows to an owner of regions at this one.
    pub(crate) peer: OnceLock<Peer>,
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
        stage: Stage,
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

    pub(crate) fn stage(&self) -> Stage {
        Stage::from_number(self.stage.load(Ordering::Acquire))
    }

    /// Whether the link is over, as far as the control thread knows.
    pub(crate) fn has_ended(&self) -> bool {
        self.stage() == Stage::Ended
    }

    /// Whether requests cannot run any more, though messages may still be waiting.
    pub(crate) fn is_down(&self) -> bool {
        self.has_ended() || self.broken.load(Ordering::Acquire)
    }

    /// Tells the other end that a request of this one has failed.
    pub(crate) fn tell_broken(&self) {
        let mut bytes = Vec::new();
        Message::Broken.encode(&mut bytes);
        // Best effort: a peer that cannot be told is gone, or full of messages of the same kind.
        let _ = socket::send(self.socket.as_fd(), &bytes, &[]);
    }

    /// The other end has said so.
    pub(crate) fn hear_broken(&self) {
        self.broken.store(true, Ordering::Release);
        self.inbox.call_attention();
    }

    /// From `from` to `to`; whether it was `from`.
    pub(crate) fn advance(&self, from: Stage, to: Stage) -> bool {
        let order = Ordering::AcqRel;
        self.stage.compare_exchange(from as u8, to as u8, order, Ordering::Acquire).is_ok()
    }

    /// Ends it on this side, and with it the conversation; the stage before.
    pub(crate) fn end(&self) -> Stage {
        let before = self.stage.swap(Stage::Ended as u8, Ordering::AcqRel);
        socket::end(self.socket.as_fd());
        self.inbox.call_attention();
        // Under the lock, so that an asker either sees the end or is already waiting.
        drop(lock(&self.questions));
        self.answered.notify_all();
        Stage::from_number(before)
    }

    /// Asks the peer's fabric something and waits for the answer; `send` gets the number of the
    /// question.
    ///
    /// # Errors
    /// `PeerLost`; `System` when the peer did not answer in time.
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

    /// Asks the peer's fabric something; the number of the question, which `send` gets too.
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

    /// The answer to a question, if it has come. Its arrival wakes the port.
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

    /// How a question ends that was not answered in time.
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

    /// Hands an answer over; false when nobody asked, which the protocol forbids, unless the asker
    /// has given up.
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
