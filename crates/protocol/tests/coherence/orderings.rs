//! One scenario for each order of events that has broken a published implementation.

use crate::cluster::CoherenceCluster;
use farside_base::Grant;
use farside_protocol::coherence::{Level, Want};

#[test]
fn owner_evicts_while_a_forwarded_read_is_in_flight() {
    let mut cluster = CoherenceCluster::owned_by(3, 2);
    cluster.read(1, 1);
    cluster.request(1, 0);
    cluster.evict(2);
    cluster.request(2, 0);
    cluster.forget();
    cluster.forward(0, 2);
    cluster.happened(
        "
        n0 > n2: Recall g1 down to Shared, bytes to n1 t1
            n2 set Invalid
            n2 place in n1 frame 1: Data t1
            n2 place in n0 memory: Ack g1 had the bytes, left Invalid
        ",
    );
    cluster.run();
    cluster.at_rest(None, &[1]);
}

#[test]
fn owner_evicts_while_a_forwarded_write_is_in_flight() {
    let mut cluster = CoherenceCluster::owned_by(3, 2);
    cluster.write(1, 1);
    cluster.request(1, 0);
    cluster.evict(2);
    cluster.forward(0, 2);
    cluster.reply(2, 0);
    cluster.forget();
    cluster.request(2, 0);
    cluster.happened("n2 > n0: Evict g1 dirty\n");
    cluster.run();
    cluster.at_rest(Some(1), &[]);
}

#[test]
fn eviction_of_an_owner_is_queued_and_recalled() {
    let mut cluster = CoherenceCluster::owned_by(3, 2);
    cluster.evict(2);
    cluster.run();
    cluster.happened(
        "
        n2 evicts
            n2 send to n0: Evict g1 dirty
        n2 > n0: Evict g1 dirty
            n0 send to n2: Recall g1 down to Invalid
        n0 > n2: Recall g1 down to Invalid
            n2 set Invalid
            n2 place in n0 memory: Ack g1 had the bytes, left Invalid
        n2 > n0: Ack g1 had the bytes, left Invalid
            n0 set Dirty g0
        n2 placed
            n2 release
        ",
    );
    cluster.at_rest(None, &[]);
}

#[test]
fn eviction_of_a_sharer_is_the_acknowledgement_of_a_recall_that_crosses_it() {
    let mut cluster = CoherenceCluster::shared_by(3, &[1]);
    cluster.write(2, 1);
    cluster.request(2, 0);
    cluster.evict(1);
    cluster.read(1, 2);
    cluster.forget();
    cluster.request(1, 0);
    cluster.happened(
        "
        n1 > n0: Evict g1 clean
            n0 set Invalid
            n0 place in n2 frame 2: Grant t1 g2 Dirty, bytes from home
        ",
    );
    cluster.forward(0, 1);
    cluster.happened("n0 > n1: Recall g1 down to Invalid\n");
    cluster.run();
    cluster.at_rest(None, &[1, 2]);
    assert_eq!(cluster.held(1).grant, Grant(3));
}

/// A new sharer's eviction may overtake, in another class, the acknowledgement that made it one.
#[test]
fn eviction_overtakes_the_acknowledgement_of_the_same_node() {
    let mut cluster = CoherenceCluster::owned_by(3, 2);
    cluster.read(1, 1);
    cluster.request(1, 0);
    cluster.forward(0, 2);
    cluster.placed(2);
    cluster.placed(2);
    cluster.evict(2);
    cluster.request(2, 0);
    cluster.run();
    cluster.at_rest(None, &[1]);
    assert_eq!(cluster.level(2), Level::Invalid);
}

#[test]
fn requester_has_the_data_before_home_has_finished_then_evicts() {
    let mut cluster = CoherenceCluster::owned_by(3, 2);
    cluster.write(1, 1);
    cluster.request(1, 0);
    cluster.forward(0, 2);
    cluster.forget();
    cluster.reply(2, 1);
    cluster.evict(1);
    cluster.happened("n2 > n1: Data t1\nn1 evicts\n");
    cluster.reply(2, 0);
    cluster.reply(0, 1);
    cluster.forget();
    cluster.evict(1);
    cluster.happened("n1 evicts\n    n1 send to n0: Evict g2 dirty\n");
    cluster.run();
    cluster.at_rest(None, &[]);
}

