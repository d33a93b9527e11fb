//! Malicious peers lose their own links, hold few resources for a short time, and disturb no other
//! link. Their frames are built by hand here, by the diagrams in `src/wire.rs`.

mod common;

use common::{TestNode, free_endpoint, node, node_at};
use farside_base::{CompletionStatus, LinkId, Operation, Random, RemoteRegionId, RemoteSlice};
use farside_bootstrap::{ClusterKey, Identity, Protect, Security};
use farside_fabric::{Fabric, LinkEvent, Loss};
use farside_fabric_tcp::{TcpLimits, TcpOptions};
use farside_testkit::WATCHDOG;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpStream};
use std::time::{Duration, Instant};

const OPENING: &[u8; 16] = b"farside\n\x01\0\0\0\0\0\0\0";
const WRITE: u8 = 1;
const READ: u8 = 2;
const ATOMIC: u8 = 3;
const SEND: u8 = 6;
const ACKNOWLEDGE: u8 = 16;
const BYTES: u8 = 17;
const WORD: u8 = 18;
const REFUSED: u8 = 19;
const NOT_READY: u8 = 20;
const GREETING: u8 = 32;
const HELLO: u8 = 33;
const ACCEPTED: u8 = 35;
const CONFIRM: u8 = 37;
const ALIVE: u8 = 38;

fn options() -> TcpOptions {
    TcpOptions {
        lease: Duration::from_millis(400),
        connect_timeout: Duration::from_millis(600),
        request_timeout: Duration::from_millis(800),
        ..TcpOptions::default()
    }
}

fn short(kind: u8, code: u8, bytes: u32, sequence: u32, value: u64) -> Vec<u8> {
    let mut out = vec![kind, code, 0, 0];
    for number in [bytes, sequence, u32::MAX] {
        out.extend(number.to_le_bytes());
    }
    out.extend(value.to_le_bytes());
    out
}

/// A request in which any field can be wrong.
#[derive(Clone, Copy)]
struct Ask {
    kind: u8,
    bytes: u32,
    sequence: u32,
    acknowledged: u32,
    region: u32,
    key: u64,
    offset: u64,
}

impl Ask {
    fn encode(&self) -> Vec<u8> {
        let mut out = vec![self.kind, 2, 0, 0];
        for number in [self.bytes, self.sequence, self.acknowledged, self.region, 0] {
            out.extend(number.to_le_bytes());
        }
        for number in [self.key, self.offset, 0] {
            out.extend(number.to_le_bytes());
        }
        if self.kind == ATOMIC {
            out.extend([0; 32]);
        }
        out
    }
}

/// A peer that sends arbitrary bytes.
struct Fake(TcpStream);

impl Fake {
    /// Returns a connection from an address of its own.
    fn new(to: &str, number: u8) -> Self {
        let to: SocketAddr = to.parse().expect("an address");
        let family = rustix::net::AddressFamily::INET;
        let socket = rustix::net::socket(family, rustix::net::SocketType::STREAM, None);
        let socket = socket.expect("a socket");
        let from = SocketAddrV4::new(Ipv4Addr::new(127, 240, 0, number), 0);
        rustix::net::bind(&socket, &from).expect("an address of the loop");
        rustix::net::connect(&socket, &to).expect("a listener");
        let socket = TcpStream::from(socket);
        socket.set_read_timeout(Some(WATCHDOG)).expect("a timeout");
        Self(socket)
    }

    fn say(&mut self, bytes: &[u8]) {
        // The victim may have closed the connection already, as expected.
        let _ = self.0.write_all(bytes);
    }

    fn hear(&mut self, count: usize) -> Option<Vec<u8>> {
        let mut out = vec![0; count];
        self.0.read_exact(&mut out).ok().map(|()| out)
    }

