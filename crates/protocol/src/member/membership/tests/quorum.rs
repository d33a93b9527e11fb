//! Unreachable members, and deaths on fabrics where a lost link does not mean a dead member.

use super::*;

/// One of three members, on a fabric where a lost link does not mean a dead member.
pub(super) fn of_three(me: u16) -> Membership {
    let mut machine = match me {
        0 => {
            let mut machine = Membership::new(identity(0)).in_a_quorum();
            check(&mut machine, MemberEvent::Found, &["ready"]);
            machine
        }
        _ => {
            let mut machine = Membership::new(identity(u64::from(me))).in_a_quorum();
            let below: Vec<u16> = (0..me).collect();
            let welcome = welcome(me, u64::from(me) + 1, &below);
            machine.step(MemberEvent::Joined(welcome), &mut Effects::new()).unwrap();
            for node in below {
                machine.step(link_up(node), &mut Effects::new()).unwrap();
            }
            machine
        }
    };
    let mut ignored = Effects::new();
    for node in me + 1..3 {
        let (life, number) = (u64::from(node), u64::from(node) + 1);
        let named = match me {
            0 => asked_to_join(life, join(life)),
            _ => heard(0, view(number, node, life, true)),
        };
        machine.step(named, &mut ignored).unwrap();
        machine.step(asked_for_link(100 + life, peer(node, life, number)), &mut ignored).unwrap();
    }
    assert!(machine.is_ready());
    machine
}

fn out_of_reach(node: u16) -> MemberEvent {
    MemberEvent::OutOfReach { node: NodeId(node) }
}

fn suspect(node: u16) -> MemberMessage {
    MemberMessage::Suspect { node: NodeId(node), incarnation: Incarnation(u64::from(node)) }
}

fn suspect_of(node: u16, life: u64) -> MemberMessage {
    MemberMessage::Suspect { node: NodeId(node), incarnation: Incarnation(life) }
}

#[test]
fn coordinator_removes_members_cut_off_by_a_quorum() {
    let mut first = of_three(0);
    let called = ["cut 2", "to 1: suspect 2", "to 1: vote 1"];
    check(&mut first, out_of_reach(2), &called);
    check(&mut first, out_of_reach(2), &[]);
    check(&mut first, heard(2, MemberMessage::Leave { saved: false, names: false }), &[]);
    let buried = ["removed 2", "to 1: view 4 2 removed"];
    check(&mut first, heard(1, MemberMessage::Voted { round: 1 }), &buried);
    check_violation(
        &first,
        1,
        MemberMessage::Voted { round: 2 },
        "answer to a vote that was not called",
    );

    let mut second = of_three(1);
    check(&mut second, heard(0, suspect(2)), &["cut 2"]);
    check(&mut second, heard(0, MemberMessage::Vote { round: 1 }), &["to 0: voted 1"]);
    check(&mut second, heard(0, view(4, 2, 2, false)), &["dead 2"]);
}

#[test]
fn member_reports_its_suspects_and_waits_for_the_decision() {
    let mut last = of_three(2);
    check(&mut last, out_of_reach(1), &["cut 1", "to 0: suspect 1"]);
    let mut first = of_three(0);
    check(&mut first, heard(2, suspect(1)), &["judge later"]);
    check(&mut first, heard(1, suspect(2)), &[]);
    // Both lend memory and accuse each other: the one admitted last is removed.
    check(&mut first, MemberEvent::Judge, &["cut 2", "to 1: suspect 2", "to 1: vote 1"]);
}

#[test]
fn member_with_several_broken_links_goes_and_not_its_accusers() {
    let mut first = founder_with(&[1, 2, 3]);
    check(&mut first, heard(3, suspect(1)), &["judge later"]);
    check(&mut first, heard(2, suspect(1)), &[]);
    let called = ["to 2: suspect 1", "to 2: vote 1", "to 3: suspect 1", "to 3: vote 1"];
    check(&mut first, MemberEvent::Judge, &[&["cut 1"][..], &called].concat());
}

#[test]
fn program_takes_no_server_along() {
    let mut first = founder_with(&[PROGRAM + 1, 2]);
    check(&mut first, heard(1, suspect(2)), &["judge later"]);
    let removed =
        ["cut 1", "to 2: suspect 1", "to 2: vote 1", "removed 1", "to 2: view 4 1 removed"];
    check(&mut first, MemberEvent::Judge, &removed);
}