#[test]
fn invalidation_overtakes_the_owners_data() {
    let mut cluster = CoherenceCluster::owned_by(4, 2);
    cluster.write(1, 1);
    cluster.request(1, 0);
    cluster.forward(0, 2);
    cluster.write(3, 2);
    cluster.request(3, 0);
    cluster.reply(2, 0);
    cluster.forget();
    cluster.forward(0, 1);
    cluster.happened("n0 > n1: Recall g2 down to Invalid, bytes to n3 t1\n");
    cluster.reply(0, 1);
    cluster.happened("n0 > n1: Grant t1 g2 Dirty, bytes from n2\n");
    cluster.reply(2, 1);
    cluster.happened(
        "
        n2 > n1: Data t1
            n1 set Dirty g2
            n1 ready o1
            n1 set Invalid
            n1 place in n3 frame 3: Data t1
            n1 send to n0: Ack g2 had the bytes and forwarded them, left Invalid
        ",
    );
    cluster.run();
    cluster.at_rest(Some(3), &[]);
}

#[test]
fn data_before_grant() {
    let mut cluster = CoherenceCluster::owned_by(3, 2);
    cluster.read(1, 1);
    cluster.request(1, 0);
    cluster.forward(0, 2);
    cluster.forget();
    cluster.reply(2, 1);
    cluster.happened("n2 > n1: Data t1\n");
    cluster.reply(2, 0);
    cluster.forget();
    cluster.reply(0, 1);
    cluster.happened(
        "
        n0 > n1: Grant t1 g2 Shared, bytes from n2
            n1 set Shared g2
            n1 ready o1
        ",
    );
    cluster.run();
    cluster.at_rest(None, &[1, 2]);
}

#[test]
fn grant_before_data() {
    let mut cluster = CoherenceCluster::owned_by(3, 2);
    cluster.read(1, 1);
    cluster.request(1, 0);
    cluster.forward(0, 2);
    cluster.reply(2, 0);
    cluster.forget();
    cluster.reply(0, 1);
    cluster.happened("n0 > n1: Grant t1 g2 Shared, bytes from n2\n");
    cluster.reply(2, 1);
    cluster.happened(
        "
        n2 > n1: Data t1
            n1 set Shared g2
            n1 ready o1
        ",
    );
    cluster.run();
    cluster.at_rest(None, &[1, 2]);
}

#[test]
fn upgrade_loses_to_a_home_write_and_becomes_a_full_write() {
    let mut cluster = CoherenceCluster::shared_by(2, &[1]);
    cluster.write(1, 1);
    cluster.write(0, 2);
    cluster.request(1, 0);
    cluster.run();
    cluster.happened(
        "
        n1 issues o1 Write
            n1 send to n0: Write t2 into frame 1, holds g1
        n0 issues o2 Write
            n0 send to n1: Recall g1 down to Invalid
        n1 > n0: Write t2 into frame 1, holds g1
        n0 > n1: Recall g1 down to Invalid
            n1 set Invalid
            n1 send to n0: Ack g1 had a clean copy, left Invalid
        n1 > n0: Ack g1 had a clean copy, left Invalid
            n0 set Dirty g0
            n0 ready o2
            n0 set Invalid
            n0 place in n1 frame 1: Grant t2 g2 Dirty, bytes from home
        n0 > n1: Grant t2 g2 Dirty, bytes from home
            n1 set Dirty g2
            n1 ready o1
        n0 placed
        ",
    );
    cluster.at_rest(Some(1), &[]);
}

