//! Requests in flight while the other end closes its links and frees its memory.
#![forbid(unsafe_code)]

mod common;

use common::{TestNode, name, node};
use farside_base::{
    CompletionStatus, LinkId, Operation, RemoteRegionId, RemoteSlice, Work, WorkFlags, WorkId,
};
use farside_fabric::{Fabric, LinkEvent};
use std::sync::atomic::{AtomicU64, Ordering};

const ROUNDS: u64 = 150;
const AT: u64 = 512 << 10;
const BYTES: u32 = 256 << 10;
const PAGE: usize = 4096;

/// READs until one fails; each that succeeds must have returned what the owner had stored.
fn read_until_it_fails(
    reader: &mut TestNode,
    (link, region): (LinkId, RemoteRegionId),
    reads: &AtomicU64,
) {
    let into = [reader.slice(AT, BYTES)];
    let flags = WorkFlags { signalled: true, ..WorkFlags::default() };
    loop {
        let from = RemoteSlice { region, offset: AT };
        let operation = Operation::Read { into: &into, from };
        let work = Work { id: WorkId(1), link, flags, operation };
        if reader.port.post(&[work]).accepted == 0
            || reader.completion().status != CompletionStatus::Success
        {
            return;
        }
        for offset in (AT..AT + u64::from(BYTES)).step_by(PAGE) {
            assert_eq!(reader.word(offset), u64::MAX, "at {offset}, after {reads:?} reads");
        }
        reads.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn reads_that_succeed_return_what_was_there_while_the_owner_ends() {
    for round in 0..ROUNDS {
        let listen = name(&format!("ending-{round}"));
        let (mut owner, mut reader) = (node(Some(&listen)), node(None));
        for offset in (AT..AT + u64::from(BYTES)).step_by(PAGE) {
            let stored = owner.region.arena.store(offset, u64::MAX, Ordering::Release);
            stored.expect("in bounds");
        }
        let link = reader.port.connect(&listen, b"", reader.queue).expect("a listener");
        owner.accept();
        let LinkEvent::Connected { .. } = reader.event() else {
            panic!("expected to be connected")
        };
        let region = reader.port.import(link, &owner.region.token).expect("a region");
        let reads = AtomicU64::new(0);
        std::thread::scope(|scope| {
            let ends = scope.spawn(|| {
                while reads.load(Ordering::Relaxed) < 1 + round % 7 {
                    std::hint::spin_loop();
                }
                let TestNode { fabric, port, region, .. } = owner;
                // With the port its links end; with the last arena of an ended region its memory is zero.
                if round.is_multiple_of(2) {
                    drop(port);
                    fabric.deregister(region.id).expect("a region");
                    drop((fabric, region));
                } else {
                    fabric.deregister(region.id).expect("a region");
                    drop((fabric, region, port));
                }
            });
            read_until_it_fails(&mut reader, (link, region), &reads);
            ends.join().expect("the owner");
        });
    }
}
