//! Reconnects links to other members, on fabrics where a broken link does not mean a dead peer.
//!
//! Either end redials a broken link under the same conversation: the messengers exchange what they have received, and
//! higher layers are not informed. Only a link that stays broken for the whole *lease* makes the member unreachable,
//! which the membership machine then judges. Certain outcomes are reported at once: no process listens at the peer's
//! name any more, or a different one does.
//!
//! **Crossing dials.** If both ends dial at the same time, the dial of the higher number wins: the lower one accepts
//! it and drops its own, and the higher one refuses the other as busy.
//!
//! **Old links.** An end that accepts a dial first closes its previous link, so that no data from that one reaches
//! its memory once the new one is in use. The dialling end closes its previous link before it dials.
//!
//! **Back-off.** A failed dial is retried after a wait that doubles up to a bound, so that a recovering host is not
//! flooded. The lower of the two numbers waits half as long again.
//!
//! **Dials without an answer.** A dial without an answer is hung up after `dial_timeout_ns` and counts as failed.
//! Without that bound the kernel retransmits a lost SYN only after a second (RFC 6298, 2.1), which can exceed the
//! rest of the lease; and a lost dial of the higher number would refuse the dials of the lower one as busy until
//! then.
//!
//! **Deadline.** A member is unreachable one lease after the outage began, plus the time that the hosts need to
//! resolve each other's addresses and for one more dial. The loss of a link may be detected up to a quarter of the
//! fabric's lease early, since silence counts from the last byte and a peer sends only periodically; and an outage
//! may end just after a dial that it swallowed has begun.
//!
//! **Certain ends.** If no process listens at a member's name and its link has ended, its process has ended. But it
//! may have removed this node before (without a vote, if it is a quorum by itself), and other nodes may have joined
//! it since. So its end is certain only if the answer to a question (`Confirmed`) shows that it had this node's link
//! open less than the shortest lease ago: then it had no time to find this node unreachable. Otherwise it counts as
//! unreachable.
//!
//! This machine does not decide which members are dead.

use super::event::{Death, RequestId};
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use farside_base::NodeId;

/// The maximum wait between two dials, for any lease.
const DIAL_MAX_NS: u64 = 100_000_000;
/// How long address resolution can delay dials: a reconnected host repeats its queries once a second (RFC 4861, 10;
/// Linux uses `retrans_time_ms` for ARP too), and all dials wait for the answer.
pub const RESOLVE_NS: u64 = 1_000_000_000;
/// Timeouts of the links to other members.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Patience {
    /// A member whose link stays broken for this time is unreachable.
    pub lease_ns: u64,
    /// The wait before the second dial.
    pub dial_min_ns: u64,
    /// The maximum wait between two dials.
    pub dial_max_ns: u64,
    /// A dial without an answer for this time has failed.
    pub dial_timeout_ns: u64,
    /// The maximum time until a removed member notices that it was cut off.
    pub unaware_ns: u64,
    /// The maximum difference between the times at which two members find a third one unreachable after the same
    /// outage.
    pub judge_ns: u64,
    /// How long a confirmation of membership is valid ([`Standing`](super::Standing)); less than `unaware_ns`.
    /// `u64::MAX` on fabrics where live members are always reachable.
    pub standing_ns: u64,
    /// The minimum time between having a link to a member and finding it unreachable.
    pub confirmed_ns: u64,
}

impl Patience {
    /// Derives all timeouts from the lease of a cluster and that of its fabric, which detects silence within
    /// `silence_ns`. Packets pass at most `resolve_ns` after a cable is reconnected ([`RESOLVE_NS`]).
    ///
    /// *Guarantees*: an outage shorter than both leases together, after which a dial is answered within
    /// `resolve_ns + dial_timeout_ns`, makes no member unreachable.
    pub const fn of_lease(lease_ns: u64, silence_ns: u64, resolve_ns: u64) -> Self {
        let unaware_ns = silence_ns.saturating_add(silence_ns / 4);
        let dial_max_ns = min(lease_ns / 10, DIAL_MAX_NS);
        // With long leases the kernel itself retransmits a lost SYN, after a second.
        let dial_timeout_ns = lease_ns / 4;
        // The dial that the outage swallowed, the longest wait after it (half as long again for the lower number),
        // and the dial that is answered.
        let redial_ns = 2 * dial_timeout_ns + dial_max_ns + dial_max_ns / 2;
        let judge_ns = (silence_ns / 4).saturating_add(redial_ns);
        let confirmed_ns = lease_ns;
        let lease_ns = lease_ns.saturating_add(judge_ns).saturating_add(resolve_ns);
        let standing_ns = if silence_ns == 0 { u64::MAX } else { silence_ns };
        let dial_min_ns = dial_max_ns / 10;
        Self {
            lease_ns,
            dial_min_ns,
            dial_max_ns,
            dial_timeout_ns,
            unaware_ns,
            judge_ns,
            standing_ns,
            confirmed_ns,
        }
    }
}

