//! Memory with relaxed ordering (`Access::RELAXED_ORDERING`): READs of it are answered without a copy,
//! and yet show nothing of later changes. The peer is built by hand, since it must read its answer
//! slowly.

mod common;

use common::{TestNode, free_endpoint, node_at};
use farside_base::{Access, RegionKind};
use farside_fabric::{Fabric, LinkEvent, Region, RegionSpec};
use farside_fabric_tcp::TcpOptions;
use farside_testkit::WATCHDOG;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

const OPENING: &[u8; 16] = b"farside\n\x01\0\0\0\0\0\0\0";
const WRITE: u8 = 1;
const READ: u8 = 2;
const BYTES: u8 = 17;
const REFUSED: u8 = 19;
const HELLO: u8 = 33;
const ACCEPTED: u8 = 35;

/// More than two sockets hold.
const REGION_BYTES: u64 = 24 << 20;
const BEFORE: u8 = 0xb5;
const AFTER: u8 = 0x0a;

/// A peer that has a link, and takes its time.
struct Slow(TcpStream);

impl Slow {
    fn link(node: &mut TestNode, to: &str) -> Self {
        let mut socket = TcpStream::connect(to).expect("a listener");
        socket.set_read_timeout(Some(WATCHDOG)).expect("a timeout");
        socket.set_nodelay(true).expect("no delay");
        socket.write_all(OPENING).expect("room");
        let mut slow = Self(socket);
        let heard = slow.hear(16 + 24 + 8);
        let (mut hello, name) = (vec![HELLO, 0, 0, 0], [1, 0, b'p']);
        for number in [name.len() as u32, 60_000, u32::MAX] {
            hello.extend(number.to_le_bytes());
        }
        hello.extend(&heard[32..40]);
        hello.extend(name);
        slow.0.write_all(&hello).expect("room");
        // Losses of earlier links may be reported in between.
        loop {
            match node.event() {
                LinkEvent::Requested { link, .. } => {
                    node.accept_link(link);
                    break;
                }
                other => node.port.close(other.link()),
            }
        }
        let (header, _) = slow.frame();
        assert_eq!(header[0], ACCEPTED);
        slow
    }

    fn hear(&mut self, count: usize) -> Vec<u8> {
        let mut out = vec![0; count];
        self.0.read_exact(&mut out).expect("bytes");
        out
    }

    /// Receives a header of an answer, and the bytes after it.
    fn frame(&mut self) -> (Vec<u8>, Vec<u8>) {
        let header = self.hear(24);
        let bytes = u32::from_le_bytes(header[4..8].try_into().expect("four bytes"));
        let body = self.hear(bytes as usize);
        (header, body)
    }

    fn ask(&mut self, kind: u8, sequence: u32, region: &Region, (offset, bytes): (u64, u32)) {
        let mut out = vec![kind, 2, 0, 0];
        for number in [bytes, sequence, u32::MAX, region.token.region.0, 0] {
            out.extend(number.to_le_bytes());
        }
        for number in [region.token.key.0, offset, 0] {
            out.extend(number.to_le_bytes());
        }
        self.0.write_all(&out).expect("room");
    }
}

/// Returns a node that sleeps, and memory of it.
fn target() -> (TestNode, String, Region) {
    let listen = free_endpoint().to_string();
    let lease = Duration::from_secs(20);
    let node =
        node_at(&listen, TcpOptions { lease, request_timeout: lease, ..TcpOptions::default() });
    let region = memory(&node);
    (node, listen, region)
}

fn memory(node: &TestNode) -> Region {
    let access = Access::ALL.with(Access::RELAXED_ORDERING);
    let spec = RegionSpec { bytes: REGION_BYTES, access, kind: RegionKind::Memory };
    let region = node.fabric.register(&spec).expect("a region");
    fill(&region, BEFORE);
    region
}

fn fill(region: &Region, byte: u8) {
    let page = [byte; 1 << 16];
    for at in (0..REGION_BYTES).step_by(page.len()) {
        region.arena.write(at, &page).expect("within the region");
    }
}

/// Lets the target send as much as the sockets between hold, for which there is no event.
#[allow(clippy::disallowed_methods, reason = "the target's engine does not report what it sent")]
fn settle(time: Duration) {
    std::thread::sleep(time);
}

/// A READ shows nothing of a WRITE posted after it, however much of its answer was sent.
#[test]
fn read_in_flight_shows_nothing_of_a_later_write() {
    let (mut node, listen, _) = target();
    for kib in [16, 200, 700, 1500, 2500, 3500, 4500, 5500, 6500, 8000, 12_000, 20_000] {
        // A new region, since the end of a WRITE to the previous one may still be in flight.
        let (region, bytes) = (memory(&node), (kib << 10) + 5);
        let mut slow = Slow::link(&mut node, &listen);
        slow.ask(READ, 0, &region, (3, bytes));
        settle(Duration::from_millis(30));
        let all = vec![AFTER; bytes as usize];
        slow.ask(WRITE, 1, &region, (3, bytes));
        // The bytes of the WRITE may need the other side to take its answer first.
        let mut writes = slow.0.try_clone().expect("the same socket");
        let writing = std::thread::spawn(move || writes.write_all(&all));
        settle(Duration::from_millis(10));
        let mut shown = 0;
        while shown < bytes as usize {
            let (header, body) = slow.frame();
            if header[0] == BYTES {
                assert!(body.iter().all(|byte| *byte == BEFORE), "{kib} KiB, behind {shown} B");
                shown += body.len();
                assert_eq!(header[1] == 1, shown == bytes as usize, "the last part says so");
            }
        }
        writing.join().expect("a thread").expect("room");
        node.fabric.deregister(region.id).expect("a region");
    }
}

/// Once `deregister` has returned, nothing more of the region is shown.
#[test]
fn a_region_that_has_ended_shows_nothing_more() {
    let (mut node, listen, _) = target();
    for kib in [700, 3500, 8000, 20_000] {
        let (region, bytes) = (memory(&node), kib << 10);
        let mut slow = Slow::link(&mut node, &listen);
        slow.ask(READ, 0, &region, (0, bytes));
        settle(Duration::from_millis(30));
        node.fabric.deregister(region.id).expect("a region");
        fill(&region, AFTER);
        let mut shown = 0;
        while shown < bytes as usize {
            let (header, body) = slow.frame();
            assert!(body.iter().all(|byte| *byte == BEFORE), "{kib} KiB, behind {shown} B");
            shown += body.len();
            if header[0] == REFUSED {
                break;
            }
        }
        assert!(kib < 20_000 || shown < bytes as usize, "the region had ended before");
    }
}
