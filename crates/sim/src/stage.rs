//! Performance studies: programs that take processor time, on a simulated network with a [hardware
//! profile](crate::fabric::HardwareProfile).
//!
//! A discrete-event simulation. Each actor is one thread of a program, on a node, with a separate clock. The
//! simulation always performs the earliest step: the next event of the network, or a run of the actor with the
//! earliest clock. An actor runs at its clock until its `run` returns. Each call of a port advances the clock, so a
//! later request is posted later; so does the time that `run` reports. An actor sees the concurrent actions of other
//! actors in its next run.
//!
//! An actor without work rests until an event at its node, or until another actor of that node has done something. It
//! continues at its next poll interval, as if it had polled all the time, or after the wake-up time if it slept.
//!
//! | operation | cost |
//! | --- | --- |
//! | calls of ports | [`ProcessorCosts`], as the fabric counts them |
//! | local work | [`Spent`], as the actor reports |
//! | an unsuccessful poll | one run of the actor, independent of the number of polls that it represents |
//!
//! The result is a function of the options of the net, the seed and the actors: no real time, no threads. Memory
//! accesses of an actor happen at the beginning of its run, independent of the cost of the run.
//!
//! Not modelled: cores shared by threads, caches, and the operating system except `wake_ns`.

use crate::fabric::{ProcessorCosts, SimNet};
use farside_base::BackPressure;

/// One thread of a program.
pub trait Actor {
    /// Performs the work that is ready and returns without waiting: awaited events happen only after it has returned.
    fn run(&mut self) -> Spent;
}

impl<A: Actor + ?Sized> Actor for Box<A> {
    fn run(&mut self) -> Spent {
        (**self).run()
    }
}

/// The work of an actor in one run apart from calls of ports, and how it continues. Work that delays a post is
/// charged by [`SimNet::spend_ns`] before that post.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Spent {
    /// Bytes copied.
    pub copied_bytes: u64,
    /// Bytes cleared.
    pub zeroed_bytes: u64,
    /// Bytes compared or hashed.
    pub compared_bytes: u64,
    /// Number of loaded words that had not changed.
    pub loads: u64,
    /// Number of loaded cache lines that an adapter or another core had written.
    pub misses: u64,
    /// Other time.
    pub other_ns: u64,
    /// How it continues.
    pub then: Then,
}

/// How an actor continues.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Then {
    /// It has more work.
    #[default]
    Run,
    /// It has no work: no poll succeeds before an event at its node.
    Poll,
    /// As `Poll`, but it runs again after at most this time in ns.
    PollAtMost(u64),
    /// It sleeps until an event at its node.
    Sleep,
    /// It has ended and never runs again.
    End,
}

impl Spent {
    /// No local work: only what the fabric counted.
    pub const NOTHING: Self = Self {
        copied_bytes: 0,
        zeroed_bytes: 0,
        compared_bytes: 0,
        loads: 0,
        misses: 0,
        other_ns: 0,
        then: Then::Run,
    };

    /// Returns the processor time of the local work.
    pub const fn local_ns(&self, costs: &ProcessorCosts) -> u64 {
        bytes_ns(self.copied_bytes, costs.copy_bytes_per_ns)
            + bytes_ns(self.zeroed_bytes, costs.zero_bytes_per_ns)
            + bytes_ns(self.compared_bytes, costs.compare_bytes_per_ns)
            + self.loads * costs.load_ns
            + self.misses * costs.miss_ns
            + self.other_ns
    }
}

const fn bytes_ns(bytes: u64, bytes_per_ns: u64) -> u64 {
    if bytes_per_ns == 0 { 0 } else { bytes.div_ceil(bytes_per_ns) }
}

/// Reason why a simulation stopped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stopped {
    /// The condition holds.
    Condition,
    /// The time limit was reached.
    Time,
    /// No event is scheduled and no actor can run.
    Stuck,
}

/// Actors and the network between them.
#[derive(Debug)]
pub struct ActorNetwork<A> {
    net: SimNet,
    costs: ProcessorCosts,
    news_everywhere: bool,
    slots: Vec<ActorSlot<A>>,
}

#[derive(Debug)]
struct ActorSlot<A> {
    actor: A,
    node: usize,
    clock_ns: u64,
    busy_ns: u64,
    runs: u64,
    rest: Rest,
}

#[derive(Clone, Copy, Debug)]
enum Rest {
    Awake,
    /// Polls at this interval; runs at `until_ns` in any case.
    Polling {
        interval_ns: u64,
        until_ns: u64,
    },
    Asleep,
    Ended,
}

impl<A> ActorSlot<A> {
    /// Time of the next run if nothing wakes it earlier.
    fn next_ns(&self) -> Option<u64> {
        match self.rest {
            Rest::Awake => Some(self.clock_ns),
            Rest::Polling { until_ns: u64::MAX, .. } | Rest::Asleep | Rest::Ended => None,
            Rest::Polling { until_ns, .. } => Some(until_ns),
        }
    }

