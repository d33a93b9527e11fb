//! A peer that violates every rule, by hand-written socket messages and stores to shared memory, loses
//! its own link; no other link notices.

use crate::connection::KnownPeer;
use crate::layout::{VERSION, bells, board, link};
use crate::mapping::{PAGE, PeerMappings, SharedMapping};
use crate::message::{ControlMessage, MESSAGE_BYTES_MAX, Terms};
use crate::options::SEND_BYTES_MAX;
use crate::ring::Geometry;
use crate::socket::{self, Received};
use crate::{ShmFabric, ShmOptions};
use farside_base::{
    Access, Completion, CompletionStatus, LinkId, LocalSlice, Operation, Receive, ReceiveQueueId,
    RegionKind, Source, Work, WorkFlags, WorkId,
};
use farside_fabric::{Fabric, FabricError, LinkEvent, Loss, Port, PortSpec, Region, RegionSpec};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const WATCHDOG: Duration = Duration::from_secs(60);
const GEOMETRY: Geometry = Geometry { slots: 16, bulk: 64 << 10 };

fn name() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("hostile-{}-{number}", std::process::id())
}

fn until<T>(what: &str, mut ready: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(value) = ready() {
            return value;
        }
        assert!(start.elapsed() < WATCHDOG, "timed out waiting for {what}");
        std::thread::yield_now();
    }
}

/// The port that is attacked, with a good peer that must not notice.
struct Victim {
    name: String,
    fabric: ShmFabric,
    port: Box<dyn Port>,
    region: Region,
    queue: ReceiveQueueId,
    good: Good,
}

struct Good {
    port: Box<dyn Port>,
    here: LinkId,
}

impl Victim {
    fn new() -> Self {
        let options =
            ShmOptions { control_timeout: Duration::from_millis(100), ..ShmOptions::DEFAULT };
        let options = ShmOptions { hello_timeout: Duration::from_secs(1), ..options };
        let fabric = ShmFabric::with_options(options).expect("a fabric");
        let spec = RegionSpec { bytes: 1 << 16, access: Access::ALL, kind: RegionKind::Memory };
        let region = fabric.register(&spec).expect("a region");
        let name = name();
        let listen = Some(name.clone());
        let mut port = fabric.open(&PortSpec { listen }).expect("a port");
        let queue = port.create_receive_queue(64).expect("a queue");
        let other = ShmFabric::new().expect("a fabric");
        let mut good = other.open(&PortSpec::default()).expect("a port");
        let own_queue = good.create_receive_queue(1).expect("a queue");
        let here = good.connect(&name, b"good", own_queue).expect("a listener");
        let mut victim =
            Self { name, fabric, port, region, queue, good: Good { port: good, here } };
        let LinkEvent::Requested { link, .. } = victim.event() else {
            panic!("the good peer asked")
        };
        victim.port.accept(link, b"", queue).expect("to accept");
        victim.good_works();
        victim
    }

    fn event(&mut self) -> LinkEvent {
        let mut events = Vec::new();
        until("an event", || {
            self.port.link_events(&mut events);
            assert_eq!(self.port.poll(&mut [Completion::BLANK]), 0);
            assert!(events.len() < 2, "{events:?}");
            events.pop()
        })
    }

    fn receive(&mut self) {
        let into = LocalSlice { region: self.region.id, offset: 0, bytes: 64 };
        let receive = Receive { id: WorkId(1), queue: self.queue, into };
        assert_eq!(self.port.post_receives(&[receive]).accepted, 1);
    }

    fn completion(&mut self) -> Completion {
        let mut out = [Completion::BLANK];
        until("a completion", || (self.port.poll(&mut out) == 1).then_some(out[0]))
    }

    /// A message of the good peer arrives, and there is no event.
    fn good_works(&mut self) {
        let mut events = Vec::new();
        until("the good peer to be connected", || {
            self.good.port.link_events(&mut events);
            self.receive_once()
        });
        assert!(!events.iter().any(|event| matches!(event, LinkEvent::Lost { .. })));
        self.port.link_events(&mut events);
        assert!(!events.iter().any(|event| matches!(event, LinkEvent::Lost { .. })));
    }

    fn receive_once(&mut self) -> Option<()> {
        let work = Work {
            id: WorkId(2),
            link: self.good.here,
            flags: WorkFlags::default(),
            operation: Operation::Send { source: Source::Inline(b"good"), immediate: None },
        };
        if self.good.port.post(&[work]).accepted == 0 {
            return None;
        }
        self.receive();
        let received = self.completion();
        assert_eq!((received.status, received.bytes), (CompletionStatus::Success, 4));
        Some(())
    }

