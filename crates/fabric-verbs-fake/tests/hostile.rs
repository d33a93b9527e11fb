//! Untrusted and malicious peers on the control stream: whatever they send, the fabric answers or
//! closes the stream, survives, and its other links continue. With the fake library, so that it runs
//! everywhere.

use farside_base::{
    Access, Completion, CompletionStatus, LinkId, LocalSlice, Operation, Random, ReceiveQueueId,
    RegionKind, RemoteRegionId, RemoteSlice, Source, Work, WorkFlags, WorkId,
};
use farside_bootstrap::{
    ClusterKey, Endpoint, HandshakeLimits, HostAddress, Identity, Protect, Security, Stream,
    Transfer,
};
use farside_fabric::{Fabric, LinkEvent, NotReached, Port, PortSpec, Region, RegionSpec};
use farside_fabric_verbs::{OpenError, Options, VerbsFabric};
use farside_fabric_verbs_fake::Fake;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpStream};
use std::time::{Duration, Instant};

/// Longer than everything that is waited for, on however slow a machine.
const WATCHDOG: Duration = Duration::from_secs(60);

fn options(security: Security) -> Options {
    let mut options = Options::new(security);
    options.library = Fake::path().expect("the library").to_string_lossy().into_owned();
    options.listen = Some("127.0.0.1:0".parse::<Endpoint>().expect("an endpoint"));
    options.lease = Duration::from_millis(500);
    options
}

struct VictimNode {
    fabric: VerbsFabric,
    port: Box<dyn Port>,
    queue: ReceiveQueueId,
    region: Region,
    events: Vec<LinkEvent>,
}

impl VictimNode {
    fn new(security: Security) -> Self {
        Self::with(options(security))
    }

    fn with(options: Options) -> Self {
        let fabric = VerbsFabric::open(options).expect("the fake device");
        let spec = PortSpec { listen: Some("victim".to_owned()) };
        let mut port = fabric.open(&spec).expect("a port");
        let queue = port.create_receive_queue(16).expect("a queue");
        let spec = RegionSpec { bytes: 4096, access: Access::ALL, kind: RegionKind::Memory };
        let region = fabric.register(&spec).expect("a region");
        Self { fabric, port, queue, region, events: Vec::new() }
    }

    fn event(&mut self) -> LinkEvent {
        let start = Instant::now();
        while self.events.is_empty() {
            assert!(start.elapsed() < WATCHDOG, "no link event");
            self.port.link_events(&mut self.events);
            std::thread::yield_now();
        }
        self.events.remove(0)
    }

    fn place(&self) -> std::net::SocketAddr {
        let endpoint = self.fabric.listening().expect("it listens");
        endpoint.resolve().expect("a number")[0]
    }
}

/// A link that must not notice anything.
struct Good {
    near: VictimNode,
    link: LinkId,
    region: RemoteRegionId,
}

impl Good {
    fn new(victim: &mut VictimNode, security: Security) -> Self {
        let mut near = VictimNode::new(security);
        let address = victim.port.address().expect("a listener");
        let link = near.port.connect(&address, b"", near.queue).expect("a call");
        let LinkEvent::Requested { link: there, .. } = victim.event() else { panic!("no request") };
        victim.port.accept(there, b"", victim.queue).expect("to accept");
        assert!(matches!(near.event(), LinkEvent::Connected { .. }));
        let region = near.port.import(link, &victim.region.token).expect("a region");
        Self { near, link, region }
    }

    fn works(&mut self) {
        let slices = [LocalSlice { region: self.near.region.id, offset: 0, bytes: 8 }];
        let to = RemoteSlice { region: self.region, offset: 0 };
        let operation = Operation::Write { source: Source::Gather(&slices), to, immediate: None };
        let flags = WorkFlags { signalled: true, ..WorkFlags::default() };
        let work = [Work { id: WorkId(1), link: self.link, flags, operation }];
        assert_eq!(self.near.port.post(&work).accepted, 1);
        let (start, mut out) = (Instant::now(), [Completion::BLANK]);
        while self.near.port.poll(&mut out) == 0 {
            assert!(start.elapsed() < WATCHDOG, "no completion");
        }
        assert_eq!(
            out[0].status,
            CompletionStatus::Success,
            "{:?}",
            self.near.port.trouble(self.link)
        );
    }
}

