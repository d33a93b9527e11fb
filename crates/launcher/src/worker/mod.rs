//! A process that hosts one node for a parent. It reads commands from standard input and exits when that closes,
//! even during a command, so that no worker outlives its parent.

mod calls;
mod channel;
mod graph;
mod threads;
mod wire;
mod words;
mod workload;

use crate::ends::pair::{self, Mode};
use calls::Calls;
use channel::ChannelThread;
use farside::{
    AllocationHint, AllocationSpec, Durability, Error, ErrorCode, GlobalAddress, LineSize, Node,
    NodeId,
};
use farside_apps::dht::{Dht, DhtOptions};
use farside_apps::graph::Kronecker;
use farside_command::failure::Failure;
use farside_command::processors::bind;
use farside_fabric::Fabric;
use graph::GraphMember;
use rustix::process::{Signal, set_parent_process_death_signal};
use std::io::{BufRead, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};
pub(crate) use wire::Event;
pub use wire::{
    Answer, Command, Executor, GraphForm, GraphSize, GraphTask, Kernel, LookupStats, NodeSpec,
    NodeStats, Ran, Share, Verified, WirePath,
};
pub use workload::workload;

/// How long a node waits for other members at the start.
const MEET_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a node waits for a state that another process uses, and how often it asks for it.
const STATE_TIMEOUT: Duration = Duration::from_secs(10);
const STATE_PERIOD: Duration = Duration::from_millis(1);

/// Executes commands until [`Command::Leave`].
///
/// `key` is the file with the cluster's key; without `files` it accesses no files for the parent, which runs on
/// another host.
pub fn run(key: Option<PathBuf>, files: bool) -> Result<(), Failure> {
    // If the parent dies while another process holds the pipe open, this signal still ends the worker.
    let armed = set_parent_process_death_signal(Some(Signal::KILL));
    armed.map_err(|e| Failure::system(format!("parent-death signal: {e}")))?;
    let commands = listen();
    let mut host = NodeHost {
        node: None,
        fabric: None,
        root: None,
        calls: None,
        channel: None,
        graph: None,
        key,
        files,
        text: Vec::new(),
    };
    while let Ok(command) = commands.recv() {
        let leaves = command == Command::Leave;
        let event = match host.perform(command) {
            Ok(answer) => Event::Done { answer },
            Err(failure) => Event::Failed { failure },
        };
        send_event(&event);
        if leaves {
            break;
        }
    }
    Ok(())
}

/// Reads commands on a separate thread, which exits the process when standard input closes.
fn listen() -> Receiver<Command> {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines() {
            let Ok(line) = line else { break };
            match serde_json::from_str(&line) {
                Ok(command) => {
                    let _ = sender.send(command);
                }
                Err(error) => {
                    let failure = Failure::usage(format!("not a command: {error}"));
                    send_event(&Event::Failed { failure });
                }
            }
        }
        std::process::exit(0);
    });
    receiver
}