#[test]
fn accusations_of_members_that_are_removed_meanwhile_do_not_count() {
    let mut first = founder_with(&[1, 2, 3]);
    check(&mut first, heard(2, suspect(1)), &["judge later"]);
    let lost = ["dead 1", "to 2: vote 1", "to 3: vote 1"];
    check(&mut first, MemberEvent::LinkLost { node: NodeId(1) }, &lost);
    check(&mut first, MemberEvent::Judge, &[]);
}

/// Members that reach only the coordinator: it removes them a few at a time, and remains.
#[test]
fn accusations_of_all_members_leave_the_coordinator_a_quorum() {
    let mut first = founder_with(&[1, 2, 3]);
    first.identity.settings.nodes_max = 5;
    for event in [asked_to_join(4, join(4)), asked_for_link(104, peer(4, 4, 5))] {
        first.step(event, &mut Effects::new()).unwrap();
    }
    for (by, node) in [(1, 2), (1, 3), (1, 4), (2, 3), (2, 4), (3, 4)] {
        first.step(heard(by, suspect(node)), &mut Effects::new()).unwrap();
    }
    let called = ["to 1: suspect 4", "to 1: suspect 3", "to 1: vote 1"];
    let mut effects = Effects::new();
    first.step(MemberEvent::Judge, &mut effects).unwrap();
    let lines: Vec<String> = effects.iter().map(told).collect();
    assert!(lines.starts_with(&["cut 4".into(), "cut 3".into()]), "{lines:?}");
    assert!(
        lines.contains(&called[2].into()) && lines.contains(&"to 2: vote 1".into()),
        "{lines:?}"
    );
    // With one answer and its own it is a quorum of five minus one; with both the rest is judged.
    check(&mut first, heard(1, MemberMessage::Voted { round: 1 }), &[]);
    let mut effects = Effects::new();
    first.step(heard(2, MemberMessage::Voted { round: 1 }), &mut effects).unwrap();
    let lines: Vec<String> = effects.iter().map(told).collect();
    assert!(lines.contains(&"cut 2".into()) && lines.contains(&"to 1: vote 2".into()), "{lines:?}");
    first.step(heard(1, MemberMessage::Voted { round: 2 }), &mut Effects::new()).unwrap();
    let left: Vec<NodeId> = first.alive().map(|(node, _)| node).collect();
    assert_eq!(left, [NodeId(0), NodeId(1)]);
    assert!(first.is_coordinator());
}

/// The dead member may have voted in another partition, of which the coordinator does not know.
#[test]
fn certain_death_counts_in_quorums_until_all_members_have_confirmed_it() {
    let mut first = of_three(0);
    check(&mut first, link_lost(2), &["dead 2", "to 1: vote 1"]);
    let refused = asked_to_join(3, join(3));
    check(&mut first, refused.clone(), &["deny 3 Busy"]);
    let mut alone = first.clone();
    check(&mut alone, out_of_reach(1), &["cut 1", "failed Isolated"]);
    check(&mut first, heard(1, MemberMessage::Voted { round: 1 }), &["to 1: view 4 2 went"]);
    check(&mut first, out_of_reach(1), &["cut 1", "removed 1"]);
    assert!(first.is_coordinator());
    // With suspects a quorum decides, in which the dead member counts.
    let mut first = founder_with(&[1, 2, 3]);
    first.step(out_of_reach(3), &mut Effects::new()).unwrap();
    let called = ["dead 2", "to 1: suspect 3", "to 1: vote 2"];
    check(&mut first, link_lost(2), &called);
    let removed = ["removed 3", "to 1: view 5 2 went", "to 1: view 6 3 removed"];
    check(&mut first, heard(1, MemberMessage::Voted { round: 2 }), &removed);
}

#[test]
fn joiner_confirms_a_death_and_gives_way_to_suspects() {
    let mut joiner = Membership::new(identity(2)).in_a_quorum();
    joiner.step(MemberEvent::Joined(welcome(2, 3, &[0, 1])), &mut Effects::new()).unwrap();
    joiner.step(link_up(0), &mut Effects::new()).unwrap();
    check(&mut joiner, heard(0, MemberMessage::Vote { round: 1 }), &["to 0: voted 1"]);
    joiner.step(heard(0, suspect(1)), &mut Effects::new()).unwrap();
    check(&mut joiner, heard(0, MemberMessage::Vote { round: 2 }), &["failed Isolated"]);
}