#[test]
fn two_upgrades_meet_and_the_loser_becomes_a_full_write() {
    let mut cluster = CoherenceCluster::shared_by(3, &[1, 2]);
    cluster.write(1, 1);
    cluster.write(2, 2);
    cluster.run();
    cluster.happened(
        "
        n1 issues o1 Write
            n1 send to n0: Write t2 into frame 1, holds g1
        n2 issues o2 Write
            n2 send to n0: Write t2 into frame 2, holds g2
        n1 > n0: Write t2 into frame 1, holds g1
            n0 send to n2: Recall g2 down to Invalid
        n0 > n2: Recall g2 down to Invalid
            n2 set Invalid
            n2 send to n0: Ack g2 had a clean copy, left Invalid
        n2 > n0: Write t2 into frame 2, holds g2
        n2 > n0: Ack g2 had a clean copy, left Invalid
            n0 set Invalid
            n0 send to n1: Grant t2 g3 Dirty, bytes are there
            n0 send to n1: Recall g3 down to Invalid, bytes to n2 t2
        n0 > n1: Recall g3 down to Invalid, bytes to n2 t2
        n0 > n1: Grant t2 g3 Dirty, bytes are there
            n1 set Dirty g3
            n1 ready o1
            n1 set Invalid
            n1 place in n2 frame 2: Data t2
            n1 send to n0: Ack g3 had the bytes and forwarded them, left Invalid
        n1 > n0: Ack g3 had the bytes and forwarded them, left Invalid
            n0 send to n2: Grant t2 g4 Dirty, bytes from n1
        n0 > n2: Grant t2 g4 Dirty, bytes from n1
        n1 > n2: Data t2
            n2 set Dirty g4
            n2 ready o2
        n1 placed
            n1 release
        ",
    );
    cluster.at_rest(Some(2), &[]);
}

#[test]
fn upgrade_of_a_sharer_needs_no_data_though_a_reader_came_in_between() {
    let mut cluster = CoherenceCluster::shared_by(3, &[1]);
    cluster.write(1, 1);
    cluster.read(2, 2);
    cluster.request(2, 0);
    cluster.forget();
    cluster.request(1, 0);
    cluster.placed(0);
    cluster.happened(
        "
        n1 > n0: Write t2 into frame 1, holds g1
            n0 send to n2: Recall g2 down to Invalid
        n0 placed
        ",
    );
    cluster.run();
    assert_eq!(cluster.held(1).grant, Grant(3));
    cluster.at_rest(Some(1), &[]);
}

#[test]
fn upgrade_of_a_former_sharer_needs_data_and_the_reader_in_between_is_recalled() {
    let mut cluster = CoherenceCluster::shared_by(3, &[1]);
    cluster.write(1, 1);
    cluster.write(0, 2);
    cluster.forward(0, 1);
    cluster.reply(1, 0);
    cluster.read(2, 3);
    cluster.request(2, 0);
    cluster.run();
    cluster.at_rest(Some(1), &[]);
    assert_eq!(cluster.level(2), Level::Invalid);
    assert_eq!(cluster.level(0), Level::Invalid);
}

/// A refusal does not restore a copy that was recalled.
#[test]
fn denial_after_the_copy_was_recalled_restores_nothing() {
    let mut cluster = CoherenceCluster::shared_by(3, &[1, 2]);
    cluster.write(1, 1);
    cluster.write(0, 2);
    cluster.forward(0, 1);
    cluster.reply(1, 0);
    cluster.request(1, 0);
    cluster.retire(3);
    cluster.forget();
    cluster.reply(0, 1);
    cluster.happened(
        "
        n0 > n1: Refuse t2 Unallocated
            n1 fail o1 Unallocated
            n1 release
        ",
    );
    cluster.run();
    cluster.at_rest(None, &[]);
}

/// The requester of a write dies after one of two sharers was invalidated: the list has shrunk.
#[test]
fn write_abandoned_after_some_sharers_were_invalidated() {
    let mut cluster = CoherenceCluster::shared_by(4, &[2, 3]);
    cluster.write(1, 1);
    cluster.request(1, 0);
    cluster.forward(0, 2);
    cluster.reply(2, 0);
    cluster.dead(0, 1);
    cluster.forget();
    cluster.read(2, 2);
    cluster.request(2, 0);
    cluster.happened(
        "
        n2 issues o2 Read
            n2 send to n0: Read t2 into frame 2
        n2 > n0: Read t2 into frame 2
        ",
    );
    cluster.dead(2, 1);
    cluster.dead(3, 1);
    cluster.run();
    let home = &cluster.machines[0];
    assert_eq!(home.sharers(crate::cluster::line()).len(), 1);
    assert_eq!(cluster.level(2), Level::Shared);
    assert_eq!(cluster.level(3), Level::Invalid);
}