    /// Receives this many bytes, skipping keepalives.
    fn hear_more_than_life(&mut self, count: usize) -> Option<Vec<u8>> {
        loop {
            let mut heard = self.hear(24)?;
            if heard[0] != ALIVE {
                heard.extend(self.hear(count - 24)?);
                return Some(heard);
            }
        }
    }

    /// Runs the protocol up to the greeting. Returns its challenge.
    fn open(&mut self) -> u64 {
        self.say(OPENING);
        let heard = self.hear(16 + 24 + 8).expect("an opening and a greeting");
        assert_eq!((&heard[..16], heard[16]), (&OPENING[..], GREETING));
        u64::from_le_bytes(heard[32..40].try_into().expect("eight bytes"))
    }

    fn hello(&mut self, challenge: u64) {
        let mut payload = vec![1, 0, b'p'];
        payload.extend(b"let me in");
        self.say(&short(HELLO, 0, payload.len() as u32, 0, challenge));
        self.say(&payload);
    }

    /// Waits until the victim has closed the connection. Returns what it sent until then.
    fn hung_up(&mut self) -> Vec<u8> {
        let mut heard = Vec::new();
        let mut out = [0; 4096];
        loop {
            match self.0.read(&mut out) {
                Ok(0) => return heard,
                Ok(count) => heard.extend(&out[..count]),
                Err(reason) if reason.kind() == ErrorKind::WouldBlock => {
                    panic!("the victim still listens");
                }
                Err(_) => return heard,
            }
        }
    }
}

/// A victim with a good peer that must not notice anything.
struct Victim {
    node: TestNode,
    listen: String,
    good: TestNode,
    link: LinkId,
    region: RemoteRegionId,
}

impl Victim {
    fn new(options: TcpOptions) -> Self {
        let listen = free_endpoint().to_string();
        let security = options.security.clone();
        let mut node = node_at(&listen, options);
        let mut good = common::node(TcpOptions { security, ..self::options() });
        let link = good.port.connect(&format!("{listen}/p"), b"", good.queue).expect("an address");
        node.accept();
        let event = good.event();
        assert!(matches!(event, LinkEvent::Connected { .. }), "{event:?}");
        let region = good.port.import(link, &node.region.token).expect("a region");
        Self { node, listen, good, link, region }
    }

    fn good_works(&mut self) {
        self.good.works(self.link, self.region);
        assert!(self.good.try_send(self.link, 5));
        assert_eq!(self.node.message(), 5);
        assert_eq!(self.good.events, []);
    }

    /// Returns a hostile peer with a link of its own.
    fn linked(&mut self, number: u8) -> (Fake, LinkId) {
        let mut fake = Fake::new(&self.listen, number);
        let challenge = fake.open();
        fake.hello(challenge);
        let link = self.node.accept();
        let reply = 24 + self.node.region.token.encode().len();
        let accepted = fake.hear_more_than_life(reply).expect("to be accepted");
        assert_eq!(accepted[0], ACCEPTED);
        (fake, link)
    }

    /// Asserts that only the fake's link ends.
    fn only_loses(&mut self, link: LinkId, what: &str) {
        let event = self.node.event();
        assert!(matches!(event, LinkEvent::Lost { link: lost, .. } if lost == link), "{what}");
        self.node.port.close(link);
        assert_eq!(self.node.events, [], "{what}");
        assert_eq!(self.node.completions, [], "{what}");
    }

    fn ask(&self, kind: u8) -> Ask {
        let token = self.node.region.token;
        Ask {
            kind,
            bytes: if matches!(kind, WRITE | READ | SEND) { 8 } else { 0 },
            sequence: 0,
            acknowledged: u32::MAX,
            region: token.region.0,
            key: token.key.0,
            offset: 4096,
        }
    }
}

