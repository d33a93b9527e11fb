//! Rings of one sender.

use super::*;

const KINDS: [Kind; 4] =
    [Kind::RingDetached, Kind::RingImmediate, Kind::RingInlinedZeroing, Kind::RingInlined];

fn ring(kind: Kind, messages: &[u32]) -> Setup {
    Setup::new(kind, Shape { ring_bytes: 64, message_bytes_max: 8, ..TINY }, messages)
}

#[test]
fn every_order_of_events_delivers_each_message_once() {
    for kind in KINDS {
        for gather in [false, true] {
            let setup = Setup { gather, ..ring(kind, &[8, 3, 8, 8, 8]) };
            println!("{kind} {gather} {}", states(setup));
        }
    }
}
