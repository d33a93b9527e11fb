//! Membership of an executor or caller in a cluster of the global memory.
//!
//! Joins at start, watches the node, and rejoins after the cluster has removed it.

use crate::settings::MemberSettings;
use farside::{Config, ErrorCode, Node};
use farside_command::failure::Failure;
use farside_launcher::node::NodeMember;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// Interval at which a node's membership is checked.
const PERIOD: Duration = Duration::from_millis(100);
/// Back-off before rejoining: initial and maximum; it doubles between attempts.
const BACK_OFF: Duration = Duration::from_millis(250);
const BACK_OFF_MAX: Duration = Duration::from_secs(8);

/// A node in a cluster of this machine or of several hosts.
enum JoinedNode {
    Local { config: Box<Config>, node: Option<Node> },
    MultiHost(Box<NodeMember>),
}

impl JoinedNode {
    fn begin(arguments: &MemberSettings) -> Result<Option<Self>, Failure> {
        Ok(match (&arguments.cluster, &arguments.node) {
            // It contributes no memory: what it contributed would be lost when it leaves.
            (Some(cluster), _) => {
                let config = Config::new(cluster.as_str()).memory_bytes(0);
                let node = Some(Node::join(&config)?);
                Some(Self::Local { config: Box::new(config), node })
            }
            (None, Some(file)) => Some(Self::MultiHost(Box::new(NodeMember::begin(file)?))),
            (None, None) => None,
        })
    }

    fn node(&self) -> Option<&Node> {
        match self {
            Self::Local { node, .. } => node.as_ref(),
            Self::MultiHost(member) => member.node(),
        }
    }

    /// Drops a node that was removed from the cluster; returns whether to rejoin.
    fn release(&mut self) -> bool {
        match self {
            Self::Local { node, .. } => {
                *node = None;
                true
            }
            Self::MultiHost(member) => member.give_up(),
        }
    }

    fn rejoin(&mut self) -> Result<(), Failure> {
        match self {
            Self::Local { config, node } => {
                *node = Some(Node::join(config)?);
                Ok(())
            }
            Self::MultiHost(member) => member.join_again(),
        }
    }

    /// Waits between two attempts; returns `false` if the membership is to end.
    fn pause(&mut self, pause: Duration, released: &Receiver<()>) -> bool {
        match self {
            Self::Local { .. } => released.recv_timeout(pause) == Err(RecvTimeoutError::Timeout),
            Self::MultiHost(member) => member.pause(pause, released),
        }
    }
}

/// Joins for a short-lived command, if the arguments name a cluster or a node.
pub(super) fn joined(arguments: &MemberSettings) -> Result<Option<Node>, Failure> {
    Ok(JoinedNode::begin(arguments)?.and_then(|joined| joined.node().cloned()))
}

/// Events of a membership.
pub(super) enum MembershipEvent {
    /// The node was removed from the cluster. The owner of the membership must drop its sessions of the node and call
    /// [`Membership::released`]; then the node rejoins if `rejoins` is set.
    Removed { reason: String, rejoins: bool },
    /// An attempt to rejoin failed.
    RejoinFailed(String),
    /// The membership continues as this new node.
    Rejoined(Node),
}

/// A node that rejoins after a removal, watched by a thread.
pub(super) struct Membership {
    /// Whether events may be pending.
    pending: Arc<AtomicBool>,
    events: Receiver<MembershipEvent>,
    /// Signals that nothing of a removed node is held any more; dropping it ends the membership.
    released: Sender<()>,
    thread: JoinHandle<()>,
}

impl Membership {
    /// Joins, and starts the watching thread; `None` if the arguments name no cluster.
    pub(super) fn begin(arguments: &MemberSettings) -> Result<Option<(Self, Node)>, Failure> {
        let joined = JoinedNode::begin(arguments)?;
        let Some((joined, node)) = joined.and_then(|joined| {
            let node = joined.node().cloned()?;
            Some((joined, node))
        }) else {
            return Ok(None);
        };
        let (released, receiver) = channel();
        let (sender, events) = channel();
        let pending = Arc::new(AtomicBool::new(false));
        let watcher =
            Watcher { joined, released: receiver, events: sender, pending: Arc::clone(&pending) };
        let thread = std::thread::spawn(move || watcher.run());
        Ok(Some((Self { pending, events, released, thread }, node)))
    }

    /// Whether [`Self::next_event`] may return an event.
    pub(super) fn has_event(&self) -> bool {
        self.pending.load(Ordering::Acquire)
    }

    /// Returns the next event.
    pub(super) fn next_event(&self) -> Option<MembershipEvent> {
        let event = self.events.try_recv().ok();
        if event.is_none() && self.pending.swap(false, Ordering::AcqRel) {
            // An event may have been sent between the two operations.
            return self.events.try_recv().ok();
        }
        event
    }

    /// Signals that nothing of the removed node is held any more.
    pub(super) fn released(&self) {
        let _ = self.released.send(());
    }

    /// Leaves the cluster, and waits for the watching thread.
    pub(super) fn leave(self) {
        drop(self.released);
        let _ = self.thread.join();
    }
}

/// State of the thread that watches a membership.
struct Watcher {
    joined: JoinedNode,
    released: Receiver<()>,
    events: Sender<MembershipEvent>,
    pending: Arc<AtomicBool>,
}

impl Watcher {
    fn send(&self, event: MembershipEvent) {
        let _ = self.events.send(event);
        self.pending.store(true, Ordering::Release);
    }

    /// Runs until the membership is to end, or the node was removed and does not rejoin.
    fn run(mut self) {
        while let Some(reason) = self.wait_for_removal() {
            let rejoins = self.joined.release();
            self.send(MembershipEvent::Removed { reason, rejoins });
            let released = self.released.recv().is_ok();
            if !released || !rejoins || !self.rejoin() {
                return;
            }
        }
    }

    /// Waits until the node is removed, and returns the reason; leaves and returns `None` if the membership is to end.
    fn wait_for_removal(&self) -> Option<String> {
        let node = self.joined.node()?;
        loop {
            // A poll of the membership: the number is never reached, and any error but TimedOut is a removal.
            match node.wait_for_members(usize::MAX, Duration::ZERO) {
                Err(error) if error.code != ErrorCode::TimedOut => return Some(error.to_string()),
                _ => {}
            }
            if self.released.recv_timeout(PERIOD) == Err(RecvTimeoutError::Disconnected) {
                // The error is ignored: the node has left in any case, though lines that only it had may be lost.
                let _ = node.clone().leave();
                return None;
            }
        }
    }

    /// Tries until the node is a member again; returns `false` if the membership is to end.
    fn rejoin(&mut self) -> bool {
        let mut pause = BACK_OFF;
        loop {
            if !self.joined.pause(pause, &self.released) {
                return false;
            }
            match self.joined.rejoin() {
                Ok(()) => {
                    let node = self.joined.node().cloned();
                    node.into_iter().for_each(|node| self.send(MembershipEvent::Rejoined(node)));
                    return true;
                }
                Err(failure) => self.send(MembershipEvent::RejoinFailed(failure.to_string())),
            }
            pause = (pause * 2).min(BACK_OFF_MAX);
        }
    }
}
