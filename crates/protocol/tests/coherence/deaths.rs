//! A node dies in each of its roles, inside each workflow.

use crate::cluster::{CoherenceCluster, EXTENT, line};
use farside_protocol::coherence::{Level, Want};

#[test]
fn sharer_dies_while_it_is_recalled() {
    let mut cluster = CoherenceCluster::shared_by(3, &[1, 2]);
    cluster.write(0, 1);
    cluster.forward(0, 1);
    cluster.reply(1, 0);
    cluster.forget();
    cluster.dead(0, 2);
    cluster.happened(
        "
        n0 learns that n2 is dead
            n0 set Dirty g0
            n0 ready o1
            n0 drop home n2
        ",
    );
}

#[test]
fn last_sharer_dies_at_rest() {
    let mut cluster = CoherenceCluster::shared_by(2, &[1]);
    cluster.dead(0, 1);
    cluster.happened(
        "
        n0 learns that n1 is dead
            n0 set Dirty g0
            n0 drop home n1
        ",
    );
}

#[test]
fn owner_dies_and_its_line_is_lost_until_it_is_freed() {
    let mut cluster = CoherenceCluster::owned_by(3, 1);
    cluster.dead(0, 1);
    assert!(cluster.machines[0].is_lost(line()));
    cluster.forget();
    cluster.write(0, 1);
    cluster.read(2, 2);
    cluster.run();
    cluster.happened(
        "
        n0 issues o1 Write
            n0 fail o1 LineLost
        n2 issues o2 Read
            n2 send to n0: Read t1 into frame 2
        n2 > n0: Read t1 into frame 2
            n0 send to n2: Refuse t1 LineLost
        n0 > n2: Refuse t1 LineLost
            n2 fail o2 LineLost
            n2 release
        ",
    );
    cluster.retire(3);
    cluster.happened("n0 retires o3\n    n0 set Dirty g0\n    n0 ready o3\n");
    assert!(!cluster.machines[0].is_lost(line()));
}

/// The frame of a request that was forwarded to a node that died may still be written, until the requester has
/// learned of that death itself.
#[test]
fn owner_dies_with_a_forwarded_request() {
    let mut cluster = CoherenceCluster::owned_by(3, 2);
    cluster.write(1, 1);
    cluster.request(1, 0);
    cluster.dead(0, 2);
    cluster.forget();
    cluster.reply(0, 1);
    cluster.happened(
        "
        n0 > n1: Refuse t1 LineLost, forwarded to n2
            n1 fail o1 LineLost
        ",
    );
    cluster.read(1, 2);
    cluster.happened("n1 issues o2 Read\n");
    cluster.dead(1, 2);
    cluster.happened(
        "
        n1 learns that n2 is dead
            n1 send to n0: Read t2 into frame 1
            n1 drop home n2
        ",
    );
    cluster.run();
    assert_eq!(cluster.machines[1].lines_busy(), 0);
}

#[test]
fn bytes_of_a_dead_owner_arrive_after_the_refusal() {
    let mut cluster = CoherenceCluster::owned_by(3, 2);
    cluster.read(1, 1);
    cluster.request(1, 0);
    cluster.forward(0, 2);
    cluster.dead(0, 2);
    cluster.reply(0, 1);
    cluster.forget();
    cluster.reply(2, 1);
    cluster.happened("n2 > n1: Data t1\n    n1 release\n");
    cluster.dead(1, 2);
    assert_eq!(cluster.machines[1].lines_busy(), 0);
}

/// The home has granted the line, and the owner died with the bytes: the line is lost, and its home learns of it.
#[test]
fn owner_dies_between_its_acknowledgement_and_its_bytes_of_a_write() {
    let mut cluster = CoherenceCluster::owned_by(3, 2);
    cluster.write(1, 1);
    cluster.request(1, 0);
    cluster.forward(0, 2);
    cluster.reply(2, 0);
    cluster.reply(0, 1);
    cluster.forget();
    cluster.dead(1, 2);
    cluster.dead(0, 2);
    cluster.read(1, 2);
    cluster.run();
    cluster.happened(
        "
        n1 learns that n2 is dead
            n1 send to n0: Evict g2 dirty
            n1 fail o1 LineLost
            n1 drop home n2
        n0 learns that n2 is dead
            n0 drop home n2
        n1 issues o2 Read
            n1 fail o2 LineLost
        n1 > n0: Evict g2 dirty
            n0 send to n1: Recall g2 down to Invalid
        n0 > n1: Recall g2 down to Invalid
            n1 send to n0: Ack g2 had nothing, left Invalid
            n1 release
        n1 > n0: Ack g2 had nothing, left Invalid
        n2 placed
            n2 release
        ",
    );
    assert!(cluster.machines[0].is_lost(line()));
}