/// Writes one event. Ignores errors: they mean that the parent has ended, and this process exits soon.
fn send_event(event: &Event) {
    let line = serde_json::to_string(event).unwrap_or_default();
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

/// The node and what runs on it.
struct NodeHost {
    node: Option<Node>,
    /// The node's fabric, if it is one between hosts.
    fabric: Option<Arc<dyn Fabric>>,
    /// Root of the hash table, once there is one.
    root: Option<GlobalAddress>,
    /// The executor of calls, once there is one.
    calls: Option<Arc<Calls>>,
    /// The end of a data channel that is being measured.
    channel: Option<ChannelThread>,
    /// The part of a shared graph, once there is one.
    graph: Option<GraphMember>,
    /// The file with the cluster's key.
    key: Option<PathBuf>,
    /// Whether the parent may have this process read and write files.
    files: bool,
    /// Text to count.
    text: Vec<u8>,
}

impl NodeHost {
    fn perform(&mut self, command: Command) -> Result<Answer, Failure> {
        match command {
            Command::Start(spec) => self.start(&spec),
            Command::Meet { nodes } => {
                self.node()?.wait_for_members(nodes, MEET_TIMEOUT)?;
                Ok(Answer::Nothing)
            }
            Command::Stats => Ok(Answer::Stats(self.node()?.stats().into())),
            Command::Allocate { bytes } => {
                let mut session = self.node()?.session()?;
                let spec = AllocationSpec::new(AllocationHint::Local);
                let address = session.alloc_with(bytes, spec)?;
                Ok(Answer::Address(address.to_bits()))
            }
            Command::Touch { address, lines } => self.touch(address, lines),
            Command::Serve { listen, mode, processor } => serve(listen, mode, processor),
            Command::Channel(task) => {
                let (channel, at) = ChannelThread::start(task, self.key.clone())?;
                self.channel = Some(channel);
                Ok(Answer::Listens(at))
            }
            Command::EndChannel => match self.channel.take() {
                Some(channel) => channel.end(),
                None => Ok(Answer::Nothing),
            },
            Command::CreateTable { nodes, record_line_bytes, logged } => {
                self.create_table(&nodes, record_line_bytes, logged)
            }
            Command::OpenTable { root } => {
                let wrong = |_| Failure::usage(format!("{root:#x} is no address"));
                self.root = Some(GlobalAddress::from_bits(root).map_err(wrong)?);
                Ok(Answer::Nothing)
            }
            Command::ServeCalls => self.serve_calls(),
            Command::Load(share) => self.on_share(share, workload::Work::load),
            Command::Run(share) => self.on_share(share, workload::Work::run),
            Command::Verify(share) => self.on_share(share, workload::Work::verify),
            Command::Words { files, part, parts } => {
                self.check_files()?;
                let files: Vec<_> = files.into_iter().map(|file| file.0).collect();
                self.on_table(1, |context| words::add(context, &files, part, parts))
            }
            Command::Text { text, end } => {
                self.text.extend_from_slice(text.as_bytes());
                if !end {
                    return Ok(Answer::Nothing);
                }
                let text = std::mem::take(&mut self.text);
                self.on_table(1, |context| words::add_text(context, text.clone()))
            }
            Command::AllWords => self.on_table(1, words::all),
            Command::Graph(task) => self.on_graph(task),
            Command::Leave => {
                self.calls = None;
                self.graph = None;
                if let Some(node) = self.node.take() {
                    node.leave()?;
                }
                Ok(Answer::Nothing)
            }
        }
    }

    fn start(&mut self, spec: &NodeSpec) -> Result<Answer, Failure> {
        bind(spec.processor);
        let config = spec.config()?;
        let (node, at) = match &spec.host {
            None => {
                let start = if spec.create { Node::create } else { Node::join };
                (when_state_is_free(|| start(&config))?, None)
            }
            Some(host) => {
                let (fabric, at) = host.fabric(self.key.as_deref(), spec.spin_ns)?;
                let start = if spec.create { Node::create_on } else { Node::join_on };
                self.fabric = Some(Arc::clone(&fabric));
                (when_state_is_free(|| start(&config, Arc::clone(&fabric)))?, Some(at))
            }
        };
        let number = node.id().0;
        self.node = Some(node);
        Ok(Answer::Node { number, at })
    }

    /// Starts the executor, unless there is one.
    fn serve_calls(&mut self) -> Result<Answer, Failure> {
        let calls = match &self.calls {
            Some(calls) => Arc::clone(calls),
            None => {
                let name = format!("calls-{}", std::process::id());
                Arc::new(Calls::start(self.node()?, self.fabric.as_ref(), &name)?)
            }
        };
        let executor = calls.executor();
        self.calls = Some(calls);
        Ok(Answer::Executor(executor))
    }

    fn create_table(
        &mut self,
        nodes: &[u16],
        record_line_bytes: Option<u32>,
        logged: bool,
    ) -> Result<Answer, Failure> {
        let mut session = self.node()?.session()?;
        let mut options = DhtOptions {
            nodes: nodes.iter().copied().map(NodeId).collect(),
            durability: if logged { Durability::Logged } else { Durability::Volatile },
            ..DhtOptions::default()
        };
        let given = record_line_bytes.and_then(|bytes| usize::try_from(bytes).ok());
        if let Some(line) = given.and_then(LineSize::from_bytes) {
            options.record_line = line;
        }
        let root = Dht::create(&mut session, &options)?.root();
        self.root = Some(root);
        Ok(Answer::Address(root.to_bits()))
    }

    /// Runs `work` with the table on several threads and merges their answers.
    fn on_table(
        &self,
        threads: u16,
        work: impl Fn(threads::ThreadContext<'_>) -> Result<Answer, Failure> + Sync,
    ) -> Result<Answer, Failure> {
        let root = self.root.ok_or_else(|| Failure::usage("no table is open"))?;
        let answers = threads::on_threads(self.node()?, root, threads, send_event, work)?;
        Ok(answers.into_iter().fold(Answer::Nothing, Answer::and))
    }

    /// Runs `work` with a share of a workload.
    fn on_share(
        &self,
        share: Share,
        work: impl Fn(&workload::Work, threads::ThreadContext<'_>) -> Result<Answer, Failure> + Sync,
    ) -> Result<Answer, Failure> {
        if share.history.is_some() {
            self.check_files()?;
        }
        let threads = share.threads;
        let common = workload::Work::new(share, self.calls.clone())?;
        let answer = self.on_table(threads, |context| work(&common, context))?;
        common.finish()?;
        Ok(answer)
    }

    fn on_graph(&mut self, task: GraphTask) -> Result<Answer, Failure> {
        if let GraphTask::Build { scale, edge_factor, seed, rank, members } = task {
            self.graph = None;
            let parameters = Kronecker::new(scale, edge_factor, seed);
            let parameters = parameters.map_err(|error| Failure::usage(error.to_string()))?;
            let session = self.node()?.session()?;
            let member = GraphMember::build(session, &parameters, rank, members)?;
            let size = member.size();
            self.graph = Some(member);
            return Ok(Answer::Graph(size));
        }
        let member = self.graph.as_mut().ok_or_else(|| Failure::usage("there is no graph"))?;
        member.perform(&task)
    }

    fn touch(&self, address: u64, lines: u64) -> Result<Answer, Failure> {
        let mut session = self.node()?.session()?;
        let wrong = || Failure::usage(format!("{address:#x} is no address"));
        let first = GlobalAddress::from_bits(address).map_err(|_| wrong())?;
        let line_bytes = first.line_size().bytes() as u64;
        for number in 0..lines {
            let at = first.checked_add(number * line_bytes).ok_or_else(wrong)?;
            session.write_u64(at, number)?;
        }
        session.fence()?;
        Ok(Answer::Nothing)
    }

    /// Fails if the parent may not access files of this host.
    fn check_files(&self) -> Result<(), Failure> {
        if self.files {
            return Ok(());
        }
        Err(Failure::usage("a worker for another host does not access files"))
    }

    fn node(&self) -> Result<&Node, Failure> {
        self.node.as_ref().ok_or_else(|| Failure::from(farside::Error::new(ErrorCode::NodeClosed)))
    }
}

/// Starts a node. Repeats it while its state is in use, since the state of a killed process stays in use until the end of
/// its connections has been noticed.
///
/// # Errors
/// Those of the start; `StateInUse` after [`STATE_TIMEOUT`].
fn when_state_is_free(start: impl Fn() -> Result<Node, Error>) -> Result<Node, Error> {
    let deadline = Instant::now() + STATE_TIMEOUT;
    loop {
        match start() {
            Err(error) if error.code == ErrorCode::StateInUse && Instant::now() < deadline => {
                std::thread::park_timeout(STATE_PERIOD);
            }
            started => return started,
        }
    }
}

/// Serves a bare link on a separate thread, which ends with the link or the process.
fn serve(listen: String, mode: Mode, processor: Option<usize>) -> Result<Answer, Failure> {
    let (sender, ready) = mpsc::channel();
    let failed = sender.clone();
    std::thread::spawn(move || {
        bind(processor);
        let served = farside_command::fabrics::shm().and_then(|fabric| {
            let listening = || {
                let _ = sender.send(Ok(Answer::Nothing));
            };
            pair::serve(&*fabric, &listen, mode, listening, || false)
        });
        if let Err(failure) = served {
            let _ = failed.send(Err(failure));
        }
    });
    ready.recv().unwrap_or_else(|_| Err(Failure::system("the serving thread has ended")))
}
