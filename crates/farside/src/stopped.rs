//! Removal of stopped members of one machine: carries out what the machine of watches decides, and keeps memory that a
//! removed member may still write out of use.
//!
//! There a link that holds says nothing about the threads of its peer. Each engine counts its polls in its
//! fence region. The fence word of a stopped member is set before anything of it is
//! reclaimed; the same region has the words by which each pair of members decides which of the two
//! outlives the other.
//!
//! **Quarantine.** A removed member may have been stopped within a copy into memory of this node, and its
//! mapping cannot be taken away. The port says so (`Port::may_land`). Until the copy has ended, by the count
//! of its port or with its process, the frames and the blocks that it may write serve for nothing else.

use crate::boot::FENCE_BYTES;
use crate::engine::{Engine, FollowUp};
use crate::hit::remove_member;
use crate::peer::{Link, Peer};
use farside_base::{LinkId, NodeId, NodeSet, ViewNumber};
use farside_fabric::{Arena, PeerProcess, Port, SharedWord};
use farside_protocol::coherence;
use farside_protocol::member::{self, Evidence, Outlives, Watch};
use std::fs;
use std::sync::atomic::Ordering;

/// Offset of the words of pairs in a fence region, one for each number of a member that was admitted later. Members of one
/// machine ask no quorum, so that the place of those questions serves.
const PAIRS: u64 = 64;
/// Where its owner counts its polls: in cache lines of its own, apart from what hits look at.
const POLLS: u64 = FENCE_BYTES - 128;
/// Busy polls between looks at the clock.
const POLLS_PER_LOOK: u32 = 16;

const _: () = assert!(PAIRS + NodeSet::CAPACITY as u64 * 8 <= POLLS);
const _: () = assert!(POLLS.is_multiple_of(128));

/// What of a peer this node watches and decides by.
#[derive(Debug)]
pub(crate) struct Watched {
    /// The count of its polls.
    polls: SharedWord,
    /// The word of the pair, of a member that was admitted before this node.
    pair: Option<SharedWord>,
    process: PeerProcess,
}

impl Watched {
    /// Of a peer that is linked, and was perhaps admitted before this node; `None` where this processor does not
    /// reach its memory.
    pub(crate) fn new(port: &dyn Port, link: Link, me: NodeId, is_before: bool) -> Option<Self> {
        let reach = |offset| port.reach_word(link.id, link.fence, offset);
        let pair = if is_before { Some(reach(pair_of(me))?) } else { None };
        Some(Self { polls: reach(POLLS)?, pair, process: port.peer_process(link.id) })
    }
}

/// Where the word is that a member with this number shares with one that was admitted before it.
fn pair_of(last: NodeId) -> u64 {
    PAIRS + u64::from(last.0) * 8
}

/// A member that is removed, and whose thread may be within a copy.
#[derive(Debug)]
struct Lingering {
    node: NodeId,
    link: LinkId,
}

/// How this node watches the others, and what it keeps in quarantine.
#[derive(Debug)]
pub(crate) struct Lookout {
    watch: Watch,
    /// Whether members that are stopped are removed.
    removes: bool,
    /// Where peers see the count of this node's polls; `None` if its caller drives it.
    own: Option<SharedWord>,
    polls: u64,
    lingering: Vec<Lingering>,
    /// Removals that the machine of burials has settled while some member lingers here: the member, and the view that
    /// admitted it.
    settled: Vec<(NodeId, ViewNumber)>,
}

impl Lookout {
    /// `own` is this node's fence region, if threads of the node itself drive it.
    pub(crate) fn new(own: Option<&Arena>, lease_ns: u64, removes: bool) -> Self {
        Self {
            watch: Watch::new(lease_ns),
            removes,
            own: own.and_then(|own| SharedWord::new(own, POLLS).ok()),
            polls: 0,
            lingering: Vec::new(),
            settled: Vec::new(),
        }
    }

    /// When this node has to look at the time.
    pub(crate) fn wakes_at_ns(&self) -> u64 {
        self.watch.next_ns().unwrap_or(u64::MAX)
    }

