//! The model of watches: members of one machine that count their polls, check the counts of the others and remove
//! stopped ones. Each may be stopped at any step, also within a removal, and continue at any later one, or never. A
//! member that is not stopped polls between two checks by another.
//!
//! A removal takes several steps, between which its member may be stopped: it decides; it writes the word of each pair,
//! one after the other; it stores the fence word of each, and informs the rest by a view. A member that finds itself
//! removed closes its links, which the others detect.
//!
//! With [`Machine::with_successor`] a later member gets the number of a removed one, and with it the words of its
//! pairs, while the previous bearer may still continue.

use crate::explorer::{Model, Violation};
use farside_base::{Incarnation, NodeId};
use farside_protocol::member::{Evidence, Outlives, Watch};
use std::collections::BTreeMap;

/// Checks per lease.
const LOOKS: u64 = 4;
/// The time between two checks, and the lease, in nanoseconds.
const EVERY: u64 = 10_000_000;
const LEASE: u64 = LOOKS * EVERY;

/// The removal in progress of a member.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Doing {
    Nothing,
    /// It has decided to remove `nodes`, has written the words of the first `won` of them, and has stored the fence
    /// words of the first `fenced`.
    Removing {
        nodes: Vec<usize>,
        won: usize,
        fenced: usize,
    },
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct WatchedMember {
    number: usize,
    watch: Watch,
    /// It has not joined yet.
    absent: bool,
    /// Checks so far.
    clock: u64,
    polls: u64,
    /// Checks by the others since it last polled.
    missed: u64,
    /// Whether `missed` has reached a lease.
    lapsed: bool,
    stopped: bool,
    doing: Doing,
    /// The fence word.
    fenced: bool,
    /// Whether it knows that it was removed.
    out: bool,
    /// The members that it has removed, or of whose removal it has learned.
    gone: Vec<bool>,
    /// Notices of removed or ended members that it has not processed.
    mail: Vec<usize>,
}

/// The members, and the words that they share in memory.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Machine {
    members: Vec<WatchedMember>,
    /// The words of pairs, by lower and higher number.
    pairs: BTreeMap<(usize, usize), u64>,
    /// Number of stops left.
    stops: u8,
    /// Number of checks left, so that the search ends.
    looks: u64,
    /// Number of checks since a member was last stopped or continued.
    steady: u64,
    /// A defect: pairs have no words.
    no_pairs: bool,
    /// A defect: a removed member may write the word of a later bearer of its number.
    unchecked: bool,
    broken: Option<&'static str>,
}

/// A step of the model.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum WatchAction {
    /// All running members poll, and then check.
    Look,
    /// A member is stopped.
    Stop(usize),
    /// A stopped member continues.
    Continue(usize),
    /// A member takes the next step of the removal that it performs.
    Step(usize),
    /// A member learns of a removal or end.
    Hear(usize),
    /// The number of a removed member is given to a new one.
    Join,
}

impl Machine {
    /// Creates members that all run, with limits on further stops and checks.
    pub fn new(count: usize, stops: u8, looks: u64) -> Self {
        let member = |me: usize| {
            let mut watch = Watch::new(LEASE);
            (0..count).filter(|node| *node != me).for_each(|node| watch.add(id(node)));
            WatchedMember {
                number: me,
                watch,
                absent: false,
                clock: 0,
                polls: 1,
                missed: 0,
                lapsed: false,
                stopped: false,
                doing: Doing::Nothing,
                fenced: false,
                out: false,
                gone: vec![false; count],
                mail: Vec::new(),
            }
        };
        Self {
            members: (0..count).map(member).collect(),
            pairs: BTreeMap::new(),
            stops,
            looks,
            steady: 0,
            no_pairs: false,
            unchecked: false,
            broken: None,
        }
    }

    /// Creates two members, and a later one that gets the number of the second. The second has decided to remove the
    /// first, and is stopped before it has written anything.
    pub fn with_successor(stops: u8, looks: u64) -> Self {
        let mut machine = Self::new(3, stops, looks);
        let [first, second, later] = &mut machine.members[..] else {
            return machine;
        };
        for (one, other) in [(&mut *first, 2), (&mut *second, 2), (&mut *later, 1)] {
            one.watch.remove(id(other));
            one.gone[other] = true;
        }
        (later.number, later.absent) = (1, true);
        (machine.stops, machine.looks) = (2, LOOKS + 1);
        machine.apply(WatchAction::Stop(0));
        while machine.looks > 0 {
            machine.apply(WatchAction::Look);
        }
        machine.apply(WatchAction::Stop(1));
        machine.apply(WatchAction::Continue(0));
        (machine.stops, machine.looks) = (stops, looks);
        machine
    }