#[test]
fn protocol_violation_ends_its_own_link() {
    let mut victim = Victim::new(options());
    let write = victim.ask(WRITE);
    let longer = |kind, bytes| Ask { bytes, ..victim.ask(kind) }.encode();
    let mut odd = write.encode();
    odd[2] = 1;
    let cases: Vec<(&str, Vec<u8>)> = vec![
        ("sequence ahead", Ask { sequence: 1, ..write }.encode()),
        ("sequence behind", Ask { sequence: u32::MAX, ..write }.encode()),
        ("acknowledgement ahead", Ask { acknowledged: 3, ..write }.encode()),
        ("unknown kind", vec![99; 100]),
        ("kind zero", vec![0; 100]),
        ("what must be zero", odd),
        ("a WRITE of 4 GiB", longer(WRITE, u32::MAX)),
        ("a READ of 4 GiB", longer(READ, u32::MAX)),
        ("a SEND of 2 GiB", longer(SEND, 1 << 31)),
        ("an atomic of no kind", victim.ask(ATOMIC).encode()),
        ("bytes for nothing", short(BYTES, 1, 8, 0, 0)),
        ("4 GiB for nothing", short(BYTES, 1, u32::MAX, 0, 0)),
        ("a word for nothing", short(WORD, 0, 0, 0, 7)),
        ("a refusal of nothing", short(REFUSED, 1, 0, 0, 0)),
        ("a refusal without reason", short(REFUSED, 77, 0, 0, 0)),
        ("not ready for nothing", short(NOT_READY, 0, 0, 5, 0)),
        ("bytes after an acknowledgement", short(ACKNOWLEDGE, 0, 9, 0, 0)),
        ("a second greeting", [short(GREETING, 1, 8, 0, 0), vec![0; 8]].concat()),
        ("a second hello", short(HELLO, 0, 0, 0, 0)),
        ("a control frame of 4 GiB", short(CONFIRM, 0, u32::MAX, 0, 0)),
        ("an unexpected confirmation", short(CONFIRM, 0, 0, 0, 0)),
        ("an answer to no call", short(ACCEPTED, 0, 0, 0, 0)),
    ];
    for (what, bytes) in cases {
        let (mut fake, link) = victim.linked(1);
        fake.say(&bytes);
        fake.hung_up();
        victim.only_loses(link, what);
    }
    victim.good_works();
}

/// Guessed keys, bounds and numbers are refused, and nothing is touched.
#[test]
fn what_is_not_permitted_is_refused() {
    let mut victim = Victim::new(options());
    let write = victim.ask(WRITE);
    let bytes = victim.node.region.token.bytes;
    for ask in [
        Ask { key: write.key ^ 1, ..write },
        Ask { region: write.region + 1, ..write },
        Ask { offset: bytes - 7, ..write },
        Ask { offset: u64::MAX - 3, ..write },
        Ask { kind: ATOMIC, bytes: 0, offset: 4097, ..write },
    ] {
        let (mut fake, link) = victim.linked(2);
        let before = victim.node.word(4096);
        fake.say(&ask.encode());
        fake.say(&[0xff; 8]);
        // And more requests after it, none of which is executed.
        fake.say(&Ask { sequence: 1, ..write }.encode());
        fake.say(&[0xff; 8]);
        assert_eq!(fake.hear_more_than_life(24).expect("an answer")[0], REFUSED);
        drop(fake);
        victim.only_loses(link, "a request that was refused");
        assert_eq!(victim.node.word(4096), before);
    }
    victim.good_works();
}