/// Reads until the other side hangs up.
fn until_hung_up(mut socket: TcpStream) {
    socket.set_read_timeout(Some(WATCHDOG)).expect("a time limit");
    let mut sink = [0; 4096];
    loop {
        match socket.read(&mut sink) {
            Ok(0) => return,
            Ok(_) => {}
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                panic!("the connection was never closed")
            }
            Err(_) => return,
        }
    }
}

/// Returns a stream that has passed the handshake, for hand-written frames.
fn stream(victim: &VictimNode, security: &Security) -> Stream<TcpStream> {
    let socket = TcpStream::connect(victim.place()).expect("a listener");
    stream_by(socket, victim, security)
}

/// Returns the same from a loopback address of its own, as if of another host.
fn stream_of_another_host(victim: &VictimNode, security: &Security) -> Stream<TcpStream> {
    let socket = rustix::net::socket(
        rustix::net::AddressFamily::INET,
        rustix::net::SocketType::STREAM,
        None,
    )
    .expect("a socket");
    let from = SocketAddrV4::new(Ipv4Addr::new(127, 240, 0, 9), 0);
    rustix::net::bind(&socket, &from).expect("an address of the loop");
    rustix::net::connect(&socket, &victim.place()).expect("a listener");
    stream_by(TcpStream::from(socket), victim, security)
}

fn stream_by(socket: TcpStream, victim: &VictimNode, security: &Security) -> Stream<TcpStream> {
    socket.set_nonblocking(true).expect("a socket");
    let host = HostAddress::Ip(victim.place().ip());
    let mut stream =
        Stream::connect(socket, security, &host, HandshakeLimits::DEFAULT).expect("a stream");
    while !stream.advance().expect("a handshake") {
        std::thread::yield_now();
    }
    stream
}

fn say(stream: &mut Stream<TcpStream>, mut bytes: &[u8]) -> bool {
    let start = Instant::now();
    while !bytes.is_empty() && start.elapsed() < WATCHDOG {
        match stream.write(bytes) {
            Ok(Transfer::Moved(count)) => bytes = &bytes[count..],
            Ok(_) => std::thread::yield_now(),
            Err(_) => return false,
        }
    }
    stream.flush().is_ok()
}

fn hung_up(stream: &mut Stream<TcpStream>) {
    let (start, mut sink) = (Instant::now(), [0; 4096]);
    loop {
        assert!(start.elapsed() < WATCHDOG, "the connection was never closed");
        match stream.read(&mut sink) {
            Ok(Transfer::Ended) | Err(_) => return,
            Ok(Transfer::Blocked) => std::thread::yield_now(),
            Ok(Transfer::Moved(_)) => {}
        }
    }
}

fn frame(kind: u8, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len() + 1).expect("short");
    [&length.to_le_bytes()[..], &[kind], body].concat()
}

/// Returns a `Connect` frame for the victim's port, with the number of a queue pair that does not exist.
fn connect_frame(name: &str) -> Vec<u8> {
    let mut body = Vec::new();
    body.extend(2_u16.to_le_bytes());
    body.extend(77_u64.to_le_bytes());
    body.extend(0x00ab_cdef_u32.to_le_bytes());
    body.extend(1_u32.to_le_bytes());
    body.extend([0; 16]);
    body.extend(0_u16.to_le_bytes());
    body.extend([3, 2, 1, 1]);
    body.extend(1000_u32.to_le_bytes());
    body.extend([0; 13]);
    body.extend(u16::try_from(name.len()).expect("short").to_le_bytes());
    body.extend(name.as_bytes());
    body.extend(0_u16.to_le_bytes());
    frame(1, &body)
}

