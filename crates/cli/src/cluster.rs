//! A cluster of worker processes, for as long as this value lives.
//!
//! Workers are children of this process or run at agents of other hosts ([`Process`], [`Hosts`]). Dropping
//! the cluster, on success, error, panic or Ctrl-C, kills and reaps those that have not left; should this
//! process be killed outright, they see their input close and end by themselves.

use crate::failure::Failure;
use crate::hosts::Hosts;
use crate::signals;
use crate::worker::{Answer, Command, Event, NodeSpec, NodeStats};
use farside::ErrorCode;
use std::net::{IpAddr, SocketAddr};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

/// What reaches the parent.
enum Message {
    /// A worker said something.
    Event(usize, Event),
    /// A worker says no more.
    Gone(usize),
    /// Somebody wants this process to end.
    Interrupted,
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
}

/// Worker processes, one node each.
pub(crate) struct Cluster {
    hosts: Hosts,
    workers: Vec<Worker>,
    nodes: Vec<u16>,
    /// Where the nodes are reached, on fabrics between hosts.
    addresses: Vec<SocketAddr>,
    messages: Receiver<Message>,
    sender: Sender<Message>,
}

impl Cluster {
    /// Starts a cluster of `count` nodes, all set up alike, and waits until they know each other.
    pub(crate) fn start(hosts: &Hosts, spec: &NodeSpec, count: usize) -> Result<Self, Failure> {
        Self::start_each(hosts, &vec![spec.clone(); count])
    }

    /// Starts a cluster with a node for each of these: the first creates it, the others join.
    pub(crate) fn start_each(hosts: &Hosts, specs: &[NodeSpec]) -> Result<Self, Failure> {
        let count = specs.len();
        let mut cluster = Self::of_workers(hosts, count)?;
        for (index, spec) in specs.iter().enumerate() {
            let at = cluster.workers[index].host;
            let host = at.and_then(|host| hosts.spec(host, &cluster.addresses));
            let spec = NodeSpec { create: index == 0, host, ..spec.clone() };
            let answer = cluster.ask(index, Command::Start(spec))?;
            let Answer::Node { number, at } = answer else {
                return Err(unexpected(&answer));
            };
            cluster.nodes.push(number);
            cluster.addresses.extend(at);
        }
        let all = (0..count).map(|index| (index, Command::Meet { nodes: count }));
        let met = cluster.ask_all(all.collect(), |_| {})?;
        met.into_iter().collect::<Result<Vec<_>, _>>()?;
        Ok(cluster)
    }

    /// Starts the processes alone.
    pub(crate) fn of_workers(hosts: &Hosts, count: usize) -> Result<Self, Failure> {
        let (sender, messages) = channel();
        let interrupted = sender.clone();
        signals::watch(move || interrupted.send(Message::Interrupted).is_ok())?;
        let (workers, nodes, addresses) = (Vec::new(), Vec::new(), Vec::new());
        let hosts = hosts.clone();
        let mut cluster = Self { hosts, workers, nodes, addresses, messages, sender };
        for index in 0..count {
            let started = cluster.hosts.start(index, hear(index, cluster.sender.clone()))?;
            let Started { process, host, local, listener } = started;
            let worker = Worker { process, host, local, listener: Some(listener), alive: true };
            cluster.workers.push(worker);
        }
        Ok(cluster)
    }

    /// How many workers were started.
    pub(crate) fn len(&self) -> usize {
        self.workers.len()
    }

    /// The node's number of a worker.
    pub(crate) fn node(&self, index: usize) -> u16 {
        self.nodes.get(index).copied().unwrap_or_default()
    }

    /// The process of a worker, by its number on its host.
    pub(crate) fn process(&self, index: usize) -> u32 {
        self.workers[index].process.number()
    }

    /// Where a worker's node is reached, on fabrics between hosts.
    pub(crate) fn address(&self, index: usize) -> Option<SocketAddr> {
        self.addresses.get(index).copied()
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
    /// asked. `progress` is told what more was done, by all together.
    pub(crate) fn ask_all(
        &mut self,
        commands: Vec<(usize, Command)>,
        mut progress: impl FnMut(u64),
    ) -> Result<Vec<Result<Answer, Failure>>, Failure> {
        let mut answers: Vec<(usize, Option<Result<Answer, Failure>>)> = Vec::new();
        for (index, command) in commands {
            let line = serde_json::to_string(&command);
            let line = line.map_err(|e| Failure::system(format!("a command: {e}")))?;
            let refused = self.workers[index].process.tell(&line).err();
            answers.push((index, refused.map(|_| Err(self.death(index)))));
        }
        while answers.iter().any(|(_, answer)| answer.is_none()) {
            let (index, answer) = match self.messages.recv() {
                Ok(Message::Event(_, Event::Progress { more })) => {
                    progress(more);
                    continue;
                }
                Ok(Message::Event(index, Event::Done { answer })) => (index, Ok(answer)),
                Ok(Message::Event(index, Event::Failed { failure })) => (index, Err(failure)),
                Ok(Message::Gone(index)) => {
                    let death = self.death(index);
                    let of_it = |(asked, answer): &&mut (usize, Option<_>)| {
                        *asked == index && answer.is_none()
                    };
                    for (_, slot) in answers.iter_mut().filter(of_it) {
                        *slot = Some(Err(death.clone()));
                    }
                    continue;
                }
                Ok(Message::Interrupted) | Err(_) => return Err(Failure::Interrupted),
            };
            let waiting =
                answers.iter_mut().find(|(asked, answer)| *asked == index && answer.is_none());
            if let Some((_, slot)) = waiting {
                *slot = Some(answer);
            }
        }
        Ok(answers.into_iter().filter_map(|(_, answer)| answer).collect())
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

    /// Waits until this process shall end, or a worker ends unasked.
    pub(crate) fn wait(&mut self) -> Result<(), Failure> {
        loop {
            match self.messages.recv() {
                Ok(Message::Interrupted) | Err(_) => return Ok(()),
                Ok(Message::Gone(index)) if self.workers[index].alive => {
                    return Err(self.death(index));
                }
                Ok(_) => {}
            }
        }
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

    /// Notes that a worker is dead, and says how.
    fn death(&mut self, index: usize) -> Failure {
        let node = self.node(index);
        let how = self.kill(index).unwrap_or_else(|failure| failure.to_string());
        Failure::system(format!("the process of node {node} is gone ({how})"))
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

/// Turns what worker `index` says into messages.
fn hear(index: usize, messages: Sender<Message>) -> Hear {
    Box::new(move |line| {
        let message = match line {
            None => Message::Gone(index),
            Some(line) => {
                let event = serde_json::from_str(line).unwrap_or_else(|e| Event::Failed {
                    failure: Failure::system(format!("a worker said `{line}`: {e}")),
                });
                Message::Event(index, event)
            }
        };
        messages.send(message).is_ok()
    })
}

pub(crate) fn unexpected(answer: &Answer) -> Failure {
    Failure::system(format!("unexpected answer of a worker: {answer:?}"))
}
