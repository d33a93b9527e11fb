//! The wire height: litmus programs on real threads, nodes and a real fabric.

use super::program::Instruction;
use super::run::{FreeSubject, Placement};
use farside::{AllocationHint, AllocationSpec, Config, GlobalAddress, Node, NodeId, Session};
use farside_base::Random;
use farside_fabric::Fabric;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

/// Runs litmus programs on a cluster within this process, over a real fabric.
pub struct WireSubject {
    nodes: Vec<Node>,
    sessions: Vec<Mutex<Session>>,
    variables: RwLock<Vec<GlobalAddress>>,
    lines: Mutex<Vec<GlobalAddress>>,
}

impl fmt::Debug for WireSubject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WireSubject({} nodes)", self.nodes.len())
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl WireSubject {
    /// Starts a cluster for one placement; `fabric` creates the fabric of each node.
    ///
    /// # Errors
    /// If the cluster cannot be started.
    pub fn start(
        name: &str,
        placement: &Placement,
        fabric: &dyn Fn() -> Arc<dyn Fabric>,
    ) -> Result<Self, farside::Error> {
        let config = Config::new(name).memory_bytes(2 << 20).cache_bytes(4 << 20);
        let mut nodes = vec![Node::create_on(&config, fabric())?];
        for _ in 1..placement.nodes {
            nodes.push(Node::join_on(&config, fabric())?);
        }
        for node in &nodes {
            node.wait_for_members(nodes.len(), Duration::from_secs(20))?;
        }
        let mut sessions = Vec::new();
        for node in &placement.threads {
            sessions.push(Mutex::new(nodes[usize::from(*node)].session()?));
        }
        Ok(Self {
            nodes,
            sessions,
            variables: RwLock::new(Vec::new()),
            lines: Mutex::new(Vec::new()),
        })
    }

    /// The lines that sessions have read directly.
    pub fn direct_reads(&self) -> u64 {
        self.nodes.iter().map(|node| node.stats().direct_reads).sum()
    }

    fn variable(&self, variable: u8) -> GlobalAddress {
        let variables = self.variables.read().unwrap_or_else(PoisonError::into_inner);
        variables[usize::from(variable)]
    }
}

impl FreeSubject for WireSubject {
    fn place(&self, placement: &Placement, round: u64) -> Result<(), String> {
        let text = |error: farside::Error| error.to_string();
        let mut session = self.nodes[0].session().map_err(text)?;
        let keys = placement.lines();
        let mut lines = locked(&self.lines);
        for line in lines.drain(..) {
            session.free(line).map_err(text)?;
        }
        for (home, _) in &keys {
            let spec = AllocationSpec::new(AllocationHint::On(NodeId(*home)));
            lines.push(session.alloc_with(512, spec).map_err(text)?);
        }
        let mut variables = Vec::new();
        for spot in &placement.variables {
            let index = keys.binary_search(&(spot.home, spot.line)).map_err(|_| "no such line")?;
            let word = lines[index].checked_add(u64::from(spot.word) * 8);
            variables.push(word.ok_or("no such word")?);
        }
        // The initial coherence states differ between rounds, and which sessions read directly.
        let mut random = Random::new(round);
        for session in &self.sessions {
            locked(session).set_direct_reads(random.chance(500));
        }
        for address in &variables {
            let node = random.index(self.nodes.len());
            let mut session = self.nodes[node].session().map_err(text)?;
            if random.chance(500) {
                session.fetch_add(*address, 0).map_err(text)?;
            } else {
                session.read_u64(*address).map_err(text)?;
            }
        }
        *self.variables.write().unwrap_or_else(PoisonError::into_inner) = variables;
        Ok(())
    }

    fn perform(&self, thread: usize, instruction: Instruction) -> u64 {
        let session = &mut *locked(&self.sessions[thread]);
        let result = match instruction {
            Instruction::Write { variable, value } => {
                session.write_u64(self.variable(variable), value).map(|()| 0)
            }
            Instruction::Read { variable } => session.read_u64(self.variable(variable)),
            Instruction::Fence => session.fence().map(|()| 0),
            Instruction::FetchAdd { variable, add } => {
                session.fetch_add(self.variable(variable), add)
            }
            Instruction::Swap { variable, value } => session.swap(self.variable(variable), value),
        };
        // A failure appears as a value that no program writes.
        result.unwrap_or(u64::MAX)
    }

    fn value(&self, variable: u8) -> u64 {
        for session in &self.sessions {
            if locked(session).fence().is_err() {
                return u64::MAX;
            }
        }
        let session = self.nodes[0].session();
        session
            .and_then(|mut session| session.read_u64(self.variable(variable)))
            .unwrap_or(u64::MAX)
    }
}