    /// Wakes the actor because of an event at its node.
    fn notice(&mut self, at_ns: u64, costs: &ProcessorCosts) {
        let after_ns = at_ns.saturating_sub(self.clock_ns);
        match self.rest {
            Rest::Awake | Rest::Ended => return,
            Rest::Polling { interval_ns, .. } => {
                self.clock_ns += after_ns.div_ceil(interval_ns) * interval_ns;
            }
            Rest::Asleep => self.clock_ns += after_ns + costs.wake_ns,
        }
        self.rest = Rest::Awake;
    }

    fn time_out(&mut self) {
        if let Rest::Polling { until_ns, .. } = self.rest {
            self.clock_ns = until_ns;
            self.rest = Rest::Awake;
        }
    }
}

impl<A: Actor> ActorNetwork<A> {
    /// Creates a simulation without actors.
    pub fn new(net: &SimNet, costs: ProcessorCosts) -> Self {
        let receives = net.options().capabilities.receiver_not_ready;
        let news_everywhere = receives == BackPressure::AtPost;
        Self { net: net.clone(), costs, news_everywhere, slots: Vec::new() }
    }

    /// Adds an actor on a node, which starts at the net's current time. Returns its number.
    pub fn add(&mut self, node: &str, actor: A) -> usize {
        let node = self.net.node_number(node);
        let clock_ns = self.net.now_ns();
        let slot = ActorSlot { actor, node, clock_ns, busy_ns: 0, runs: 0, rest: Rest::Awake };
        self.slots.push(slot);
        self.slots.len() - 1
    }

    /// Returns an actor by the number that [`add`](Self::add) returned.
    pub fn actor(&self, number: usize) -> Option<&A> {
        self.slots.get(number).map(|slot| &slot.actor)
    }

    /// Returns an actor for modification, which is not charged.
    pub fn actor_mut(&mut self, number: usize) -> Option<&mut A> {
        self.slots.get_mut(number).map(|slot| &mut slot.actor)
    }

    /// Returns the clock of an actor.
    pub fn clock_ns(&self, number: usize) -> Option<u64> {
        self.slots.get(number).map(|slot| slot.clock_ns)
    }

    /// Returns the time for which an actor has run, without skipped unsuccessful polls.
    pub fn busy_ns(&self, number: usize) -> Option<u64> {
        self.slots.get(number).map(|slot| slot.busy_ns)
    }

    /// Returns the number of runs of all actors, as a measure of the cost of a study.
    pub fn runs(&self) -> u64 {
        self.slots.iter().map(|slot| slot.runs).sum()
    }

    /// Runs until `done` holds, which is checked before each step, or nothing is scheduled up to `end_ns`.
    pub fn run_until(&mut self, end_ns: u64, mut done: impl FnMut(&Self) -> bool) -> Stopped {
        loop {
            if done(self) {
                return Stopped::Condition;
            }
            let first = self.first();
            let event_ns = self.net.next_event_ns();
            match (first, event_ns) {
                (None, None) => return Stopped::Stuck,
                (Some((at_ns, _)), None) if at_ns > end_ns => return Stopped::Time,
                (None, Some(at_ns)) if at_ns > end_ns => return Stopped::Time,
                (Some((one_ns, _)), Some(other_ns)) if one_ns.min(other_ns) > end_ns => {
                    return Stopped::Time;
                }
                (Some((at_ns, number)), event_ns)
                    if event_ns.is_none_or(|event_ns| event_ns > at_ns) =>
                {
                    self.run_one(number, at_ns);
                }
                _ => self.step(),
            }
        }
    }

    /// Returns the actor that runs first, and when; the lower number of simultaneous ones.
    fn first(&self) -> Option<(u64, usize)> {
        let next = |(number, slot): (usize, &ActorSlot<A>)| Some((slot.next_ns()?, number));
        self.slots.iter().enumerate().filter_map(next).min()
    }

    /// Makes the resting actors of a node poll again, after the caller has changed something at the node, such as
    /// resuming it.
    pub fn wake(&mut self, node: &str) {
        if let Some(node) = self.net.living_number(node) {
            self.notice(Some(node), self.net.now_ns(), None);
        }
    }

    /// Performs one event of the net.
    fn step(&mut self) {
        if let Some(Some(node)) = self.net.step_touching() {
            let at_ns = self.net.now_ns();
            self.notice(Some(node), at_ns, None);
        }
    }

    /// Wakes the actors that rest at a node, or at any node.
    fn notice(&mut self, node: Option<usize>, at_ns: u64, except: Option<usize>) {
        for (number, slot) in self.slots.iter_mut().enumerate() {
            if node.is_none_or(|node| slot.node == node) && Some(number) != except {
                slot.notice(at_ns, &self.costs);
            }
        }
    }

