//! Requests that register objects in unusual ways, checked by what the executor accounts for afterwards.

use super::{CallServer, ServerOptions};
use crate::call::{Caller, CallerOptions};
use farside_fabric::{Fabric, MemFabric};
use farside_protocol::call::{Header, Part, Session, Verb};
use std::sync::Arc;
use std::time::Duration;

/// A program whose verification takes more slices than any test here grants.
const LONG: &str = "r0 = 1\nagain:\nr0 *= 16777259\nr0 ^= 12345\nif r0 != 0 goto again\nexit";

struct Executor {
    server: CallServer,
    /// Keep their sessions open while the tests make the requests.
    _callers: Vec<Caller>,
    sequences: Vec<u16>,
}

impl Executor {
    fn new(options: ServerOptions) -> Self {
        let fabric: Arc<dyn Fabric> = Arc::new(MemFabric::new());
        let mut server = CallServer::listen(&fabric, "registering", &options).expect("an executor");
        let address = server.address().expect("an address");
        let caller = |_| Caller::begin(&fabric, &address, &CallerOptions::default());
        let callers = (0..2).map(caller).collect::<Result<Vec<_>, _>>().expect("callers");
        server.progress();
        assert_eq!(server.sessions(), 2);
        Self { server, _callers: callers, sequences: vec![0; 2 * usize::from(options.slots)] }
    }

    fn request(&mut self, session: u32, slot: u8, verb: Verb, body: &[u8]) {
        let slots = self.server.machine.slots();
        let last = &mut self.sequences[session as usize * slots + usize::from(slot)];
        *last += 1;
        let header = Header { slot, sequence: *last, verb };
        self.server.request(Session(session), header, body).expect("no violation");
    }

    /// Sends a part of an object; returns what is being registered afterwards.
    fn part(
        &mut self,
        (session, slot): (u32, u8),
        (whole, offset): (usize, usize),
        bytes: &[u8],
    ) -> (u64, usize, usize) {
        let number = |bytes: usize| u32::try_from(bytes).expect("a small object");
        let head = Part { whole: number(whole), offset: number(offset) }.encode();
        self.request(session, slot, Verb::Register, &[&head, bytes].concat());
        self.server.registering()
    }

    /// Cancels the first request of a slot.
    fn cancel(&mut self, session: u32, (slot, target): (u8, u8)) -> (u64, usize, usize) {
        self.request(session, slot, Verb::Cancel, &[target, 0, 1, 0, 0, 0, 0, 0]);
        self.server.registering()
    }
}

#[test]
fn part_with_another_object_size_is_refused_and_frees_the_upload() {
    let mut executor = Executor::new(ServerOptions::default());
    assert_eq!(executor.part((0, 0), (10, 0), b"r0 ="), (10, 0, 0));
    assert_eq!(executor.part((0, 1), (1 << 16, 4), &[b' '; 1 << 10]), (0, 0, 0), "larger");
    assert_eq!(executor.part((0, 2), (10, 0), b"r0 ="), (10, 0, 0));
    assert_eq!(executor.part((0, 3), (5, 4), b" "), (0, 0, 0), "smaller");
    assert_eq!(executor.part((0, 4), (10, 0), b"r0 ="), (10, 0, 0));
    assert_eq!(executor.part((0, 5), (10, 8), b" "), (0, 0, 0), "a part is missing");
}

#[test]
fn upload_during_verification_keeps_the_reservation() {
    let mut executor = Executor::new(ServerOptions::default());
    let (bytes, other) = (LONG.len(), b"r0 = 2\nexit");
    let verified = (bytes as u64, 0, 1);
    assert_eq!(executor.part((0, 0), (bytes, 0), LONG.as_bytes()), verified);
    assert_eq!(executor.part((0, 1), (other.len(), 0), other), verified, "a whole object");
    assert_eq!(executor.part((0, 2), (100, 0), other), verified, "a first part");
    assert_eq!(executor.part((0, 3), (100, other.len()), other), verified, "the part after it");
    assert_eq!(executor.part((0, 4), (usize::MAX >> 33, 0), other), verified, "too large");
    // Another caller is not affected.
    assert_eq!(executor.part((1, 0), (100, 0), other), (bytes as u64 + 100, 0, 1));
    assert_eq!(executor.cancel(0, (5, 0)), (100, 0, 0));
    // The slot is free for the next registration.
    assert_eq!(executor.part((0, 6), (bytes, 0), LONG.as_bytes()), (bytes as u64 + 100, 0, 1));
}

#[test]
fn cancelled_registration_releases_its_bytes() {
    let mut executor = Executor::new(ServerOptions::default());
    let bytes = LONG.len();
    assert_eq!(executor.part((0, 0), (bytes, 0), LONG.as_bytes()), (bytes as u64, 0, 1));
    assert_eq!(executor.part((1, 0), (bytes, 0), LONG.as_bytes()), (2 * bytes as u64, 1, 1));
    assert_eq!(executor.cancel(1, (1, 0)), (bytes as u64, 0, 1), "a queued one");
    assert_eq!(executor.cancel(0, (1, 0)), (0, 0, 0), "the one being verified");
}

#[test]
fn stalled_upload_is_dropped_after_its_timeout() {
    for (upload_timeout, left) in [(Duration::ZERO, 90), (Duration::MAX, 80)] {
        let options =
            ServerOptions::default().registering_bytes_max(100).upload_timeout(upload_timeout);
        let mut executor = Executor::new(options);
        assert_eq!(executor.part((0, 0), (80, 0), b"r0 = 1"), (80, 0, 0));
        assert_eq!(executor.part((1, 0), (90, 0), b"r0 = 1"), (left, 0, 0));
        assert_eq!(executor.part((0, 1), (80, 6), b"\nexit"), (left, 0, 0), "the next part of it");
    }
}
