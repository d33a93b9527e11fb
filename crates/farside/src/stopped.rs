//! Removal of stopped members on one machine: carries out the decisions of the watch machine, and
//! quarantines memory that a removed member may still write.
//!
//! On one machine an open link says nothing about the threads of its peer. Each engine therefore counts its
//! polls in its fence region. The fence word of a stopped member is set before anything of it is reclaimed.
//! The same region holds the words by which each pair of members decides which of the two survives.
//!
//! **Quarantine.** A removed member may have been stopped during a copy into memory of this node, and its
//! mapping cannot be revoked. The port reports this (`Port::may_land`). Until the copy has ended, according
//! to the count of its port or with its process, the frames and blocks that it may write are not reused.

use crate::boot::FENCE_BYTES;
use crate::engine::{Engine, FollowUp};
use crate::hit::remove_member;
use crate::peer::{Peer, PeerLink};
use farside_base::{LinkId, NodeId, NodeSet, ViewNumber};
use farside_fabric::{Arena, PeerProcess, Port, SharedWord};
use farside_protocol::coherence;
use farside_protocol::member::{self, Evidence, Outlives, Watch};
use std::fs;
use std::sync::atomic::Ordering;

/// Offset of the pair words in a fence region, one per number of a member admitted later. Members on one
/// machine query no quorum, so the area of those queries is free.
const PAIRS: u64 = 64;
/// Offset of the owner's poll count, in cache lines apart from those that hits read.
const POLLS: u64 = FENCE_BYTES - 128;
/// Busy polls between readings of the clock.
const POLLS_PER_LOOK: u32 = 16;

const _: () = assert!(PAIRS + NodeSet::CAPACITY as u64 * 8 <= POLLS);
const _: () = assert!(POLLS.is_multiple_of(128));

/// The words of a peer that this node watches and decides by.
#[derive(Debug)]
pub(crate) struct Watched {
    /// The peer's poll count.
    polls: SharedWord,
    /// The word of the pair, for a member admitted before this node.
    pair: Option<SharedWord>,
    process: PeerProcess,
}

impl Watched {
    /// For a linked peer, which was admitted before this node if `is_before`; `None` if this processor
    /// cannot access its memory.
    pub(crate) fn new(
        port: &dyn Port,
        link: PeerLink,
        me: NodeId,
        is_before: bool,
    ) -> Option<Self> {
        let reach = |offset| port.reach_word(link.id, link.fence, offset);
        let pair = if is_before { Some(reach(pair_of(me))?) } else { None };
        Some(Self { polls: reach(POLLS)?, pair, process: port.peer_process(link.id) })
    }
}

/// Offset of the word that the member with this number shares with one admitted before it.
fn pair_of(last: NodeId) -> u64 {
    PAIRS + u64::from(last.0) * 8
}

/// A removed member with a thread that may be inside a copy.
#[derive(Debug)]
struct Lingering {
    node: NodeId,
    link: LinkId,
}

/// Watches the other members, and holds the quarantine.
#[derive(Debug)]
pub(crate) struct Lookout {
    watch: Watch,
    /// Whether stopped members are removed.
    removes: bool,
    /// The published count of this node's polls; `None` if its caller drives it.
    own: Option<SharedWord>,
    polls: u64,
    lingering: Vec<Lingering>,
    /// Removals that the removal machine has settled while a member lingers: the member, and the view that
    /// admitted it.
    settled: Vec<(NodeId, ViewNumber)>,
}

impl Lookout {
    /// `own` is this node's fence region, if threads of the node itself poll it.
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

    /// When this node has to check the time.
    pub(crate) fn wakes_at_ns(&self) -> u64 {
        self.watch.next_ns().unwrap_or(u64::MAX)
    }

    /// Removed members that may still write memory of this node.
    pub(crate) fn lingering_count(&self) -> u64 {
        self.lingering.len() as u64
    }

