//! One stream at an agent: a worker, from its start to its end.

use super::Event;
use super::line::{Line, Lines};
use super::wire::{LINE_BYTES_MAX, MARK, Notice, Order, line, version};
use crate::failure::Failure;
use crate::output::Output;
use farside_bootstrap::{Admission, Security};
use farside_fabric::{PendingConnection, PendingLimits};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use std::io::{Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

/// How long a caller may take from the end of its handshake to its order.
const ORDER_TIMEOUT: Duration = Duration::from_secs(5);

/// What all streams of an agent have in common.
pub(super) struct Desk {
    admission: Admission,
    security: Security,
    key: Option<PathBuf>,
    workers_max: usize,
    open: Mutex<Open>,
    output: Output,
}

/// What is open at an agent.
#[derive(Default)]
struct Open {
    workers: usize,
    lines: Vec<Weak<Line>>,
    /// Streams that have ordered nothing yet.
    waiting: Vec<Waiting>,
    streams_made: u64,
    /// No stream is served any more.
    ended: bool,
}

/// A stream that has ordered nothing yet.
struct Waiting {
    number: u64,
    host: IpAddr,
    silent: bool,
    socket: Arc<TcpStream>,
}

impl Desk {
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

    /// Takes a connection in, which must soon order something: hosts have shares, as they have at nodes,
    /// and one that waits may have to give way. `None` for one that is refused.
    pub(super) fn take_in(self: &Arc<Self>, socket: TcpStream, from: SocketAddr) -> Option<Caller> {
        if let Err(reason) = self.admission.judge(&socket) {
            let (from, reason) = (from.to_string(), reason.to_string());
            Event::Refused { from: &from, reason: &reason }.tell(self.output);
            return None;
        }
        let (socket, host) = (Arc::new(socket), from.ip().to_canonical());
        let mut open = self.open();
        let pending = open.waiting.iter().map(|one| {
            let Waiting { number, host, silent, .. } = *one;
            PendingConnection { peer: host, silent, age: number }
        });
        if let Some(oldest) = PendingLimits::DEFAULT.gives_way(pending, host)
            && let Some(at) = open.waiting.iter().position(|one| one.number == oldest)
        {
            // Its thread finds the stream ended.
            let _ = open.waiting.swap_remove(at).socket.shutdown(Shutdown::Both);
        }
        open.streams_made += 1;
        let number = open.streams_made;
        let waiting = Waiting { number, host, silent: true, socket: Arc::clone(&socket) };
        open.waiting.push(waiting);
        Some(Caller { desk: Arc::clone(self), number, socket, from })
    }

    pub(super) fn workers_max(&self) -> usize {
        self.workers_max
    }

    /// Ends all streams, and with them their workers.
    pub(super) fn end_all(&self) {
        let mut open = self.open();
        open.ended = true;
        let lines: Vec<_> = open.lines.drain(..).filter_map(|line| line.upgrade()).collect();
        for waiting in &open.waiting {
            // Its thread finds the stream ended.
            let _ = waiting.socket.shutdown(Shutdown::Both);
        }
        drop(open);
        for line in lines {
            line.end();
        }
    }

    /// Notes a stream; false when the agent ends.
    fn enter(&self, line: &Arc<Line>) -> bool {
        let mut open = self.open();
        open.lines.retain(|line| line.strong_count() > 0);
        open.lines.push(Arc::downgrade(line));
        !open.ended
    }

    /// A place for a worker, if one is free; given back with the value.
    fn place(&self) -> Option<Place<'_>> {
        let mut open = self.open();
        if open.workers >= self.workers_max {
            return None;
        }
        open.workers += 1;
        Some(Place(self))
    }

    fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A worker's place among those that an agent has at most.
struct Place<'a>(&'a Desk);

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.open().workers -= 1;
    }
}

/// A connection that has ordered nothing yet; dropped, it waits no more.
pub(super) struct Caller {
    desk: Arc<Desk>,
    number: u64,
    socket: Arc<TcpStream>,
    from: SocketAddr,
}

impl Caller {
    /// It has sent something.
    fn heard(&self) {
        let mut open = self.desk.open();
        if let Some(found) = open.waiting.iter_mut().find(|one| one.number == self.number) {
            found.silent = false;
        }
    }
}

impl Drop for Caller {
    fn drop(&mut self) {
        self.desk.open().waiting.retain(|one| one.number != self.number);
    }
}

/// The worker's process until it is about to be reaped: whoever kills it finds it, or nothing.
struct Target(Mutex<Option<Pid>>);

impl Target {
    fn kill(&self) {
        if let Some(process) = *self.locked() {
            // It may have ended by itself, which is as good.
            let _ = kill_process(process, Signal::KILL);
        }
    }

