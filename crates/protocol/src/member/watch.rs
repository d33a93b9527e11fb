//! Detects stopped members on one machine by heartbeat counters: their threads are stopped by a signal, a debugger or
//! a frozen container, while their links hold.
//!
//! **Counts.** Each engine counts its polls in shared memory; an idle one polls regularly too. Each member reads the
//! counts of all others at regular intervals. A member whose count was unchanged for a number of consecutive checks
//! is *stopped*. The kernel's information about its process determines that number ([`Evidence`]): a process with
//! runnable threads that are not scheduled must not be removed.
//!
//! **A stopped observer.** Checks are counted, not time, and a late check restarts all counts: an observer that was
//! stopped or starved itself learns nothing from an interval that it did not observe.
//!
//! **Who decides.** The first member in the order of succession that is not stopped: the coordinator, or the next one
//! if the coordinator itself is stopped. So one member decides, unless it is stopped itself.
//!
//! **Two members that remove each other.** A member may be stopped just after it has decided, be removed, and
//! continue with its decision. So each pair of members shares one word, which is written once: a member removes
//! another only after it has written there that it outlives that one ([`Outlives`]), and a member that reads the
//! opposite has been removed. A member that removes members before itself in the order must first have won against
//! all of those.
//!
//! *Why a member always remains.* Of the members that have won against all before them and have removed one of them,
//! take the last in the order (if there is none, the first member was not removed). No member after it removed it, by
//! choice, and none before it, since it has won against those. `crates/sim/src/model/watch.rs` stops each of three
//! members at every step.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use farside_base::{Incarnation, NodeId};

/// Checks per lease.
const LOOKS: u64 = 4;
/// The minimum time between two checks.
const LOOK_MIN_NS: u64 = 10_000_000;
/// How long the count of a member may be unchanged if nothing is known about its process. An idle member polls four
/// times in that time.
const HIDDEN_NS: u64 = 2_000_000_000;
/// How long the count of a member with running threads may be unchanged; at least [`RUNNING_LEASES`].
const RUNNING_NS: u64 = 8_000_000_000;
const RUNNING_LEASES: u64 = 8;

/// What is known about the process of a member with an unchanged count.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Evidence {
    /// One of its threads is stopped, or the process is frozen.
    Stopped,
    /// Nothing: the process is in another PID namespace.
    Hidden,
    /// All its threads run or sleep, though the kernel may not schedule them.
    Running,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Seen {
    count: u64,
    /// Consecutive checks at which it was the same.
    same: u64,
}

/// What one member has observed of the counts of the others.
///
/// *Guarantees*: a member whose count changes between any two checks never counts as stopped. *Cost*: one load per
/// member and check.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Watch {
    every_ns: u64,
    lease_ns: u64,
    last_ns: Option<u64>,
    seen: BTreeMap<NodeId, Seen>,
}

impl Watch {
    /// Creates a watch without members. A member with a stopped process is removed after `lease_ns`.
    pub fn new(lease_ns: u64) -> Self {
        let every_ns = (lease_ns / LOOKS).max(LOOK_MIN_NS);
        Self { every_ns, lease_ns, last_ns: None, seen: BTreeMap::new() }
    }

    /// When the next check is due; `None` if there is no member to check.
    pub fn next_ns(&self) -> Option<u64> {
        let first_ns = self.last_ns.map_or(0, |last_ns| last_ns.saturating_add(self.every_ns));
        (!self.seen.is_empty()).then_some(first_ns)
    }

    /// Starts to watch a member.
    pub fn add(&mut self, node: NodeId) {
        self.seen.insert(node, Seen { count: 0, same: 0 });
    }

    /// Stops watching a member that is gone.
    pub fn remove(&mut self, node: NodeId) {
        self.seen.remove(&node);
    }

    /// Checks all counts if that is due, and returns whether it was. A count of zero belongs to a member that does
    /// not poll by itself, which never counts as stopped.
    pub fn look(&mut self, now_ns: u64, mut count: impl FnMut(NodeId) -> u64) -> bool {
        let Some(next_ns) = self.next_ns().filter(|next_ns| now_ns >= *next_ns) else {
            return false;
        };
        let late = now_ns > next_ns.saturating_add(self.every_ns);
        self.last_ns = Some(now_ns);
        for (node, seen) in &mut self.seen {
            let now = count(*node);
            let same = now == seen.count && now != 0 && !late;
            *seen = Seen { count: now, same: if same { seen.same + 1 } else { 0 } };
        }
        true
    }

    /// The members that `me` has to remove now, in this order. `order` lists the members in order of succession;
    /// `evidence` is called for those with counts unchanged for a lease.
    pub fn stopped(
        &self,
        me: NodeId,
        order: &[NodeId],
        mut evidence: impl FnMut(NodeId) -> Evidence,
    ) -> Vec<NodeId> {
        let mut stopped = Vec::new();
        let mut before = true;
        for node in order {
            if *node == me {
                before = false;
            } else if self.is_stopped(*node, &mut evidence) {
                stopped.push(*node);
            } else if before {
                return Vec::new(); // that member decides
            }
        }
        stopped
    }

    fn is_stopped(&self, node: NodeId, evidence: &mut impl FnMut(NodeId) -> Evidence) -> bool {
        let same = self.seen.get(&node).map_or(0, |seen| seen.same);
        let looks = |ns: u64| ns.div_ceil(self.every_ns).max(LOOKS);
        same >= LOOKS
            && same
                >= match evidence(node) {
                    Evidence::Stopped => LOOKS,
                    Evidence::Hidden => looks(self.lease_ns.max(HIDDEN_NS)),
                    Evidence::Running => {
                        looks(self.lease_ns.saturating_mul(RUNNING_LEASES).max(RUNNING_NS))
                    }
                }
    }
}