    fn runs(&self, me: usize) -> bool {
        !self.members[me].stopped && !self.members[me].out && !self.members[me].absent
    }

    /// Whether the first member has settled the removal of the second.
    fn can_join(&self) -> bool {
        let first = &self.members[0];
        let settled = first.gone[1] && first.doing == Doing::Nothing;
        settled && self.runs(0) && !first.fenced && self.members.iter().any(|member| member.absent)
    }

    fn join(&mut self) {
        let first = &mut self.members[0];
        first.watch.add(id(2));
        first.gone[2] = false;
        let later = &mut self.members[2];
        later.mail.clear();
        (later.absent, later.missed, later.lapsed) = (false, 0, false);
    }

    /// A running member checks its fence word before anything else.
    fn notices(&mut self, me: usize) -> bool {
        if self.members[me].fenced {
            self.end(me);
        }
        self.members[me].out
    }

    /// A member that knows that it is removed closes its links: the others learn of its end.
    fn end(&mut self, me: usize) {
        if std::mem::replace(&mut self.members[me].out, true) {
            return;
        }
        self.steady = 0;
        self.members[me].doing = Doing::Nothing;
        self.members[me].mail.clear();
        for other in (0..self.members.len()).filter(|other| *other != me) {
            if !self.members[other].out {
                self.members[other].mail.push(me);
            }
        }
    }

    fn look_all(&mut self) {
        self.looks -= 1;
        self.steady += 1;
        for me in 0..self.members.len() {
            let polls = self.runs(me) && !self.notices(me);
            let member = &mut self.members[me];
            member.clock += EVERY;
            member.polls += u64::from(polls);
            member.missed = if polls { 0 } else { member.missed + 1 };
            member.lapsed |= member.missed >= LOOKS;
        }
        let polls: Vec<u64> = self.members.iter().map(|member| member.polls).collect();
        for me in 0..self.members.len() {
            if self.runs(me) {
                self.look(me, &polls);
            }
        }
    }

    fn look(&mut self, me: usize, polls: &[u64]) {
        let member = &mut self.members[me];
        member.watch.look(member.clock, |node| polls[usize::from(node.0)]);
        let alive = (0..member.gone.len()).filter(|node| !member.gone[*node]);
        let order: Vec<NodeId> = alive.map(id).collect();
        let stopped = member.watch.stopped(id(me), &order, |_| Evidence::Stopped);
        if !stopped.is_empty() {
            let nodes = stopped.iter().map(|node| usize::from(node.0)).collect();
            member.doing = Doing::Removing { nodes, won: 0, fenced: 0 };
        }
    }

    /// Whether `me` outlives another one; writes the word if it is not written.
    fn outlives(&mut self, me: usize, node: usize) -> bool {
        if self.no_pairs {
            return true;
        }
        let number = |node: usize| self.members[node].number;
        let (first, last) = (me.min(node), me.max(node));
        let outlives = Outlives::new(Incarnation(last as u64 * 16 + 16), me == first);
        let is_removed = self.members[me].fenced && !self.unchecked;
        let word = self.pairs.entry((number(first), number(last))).or_insert(0);
        outlives.read(*word).unwrap_or_else(|| {
            if !is_removed {
                *word = outlives.word();
            }
            !is_removed
        })
    }

    fn step(&mut self, me: usize) {
        let Doing::Removing { nodes, won, fenced } = self.members[me].doing.clone() else {
            return;
        };
        if let Some(node) = nodes.get(won) {
            match self.outlives(me, *node) {
                true => self.set(me, Doing::Removing { nodes, won: won + 1, fenced }),
                false => self.end(me),
            }
        } else if let Some(node) = nodes.get(fenced).copied() {
            if !self.members[node].lapsed {
                self.broken = Some("a member is removed that polled within each lease");
            }
            self.remove(me, node);
            self.set(me, Doing::Removing { nodes, won, fenced: fenced + 1 });
        } else {
            for node in &nodes {
                let number = self.members[me].number;
                for other in (0..self.members.len()).filter(|other| *other != me && other != node) {
                    // A later bearer of this member's number does not know of the removed node.
                    if self.members[other].number != number {
                        self.members[other].mail.push(*node);
                    }
                }
            }
            self.set(me, Doing::Nothing);
        }
    }

    fn set(&mut self, me: usize, doing: Doing) {
        self.members[me].doing = doing;
    }

    fn remove(&mut self, me: usize, node: usize) {
        self.members[node].fenced = true;
        self.members[me].gone[node] = true;
        self.members[me].watch.remove(id(node));
    }

