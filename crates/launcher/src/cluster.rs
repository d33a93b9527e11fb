//! A cluster of worker processes, which ends with its value.
//!
//! Workers are children of this process or run at agents of other hosts (`Process`, [`Hosts`]). Dropping the
//! cluster, on success, error, panic or Ctrl-C, kills and reaps the workers that have not left. If this process is
//! killed by SIGKILL, its workers end when their input closes.

use crate::hosts::Hosts;
use crate::process::{LineHandler, Process, Started};
use crate::worker::{Answer, Command, Event, NodeSpec, NodeStats};
use farside::{Config, ErrorCode};
use farside_command::failure::Failure;
use farside_command::signals;
use std::net::{IpAddr, SocketAddr};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Time that a failed start waits for the death of a worker, which is then reported as the cause: a dying process
/// closes its links and its standard output at about the same time.
const DEATH_NOTICE_TIMEOUT: Duration = Duration::from_millis(250);

/// A message to the parent.
enum ClusterMessage {
    /// A worker reported an event.
    Event(WorkerId, Event),
    /// The output of a worker has ended.
    Gone(WorkerId),
    /// A signal requests the end of this process.
    Interrupted,
}

/// The identifier of a worker process, unique also among replacements.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct WorkerId(usize);

/// An event of a cluster without a command in progress.
#[derive(Debug)]
pub(crate) enum ClusterEvent {
    /// A signal requests the end of this process.
    Interrupted,
    /// The process of a worker has ended; `node` is its node number if it had joined.
    Ended { index: usize, node: Option<u16>, process: u32, how: String },
    /// A replacement is a member.
    Joined { index: usize },
    /// A replacement could not join, and has been ended.
    NotJoined { index: usize, failure: Failure },
}

/// One worker.
struct Worker {
    process: Box<dyn Process>,
    host: Option<IpAddr>,
    local: Option<IpAddr>,
    listener: Option<JoinHandle<()>>,
    alive: bool,
    id: WorkerId,
    /// Its node's number, after it has joined.
    node: Option<u16>,
    /// The address of its node, on fabrics between hosts.
    address: Option<SocketAddr>,
}

/// Worker processes, one node each.
pub struct Cluster {
    hosts: Hosts,
    workers: Vec<Worker>,
    /// The number of worker processes started so far.
    started: usize,
    messages: Receiver<ClusterMessage>,
    sender: Sender<ClusterMessage>,
}

impl Cluster {
    /// Starts a cluster of `count` nodes with equal settings, and waits until they know each other.
    pub fn start(hosts: &Hosts, spec: &NodeSpec, count: usize) -> Result<Self, Failure> {
        Self::start_each(hosts, &vec![spec.clone(); count])
    }

    /// Starts a cluster with a node for each of `specs`: the first creates it, the others join.
    ///
    /// # Errors
    /// Those of a node; if a worker process ends meanwhile, its number and exit status.
    pub fn start_each(hosts: &Hosts, specs: &[NodeSpec]) -> Result<Self, Failure> {
        if !matches!(hosts, Hosts::Agents(..)) {
            let configs: Result<Vec<_>, _> = specs.iter().map(NodeSpec::config).collect();
            Config::check_together(&configs?)?;
        }
        let mut cluster = Self::of_workers(hosts, specs.len())?;
        match cluster.start_nodes(specs) {
            Ok(()) => Ok(cluster),
            Err(failure) => Err(cluster.cause(failure)),
        }
    }

    fn start_nodes(&mut self, specs: &[NodeSpec]) -> Result<(), Failure> {
        for (index, spec) in specs.iter().enumerate() {
            let command = self.start_command(index, spec, index == 0);
            let answer = self.ask(index, command)?;
            self.joined(index, &answer)?;
        }
        let all = (0..specs.len()).map(|index| (index, Command::Meet { nodes: specs.len() }));
        let met = self.ask_all(all.collect(), |_| {})?;
        met.into_iter().try_for_each(|answer| answer.map(|_| ()))
    }

