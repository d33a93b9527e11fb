//! Nodes with state: which numbers they have, and when they return.

use super::*;

const KNOWN: Keeps = Keeps::Known { node: NodeId(2), generation: Generation(0), names: true };

fn known(node: u16, generation: u16) -> Keeps {
    Keeps::Known { node: NodeId(node), generation: Generation(generation), names: true }
}

fn joins(life: u64, keeps: Keeps) -> MemberEvent {
    asked_to_join(life, Join { keeps, ..join(life) })
}

/// Admits a node and returns its welcome.
#[track_caller]
fn admit(machine: &mut Membership, life: u64, keeps: Keeps) -> Welcome {
    let mut effects = Effects::new();
    machine.step(joins(life, keeps), &mut effects).unwrap();
    match effects.pop() {
        Some(MemberEffect::Admit { welcome, .. }) => welcome,
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn number(machine: &mut Membership, life: u64, keeps: Keeps) -> u16 {
    admit(machine, life, keeps).node.0
}

/// Refuses a node and returns the refusal.
#[track_caller]
fn refuse(machine: &mut Membership, life: u64, keeps: Keeps) -> JoinRefusal {
    let mut effects = Effects::new();
    machine.step(joins(life, keeps), &mut effects).unwrap();
    match effects.pop() {
        Some(MemberEffect::Deny { refusal, .. }) => refusal,
        other => panic!("{other:?}"),
    }
}

fn founder_of(nodes_max: u16, keeps: Keeps) -> Membership {
    let settings = FounderSettings { nodes_max, leases: LEASES };
    let mut machine = Membership::new(Identity { settings, keeps, ..identity(0) });
    check(&mut machine, MemberEvent::Found, &["ready"]);
    machine
}

/// Links an admitted node, which is ready then, and ends it.
fn link_and_lose(machine: &mut Membership, welcome: &Welcome, life: u64) {
    let asked = asked_for_link(900, peer(welcome.node.0, life, welcome.view.0));
    machine.step(asked, &mut Effects::new()).unwrap();
    machine.step(link_lost(welcome.node.0), &mut Effects::new()).unwrap();
}

/// The founder of a cluster of four whose node 2, with state, was ready and has ended.
fn state_away() -> Membership {
    let mut machine = founder();
    let welcome = admit(&mut machine, 2, Keeps::New);
    assert_eq!((welcome.node, welcome.memory), (NodeId(2), Some(Generation(0))));
    link_and_lose(&mut machine, &welcome, 2);
    machine
}

#[test]
fn nodes_with_state_have_the_upper_half_and_others_the_lower_half_first() {
    let mut machine = founder_of(6, Keeps::Nothing);
    assert_eq!(number(&mut machine, 1, Keeps::New), 3);
    assert_eq!(number(&mut machine, 2, Keeps::Nothing), 1);
    assert_eq!(number(&mut machine, 3, Keeps::New), 4);
    assert_eq!(number(&mut machine, 4, Keeps::Nothing), 2);
    assert_eq!(number(&mut machine, 5, Keeps::Nothing), 5, "the lower half is in use");
    assert!(machine.keeps(NodeId(3)) && machine.keeps(NodeId(4)) && !machine.keeps(NodeId(5)));
    let refusal = refuse(&mut machine, 6, Keeps::New);
    assert_eq!(refusal.code, ErrorCode::ClusterFull);
}

#[test]
fn founder_with_state_has_its_number_and_generation() {
    let machine = founder_of(4, Keeps::New);
    assert_eq!(machine.memory(), MemoryId::new(NodeId(2), Generation(0)));
    let mut machine = founder_of(4, known(3, 7));
    assert_eq!(machine.memory(), MemoryId::new(NodeId(3), Generation(7)));
    assert_eq!(machine.next_generation(NodeId(3)), Generation(8));
    assert!(machine.keeps(NodeId(3)) && machine.is_coordinator());
    assert_eq!(number(&mut machine, 1, Keeps::Nothing), 0);
    let only = founder_of(1, Keeps::New);
    assert_eq!(only.node(), Some(NodeId(0)));
    let settings = FounderSettings { nodes_max: 4, leases: LEASES };
    let keeps = known(4, 0);
    let mut outside = Membership::new(Identity { settings, keeps, ..identity(0) });
    check(&mut outside, MemberEvent::Found, &["failed BadConfiguration"]);
}

#[test]
fn number_of_a_node_with_state_that_is_away_is_given_to_no_other() {
    let mut machine = state_away();
    check(&mut machine, settled(2, 2), &[]);
    assert_eq!(number(&mut machine, 3, Keeps::Nothing), 1);
    assert_eq!(number(&mut machine, 4, Keeps::Nothing), 3);
    let refusal = refuse(&mut machine, 5, Keeps::Nothing);
    assert_eq!(refusal.code, ErrorCode::ClusterFull);
    assert!(refusal.text.contains("1 of the permitted numbers are those of nodes with state"));
    assert_eq!(refuse(&mut machine, 5, Keeps::New).code, ErrorCode::ClusterFull);
    assert_eq!(admit(&mut machine, 6, KNOWN).memory, Some(Generation(0)));
    assert_eq!(machine.next_generation(NodeId(2)), Generation(1));
}

#[test]
fn return_waits_until_the_removal_is_settled() {
    let mut machine = founder();
    let welcome = admit(&mut machine, 2, Keeps::New);
    let refusal = refuse(&mut machine, 3, KNOWN);
    assert_eq!(refusal.code, ErrorCode::Busy, "it is a member");
    assert!(refusal.text.contains("with this state directory is a member"), "{}", refusal.text);
    link_and_lose(&mut machine, &welcome, 2);
    let memory = MemoryId::new(NodeId(2), Generation(0)).unwrap();
    assert!(machine.keeps_memory(memory) && !machine.is_alive(NodeId(2)));
    let refusal = refuse(&mut machine, 3, KNOWN);
    assert_eq!(refusal.code, ErrorCode::Busy);
    assert!(refusal.text.contains("have not settled the removal"), "{}", refusal.text);
    check(&mut machine, settled(2, 2), &[]);
    let welcome = admit(&mut machine, 3, KNOWN);
    assert_eq!((welcome.node, welcome.memory), (NodeId(2), Some(Generation(0))));
    assert_eq!(welcome.generations, [lent(0, 1, false), lent(2, 1, true)]);
    assert_eq!(refuse(&mut machine, 4, KNOWN).code, ErrorCode::Busy, "a second process");
}

#[test]
fn return_with_earlier_memory_or_to_the_number_of_another_node_is_refused() {
    let mut machine = founder_of(4, known(3, 7));
    let all_settled = |view| heard(0, MemberMessage::Settled { number: ViewNumber(view) });
    let foreign = |machine: &mut Membership, life, keeps| {
        let refusal = refuse(machine, life, keeps);
        assert_eq!(refusal.code, ErrorCode::StateForeign);
        assert!(refusal.text.contains("an empty one to join as a new node"), "{}", refusal.text);
        refusal.text
    };
    assert!(foreign(&mut machine, 1, known(3, 6)).contains("node 3 of this cluster is another"));
    assert_eq!(number(&mut machine, 1, Keeps::Nothing), 0);
    assert!(foreign(&mut machine, 2, known(0, 0)).contains("node 0 of this cluster is another"));
    // An ordinary node has had the very memory.
    let welcome = admit(&mut machine, 2, Keeps::Nothing);
    assert_eq!(welcome.node, NodeId(1));
    link_and_lose(&mut machine, &welcome, 2);
    check(&mut machine, settled(1, 3), &[]);
    check(&mut machine, all_settled(4), &[]);
    assert!(foreign(&mut machine, 3, known(1, 0)).contains("has had memory of generation 0"));
    // Later memory than any of this cluster is a node's of an earlier run of the cluster.
    assert_eq!(admit(&mut machine, 3, known(1, 5)).memory, Some(Generation(5)));
    let request = RequestId(3);
    check(&mut machine, MemberEvent::RequestLost { request }, &["dead 1"]);
    check(&mut machine, settled(1, 5), &[]);
    check(&mut machine, all_settled(6), &[]);
    let text = foreign(&mut machine, 4, known(1, 4));
    assert!(
        text.contains(
            "of generation 5 in this cluster, and the state directory is of generation 4"
        )
    );
    assert_eq!(number(&mut machine, 4, known(1, 5)), 1, "its join had failed");
    assert_eq!(refuse(&mut machine, 5, known(4, 0)).code, ErrorCode::BadConfiguration);
}

#[test]
fn node_with_state_lends_memory() {
    let mut machine = founder();
    for keeps in [Keeps::New, KNOWN] {
        let program = Join { keeps, ..join(PROGRAM) };
        check(&mut machine, asked_to_join(1, program), &["deny 1 BadConfiguration"]);
    }
}

#[test]
fn failed_join_of_a_new_node_with_state_uses_no_number_up() {
    let mut machine = founder();
    for life in 1..4 {
        let welcome = admit(&mut machine, life, Keeps::New);
        assert_eq!((welcome.node, welcome.memory), (NodeId(2), Some(Generation(0))));
        let request = RequestId(life);
        check(&mut machine, MemberEvent::RequestLost { request }, &["dead 2"]);
        check(&mut machine, settled(2, welcome.view.0), &[]);
    }
    // The same of one that returned does not give its memory to a new one.
    let mut machine = state_away();
    check(&mut machine, settled(2, 2), &[]);
    let welcome = admit(&mut machine, 5, KNOWN);
    let request = RequestId(5);
    check(&mut machine, MemberEvent::RequestLost { request }, &["dead 2"]);
    check(&mut machine, settled(2, welcome.view.0), &[]);
    assert_eq!(number(&mut machine, 6, Keeps::New), 3);
    assert_eq!(number(&mut machine, 7, KNOWN), 2);
}

#[test]
fn next_coordinator_keeps_the_numbers_of_nodes_with_state() {
    // Node 1 learns of node 3 from its welcome, and of node 2 from a view.
    let mut machine = Membership::new(identity(1));
    let mut welcome = welcome(1, 3, &[0]);
    welcome.generations.push(lent(3, 5, true));
    check(&mut machine, MemberEvent::Joined(welcome), &["connect 0"]);
    check(&mut machine, link_up(0), &["ready"]);
    let view_of = |number, change| {
        let member = ListedMember { state: true, names: true, born: ViewNumber(4), ..listed(2, 2) };
        heard(0, MemberMessage::View { number: ViewNumber(number), member, change })
    };
    check(&mut machine, view_of(4, Change::Joined), &[]);
    check(&mut machine, view_of(5, Change::Died), &["dead 2"]);
    check(&mut machine, settled(2, 4), &["to 0: settled 5"]);
    let kept = "view gives the number of a node with state to another node";
    check_violation(&machine, 0, view(6, 2, 9, true), kept);
    check_violation(&machine, 0, view(6, 2, PROGRAM, true), kept);
    check(&mut machine, link_lost(0), &["dead 0", "coordinator"]);
    check(&mut machine, settled(0, 1), &[]);
    assert!(machine.keeps(NodeId(2)) && machine.keeps(NodeId(3)));
    assert_eq!(number(&mut machine, 7, Keeps::Nothing), 0);
    assert_eq!(refuse(&mut machine, 8, Keeps::Nothing).code, ErrorCode::ClusterFull);
    assert_eq!(admit(&mut machine, 8, known(3, 4)).memory, Some(Generation(4)));
    assert_eq!(admit(&mut machine, 9, KNOWN).memory, Some(Generation(0)));
}

#[test]
fn node_that_returns_takes_only_its_own_memory() {
    let returning = || Membership::new(identity(2)).with_keeps(KNOWN);
    check(&mut returning(), MemberEvent::Joined(welcome(2, 7, &[0])), &["connect 0"]);
    let impossible = &["failed ProtocolViolation"];
    check(&mut returning(), MemberEvent::Joined(welcome(3, 7, &[0])), impossible);
    let other = Welcome { memory: Some(Generation(1)), ..welcome(2, 7, &[0]) };
    check(&mut returning(), MemberEvent::Joined(other), impossible);
}
