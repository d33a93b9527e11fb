//! Peers that violate the protocol: each loses its link, without effect on others.

use crate::over::{Ends, over};
use crate::programs::{LIST_SEARCH, parameters};
use farside::call::{CallOptions, CallerOptions, ServerOptions};
use farside_base::{
    Completion, LinkId, Operation, ReceiveQueueId, Source, Work, WorkFlags, WorkId,
};
use farside_fabric::{LinkEvent, Port, PortSpec};
use std::time::Duration;

farside_testkit::on_each_fabric! { mem shm tcp => (
    junk_hello_is_refused_with_a_reason
    invalid_requests_close_their_link
    peer_without_receives_does_not_delay_others
    session_of_another_caller_cannot_be_guessed
)}

const LONG: Duration = Duration::from_secs(30);

/// As in `hello.rs`: magic, version, purpose, slots, session, tenant, bytes of output, no output region.
fn hello(purpose: u8, session: u128) -> Vec<u8> {
    let mut hello = b"FSRC".to_vec();
    hello.extend([4, purpose, if purpose == 1 { 4 } else { 0 }, 0]);
    hello.extend(session.to_le_bytes());
    hello.extend([0; 32 + 8 + 24]);
    hello
}

/// Slot, sequence and verb, as in `message.rs`.
fn header(slot: u8, sequence: u16, verb: u8) -> u32 {
    let [low, high] = sequence.to_le_bytes();
    u32::from_le_bytes([slot, low, high, verb])
}

struct Peer {
    port: Box<dyn Port>,
    queue: ReceiveQueueId,
    events: Vec<LinkEvent>,
}

impl Peer {
    /// Posts no receives, so that replies find none.
    fn new(ends: &Ends) -> Self {
        let mut port = ends.fabric.open(&PortSpec { listen: None }).unwrap();
        let queue = port.create_receive_queue(8).unwrap();
        Self { port, queue, events: Vec::new() }
    }

    fn connect(&mut self, ends: &Ends, hello: &[u8]) -> Option<LinkId> {
        let link = self.port.connect(&ends.address, hello, self.queue).unwrap();
        match self.event() {
            LinkEvent::Connected { .. } => Some(link),
            LinkEvent::Refused { reason, .. } => {
                assert!(!reason.is_empty(), "a refusal says why");
                None
            }
            other => panic!("{other:?}"),
        }
    }

    fn event(&mut self) -> LinkEvent {
        loop {
            self.port.poll(&mut [Completion::BLANK; 16]);
            self.port.link_events(&mut self.events);
            if !self.events.is_empty() {
                return self.events.remove(0);
            }
            std::thread::yield_now();
        }
    }

    fn send(&mut self, link: LinkId, header: u32, body: &[u8]) {
        let operation = Operation::Send { source: Source::Inline(body), immediate: Some(header) };
        let work = Work { id: WorkId(1), link, flags: WorkFlags::default(), operation };
        assert_eq!(self.port.post(&[work]).accepted, 1);
    }

    fn is_dropped(&mut self, link: LinkId) {
        assert!(matches!(self.event(), LinkEvent::Lost { link: lost, .. } if lost == link));
    }
}

/// Runs an attack next to a caller whose calls are answered before and after it.
fn beside(fabric: &str, attack: impl Fn(&Ends, &mut Peer)) {
    over(fabric, &ServerOptions::default(), |ends| {
        let mut caller = ends.caller(&CallerOptions::default());
        let search = caller.register(LIST_SEARCH.as_bytes()).unwrap().remove(0);
        let mut call = || {
            caller
                .call(&search, &parameters(&[0, 1]), CallOptions::new().timeout(LONG))
                .unwrap()
                .result
        };
        assert_eq!(call(), 0);
        let mut peer = Peer::new(ends);
        attack(ends, &mut peer);
        assert_eq!(call(), 0, "{fabric}");
        drop(peer);
        ends.until(|counts| counts.sessions == 1);
        assert_eq!(call(), 0, "{fabric}");
    });
}

fn junk_hello_is_refused_with_a_reason(fabric: &str) {
    beside(fabric, |ends, peer| {
        let good = hello(1, 9);
        for junk in [&b""[..], b"FSRC", &[0xff; 300], &good[1..], &good[..good.len() - 1]] {
            assert_eq!(peer.connect(ends, junk), None);
        }
        for (at, byte) in [(4, 1), (5, 3), (6, 0), (60, 1)] {
            let mut changed = good.clone();
            changed[at] = byte;
            assert_eq!(peer.connect(ends, &changed), None, "byte {at}");
        }
        assert!(peer.connect(ends, &good).is_some());
    });
}

fn invalid_requests_close_their_link(fabric: &str) {
    let requests: &[(u32, &[u8])] = &[
        (0, b""),
        (u32::MAX, b""),
        (header(0, 0, 1), &[0; 8]),   // sequence before the first
        (header(0, 2, 1), &[0; 8]),   // out of sequence
        (header(200, 1, 1), &[0; 8]), // no such slot
        (header(0, 1, 1), &[0; 7]),   // too short
        (header(0, 1, 2), &[0; 15]),  // too short
        (header(0, 1, 16), &[0; 8]),  // a reply
        (header(0, 0, 7), &[0; 8]),   // leave with a sequence
        (header(0, 1, 8), &[0; 8]),   // unknown verb
        (header(0, 1, 3), &[0; 8]),   // a part without bytes
        (header(0, 1, 3), &[0; 9]),   // a part beyond the object
        (header(0, 1, 4), &[0; 9]),   // too long
        (header(0, 1, 5), &[1; 8]),   // cancels no request
        (header(0, 1, 6), &[]),       // topic missing
    ];
    beside(fabric, |ends, peer| {
        for (at, (header, body)) in (0..).zip(requests) {
            let link = peer.connect(ends, &hello(1, at)).unwrap();
            peer.send(link, *header, body);
            peer.is_dropped(link);
        }
        // A peer that connected for memory access only must not send requests.
        let link = peer.connect(ends, &hello(2, 0)).unwrap();
        peer.send(link, header(0, 1, 1), &[0; 8]);
        peer.is_dropped(link);
    });
}

fn peer_without_receives_does_not_delay_others(fabric: &str) {
    beside(fabric, |ends, peer| {
        let link = peer.connect(ends, &hello(1, 5)).unwrap();
        for slot in 0..4 {
            // Each is answered with "no such program", without a receive for it. Some fabrics keep such messages,
            // others close the link.
            peer.send(link, header(slot, 1, 1), &[0; 8]);
        }
    });
}

fn session_of_another_caller_cannot_be_guessed(fabric: &str) {
    beside(fabric, |ends, peer| {
        for session in 0..32 {
            // Each opens a new session: none has a program, none is resumed.
            let link = peer.connect(ends, &hello(1, session)).unwrap();
            peer.port.close(link);
        }
    });
}