#[test]
fn retry_arrives_before_the_acknowledgement_that_made_it_necessary() {
    let mut cluster = CoherenceCluster::owned_by(3, 1);
    cluster.write(2, 1);
    cluster.request(2, 0);
    cluster.forward(0, 1);
    cluster.placed(1);
    cluster.write(1, 2);
    cluster.forget();
    cluster.request(1, 0);
    cluster.happened("n1 > n0: Write t2 into frame 1\n");
    cluster.run();
    cluster.at_rest(Some(1), &[]);
    assert_eq!(cluster.held(1).grant, Grant(3));
}

/// A recall of a former grant arrives while a newer one is held and an upgrade is in flight.
#[test]
fn recall_of_a_former_grant_meets_a_newer_one() {
    let mut cluster = CoherenceCluster::shared_by(2, &[1]);
    cluster.write(0, 1);
    cluster.evict(1);
    cluster.request(1, 0);
    cluster.read(1, 2);
    cluster.request(1, 0);
    cluster.reply(0, 1);
    cluster.write(1, 3);
    cluster.forget();
    cluster.forward(0, 1);
    cluster.happened("n0 > n1: Recall g1 down to Invalid\n");
    cluster.run();
    cluster.at_rest(Some(1), &[]);
}

#[test]
fn last_sharer_leaves_while_another_node_waits_for_it() {
    let mut cluster = CoherenceCluster::shared_by(3, &[1]);
    cluster.issue(1, 1, Want::Read, true);
    cluster.write(2, 2);
    cluster.request(2, 0);
    cluster.forward(0, 1);
    cluster.evict(1);
    cluster.forget();
    cluster.unpin(1);
    cluster.happened(
        "
        n1 unpins
            n1 set Invalid
            n1 send to n0: Ack g1 had a clean copy, left Invalid
            n1 release
        ",
    );
    cluster.run();
    cluster.at_rest(Some(2), &[]);
}

#[test]
fn pin_of_a_forgotten_operation_is_dropped() {
    let mut cluster = CoherenceCluster::owned_by(3, 1);
    cluster.issue(1, 1, Want::Write, true);
    cluster.write(2, 2);
    cluster.request(2, 0);
    cluster.forward(0, 1);
    cluster.forget();
    cluster.drop_pins(1);
    cluster.happened(
        "
        n1 drops its pins
            n1 set Invalid
            n1 place in n2 frame 2: Data t1
            n1 send to n0: Ack g1 had the bytes and forwarded them, left Invalid
        ",
    );
    cluster.unpin(1);
    cluster.run();
    cluster.at_rest(Some(2), &[]);
}

#[test]
fn write_back_leaves_a_copy_to_read() {
    let mut cluster = CoherenceCluster::owned_by(2, 1);
    cluster.write_back(1, None);
    cluster.write_back(1, None); // on its way home already
    cluster.write_back(1, Some(7));
    cluster.run();
    cluster.happened(
        "
        n1 writes back
            n1 set Shared g1
            n1 place in n0 memory: WriteBack t2 with the bytes of g1
        n1 writes back
        n1 writes back for o7
        n1 > n0: WriteBack t2 with the bytes of g1
            n0 send to n1: Written t2
            n0 set Shared g0
        n0 > n1: Written t2
            n1 ready o7
        n1 placed
        ",
    );
    cluster.at_rest(None, &[1]);
    cluster.write_back(1, None); // nothing to write
    cluster.happened("n1 writes back\n");
    cluster.write_back(1, Some(8));
    cluster.run();
    cluster.at_rest(None, &[1]);
}

/// A pinned line stays with its owner, and is recalled.
#[test]
fn write_back_of_a_pinned_line_waits_for_the_pin() {
    let mut cluster = CoherenceCluster::owned_by(2, 1);
    cluster.issue(1, 1, Want::Write, true);
    cluster.write_back(1, Some(7));
    cluster.request(1, 0);
    cluster.forward(0, 1);
    cluster.forget();
    cluster.unpin(1);
    cluster.happened(
        "
        n1 unpins
            n1 set Shared g1
            n1 place in n0 memory: Ack g1 had the bytes, left Shared
        ",
    );
    cluster.run();
    cluster.at_rest(None, &[1]);
}