#[test]
fn strangers_are_hung_up_on_and_others_go_on() {
    let mut victim = VictimNode::new(Security::open());
    let mut good = Good::new(&mut victim, Security::open());
    let mut random = Random::new(0x5eed);
    for round in 0..40 {
        let mut socket = TcpStream::connect(victim.place()).expect("a listener");
        let junk: Vec<u8> = (0..1 + round * 20).map(|_| random.byte()).collect();
        // It may have closed the connection before all is written.
        let _ = socket.write_all(&junk);
        if junk.len() >= 16 {
            until_hung_up(socket);
        }
        good.works();
    }
}

#[test]
fn frames_out_of_turn_and_impossible_ones_end_their_stream_alone() {
    let security = Security::open();
    let mut victim = VictimNode::new(security.clone());
    let mut good = Good::new(&mut victim, security.clone());
    let token = victim.region.token.encode();
    let mut lies: Vec<Vec<u8>> = (2..=9).map(|kind| frame(kind, &[])).collect();
    lies.push(frame(8, &[&7_u32.to_le_bytes()[..], &token].concat()));
    lies.push(frame(0, &[]));
    lies.push(frame(200, &[1, 2, 3]));
    lies.push(u32::MAX.to_le_bytes().to_vec());
    lies.push(0_u32.to_le_bytes().to_vec());
    lies.push([connect_frame("victim"), vec![0xff; 64]].concat());
    lies.push(
        [connect_frame("victim"), frame(8, &[&7_u32.to_le_bytes()[..], &token].concat())].concat(),
    );
    for lie in &lies {
        let mut liar = stream(&victim, &security);
        say(&mut liar, lie);
        hung_up(&mut liar);
        good.works();
    }
    // Peers that were reported to the program before are lost again.
    victim.port.link_events(&mut victim.events);
    for event in std::mem::take(&mut victim.events) {
        let link = event.link();
        assert!(matches!(event, LinkEvent::Requested { .. } | LinkEvent::Lost { .. }), "{event:?}");
        victim.port.close(link);
    }
    good.works();
}

#[test]
fn random_frames_never_end_the_fabric() {
    let security = Security::open();
    let mut victim = VictimNode::new(security.clone());
    let mut good = Good::new(&mut victim, security.clone());
    let mut random = Random::new(0xfeed);
    for _ in 0..150 {
        let mut liar = stream(&victim, &security);
        let mut bytes = connect_frame("victim");
        let at = usize::try_from(random.word()).expect("64 bits") % bytes.len();
        bytes[at] ^= random.byte();
        let kind = (random.word() % 12).to_le_bytes()[0];
        let junk: Vec<u8> = (0..random.word() % 40).map(|_| random.byte()).collect();
        bytes.extend(frame(kind, &junk));
        say(&mut liar, &bytes);
        drop(liar);
        victim.port.link_events(&mut victim.events);
        for event in std::mem::take(&mut victim.events) {
            if matches!(event, LinkEvent::Lost { .. }) {
                victim.port.close(event.link());
            }
        }
    }
    good.works();
}

#[test]
fn half_handshakes_are_bounded_and_time_out() {
    let mut victim = VictimNode::new(Security::open());
    let mut good = Good::new(&mut victim, Security::open());
    let silent: Vec<_> = (0..400).filter_map(|_| TcpStream::connect(victim.place()).ok()).collect();
    good.works();
    // Those over the limit are dropped at once; the rest after their timeout.
    let mut dropped = 0;
    for socket in silent {
        until_hung_up(socket);
        dropped += 1;
    }
    assert!(dropped > 256);
    good.works();
    let _again = Good::new(&mut victim, Security::open());
}