    /// Whether a running member waits for a stopped one for longer than permitted: a lease,
    /// and another one if the first to decide was stopped meanwhile.
    fn waits(&self) -> bool {
        let waits = |me: usize| {
            let stopped = |node: usize| self.members[node].stopped && !self.members[me].gone[node];
            self.runs(me) && (0..self.members.len()).any(stopped)
        };
        self.steady > LOOKS && !self.is_any_busy() && (0..self.members.len()).any(waits)
    }

    /// Whether a running member has steps to take besides checks.
    fn is_any_busy(&self) -> bool {
        let busy =
            |member: &WatchedMember| member.doing != Doing::Nothing || !member.mail.is_empty();
        let runs = |member: &&WatchedMember| !member.stopped && !member.out && !member.absent;
        self.members.iter().filter(runs).any(busy)
    }

    fn hear(&mut self, me: usize) {
        let node = self.members[me].mail.remove(0);
        if node == me || self.members[me].gone[node] {
            return;
        }
        match self.outlives(me, node) {
            true => self.remove(me, node),
            false => self.end(me),
        }
    }
}

const fn id(node: usize) -> NodeId {
    NodeId(node as u16)
}

impl Model for Machine {
    type Action = WatchAction;

    fn enabled(&self) -> Vec<WatchAction> {
        let mut actions = Vec::new();
        // Steps take no time compared with checks, unless their member is stopped.
        actions.extend((self.looks > 0 && !self.is_any_busy()).then_some(WatchAction::Look));
        actions.extend(self.can_join().then_some(WatchAction::Join));
        for me in 0..self.members.len() {
            let member = &self.members[me];
            actions.extend((self.stops > 0 && self.runs(me)).then_some(WatchAction::Stop(me)));
            actions.extend(member.stopped.then_some(WatchAction::Continue(me)));
            let removes = self.runs(me) && member.doing != Doing::Nothing;
            actions.extend(removes.then_some(WatchAction::Step(me)));
            let hears = self.runs(me) && !member.mail.is_empty() && !removes;
            actions.extend(hears.then_some(WatchAction::Hear(me)));
        }
        actions
    }

    fn apply(&mut self, action: WatchAction) {
        match action {
            WatchAction::Look => self.look_all(),
            WatchAction::Stop(me) => {
                self.stops -= 1;
                self.steady = 0;
                self.members[me].stopped = true;
            }
            WatchAction::Continue(me) => {
                self.steady = 0;
                self.members[me].stopped = false;
            }
            WatchAction::Step(me) => self.step(me),
            WatchAction::Join => self.join(),
            WatchAction::Hear(me) if self.notices(me) => {}
            WatchAction::Hear(me) => self.hear(me),
        }
    }

    fn violation(&self) -> Option<Violation> {
        let is_out = |member: &WatchedMember| member.fenced || member.out || member.absent;
        let all_out = self.members.iter().all(is_out);
        let text = match () {
            () if self.broken.is_some() => self.broken,
            () if all_out => Some("no member is left"),
            () if self.waits() => Some("a stopped member is waited for"),
            () => None,
        };
        text.map(Violation::new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::explorer::Explorer;

    #[test]
    fn a_member_remains_and_none_waits_for_a_stopped_one() {
        let cases = [(2, 2, 12), (2, 3, 12), (3, 1, 8), (3, 2, 10)];
        let states = cases.map(|(count, stops, looks)| {
            match Explorer::new().explore(&Machine::new(count, stops, looks)).holds() {
                Ok(coverage) => coverage.states,
                Err(text) => panic!("{count} members, {stops} stops: {text}"),
            }
        });
        assert_eq!(states, [25_778, 232_034, 750, 53_488], "{cases:?}");
    }

    #[test]
    fn a_member_remains_when_a_number_is_given_again() {
        match Explorer::new().explore(&Machine::with_successor(1, 12)).holds() {
            Ok(coverage) => assert_eq!(coverage.states, 14_079),
            Err(text) => panic!("{text}"),
        }
    }

    /// A member that does not check its fence word before it writes the word of a pair makes the model fail.
    #[test]
    fn removed_member_that_writes_the_word_of_its_successor_is_found() {
        let model = Machine { unchecked: true, ..Machine::with_successor(1, 12) };
        let failure = Explorer::new().explore(&model).failure().expect("a failure");
        assert_eq!(failure.violation.0, "no member is left", "{}", failure.transcript);
    }

    /// Members without words of pairs make the model fail.
    #[test]
    fn members_that_remove_each_other_without_a_word_are_found() {
        let model = Machine { no_pairs: true, ..Machine::new(2, 2, 12) };
        let failure = Explorer::new().explore(&model).failure().expect("a failure");
        assert_eq!(failure.violation.0, "no member is left", "{}", failure.transcript);
    }
}
