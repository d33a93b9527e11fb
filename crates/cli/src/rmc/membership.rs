//! The node of the global memory that an executor or a caller is part of: joined at its start, watched, and
//! joined again where it was cut off.

use crate::arguments::NodeArguments;
use crate::failure::Failure;
use crate::node::Member;
use farside::{Config, ErrorCode, Node};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// How often a node is looked at.
const PERIOD: Duration = Duration::from_millis(100);
/// How long to wait before joining again, at first and at most; it doubles between.
const BACK_OFF: Duration = Duration::from_millis(250);
const BACK_OFF_MAX: Duration = Duration::from_secs(8);

/// A node, of a cluster of this machine or of one of several hosts.
enum Joined {
    Here { config: Config, node: Option<Node> },
    Between(Box<Member>),
}

impl Joined {
    fn begin(arguments: &NodeArguments) -> Result<Option<Self>, Failure> {
        Ok(match (&arguments.cluster, &arguments.node) {
            // It uses the others' memory: what it gave would go with it.
            (Some(cluster), _) => {
                let config = Config::new(cluster.as_str()).memory_bytes(0);
                let node = Some(Node::join(&config)?);
                Some(Self::Here { config, node })
            }
            (None, Some(file)) => Some(Self::Between(Box::new(Member::begin(file)?))),
            (None, None) => None,
        })
    }

    fn node(&self) -> Option<&Node> {
        match self {
            Self::Here { node, .. } => node.as_ref(),
            Self::Between(member) => member.node(),
        }
    }

    /// Gives up a node that was cut off; whether it is to join again.
    fn give_up(&mut self) -> bool {
        match self {
            Self::Here { node, .. } => {
                *node = None;
                true
            }
            Self::Between(member) => member.give_up(),
        }
    }

    fn join_again(&mut self) -> Result<(), Failure> {
        match self {
            Self::Here { config, node } => {
                *node = Some(Node::join(config)?);
                Ok(())
            }
            Self::Between(member) => member.join_again(),
        }
    }

    /// A pause between two attempts; false when told to end.
    fn pause(&mut self, pause: Duration, asked: &Receiver<()>) -> bool {
        match self {
            Self::Here { .. } => asked.recv_timeout(pause) == Err(RecvTimeoutError::Timeout),
            Self::Between(member) => member.pause(pause, asked),
        }
    }
}

/// The node of a command that ends before long, if it is to have one.
pub(super) fn joined(arguments: &NodeArguments) -> Result<Option<Node>, Failure> {
    Ok(Joined::begin(arguments)?.and_then(|joined| joined.node().cloned()))
}

/// What happens to a membership.
pub(super) enum News {
    /// The node is no member any more. Whoever holds anything of it gives it up and says so by
    /// [`Membership::given_up`]; then it joins again, if it does.
    CutOff { reason: String, rejoins: bool },
    /// It could not join again yet.
    NotJoined(String),
    /// It has, as this node.
    Joined(Node),
}

/// A node that joins again where it was cut off.
pub(super) struct Membership {
    /// Whether there may be news.
    fresh: Arc<AtomicBool>,
    news: Receiver<News>,
    /// Says that nothing of a node that was cut off is held; its end ends the membership.
    given_up: Sender<()>,
    thread: JoinHandle<()>,
}

impl Membership {
    /// Joins.
    pub(super) fn begin(arguments: &NodeArguments) -> Result<Option<(Self, Node)>, Failure> {
        let joined = Joined::begin(arguments)?;
        let Some((joined, node)) = joined.and_then(|joined| {
            let node = joined.node().cloned()?;
            Some((joined, node))
        }) else {
            return Ok(None);
        };
        let (given_up, asked) = channel();
        let (sender, news) = channel();
        let fresh = Arc::new(AtomicBool::new(false));
        let watch = Watch { joined, asked, news: sender, fresh: Arc::clone(&fresh) };
        let thread = std::thread::spawn(move || watch.run());
        Ok(Some((Self { fresh, news, given_up, thread }, node)))
    }

    /// Whether [`Self::news`] may have any.
    pub(super) fn has_news(&self) -> bool {
        self.fresh.load(Ordering::Acquire)
    }

    /// The next of them.
    pub(super) fn news(&self) -> Option<News> {
        let news = self.news.try_recv().ok();
        if news.is_none() && self.fresh.swap(false, Ordering::AcqRel) {
            // What was said between is not overlooked.
            return self.news.try_recv().ok();
        }
        news
    }

    /// Nothing of the node that was cut off is held any more.
    pub(super) fn given_up(&self) {
        let _ = self.given_up.send(());
    }

    /// Leaves.
    pub(super) fn leave(self) {
        drop(self.given_up);
        let _ = self.thread.join();
    }
}

/// The thread of a membership.
struct Watch {
    joined: Joined,
    asked: Receiver<()>,
    news: Sender<News>,
    fresh: Arc<AtomicBool>,
}

impl Watch {
    fn tell(&self, news: News) {
        let _ = self.news.send(news);
        self.fresh.store(true, Ordering::Release);
    }

    /// Until it is to end, or was cut off for good.
    fn run(mut self) {
        while let Some(reason) = self.cut_off() {
            let rejoins = self.joined.give_up();
            self.tell(News::CutOff { reason, rejoins });
            let released = self.asked.recv().is_ok();
            if !released || !rejoins || !self.join_again() {
                return;
            }
        }
    }

    /// Waits until the node is cut off, and tells why. `None` where it is to end: it has left then.
    fn cut_off(&self) -> Option<String> {
        let node = self.joined.node()?;
        loop {
            // Nobody waits for so many: it is whether there is a cluster to wait in.
            match node.wait_for_members(usize::MAX, Duration::ZERO) {
                Err(error) if error.code != ErrorCode::TimedOut => return Some(error.to_string()),
                _ => {}
            }
            if self.asked.recv_timeout(PERIOD) == Err(RecvTimeoutError::Disconnected) {
                // Lines that were not taken back in time are so when it has left.
                let _ = node.clone().leave();
                return None;
            }
        }
    }

    /// Tries until it is a member; false when told to end.
    fn join_again(&mut self) -> bool {
        let mut pause = BACK_OFF;
        loop {
            if !self.joined.pause(pause, &self.asked) {
                return false;
            }
            match self.joined.join_again() {
                Ok(()) => {
                    let node = self.joined.node().cloned();
                    node.into_iter().for_each(|node| self.tell(News::Joined(node)));
                    return true;
                }
                Err(failure) => self.tell(News::NotJoined(failure.to_string())),
            }
            pause = (pause * 2).min(BACK_OFF_MAX);
        }
    }
}
