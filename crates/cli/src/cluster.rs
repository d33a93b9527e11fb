//! A cluster of worker processes, for as long as this value lives.
//!
//! Workers are children of this process. Dropping the cluster, on success, error, panic or Ctrl-C,
//! kills and reaps those that have not left; should this process be killed outright, they see
//! their input close and end by themselves.

use crate::failure::Failure;
use crate::worker::{Answer, Command, Event, NodeSpec, NodeStats};
use farside::ErrorCode;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// What reaches the parent.
enum Message {
    /// A worker said something.
    Event(usize, Event),
    /// A worker's output closed.
    Gone(usize),
    /// Somebody wants this process to end.
    Interrupted,
}

/// One worker process.
#[derive(Debug)]
struct Worker {
    child: Child,
    commands: Option<ChildStdin>,
    reader: Option<JoinHandle<()>>,
    alive: bool,
}

/// Worker processes, one node each.
pub(crate) struct Cluster {
    workers: Vec<Worker>,
    nodes: Vec<u16>,
    messages: Receiver<Message>,
    sender: Sender<Message>,
}

impl Cluster {
    /// Starts a cluster of `count` nodes, all set up alike, and waits until they know each other.
    pub(crate) fn start(spec: &NodeSpec, count: usize) -> Result<Self, Failure> {
        Self::start_each(&vec![spec.clone(); count])
    }

    /// Starts a cluster with a node for each of these: the first creates it, the others join.
    pub(crate) fn start_each(specs: &[NodeSpec]) -> Result<Self, Failure> {
        let count = specs.len();
        let mut cluster = Self::of_workers(count)?;
        for (index, spec) in specs.iter().enumerate() {
            let spec = NodeSpec { create: index == 0, ..spec.clone() };
            let answer = cluster.ask(index, Command::Start(spec))?;
            let Answer::Node(number) = answer else {
                return Err(unexpected(&answer));
            };
            cluster.nodes.push(number);
        }
        let all = (0..count).map(|index| (index, Command::Meet { nodes: count }));
        let met = cluster.ask_all(all.collect(), |_| {})?;
        met.into_iter().collect::<Result<Vec<_>, _>>()?;
        Ok(cluster)
    }

    /// Starts the processes alone.
    pub(crate) fn of_workers(count: usize) -> Result<Self, Failure> {
        let (sender, messages) = channel();
        watch_signals(sender.clone())?;
        let mut cluster = Self { workers: Vec::new(), nodes: Vec::new(), messages, sender };
        for index in 0..count {
            let worker = Worker::spawn(index, cluster.sender.clone())?;
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

    /// The process of a worker.
    pub(crate) fn process(&self, index: usize) -> u32 {
        self.workers[index].child.id()
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

    /// Asks several workers at once and waits for all answers, in the order asked. `progress` is
    /// told what more was done, by all together.
    pub(crate) fn ask_all(
        &mut self,
        commands: Vec<(usize, Command)>,
        mut progress: impl FnMut(u64),
    ) -> Result<Vec<Result<Answer, Failure>>, Failure> {
        let mut answers: Vec<(usize, Option<Result<Answer, Failure>>)> = Vec::new();
        for (index, command) in commands {
            let refused = self.workers[index].tell(&command).err();
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
                Ok(Message::Gone(index)) => (index, Err(self.death(index))),
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

    /// Kills a worker's process with SIGKILL and reaps it.
    pub(crate) fn kill(&mut self, index: usize) -> Result<ExitStatus, Failure> {
        let worker = &mut self.workers[index];
        worker.alive = false;
        worker.child.kill().map_err(|e| Failure::system(format!("kill: {e}")))?;
        worker.child.wait().map_err(|e| Failure::system(format!("wait: {e}")))
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
            worker.commands = None;
            let ended = worker.child.wait();
            ended.map_err(|e| Failure::system(format!("wait: {e}")))?;
        }
        Ok(())
    }

    /// Notes that a worker is dead, and says how.
    fn death(&mut self, index: usize) -> Failure {
        let node = self.node(index);
        let worker = &mut self.workers[index];
        worker.alive = false;
        let _ = worker.child.kill();
        let how = worker.child.wait().map_or_else(|e| e.to_string(), |status| status.to_string());
        Failure::system(format!("the process of node {node} ended by itself ({how})"))
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for worker in &mut self.workers {
            worker.commands = None;
            let _ = worker.child.kill();
        }
        for worker in &mut self.workers {
            let _ = worker.child.wait();
            if let Some(reader) = worker.reader.take() {
                let _ = reader.join();
            }
        }
    }
}

impl Worker {
    /// Starts this program again as a worker. Called by the main thread, whose end the kernel takes
    /// for the parent's death.
    fn spawn(index: usize, messages: Sender<Message>) -> Result<Self, Failure> {
        let program =
            std::env::current_exe().map_err(|e| Failure::system(format!("own program: {e}")))?;
        let mut child = std::process::Command::new(program)
            .arg("worker")
            // A group of its own: Ctrl-C reaches the parent alone, which then ends us in order.
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|e| Failure::system(format!("cannot start a worker process: {e}")))?;
        let reader = child.stdout.take().map(|output| {
            std::thread::spawn(move || {
                for line in BufReader::new(output).lines().map_while(Result::ok) {
                    let event = serde_json::from_str(&line).unwrap_or_else(|e| Event::Failed {
                        failure: Failure::system(format!("a worker said `{line}`: {e}")),
                    });
                    if messages.send(Message::Event(index, event)).is_err() {
                        return;
                    }
                }
                let _ = messages.send(Message::Gone(index));
            })
        });
        Ok(Self { commands: child.stdin.take(), child, reader, alive: true })
    }

    fn tell(&mut self, command: &Command) -> std::io::Result<()> {
        let line = serde_json::to_string(command)?;
        let commands = self.commands.as_mut().ok_or(std::io::ErrorKind::BrokenPipe)?;
        writeln!(commands, "{line}")
    }
}

pub(crate) fn unexpected(answer: &Answer) -> Failure {
    Failure::system(format!("unexpected answer of a worker: {answer:?}"))
}

/// After so long a further signal means impatience, and is not the same one delivered twice.
const IMPATIENCE: Duration = Duration::from_secs(1);

/// Turns SIGINT and SIGTERM into messages; a later one ends the process at once.
fn watch_signals(messages: Sender<Message>) -> Result<(), Failure> {
    let failed = |e| Failure::system(format!("signals: {e}"));
    let mut signals = Signals::new([SIGINT, SIGTERM]).map_err(failed)?;
    std::thread::spawn(move || {
        let mut first: Option<Instant> = None;
        for _ in signals.forever() {
            match first {
                None if messages.send(Message::Interrupted).is_ok() => first = Some(Instant::now()),
                Some(first) if first.elapsed() < IMPATIENCE => {}
                _ => std::process::exit(130),
            }
        }
    });
    Ok(())
}