#[test]
fn accusations_are_repeated_to_a_new_coordinator() {
    let mut last = of_three(2);
    check(&mut last, out_of_reach(1), &["cut 1", "to 0: suspect 1"]);
    let mut second = of_three(1);
    check(&mut second, MemberEvent::LinkLost { node: NodeId(0) }, &["dead 0", "to 2: takeover 3"]);
    check(&mut second, heard(2, suspect(0)), &[]);
}

#[test]
fn leave_waits_until_suspects_are_judged() {
    let mut first = of_three(0);
    check(
        &mut first,
        MemberEvent::Leave { saved: false, names: false },
        &["to 1: leave", "to 2: leave"],
    );
    check(&mut first, heard(1, MemberMessage::LeaveHeard), &[]);
    check(&mut first, out_of_reach(2), &["cut 2", "to 1: suspect 2", "to 1: vote 1"]);
    check(
        &mut first,
        heard(1, MemberMessage::Voted { round: 1 }),
        &["removed 2", "to 1: view 4 2 removed", "to 1: left", "closed"],
    );
}

#[test]
fn smaller_partition_gives_up() {
    let mut first = of_three(0);
    check(&mut first, out_of_reach(1), &["cut 1", "to 2: suspect 1", "to 2: vote 1"]);
    check(&mut first, out_of_reach(2), &["cut 2", "failed Isolated"]);
    let mut last = of_three(2);
    check(&mut last, out_of_reach(0), &["cut 0", "to 1: suspect 0"]);
    check(&mut last, out_of_reach(1), &["cut 1", "failed Isolated"]);
}

#[test]
fn larger_partition_continues_without_its_coordinator() {
    let mut second = of_three(1);
    check(&mut second, out_of_reach(0), &["cut 0", "to 2: takeover 3"]);
    // Node 2 may still reach node 0: it cuts it off before it answers.
    let called = ["coordinator", "to 2: suspect 0", "to 2: vote 1"];
    check(&mut second, heard(2, report(3)), &called);
    let removed = ["removed 0", "to 2: view 4 0 removed"];
    check(&mut second, heard(2, MemberMessage::Voted { round: 1 }), &removed);
}

#[test]
fn member_that_may_live_is_removed_and_not_ended() {
    let view = heard(0, view(4, 2, 2, false));
    check(&mut of_three(1), view, &["dead 2"]);
    let (number, member) = (ViewNumber(4), listed(2, 2));
    let view = MemberMessage::View { number, member, change: Change::Removed };
    check(&mut of_three(1), heard(0, view), &["removed 2"]);
    let lost = |ended| MemberMessage::Lost { node: NodeId(2), incarnation: Incarnation(2), ended };
    for event in [heard(1, lost(false)), MemberEvent::Dropped { node: NodeId(2) }] {
        let mut first = of_three(0);
        check(&mut first, event, &["removed 2", "to 1: vote 1"]);
        check(&mut first, heard(1, MemberMessage::Voted { round: 1 }), &["to 1: view 4 2 removed"]);
    }
    for event in [heard(1, lost(true)), link_lost(2)] {
        let mut first = of_three(0);
        check(&mut first, event, &["dead 2", "to 1: vote 1"]);
        check(&mut first, heard(1, MemberMessage::Voted { round: 1 }), &["to 1: view 4 2 went"]);
    }
    // It uses nothing of this node any more; other members may not know that.
    let mut first = of_three(0);
    check(
        &mut first,
        heard(2, MemberMessage::Leave { saved: false, names: false }),
        &["to 2: leave heard"],
    );
    check(&mut first, heard(1, lost(false)), &["gone 2", "to 1: vote 1"]);
    check(&mut first, heard(1, MemberMessage::Voted { round: 1 }), &["to 1: view 4 2 removed"]);
}

