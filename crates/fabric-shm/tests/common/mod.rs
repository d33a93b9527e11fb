//! Shared test code: child processes that run this same executable in another role, and nodes with a
//! simple interface.
#![allow(dead_code, reason = "each test file uses a part")]

use farside_base::{
    Access, Completion, CompletionStatus, LinkId, LocalSlice, Operation, Receive, ReceiveQueueId,
    RegionKind, RegionToken, RemoteRegionId, RemoteSlice, Source, Work, WorkFlags, WorkId,
};
use farside_fabric::{Fabric, LinkEvent, Port, PortSpec, Region, RegionSpec};
use farside_fabric_shm::ShmFabric;
use rustix::process::{
    Pid, Resource, Rlimit, Signal, WaitOptions, getrlimit, kill_process, prlimit, waitpid,
};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// The environment variable of a child's role, with arguments after blanks.
pub(crate) const ROLE: &str = "FARSIDE_SHM_TEST_ROLE";

/// The time after which a test counts as hung.
pub(crate) const WATCHDOG: Duration = Duration::from_secs(60);

/// Bytes of every test region.
pub(crate) const REGION_BYTES: u64 = 1 << 20;
/// Bytes of every receive.
pub(crate) const RECEIVE_BYTES: u32 = 64;
/// Receives of every queue.
pub(crate) const RECEIVES: u64 = 128;

/// A child process; killed when dropped.
pub(crate) struct Helper(Child);

impl Helper {
    /// Starts this executable again, to run `test` alone with `role`.
    pub(crate) fn start(test: &str, role: &str) -> Self {
        let this = std::env::current_exe().expect("the path of this executable");
        Self::of(Self::play(Command::new(this), test, role)).expect("a child process")
    }

    /// Prepares `program`, this executable or a wrapper of it, to run `test` alone with `role`.
    pub(crate) fn play(mut program: Command, test: &str, role: &str) -> Command {
        program
            .args([test, "--exact", "--nocapture", "--test-threads=1"])
            .env(ROLE, role)
            .stdout(Stdio::null());
        program
    }

    /// Starts a command as a child.
    pub(crate) fn of(mut command: Command) -> std::io::Result<Self> {
        command.spawn().map(Self)
    }

    /// Waits until it has ended. Returns whether it succeeded.
    pub(crate) fn succeeds(mut self) -> bool {
        self.0.wait().expect("to wait for a child").success()
    }

