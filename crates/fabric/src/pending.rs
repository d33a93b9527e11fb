//! The limit of connections that have not been identified yet: how many of them a listener keeps, and
//! which one is dropped for a new one.
//!
//! Every listener uses the same rule (ports of fabrics, agents), so that a peer that opens connections
//! and sends nothing uses only its own share. The rule is pure: a listener keeps its own list.

use std::collections::BTreeMap;

/// Limits of a listener's unidentified connections.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PendingLimits {
    /// Of all peers together.
    pub pending_max: usize,
    /// Of one peer (a host, or a process of this machine).
    pub per_peer_max: usize,
}

/// A connection that has not been identified yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PendingConnection<P, T> {
    /// The peer.
    pub peer: P,
    /// Whether it has sent nothing at all.
    pub silent: bool,
    /// Its age: the smallest is the oldest. Names the connection.
    pub age: T,
}

impl PendingLimits {
    /// The defaults of listeners.
    pub const DEFAULT: Self = Self { pending_max: 256, per_peer_max: 64 };

    /// Returns the connection that is closed in favor of a new one of `peer`; `None` if there is room.
    ///
    /// A peer with its whole share loses one of its own. If there is no room at all, a peer with the
    /// most connections loses one. The oldest that has sent nothing is dropped first, then the oldest,
    /// so that idle connections displace none that is only slow. *Cost*: checks all pending
    /// connections.
    pub fn gives_way<P: Copy + Ord, T: Copy + Ord>(
        &self,
        pending: impl Iterator<Item = PendingConnection<P, T>> + Clone,
        peer: P,
    ) -> Option<T> {
        let oldest_of = |chosen: &dyn Fn(P) -> bool| {
            let candidates = pending.clone().filter(|one| chosen(one.peer));
            candidates.min_by_key(|one| (!one.silent, one.age)).map(|one| one.age)
        };
        if pending.clone().filter(|one| one.peer == peer).count() >= self.per_peer_max {
            return oldest_of(&|other| other == peer);
        }
        if pending.clone().count() < self.pending_max {
            return None;
        }
        let mut counts = BTreeMap::new();
        for one in pending.clone() {
            *counts.entry(one.peer).or_insert(0_usize) += 1;
        }
        let most = counts.values().copied().max();
        oldest_of(&|other| counts.get(&other).copied() == most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: PendingLimits = PendingLimits { pending_max: 6, per_peer_max: 4 };

    /// Connections by peer and whether they are silent, oldest first. Returns the one that is dropped.
    fn gives_way(pending: &[(char, bool)], peer: char) -> Option<usize> {
        let pending = pending.iter().enumerate();
        let pending = pending.map(|(age, (peer, silent))| PendingConnection {
            peer: *peer,
            silent: *silent,
            age,
        });
        LIMITS.gives_way(pending, peer)
    }

    #[test]
    fn nothing_gives_way_where_there_is_room() {
        assert_eq!(gives_way(&[], 'a'), None);
        assert_eq!(gives_way(&[('a', true), ('a', true), ('a', true), ('b', true)], 'a'), None);
    }

    #[test]
    fn a_peer_with_its_share_loses_its_own_oldest_silent_one() {
        let pending = [('b', true), ('a', false), ('a', true), ('a', true), ('a', false)];
        assert_eq!(gives_way(&pending, 'a'), Some(2));
        assert_eq!(gives_way(&pending, 'b'), None);
        let slow = [('a', false), ('a', false), ('a', false), ('a', false), ('b', true)];
        assert_eq!(gives_way(&slow, 'a'), Some(0));
    }

    #[test]
    fn without_room_a_peer_with_most_connections_loses_one() {
        let pending =
            [('b', true), ('b', true), ('a', false), ('a', true), ('a', true), ('c', true)];
        assert_eq!(gives_way(&pending, 'c'), Some(3));
        assert_eq!(gives_way(&pending, 'd'), Some(3), "a newcomer displaces no small share");
        let equal = [('b', true), ('a', true), ('b', false), ('a', true), ('c', true), ('c', true)];
        assert_eq!(gives_way(&equal, 'd'), Some(0));
    }
}
