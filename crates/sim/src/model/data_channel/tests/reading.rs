//! Channels out of whose memory receivers READ.

use super::*;

const KINDS: [Kind; 7] = [
    Kind::ReadSlotDetached,
    Kind::ReadSlotInlined,
    Kind::ReadSlotNotify,
    Kind::ReadSlotIndirect,
    Kind::ReadRingDetached,
    Kind::ReadRingInlined,
    Kind::ReadRingNotify,
];

fn reading(kind: Kind, messages: &[u32]) -> Setup {
    let shape = Shape { ring_bytes: 64, message_bytes_max: 8, peers_max: 1, ..TINY };
    Setup::new(kind, shape, messages)
}

#[test]
fn every_order_of_events_delivers_each_message_once() {
    for kind in KINDS {
        println!("{kind} {}", states(reading(kind, &[8, 3, 8])));
    }
}

#[test]
fn prefetching_tells_old_words_from_new_ones() {
    let mut setup = reading(Kind::ReadRingInlined, &[8, 3, 8]);
    setup.shape.prefetch_bytes = 24;
    println!("prefetch {}", states(setup));
}

#[test]
fn messages_are_fetched_to_where_the_program_names() {
    // The network here carries READs into one slice; heads without lengths take two.
    for kind in [Kind::ReadSlotDetached, Kind::ReadSlotInlined, Kind::ReadSlotNotify] {
        let setup = Setup { offers: true, ..reading(kind, &[8, 3, 8]) };
        println!("{kind} offers {}", states(setup));
    }
}

#[test]
fn two_receivers_share_a_sender_and_either_side_may_die() {
    // Mailboxes with inlined bells have half a million states here, which takes a minute.
    let shared = |kind: &Kind| kind.shares_sender() && *kind != Kind::ReadSlotInlined;
    for kind in KINDS.into_iter().filter(shared) {
        let mut setup = Setup { receivers: 2, held_max: 1, ..reading(kind, &[8]) };
        setup.shape.peers_max = 2;
        println!("{kind} two {}", states(setup));
        for mortal in [0, 1] {
            let setup = Setup { mortal: vec![mortal], ..reading(kind, &[8, 3]) };
            println!("{kind} mortal {mortal} {}", states(setup));
        }
    }
}
