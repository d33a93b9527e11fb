//! A cluster of worker processes, for as long as this value lives.
//!
//! Workers are children of this process or run at agents of other hosts ([`Process`], [`Hosts`]). Dropping
//! the cluster, on success, error, panic or Ctrl-C, kills and reaps those that have not left; should this
//! process be killed outright, they see their input close and end by themselves.

use crate::failure::Failure;
use crate::hosts::Hosts;
use crate::signals;
use crate::worker::{Answer, Command, Event, NodeSpec, NodeStats};
use farside::{Config, ErrorCode};
use std::net::{IpAddr, SocketAddr};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long a failed start waits for the news that a worker has died, which is the cause then: what dies
/// closes its links and its standard output at about the same time.
const DEATH_NOTICE_TIMEOUT: Duration = Duration::from_millis(250);

/// What reaches the parent.
enum ClusterMessage {
    /// A worker said something.
    Event(WorkerId, Event),
    /// A worker says no more.
    Gone(WorkerId),
    /// A signal asks this process to end.
    Interrupted,
}

/// A worker process, also among those that took each other's place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct WorkerId(usize);

/// What happens to a cluster that is not asked anything.
#[derive(Debug)]
pub(crate) enum ClusterEvent {
    /// A signal asks this process to end.
    Interrupted,
    /// The process of a worker has ended; `node` is its number if it had joined.
    Ended { index: usize, node: Option<u16>, process: u32, how: String },
    /// A replacement is a member.
    Joined { index: usize },
    /// A replacement could not join, and has been ended.
    NotJoined { index: usize, failure: Failure },
}

/// The process of a worker, wherever it runs.
pub(crate) trait Process {
    /// Sends it a line.
    fn tell(&mut self, line: &str) -> std::io::Result<()>;
    /// Kills it with SIGKILL, unless it has ended.
    fn kill(&mut self);
    /// Waits until it has ended and is reaped, which it was told to do; how it ended.
    fn wait(&mut self) -> Result<String, Failure>;
    /// Its number on its host.
    fn number(&self) -> u32;
}

/// A worker that was started, and a thread that hears it.
pub(crate) struct Started {
    pub(crate) process: Box<dyn Process>,
    /// The host's address where nodes of other hosts reach this one; `None` in shared memory.
    pub(crate) host: Option<IpAddr>,
    /// Where this process is reached from that host.
    pub(crate) local: Option<IpAddr>,
    pub(crate) listener: JoinHandle<()>,
}

/// Takes what a worker says, line by line, and false once nobody wants to hear it; `None` when it says no
/// more.
pub(crate) type Hear = Box<dyn FnMut(Option<&str>) -> bool + Send>;

/// One worker.
struct Worker {
    process: Box<dyn Process>,
    host: Option<IpAddr>,
    local: Option<IpAddr>,
    listener: Option<JoinHandle<()>>,
    alive: bool,
    id: WorkerId,
    /// Its node's number, once it has one.
    node: Option<u16>,
    /// Where its node is reached, on fabrics between hosts.
    address: Option<SocketAddr>,
}

/// Worker processes, one node each.
pub(crate) struct Cluster {
    hosts: Hosts,
    workers: Vec<Worker>,
    /// Worker processes that were started so far.
    started: usize,
    messages: Receiver<ClusterMessage>,
    sender: Sender<ClusterMessage>,
}

impl Cluster {
    /// Starts a cluster of `count` nodes, all set up alike, and waits until they know each other.
    pub(crate) fn start(hosts: &Hosts, spec: &NodeSpec, count: usize) -> Result<Self, Failure> {
        Self::start_each(hosts, &vec![spec.clone(); count])
    }