const fn min(a: u64, b: u64) -> u64 {
    if a < b { a } else { b }
}

/// An event for the contact machine.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ContactEvent {
    /// A member is linked for the first time.
    Linked {
        /// The member.
        node: NodeId,
    },
    /// The member had the link open at some time after `asked_ns`.
    Confirmed {
        /// The member.
        node: NodeId,
        /// When the question was posted.
        asked_ns: u64,
    },
    /// The link to the member broke.
    Broken {
        /// The member.
        node: NodeId,
        /// The time.
        now_ns: u64,
    },
    /// The member dials this node, and is the same incarnation as before.
    Dialled {
        /// The member.
        node: NodeId,
        /// The connection request.
        request: RequestId,
    },
    /// The member accepted this node's dial.
    Answered {
        /// The member.
        node: NodeId,
    },
    /// This node's dial failed.
    Failed {
        /// The member.
        node: NodeId,
        /// Why.
        why: DialFailure,
        /// The time.
        now_ns: u64,
    },
    /// The membership machine ignores the member from now on, though it may be alive.
    Cut {
        /// The member.
        node: NodeId,
    },
    /// The membership machine knows that the member is gone for good.
    Dead {
        /// The member.
        node: NodeId,
        /// How it went.
        death: Death,
        /// The time.
        now_ns: u64,
    },
    /// Time has passed.
    Tick {
        /// The time.
        now_ns: u64,
    },
}

/// Why a dial failed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum DialFailure {
    /// No answer, or no route.
    NoAnswer,
    /// The member is dialling this node.
    Busy,
    /// The host responds, and no process of this incarnation has that name: the process has ended.
    Ended,
    /// The member reports that this node is no longer a member.
    Expelled,
}

/// An action that the machine requests; perform them in order.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ContactEffect {
    /// Close the link to it, if there is one; requests and messages in flight may have to be sent again.
    Close {
        /// The member.
        node: NodeId,
    },
    /// Dial it.
    Dial {
        /// The member.
        node: NodeId,
    },
    /// Abandon this node's dial.
    HangUp {
        /// The member.
        node: NodeId,
    },
    /// Accept its request and resume over the new link.
    Accept {
        /// The member.
        node: NodeId,
        /// The request.
        request: RequestId,
    },
    /// Refuse its request as busy: this node's own dial continues.
    TurnAway {
        /// The request.
        request: RequestId,
    },
    /// Refuse its request: it is no longer a member.
    Deny {
        /// The request.
        request: RequestId,
    },
    /// Its process has ended, and it has not removed this node.
    Dead {
        /// The member.
        node: NodeId,
    },
    /// It was unreachable for the whole lease, or has ended after it may have removed this node; its link stays
    /// closed.
    OutOfReach {
        /// The member.
        node: NodeId,
    },
    /// It reports that this node is no longer a member; its link stays closed.
    Expelled {
        /// The member.
        by: NodeId,
    },
    /// It is dead, and no longer uses anything that it had cached: its memory and its locks may be settled.
    Settle {
        /// The member.
        node: NodeId,
    },
}