#[test]
fn random_bytes_at_every_stage_are_survived() {
    let mut victim = Victim::new(options());
    let mut random = Random::new(0x5eed);
    for round in 0..300_usize {
        let count = 1 + usize::from(random.byte()) * (1 + round % 5);
        let noise = (0..count).map(|_| random.byte()).collect::<Vec<u8>>();
        match round % 4 {
            0 => Fake::new(&victim.listen, 3).say(&noise),
            1 => {
                let mut fake = Fake::new(&victim.listen, 3);
                fake.open();
                fake.say(&noise);
            }
            2 => {
                let (mut fake, link) = victim.linked(3);
                fake.say(&noise);
                drop(fake);
                victim.node.completions.clear();
                lost(&mut victim, link);
            }
            _ => {
                // A true header with one wrong byte.
                let (mut fake, link) = victim.linked(3);
                let kind = [WRITE, READ, ATOMIC, SEND][round / 4 % 4];
                let mut bytes = victim.ask(kind).encode();
                let at = usize::from(random.byte()) % bytes.len();
                bytes[at] ^= 1 << (random.byte() % 8);
                fake.say(&bytes);
                fake.say(&noise);
                drop(fake);
                lost(&mut victim, link);
            }
        }
    }
    victim.node.poll();
    for done in std::mem::take(&mut victim.node.completions) {
        victim.node.post_receive(done.id.0);
    }
    victim.good_works();
}

/// Waits until a fake's link is lost, whatever it managed to send before.
fn lost(victim: &mut Victim, link: LinkId) {
    loop {
        for done in std::mem::take(&mut victim.node.completions) {
            victim.node.post_receive(done.id.0);
        }
        victim.node.poll();
        if let Some(LinkEvent::Lost { link: which, .. }) = victim.node.events.pop() {
            assert_eq!(which, link);
            victim.node.port.close(link);
            return;
        }
        std::thread::yield_now();
    }
}

/// A hello that answers another connection's challenge names no port.
#[test]
fn a_replayed_hello_opens_nothing() {
    let mut victim = Victim::new(options());
    let mut first = Fake::new(&victim.listen, 4);
    let challenge = first.open();
    let mut second = Fake::new(&victim.listen, 4);
    assert_ne!(second.open(), challenge, "every connection has a challenge of its own");
    second.hello(challenge);
    second.hung_up();
    victim.node.poll();
    assert_eq!(victim.node.events, [], "no request was reported");
    victim.good_works();
}

/// Connections that send nothing, or a byte now and then, are dropped after the handshake timeout and
/// lock no other peer out meanwhile.
#[test]
fn half_open_handshakes_hold_nothing_for_long() {
    let limits = TcpLimits { handshakes_max: 16, handshakes_per_host_max: 8, ..TcpLimits::DEFAULT };
    let mut victim = Victim::new(TcpOptions { limits, ..options() });
    let mut idle: Vec<_> = (0..100).map(|at| Fake::new(&victim.listen, 10 + at % 50)).collect();
    let start = Instant::now();
    let mut newcomer = node(options());
    let link = newcomer.port.connect(&format!("{}/p", victim.listen), b"", newcomer.queue);
    let link = link.expect("an address");
    let there = victim.node.accept();
    assert!(matches!(newcomer.event(), LinkEvent::Connected { link: same, .. } if same == link));
    for byte in OPENING.iter().cycle() {
        if start.elapsed() > 2 * options().connect_timeout {
            break;
        }
        idle.iter_mut().for_each(|fake| fake.say(std::slice::from_ref(byte)));
        std::thread::yield_now();
    }
    for fake in &mut idle {
        fake.hung_up();
    }
    victim.node.port.close(there);
    victim.good_works();
}

/// Silent connections take no entry from a peer that has begun its handshake and is slow.
#[test]
fn silent_connections_displace_no_slow_handshake() {
    let limits = TcpLimits { handshakes_max: 16, handshakes_per_host_max: 8, ..TcpLimits::DEFAULT };
    let connect_timeout = Duration::from_secs(60);
    let mut victim = Victim::new(TcpOptions { limits, connect_timeout, ..options() });
    let mut slow = Fake::new(&victim.listen, 1);
    let challenge = slow.open();
    let silent: Vec<_> = (0..100).map(|at| Fake::new(&victim.listen, 10 + at % 50)).collect();
    // Connections are accepted in order: after this one all of those have been.
    let mut newcomer = node(options());
    let to = format!("{}/p", victim.listen);
    newcomer.port.connect(&to, b"", newcomer.queue).expect("an address");
    victim.node.accept();
    slow.hello(challenge);
    victim.node.accept();
    let reply = 24 + victim.node.region.token.encode().len();
    assert_eq!(slow.hear_more_than_life(reply).expect("to be accepted")[0], ACCEPTED);
    drop(silent);
    victim.good_works();
}

