//! Shared test code: nodes with a simple interface, and child processes that run this same executable
//! in another role.
#![allow(dead_code, reason = "each test file uses a part")]

use farside_base::{
    Access, Completion, CompletionStatus, LinkId, LocalSlice, Operation, Receive, ReceiveQueueId,
    RegionKind, RegionToken, RemoteRegionId, RemoteSlice, Source, Work, WorkFlags, WorkId,
};
use farside_bootstrap::{Endpoint, Security};
use farside_fabric::{Fabric, LinkEvent, Port, PortSpec, Region, RegionSpec};
use farside_fabric_tcp::{TcpFabric, TcpOptions};
use rustix::process::{
    Pid, Resource, Rlimit, Signal, WaitOptions, getrlimit, kill_process, prlimit, waitpid,
};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Returns an endpoint of this host at which no process listens: a loopback address of its own.
pub(crate) fn free_endpoint() -> Endpoint {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let (process, number) = (std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    let part = |value: u32, most: u32| 1 + (value % most) as u8;
    let number = [127, part(process, 200), part(number / 250, 250), part(number, 250)];
    let port = 7000 + (process / 200 % 20_000) as u16;
    Endpoint::from(SocketAddr::new(IpAddr::V4(Ipv4Addr::from(number)), port))
}

/// Returns a fabric that listens on this host.
pub(crate) fn fabric_of(options: TcpOptions) -> TcpFabric {
    TcpFabric::new(options).expect("a fabric")
}

/// Returns fabrics that all know the endpoints of the others.
pub(crate) fn fabrics_of(security: &Security, count: usize) -> Vec<TcpFabric> {
    let hosts: Vec<_> = (0..count).map(|_| free_endpoint()).collect();
    let fabric = |endpoint: &Endpoint| {
        let (listen, hosts) = (Some(endpoint.clone()), hosts.clone());
        fabric_of(TcpOptions { listen, hosts, security: security.clone(), ..TcpOptions::default() })
    };
    hosts.iter().map(fabric).collect()
}

/// The environment variable of a child's role, with arguments after blanks.
pub(crate) const ROLE: &str = "FARSIDE_TCP_TEST_ROLE";
/// The time after which a test counts as hung.
pub(crate) const WATCHDOG: Duration = Duration::from_secs(60);
/// Bytes of every test region.
pub(crate) const REGION_BYTES: u64 = 1 << 20;
/// Bytes of every receive.
pub(crate) const RECEIVE_BYTES: u32 = 64;
/// Receives of every queue, and their offset.
pub(crate) const RECEIVES: u64 = 128;
const RECEIVES_AT: u64 = 65_536;

/// A child process; killed when dropped.
pub(crate) struct Helper(Child);

impl Helper {
    /// Starts this executable again, to run `test` alone with `role`, through `wrapper` (a command that
    /// runs another).
    pub(crate) fn start_in(wrapper: &[&str], test: &str, role: &str) -> Self {
        Self(Self::command(wrapper, test, role).spawn().expect("a child process"))
    }

    /// Starts it as another user; `None` if that user cannot run this executable.
    pub(crate) fn start_as(user: u32, test: &str, role: &str) -> Option<Self> {
        Self::command(&[], test, role).uid(user).gid(user).spawn().ok().map(Self)
    }

    fn command(wrapper: &[&str], test: &str, role: &str) -> Command {
        let this = std::env::current_exe().expect("the path of this executable");
        let this = this.to_str().expect("a path in plain letters");
        let arguments = [test, "--exact", "--nocapture", "--test-threads=1"];
        let words: Vec<&str> = wrapper.iter().copied().chain([this]).chain(arguments).collect();
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).env(ROLE, role).stdout(Stdio::null());
        command
    }

    /// Waits until it has ended. Returns whether it succeeded.
    pub(crate) fn succeeds(mut self) -> bool {
        self.0.wait().expect("to wait for a child").success()
    }

    pub(crate) fn start(test: &str, role: &str) -> Self {
        Self::start_in(&[], test, role)
    }

    /// Kills it (SIGKILL), and waits until it is gone.
    pub(crate) fn kill(&mut self) {
        self.0.kill().expect("to kill a child");
        self.0.wait().expect("to wait for a child");
    }

    /// Stops it, and waits until it has stopped.
    pub(crate) fn stop(&self) {
        let process = Pid::from_child(&self.0);
        kill_process(process, Signal::STOP).expect("to stop a child");
        let stopped = waitpid(Some(process), WaitOptions::UNTRACED).expect("to wait for a child");
        assert!(stopped.is_some_and(|(_, status)| status.stopped()));
    }

    /// Sets its limit of descriptors to those that it has open now, and `more`.
    pub(crate) fn limit_descriptors(&self, more: usize) {
        let process = Pid::from_child(&self.0);
        let open = std::fs::read_dir(format!("/proc/{}/fd", self.0.id())).expect("its descriptors");
        let number = |entry: std::fs::DirEntry| entry.file_name().to_str()?.parse::<u64>().ok();
        let open: Vec<u64> = open.map(|entry| entry.expect("one")).filter_map(number).collect();
        // The limit is on descriptor numbers, so the free ones below it count.
        let free = (0..).filter(|number| !open.contains(number)).nth(more);
        let maximum = getrlimit(Resource::Nofile).maximum;
        let limit = Rlimit { current: free, maximum };
        prlimit(Some(process), Resource::Nofile, limit).expect("to limit a child");
    }

    /// Continues it (SIGCONT).
    pub(crate) fn resume(&self) {
        kill_process(Pid::from_child(&self.0), Signal::CONT).expect("to resume a child");
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns the role of this process, if it is a child.
pub(crate) fn role() -> Option<Vec<String>> {
    let role = std::env::var(ROLE).ok()?;
    Some(role.split(' ').map(str::to_owned).collect())
}

/// A port with a region and a receive queue full of receives.
pub(crate) struct TestNode {
    pub(crate) fabric: TcpFabric,
    pub(crate) port: Box<dyn Port>,
    pub(crate) region: Region,
    pub(crate) queue: ReceiveQueueId,
    pub(crate) events: Vec<LinkEvent>,
    pub(crate) completions: Vec<Completion>,
}

impl TestNode {
    /// Returns a node that only connects.
    pub(crate) fn new(options: TcpOptions) -> Self {
        Self::with(fabric_of(options), None)
    }

    /// Returns a node that listens as `p` at an endpoint.
    pub(crate) fn at(endpoint: &str, options: TcpOptions) -> Self {
        let listen = Some(endpoint.parse().expect("an endpoint"));
        Self::with(fabric_of(TcpOptions { listen, ..options }), Some("p"))
    }

    pub(crate) fn with(fabric: TcpFabric, name: Option<&str>) -> Self {
        let access = Access::ALL.with(Access::FLUSH);
        let spec = RegionSpec { bytes: REGION_BYTES, access, kind: RegionKind::Memory };
        let region = fabric.register(&spec).expect("a region");
        let spec = PortSpec { listen: name.map(str::to_owned) };
        let mut port = fabric.open(&spec).expect("a port");
        let queue = port.create_receive_queue(RECEIVES as usize).expect("a receive queue");
        let (events, completions) = (Vec::new(), Vec::new());
        let mut node = Self { fabric, port, region, queue, events, completions };
        (0..RECEIVES).for_each(|at| node.post_receive(at));
        node
    }

    /// Posts receive number `at`, which has memory of its own.
    pub(crate) fn post_receive(&mut self, at: u64) {
        let offset = RECEIVES_AT + at * u64::from(RECEIVE_BYTES);
        let into = self.slice(offset, RECEIVE_BYTES);
        let receive = Receive { id: WorkId(at), queue: self.queue, into };
        assert_eq!(self.port.post_receives(&[receive]).accepted, 1);
    }

    pub(crate) fn slice(&self, offset: u64, bytes: u32) -> LocalSlice {
        LocalSlice { region: self.region.id, offset, bytes }
    }

    pub(crate) fn word(&self, offset: u64) -> u64 {
        self.region.arena.load(offset, Ordering::Acquire).expect("in bounds")
    }

    pub(crate) fn put(&self, offset: u64, word: u64) {
        self.region.arena.write(offset, &word.to_ne_bytes()).expect("in bounds");
    }

    /// Polls once and keeps the results.
    pub(crate) fn poll(&mut self) {
        let mut out = [Completion::BLANK; 32];
        self.port.link_events(&mut self.events);
        let count = self.port.poll(&mut out);
        self.completions.extend_from_slice(&out[..count]);
    }

    /// Polls, asleep between, until `found` has a value.
    pub(crate) fn until<T>(
        &mut self,
        what: &str,
        mut found: impl FnMut(&mut Self) -> Option<T>,
    ) -> T {
        let waiter = self.port.waiter();
        loop {
            self.poll();
            if let Some(value) = found(self) {
                return value;
            }
            if !self.port.arm() {
                assert!(waiter.wait(Some(WATCHDOG)), "timed out waiting for {what}");
            }
            self.port.disarm();
        }
    }

    pub(crate) fn event(&mut self) -> LinkEvent {
        self.until("a link event", |node| (!node.events.is_empty()).then(|| node.events.remove(0)))
    }

    pub(crate) fn completion(&mut self) -> Completion {
        self.until("a completion", |node| {
            (!node.completions.is_empty()).then(|| node.completions.remove(0))
        })
    }

    /// Returns the word in a received message.
    pub(crate) fn word_of(&self, received: &Completion) -> u64 {
        assert_eq!(received.status, CompletionStatus::Success, "{received:?}");
        self.word(RECEIVES_AT + received.id.0 * u64::from(RECEIVE_BYTES))
    }

    /// Returns the word in the next message, and posts its receive again.
    pub(crate) fn message(&mut self) -> u64 {
        let received = self.completion();
        let word = self.word_of(&received);
        self.post_receive(received.id.0);
        word
    }

    /// Connects to a node that may still be starting; its reply is the token of its region.
    pub(crate) fn connect(&mut self, to: &str) -> (LinkId, RemoteRegionId) {
        let start = Instant::now();
        loop {
            let link = self.port.connect(to, b"test", self.queue).expect("an address");
            match self.event() {
                LinkEvent::Connected { link: same, reply } => {
                    assert_eq!(same, link);
                    let token = reply.as_slice().try_into().ok().and_then(RegionToken::decode);
                    let token = token.expect("the reply is a token");
                    return (link, self.port.import(link, &token).expect("a region"));
                }
                LinkEvent::NotReached { .. } => {
                    let text = self.port.trouble(link);
                    assert!(start.elapsed() < WATCHDOG, "{to}: {text:?}");
                }
                other => panic!("expected to be connected, got {other:?}"),
            }
            std::thread::yield_now();
        }
    }

    /// Accepts the next request; the reply is the token of the own region.
    pub(crate) fn accept(&mut self) -> LinkId {
        match self.event() {
            LinkEvent::Requested { link, .. } => self.accept_link(link),
            other => panic!("expected a request, got {other:?}"),
        }
    }

    pub(crate) fn accept_link(&mut self, link: LinkId) -> LinkId {
        let token = self.region.token.encode();
        self.port.accept(link, &token, self.queue).expect("to accept");
        link
    }

    pub(crate) fn work<'a>(&self, link: LinkId, id: u64, operation: Operation<'a>) -> Work<'a> {
        let flags = WorkFlags { signalled: true, fence: false, awaited: false };
        Work { id: WorkId(id), link, flags, operation }
    }

    /// Posts one request and returns its completion.
    pub(crate) fn perform(&mut self, link: LinkId, operation: Operation<'_>) -> Completion {
        let work = self.work(link, u64::MAX, operation);
        let posted = self.port.post(&[work]);
        assert_eq!((posted.accepted, posted.stop), (1, None));
        self.until("a completion of a request", |node| {
            let of_request = |done: &Completion| done.id == WorkId(u64::MAX);
            let at = node.completions.iter().position(of_request)?;
            Some(node.completions.remove(at))
        })
    }

    /// Sends a word. Returns false if the queue is full.
    pub(crate) fn try_send(&mut self, link: LinkId, word: u64) -> bool {
        let bytes = word.to_ne_bytes();
        let operation = Operation::Send { source: Source::Inline(&bytes), immediate: None };
        let mut work = self.work(link, 0, operation);
        work.flags.signalled = false;
        self.port.post(&[work]).accepted == 1
    }

    /// Writes a word to a peer's region, reads it back, and adds to it.
    pub(crate) fn works(&mut self, link: LinkId, region: RemoteRegionId) {
        let value = u64::from(link.0) << 32 | 0x5eed;
        self.put(0, value);
        let at = RemoteSlice { region, offset: 8 };
        let slices = [self.slice(0, 8)];
        let source = Source::Gather(&slices);
        let write = Operation::Write { source, to: at, immediate: None };
        assert_eq!(self.perform(link, write).status, CompletionStatus::Success);
        let slices = [self.slice(16, 8)];
        let read = Operation::Read { into: &slices, from: at };
        assert_eq!(self.perform(link, read).status, CompletionStatus::Success);
        assert_eq!(self.word(16), value);
        let add = Operation::FetchAdd { at, add: 1, into: self.slice(24, 8) };
        assert_eq!(self.perform(link, add).status, CompletionStatus::Success);
        assert_eq!(self.word(24), value);
    }
}
