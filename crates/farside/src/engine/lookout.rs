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

use super::links::PeerWords;
use super::{Engine, FollowUp};
use crate::hit::remove_member;
use farside_base::{LinkId, NodeId, ViewNumber};
use farside_protocol::coherence;
use farside_protocol::member::{self, Evidence, Outlives, Watch};
use std::fs;

/// Busy polls between readings of the clock.
const POLLS_PER_LOOK: u32 = 16;

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
    lingering: Vec<Lingering>,
    /// Removals that the removal machine has settled while a member lingers: the member, and the view that
    /// admitted it.
    settled: Vec<(NodeId, ViewNumber)>,
    /// Stopped members that this node has removed.
    removals: u64,
}

impl Lookout {
    pub(super) fn new(lease_ns: u64, removes: bool) -> Self {
        let watch = Watch::new(lease_ns);
        Self { watch, removes, lingering: Vec::new(), settled: Vec::new(), removals: 0 }
    }

    /// When this node has to check the time.
    pub(crate) fn wakes_at_ns(&self) -> u64 {
        self.watch.next_ns().unwrap_or(u64::MAX)
    }

    /// Removed members that may still write memory of this node.
    pub(super) fn lingering_count(&self) -> u64 {
        self.lingering.len() as u64
    }

    /// The number of stopped members that this node has removed.
    pub(super) fn removals(&self) -> u64 {
        self.removals
    }
}

impl Engine {
    /// Counts a poll of this engine, and checks the peers when that is due.
    #[inline]
    pub(crate) fn count_poll(&mut self) {
        self.links.count_poll();
        if self.polls.is_multiple_of(POLLS_PER_LOOK) {
            self.look_at_peers();
        }
    }

    /// Starts to watch a peer.
    pub(super) fn watch_peer(&mut self, node: NodeId) {
        if self.lookout.removes && self.links.words(node).is_some_and(PeerWords::is_watched) {
            self.lookout.watch.add(node);
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
        let now_ns = self.links.now_ns();
        let (links, membership) = (&self.links, self.membership.machine());
        let polls = |node| links.words(node).map_or(0, PeerWords::polls);
        if !self.lookout.watch.look(now_ns, polls) || !membership.is_ready() {
            return;
        }
        let order: Vec<NodeId> = membership.alive().map(|(node, _)| node).collect();
        let process = |node| links.words(node).and_then(PeerWords::process);
        let evidence = |node| process(node).map_or(Evidence::Hidden, evidence);
        let stopped = self.lookout.watch.stopped(self.lines.me(), &order, evidence);
        // All pairs are decided first: this node may be the one that was removed meanwhile.
        if !stopped.iter().all(|node| self.outlives(*node)) {
            return self.remove_self();
        }
        for node in stopped {
            self.lookout.removals += 1;
            self.lookout.watch.remove(node);
            self.follow_ups.push_back(FollowUp::Drop(node));
        }
    }

    /// Decides, once and for all, whether this node survives a member; true if there is nothing to decide.
    pub(crate) fn outlives(&self, node: NodeId) -> bool {
        let peers = self.links.peers();
        let Some(incarnation) = peers.incarnation(node).filter(|_| !self.links.resumes()) else {
            return true;
        };
        let membership = self.membership.machine();
        let first = membership.born() < membership.born_of(node);
        let last = if first { incarnation } else { membership.incarnation() };
        self.links.outlives(node, first, Outlives::new(last, first), || self.lines.is_removed())
    }

    /// Records that another member has decided to remove this node: from now on nothing hits.
    pub(crate) fn remove_self(&mut self) {
        remove_member(|value, order| self.lines.fence_word().store(value, order));
        self.member_own(member::MemberEvent::Removed);
    }

    /// Quarantines a removed member with a closed link, if its thread may be inside a copy.
    pub(crate) fn quarantine(&mut self, node: NodeId, link: Option<LinkId>) {
        self.lookout.watch.remove(node);
        let Some(link) = link.filter(|link| self.links.may_land(*link)) else {
            return;
        };
        self.lookout.lingering.push(Lingering { node, link });
        self.homes.quarantine_frees();
        self.step_own(coherence::CoherenceEvent::Lingers { node });
    }

    /// Ends the quarantine of memory that can no longer be written.
    fn look_at_lingering(&mut self) {
        let links = &mut self.links;
        let ended: Vec<Lingering> =
            self.lookout.lingering.extract_if(.., |member| !links.may_land(member.link)).collect();
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
        let frames = self.coherence.machine().quarantined();
        let frames: u64 = frames.map(|line| line.line_size().bytes() as u64).sum();
        frames + self.homes.quarantined_bytes()
    }
}

/// The state of a process's threads according to the kernel.
fn evidence(process: u32) -> Evidence {
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
        assert_eq!(evidence(std::process::id()), Evidence::Running);
        assert_eq!(evidence(u32::MAX), Evidence::Hidden);
    }
}