/// As above, with another node waiting for the line.
#[test]
fn lost_ownership_answers_a_recall_that_came_first() {
    let mut cluster = CoherenceCluster::owned_by(3, 2);
    cluster.write(1, 1);
    cluster.request(1, 0);
    cluster.forward(0, 2);
    cluster.reply(2, 0);
    cluster.write(0, 2);
    cluster.forward(0, 1);
    cluster.reply(0, 1);
    cluster.forget();
    cluster.dead(1, 2);
    cluster.reply(1, 0);
    cluster.happened(
        "
        n1 learns that n2 is dead
            n1 send to n0: Ack g2 had nothing, left Invalid
            n1 fail o1 LineLost
            n1 release
            n1 drop home n2
        n1 > n0: Ack g2 had nothing, left Invalid
            n0 fail o2 LineLost
        ",
    );
}

/// The home has the bytes of a line that is read; only the transfer to the requester was lost.
#[test]
fn owner_dies_between_its_acknowledgement_and_its_bytes_of_a_read() {
    let mut cluster = CoherenceCluster::owned_by(3, 2);
    cluster.read(1, 1);
    cluster.request(1, 0);
    cluster.forward(0, 2);
    cluster.reply(2, 0);
    cluster.dead(0, 2);
    cluster.dead(1, 2);
    cluster.forget();
    cluster.reply(0, 1);
    cluster.happened(
        "
        n0 > n1: Grant t1 g2 Shared, bytes from n2
            n1 send to n0: Evict g2 clean
            n1 send to n0: Read t2 into frame 1
        ",
    );
    cluster.run();
    assert_eq!(cluster.level(1), Level::Shared);
    assert!(!cluster.machines[0].is_lost(line()));
}

#[test]
fn requester_dies_in_the_queue() {
    let mut cluster = CoherenceCluster::owned_by(3, 2);
    cluster.write(0, 1);
    cluster.write(1, 2);
    cluster.request(1, 0);
    cluster.dead(0, 1);
    cluster.dead(2, 1);
    cluster.run();
    cluster.at_rest_of(&[0, 2]);
    assert_eq!(cluster.level(0), Level::Dirty);
}

#[test]
fn requester_of_a_forwarded_read_dies() {
    let mut cluster = CoherenceCluster::owned_by(3, 2);
    cluster.read(1, 1);
    cluster.request(1, 0);
    cluster.dead(0, 1);
    cluster.forget();
    cluster.forward(0, 2);
    cluster.reply(2, 0);
    cluster.happened(
        "
        n0 > n2: Recall g1 down to Shared, bytes to n1 t1
            n2 set Shared g1
            n2 place in n1 frame 1: Data t1
            n2 place in n0 memory: Ack g1 had the bytes, left Shared
        n2 > n0: Ack g1 had the bytes, left Shared
            n0 set Shared g0
        ",
    );
    cluster.dead(2, 1);
    cluster.run();
    cluster.at_rest_of(&[0, 2]);
}

#[test]
fn requester_of_a_forwarded_write_dies_with_the_only_bytes() {
    let mut cluster = CoherenceCluster::owned_by(3, 2);
    cluster.write(1, 1);
    cluster.request(1, 0);
    cluster.forward(0, 2);
    cluster.dead(0, 1);
    cluster.reply(2, 0);
    assert!(cluster.machines[0].is_lost(line()));
}

#[test]
fn owner_that_knows_of_the_requesters_death_saves_the_bytes() {
    let mut cluster = CoherenceCluster::owned_by(3, 2);
    cluster.write(1, 1);
    cluster.request(1, 0);
    cluster.dead(2, 1);
    cluster.forget();
    cluster.forward(0, 2);
    cluster.reply(2, 0);
    cluster.happened(
        "
        n0 > n2: Recall g1 down to Invalid, bytes to n1 t1
            n2 set Invalid
            n2 place in n0 memory: Ack g1 had the bytes, left Invalid
        n2 > n0: Ack g1 had the bytes, left Invalid
            n0 set Dirty g0
        ",
    );
    cluster.dead(0, 1);
    assert!(!cluster.machines[0].is_lost(line()));
    cluster.run();
    cluster.at_rest_of(&[0, 2]);
}

#[test]
fn requester_of_an_upgrade_dies_and_leaves_the_list() {
    let mut cluster = CoherenceCluster::shared_by(3, &[1, 2]);
    cluster.write(1, 1);
    cluster.request(1, 0);
    cluster.dead(0, 1);
    cluster.dead(2, 1);
    cluster.run();
    cluster.at_rest_of(&[0, 2]);
    assert_eq!(cluster.level(0), Level::Dirty);
    assert_eq!(cluster.level(2), Level::Invalid);
}

#[test]
fn target_of_a_place_dies() {
    let mut cluster = CoherenceCluster::new(3);
    cluster.write(1, 1);
    cluster.request(1, 0);
    cluster.dead(0, 1);
    cluster.write(2, 2);
    cluster.request(2, 0);
    cluster.dead(2, 1);
    cluster.run();
    cluster.at_rest_of(&[0, 2]);
    assert!(cluster.machines[0].is_lost(line()), "it may have written");
}