    /// Removed members that may still write memory of this node.
    pub(crate) fn lingering_count(&self) -> u64 {
        self.lingering.len() as u64
    }

    /// A peer is there.
    pub(crate) fn add(&mut self, node: NodeId, peer: &Peer) {
        let stops = |watched: &Watched| watched.process != PeerProcess::Elsewhere;
        if self.removes && peer.watched.as_ref().is_some_and(stops) {
            self.watch.add(node);
        }
    }
}

impl Engine {
    /// Counts a poll of this engine, and looks at the others when it is time.
    #[inline]
    pub(crate) fn count_poll(&mut self) {
        let lookout = &mut self.lookout;
        if let Some(own) = &lookout.own {
            lookout.polls += 1;
            own.store(lookout.polls, Ordering::Relaxed);
        }
        if self.turns.is_multiple_of(POLLS_PER_LOOK) {
            self.look_at_peers();
        }
    }

    /// Looks at the counts of all peers, if it is time, and removes those that are stopped if this node
    /// decides.
    pub(crate) fn look_at_peers(&mut self) {
        if !self.lookout.lingering.is_empty() {
            self.look_at_lingering();
        }
        if self.lookout.wakes_at_ns() == u64::MAX || self.closed_with.is_some() {
            return;
        }
        let now_ns = self.boot.fabric.time_ns();
        let peers = &self.peers;
        let watched = |node| peers.get(node).and_then(|peer| peer.watched.as_ref());
        let count = |node| watched(node).map_or(0, |peer| peer.polls.load(Ordering::Relaxed));
        if !self.lookout.watch.look(now_ns, count) || !self.membership.is_ready() {
            return;
        }
        let order: Vec<NodeId> = self.membership.alive().map(|(node, _)| node).collect();
        let evidence = |node| watched(node).map_or(Evidence::Hidden, |peer| evidence(peer.process));
        let stopped = self.lookout.watch.stopped(self.lines.me(), &order, evidence);
        // Against all of them first: this node may be the one that was removed meanwhile.
        if !stopped.iter().all(|node| self.outlives(*node)) {
            return self.remove_self();
        }
        for node in stopped {
            self.counters.removals += 1;
            self.lookout.watch.remove(node);
            self.follow_ups.push_back(FollowUp::Drop(node));
        }
    }

    /// Decides whether this node outlives a member, once and for all; true where there is no such question.
    pub(crate) fn outlives(&self, node: NodeId) -> bool {
        let Some(peer) = self.peers.get(node).filter(|_| !self.resumes()) else {
            return true;
        };
        let first = self.membership.born() < self.membership.born_of(node);
        let own;
        let (pair, last) = if first {
            own = SharedWord::new(&self.regions.fence.arena, pair_of(node)).ok();
            (own.as_ref(), peer.incarnation)
        } else {
            let watched = peer.watched.as_ref();
            (watched.and_then(|watched| watched.pair.as_ref()), self.membership.incarnation())
        };
        let Some(pair) = pair else {
            return true;
        };
        let outlives = Outlives::new(last, first);
        loop {
            let word = pair.load(Ordering::Acquire);
            if let Some(decided) = outlives.read(word) {
                return decided;
            }
            // After the word: where it is of a later bearer of this node's number, this node has been removed.
            if self.lines.is_removed() {
                return false;
            }
            if pair.compare_exchange(word, outlives.word()).is_ok() {
                return true;
            }
        }
    }

    /// Another member has decided to remove this one: from here on nothing hits.
    pub(crate) fn remove_self(&mut self) {
        remove_member(|value, order| self.lines.fence_word().store(value, order));
        self.member_own(member::Event::Removed);
    }

    /// A member is removed and its link is closed. Says whether its thread may be within a copy.
    pub(crate) fn quarantine(&mut self, node: NodeId, link: Option<LinkId>) {
        self.lookout.watch.remove(node);
        let Some(link) = link.filter(|link| self.port.may_land(*link)) else {
            return;
        };
        self.lookout.lingering.push(Lingering { node, link });
        self.homes.quarantine_frees();
        self.step_own(coherence::Event::Lingers { node });
    }