/// One host takes its limit of links, and others still get theirs.
#[test]
fn links_of_one_host_are_bounded() {
    let limits = TcpLimits { links_per_host_max: 8, ..TcpLimits::DEFAULT };
    // They send nothing, so the lease must outlast the test.
    let (lease, request_timeout) = (WATCHDOG, WATCHDOG);
    let mut victim = Victim::new(TcpOptions { limits, lease, request_timeout, ..options() });
    let mut fakes = Vec::new();
    for _ in 0..8 {
        fakes.push(victim.linked(5).0);
    }
    for _ in 0..20 {
        let mut fake = Fake::new(&victim.listen, 5);
        let challenge = fake.open();
        fake.hello(challenge);
        let heard = fake.hung_up();
        assert!(heard.ends_with(b"links_per_host_max"), "{heard:?}");
    }
    let (mut other, _) = victim.linked(6);
    other.say(&short(ALIVE, 0, 0, 0, 0));
    victim.good_works();
}

/// A live peer that never answers does not hold a request forever.
#[test]
fn a_peer_that_never_answers_is_given_up() {
    let mut victim = Victim::new(options());
    let (mut fake, link) = victim.linked(7);
    let token = victim.node.region.token;
    let region = victim.node.port.import(link, &token).expect("whatever it is");
    let slices = [victim.node.slice(0, 8)];
    let from = RemoteSlice { region, offset: 0 };
    let read = victim.node.work(link, 3, Operation::Read { into: &slices, from });
    assert_eq!(victim.node.port.post(&[read]).accepted, 1);
    let start = Instant::now();
    while victim.node.events.is_empty() {
        assert!(start.elapsed() < WATCHDOG, "still waiting");
        fake.say(&short(ALIVE, 0, 0, 0, 0));
        std::thread::yield_now();
        victim.node.poll();
    }
    let event = victim.node.events.remove(0);
    assert_eq!(event, LinkEvent::Lost { link, loss: Loss::Unreachable });
    assert_eq!(victim.node.completion().status, CompletionStatus::Unreachable);
    let trouble = victim.node.port.trouble(link).expect("words");
    assert!(trouble.contains("has not answered"), "{trouble}");
    victim.good_works();
}

/// A peer without the key cannot name a port.
#[test]
fn strangers_are_kept_out_by_the_key() {
    let keyed = |key: &ClusterKey| {
        let identity = Identity::cluster_key(key).expect("a key pair");
        Security::new(identity, Protect::Everything).expect("a key goes with it")
    };
    let key = ClusterKey::generate().expect("random numbers");
    let mut victim = Victim::new(TcpOptions { security: keyed(&key), ..options() });
    let other = ClusterKey::generate().expect("random numbers");
    for security in [Security::open(), keyed(&other)] {
        let mut stranger = node(TcpOptions { security, ..options() });
        let to = format!("{}/p", victim.listen);
        let link = stranger.port.connect(&to, b"", stranger.queue).expect("an address");
        match stranger.event() {
            LinkEvent::NotReached { link: which, .. } => assert_eq!(which, link),
            other => panic!("expected to be kept out, got {other:?}"),
        }
        let trouble = stranger.port.trouble(link).expect("words");
        assert!(!trouble.is_empty(), "{trouble}");
    }
    let mut fake = Fake::new(&victim.listen, 8);
    fake.say(OPENING);
    fake.hung_up();
    assert_eq!(victim.node.events, []);
    victim.good_works();
    assert!(victim.node.fabric.capabilities().protected);
}