    /// Starts a cluster with a node for each of these: the first creates it, the others join.
    ///
    /// # Errors
    /// A node's; where a worker process ends meanwhile, which one and how, at once.
    pub(crate) fn start_each(hosts: &Hosts, specs: &[NodeSpec]) -> Result<Self, Failure> {
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

    /// The command that starts a worker's node.
    fn start_command(&self, index: usize, spec: &NodeSpec, create: bool) -> Command {
        let addresses: Vec<_> = self.members().filter_map(|worker| worker.address).collect();
        let host = self.workers[index].host.and_then(|host| self.hosts.spec(host, &addresses));
        Command::Start(NodeSpec { create, host, ..spec.clone() })
    }

    /// Notes what a worker answered whose node was started.
    fn joined(&mut self, index: usize, answer: &Answer) -> Result<(), Failure> {
        let Answer::Node { number, at } = answer else {
            return Err(unexpected(answer));
        };
        let worker = &mut self.workers[index];
        (worker.node, worker.address) = (Some(*number), *at);
        Ok(())
    }

    /// How many nodes are members, as far as their processes show.
    pub(crate) fn members_count(&self) -> usize {
        self.members().count()
    }

    /// The workers that live and whose nodes have joined.
    fn members(&self) -> impl Iterator<Item = &Worker> {
        self.workers.iter().filter(|worker| worker.alive && worker.node.is_some())
    }

    /// Why a start failed: a worker that has died, if there is one, since its death is why others could not
    /// reach it.
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

    /// Starts the processes alone.
    pub(crate) fn of_workers(hosts: &Hosts, count: usize) -> Result<Self, Failure> {
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
        let started = self.hosts.start(index, hear(id, self.sender.clone()))?;
        self.started += 1;
        let Started { process, host, local, listener } = started;
        let listener = Some(listener);
        Ok(Worker { process, host, local, listener, alive: true, id, node: None, address: None })
    }

    /// Starts a worker in the place of one that has ended, whose node is to join the others. Returns at
    /// once: [`Self::next_event`] says what comes of it.
    pub(crate) fn replace(&mut self, index: usize, spec: &NodeSpec) -> Result<(), Failure> {
        self.workers[index] = self.start_worker(index)?;
        let command = self.start_command(index, spec, false);
        // Where the worker does not live to hear it, its end is the next event.
        let _ = self.tell(index, &command)?;
        Ok(())
    }

    /// Sends a worker a command; false where it takes none any more.
    fn tell(&mut self, index: usize, command: &Command) -> Result<bool, Failure> {
        let line = serde_json::to_string(command);
        let line = line.map_err(|e| Failure::system(format!("a command: {e}")))?;
        Ok(self.workers[index].process.tell(&line).is_ok())
    }

    /// How many workers were started.
    pub(crate) fn len(&self) -> usize {
        self.workers.len()
    }

    /// The node's number of a worker.
    pub(crate) fn node(&self, index: usize) -> u16 {
        self.workers.get(index).and_then(|worker| worker.node).unwrap_or_default()
    }

    /// The process of a worker, by its number on its host.
    pub(crate) fn process(&self, index: usize) -> u32 {
        self.workers[index].process.number()
    }

    /// Where a worker's node is reached, on fabrics between hosts.
    pub(crate) fn address(&self, index: usize) -> Option<SocketAddr> {
        self.workers.get(index)?.address
    }

    /// The addresses of a worker's host and of this one, as they reach each other; `None` in shared memory.
    pub(crate) fn hosts_of(&self, index: usize) -> Option<(IpAddr, IpAddr)> {
        let worker = self.workers.get(index)?;
        worker.host.zip(worker.local)
    }

    /// The workers that live.
    pub(crate) fn living(&self) -> Vec<usize> {
        (0..self.workers.len()).filter(|index| self.workers[*index].alive).collect()
    }

    /// Asks one worker and waits for its answer.
    pub(crate) fn ask(&mut self, index: usize, command: Command) -> Result<Answer, Failure> {
        let mut answers = self.ask_all(vec![(index, command)], |_| {})?;
        answers.pop().unwrap_or(Ok(Answer::Nothing))
    }

    /// Asks several workers at once, one perhaps several things, and waits for all answers, in the order
    /// asked. `progress` is called with what more was done, by all together.
    ///
    /// # Errors
    /// Where any worker process ends meanwhile, which one and how: the others may wait for its node.
    pub(crate) fn ask_all(
        &mut self,
        commands: Vec<(usize, Command)>,
        mut progress: impl FnMut(u64),
    ) -> Result<Vec<Result<Answer, Failure>>, Failure> {
        let mut answers: Vec<(usize, Option<Result<Answer, Failure>>)> = Vec::new();
        for (index, command) in commands {
            if !self.tell(index, &command)? {
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

    /// The worker with this identifier, unless it was killed, has left or was replaced.
    fn living_index(&self, id: WorkerId) -> Option<usize> {
        self.workers.iter().position(|worker| worker.id == id && worker.alive)
    }

    /// What each living node has done.
    pub(crate) fn stats(&mut self) -> Result<Vec<(usize, NodeStats)>, Failure> {
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

    /// Kills a worker's process with SIGKILL and reaps it; how it ended.
    pub(crate) fn kill(&mut self, index: usize) -> Result<String, Failure> {
        let worker = &mut self.workers[index];
        worker.alive = false;
        worker.process.kill();
        worker.process.wait()
    }

    /// Kills and reaps all workers that live.
    pub(crate) fn kill_all(&mut self) {
        for index in self.living() {
            // What cannot be reaped has ended, or ends with this process.
            let _ = self.kill(index);
        }
    }

    /// Waits for what happens next, until the deadline if there is one; `None` then.
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

    /// Lets all nodes leave in order, the last to join first. A node that could not give all its lines
    /// back in time has left all the same, and here the memory ends with its nodes anyway.
    pub(crate) fn leave(mut self) -> Result<(), Failure> {
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

    /// Notes that a worker has ended, and says how.
    fn end_of(&mut self, index: usize) -> String {
        self.kill(index).unwrap_or_else(|failure| failure.to_string())
    }

    /// Notes that a worker has ended, as a failure that names it.
    fn death(&mut self, index: usize) -> Failure {
        let how = self.end_of(index);
        let (process, count) = (self.process(index), self.len());
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

/// Makes messages of what a worker says.
fn hear(id: WorkerId, messages: Sender<ClusterMessage>) -> Hear {
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

pub(crate) fn unexpected(answer: &Answer) -> Failure {
    Failure::system(format!("unexpected answer of a worker: {answer:?}"))
}