    fn locked(&self) -> MutexGuard<'_, Option<Pid>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Serves a stream from its handshake to its end.
pub(super) fn stream(caller: Caller) {
    let (desk, from) = (Arc::clone(&caller.desk), caller.from.to_string());
    let refused = |reason: &str| Event::Refused { from: &from, reason }.tell(desk.output);
    let accepted = Line::accept(Arc::clone(&caller.socket), &desk.security, || caller.heard());
    let line = match accepted {
        Ok(line) => Arc::new(line),
        Err(reason) => return refused(&reason.to_string()),
    };
    if desk.enter(&line)
        && let Err(reason) = serve(&desk, caller, &line, &from)
    {
        refused(&reason.to_string());
        let _ = line.send(&super::wire::line(&Notice::Refused { failure: reason }));
    }
    line.end();
}

/// Starts the worker and stays until it and the stream have ended; why there was no worker.
fn serve(desk: &Desk, caller: Caller, to: &Line, from: &str) -> Result<(), Failure> {
    let mut lines = Lines::new(to, LINE_BYTES_MAX);
    lines.by(Some(Instant::now() + ORDER_TIMEOUT));
    let Some(first) = lines.next().map_err(|e| Failure::system(e.to_string()))? else {
        return Ok(());
    };
    lines.by(None);
    // It gives way to no other from here on.
    drop(caller);
    judge_order(&first)?;
    let Some(_place) = desk.place() else {
        return Err(Failure::system(format!(
            "{} workers run there already, which is its --workers-max",
            desk.workers_max
        )));
    };
    let mut child = spawn(desk)?;
    let (Some(mut commands), Some(events)) = (child.stdin.take(), child.stdout.take()) else {
        return Err(Failure::system("a worker without pipes"));
    };
    let process = child.id();
    let target = Target(Mutex::new(Some(Pid::from_child(&child))));
    // Should this fail, the stream is broken, which the next line tells.
    let _ = to.send(&line(&Notice::Started { process }));
    Event::Started { process, from }.tell(desk.output);
    let how = std::thread::scope(|scope| {
        let relay = scope.spawn(|| relay(to, events, child, &target));
        obey(&mut lines, &mut commands, &target);
        // While its input is open: it would end by itself without.
        target.kill();
        relay.join()
    });
    let how = how.unwrap_or_else(|_| "its relay panicked".to_owned());
    Event::Ended { process, how: &how }.tell(desk.output);
    Ok(())
}

/// Whether the first line of a stream orders a worker of this program's version.
fn judge_order(first: &[u8]) -> Result<(), Failure> {
    match serde_json::from_slice(first) {
        Ok(Order::Start { version: theirs }) if theirs == version() => Ok(()),
        Ok(Order::Start { version: theirs }) => {
            let ours = version();
            Err(Failure::usage(format!(
                "the agent is of version {ours} and the command of {theirs}; install one on both hosts"
            )))
        }
        _ => Err(Failure::usage("the first line of a stream is an order to start a worker")),
    }
}

/// Starts this program again as a worker. The calling thread must outlive it, since the kernel takes its
/// end for the parent's death.
fn spawn(desk: &Desk) -> Result<Child, Failure> {
    let program =
        std::env::current_exe().map_err(|e| Failure::system(format!("own program: {e}")))?;
    let mut command = Command::new(program);
    command.args(["worker", "--without-files"]);
    if let Some(key) = &desk.key {
        command.arg("--key").arg(key);
    }
    // A group of its own: Ctrl-C reaches the agent alone, which then ends its workers in order.
    command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped());
    command.spawn().map_err(|e| Failure::system(format!("cannot start a worker process: {e}")))
}

/// Does what the stream says until it ends.
fn obey(lines: &mut Lines<'_>, commands: &mut ChildStdin, target: &Target) {
    while let Ok(Some(mut line)) = lines.next() {
        if line.starts_with(MARK) {
            if matches!(serde_json::from_slice(&line), Ok(Order::Kill)) {
                target.kill();
            }
            continue;
        }
        line.push(b'\n');
        // Should the worker be gone, its relay ends the stream.
        let _ = commands.write_all(&line);
    }
}

/// Relays what the worker says, reaps it, and says how it ended.
fn relay(to: &Line, mut events: ChildStdout, mut child: Child, target: &Target) -> String {
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
    // It ends now. Its number may serve another process as soon as it is reaped: nobody kills it then.
    let ended = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
    let _ = waitid(WaitId::Pid(Pid::from_child(&child)), ended);
    target.locked().take();
    let how = child.wait().map_or_else(|e| e.to_string(), |status| status.to_string());
    let _ = to.send(&line(&Notice::Ended { how: how.clone() }));
    to.end();
    how
}