/// The value of the word shared by two members: which of them outlives the other. The word is in the memory of the
/// member that was admitted first, one for each number: so that member can write it for a member with memory that it
/// does not reach yet, and the later member is not ready before it reaches the word.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Outlives {
    /// The incarnation of the later member: a later node with its number reuses the word.
    life: u64,
    first: bool,
}

/// Set in every written word, so that it differs from zero, the value of a word never written.
const WRITTEN: u64 = 2;
const LIFE: u64 = !3;

impl Outlives {
    /// If `first`, the member that was admitted first claims to outlive the other, of incarnation `last`; otherwise
    /// the reverse.
    pub const fn new(last: Incarnation, first: bool) -> Self {
        Self { life: last.0 & LIFE, first }
    }

    /// The word to write.
    pub const fn word(self) -> u64 {
        self.life | WRITTEN | self.first as u64
    }

    /// Whether a word that was read decides: `Some(true)` if this member outlives the other. `None`: replace the word
    /// by [`word`](Self::word), unless it has changed since. In between check whether this member has been removed:
    /// the word may belong to a later node with its number, and then decides nothing for it.
    pub const fn read(self, word: u64) -> Option<bool> {
        if word & (LIFE | WRITTEN) != self.life | WRITTEN {
            return None;
        }
        Some((word & 1 == 1) == self.first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: u64 = 1_000_000_000;
    const EVERY: u64 = LEASE / LOOKS;
    const ME: NodeId = NodeId(1);

    fn watching(nodes: &[u16]) -> Watch {
        let mut watch = Watch::new(LEASE);
        nodes.iter().for_each(|node| watch.add(NodeId(*node)));
        watch
    }

    fn order(nodes: &[u16]) -> Vec<NodeId> {
        nodes.iter().copied().map(NodeId).collect()
    }

    /// The number of regular checks of an unchanged count until removal.
    fn looks_until_removed(evidence: Evidence) -> u64 {
        let mut watch = watching(&[2]);
        for look in 0.. {
            assert!(watch.look(look * EVERY, |_| 7));
            if !watch.stopped(ME, &order(&[1, 2]), |_| evidence).is_empty() {
                return look - 1; // the first check saw 7 for the first time
            }
        }
        unreachable!("a count that stays")
    }

    #[test]
    fn stopped_process_is_removed_after_a_lease_and_one_that_runs_much_later() {
        assert_eq!(looks_until_removed(Evidence::Stopped), LOOKS - 1);
        assert_eq!(looks_until_removed(Evidence::Hidden), HIDDEN_NS / EVERY - 1);
        assert_eq!(looks_until_removed(Evidence::Running), RUNNING_NS / EVERY - 1);
    }

    #[test]
    fn count_that_changes_at_the_last_check_is_of_a_running_member() {
        let mut watch = watching(&[2]);
        for look in 0..100 {
            assert!(watch.look(look * EVERY, |_| 1 + look / LOOKS));
            assert!(watch.stopped(ME, &order(&[1, 2]), |_| Evidence::Stopped).is_empty());
        }
    }

    #[test]
    fn look_that_comes_late_starts_again() {
        let mut watch = watching(&[2]);
        let mut now_ns = 0;
        for look in 0..LOOKS * 3 {
            // Every third check comes after this member was stopped itself.
            now_ns += if look % 3 == 2 { EVERY * 3 } else { EVERY };
            assert!(watch.look(now_ns, |_| 7));
            assert!(!watch.look(now_ns + EVERY - 1, |_| 7), "not due");
            assert!(watch.stopped(ME, &order(&[1, 2]), |_| Evidence::Stopped).is_empty());
        }
    }

    #[test]
    fn the_first_member_that_is_not_stopped_decides() {
        let mut watch = watching(&[0, 2, 3]);
        let look = |watch: &mut Watch, from: u64, runs: &[u16]| {
            for look in from..from + LOOKS + 1 {
                let count = |node: NodeId| if runs.contains(&node.0) { look + 1 } else { 7 };
                assert!(watch.look(look * EVERY, count));
            }
        };
        let all = order(&[0, 1, 2, 3]);
        let stopped = |watch: &Watch| watch.stopped(ME, &all, |_| Evidence::Stopped);
        look(&mut watch, 0, &[0, 2]);
        assert_eq!(stopped(&watch), [], "the first one runs");
        look(&mut watch, 100, &[2]);
        look(&mut watch, 200, &[2]);
        assert_eq!(stopped(&watch), order(&[0, 3]));
        watch.remove(NodeId(0));
        assert_eq!(watch.stopped(ME, &order(&[1, 2, 3]), |_| Evidence::Stopped), order(&[3]));
    }

    #[test]
    fn member_that_does_not_poll_by_itself_is_never_stopped() {
        let mut watch = watching(&[2]);
        for look in 0..100 {
            assert!(watch.look(look * EVERY, |_| 0));
        }
        assert!(watch.stopped(ME, &order(&[1, 2]), |_| Evidence::Stopped).is_empty());
    }

    #[test]
    fn word_of_a_pair_decides_once_for_each_life() {
        let life = Incarnation(0x1234_5678_9abc_def7);
        let (first, last) = (Outlives::new(life, true), Outlives::new(life, false));
        assert_eq!((first.read(0), last.read(0)), (None, None));
        assert_eq!((first.read(first.word()), last.read(first.word())), (Some(true), Some(false)));
        assert_eq!((first.read(last.word()), last.read(last.word())), (Some(false), Some(true)));
        let later = Outlives::new(Incarnation(!life.0), false);
        assert_eq!(later.read(first.word()), None, "of the life before");
        assert_ne!(Outlives::new(Incarnation(0), false).word(), 0);
    }
}
