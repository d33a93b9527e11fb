//! One stream at an agent, which runs one worker.

use super::event::AgentEvent;
use super::line::{Line, Lines};
use super::wire::{LINE_BYTES_MAX, MARK, Notice, Order, line, version};
use farside_bootstrap::{Admission, Security};
use farside_command::failure::Failure;
use farside_command::output::Output;
use farside_fabric::{PendingConnection as PendingPeer, PendingLimits};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use std::io::{Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

/// Time that a command has from the end of the handshake to its order.
const ORDER_TIMEOUT: Duration = Duration::from_secs(5);

/// The shared state of all streams of an agent.
pub(super) struct AgentState {
    admission: Admission,
    security: Security,
    key: Option<PathBuf>,
    workers_max: usize,
    open: Mutex<OpenStreams>,
    output: Output,
}

/// The open streams of an agent.
#[derive(Default)]
struct OpenStreams {
    workers: usize,
    lines: Vec<Weak<Line>>,
    /// Streams without an order yet.
    pending: Vec<PendingStream>,
    streams_made: u64,
    /// Whether the agent ends and serves no more streams.
    ended: bool,
}

/// A stream without an order yet.
struct PendingStream {
    number: u64,
    host: IpAddr,
    silent: bool,
    socket: Arc<TcpStream>,
}

impl AgentState {
    pub(super) fn new(
        admission: Admission,
        security: Security,
        key: Option<PathBuf>,
        workers_max: u16,
        output: Output,
    ) -> Self {
        let workers_max = usize::from(workers_max);
        Self { admission, security, key, workers_max, open: Mutex::default(), output }
    }

    /// Admits a connection, which must send its order within [`ORDER_TIMEOUT`]; `None` if it is refused.
    /// Connections without an order are limited in all and per host, as at nodes: a new one may displace another.
    pub(super) fn admit(
        self: &Arc<Self>,
        socket: TcpStream,
        from: SocketAddr,
    ) -> Option<PendingConnection> {
        if let Err(reason) = self.admission.judge(&socket) {
            let (from, reason) = (from.to_string(), reason.to_string());
            AgentEvent::Refused { from: &from, reason: &reason }.tell(self.output);
            return None;
        }
        let (socket, host) = (Arc::new(socket), from.ip().to_canonical());
        let mut open = self.open();
        let pending = open.pending.iter().map(|one| {
            let PendingStream { number, host, silent, .. } = *one;
            PendingPeer { peer: host, silent, age: number }
        });
        if let Some(oldest) = PendingLimits::DEFAULT.gives_way(pending, host)
            && let Some(at) = open.pending.iter().position(|one| one.number == oldest)
        {
            // Its thread sees the end of the stream.
            let _ = open.pending.swap_remove(at).socket.shutdown(Shutdown::Both);
        }
        open.streams_made += 1;
        let number = open.streams_made;
        let pending = PendingStream { number, host, silent: true, socket: Arc::clone(&socket) };
        open.pending.push(pending);
        Some(PendingConnection { agent: Arc::clone(self), number, socket, from })
    }

    pub(super) fn workers_max(&self) -> usize {
        self.workers_max
    }

    /// Ends all streams and their workers.
    pub(super) fn end_all(&self) {
        let mut open = self.open();
        open.ended = true;
        let lines: Vec<_> = open.lines.drain(..).filter_map(|line| line.upgrade()).collect();
        for pending in &open.pending {
            // Its thread sees the end of the stream.
            let _ = pending.socket.shutdown(Shutdown::Both);
        }
        drop(open);
        for line in lines {
            line.end();
        }
    }

    /// Registers a stream; returns false if the agent ends.
    fn enter(&self, line: &Arc<Line>) -> bool {
        let mut open = self.open();
        open.lines.retain(|line| line.strong_count() > 0);
        open.lines.push(Arc::downgrade(line));
        !open.ended
    }

    /// Reserves a worker slot, if one is free; it is released when the value is dropped.
    fn reserve_worker(&self) -> Option<WorkerSlot<'_>> {
        let mut open = self.open();
        if open.workers >= self.workers_max {
            return None;
        }
        open.workers += 1;
        Some(WorkerSlot(self))
    }

    fn open(&self) -> MutexGuard<'_, OpenStreams> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A reserved slot of the agent's maximum number of workers.
struct WorkerSlot<'a>(&'a AgentState);

impl Drop for WorkerSlot<'_> {
    fn drop(&mut self) {
        self.0.open().workers -= 1;
    }
}

/// A connection without an order yet; drop it when the order has arrived.
pub(super) struct PendingConnection {
    agent: Arc<AgentState>,
    number: u64,
    socket: Arc<TcpStream>,
    from: SocketAddr,
}

impl PendingConnection {
    /// Notes that the peer has sent something.
    fn heard(&self) {
        let mut open = self.agent.open();
        if let Some(found) = open.pending.iter_mut().find(|one| one.number == self.number) {
            found.silent = false;
        }
    }
}

impl Drop for PendingConnection {
    fn drop(&mut self) {
        self.agent.open().pending.retain(|one| one.number != self.number);
    }
}

/// The worker's process number until the worker is reaped, so that no thread kills a later process of that number.
struct KillTarget(Mutex<Option<Pid>>);

impl KillTarget {
    fn kill(&self) {
        if let Some(process) = *self.locked() {
            // An error means that it has already ended.
            let _ = kill_process(process, Signal::KILL);
        }
    }