    /// Only the fake's link ends; every other one continues.
    fn only_loses(&mut self, link: LinkId) {
        assert_eq!(self.event(), LinkEvent::Lost { link, loss: Loss::Ended });
        self.good_works();
    }
}

/// A peer made by hand.
struct Fake {
    socket: OwnedFd,
    memory: SharedMapping,
    board: SharedMapping,
    bells: SharedMapping,
}

impl Fake {
    fn connect(to: &str) -> Self {
        let memory =
            |bytes, peers| SharedMapping::new("farside-fake", bytes, peers).expect("memory");
        Self {
            socket: socket::connect(None, to).expect("a listener"),
            memory: memory(GEOMETRY.bytes(), PeerMappings::Read),
            board: memory(board::BYTES, PeerMappings::Read),
            bells: memory(bells::BYTES, PeerMappings::Write),
        }
    }

    fn terms() -> Terms {
        Terms { geometry: GEOMETRY, port: 0, barriers: true }
    }

    fn descriptors(&self) -> [BorrowedFd<'_>; 3] {
        [&self.memory, &self.board, &self.bells].map(|shared| shared.descriptor.as_fd())
    }

    fn send(&self, message: &ControlMessage<'_>, descriptors: &[BorrowedFd<'_>]) {
        let mut bytes = Vec::new();
        message.encode(&mut bytes);
        socket::send(self.socket.as_fd(), &bytes, descriptors).expect("to send");
    }

    /// Returns a regular link: the fake's side and the victim's number of it.
    fn linked(victim: &mut Victim) -> (Self, KnownPeer, LinkId) {
        let fake = Self::connect(&victim.name);
        let terms = Self::terms();
        let bytes = b"fake";
        fake.send(&ControlMessage::Hello { terms, bytes }, &fake.descriptors());
        let LinkEvent::Requested { link, hello } = victim.event() else { panic!("the fake asked") };
        assert_eq!(hello, bytes);
        victim.port.accept(link, b"", victim.queue).expect("to accept");
        let (message, descriptors) = fake.receive().expect("an answer");
        let Some(ControlMessage::Accept { terms, .. }) = ControlMessage::decode(&message) else {
            panic!("expected to be accepted")
        };
        let peer = KnownPeer::new(&terms, &descriptors).expect("right memory");
        (fake, peer, link)
    }

    /// Returns the next datagram; `None` when the victim has closed the connection.
    fn receive(&self) -> Option<(Vec<u8>, Vec<OwnedFd>)> {
        let mut buffer = Box::new([0; MESSAGE_BYTES_MAX]);
        until("a datagram", || match socket::receive(self.socket.as_fd(), &mut buffer) {
            Received::Nothing => None,
            Received::Ended => Some(None),
            Received::Datagram(length, descriptors) => {
                Some(Some((buffer[..length].to_vec(), descriptors)))
            }
        })
    }

    fn is_hung_up(&self) {
        assert!(self.receive().is_none(), "expected a closed connection");
    }

    fn forge(&self, offset: u64, value: u64) {
        let stored = self.memory.arena.store(offset, value, Ordering::Release);
        stored.expect("a word of the own memory");
    }
}

#[test]
fn greetings_that_are_none_are_hung_up_on() {
    let mut victim = Victim::new();
    let mut hello = Vec::new();
    let (terms, bytes) = (Fake::terms(), &b"x"[..]);
    ControlMessage::Hello { terms, bytes }.encode(&mut hello);
    let changed = |at: usize, byte: u8| {
        let mut hello = hello.clone();
        hello[at] = byte;
        hello
    };
    let mut import = Vec::new();
    let (question, token) = (1, victim.region.token);
    ControlMessage::Import { question, region: token.region, key: token.key }.encode(&mut import);
    let cases = [
        ("nothing", Vec::new()),
        ("a byte", vec![7]),
        ("cut", hello[..20].to_vec()),
        ("magic", changed(0, 0)),
        ("version", changed(4, VERSION as u8 + 1)),
        ("slots", changed(8, 3)),
        ("an import before hello", import),
        ("too long", [&hello[..], &[0; MESSAGE_BYTES_MAX]].concat()),
        ("junk", vec![0xa5; 4000]),
    ];
    for (what, bytes) in cases {
        let fake = Fake::connect(&victim.name);
        let sent = socket::send(fake.socket.as_fd(), &bytes, &fake.descriptors());
        sent.unwrap_or_else(|reason| panic!("{what}: {reason}"));
        fake.is_hung_up();
    }
    victim.good_works();
}

