//! Peers with wrong or other settings of how queue pairs are connected, and fabrics that need rdma_cm
//! without having it.

mod node;

use farside_bootstrap::{HandshakeLimits, HostAddress, Security, Stream, Transfer};
use farside_fabric::{LinkEvent, Loss};
use farside_fabric_verbs::{OpenError, Options, VerbsFabric};
use node::{FakeNode, WATCHDOG, alone, options};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::Instant;

const CONNECT: u8 = 1;
const ACCEPTED: u8 = 2;
const REFUSED: u8 = 3;
const PARTED: u8 = 11;
/// Bits of `Ways`.
const MANAGER: u8 = 1;
const IWARP: u8 = 2;

fn frame(kind: u8, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len() + 1).expect("short");
    [&length.to_le_bytes()[..], &[kind], body].concat()
}

/// Returns the encoded end of a queue pair that does not exist, connected in these ways.
fn end(ways: u8) -> Vec<u8> {
    let mut out = Vec::new();
    out.extend(0x00ab_cdef_u32.to_le_bytes());
    out.extend(1_u32.to_le_bytes());
    out.extend([0; 16]);
    out.extend(0_u16.to_le_bytes());
    out.extend([3, 2, 1, 1]);
    out.extend(1000_u32.to_le_bytes());
    out.push(ways);
    out.extend([0; 12]);
    out
}

fn connect(ways: u8) -> Vec<u8> {
    let mut body = Vec::new();
    body.extend(2_u16.to_le_bytes());
    body.extend(77_u64.to_le_bytes());
    body.extend(end(ways));
    body.extend(6_u16.to_le_bytes());
    body.extend(b"victim");
    body.extend(0_u16.to_le_bytes());
    frame(CONNECT, &body)
}

fn accepted(callers: &[u8], ways: u8, meeting: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    body.extend(2_u16.to_le_bytes());
    body.extend(78_u64.to_le_bytes());
    body.extend(callers);
    body.extend(end(ways));
    body.extend(meeting);
    body.extend(0_u16.to_le_bytes());
    frame(ACCEPTED, &body)
}

/// 10.77.0.9, port 4791, and a secret.
fn meeting() -> Vec<u8> {
    let place = Ipv4Addr::new(10, 77, 0, 9).to_ipv6_mapped().octets();
    [&[1][..], &place, &4791_u16.to_le_bytes(), &[0x5e; 32]].concat()
}

struct LyingPeer(Stream<TcpStream>);

impl LyingPeer {
    fn new(socket: TcpStream, calls: bool) -> Self {
        socket.set_nonblocking(true).expect("a socket");
        let (security, limits) = (Security::open(), HandshakeLimits::DEFAULT);
        let host = HostAddress::Ip(Ipv4Addr::LOCALHOST.into());
        let stream = match calls {
            true => Stream::connect(socket, &security, &host, limits),
            false => Stream::accept(socket, &security, limits),
        };
        let mut stream = stream.expect("a stream");
        while !stream.advance().expect("a handshake") {
            std::thread::yield_now();
        }
        Self(stream)
    }

    fn calls(victim: &FakeNode) -> Self {
        let endpoint = victim.fabric.listening().expect("a listener").clone();
        let place = endpoint.resolve().expect("a number")[0];
        Self::new(TcpStream::connect(place).expect("a listener"), true)
    }

    fn say(&mut self, mut bytes: &[u8]) {
        let start = Instant::now();
        while !bytes.is_empty() && start.elapsed() < WATCHDOG {
            match self.0.write(bytes) {
                Ok(Transfer::Moved(count)) => bytes = &bytes[count..],
                Ok(_) => std::thread::yield_now(),
                Err(_) => return,
            }
        }
        // Fails if the stream was closed, which the answer shows.
        let _ = self.0.flush();
    }

    /// Returns the next frame's kind and body; `None` when the stream was closed.
    fn hear(&mut self) -> Option<(u8, Vec<u8>)> {
        let (start, mut all, mut byte) = (Instant::now(), Vec::new(), [0]);
        loop {
            assert!(start.elapsed() < WATCHDOG, "neither an answer nor an end");
            match self.0.read(&mut byte) {
                Ok(Transfer::Moved(count)) => all.extend(&byte[..count]),
                Ok(Transfer::Blocked) => std::thread::yield_now(),
                Ok(Transfer::Ended) | Err(_) => return None,
            }
            if let Some((length, rest)) = all.split_first_chunk::<4>()
                && rest.len() == u32::from_le_bytes(*length) as usize
            {
                return Some((rest[0], rest[1..].to_vec()));
            }
        }
    }
}