/// A list of effects; perform them before the next step.
pub type Effects = Vec<ContactEffect>;

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum ContactState {
    Up,
    Down(Down),
    /// Removed: its messages and requests are ignored.
    Over,
    /// The same, until its removal is decided.
    Cut,
    /// It was removed, and may not know that before this time.
    Settling(u64),
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Down {
    /// Unreachable from this time on.
    until_ns: u64,
    /// When to dial; `None` while a dial is in flight.
    dial_at_ns: Option<u64>,
    /// When the dial in flight fails.
    hang_up_at_ns: u64,
    /// How long to wait after the next failure.
    wait_ns: u64,
}

impl Down {
    /// Schedules the next dial after a failed one; the lower number waits half as long again.
    fn back_off(&mut self, later: bool, now_ns: u64, dial_max_ns: u64) {
        let extra_ns = if later { self.wait_ns / 2 } else { 0 };
        self.dial_at_ns = Some(now_ns.saturating_add(self.wait_ns.saturating_add(extra_ns)));
        self.wait_ns = self.wait_ns.saturating_mul(2).min(dial_max_ns);
    }
}

/// The links of one node to all others.
///
/// *Guarantees.* A broken link is restored within the lease, or ends in exactly one of `Dead`, `OutOfReach` and
/// `Expelled`; after each of these nothing of the member is accepted. `Settle` follows when a removed member that may
/// be alive must have noticed its removal, and at once for any other member that is gone. *Cost*: nothing while links
/// hold.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Contacts {
    me: NodeId,
    patience: Patience,
    peers: BTreeMap<NodeId, ContactState>,
    /// When each member was asked the last question that it has answered.
    confirmed: BTreeMap<NodeId, u64>,
}

impl Contacts {
    /// Creates the machine without members.
    pub const fn new(me: NodeId, patience: Patience) -> Self {
        Self { me, patience, peers: BTreeMap::new(), confirmed: BTreeMap::new() }
    }

    /// This node.
    pub const fn me(&self) -> NodeId {
        self.me
    }

    /// The latest time of the next `Tick`.
    pub fn wakes_at_ns(&self) -> Option<u64> {
        let times = self.peers.values().filter_map(|state| match state {
            ContactState::Down(down) => {
                Some(down.dial_at_ns.unwrap_or(down.hang_up_at_ns).min(down.until_ns))
            }
            ContactState::Settling(at_ns) => Some(*at_ns),
            ContactState::Up | ContactState::Over | ContactState::Cut => None,
        });
        times.min()
    }

    /// Whether a member is linked.
    pub fn is_up(&self, node: NodeId) -> bool {
        self.peers.get(&node) == Some(&ContactState::Up)
    }

    /// Whether it is a member that was not removed.
    pub fn knows(&self, node: NodeId) -> bool {
        matches!(self.peers.get(&node), Some(ContactState::Up | ContactState::Down(_)))
    }