#[test]
fn wrong_descriptors_are_hung_up_on() {
    let mut victim = Victim::new();
    let terms = Fake::terms();
    let hello = ControlMessage::Hello { terms, bytes: b"" };
    let flags = rustix::fs::MemfdFlags::ALLOW_SEALING;
    let unsealed = rustix::fs::memfd_create("farside-fake", flags).expect("a memfd");
    rustix::fs::ftruncate(&unsealed, GEOMETRY.bytes()).expect("a size");
    let small = SharedMapping::new("farside-fake", PAGE, PeerMappings::Read).expect("memory");
    let fake = Fake::connect(&victim.name);
    let [memory, board, bells] = fake.descriptors();
    let (unsealed, small) = (unsealed.as_fd(), small.descriptor.as_fd());
    let cases: [(&str, Vec<BorrowedFd<'_>>); 7] = [
        ("none", vec![]),
        ("two", vec![memory, board]),
        ("memory that can shrink", vec![unsealed, board, bells]),
        ("small memory", vec![small, board, bells]),
        ("a small board", vec![memory, small, bells]),
        ("bells that cannot be rung", vec![memory, board, board]),
        ("a socket", vec![fake.socket.as_fd(), board, bells]),
    ];
    for (what, descriptors) in cases {
        let again = Fake::connect(&victim.name);
        let mut bytes = Vec::new();
        hello.encode(&mut bytes);
        let sent = socket::send(again.socket.as_fd(), &bytes, &descriptors);
        sent.unwrap_or_else(|reason| panic!("{what}: {reason}"));
        again.is_hung_up();
    }
    victim.good_works();
}

#[test]
fn junk_on_the_socket_ends_its_link_alone() {
    let mut victim = Victim::new();
    let mut import = Vec::new();
    ControlMessage::Imported { question: 77, grant: None }.encode(&mut import);
    let mut refusal = Vec::new();
    ControlMessage::Refuse { bytes: b"late" }.encode(&mut refusal);
    for bytes in [vec![], vec![1, 2, 3], import, refusal, vec![0; 300]] {
        let (fake, _, link) = Fake::linked(&mut victim);
        socket::send(fake.socket.as_fd(), &bytes, &[]).expect("to send");
        victim.only_loses(link);
        fake.is_hung_up();
        victim.port.close(link);
    }
}

#[test]
fn descriptors_where_none_belong_end_the_link() {
    let mut victim = Victim::new();
    let (fake, _, link) = Fake::linked(&mut victim);
    fake.send(&ControlMessage::Broken, &fake.descriptors()[..1]);
    victim.only_loses(link);
}

#[test]
fn junk_in_the_ring_ends_its_link_alone() {
    let mut victim = Victim::new();
    let long = u64::from(SEND_BYTES_MAX) + 1;
    for header in [u64::MAX, 7, 2, 3 << 30 | 1, long << 16 | 1, 2 << 30 | 9 << 16 | 1] {
        let (fake, _, link) = Fake::linked(&mut victim);
        victim.receive();
        fake.forge(link::SLOTS, header);
        victim.only_loses(link);
        victim.port.close(link);
        // The receive that it did not take is available to others; take it out again.
        victim.receive_once().expect("the good peer");
    }
}

#[test]
fn absurd_immediate_length_ends_its_link_alone() {
    let mut victim = Victim::new();
    let (fake, _, link) = Fake::linked(&mut victim);
    victim.receive();
    fake.forge(link::SLOTS + 8, u64::MAX);
    fake.forge(link::SLOTS, 2 << 30 | 8 << 16 | 1);
    victim.only_loses(link);
}

#[test]
fn absurd_counts_end_their_link_alone() {
    let mut victim = Victim::new();
    let (fake, _, link) = Fake::linked(&mut victim);
    fake.forge(link::SLOTS_TAKEN, u64::MAX / 2);
    let work = Work {
        id: WorkId(3),
        link,
        flags: WorkFlags::default(),
        operation: Operation::Send { source: Source::Inline(&[]), immediate: None },
    };
    // The counts are checked when the ring seems full.
    while victim.port.post(&[work]).accepted == 1 {
        let mut out = [Completion::BLANK];
        if victim.port.poll(&mut out) == 1 {
            assert_eq!(out[0].status, CompletionStatus::PeerLost);
            break;
        }
    }
    assert_eq!(victim.port.post(&[work]).accepted, 1);
    assert_eq!(victim.completion().status, CompletionStatus::Flushed);
    victim.good_works();
}

#[test]
fn a_spoilt_bell_ends_sleep_early_and_nothing_else() {
    let mut victim = Victim::new();
    let (_fake, peer, _) = Fake::linked(&mut victim);
    let waiter = victim.port.waiter();
    assert!(!victim.port.arm());
    // A value that a faulty peer may leave in the word instead of a ring.
    crate::bell::spoil(&peer.bell, 0xdead_beef);
    assert!(waiter.wait(Some(WATCHDOG)));
    victim.port.disarm();
    victim.good_works();
    assert!(!victim.port.arm());
    assert!(!waiter.wait(Some(Duration::from_millis(1))), "it sleeps again");
    victim.port.disarm();
    victim.good_works();
}

#[test]
fn imports_need_the_right_key_and_an_accepted_link() {
    let mut victim = Victim::new();
    let token = victim.region.token;
    let ask = |fake: &Fake, region, key| {
        let question = 5;
        fake.send(&ControlMessage::Import { question, region, key }, &[]);
        fake.receive()
    };
    let (fake, _, _link) = Fake::linked(&mut victim);
    let wrong = farside_base::RemoteKey(token.key.0 ^ 1);
    let unknown = farside_base::RegionId(token.region.0 ^ 1);
    for (region, key, given) in [
        (token.region, wrong, 0),
        (token.region, farside_base::RemoteKey(0), 0),
        (unknown, token.key, 0),
        (farside_base::RegionId(u32::MAX), token.key, 0),
        (token.region, token.key, 1),
    ] {
        let (_, descriptors) = ask(&fake, region, key).expect("an answer");
        assert_eq!(descriptors.len(), given);
    }
    let early = Fake::connect(&victim.name);
    let (terms, bytes) = (Fake::terms(), &b""[..]);
    early.send(&ControlMessage::Hello { terms, bytes }, &early.descriptors());
    let LinkEvent::Requested { link, .. } = victim.event() else { panic!("the fake asked") };
    assert!(ask(&early, token.region, token.key).is_none(), "the link was not accepted");
    victim.only_loses(link);
}

/// The description of a region by its owner, which the victim imports.
struct Lie {
    what: &'static str,
    /// The kind, as a byte of the wire.
    kind: u8,
    /// Bytes beyond the size of the memory.
    excess: u64,
    /// Bytes that the victim then may reach; `None` when it must not get the region.
    reaches: Option<u64>,
}

/// Imports a region of the fake, which answers with a lie. Returns how many bytes the victim can then
/// READ, found from the end.
fn import_from_liar(victim: &mut Victim, fake: &Fake, link: LinkId, lie: &Lie) -> Option<u64> {
    let memory = SharedMapping::new("farside-fake", PAGE, PeerMappings::Write).expect("memory");
    let (region, key) = (farside_base::RegionId(1), farside_base::RemoteKey(77));
    let published = fake.board.arena.store(board::key(0), key.0, Ordering::SeqCst);
    published.expect("a word of the own board");
    let token = farside_base::RegionToken { region, key, bytes: 1 << 40, access: Access::ALL };
    let imported = std::thread::scope(|threads| {
        threads.spawn(|| {
            let (message, _) = fake.receive().expect("a question");
            let Some(ControlMessage::Import { question, .. }) = ControlMessage::decode(&message)
            else {
                panic!("expected an import")
            };
            let (bytes, access) = (PAGE + lie.excess, Access::ALL);
            let kind = RegionKind::Memory;
            let grant = Some(crate::message::Grant { bytes, kind, access, place: 0 });
            let mut bytes = Vec::new();
            ControlMessage::Imported { question, grant }.encode(&mut bytes);
            bytes[25] = lie.kind;
            let descriptors = [memory.descriptor.as_fd()];
            socket::send(fake.socket.as_fd(), &bytes, &descriptors).expect("to send");
        });
        victim.port.import(link, &token)
    });
    let region = imported.ok()?;
    let can_read = |victim: &mut Victim, offset: u64| {
        let slices = [LocalSlice { region: victim.region.id, offset: 0, bytes: 8 }];
        let from = farside_base::RemoteSlice { region, offset };
        let operation = Operation::Read { into: &slices, from };
        let flags = WorkFlags { signalled: true, fence: false, awaited: false };
        let work = Work { id: WorkId(4), link, flags, operation };
        assert_eq!(victim.port.post(&[work]).accepted, 1);
        victim.completion().status == CompletionStatus::Success
    };
    let mut reached = 0;
    // The first refusal ends the link.
    while can_read(victim, reached) {
        reached += PAGE;
    }
    Some(reached)
}

#[test]
fn wrong_region_kind_is_rejected_or_harmless() {
    let mut victim = Victim::new();
    for lie in [
        Lie { what: "the truth", kind: 0, excess: 0, reaches: Some(PAGE) },
        Lie { what: "mirrored", kind: 1, excess: 0, reaches: Some(2 * PAGE) },
        Lie { what: "at the adapter", kind: 2, excess: 0, reaches: Some(PAGE) },
        Lie { what: "both turns as bytes", kind: 1, excess: PAGE, reaches: None },
        Lie { what: "a turn of broken pages", kind: 1, excess: 8, reaches: None },
        Lie { what: "absurd bytes", kind: 1, excess: u64::MAX / 2, reaches: None },
        Lie { what: "sparse", kind: 3, excess: 0, reaches: Some(PAGE) },
        Lie { what: "no kind", kind: 4, excess: 0, reaches: None },
        Lie { what: "no kind at all", kind: 255, excess: 0, reaches: None },
    ] {
        let (fake, _, link) = Fake::linked(&mut victim);
        let reached = import_from_liar(&mut victim, &fake, link, &lie);
        assert_eq!(reached, lie.reaches, "{}", lie.what);
        if lie.kind > 3 {
            victim.only_loses(link);
        }
        victim.port.close(link);
        victim.good_works();
    }
}

/// A peer that is stopped within a request cannot block the owner's deregistration, which succeeds
/// after the request has ended.
#[test]
fn deregistration_does_not_wait_for_ever() {
    let mut victim = Victim::new();
    let token = victim.region.token;
    let (fake, _, _) = Fake::linked(&mut victim);
    let question = 1;
    fake.send(&ControlMessage::Import { question, region: token.region, key: token.key }, &[]);
    assert_eq!(fake.receive().expect("an answer").1.len(), 1);
    let at_work = |count| {
        let stored = fake.board.arena.store(board::in_flight(0), count, Ordering::SeqCst);
        stored.expect("a word of the own board");
    };
    at_work(1);
    for _ in 0..2 {
        match victim.fabric.deregister(token.region) {
            Err(FabricError::System(_, reason)) => {
                assert_eq!(reason.kind(), std::io::ErrorKind::TimedOut);
            }
            other => panic!("the peer is still at work: {other:?}"),
        }
    }
    at_work(2);
    victim.fabric.deregister(token.region).expect("no request is in flight");
    let again = victim.fabric.deregister(token.region);
    assert!(matches!(again, Err(FabricError::Unknown(_))), "{again:?}");
}

/// A peer that is stopped within a request does not delay a close; the memory that it may still write
/// is known until it has ended that request.
#[test]
fn request_in_progress_may_land_after_a_close_until_it_has_ended() {
    let mut victim = Victim::new();
    let (fake, _, link) = Fake::linked(&mut victim);
    let (_idle, _, other) = Fake::linked(&mut victim);
    let at_work = |count| {
        let stored = fake.board.arena.store(board::in_flight(0), count, Ordering::SeqCst);
        stored.expect("a word of the own board");
    };
    at_work(1);
    assert!(!victim.port.may_land(link), "it is not closed");
    victim.port.close(other);
    victim.port.close(link);
    assert!(!victim.port.may_land(other), "its port is not at work");
    assert!(victim.port.may_land(link));
    assert!(victim.port.may_land(link));
    at_work(2);
    assert!(!victim.port.may_land(link));
    at_work(3);
    assert!(!victim.port.may_land(link), "that is of another link");
}

/// A port with a pending import serves its other links.
#[test]
fn import_that_is_not_answered_does_not_wait_and_ends() {
    let mut victim = Victim::new();
    let (fake, _, link) = Fake::linked(&mut victim);
    let token = victim.region.token;
    assert_eq!(victim.port.try_import(link, &token).map_err(|_| ()), Ok(None));
    assert!(fake.receive().is_some(), "it is asked once");
    let ended = until("the import to end", || victim.port.try_import(link, &token).err());
    assert!(matches!(ended, FabricError::System(..)), "{ended:?}");
}

#[test]
fn too_long_names_and_hellos_are_refused() {
    let mut victim = Victim::new();
    let long = "x".repeat(81);
    let listen = Some(long.clone());
    let opened = victim.fabric.open(&PortSpec { listen }).map(|_| ());
    assert!(matches!(opened, Err(FabricError::Limit(_))), "{opened:?}");
    let connected = victim.port.connect(&long, b"", victim.queue);
    assert!(matches!(connected, Err(FabricError::Limit(_))), "{connected:?}");
    let hello = vec![0; 16 * 1024 + 1];
    let connected = victim.port.connect(&victim.name, &hello, victim.queue);
    assert!(matches!(connected, Err(FabricError::Limit("hello"))), "{connected:?}");
    let link = victim.port.connect(&victim.name, &hello[1..], victim.queue);
    link.expect("the longest hello");
    let LinkEvent::Requested { hello: got, .. } = victim.event() else { panic!("asked by itself") };
    assert_eq!(got.len(), 16 * 1024);
}

/// Returns whether the victim has closed a connection.
fn is_closed(silent: &OwnedFd) -> bool {
    let mut buffer = Box::new([0; MESSAGE_BYTES_MAX]);
    matches!(socket::receive(silent.as_fd(), &mut buffer), Received::Ended)
}

/// Connections that send nothing delay neither joins nor imports, and are closed after their deadline.
#[test]
fn silent_connections_time_out_and_delay_no_peer() {
    let mut victim = Victim::new();
    let connect = || socket::connect(None, &victim.name);
    let crowd: Vec<_> = (0..400).map(|_| connect().expect("a listener")).collect();
    for _ in 0..3 {
        let (fake, _, link) = Fake::linked(&mut victim);
        let (question, token) = (1, victim.region.token);
        fake.send(&ControlMessage::Import { question, region: token.region, key: token.key }, &[]);
        assert_eq!(fake.receive().expect("an answer").1.len(), 1);
        victim.port.close(link);
    }
    // This process has a share of entries, and its oldest connections were dropped for its newest.
    assert!(is_closed(&crowd[0]));
    until("the deadline of all", || crowd.iter().all(is_closed).then_some(()));
    victim.good_works();
    let (_fake, _, link) = Fake::linked(&mut victim);
    victim.port.close(link);
}

/// Threads that connect in a loop and send nothing, while others join and import.
#[test]
fn connection_flood_locks_no_peer_out() {
    let mut victim = Victim::new();
    let (name, stop) = (victim.name.clone(), std::sync::atomic::AtomicBool::new(false));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    drop(socket::connect(None, &name));
                }
            });
        }
        for _ in 0..20 {
            let (fake, _, link) = Fake::linked(&mut victim);
            let (question, token) = (1, victim.region.token);
            fake.send(
                &ControlMessage::Import { question, region: token.region, key: token.key },
                &[],
            );
            assert_eq!(fake.receive().expect("an answer").1.len(), 1);
            victim.port.close(link);
        }
        stop.store(true, Ordering::Relaxed);
    });
    victim.good_works();
}

/// A connection with a valid hello is not displaced, however many follow it.
#[test]
fn a_hello_that_has_come_is_never_displaced() {
    let mut victim = Victim::new();
    let fakes: Vec<_> = (0..100)
        .map(|_| {
            let fake = Fake::connect(&victim.name);
            let (terms, bytes) = (Fake::terms(), &b""[..]);
            fake.send(&ControlMessage::Hello { terms, bytes }, &fake.descriptors());
            let silent: Vec<_> = (0..5).map(|_| socket::connect(None, &victim.name)).collect();
            (fake, silent)
        })
        .collect();
    let mut events = Vec::new();
    until("all requests", || {
        victim.port.link_events(&mut events);
        (events.len() == fakes.len()).then_some(())
    });
    for event in events {
        let LinkEvent::Requested { link, .. } = event else { panic!("each has asked: {event:?}") };
        victim.port.accept(link, b"", victim.queue).expect("it waits");
    }
    for (fake, _) in &fakes {
        assert!(fake.receive().is_some(), "accepted");
    }
}
