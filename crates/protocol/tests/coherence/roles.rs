//! Each role with several operations on one line: order, merging, pins, freeing.

use crate::cluster::CoherenceCluster;
use farside_base::{Grant, Limits, NodeId, Ticket};
use farside_protocol::coherence::{
    Coherence, CoherenceEffect, CoherenceEvent, CoherenceMessage, Effects, Frame, Here, Level, Want,
};

#[test]
fn operations_of_one_node_share_one_request() {
    let mut cluster = CoherenceCluster::new(2);
    cluster.read(1, 1);
    cluster.read(1, 2);
    cluster.read(1, 3);
    cluster.run();
    cluster.happened(
        "
        n1 issues o1 Read
            n1 send to n0: Read t1 into frame 1
        n1 issues o2 Read
        n1 issues o3 Read
        n1 > n0: Read t1 into frame 1
            n0 set Shared g0
            n0 place in n1 frame 1: Grant t1 g1 Shared, bytes from home
        n0 > n1: Grant t1 g1 Shared, bytes from home
            n1 set Shared g1
            n1 ready o1
            n1 ready o2
            n1 ready o3
        n0 placed
        ",
    );
    assert_eq!(cluster.machines[1].counters().operations_merged, 2);
}

#[test]
fn reads_after_a_write_are_served_by_its_grant_in_the_order_of_issue() {
    let mut cluster = CoherenceCluster::new(2);
    cluster.write(1, 1);
    cluster.read(1, 2);
    cluster.write(1, 3);
    cluster.request(1, 0);
    cluster.forget();
    cluster.reply(0, 1);
    cluster.happened(
        "
        n0 > n1: Grant t1 g1 Dirty, bytes from home
            n1 set Dirty g1
            n1 ready o1
            n1 ready o2
            n1 ready o3
        ",
    );
}

#[test]
fn write_after_a_read_upgrades_when_the_read_is_granted() {
    let mut cluster = CoherenceCluster::new(2);
    cluster.read(1, 1);
    cluster.write(1, 2);
    cluster.read(1, 3);
    cluster.request(1, 0);
    cluster.forget();
    cluster.reply(0, 1);
    cluster.happened(
        "
        n0 > n1: Grant t1 g1 Shared, bytes from home
            n1 set Shared g1
            n1 ready o1
            n1 send to n0: Write t2 into frame 1, holds g1
        ",
    );
    cluster.run();
    cluster.at_rest(Some(1), &[]);
}

#[test]
fn home_is_a_requester_like_others_and_waits_its_turn() {
    let mut cluster = CoherenceCluster::owned_by(3, 2);
    cluster.read(1, 1);
    cluster.request(1, 0);
    cluster.write(0, 2);
    cluster.read(0, 3);
    cluster.read(2, 4);
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
            n0 send to n1: Grant t1 g2 Shared, bytes from n2
            n0 send to n1: Recall g2 down to Invalid
            n0 send to n2: Recall g1 down to Invalid
        ",
    );
    cluster.run();
    cluster.at_rest(None, &[]);
    assert_eq!(cluster.level(0), Level::Dirty);
}

#[test]
fn readers_are_served_while_bytes_for_others_are_on_their_way() {
    let mut cluster = CoherenceCluster::new(4);
    for node in 1..4 {
        cluster.read(node, u64::from(node));
        cluster.request(node, 0);
    }
    assert_eq!(cluster.in_flight(), 3, "three grants");
    cluster.write(0, 9);
    cluster.read(0, 10);
    for node in 1..4 {
        cluster.reply(0, node);
        cluster.forward(0, node);
        cluster.reply(node, 0);
    }
    cluster.placed(0);
    cluster.forget();
    cluster.placed(0);
    cluster.happened("n0 placed\n");
    cluster.placed(0);
    cluster.happened("n0 placed\n    n0 set Dirty g0\n    n0 ready o9\n    n0 ready o10\n");
    cluster.at_rest(None, &[]);
}

#[test]
fn pinned_line_of_the_home_is_not_lowered() {
    let mut cluster = CoherenceCluster::new(2);
    cluster.issue(0, 1, Want::Write, true);
    cluster.write(1, 2);
    cluster.forget();
    cluster.request(1, 0);
    cluster.happened("n1 > n0: Write t1 into frame 1\n");
    cluster.unpin(0);
    cluster.happened(
        "
        n0 unpins
            n0 set Invalid
            n0 place in n1 frame 1: Grant t1 g1 Dirty, bytes from home
        ",
    );
    cluster.run();
    cluster.at_rest(Some(1), &[]);
}