    /// Limits its number of descriptors, or resets it to this process's limit.
    pub(crate) fn limit_descriptors(&self, most: Option<u64>) {
        let own = getrlimit(Resource::Nofile);
        let limit = Rlimit { current: most.or(own.current), maximum: own.maximum };
        prlimit(Some(Pid::from_child(&self.0)), Resource::Nofile, limit).expect("to limit a child");
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

/// Returns a listen name of this test run.
pub(crate) fn name(what: &str) -> String {
    format!("test-{}-{what}", std::process::id())
}

/// A port with a region and a receive queue full of receives.
pub(crate) struct TestNode {
    pub(crate) fabric: ShmFabric,
    pub(crate) port: Box<dyn Port>,
    pub(crate) region: Region,
    pub(crate) queue: ReceiveQueueId,
    pub(crate) events: Vec<LinkEvent>,
    pub(crate) completions: Vec<Completion>,
}

impl TestNode {
    pub(crate) fn new(listen: Option<&str>) -> Self {
        Self::with(ShmFabric::new().expect("a fabric"), listen)
    }

    pub(crate) fn with(fabric: ShmFabric, listen: Option<&str>) -> Self {
        let spec =
            RegionSpec { bytes: REGION_BYTES, access: Access::ALL, kind: RegionKind::Memory };
        let region = fabric.register(&spec).expect("a region");
        let spec = PortSpec { listen: listen.map(str::to_owned) };
        let mut port = fabric.open(&spec).expect("a port");
        let queue = port.create_receive_queue(RECEIVES as usize);
        let queue = queue.expect("a receive queue");
        let mut node =
            Self { fabric, port, region, queue, events: Vec::new(), completions: Vec::new() };
        for at in 0..RECEIVES {
            node.post_receive(at);
        }
        node
    }

    /// Posts receive number `at`, which has memory of its own.
    pub(crate) fn post_receive(&mut self, at: u64) {
        let receive = Receive {
            id: WorkId(at),
            queue: self.queue,
            into: self.slice(65_536 + at * u64::from(RECEIVE_BYTES), RECEIVE_BYTES),
        };
        assert_eq!(self.port.post_receives(&[receive]).accepted, 1);
    }

    pub(crate) fn slice(&self, offset: u64, bytes: u32) -> LocalSlice {
        LocalSlice { region: self.region.id, offset, bytes }
    }

    pub(crate) fn word(&self, offset: u64) -> u64 {
        let order = std::sync::atomic::Ordering::Acquire;
        self.region.arena.load(offset, order).expect("in bounds")
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
        self.word(65_536 + received.id.0 * u64::from(RECEIVE_BYTES))
    }

    /// Returns the word in the next message, and posts its receive again.
    pub(crate) fn message(&mut self) -> u64 {
        let received = self.completion();
        let word = self.word_of(&received);
        self.post_receive(received.id.0);
        word
    }

    /// Connects to a child that may still be starting; its reply is the token of its region.
    pub(crate) fn connect(&mut self, to: &str) -> (LinkId, RegionToken) {
        let start = std::time::Instant::now();
        let link = loop {
            match self.port.connect(to, b"test", self.queue) {
                Ok(link) => break link,
                Err(reason) => assert!(start.elapsed() < WATCHDOG, "{to}: {reason}"),
            }
            std::thread::yield_now();
        };
        match self.event() {
            LinkEvent::Connected { link: same, reply } => {
                assert_eq!(same, link);
                (link, decode(&reply))
            }
            other => panic!("expected to be connected, got {other:?}"),
        }
    }

    /// Accepts the next request; the reply is the token of the own region.
    pub(crate) fn accept(&mut self) -> LinkId {
        let LinkEvent::Requested { link, .. } = self.event() else { panic!("expected a request") };
        let token = self.region.token.encode();
        let accepted = self.port.accept(link, &token, self.queue);
        accepted.expect("to accept");
        link
    }

    pub(crate) fn work<'a>(&self, link: LinkId, id: u64, operation: Operation<'a>) -> Work<'a> {
        Work {
            id: WorkId(id),
            link,
            flags: WorkFlags { signalled: true, fence: false, awaited: false },
            operation,
        }
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

    /// Sends a word. Returns false if the ring is full.
    pub(crate) fn try_send(&mut self, link: LinkId, word: u64) -> bool {
        let bytes = word.to_ne_bytes();
        let operation = Operation::Send { source: Source::Inline(&bytes), immediate: None };
        let mut work = self.work(link, 0, operation);
        work.flags.signalled = false;
        self.port.post(&[work]).accepted == 1
    }

    /// Writes a word to a peer's region and reads it back.
    pub(crate) fn works(&mut self, link: LinkId, region: RemoteRegionId) {
        let value = u64::from(link.0) << 32 | 0x5eed;
        self.region.arena.write(0, &value.to_ne_bytes()).expect("in bounds");
        let at = RemoteSlice { region, offset: 8 };
        let slices = [self.slice(0, 8)];
        let source = Source::Gather(&slices);
        let write = Operation::Write { source, to: at, immediate: None };
        assert_eq!(self.perform(link, write).status, CompletionStatus::Success);
        let slices = [self.slice(16, 8)];
        let read = Operation::Read { into: &slices, from: at };
        assert_eq!(self.perform(link, read).status, CompletionStatus::Success);
        assert_eq!(self.word(16), value);
    }
}

pub(crate) fn decode(reply: &[u8]) -> RegionToken {
    let token = reply.try_into().ok().and_then(RegionToken::decode);
    token.expect("the reply is a token")
}
