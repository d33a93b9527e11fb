//! Detects stopped members of one machine by heartbeat counters: their threads are stopped by a signal, a debugger or a
//! frozen container, and their links hold.
//!
//! **Counts.** Each engine counts its polls in shared memory; an idle one polls regularly too. Each member reads
//! the counts of all others at regular intervals. One whose count has stayed the same for a number of looks in a
//! row is *stopped*. What the kernel says of its process decides the number ([`Evidence`]): a process whose threads are
//! runnable and not scheduled must not be removed.
//!
//! **An observer that was stopped.** Looks are counted, not time, and a look that comes late starts all counts
//! again: an observer that was stopped or starved itself learns nothing from an interval that it has not
//! seen.
//!
//! **Who decides.** The first member in the order of succession that is not stopped: the coordinator, or
//! the next one when the coordinator itself is stopped. So one member decides, unless it stops itself.
//!
//! **Two members that remove each other.** A member may be stopped just after it has decided, be removed, and
//! continue with what it had decided. So each pair of members shares one word, which is written once: a member
//! removes another one only after it has written there that it outlives it ([`Outlives`]), and a member that
//! finds there that it does not has been removed. A member that removes members before itself in the order must have
//! won against all of those first.
//!
//! *Why a member always remains.* Of the members that have won against all before them and have removed one
//! of them, take the last in the order (if there is none, the first member was not removed). It was removed
//! by none after it, by choice, and by none before it, since it has won against those.
//! `crates/sim/src/model/watch.rs` stops each of three members at every step.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use farside_base::{Incarnation, NodeId};

/// Looks in a lease.
const LOOKS: u64 = 4;
/// The shortest time between two looks.
const LOOK_MIN_NS: u64 = 10_000_000;
/// How long a member is watched of whose process nothing is known. An idle member polls four times in that time.
const HIDDEN_NS: u64 = 2_000_000_000;
/// How long a member is watched whose threads run; at least [`RUNNING_LEASES`].
const RUNNING_NS: u64 = 8_000_000_000;
const RUNNING_LEASES: u64 = 8;

/// What is known of the process of a member whose count stays the same.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Evidence {
    /// One of its threads is stopped, or it is frozen.
    Stopped,
    /// Nothing: it is in another namespace of processes.
    Hidden,
    /// All its threads run or sleep. They may not be scheduled.
    Running,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Seen {
    count: u64,
    /// Looks in a row at which it was the same.
    same: u64,
}

/// What one member has seen of the counts of the others.
///
/// *Guarantees*: a member whose count changes between any two looks is never stopped. *Cost*: a load for each
/// member at each look.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Watch {
    every_ns: u64,
    lease_ns: u64,
    last_ns: Option<u64>,
    seen: BTreeMap<NodeId, Seen>,
}

impl Watch {
    /// Nothing is seen yet. A member whose process is stopped is removed after `lease_ns`.
    pub fn new(lease_ns: u64) -> Self {
        let every_ns = (lease_ns / LOOKS).max(LOOK_MIN_NS);
        Self { every_ns, lease_ns, last_ns: None, seen: BTreeMap::new() }
    }

    /// When the next look is due; `None` when there is no member to look at.
    pub fn next_ns(&self) -> Option<u64> {
        let first_ns = self.last_ns.map_or(0, |last_ns| last_ns.saturating_add(self.every_ns));
        (!self.seen.is_empty()).then_some(first_ns)
    }

    /// A member is to be watched.
    pub fn add(&mut self, node: NodeId) {
        self.seen.insert(node, Seen { count: 0, same: 0 });
    }

    /// A member is gone.
    pub fn remove(&mut self, node: NodeId) {
        self.seen.remove(&node);
    }

    /// Looks at all counts, if that is due; whether it was. A count of zero is of a member that does not
    /// poll by itself, which is never stopped.
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

    /// The members that `me` is to remove now, in this order. `order` are the members in the order of
    /// succession; `evidence` is asked of those whose counts have stayed the same for a lease.
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
                return Vec::new(); // that one decides
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

/// What the word of a pair of members is to say: which of the two outlives the other. The word is in memory
/// of the member that was admitted first, one for each number of the others: it can write the word of a member
/// whose memory it does not reach yet, and that one cannot be ready before it reaches the word.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Outlives {
    /// The life of the member that was admitted last: a later one of its number has the word again.
    life: u64,
    first: bool,
}

/// Never zero, which a word is that was never written.
const WRITTEN: u64 = 2;
const LIFE: u64 = !3;

impl Outlives {
    /// The member that was admitted first wants to outlive the other, whose life is `last`, or (not `first`) the
    /// other way round.
    pub const fn new(last: Incarnation, first: bool) -> Self {
        Self { life: last.0 & LIFE, first }
    }

    /// What to write.
    pub const fn word(self) -> u64 {
        self.life | WRITTEN | self.first as u64
    }

    /// Whether a word that was read decides, and how: true when this member outlives the other. `None`:
    /// replace it by [`word`](Self::word), unless it has changed since. Look between the two whether this member
    /// has been removed: the word may be of a later bearer of its number, and then decides nothing for it.
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

    /// How many regular looks at an unchanged count it takes.
    fn looks_until_removed(evidence: Evidence) -> u64 {
        let mut watch = watching(&[2]);
        for look in 0.. {
            assert!(watch.look(look * EVERY, |_| 7));
            if !watch.stopped(ME, &order(&[1, 2]), |_| evidence).is_empty() {
                return look - 1; // the first look has seen 7 for the first time
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
    fn count_that_changes_at_the_last_look_is_of_a_member_that_runs() {
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
            // Every third look comes after this member was stopped itself.
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