#[test]
fn recall_of_a_pinned_line_waits_for_the_last_pin_and_later_operations_wait_behind_it() {
    let mut cluster = CoherenceCluster::owned_by(2, 1);
    cluster.issue(1, 1, Want::Write, true);
    cluster.issue(1, 2, Want::Read, true);
    cluster.write(0, 3);
    cluster.forget();
    cluster.forward(0, 1);
    cluster.issue(1, 4, Want::Write, true);
    cluster.unpin(1);
    cluster.happened(
        "
        n0 > n1: Recall g1 down to Invalid
        n1 issues o4 Write, pinned
        n1 unpins
        ",
    );
    cluster.unpin(1);
    cluster.happened(
        "
        n1 unpins
            n1 set Invalid
            n1 place in n0 memory: Ack g1 had the bytes, left Invalid
        ",
    );
    cluster.run();
    cluster.unpin(1);
    cluster.run();
    cluster.at_rest(Some(1), &[]);
}

#[test]
fn eviction_of_a_line_in_transition_is_ignored() {
    let mut cluster = CoherenceCluster::shared_by(2, &[1]);
    cluster.write(1, 1);
    cluster.forget();
    cluster.evict(1);
    cluster.happened("n1 evicts\n");
    cluster.run();
    cluster.issue(1, 2, Want::Read, true);
    cluster.forget();
    cluster.evict(1);
    cluster.happened("n1 evicts\n");
    cluster.unpin(1);
    cluster.at_rest(Some(1), &[]);
}

#[test]
fn freeing_a_shared_line_recalls_everybody_and_refuses_the_rest() {
    let mut cluster = CoherenceCluster::shared_by(4, &[1, 2]);
    cluster.write(1, 1);
    cluster.write(3, 2);
    cluster.request(3, 0);
    cluster.request(1, 0);
    cluster.forget();
    cluster.retire(3);
    cluster.happened(
        "
        n0 retires o3
            n0 send to n1: Refuse t2 Unallocated
        ",
    );
    cluster.read(0, 4);
    cluster.happened("n0 issues o4 Read\n    n0 fail o4 Unallocated\n");
    cluster.run();
    cluster.unallocate();
    assert_eq!((1..4).map(|node| cluster.level(node)).max(), Some(Level::Invalid));
    cluster.at_rest(None, &[]);
    cluster.read(1, 5);
    cluster.run();
    cluster.write(0, 6);
    cluster.forget();
    cluster.read(2, 7);
    cluster.run();
    cluster.happened(
        "
        n2 issues o7 Read
            n2 send to n0: Read t2 into frame 2
        n2 > n0: Read t2 into frame 2
            n0 send to n2: Refuse t2 Unallocated
        n0 > n2: Refuse t2 Unallocated
            n2 fail o7 Unallocated
            n2 release
        ",
    );
}

#[test]
fn freeing_twice_fails_the_second_time() {
    let mut cluster = CoherenceCluster::owned_by(2, 1);
    cluster.retire(1);
    cluster.forget();
    cluster.retire(2);
    cluster.happened("n0 retires o2\n    n0 fail o2 Unallocated\n");
    cluster.run();
    cluster.at_rest(None, &[]);
}

#[test]
fn free_of_an_unshared_line_is_ready_at_once() {
    let mut cluster = CoherenceCluster::new(2);
    cluster.retire(1);
    cluster.happened("n0 retires o1\n    n0 ready o1\n");
}

/// Identifiers have 64 bits: numbers continue after the last 32-bit one.
#[test]
fn grants_do_not_wrap() {
    let mut cluster = CoherenceCluster::new(3);
    cluster.machines[0].continue_grants(Grant(u64::from(u32::MAX) - 1));
    for round in 0..4 {
        cluster.write(1 + round % 2, u64::from(round));
        cluster.run();
    }
    assert_eq!(cluster.held(2).grant, Grant(u64::from(u32::MAX) + 3));
    cluster.at_rest(Some(2), &[]);
}

/// As many sharers as a cluster has nodes, each once, all recalled.
#[test]
fn every_node_of_a_full_cluster_can_share_a_line() {
    let nodes = Limits::DEFAULT.nodes_max;
    let mut home = Coherence::new(NodeId(0), &Limits::DEFAULT);
    let mut effects = Effects::new();
    let line = crate::cluster::line();
    let here = Here { extent: Some(crate::cluster::EXTENT), ..Here::default() };
    for node in (1..nodes).rev() {
        let message = CoherenceMessage::Read { line, frame: Frame(0), ticket: Ticket(1) };
        let from = NodeId(node);
        home.step(CoherenceEvent::Received { from, message, here }, &mut effects).unwrap();
        home.step(CoherenceEvent::Placed { line, here }, &mut effects).unwrap();
    }
    home.invariants().unwrap();
    assert_eq!(home.sharers(line).len(), usize::from(nodes) - 1);
    effects.clear();
    let issue = CoherenceEvent::Issue {
        operation: farside_base::OperationId(1),
        line,
        want: Want::Write,
        pin: false,
        frame: Frame(0),
        here,
    };
    home.step(issue, &mut effects).unwrap();
    let to: Vec<u16> = effects
        .iter()
        .filter_map(|effect| match effect {
            CoherenceEffect::Send { to, .. } => Some(to.0),
            _ => None,
        })
        .collect();
    let everybody: Vec<u16> = (1..nodes).collect();
    assert_eq!(to, everybody);
}