#[test]
fn who_connects_otherwise_is_refused_with_the_reason() {
    let (_one, _fake) = alone();
    let victim = FakeNode::new("victim");
    for (ways, words) in [
        (MANAGER, "connection_manager"),
        (IWARP, "one end is iWARP"),
        (MANAGER | IWARP, "one end is iWARP"),
    ] {
        let mut liar = LyingPeer::calls(&victim);
        liar.say(&connect(ways));
        let (kind, reason) = liar.hear().expect("an answer");
        let reason = String::from_utf8_lossy(&reason[2..]).into_owned();
        assert_eq!(kind, REFUSED, "{ways}: {reason}");
        assert!(reason.contains(words), "{ways}: {reason}");
    }
}

#[test]
fn impossible_ways_and_partings_out_of_turn_end_their_stream_alone() {
    let (_one, _fake) = alone();
    let mut victim = FakeNode::new("victim");
    let lies = [
        connect(4),
        connect(0xff),
        frame(PARTED, &[0]),
        [connect(0), frame(PARTED, &[1])].concat(),
        [connect(0), frame(PARTED, &[3])].concat(),
        [connect(0), frame(PARTED, &[])].concat(),
        [connect(0), accepted(&[0; 8], 0, &meeting())].concat(),
    ];
    for lie in &lies {
        let mut liar = LyingPeer::calls(&victim);
        liar.say(lie);
        while let Some((kind, _)) = liar.hear() {
            assert_ne!(kind, ACCEPTED);
        }
    }
    victim.port.link_events(&mut victim.events);
    for event in std::mem::take(&mut victim.events) {
        assert!(matches!(event, LinkEvent::Requested { .. } | LinkEvent::Lost { .. }), "{event:?}");
        victim.port.close(event.link());
    }
}

/// A peer that answers with an rdma_cm address, or an impossible one, although it was asked otherwise.
#[test]
fn an_answer_that_was_not_asked_for_loses_the_link() {
    let (_one, _fake) = alone();
    let mut victim = FakeNode::new("victim");
    let undialable = [&[1][..], &[0; 16], &[0; 2], &[0; 32]].concat();
    for meeting in [meeting(), undialable, vec![2]] {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let place = listener.local_addr().expect("an address");
        let link = victim.port.connect(&format!("{place}/liar"), b"", victim.queue);
        let link = link.expect("a call");
        let mut liar = LyingPeer::new(listener.accept().expect("a caller").0, false);
        let (kind, body) = liar.hear().expect("a call");
        assert_eq!(kind, CONNECT);
        liar.say(&accepted(&body[2..10], MANAGER, &meeting));
        let start = Instant::now();
        while victim.events.is_empty() {
            assert!(start.elapsed() < WATCHDOG, "no link event");
            victim.poll();
            std::thread::yield_now();
        }
        let event = victim.events.remove(0);
        assert_eq!(event, LinkEvent::Lost { link, loss: Loss::Unreachable });
        let words = victim.port.trouble(link).expect("a reason");
        assert!(words.contains("violates the protocol"), "{words}");
        victim.port.close(link);
    }
}

#[test]
fn a_fabric_that_needs_rdma_cm_says_what_is_missing() {
    let (_one, _fake) = alone();
    let asked = Options { connection_manager: true, ..options() };
    let library = "librdmacm-that-is-absent.so.1".to_owned();
    let without = Options { connection_manager_library: library, ..asked.clone() };
    let missing = VerbsFabric::open(without).expect_err("no library");
    let OpenError::NoManager { because, reason, .. } = &missing else { panic!("{missing}") };
    assert_eq!(*because, "as asked for");
    assert!(reason.contains("librdmacm-that-is-absent"), "{reason}");
    // The device of this library is none of the kernel's, whatever rdma_cm this machine has.
    let missing = VerbsFabric::open(asked).expect_err("no such device");
    assert!(matches!(missing, OpenError::NoManager { .. }), "{missing}");
    assert!(missing.to_string().contains("librdmacm1"), "{missing}");
}