#[test]
fn member_linked_during_a_vote_is_sent_the_suspects() {
    let mut first = founder_with(&[1, 2, 3]);
    first.identity.settings.nodes_max = 5;
    first.step(asked_to_join(4, join(PROGRAM + 4)), &mut Effects::new()).unwrap();
    first.step(out_of_reach(1), &mut Effects::new()).unwrap();
    let asked = asked_for_link(104, peer(4, PROGRAM + 4, 5));
    check(&mut first, asked, &["accept 104 from 4", "to 4: suspect 1"]);
}

#[test]
fn member_that_reaches_the_coordinator_defers_a_takeover() {
    let mut last = of_three(2);
    let takeover = MemberMessage::Takeover { number: ViewNumber(3) };
    check(&mut last, heard(1, takeover), &[]);
    let told = ["cut 0", "to 1: suspect 0", "to 1: suspect 0", "to 1: report 3"];
    check(&mut last, out_of_reach(0), &told);
}

#[test]
fn member_expelled_by_the_coordinator_stops() {
    let mut last = of_three(2);
    check(&mut last, MemberEvent::Expelled { by: NodeId(0) }, &["failed NodeClosed"]);
    // Another member may be wrong, and is reported to the coordinator.
    let mut last = of_three(2);
    check(&mut last, MemberEvent::Expelled { by: NodeId(1) }, &["cut 1", "to 0: suspect 1"]);
}

/// A founder that lends memory, and two programs without any.
fn with_programs() -> Membership {
    founder_with(&[PROGRAM + 1, PROGRAM + 2])
}

/// A founder that lends memory, and nodes from 1 on.
fn founder_with(lives: &[u64]) -> Membership {
    let mut machine = Membership::new(identity(0)).in_a_quorum();
    check(&mut machine, MemberEvent::Found, &["ready"]);
    for (node, life) in (1..).zip(lives.iter().copied()) {
        let number = u64::from(node) + 1;
        let asked =
            [asked_to_join(life, join(life)), asked_for_link(life, peer(node, life, number))];
        for event in asked {
            machine.step(event, &mut Effects::new()).unwrap();
        }
    }
    machine
}

#[test]
fn cut_off_programs_do_not_end_the_members_that_lend_memory() {
    let mut machine = with_programs();
    check(
        &mut machine,
        out_of_reach(1),
        &["cut 1", "to 2: suspect 1", "to 2: vote 1", "removed 1", "to 2: view 4 1 removed"],
    );
    check(&mut machine, out_of_reach(2), &["cut 2", "removed 2"]);
    assert!(machine.is_coordinator());
}

#[test]
fn programs_without_a_voter_within_reach_give_up() {
    let life = PROGRAM + 2;
    let mut machine = Membership::new(identity(life)).in_a_quorum();
    let mut welcome = welcome(2, 3, &[0]);
    welcome.memory = None;
    welcome.members.push(listed(1, PROGRAM + 1));
    machine.step(MemberEvent::Joined(welcome), &mut Effects::new()).unwrap();
    for node in [0, 1] {
        machine.step(link_up(node), &mut Effects::new()).unwrap();
    }
    assert!(machine.is_ready());
    check(&mut machine, out_of_reach(0), &["cut 0", "failed Isolated"]);
}

/// What a machine does when `node` is out of reach.
fn effects_of_loss(machine: &Membership, node: u16) -> Vec<String> {
    let mut effects = Effects::new();
    machine.clone().step(out_of_reach(node), &mut effects).unwrap();
    effects.iter().map(told).collect()
}

#[test]
fn witness_breaks_the_tie_of_two_nodes() {
    // Node 1 lends memory, node 2 is the witness; with its answer either data node is a quorum.
    let mut first = founder_with(&[1, WITNESS]);
    check(&mut first, out_of_reach(1), &["cut 1", "to 2: suspect 1", "to 2: vote 1"]);
    let removed = ["removed 1", "to 2: view 4 1 removed"];
    check(&mut first, heard(2, MemberMessage::Voted { round: 1 }), &removed);
    // One data node with a witness continues when that is lost.
    check(&mut first, out_of_reach(2), &["cut 2", "removed 2"]);
    assert!(first.is_coordinator());
}