#[test]
fn write_back_answers_a_recall_that_crosses_it() {
    let mut cluster = CoherenceCluster::owned_by(3, 1);
    cluster.read(2, 1);
    cluster.request(2, 0);
    cluster.write_back(1, None);
    cluster.forget();
    cluster.forward(0, 1);
    cluster.happened("n0 > n1: Recall g1 down to Shared, bytes to n2 t1\n");
    cluster.request(1, 0);
    cluster.happened(
        "
        n1 > n0: WriteBack t2 with the bytes of g1
            n0 place in n2 frame 2: Grant t1 g2 Shared, bytes from home
            n0 set Shared g0
            n0 send to n1: Written t2
        ",
    );
    cluster.run();
    cluster.at_rest(None, &[1, 2]);
}

/// The home grants the line only once it has both the bytes and the end of the copy.
#[test]
fn copy_that_is_recalled_across_its_write_back_is_acknowledged() {
    for bytes_first in [false, true] {
        let mut cluster = CoherenceCluster::owned_by(3, 1);
        cluster.write(2, 1);
        cluster.request(2, 0);
        cluster.write_back(1, None);
        cluster.forget();
        cluster.forward(0, 1);
        cluster.happened(
            "
            n0 > n1: Recall g1 down to Invalid, bytes to n2 t1
                n1 set Invalid
                n1 send to n0: Ack g1 had a clean copy, left Invalid
            ",
        );
        if bytes_first {
            cluster.request(1, 0);
            cluster.happened("n1 > n0: WriteBack t2 with the bytes of g1\n");
            cluster.reply(1, 0);
        } else {
            cluster.reply(1, 0);
            cluster.happened("n1 > n0: Ack g1 had a clean copy, left Invalid\n");
            cluster.request(1, 0);
        }
        cluster.run();
        assert_eq!(cluster.held(2).grant, Grant(2), "bytes first: {bytes_first}");
    }
}

/// A recall that was answered by a write-back may still be in flight when the next one of the same grant is sent.
#[test]
fn two_recalls_of_a_grant_may_be_in_flight() {
    let mut cluster = CoherenceCluster::owned_by(2, 1);
    cluster.read(0, 1);
    cluster.write_back(1, None);
    cluster.request(1, 0);
    cluster.reply(0, 1);
    cluster.placed(1);
    cluster.write(0, 2);
    cluster.evict(1);
    cluster.read(1, 3);
    cluster.forget();
    cluster.forward(0, 1);
    cluster.forward(0, 1);
    cluster.happened("n0 > n1: Recall g1 down to Shared\nn0 > n1: Recall g1 down to Invalid\n");
    cluster.run();
    cluster.at_rest(None, &[1]);
}

#[test]
fn operations_wait_across_a_change_of_owner() {
    let mut cluster = CoherenceCluster::owned_by(3, 1);
    cluster.issue(1, 1, Want::Write, true);
    cluster.write(2, 2);
    cluster.request(2, 0);
    cluster.forward(0, 1);
    cluster.issue(1, 3, Want::Write, true);
    cluster.read(1, 4);
    cluster.forget();
    cluster.unpin(1);
    cluster.happened(
        "
        n1 unpins
            n1 set Invalid
            n1 place in n2 frame 2: Data t1
            n1 send to n0: Ack g1 had the bytes and forwarded them, left Invalid
        ",
    );
    cluster.placed(1);
    cluster.run();
    cluster.unpin(1);
    cluster.run();
    cluster.at_rest(Some(1), &[]);
}

#[test]
fn owner_that_gave_its_line_away_waits_for_its_bytes_before_it_asks_again() {
    let mut cluster = CoherenceCluster::owned_by(3, 1);
    cluster.write(2, 1);
    cluster.request(2, 0);
    cluster.forward(0, 1);
    cluster.forget();
    cluster.read(1, 2);
    cluster.happened("n1 issues o2 Read\n");
    cluster.placed(1);
    cluster.happened("n1 placed\n    n1 send to n0: Read t2 into frame 1\n");
    cluster.run();
    cluster.at_rest(None, &[1, 2]);
}

#[test]
fn frame_is_free_only_after_the_last_of_two_places() {
    let mut cluster = CoherenceCluster::owned_by(3, 2);
    cluster.evict(2);
    cluster.read(1, 1);
    cluster.request(1, 0);
    cluster.forward(0, 2);
    cluster.forget();
    cluster.placed(2);
    cluster.happened("n2 placed\n");
    cluster.placed(2);
    cluster.happened("n2 placed\n    n2 release\n");
    cluster.run();
    cluster.at_rest(None, &[1]);
}