    fn locked(&self) -> MutexGuard<'_, Option<Pid>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Serves a stream from its handshake to its end.
pub(super) fn stream(connection: PendingConnection) {
    let (agent, from) = (Arc::clone(&connection.agent), connection.from.to_string());
    let refused = |reason: &str| AgentEvent::Refused { from: &from, reason }.tell(agent.output);
    let socket = Arc::clone(&connection.socket);
    let accepted = Line::accept(socket, &agent.security, || connection.heard());
    let line = match accepted {
        Ok(line) => Arc::new(line),
        Err(reason) => return refused(&reason.to_string()),
    };
    if agent.enter(&line)
        && let Err(reason) = serve(&agent, connection, &line, &from)
    {
        refused(&reason.to_string());
        let _ = line.send(&super::wire::line(&Notice::Refused { failure: reason }));
    }
    line.end();
}

/// Starts the worker and waits until it and the stream have ended; an error if no worker was started.
fn serve(
    agent: &AgentState,
    connection: PendingConnection,
    to: &Line,
    from: &str,
) -> Result<(), Failure> {
    let mut lines = Lines::new(to, LINE_BYTES_MAX);
    lines.by(Some(Instant::now() + ORDER_TIMEOUT));
    let Some(first) = lines.next().map_err(|e| Failure::system(e.to_string()))? else {
        return Ok(());
    };
    lines.by(None);
    // With its order, no other connection displaces it any more.
    drop(connection);
    judge_order(&first)?;
    let Some(_slot) = agent.reserve_worker() else {
        return Err(Failure::system(format!(
            "it runs {} workers already, its --workers-max",
            agent.workers_max
        )));
    };
    let mut child = spawn(agent)?;
    let (Some(mut commands), Some(events)) = (child.stdin.take(), child.stdout.take()) else {
        return Err(Failure::system("a worker without pipes"));
    };
    let process = child.id();
    let target = KillTarget(Mutex::new(Some(Pid::from_child(&child))));
    // A failure means that the stream is broken, which the next read reports.
    let _ = to.send(&line(&Notice::Started { process }));
    AgentEvent::Started { process, from }.tell(agent.output);
    let how = std::thread::scope(|scope| {
        let relay = scope.spawn(|| relay(to, events, child, &target));
        obey(&mut lines, &mut commands, &target);
        // Before its input closes, which would end the worker too.
        target.kill();
        relay.join()
    });
    let how = how.unwrap_or_else(|_| "its relay panicked".to_owned());
    AgentEvent::Ended { process, how: &how }.tell(agent.output);
    Ok(())
}

/// Checks that the first line of a stream orders a worker of this program's version.
fn judge_order(first: &[u8]) -> Result<(), Failure> {
    match serde_json::from_slice(first) {
        Ok(Order::Start { version: theirs }) if theirs == version() => Ok(()),
        Ok(Order::Start { version: theirs }) => {
            let ours = version();
            Err(Failure::usage(format!(
                "the agent has version {ours} and the command {theirs}; install one version on both hosts"
            )))
        }
        _ => Err(Failure::usage("the first line of a stream is an order to start a worker")),
    }
}

/// Starts this program as a worker. The calling thread must outlive it, since the kernel takes the end of that thread
/// for the parent's death.
fn spawn(agent: &AgentState) -> Result<Child, Failure> {
    let program =
        std::env::current_exe().map_err(|e| Failure::system(format!("own program: {e}")))?;
    let mut command = Command::new(program);
    command.args(["worker", "--without-files"]);
    if let Some(key) = &agent.key {
        command.arg("--key").arg(key);
    }
    // A separate process group: Ctrl-C reaches only the agent, which then ends its workers in order.
    command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped());
    command.spawn().map_err(|e| Failure::system(format!("cannot start a worker process: {e}")))
}

/// Executes orders and passes other lines to the worker, until the stream ends.
fn obey(lines: &mut Lines<'_>, commands: &mut ChildStdin, target: &KillTarget) {
    while let Ok(Some(mut line)) = lines.next() {
        if line.starts_with(MARK) {
            if matches!(serde_json::from_slice(&line), Ok(Order::Kill)) {
                target.kill();
            }
            continue;
        }
        line.push(b'\n');
        // If the worker has ended, its relay ends the stream.
        let _ = commands.write_all(&line);
    }
}

/// Relays the worker's output, reaps the worker, and returns its exit status.
fn relay(to: &Line, mut events: ChildStdout, mut child: Child, target: &KillTarget) -> String {
    let mut block = [0; 16 << 10];
    let mut within_line = false;
    loop {
        match events.read(&mut block) {
            Ok(0) => break,
            Ok(count) => {
                within_line = block[count - 1] != b'\n';
                if to.send(&block[..count]).is_err() {
                    target.kill();
                    break;
                }
            }
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(_) => break,
        }
    }
    if within_line {
        let _ = to.send(b"\n");
    }
    // The worker ends now. Its process number may be reused as soon as it is reaped, so it is no target after this.
    let ended = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
    let _ = waitid(WaitId::Pid(Pid::from_child(&child)), ended);
    target.locked().take();
    let how = child.wait().map_or_else(|e| e.to_string(), |status| status.to_string());
    let _ = to.send(&line(&Notice::Ended { how: how.clone() }));
    to.end();
    how
}
