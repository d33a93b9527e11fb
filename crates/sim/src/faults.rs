//! Fault plans: deaths, stalls and broken links of nodes with their times, drawn from a seed and printed on one line.

use crate::fabric::SimNet;
use crate::random::Random;
use std::fmt;

/// A fault of a node or a link.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Fault {
    /// The node dies; [`SimNet::kill`].
    Kill(String),
    /// Its program stops; [`SimNet::pause`].
    Pause(String),
    /// The program and its adapter stop; [`SimNet::freeze`].
    Freeze(String),
    /// The node continues; [`SimNet::resume`].
    Resume(String),
    /// Every link between the two breaks; [`SimNet::cut`].
    Cut(String, String),
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kill(node) => write!(f, "kill:{node}"),
            Self::Pause(node) => write!(f, "pause:{node}"),
            Self::Freeze(node) => write!(f, "freeze:{node}"),
            Self::Resume(node) => write!(f, "resume:{node}"),
            Self::Cut(one, other) => write!(f, "cut:{one}-{other}"),
        }
    }
}

impl Fault {
    /// Performs the fault. Faults of a dead node have no effect.
    pub fn perform(&self, net: &SimNet) {
        match self {
            Self::Kill(node) => net.kill(node),
            Self::Pause(node) => net.pause(node),
            Self::Freeze(node) => net.freeze(node),
            Self::Resume(node) => net.resume(node),
            Self::Cut(one, other) => net.cut(one, other),
        };
    }
}

/// Maximum numbers of faults of a drawn plan.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FaultLimits {
    /// Maximum number of deaths; at least one node survives in any case.
    pub kills_max: u64,
    /// Maximum number of stalls, each of one node.
    pub stalls_max: u64,
    /// Maximum duration of a stall.
    pub stall_ns_max: u64,
    /// Maximum number of broken links.
    pub cuts_max: u64,
    /// Latest time at which a fault begins.
    pub horizon_ns: u64,
}

/// Faults with their times.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct FaultPlan {
    /// Pending faults in rising order of time.
    due: Vec<(u64, Fault)>,
}

impl FaultPlan {
    /// Creates a plan of these faults at these times.
    pub fn new(faults: impl IntoIterator<Item = (u64, Fault)>) -> Self {
        let mut due: Vec<_> = faults.into_iter().collect();
        due.sort_by_key(|(at_ns, _)| *at_ns);
        Self { due }
    }

    /// Draws faults of these nodes within the limits. Every stall ends, even one that begins at the horizon.
    pub fn draw(seed: u64, nodes: &[&str], limits: &FaultLimits) -> Self {
        let mut random = Random::new(seed ^ 0x6661_756c_7473);
        let mut faults = Vec::new();
        let mut living: Vec<&str> = nodes.to_vec();
        for _ in 0..random.between(0, limits.kills_max) {
            if living.len() > 1 {
                let node = living.swap_remove(random.index(living.len()));
                let at_ns = random.between(0, limits.horizon_ns);
                faults.push((at_ns, Fault::Kill(node.to_owned())));
            }
        }
        for _ in 0..random.between(0, limits.stalls_max) {
            let node = (*random.pick(nodes)).to_owned();
            let at_ns = random.between(0, limits.horizon_ns);
            let until_ns = at_ns.saturating_add(random.between(1, limits.stall_ns_max.max(1)));
            let stall = if random.chance(500) {
                Fault::Pause(node.clone())
            } else {
                Fault::Freeze(node.clone())
            };
            faults.push((at_ns, stall));
            faults.push((until_ns, Fault::Resume(node)));
        }
        for _ in 0..random.between(0, limits.cuts_max) {
            let (one, other) = (random.index(nodes.len()), random.index(nodes.len()));
            if one != other {
                let cut = Fault::Cut(nodes[one].to_owned(), nodes[other].to_owned());
                faults.push((random.between(0, limits.horizon_ns), cut));
            }
        }
        Self::new(faults)
    }

    /// Returns the time of the next fault.
    pub fn next_ns(&self) -> Option<u64> {
        self.due.first().map(|(at_ns, _)| *at_ns)
    }

    /// Performs one step of the net, or the next fault if that is due earlier. Returns `None` if there was neither,
    /// else the fault, if it was one.
    pub fn step(&mut self, net: &SimNet) -> Option<Option<Fault>> {
        let event_ns = net.next_event_ns();
        match self.next_ns() {
            Some(due_ns) if event_ns.is_none_or(|event_ns| due_ns <= event_ns) => {
                net.run_until_ns(due_ns);
                let (_, fault) = self.due.remove(0);
                fault.perform(net);
                Some(Some(fault))
            }
            _ => net.step().then_some(None),
        }
    }

    /// Drops all pending faults, and resumes every stalled node.
    pub fn heal(&mut self, net: &SimNet) {
        for (_, fault) in self.due.drain(..) {
            if matches!(fault, Fault::Resume(_)) {
                fault.perform(net);
            }
        }
    }
}

impl fmt::Display for FaultPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.due.is_empty() {
            return f.write_str("faults=none");
        }
        f.write_str("faults=")?;
        for (at, (at_ns, fault)) in self.due.iter().enumerate() {
            let gap = if at == 0 { "" } else { "," };
            write!(f, "{gap}{fault}@{at_ns}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fabric::{INFINIBAND, SimOptions};

    const NODES: [&str; 3] = ["a", "b", "c"];
    const LIMITS: FaultLimits = FaultLimits {
        kills_max: 5,
        stalls_max: 3,
        stall_ns_max: 1_000,
        cuts_max: 2,
        horizon_ns: 10_000,
    };

    #[test]
    fn a_plan_repeats_leaves_a_survivor_and_ends_its_stalls() {
        for seed in 0..200 {
            let plan = FaultPlan::draw(seed, &NODES, &LIMITS);
            assert_eq!(plan, FaultPlan::draw(seed, &NODES, &LIMITS));
            let count = |wanted: fn(&Fault) -> bool| {
                plan.due.iter().filter(|(_, fault)| wanted(fault)).count()
            };
            assert!(count(|fault| matches!(fault, Fault::Kill(_))) < NODES.len());
            let stalls = count(|fault| matches!(fault, Fault::Pause(_) | Fault::Freeze(_)));
            assert_eq!(stalls, count(|fault| matches!(fault, Fault::Resume(_))));
            assert_eq!(plan.to_string().lines().count(), 1);
        }
    }

    #[test]
    fn faults_happen_at_their_time_and_healing_ends_stalls() {
        let net = SimNet::new(1, SimOptions::new(INFINIBAND));
        for node in NODES {
            net.fabric(node);
        }
        let name = |node: &str| node.to_owned();
        let mut plan = FaultPlan::new([
            (90, Fault::Resume(name("b"))),
            (50, Fault::Freeze(name("b"))),
            (20, Fault::Kill(name("a"))),
        ]);
        assert_eq!(plan.to_string(), "faults=kill:a@20,freeze:b@50,resume:b@90");
        assert_eq!(plan.step(&net), Some(Some(Fault::Kill(name("a")))));
        assert_eq!((net.now_ns(), net.runs("a"), net.runs("b")), (20, false, true));
        plan.step(&net);
        assert!(!net.runs("b"));
        plan.heal(&net);
        assert!(net.runs("b"));
        assert_eq!(plan.step(&net), None);
    }
}