#[test]
fn reader_that_bytes_are_placed_for_dies() {
    let mut cluster = CoherenceCluster::new(2);
    cluster.read(1, 1);
    cluster.request(1, 0);
    cluster.forget();
    cluster.dead(0, 1);
    cluster.happened("n0 learns that n1 is dead\n    n0 drop home n1\n");
    cluster.placed(0);
    cluster.happened("n0 placed\n    n0 set Dirty g0\n");
}

#[test]
fn home_dies_with_operations_waiting() {
    let mut cluster = CoherenceCluster::owned_by(3, 2);
    cluster.read(1, 1);
    cluster.write(1, 2);
    cluster.request(1, 0);
    cluster.forward(0, 2);
    cluster.forget();
    cluster.dead(1, 0);
    cluster.happened(
        "
        n1 learns that n0 is dead
            n1 fail o1 NodeLost
            n1 fail o2 NodeLost
            n1 drop home n0
        ",
    );
    cluster.read(1, 3);
    cluster.happened("n1 issues o3 Read\n    n1 fail o3 NodeLost\n");
    cluster.reply(2, 1);
    cluster.happened("n2 > n1: Data t1\n    n1 release\n");
}

/// A dead home sends no answers; its forwards have certainly ended once all nodes know of its death.
#[test]
fn frame_requested_from_a_dead_home_is_free_once_its_death_is_settled() {
    let mut cluster = CoherenceCluster::owned_by(3, 2);
    cluster.read(1, 1);
    cluster.request(1, 0);
    cluster.dead(1, 0);
    cluster.dead(2, 0);
    cluster.forget();
    cluster.settled(1, 0);
    cluster.happened("n1 learns that the death of n0 is settled\n    n1 release\n");
    assert_eq!(cluster.machines[1].lines_busy(), 0);
}

#[test]
fn home_dies_under_an_owner_whose_bytes_are_leaving() {
    let mut cluster = CoherenceCluster::owned_by(3, 2);
    cluster.read(1, 1);
    cluster.request(1, 0);
    cluster.forward(0, 2);
    cluster.forget();
    cluster.dead(2, 0);
    cluster.happened("n2 learns that n0 is dead\n    n2 set Invalid\n    n2 drop home n0\n");
    cluster.placed(2);
    cluster.placed(2);
    cluster.happened("n2 placed\nn2 placed\n    n2 release\n");
}

#[test]
fn home_dies_under_a_pinned_line() {
    let mut cluster = CoherenceCluster::owned_by(2, 1);
    cluster.issue(1, 1, Want::Write, true);
    cluster.forget();
    cluster.dead(1, 0);
    cluster.happened("n1 learns that n0 is dead\n    n1 set Invalid\n    n1 drop home n0\n");
    cluster.unpin(1);
    cluster.happened("n1 unpins\n    n1 release\n");
}

#[test]
fn home_dies_while_a_dirty_line_waits_for_its_eviction() {
    let mut cluster = CoherenceCluster::owned_by(2, 1);
    cluster.evict(1);
    cluster.forget();
    cluster.dead(1, 0);
    cluster.happened(
        "
        n1 learns that n0 is dead
            n1 set Invalid
            n1 release
            n1 drop home n0
        ",
    );
}

#[test]
fn owner_dies_while_its_line_is_freed() {
    let mut cluster = CoherenceCluster::owned_by(2, 1);
    cluster.retire(1);
    cluster.forget();
    cluster.dead(0, 1);
    cluster.happened(
        "
        n0 learns that n1 is dead
            n0 set Dirty g0
            n0 ready o1
            n0 drop home n1
        ",
    );
}

#[test]
fn dead_nodes_are_not_heard_any_more() {
    let mut cluster = CoherenceCluster::shared_by(3, &[1, 2]);
    cluster.dead(0, 1);
    cluster.forget();
    cluster.evict(1);
    cluster.request(1, 0);
    cluster.happened(
        "
        n1 evicts
            n1 set Invalid
            n1 send to n0: Evict g1 clean
            n1 release
        n1 > n0: Evict g1 clean
        ",
    );
}

/// A write that continues into the line from another allocation is refused, so it must not heal the line first.
#[test]
fn lost_line_is_not_healed_by_a_write_out_of_bounds() {
    let overwrite = |continues| Want::Overwrite { covers: EXTENT.bytes, continues };
    for node in [0, 2] {
        let mut cluster = CoherenceCluster::owned_by(3, 1);
        cluster.dead(0, 1);
        cluster.dead(2, 1);
        cluster.issue(node, 1, overwrite(true), false);
        cluster.run();
        assert!(cluster.machines[0].is_lost(line()), "node {node}");
        assert_eq!(cluster.level(node), Level::Invalid);
        cluster.at_rest_of(&[0, 2]);
        cluster.issue(node, 2, overwrite(true), false);
        cluster.issue(node, 3, overwrite(false), false);
        cluster.run();
        assert!(!cluster.machines[0].is_lost(line()), "node {node}");
        assert_eq!(cluster.level(node), Level::Dirty);
        cluster.at_rest_of(&[0, 2]);
    }
}