#[test]
fn lender_decides_the_tie_with_a_witness() {
    let mut witness = Membership::new(identity(WITNESS)).in_a_quorum();
    check(&mut witness, MemberEvent::Found, &["ready"]);
    for event in [asked_to_join(1, join(1)), asked_for_link(101, peer(1, 1, 2))] {
        witness.step(event, &mut Effects::new()).unwrap();
    }
    assert_eq!(effects_of_loss(&witness, 1), ["cut 1", "failed Isolated"]);
    assert!(witness.is_quorum(&[NodeId(1)]));

    let mut later = Membership::new(identity(1)).in_a_quorum();
    let mut welcome = welcome(1, 2, &[]);
    welcome.members.push(listed(0, WITNESS));
    later.step(MemberEvent::Joined(welcome), &mut Effects::new()).unwrap();
    later.step(link_up(0), &mut Effects::new()).unwrap();
    assert!(later.is_quorum(&[]), "the tie is that of node 1");
    let continued = effects_of_loss(&later, 0);
    assert!(continued.contains(&"coordinator".into()), "{continued:?}");
}

#[test]
fn witnesses_are_no_quorum_without_memory() {
    let two_witnesses = founder_with(&[WITNESS, WITNESS + 1]);
    assert!(!two_witnesses.is_quorum(&[]));
    assert!(two_witnesses.is_quorum(&[NodeId(1)]));
    let mut witness = Membership::new(identity(WITNESS + 1)).in_a_quorum();
    let mut welcome = welcome(2, 3, &[0]);
    welcome.memory = None;
    welcome.members.push(listed(1, WITNESS));
    witness.step(MemberEvent::Joined(welcome), &mut Effects::new()).unwrap();
    for node in [0, 1] {
        witness.step(link_up(node), &mut Effects::new()).unwrap();
    }
    assert!(!witness.is_quorum(&[NodeId(1)]));
    check(&mut witness, out_of_reach(0), &["cut 0", "failed Isolated"]);
}

#[test]
fn witness_alone_continues_after_certain_ends_only() {
    let mut witness = Membership::new(identity(WITNESS)).in_a_quorum();
    check(&mut witness, MemberEvent::Found, &["ready"]);
    for event in [asked_to_join(1, join(1)), asked_for_link(101, peer(1, 1, 2))] {
        witness.step(event, &mut Effects::new()).unwrap();
    }
    check(&mut witness, link_lost(1), &["dead 1"]);
    assert!(witness.is_coordinator() && witness.is_quorum(&[]));
    assert_eq!(witness.next_generation(NodeId(1)), Generation(1), "it keeps the generations");
}

#[test]
fn witness_is_removed_before_a_lender_and_after_a_program() {
    let judged = |lives: &[u64]| {
        let mut first = founder_with(lives);
        first.step(heard(1, suspect_of(2, lives[1])), &mut Effects::new()).unwrap();
        let mut effects = Effects::new();
        first.step(MemberEvent::Judge, &mut effects).unwrap();
        told(&effects[0])
    };
    assert_eq!(judged(&[WITNESS, 2]), "cut 1");
    assert_eq!(judged(&[2, WITNESS]), "cut 2");
    assert_eq!(judged(&[PROGRAM, WITNESS]), "cut 1");
    assert_eq!(judged(&[WITNESS, PROGRAM]), "cut 2");
}

/// Two data nodes lose their link; the witness, which coordinates, reaches both.
#[test]
fn witness_that_coordinates_removes_one_end_of_a_broken_link() {
    let mut witness = Membership::new(identity(WITNESS)).in_a_quorum();
    check(&mut witness, MemberEvent::Found, &["ready"]);
    for life in [1, 2] {
        let asked = asked_for_link(100 + life, peer(life as u16, life, life + 1));
        for event in [asked_to_join(life, join(life)), asked] {
            witness.step(event, &mut Effects::new()).unwrap();
        }
    }
    check(&mut witness, heard(1, suspect(2)), &["judge later"]);
    check(&mut witness, heard(2, suspect(1)), &[]);
    check(&mut witness, MemberEvent::Judge, &["cut 2", "to 1: suspect 2", "to 1: vote 1"]);
    let removed = ["removed 2", "to 1: view 4 2 removed"];
    check(&mut witness, heard(1, MemberMessage::Voted { round: 1 }), &removed);
}

#[test]
fn witness_with_memory_is_refused() {
    let mut first = founder_with(&[]);
    let mut wrong = join(WITNESS);
    wrong.home_bytes = 1;
    check(&mut first, asked_to_join(WITNESS, wrong), &["deny 2000 BadConfiguration"]);
}