    /// Starts to watch a peer.
    pub(crate) fn add(&mut self, node: NodeId, peer: &Peer) {
        let stops = |watched: &Watched| watched.process != PeerProcess::Elsewhere;
        if self.removes && peer.watched.as_ref().is_some_and(stops) {
            self.watch.add(node);
        }
    }
}

impl Engine {
    /// Counts a poll of this engine, and checks the peers when that is due.
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

    /// Compares the poll counts of all peers, if due, and removes stopped peers if this node wins the
    /// decision.
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
        // All pairs are decided first: this node may be the one that was removed meanwhile.
        if !stopped.iter().all(|node| self.outlives(*node)) {
            return self.remove_self();
        }
        for node in stopped {
            self.counters.removals += 1;
            self.lookout.watch.remove(node);
            self.follow_ups.push_back(FollowUp::Drop(node));
        }
    }

    /// Decides, once and for all, whether this node survives a member; true if there is nothing to decide.
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
            // Checked after the word: if the word belongs to a later node of this number, this node has
            // been removed.
            if self.lines.is_removed() {
                return false;
            }
            if pair.compare_exchange(word, outlives.word()).is_ok() {
                return true;
            }
        }
    }

    /// Records that another member has decided to remove this node: from now on nothing hits.
    pub(crate) fn remove_self(&mut self) {
        remove_member(|value, order| self.lines.fence_word().store(value, order));
        self.member_own(member::MemberEvent::Removed);
    }

    /// Quarantines a removed member with a closed link, if its thread may be inside a copy.
    pub(crate) fn quarantine(&mut self, node: NodeId, link: Option<LinkId>) {
        self.lookout.watch.remove(node);
        let Some(link) = link.filter(|link| self.port.may_land(*link)) else {
            return;
        };
        self.lookout.lingering.push(Lingering { node, link });
        self.homes.quarantine_frees();
        self.step_own(coherence::CoherenceEvent::Lingers { node });
    }

    /// Ends the quarantine of memory that can no longer be written.
    fn look_at_lingering(&mut self) {
        let port = &mut self.port;
        let ended: Vec<Lingering> =
            self.lookout.lingering.extract_if(.., |member| !port.may_land(member.link)).collect();
        for member in ended {
            self.step_own(coherence::CoherenceEvent::Quiet { node: member.node });
        }
        if self.lookout.lingering.is_empty() {
            for (node, born) in std::mem::take(&mut self.lookout.settled) {
                self.report_settled(node, born);
            }
            self.homes.end_quarantine();
            self.announce_free(None);
        }
    }

    /// Notes that no message sent by live members because of a dead one is still in flight.
    pub(crate) fn settled(&mut self, node: NodeId, born: ViewNumber) {
        match self.lookout.lingering.is_empty() {
            true => self.report_settled(node, born),
            // It lingers itself, or the lingering member may have been asked to write for it. Until then no
            // other node gets its number.
            false => self.lookout.settled.push((node, born)),
        }
    }

    fn report_settled(&mut self, node: NodeId, born: ViewNumber) {
        self.step_own(coherence::CoherenceEvent::Settled { node });
        self.member_own(member::MemberEvent::Settled { node, born });
    }

    /// Bytes of memory in quarantine.
    pub(crate) fn quarantined_bytes(&self) -> u64 {
        let frames = self.coherence.quarantined();
        let frames: u64 = frames.map(|line| line.line_size().bytes() as u64).sum();
        frames + self.homes.quarantined_bytes()
    }
}

/// The state of a process's threads according to the kernel.
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

/// Whether a line of `/proc/PID/task/TID/stat` describes a stopped or traced thread (proc(5)).
fn is_stopped(stat: &str) -> bool {
    // The name before the state may contain parentheses and spaces.
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
    fn stopped_and_traced_threads_are_detected() {
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
    fn running_and_absent_processes_are_not_stopped() {
        assert_eq!(evidence(PeerProcess::Number(std::process::id())), Evidence::Running);
        assert_eq!(evidence(PeerProcess::Number(u32::MAX)), Evidence::Hidden);
        assert_eq!(evidence(PeerProcess::Hidden), Evidence::Hidden);
    }
}