/// One host takes its limit of links and keeps them, and others still get theirs.
#[test]
fn links_of_one_host_are_bounded() {
    let mut victim =
        VictimNode::with(Options { links_per_host_max: 4, ..options(Security::open()) });
    let mut good = Good::new(&mut victim, Security::open());
    let mut greedy = VictimNode::new(Security::open());
    let address = victim.port.address().expect("a listener");
    let mut links = Vec::new();
    while links.len() < 3 {
        let link = greedy.port.connect(&address, b"", greedy.queue).expect("a call");
        let LinkEvent::Requested { link: there, .. } = victim.event() else { panic!("no request") };
        victim.port.accept(there, b"", victim.queue).expect("to accept");
        assert!(matches!(greedy.event(), LinkEvent::Connected { .. }));
        links.push((link, there));
    }
    for _ in 0..20 {
        greedy.port.connect(&address, b"", greedy.queue).expect("a call");
        match greedy.event() {
            LinkEvent::Refused { reason, .. } => assert!(reason.ends_with(b"links_per_host_max")),
            other => panic!("more than its share: {other:?}"),
        }
    }
    good.works();
    let mut other = stream_of_another_host(&victim, &Security::open());
    assert!(say(&mut other, &connect_frame("victim")));
    assert!(
        matches!(victim.event(), LinkEvent::Requested { .. }),
        "another host has its own share"
    );
    // A closed link frees its share.
    let (here, there) = links[0];
    greedy.port.close(here);
    while !matches!(victim.event(), LinkEvent::Lost { link, .. } if link == there) {}
    victim.port.close(there);
    greedy.port.connect(&address, b"", greedy.queue).expect("a call");
    assert!(matches!(victim.event(), LinkEvent::Requested { .. }));
    good.works();
}

#[test]
fn a_caller_without_the_key_is_not_permitted() {
    let key = |byte: &str| {
        let key = ClusterKey::from_hex(&byte.repeat(32)).expect("64 digits");
        let identity = Identity::cluster_key(&key).expect("a key");
        Security::new(identity, Protect::Handshake).expect("a combination")
    };
    let mut victim = VictimNode::new(key("5e"));
    let mut good = Good::new(&mut victim, key("5e"));
    let address = victim.port.address().expect("a listener");
    for security in [key("5f"), Security::open()] {
        let mut other = VictimNode::new(security);
        let link = other.port.connect(&address, b"", other.queue).expect("a call");
        let event = other.event();
        let refused = LinkEvent::NotReached { link, why: NotReached::NotPermitted };
        assert_eq!(event, refused, "{:?}", other.port.trouble(link));
        assert!(other.port.trouble(link).is_some_and(|words| !words.is_empty()));
        good.works();
    }
    victim.port.link_events(&mut victim.events);
    assert_eq!(victim.events, [], "the program hears nothing of strangers");
}

#[test]
fn data_that_must_be_protected_is_refused_before_anything_is_opened() {
    let key = ClusterKey::from_hex(&"5e".repeat(32)).expect("64 digits");
    let identity = Identity::cluster_key(&key).expect("a key");
    let everything = Security::new(identity, Protect::Everything).expect("a combination");
    let refused = VerbsFabric::open(options(everything));
    assert!(matches!(refused, Err(OpenError::CannotProtect)), "{refused:?}");
}

#[test]
fn an_idle_link_lives_on_for_many_leases() {
    let mut victim = VictimNode::new(Security::open());
    let mut good = Good::new(&mut victim, Security::open());
    let start = Instant::now();
    let waiter = good.near.port.waiter();
    while start.elapsed() < Duration::from_secs(2) {
        good.near.port.arm();
        waiter.wait(Some(Duration::from_millis(100)));
        good.near.port.disarm();
        good.near.port.link_events(&mut good.near.events);
        victim.port.link_events(&mut victim.events);
    }
    assert_eq!((&good.near.events[..], &victim.events[..]), (&[][..], &[][..]));
    good.works();
}
