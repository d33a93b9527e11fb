//! The node height: litmus programs on whole nodes over the simulated fabric.

use super::program::Instruction;
use super::run::{LitmusSubject, Placement};
use crate::cluster::SimCluster;
use farside::{Error, GlobalAddress, NodeId, Session};
use farside_base::Random;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

type Step = Pin<Box<dyn Future<Output = (Session, Result<u64, Error>)>>>;

/// A thread of a program: its session, or the instruction in progress that owns the session.
enum Thread {
    Idle(Box<Session>),
    Busy(Step),
    Gone,
}

/// Runs litmus programs on a simulated cluster. A new cluster is created when the number of nodes changes.
pub struct NodeSubject {
    seed: u64,
    cluster: Option<(u16, SimCluster)>,
    threads: Vec<Thread>,
    variables: Vec<GlobalAddress>,
    lines: Vec<GlobalAddress>,
    /// Sessions outside the program, which change the owners of lines.
    disturbers: Vec<Thread>,
}

impl fmt::Debug for NodeSubject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NodeSubject(seed {})", self.seed)
    }
}

impl NodeSubject {
    /// Creates a subject with networks drawn from `seed`.
    pub fn new(seed: u64) -> Self {
        Self {
            seed,
            cluster: None,
            threads: Vec::new(),
            variables: Vec::new(),
            lines: Vec::new(),
            disturbers: Vec::new(),
        }
    }

    fn cluster(&mut self) -> Result<&mut SimCluster, String> {
        self.cluster.as_mut().map(|(_, cluster)| cluster).ok_or_else(|| "no cluster".to_owned())
    }

    fn session(&mut self, node: u16) -> Result<Session, String> {
        let node = self.cluster()?.node(node).ok_or("no such node")?;
        node.session().map_err(|error| error.to_string())
    }

    /// Runs an operation of a new session to completion.
    fn call<T, F>(&mut self, node: u16, call: impl FnOnce(Session) -> F) -> Result<T, String>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let session = self.session(node)?;
        self.cluster()?.finish(call(session))?.map_err(|error| error.to_string())
    }

    fn end_of_run(&mut self) -> Result<(), String> {
        self.threads.clear();
        self.disturbers.clear();
        while self.advance() {}
        for line in std::mem::take(&mut self.lines) {
            self.call(0, |mut session| async move { session.free_async(line).await })?;
        }
        Ok(())
    }
}

async fn execute(
    mut session: Session,
    variables: Vec<GlobalAddress>,
    instruction: Instruction,
) -> (Session, Result<u64, Error>) {
    let at = |variable: u8| variables[usize::from(variable)];
    let result = match instruction {
        Instruction::Write { variable, value } => {
            session.write_async(at(variable), &value.to_le_bytes()).await.map(|()| 0)
        }
        Instruction::Read { variable } => {
            let mut bytes = [0; 8];
            let read = session.read_async(at(variable), &mut bytes).await;
            read.map(|()| u64::from_le_bytes(bytes))
        }
        Instruction::Fence => session.fence_async().await.map(|()| 0),
        Instruction::FetchAdd { variable, add } => session.fetch_add_async(at(variable), add).await,
        Instruction::Swap { variable, value } => session.swap_async(at(variable), value).await,
    };
    (session, result)
}

/// Continues a thread. Returns its result when it is idle again.
fn resume(thread: &mut Thread) -> Option<Result<u64, Error>> {
    let Thread::Busy(step) = thread else {
        return None;
    };
    match step.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Pending => None,
        Poll::Ready((session, result)) => {
            *thread = Thread::Idle(Box::new(session));
            Some(result)
        }
    }
}

impl LitmusSubject for NodeSubject {
    fn place(&mut self, placement: &Placement) -> Result<(), String> {
        if self.cluster.as_ref().is_some_and(|(nodes, _)| *nodes == placement.nodes) {
            self.end_of_run()?;
        } else {
            self.threads.clear();
            self.disturbers.clear();
            self.lines.clear();
            self.cluster = None;
            let cluster = SimCluster::start(self.seed, placement.nodes, 1)?;
            self.cluster = Some((placement.nodes, cluster));
        }
        let keys = placement.lines();
        for (home, _) in &keys {
            let home = NodeId(*home);
            let line = self.call(0, |mut session| async move {
                let spec = farside::AllocationSpec::new(farside::AllocationHint::On(home));
                session.alloc_with_async(512, spec).await
            })?;
            self.lines.push(line);
        }
        self.variables = Vec::new();
        for spot in &placement.variables {
            let index = keys.binary_search(&(spot.home, spot.line)).map_err(|_| "no such line")?;
            let word = self.lines[index].checked_add(u64::from(spot.word) * 8);
            self.variables.push(word.ok_or("no such word")?);
        }
        for node in &placement.threads {
            let session = self.session(*node)?;
            self.threads.push(Thread::Idle(Box::new(session)));
        }
        for node in 0..placement.nodes {
            let session = self.session(node)?;
            self.disturbers.push(Thread::Idle(Box::new(session)));
        }
        Ok(())
    }

    fn perform(&mut self, thread: usize, instruction: Instruction) -> Option<u64> {
        let variables = self.variables.clone();
        let thread = &mut self.threads[thread];
        match std::mem::replace(thread, Thread::Gone) {
            Thread::Idle(session) => {
                *thread = Thread::Busy(Box::pin(execute(*session, variables, instruction)));
            }
            busy => *thread = busy,
        }
        // A failure appears as a value that no program writes.
        resume(thread).map(|result| result.unwrap_or(u64::MAX))
    }

    fn advance(&mut self) -> bool {
        for disturber in &mut self.disturbers {
            resume(disturber);
        }
        self.cluster.as_mut().is_some_and(|(_, cluster)| cluster.sweep())
    }

    fn disturb(&mut self, random: &mut Random) {
        let (variables, count) = (self.variables.clone(), self.disturbers.len());
        let node = random.index(count);
        if random.chance(500) {
            if let Some((_, cluster)) = &self.cluster
                && let Some(node) = cluster.node(node as u16)
            {
                node.evict_all();
            }
            return;
        }
        let variable = random.index(variables.len()) as u8;
        if random.chance(500)
            && let Thread::Idle(session) = &mut self.disturbers[node]
        {
            let (line, is_read) = (variables[usize::from(variable)], random.chance(500));
            match is_read {
                true => session.prefetch_read(line, 8),
                false => session.prefetch_write(line, 8),
            }
            return;
        }
        let instruction = if random.chance(500) {
            Instruction::FetchAdd { variable, add: 0 }
        } else {
            Instruction::Read { variable }
        };
        match std::mem::replace(&mut self.disturbers[node], Thread::Gone) {
            Thread::Idle(session) => {
                let step = execute(*session, variables, instruction);
                self.disturbers[node] = Thread::Busy(Box::pin(step));
            }
            busy => self.disturbers[node] = busy,
        }
    }

    fn value(&mut self, variable: u8) -> u64 {
        let address = self.variables[usize::from(variable)];
        let read = self.call(0, |mut session| async move {
            let mut bytes = [0; 8];
            session.read_async(address, &mut bytes).await.map(|()| u64::from_le_bytes(bytes))
        });
        read.unwrap_or(u64::MAX)
    }

    fn reproduce(&self) -> String {
        let nodes = self.cluster.as_ref().map(|(_, cluster)| cluster.describe());
        format!("NodeSubject::new({}): {}", self.seed, nodes.unwrap_or_default())
    }
}