    /// Members whose links are broken and may be restored.
    pub fn down(&self) -> impl Iterator<Item = NodeId> + '_ {
        let down = self.peers.iter().filter(|(_, state)| matches!(state, ContactState::Down(_)));
        down.map(|(node, _)| *node)
    }

    /// Whether a member has answered a question posted at `since_ns` or later that it has this node's link open. False while
    /// the link is being restored; true for members whose link this node has closed.
    pub fn has_answered_since(&self, node: NodeId, since_ns: u64) -> bool {
        match self.peers.get(&node) {
            Some(ContactState::Up) => self.confirmed.get(&node).is_some_and(|at| *at >= since_ns),
            Some(ContactState::Down(_)) => false,
            Some(ContactState::Over | ContactState::Cut | ContactState::Settling(_)) | None => true,
        }
    }

    /// Handles one event.
    pub fn step(&mut self, event: ContactEvent, effects: &mut Effects) {
        match event {
            ContactEvent::Linked { node } => {
                self.peers.insert(node, ContactState::Up);
            }
            ContactEvent::Confirmed { node, asked_ns } if self.knows(node) => {
                let last_ns = self.confirmed.entry(node).or_default();
                *last_ns = asked_ns.max(*last_ns);
            }
            ContactEvent::Confirmed { .. } => {}
            ContactEvent::Broken { node, now_ns } => self.broken(node, now_ns, effects),
            ContactEvent::Dialled { node, request } => self.dialled(node, request, effects),
            ContactEvent::Answered { node } => self.answered(node, effects),
            ContactEvent::Failed { node, why, now_ns } => self.failed(node, why, now_ns, effects),
            ContactEvent::Cut { node } => {
                self.hang_up(node, effects);
                self.peers.insert(node, ContactState::Cut);
            }
            ContactEvent::Dead { node, death, now_ns } => self.dead(node, death, now_ns, effects),
            ContactEvent::Tick { now_ns } => self.tick(now_ns, effects),
        }
    }

    fn hang_up(&mut self, node: NodeId, effects: &mut Effects) {
        if let Some(ContactState::Down(Down { dial_at_ns: None, .. })) = self.peers.get(&node) {
            effects.push(ContactEffect::HangUp { node });
        }
    }

    fn dead(&mut self, node: NodeId, death: Death, now_ns: u64, effects: &mut Effects) {
        self.hang_up(node, effects);
        self.confirmed.remove(&node);
        if death == Death::Removed {
            // From now on this node no longer confirms the member's membership.
            if self.is_up(node) {
                effects.push(ContactEffect::Close { node });
            }
            let at_ns = now_ns.saturating_add(self.patience.unaware_ns);
            self.peers.insert(node, ContactState::Settling(at_ns));
            self.tick(now_ns, effects);
        } else {
            self.peers.remove(&node);
            effects.push(ContactEffect::Settle { node });
        }
    }

    fn broken(&mut self, node: NodeId, now_ns: u64, effects: &mut Effects) {
        let Some(state @ ContactState::Up) = self.peers.get_mut(&node) else {
            return;
        };
        // The higher number dials at once, the lower one a little later, so that dials seldom cross.
        let later_ns = if self.me > node { 0 } else { self.patience.dial_min_ns };
        *state = ContactState::Down(Down {
            until_ns: now_ns.saturating_add(self.patience.lease_ns),
            dial_at_ns: Some(now_ns.saturating_add(later_ns)),
            hang_up_at_ns: u64::MAX,
            wait_ns: self.patience.dial_min_ns,
        });
        effects.push(ContactEffect::Close { node });
        self.tick(now_ns, effects);
    }

    fn dialled(&mut self, node: NodeId, request: RequestId, effects: &mut Effects) {
        let me = self.me;
        match self.peers.get_mut(&node) {
            None | Some(ContactState::Over | ContactState::Cut | ContactState::Settling(_)) => {
                effects.push(ContactEffect::Deny { request });
            }
            Some(ContactState::Down(Down { dial_at_ns: None, .. })) if me > node => {
                effects.push(ContactEffect::TurnAway { request });
            }
            Some(state) => {
                effects.push(match *state {
                    ContactState::Down(Down { dial_at_ns: None, .. }) => {
                        ContactEffect::HangUp { node }
                    }
                    // The member detected the broken link first.
                    _ => ContactEffect::Close { node },
                });
                *state = ContactState::Up;
                effects.push(ContactEffect::Accept { node, request });
            }
        }
    }

    fn answered(&mut self, node: NodeId, effects: &mut Effects) {
        match self.peers.get_mut(&node) {
            Some(state @ ContactState::Down(Down { dial_at_ns: None, .. })) => {
                *state = ContactState::Up
            }
            // The dial was abandoned meanwhile, or the member's own dial was accepted.
            _ => effects.push(ContactEffect::HangUp { node }),
        }
    }

    fn failed(&mut self, node: NodeId, why: DialFailure, now_ns: u64, effects: &mut Effects) {
        let later = self.me < node;
        let Some(ContactState::Down(down @ Down { dial_at_ns: None, .. })) =
            self.peers.get_mut(&node)
        else {
            return;
        };
        match why {
            DialFailure::NoAnswer | DialFailure::Busy => {
                down.back_off(later, now_ns, self.patience.dial_max_ns);
                self.tick(now_ns, effects);
            }
            DialFailure::Ended => {
                self.peers.insert(node, ContactState::Over);
                effects.push(match self.is_confirmed(node, now_ns) {
                    true => ContactEffect::Dead { node },
                    false => ContactEffect::OutOfReach { node },
                });
            }
            DialFailure::Expelled => {
                self.peers.insert(node, ContactState::Over);
                effects.push(ContactEffect::Expelled { by: node });
            }
        }
    }

    /// Whether it has certainly not removed this node, if its process has ended by now.
    fn is_confirmed(&self, node: NodeId, now_ns: u64) -> bool {
        let at_ns = self.confirmed.get(&node);
        at_ns.is_some_and(|at_ns| now_ns.saturating_sub(*at_ns) < self.patience.confirmed_ns)
    }

    fn tick(&mut self, now_ns: u64, effects: &mut Effects) {
        self.peers.retain(|node, state| {
            let settled = matches!(state, ContactState::Settling(at_ns) if now_ns >= *at_ns);
            if settled {
                effects.push(ContactEffect::Settle { node: *node });
            }
            !settled
        });
        let patience = self.patience;
        for (node, state) in &mut self.peers {
            let later = self.me < *node;
            let (node, ContactState::Down(down)) = (*node, &mut *state) else {
                continue;
            };
            if now_ns >= down.until_ns {
                if down.dial_at_ns.is_none() {
                    effects.push(ContactEffect::HangUp { node });
                }
                *state = ContactState::Over;
                effects.push(ContactEffect::OutOfReach { node });
                continue;
            }
            if down.dial_at_ns.is_none() && now_ns >= down.hang_up_at_ns {
                effects.push(ContactEffect::HangUp { node });
                down.back_off(later, now_ns, patience.dial_max_ns);
            }
            if down.dial_at_ns.is_some_and(|at| now_ns >= at) {
                down.dial_at_ns = None;
                down.hang_up_at_ns = now_ns.saturating_add(patience.dial_timeout_ns);
                effects.push(ContactEffect::Dial { node });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    const A: NodeId = NodeId(1);
    const B: NodeId = NodeId(2);
    const LEASE: u64 = 1_000_000;
    const SILENCE: u64 = 400_000;
    const PATIENCE: Patience = Patience::of_lease(LEASE, SILENCE, 0);

    fn linked(me: NodeId, to: NodeId) -> Contacts {
        let mut contacts = Contacts::new(me, PATIENCE);
        assert!(step(&mut contacts, ContactEvent::Linked { node: to }).is_empty());
        contacts
    }

    fn step(contacts: &mut Contacts, event: ContactEvent) -> Effects {
        let mut effects = Vec::new();
        contacts.step(event, &mut effects);
        effects
    }

    #[test]
    fn higher_number_dials_at_once_and_resumes_when_answered() {
        let mut high = linked(B, A);
        let broken = step(&mut high, ContactEvent::Broken { node: A, now_ns: 50 });
        assert_eq!(broken, [ContactEffect::Close { node: A }, ContactEffect::Dial { node: A }]);
        assert!(step(&mut high, ContactEvent::Broken { node: A, now_ns: 60 }).is_empty(), "known");
        assert!(!high.is_up(A));
        assert_eq!(high.down().collect::<Vec<_>>(), [A]);
        assert!(step(&mut high, ContactEvent::Answered { node: A }).is_empty());
        assert!(high.is_up(A));
        assert_eq!(high.wakes_at_ns(), None);
    }

    #[test]
    fn the_lower_one_takes_a_dial_before_it_noticed_and_after() {
        let request = RequestId(7);
        let mut low = linked(A, B);
        let taken = [ContactEffect::Close { node: B }, ContactEffect::Accept { node: B, request }];
        assert_eq!(step(&mut low, ContactEvent::Dialled { node: B, request }), taken);
        assert_eq!(step(&mut low, ContactEvent::Broken { node: B, now_ns: 0 }), [taken[0]]);
        assert_eq!(low.wakes_at_ns(), Some(LEASE / 100));
        assert_eq!(step(&mut low, ContactEvent::Dialled { node: B, request }), taken);
        assert!(low.is_up(B));
    }

    #[test]
    fn crossing_dials_keep_that_of_the_higher_number() {
        let (request, mut low, mut high) = (RequestId(7), linked(A, B), linked(B, A));
        step(&mut high, ContactEvent::Broken { node: A, now_ns: 0 });
        step(&mut low, ContactEvent::Broken { node: B, now_ns: 0 });
        let tick = step(&mut low, ContactEvent::Tick { now_ns: LEASE / 100 });
        assert_eq!(tick, [ContactEffect::Dial { node: B }]);
        let away = step(&mut high, ContactEvent::Dialled { node: A, request });
        assert_eq!(away, [ContactEffect::TurnAway { request }]);
        let taken = step(&mut low, ContactEvent::Dialled { node: B, request });
        assert_eq!(
            taken,
            [ContactEffect::HangUp { node: B }, ContactEffect::Accept { node: B, request }]
        );
        // The answer to an abandoned dial arrives late.
        assert_eq!(
            step(&mut low, ContactEvent::Answered { node: B }),
            [ContactEffect::HangUp { node: B }]
        );
        let late = ContactEvent::Failed { node: B, why: DialFailure::Busy, now_ns: LEASE / 50 };
        assert!(step(&mut low, late).is_empty());
        assert!(low.is_up(B));
    }

    #[test]
    fn dials_are_tried_again_ever_later_until_the_lease_is_over() {
        let mut high = linked(B, A);
        step(&mut high, ContactEvent::Broken { node: A, now_ns: 0 });
        let (mut now_ns, mut waits, mut dials) = (0, vec![], 1);
        let until_ns = PATIENCE.lease_ns;
        loop {
            let failed = ContactEvent::Failed { node: A, why: DialFailure::NoAnswer, now_ns };
            assert!(step(&mut high, failed).is_empty());
            let at_ns = high.wakes_at_ns().expect("a dial or the end of the lease");
            waits.push(at_ns - now_ns);
            now_ns = at_ns;
            match step(&mut high, ContactEvent::Tick { now_ns })[..] {
                [ContactEffect::Dial { node: A }] => dials += 1,
                [ContactEffect::OutOfReach { node: A }] => break,
                ref other => panic!("{other:?}"),
            }
        }
        assert_eq!(now_ns, until_ns);
        assert_eq!(waits[..5], [10_000, 20_000, 40_000, 80_000, 100_000]);
        assert!((15..25).contains(&dials), "{dials}");
        // The cut member is ignored.
        let request = RequestId(1);
        let late = step(&mut high, ContactEvent::Dialled { node: A, request });
        assert_eq!(late, [ContactEffect::Deny { request }]);
    }

    #[test]
    fn dials_come_often_however_long_the_lease() {
        for lease_ns in [1_000_000_000, 600_000_000_000] {
            let patience = Patience::of_lease(lease_ns, SILENCE, 0);
            assert_eq!((patience.dial_min_ns, patience.dial_max_ns), (10_000_000, 100_000_000));
        }
    }

    /// `farside::Config::lease_ns` and the README document these times.
    #[test]
    fn times_after_a_silent_loss_are_those_of_the_documents() {
        let silence_ns = 1_000_000_000;
        let patience = Patience::of_lease(1_000_000_000, silence_ns, RESOLVE_NS);
        // Silence counts from the last byte, which came up to a quarter before the loss; a fabric checks twelve times
        // in its lease.
        let noticed_ns = [silence_ns - silence_ns / 4, silence_ns + silence_ns / 12];
        let fails_ns = noticed_ns.map(|noticed| noticed + patience.lease_ns + patience.unaware_ns);
        assert_eq!(fails_ns.map(|ns| ns / 10_000_000), [490, 523]);
    }

    #[test]
    fn a_dial_without_an_answer_is_repeated_and_ends_with_the_lease() {
        let mut high = linked(B, A);
        step(&mut high, ContactEvent::Broken { node: A, now_ns: 0 });
        let timeout_ns = PATIENCE.dial_timeout_ns;
        assert_eq!(high.wakes_at_ns(), Some(timeout_ns));
        assert!(step(&mut high, ContactEvent::Tick { now_ns: timeout_ns - 1 }).is_empty());
        let failed = step(&mut high, ContactEvent::Tick { now_ns: timeout_ns });
        assert_eq!(failed, [ContactEffect::HangUp { node: A }]);
        // Between two of its own dials it accepts the other end's dial.
        let request = RequestId(1);
        let mut other = high.clone();
        let taken = [ContactEffect::Close { node: A }, ContactEffect::Accept { node: A, request }];
        assert_eq!(step(&mut other, ContactEvent::Dialled { node: A, request }), taken);
        let now_ns = timeout_ns + PATIENCE.dial_min_ns;
        assert_eq!(high.wakes_at_ns(), Some(now_ns));
        assert_eq!(
            step(&mut high, ContactEvent::Tick { now_ns }),
            [ContactEffect::Dial { node: A }]
        );
        let over = step(&mut high, ContactEvent::Tick { now_ns: PATIENCE.lease_ns });
        assert_eq!(
            over,
            [ContactEffect::HangUp { node: A }, ContactEffect::OutOfReach { node: A }]
        );
        assert_eq!(
            step(&mut high, ContactEvent::Answered { node: A }),
            [ContactEffect::HangUp { node: A }]
        );
    }

    #[test]
    fn end_is_certain_only_of_a_member_that_was_confirmed_within_the_lease() {
        let (late, dead) = (PATIENCE.confirmed_ns, ContactEffect::Dead { node: A });
        let (out, expelled) =
            (ContactEffect::OutOfReach { node: A }, ContactEffect::Expelled { by: A });
        for (confirmed, why, now_ns, expected) in [
            (true, DialFailure::Ended, late - 1, dead),
            (true, DialFailure::Ended, late, out),
            (false, DialFailure::Ended, 1, out),
            (false, DialFailure::Expelled, 1, expelled),
        ] {
            let mut high = linked(B, A);
            if confirmed {
                step(&mut high, ContactEvent::Confirmed { node: A, asked_ns: 0 });
            }
            step(&mut high, ContactEvent::Broken { node: A, now_ns: 0 });
            assert_eq!(step(&mut high, ContactEvent::Failed { node: A, why, now_ns }), [expected]);
            assert_eq!(high.wakes_at_ns(), None);
        }
    }

    #[test]
    fn live_member_cut_off_settles_when_it_must_have_noticed() {
        let mut high = linked(B, A);
        step(&mut high, ContactEvent::Broken { node: A, now_ns: 0 });
        assert_eq!(
            step(&mut high, ContactEvent::Cut { node: A }),
            [ContactEffect::HangUp { node: A }]
        );
        assert_eq!(high.wakes_at_ns(), None, "who is judged is waited for");
        assert!(
            step(&mut high, ContactEvent::Dead { node: A, death: Death::Removed, now_ns: 7 })
                .is_empty()
        );
        let at_ns = high.wakes_at_ns().expect("a time");
        assert_eq!(at_ns, 7 + SILENCE + SILENCE / 4);
        let request = RequestId(1);
        let late = step(&mut high, ContactEvent::Dialled { node: A, request });
        assert_eq!(late, [ContactEffect::Deny { request }]);
        assert!(step(&mut high, ContactEvent::Tick { now_ns: at_ns - 1 }).is_empty());
        assert_eq!(
            step(&mut high, ContactEvent::Tick { now_ns: at_ns }),
            [ContactEffect::Settle { node: A }]
        );
        assert_eq!(high.wakes_at_ns(), None);
    }

    /// A view removes the member, for example because another member has accused it.
    #[test]
    fn member_removed_while_its_link_is_up_is_cut_at_once_and_settles_later() {
        let mut high = linked(B, A);
        let removed = ContactEvent::Dead { node: A, death: Death::Removed, now_ns: 7 };
        assert_eq!(step(&mut high, removed), [ContactEffect::Close { node: A }]);
        let at_ns = high.wakes_at_ns().expect("a time");
        assert_eq!(at_ns, 7 + PATIENCE.unaware_ns);
        assert_eq!(
            step(&mut high, ContactEvent::Tick { now_ns: at_ns }),
            [ContactEffect::Settle { node: A }]
        );
        for death in [Death::Left, Death::Ended] {
            let gone = ContactEvent::Dead { node: A, death, now_ns: 7 };
            assert_eq!(step(&mut linked(B, A), gone), [ContactEffect::Settle { node: A }]);
        }
    }

    #[test]
    fn removed_member_is_not_dialled() {
        let mut high = linked(B, A);
        step(&mut high, ContactEvent::Broken { node: A, now_ns: 0 });
        let settled = [ContactEffect::HangUp { node: A }, ContactEffect::Settle { node: A }];
        let dead = ContactEvent::Dead { node: A, death: Death::Ended, now_ns: 1 };
        assert_eq!(step(&mut high, dead), settled);
        assert!(step(&mut high, ContactEvent::Tick { now_ns: LEASE * 2 }).is_empty());
        let request = RequestId(1);
        let late = step(&mut high, ContactEvent::Dialled { node: A, request });
        assert_eq!(late, [ContactEffect::Deny { request }]);
    }
}