    /// Ends the quarantine of what nothing can be written into any more.
    fn look_at_lingering(&mut self) {
        let port = &mut self.port;
        let ended: Vec<Lingering> =
            self.lookout.lingering.extract_if(.., |member| !port.may_land(member.link)).collect();
        for member in ended {
            self.step_own(coherence::Event::Quiet { node: member.node });
        }
        if self.lookout.lingering.is_empty() {
            for (node, born) in std::mem::take(&mut self.lookout.settled) {
                self.report_settled(node, born);
            }
            self.homes.end_quarantine();
            self.announce_free(None);
        }
    }

    /// Nothing that members that live send because of a dead one arrives any more.
    pub(crate) fn settled(&mut self, node: NodeId, born: ViewNumber) {
        match self.lookout.lingering.is_empty() {
            true => self.report_settled(node, born),
            // It is the one that lingers, or that one may have been asked to write for it. Until then no other node gets
            // its number.
            false => self.lookout.settled.push((node, born)),
        }
    }

    fn report_settled(&mut self, node: NodeId, born: ViewNumber) {
        self.step_own(coherence::Event::Settled { node });
        self.member_own(member::Event::Settled { node, born });
    }

    /// Bytes of memory in quarantine.
    pub(crate) fn quarantined_bytes(&self) -> u64 {
        let frames = self.coherence.quarantined();
        let frames: u64 = frames.map(|line| line.line_size().bytes() as u64).sum();
        frames + self.homes.quarantined_bytes()
    }
}

/// What the kernel says of the threads of a process.
fn evidence(process: PeerProcess) -> Evidence {
    let PeerProcess::Number(process) = process else {
        return Evidence::Hidden;
    };
    let Ok(threads) = fs::read_dir(format!("/proc/{process}/task")) else {
        return Evidence::Hidden;
    };
    let stopped = threads.flatten().any(|thread| {
        let stat = fs::read_to_string(thread.path().join("stat"));
        stat.is_ok_and(|stat| is_stopped(&stat))
    });
    if stopped || is_frozen(process) { Evidence::Stopped } else { Evidence::Running }
}

/// Whether a line of `/proc/PID/task/TID/stat` is of a thread that is stopped or traced (proc(5)).
fn is_stopped(stat: &str) -> bool {
    // The name before the state may have parentheses and spaces in it.
    let state = stat.rsplit_once(')').and_then(|(_, rest)| rest.trim_start().chars().next());
    matches!(state, Some('T' | 't'))
}

/// Whether a control group of a process is frozen (cgroups(7), version 2).
fn is_frozen(process: u32) -> bool {
    let groups = fs::read_to_string(format!("/proc/{process}/cgroup")).unwrap_or_default();
    let Some(group) = groups.lines().find_map(|line| line.strip_prefix("0::")) else {
        return false;
    };
    let events = fs::read_to_string(format!("/sys/fs/cgroup{group}/cgroup.events"));
    events.is_ok_and(|events| events.lines().any(|line| line == "frozen 1"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_that_are_stopped_or_traced_are_known_by_their_state() {
        for (stat, stopped) in [
            ("12 (a) R 1 12", false),
            ("12 (a) S 1 12", false),
            ("12 (a) T 1 12", true),
            ("12 (a) t 1 12", true),
            ("12 (a) T (b) S 1 12", false),
            ("12 () T) t 1 12", true),
            ("", false),
        ] {
            assert_eq!(is_stopped(stat), stopped, "{stat}");
        }
    }

    #[test]
    fn processes_that_run_and_those_that_are_not_there_are_not_stopped() {
        assert_eq!(evidence(PeerProcess::Number(std::process::id())), Evidence::Running);
        assert_eq!(evidence(PeerProcess::Number(u32::MAX)), Evidence::Hidden);
        assert_eq!(evidence(PeerProcess::Hidden), Evidence::Hidden);
    }
}