    fn run_one(&mut self, number: usize, at_ns: u64) {
        self.net.run_until_ns(at_ns);
        let slot = &mut self.slots[number];
        slot.time_out();
        self.net.begin_program(at_ns, self.costs);
        let spent = slot.actor.run();
        let end_ns = self.net.end_program() + spent.local_ns(&self.costs);
        // A run takes time, or the simulation would never leave this instant.
        let end_ns = end_ns.max(at_ns + 1);
        slot.runs += 1;
        slot.busy_ns += end_ns - at_ns;
        slot.clock_ns = end_ns;
        let interval_ns = end_ns - at_ns;
        let (rest, idle) = match spent.then {
            Then::Run => (Rest::Awake, false),
            Then::Poll => (Rest::Polling { interval_ns, until_ns: u64::MAX }, true),
            Then::PollAtMost(ns) => {
                (Rest::Polling { interval_ns, until_ns: end_ns.saturating_add(ns) }, true)
            }
            Then::Sleep => (Rest::Asleep, true),
            Then::End => (Rest::Ended, false),
        };
        slot.rest = rest;
        if !idle {
            // If senders reserve receives, a receive posted here is news at every node.
            let here = Some(slot.node).filter(|_| !self.news_everywhere);
            self.notice(here, end_ns, Some(number));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fabric::{CONNECTX5_ROCE, EPYC_7742, INFINIBAND, SimOptions};
    use std::cell::Cell;
    use std::rc::Rc;

    struct Script<F>(F);

    impl<F: FnMut() -> Spent> Actor for Script<F> {
        fn run(&mut self) -> Spent {
            (self.0)()
        }
    }

    fn net() -> SimNet {
        SimNet::new(1, SimOptions::on_hardware(INFINIBAND, CONNECTX5_ROCE))
    }

    #[test]
    fn local_work_costs_what_the_table_says() {
        let spent = Spent { copied_bytes: 1_000, zeroed_bytes: 30, other_ns: 7, ..Spent::NOTHING };
        assert_eq!(spent.local_ns(&EPYC_7742), 100 + 2 + 7);
    }

    #[test]
    fn actor_with_earliest_clock_runs_next() {
        let order = Rc::new(Cell::new(Vec::new()));
        let mut stage: ActorNetwork<Box<dyn Actor>> = ActorNetwork::new(&net(), EPYC_7742);
        for (name, each_ns) in [("a", 30), ("b", 50)] {
            let order = Rc::clone(&order);
            let run = move || {
                let mut so_far = order.take();
                so_far.push(name);
                order.set(so_far);
                Spent { other_ns: each_ns, ..Spent::NOTHING }
            };
            stage.add(name, Box::new(Script(run)));
        }
        assert_eq!(stage.run_until(99, |_| false), Stopped::Time);
        assert_eq!(order.take(), ["a", "b", "a", "b", "a", "a"][..].to_vec());
    }

    #[test]
    fn poller_without_events_at_its_node_costs_one_run() {
        let flag = Rc::new(Cell::new(false));
        let mut stage: ActorNetwork<Box<dyn Actor>> = ActorNetwork::new(&net(), EPYC_7742);
        let mut left = 1_000;
        let set = Rc::clone(&flag);
        let writer = move || {
            left -= 1;
            set.set(left == 0);
            let then = if left == 0 { Then::End } else { Then::Run };
            Spent { other_ns: 1_000, then, ..Spent::NOTHING }
        };
        let seen = Rc::clone(&flag);
        let reader = move || {
            let then = if seen.get() { Then::End } else { Then::Poll };
            Spent { loads: 5, then, ..Spent::NOTHING }
        };
        stage.add("far", Box::new(Script(writer)));
        let reader = stage.add("near", Box::new(Script(reader)));
        assert_eq!(stage.run_until(u64::MAX, |_| false), Stopped::Stuck);
        assert!(flag.get());
        assert_eq!(stage.clock_ns(reader), Some(10), "nothing happened at its node");
        assert_eq!(stage.runs(), 1_001);
    }

    #[test]
    fn sleeping_actor_pays_for_waking_and_times_out_alone() {
        let mut stage: ActorNetwork<Box<dyn Actor>> = ActorNetwork::new(&net(), EPYC_7742);
        let mut runs = 0;
        let sleeper = move || {
            runs += 1;
            Spent { then: if runs == 1 { Then::Sleep } else { Then::End }, ..Spent::NOTHING }
        };
        let mut naps = 3;
        let napper = move || {
            naps -= 1;
            let then = if naps == 0 { Then::End } else { Then::PollAtMost(500) };
            Spent { other_ns: 10, then, ..Spent::NOTHING }
        };
        let sleeper = stage.add("a", Box::new(Script(sleeper)));
        let napper = stage.add("a", Box::new(Script(napper)));
        assert_eq!(stage.run_until(u64::MAX, |_| false), Stopped::Stuck);
        assert_eq!(stage.clock_ns(napper), Some(3 * 10 + 2 * 500));
        assert_eq!(stage.clock_ns(sleeper), Some(1_030 + EPYC_7742.wake_ns + 1));
    }
}