    /// Returns the command that starts a worker's node.
    fn start_command(&self, index: usize, spec: &NodeSpec, create: bool) -> Command {
        let addresses: Vec<_> = self.members().filter_map(|worker| worker.address).collect();
        let host = self.workers[index].host.and_then(|host| self.hosts.spec(host, &addresses));
        Command::Start(NodeSpec { create, host, ..spec.clone() })
    }

    /// Records the answer of a worker to the start of its node.
    fn joined(&mut self, index: usize, answer: &Answer) -> Result<(), Failure> {
        let Answer::Node { number, at } = answer else {
            return Err(unexpected(answer));
        };
        let worker = &mut self.workers[index];
        (worker.node, worker.address) = (Some(*number), *at);
        Ok(())
    }

    /// Returns the number of nodes that have joined and whose process runs.
    pub(crate) fn members_count(&self) -> usize {
        self.members().count()
    }

    /// Returns the workers that run and whose nodes have joined.
    fn members(&self) -> impl Iterator<Item = &Worker> {
        self.workers.iter().filter(|worker| worker.alive && worker.node.is_some())
    }

    /// Returns why a start failed: the death of a worker, if any, since then others could not reach it.
    fn cause(&mut self, failure: Failure) -> Failure {
        if !matches!(failure, Failure::Operation { .. }) {
            return failure;
        }
        let deadline = Instant::now() + DEATH_NOTICE_TIMEOUT;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.messages.recv_timeout(left) {
                Ok(ClusterMessage::Gone(id)) => {
                    if let Some(index) = self.living_index(id) {
                        return self.death(index);
                    }
                }
                Ok(_) => {}
                Err(_) => return failure,
            }
        }
    }

    /// Starts the processes, without nodes.
    pub fn of_workers(hosts: &Hosts, count: usize) -> Result<Self, Failure> {
        let (sender, messages) = channel();
        let interrupted = sender.clone();
        signals::watch(move || interrupted.send(ClusterMessage::Interrupted).is_ok())?;
        let hosts = hosts.clone();
        let mut cluster = Self { hosts, workers: Vec::new(), started: 0, messages, sender };
        for index in 0..count {
            let worker = cluster.start_worker(index)?;
            cluster.workers.push(worker);
        }
        Ok(cluster)
    }

    fn start_worker(&mut self, index: usize) -> Result<Worker, Failure> {
        let id = WorkerId(self.started);
        let started = self.hosts.start(index, line_handler(id, self.sender.clone()))?;
        self.started += 1;
        let Started { process, host, local, listener } = started;
        let listener = Some(listener);
        Ok(Worker { process, host, local, listener, alive: true, id, node: None, address: None })
    }

    /// Replaces a worker that has ended, and lets the node of the new one join. Returns at once;
    /// [`Self::next_event`] reports the result.
    pub(crate) fn replace(&mut self, index: usize, spec: &NodeSpec) -> Result<(), Failure> {
        let command = self.replacement(index, spec)?;
        // If the worker has ended already, its end is the next event.
        let _ = self.send(index, &command)?;
        Ok(())
    }

    /// Replaces a worker that has ended, and waits until the node of the new one has joined. With the state of the
    /// ended node in `spec`, the new node has its number and its memory.
    ///
    /// # Errors
    /// Those of the node, such as `NotEnoughReplicas` for its state; the exit status of a worker that ends meanwhile.
    pub fn restart(&mut self, index: usize, spec: &NodeSpec) -> Result<(), Failure> {
        let command = self.replacement(index, spec)?;
        let answer = self.ask(index, command)?;
        self.joined(index, &answer)
    }

    /// Starts a process in the place of a worker that has ended, and returns the command by which its node joins.
    fn replacement(&mut self, index: usize, spec: &NodeSpec) -> Result<Command, Failure> {
        self.workers[index] = self.start_worker(index)?;
        Ok(self.start_command(index, spec, false))
    }

    /// Sends a worker a command; returns false if its input is closed.
    fn send(&mut self, index: usize, command: &Command) -> Result<bool, Failure> {
        let line = serde_json::to_string(command);
        let line = line.map_err(|e| Failure::system(format!("a command: {e}")))?;
        Ok(self.workers[index].process.send(&line).is_ok())
    }

    /// Returns the number of workers.
    pub fn workers_count(&self) -> usize {
        self.workers.len()
    }

    /// Returns the node number of a worker.
    pub fn node(&self, index: usize) -> u16 {
        self.workers.get(index).and_then(|worker| worker.node).unwrap_or_default()
    }

    /// Returns the process number of a worker on its host.
    pub fn process(&self, index: usize) -> u32 {
        self.workers[index].process.number()
    }

    /// Returns the address of a worker's node, on fabrics between hosts.
    pub fn address(&self, index: usize) -> Option<SocketAddr> {
        self.workers.get(index)?.address
    }

    /// Returns the addresses at which a worker's host and this host reach each other; `None` in shared memory.
    pub fn hosts_of(&self, index: usize) -> Option<(IpAddr, IpAddr)> {
        let worker = self.workers.get(index)?;
        worker.host.zip(worker.local)
    }

    /// Returns the workers that run.
    pub fn living(&self) -> Vec<usize> {
        (0..self.workers.len()).filter(|index| self.workers[*index].alive).collect()
    }

    /// Sends one command to a worker and waits for its answer.
    pub fn ask(&mut self, index: usize, command: Command) -> Result<Answer, Failure> {
        let mut answers = self.ask_all(vec![(index, command)], |_| {})?;
        answers.pop().unwrap_or(Ok(Answer::Nothing))
    }

    /// Sends commands to workers at once, possibly several to one, and waits for all answers, in the order of the
    /// commands. Calls `progress` with each increment of the work, of all workers.
    ///
    /// # Errors
    /// The number and exit status of a worker process that ends meanwhile: the others may wait for its node.
    pub fn ask_all(
        &mut self,
        commands: Vec<(usize, Command)>,
        mut progress: impl FnMut(u64),
    ) -> Result<Vec<Result<Answer, Failure>>, Failure> {
        let mut answers: Vec<(usize, Option<Result<Answer, Failure>>)> = Vec::new();
        for (index, command) in commands {
            if !self.send(index, &command)? {
                return Err(self.death(index));
            }
            answers.push((index, None));
        }
        while answers.iter().any(|(_, answer)| answer.is_none()) {
            let (id, answer) = match self.messages.recv() {
                Ok(ClusterMessage::Event(_, Event::Progress { more })) => {
                    progress(more);
                    continue;
                }
                Ok(ClusterMessage::Event(id, Event::Done { answer })) => (id, Ok(answer)),
                Ok(ClusterMessage::Event(id, Event::Failed { failure })) => (id, Err(failure)),
                Ok(ClusterMessage::Gone(id)) => match self.living_index(id) {
                    Some(index) => return Err(self.death(index)),
                    None => continue,
                },
                Ok(ClusterMessage::Interrupted) | Err(_) => return Err(Failure::Interrupted),
            };
            let waiting = answers
                .iter_mut()
                .find(|(asked, answer)| self.workers[*asked].id == id && answer.is_none());
            if let Some((_, slot)) = waiting {
                *slot = Some(answer);
            }
        }
        Ok(answers.into_iter().filter_map(|(_, answer)| answer).collect())
    }

    /// Returns the worker with this identifier, unless it was killed, has left or was replaced.
    fn living_index(&self, id: WorkerId) -> Option<usize> {
        self.workers.iter().position(|worker| worker.id == id && worker.alive)
    }

    /// Returns the statistics of each running node.
    pub fn stats(&mut self) -> Result<Vec<(usize, NodeStats)>, Failure> {
        let living = self.living();
        let commands = living.iter().map(|index| (*index, Command::Stats)).collect();
        let mut all = Vec::new();
        for (index, answer) in living.into_iter().zip(self.ask_all(commands, |_| {})?) {
            match answer? {
                Answer::Stats(stats) => all.push((index, stats)),
                other => return Err(unexpected(&other)),
            }
        }
        Ok(all)
    }

    /// Kills a worker's process with SIGKILL, reaps it, and returns its exit status.
    pub fn kill(&mut self, index: usize) -> Result<String, Failure> {
        let worker = &mut self.workers[index];
        worker.alive = false;
        worker.process.kill();
        worker.process.wait()
    }

    /// Kills and reaps all workers that run.
    pub fn kill_all(&mut self) {
        for index in self.living() {
            // A worker that cannot be reaped has ended, or ends with this process.
            let _ = self.kill(index);
        }
    }

    /// Waits for the next event; `None` at the deadline, if any.
    pub(crate) fn next_event(&mut self, deadline: Option<Instant>) -> Option<ClusterEvent> {
        loop {
            let message = match deadline {
                None => self.messages.recv().ok(),
                Some(deadline) => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    match self.messages.recv_timeout(left) {
                        Err(RecvTimeoutError::Timeout) => return None,
                        received => received.ok(),
                    }
                }
            };
            let Some(message) = message else { return Some(ClusterEvent::Interrupted) };
            if let Some(event) = self.event_of(message) {
                return Some(event);
            }
        }
    }

    fn event_of(&mut self, message: ClusterMessage) -> Option<ClusterEvent> {
        match message {
            ClusterMessage::Interrupted => Some(ClusterEvent::Interrupted),
            ClusterMessage::Gone(id) => {
                let index = self.living_index(id)?;
                let (node, process) = (self.workers[index].node, self.process(index));
                Some(ClusterEvent::Ended { index, node, process, how: self.end_of(index) })
            }
            ClusterMessage::Event(_, Event::Progress { .. }) => None,
            ClusterMessage::Event(id, Event::Done { answer }) => {
                let index = self.living_index(id)?;
                match self.joined(index, &answer) {
                    Ok(()) => Some(ClusterEvent::Joined { index }),
                    Err(failure) => Some(self.not_joined(index, failure)),
                }
            }
            ClusterMessage::Event(id, Event::Failed { failure }) => {
                let index = self.living_index(id)?;
                Some(self.not_joined(index, failure))
            }
        }
    }

    fn not_joined(&mut self, index: usize, failure: Failure) -> ClusterEvent {
        let _ = self.end_of(index);
        ClusterEvent::NotJoined { index, failure }
    }

    /// Lets all nodes leave in order, the last to join first. A node that could not hand over all its lines in time has
    /// left too; the memory ends with the nodes anyway.
    pub fn leave(mut self) -> Result<(), Failure> {
        for index in self.living().into_iter().rev() {
            match self.ask(index, Command::Leave) {
                Err(failure) if !failure.is(ErrorCode::TimedOut) => return Err(failure),
                _ => {}
            }
            let worker = &mut self.workers[index];
            worker.alive = false;
            worker.process.wait()?;
        }
        Ok(())
    }

    /// Records that a worker has ended, and returns its exit status.
    fn end_of(&mut self, index: usize) -> String {
        self.kill(index).unwrap_or_else(|failure| failure.to_string())
    }

    /// Records that a worker has ended, and returns the failure that names it.
    fn death(&mut self, index: usize) -> Failure {
        let how = self.end_of(index);
        let (process, count) = (self.process(index), self.workers_count());
        Failure::system(match self.workers[index].node {
            Some(node) => format!("the process of node {node} is gone ({how})"),
            None => format!(
                "worker process {process} ({} of {count}), whose node had not joined yet, is gone ({how})",
                index + 1
            ),
        })
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for worker in &mut self.workers {
            worker.process.kill();
        }
        for worker in &mut self.workers {
            let _ = worker.process.wait();
            if let Some(listener) = worker.listener.take() {
                let _ = listener.join();
            }
        }
    }
}

/// Returns a handler that converts the output of a worker to messages.
fn line_handler(id: WorkerId, messages: Sender<ClusterMessage>) -> LineHandler {
    Box::new(move |line| {
        let message = match line {
            None => ClusterMessage::Gone(id),
            Some(line) => {
                let event = serde_json::from_str(line).unwrap_or_else(|e| Event::Failed {
                    failure: Failure::system(format!("a worker said `{line}`: {e}")),
                });
                ClusterMessage::Event(id, event)
            }
        };
        messages.send(message).is_ok()
    })
}

/// Returns the failure of a worker with an answer to another command.
pub fn unexpected(answer: &Answer) -> Failure {
    Failure::system(format!("unexpected answer of a worker: {answer:?}"))
}
