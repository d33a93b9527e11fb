use super::*;
use crate::member::{FounderSettings, Join, Keeps, Leases, MemberRole};
use alloc::string::String;
use alloc::{format, vec};
use core::net::SocketAddr;
use farside_base::{Access, MemberRegions, RegionId, RegionToken, RemoteKey};
use quorum::of_three;

mod quorum;
mod state;

const LIMITS: u64 = 99;
const LEASES: Leases = Leases { fabric_ns: 1_000_000_000, member_ns: 2_000_000_000 };

fn identity(life: u64) -> Identity {
    Identity {
        cluster: "c".into(),
        incarnation: Incarnation(life),
        limits: LIMITS,
        host: host(life),
        role: role(life),
        keeps: Keeps::Nothing,
        quorum: false,
        settings: FounderSettings { nodes_max: 4, leases: LEASES },
    }
}

fn host(life: u64) -> Option<SocketAddr> {
    Some(SocketAddr::from(([10, 0, 0, life as u8], 7411)))
}

fn join(life: u64) -> Join {
    Join {
        version: PROTOCOL_VERSION,
        cluster: "c".into(),
        limits: LIMITS,
        incarnation: Incarnation(life),
        home_bytes: if life < PROGRAM { 1 << 20 } else { 0 },
        witness: role(life).is_witness(),
        keeps: Keeps::Nothing,
        host: host(life),
    }
}

fn peer(node: u16, life: u64, view: u64) -> PeerRequest {
    let token =
        RegionToken { region: RegionId(0), key: RemoteKey(0), bytes: 0, access: Access::NONE };
    PeerRequest {
        version: PROTOCOL_VERSION,
        cluster: "c".into(),
        node: NodeId(node),
        incarnation: Incarnation(life),
        view: ViewNumber(view),
        regions: MemberRegions { home: token, cache: token, fence: token, tags: None },
    }
}

fn welcome(node: u16, view: u64, members: &[u16]) -> Welcome {
    let life = |node: &u16| {
        let life = u64::from(*node);
        listed(*node, life)
    };
    Welcome {
        node: NodeId(node),
        view: ViewNumber(view),
        settings: FounderSettings { nodes_max: 4, leases: LEASES },
        memory: Some(Generation(0)),
        members: members.iter().map(life).collect(),
        generations: members.iter().map(|node| lent(*node, 1, false)).collect(),
        limits: LIMITS,
        founder: Incarnation(0),
    }
}

fn lent(node: u16, next: u16, state: bool) -> LentNumber {
    LentNumber { node: NodeId(node), next, state, names: state }
}

/// Formats each effect as one line of text.
fn told(effect: &MemberEffect) -> String {
    match effect {
        MemberEffect::Connect { node, .. } => format!("connect {node}"),
        MemberEffect::Admit { request, welcome } => {
            format!("admit {} as {} in view {}", request.0, welcome.node, welcome.view)
        }
        MemberEffect::Deny { request, refusal } => {
            format!("deny {} {}", request.0, refusal.code.entry().name)
        }
        MemberEffect::AcceptPeer { request, peer } => {
            format!("accept {} from {}", request.0, peer.node)
        }
        MemberEffect::Send { to, message } => match message {
            MemberMessage::View { number, member, change } => {
                let node = member.node;
                let word = match change {
                    Change::Joined => "came",
                    Change::Died => "went",
                    Change::Left => "left",
                    Change::Removed => "removed",
                };
                format!("to {to}: view {number} {node} {word}")
            }
            MemberMessage::Takeover { number } => format!("to {to}: takeover {number}"),
            MemberMessage::Report { number, .. } => format!("to {to}: report {number}"),
            MemberMessage::Settled { number } => format!("to {to}: settled {number}"),
            MemberMessage::Lost { node, .. } => format!("to {to}: lost {node}"),
            MemberMessage::Leave { saved: false, .. } => format!("to {to}: leave"),
            MemberMessage::Leave { saved: true, .. } => format!("to {to}: leave, saved"),
            MemberMessage::LeaveHeard => format!("to {to}: leave heard"),
            MemberMessage::Left => format!("to {to}: left"),
            MemberMessage::Buried { node, .. } => format!("to {to}: buried {node}"),
            MemberMessage::Suspect { node, .. } => format!("to {to}: suspect {node}"),
            MemberMessage::Vote { round } => format!("to {to}: vote {round}"),
            MemberMessage::Voted { round } => format!("to {to}: voted {round}"),
        },
        MemberEffect::Cut { node } => format!("cut {node}"),
        MemberEffect::JudgeLater => "judge later".into(),
        MemberEffect::Admitted { node } => format!("admitted {node}"),
        MemberEffect::Dead { node, death: Death::Ended, .. } => format!("dead {node}"),
        MemberEffect::Dead { node, death: Death::Removed, .. } => format!("removed {node}"),
        MemberEffect::Dead { node, death: Death::Left, .. } => format!("gone {node}"),
        MemberEffect::Ready => "ready".into(),
        MemberEffect::BecomeCoordinator => "coordinator".into(),
        MemberEffect::Failed(refusal) => format!("failed {}", refusal.code.entry().name),
        MemberEffect::Closed => "closed".into(),
    }
}

#[track_caller]
fn check(machine: &mut Membership, event: MemberEvent, expected: &[&str]) {
    let mut effects = Effects::new();
    assert_eq!(machine.step(event, &mut effects), Ok(()));
    // Admissions follow from the views, and have their own tests.
    let others = effects.iter().filter(|effect| !matches!(effect, MemberEffect::Admitted { .. }));
    let told: Vec<String> = others.map(told).collect();
    assert_eq!(told, expected);
}

#[track_caller]
fn check_violation(
    machine: &Membership,
    from: u16,
    message: MemberMessage,
    expected: &'static str,
) {
    let mut changed = machine.clone();
    let mut effects = Effects::new();
    let event = MemberEvent::Message { from: NodeId(from), message };
    assert_eq!(changed.step(event, &mut effects), Err(Violation(expected)));
    assert_eq!((&changed, effects.len()), (machine, 0), "a violation changes nothing");
}

fn view(number: u64, node: u16, life: u64, alive: bool) -> MemberMessage {
    let number = ViewNumber(number);
    match alive {
        true => {
            let member = ListedMember { born: number, ..listed(node, life) };
            MemberMessage::View { number, member, change: Change::Joined }
        }
        false => MemberMessage::View { number, member: listed(node, life), change: Change::Died },
    }
}

/// A member of a cluster in which all joined in order of their numbers and none was removed.
fn listed(node: u16, life: u64) -> ListedMember {
    let memory = (life < PROGRAM).then_some(Generation(0));
    let (node, born) = (NodeId(node), ViewNumber(u64::from(node) + 1));
    let incarnation = Incarnation(life);
    let witness = role(life).is_witness();
    ListedMember {
        node,
        incarnation,
        born,
        host: host(life),
        memory,
        state: false,
        names: false,
        witness,
    }
}

fn report(number: u64) -> MemberMessage {
    MemberMessage::Report { number: ViewNumber(number), settled: ViewNumber(0) }
}

/// Incarnations from this one on are programs without memory.
const PROGRAM: u64 = 1_000;

/// Incarnations from this one on are witnesses.
const WITNESS: u64 = 2_000;

fn role(life: u64) -> MemberRole {
    match life {
        0..PROGRAM => MemberRole::Lender,
        PROGRAM..WITNESS => MemberRole::Program,
        WITNESS.. => MemberRole::Witness,
    }
}

fn heard(from: u16, message: MemberMessage) -> MemberEvent {
    MemberEvent::Message { from: NodeId(from), message }
}

fn asked_to_join(request: u64, join: Join) -> MemberEvent {
    MemberEvent::JoinAsked { request: RequestId(request), join }
}

fn asked_for_link(request: u64, peer: PeerRequest) -> MemberEvent {
    MemberEvent::PeerAsked { request: RequestId(request), peer }
}

fn link_up(node: u16) -> MemberEvent {
    MemberEvent::LinkUp { node: NodeId(node) }
}

fn link_lost(node: u16) -> MemberEvent {
    MemberEvent::LinkLost { node: NodeId(node) }
}

fn founder() -> Membership {
    let mut machine = Membership::new(identity(0));
    check(&mut machine, MemberEvent::Found, &["ready"]);
    machine
}

/// Node 1 of nodes 0, 1 and 2, all linked.
fn middle() -> Membership {
    let mut machine = Membership::new(identity(1));
    check(&mut machine, MemberEvent::Joined(welcome(1, 2, &[0])), &["connect 0"]);
    check(&mut machine, link_up(0), &["ready"]);
    check(&mut machine, heard(0, view(3, 2, 2, true)), &[]);
    check(&mut machine, asked_for_link(7, peer(2, 2, 3)), &["accept 7 from 2"]);
    machine
}

#[test]
fn the_founder_admits_and_tells_the_others() {
    let mut machine = founder();
    assert_eq!((machine.node(), machine.view()), (Some(NodeId(0)), ViewNumber(1)));
    check(&mut machine, asked_to_join(1, join(1)), &["admit 1 as 1 in view 2"]);
    check(&mut machine, asked_to_join(2, join(2)), &["admit 2 as 2 in view 3"]);
    // Node 1 was not linked when node 2 joined; it is notified now.
    check(
        &mut machine,
        asked_for_link(3, peer(1, 1, 2)),
        &["accept 3 from 1", "to 1: view 3 2 came"],
    );
    check(&mut machine, asked_for_link(4, peer(2, 2, 3)), &["accept 4 from 2"]);
    check(&mut machine, link_lost(1), &["dead 1", "to 2: view 4 1 went"]);
    check(&mut machine, link_lost(1), &[]);
    assert!(!machine.is_alive(NodeId(1)) && machine.has_been(NodeId(1)));
    check(
        &mut machine,
        asked_to_join(5, join(3)),
        &["to 2: view 5 3 came", "admit 5 as 3 in view 5"],
    );
    // Number 1 is free when its removal is settled.
    check(&mut machine, asked_to_join(6, join(4)), &["deny 6 Busy"]);
}

#[test]
fn a_life_joins_once() {
    let mut machine = founder();
    check(&mut machine, asked_to_join(1, join(1)), &["admit 1 as 1 in view 2"]);
    check(&mut machine, asked_to_join(2, join(1)), &["deny 2 NodeClosed"]);
    check(&mut machine, asked_for_link(3, peer(1, 1, 2)), &["accept 3 from 1"]);
    check(&mut machine, link_lost(1), &["dead 1"]);
    check(&mut machine, asked_to_join(4, join(1)), &["deny 4 NodeClosed"]);
    check(&mut machine, asked_to_join(5, join(0)), &["deny 5 NodeClosed"]);
    check(&mut machine, asked_to_join(6, join(2)), &["admit 6 as 2 in view 4"]);
}

type Alteration = fn(&mut Join);

#[test]
fn a_join_that_does_not_fit_is_refused_by_name() {
    let mut machine = founder();
    let cases: [(&str, Alteration); 4] = [
        ("deny 1 VersionMismatch", |join| join.version = PROTOCOL_VERSION + 1),
        ("deny 1 NoSuchCluster", |join| join.cluster = "d".into()),
        ("deny 1 LimitsMismatch", |join| join.limits = 1),
        ("deny 1 BadConfiguration", |join| join.home_bytes = u64::MAX),
    ];
    for (expected, change) in cases {
        let mut join = join(1);
        change(&mut join);
        check(&mut machine, asked_to_join(1, join), &[expected]);
    }
    assert_eq!(machine.view(), ViewNumber(1), "no node was admitted");
    check(&mut middle(), asked_to_join(1, join(9)), &["deny 1 NoSuchCluster"]);
}

#[test]
fn an_admitted_joiner_that_dies_before_its_link_is_buried() {
    let mut machine = founder();
    check(&mut machine, asked_to_join(1, join(1)), &["admit 1 as 1 in view 2"]);
    let request = RequestId(1);
    check(&mut machine, MemberEvent::RequestLost { request }, &["dead 1"]);
    check(&mut machine, asked_for_link(2, peer(1, 1, 2)), &["deny 2 NodeClosed"]);
    check(&mut machine, asked_to_join(3, join(2)), &["admit 3 as 2 in view 4"]);
}

#[test]
fn a_link_is_given_to_whom_the_view_names() {
    let mut machine = middle();
    check(&mut machine, asked_for_link(1, peer(3, 3, 4)), &[]);
    check(&mut machine, heard(0, view(4, 3, 3, true)), &["accept 1 from 3"]);
    check(&mut machine, asked_for_link(2, peer(3, 3, 4)), &["deny 2 ProtocolViolation"]);
    check(&mut machine, asked_for_link(2, peer(0, 0, 1)), &["deny 2 ProtocolViolation"]);
    check(&mut machine, asked_for_link(2, peer(2, 9, 3)), &["deny 2 NodeClosed"]);
    // A view that was lost with its coordinator: a different view has its number now.
    check(&mut machine, asked_for_link(2, peer(4, 4, 4)), &["deny 2 NodeClosed"]);
    let mut other = peer(5, 5, 9);
    other.cluster = "d".into();
    check(&mut machine, asked_for_link(2, other), &["deny 2 NoSuchCluster"]);
    let mut other = peer(5, 5, 9);
    other.version = PROTOCOL_VERSION + 1;
    check(&mut machine, asked_for_link(2, other), &["deny 2 VersionMismatch"]);
}

#[test]
fn waiting_links_without_a_view_are_denied_and_lost_ones_are_dropped() {
    let mut machine = middle();
    check(&mut machine, asked_for_link(1, peer(3, 30, 4)), &[]);
    check(&mut machine, asked_for_link(2, peer(3, 3, 4)), &[]);
    check(&mut machine, heard(0, view(4, 3, 3, true)), &["deny 1 NodeClosed", "accept 2 from 3"]);
    for request in 10..14 {
        check(&mut machine, asked_for_link(request, peer(9, request, 99)), &[]);
    }
    check(&mut machine, asked_for_link(14, peer(9, 14, 99)), &["deny 14 Busy"]);
    let request = RequestId(12);
    check(&mut machine, MemberEvent::RequestLost { request }, &[]);
    check(
        &mut machine,
        MemberEvent::Leave { saved: false, names: false },
        &["to 0: leave", "to 2: leave", "to 3: leave"],
    );
    check(&mut machine, asked_for_link(15, peer(9, 15, 99)), &["deny 15 NodeClosed"]);
    for node in [0, 3] {
        check(&mut machine, heard(node, MemberMessage::LeaveHeard), &[]);
    }
    check(
        &mut machine,
        heard(2, MemberMessage::LeaveHeard),
        &[
            "to 0: left",
            "to 2: left",
            "to 3: left",
            "deny 10 NodeClosed",
            "deny 11 NodeClosed",
            "deny 13 NodeClosed",
            "closed",
        ],
    );
    check(&mut machine, MemberEvent::Leave { saved: false, names: false }, &[]);
    check(&mut machine, link_lost(0), &[]);
    check(&mut machine, asked_for_link(1, peer(3, 3, 4)), &["deny 1 NodeClosed"]);
    check(&mut machine, asked_to_join(1, join(1)), &["deny 1 NodeClosed"]);
}

#[test]
fn a_joiner_waits_for_every_link_and_gives_up_with_its_coordinator() {
    let mut machine = Membership::new(identity(3));
    assert_eq!(machine.node(), None);
    let connects = ["connect 0", "connect 1", "connect 2"];
    check(&mut machine, MemberEvent::Joined(welcome(3, 7, &[0, 1, 2])), &connects);
    check(&mut machine, link_up(1), &[]);
    check(&mut machine, link_up(0), &[]);
    check(&mut machine, link_lost(2), &[]);
    assert!(machine.is_alive(NodeId(2)), "a joiner does not judge");
    let mut lucky = machine.clone();
    check(&mut lucky, heard(0, view(8, 2, 2, false)), &["dead 2", "ready"]);
    check(&mut machine, link_lost(0), &["failed NoSuchCluster"]);

    let mut machine = Membership::new(identity(2));
    check(&mut machine, MemberEvent::Joined(welcome(2, 7, &[0, 1])), &["connect 0", "connect 1"]);
    let mut unlucky = machine.clone();
    let takeover = MemberMessage::Takeover { number: ViewNumber(6) };
    check(&mut unlucky, heard(1, takeover), &["failed NoSuchCluster"]);
    let refused =
        MemberEvent::Refused { node: NodeId(1), refusal: JoinRefusal::new(ErrorCode::NodeClosed) };
    check(&mut machine, refused, &["failed NodeClosed"]);
}

#[test]
fn an_impossible_welcome_is_refused() {
    let check_welcome = |welcome, expected| {
        check(&mut Membership::new(identity(5)), MemberEvent::Joined(welcome), &[expected]);
    };
    check_welcome(welcome(4, 7, &[0]), "failed ProtocolViolation");
    check_welcome(welcome(2, 7, &[0, 2]), "failed ProtocolViolation");
    check_welcome(welcome(2, 7, &[1, 0]), "failed ProtocolViolation");
    check_welcome(welcome(2, 7, &[]), "failed ProtocolViolation");
    let mut other = welcome(2, 7, &[0]);
    other.limits = 1;
    check_welcome(other, "failed LimitsMismatch");
}

#[test]
fn the_next_earliest_takes_over_and_brings_all_to_one_view() {
    let mut machine = middle();
    check(&mut machine, link_lost(0), &["dead 0", "to 2: takeover 3"]);
    assert!(!machine.is_coordinator());
    check(&mut machine, asked_to_join(1, join(9)), &["deny 1 NoSuchCluster"]);
    // Node 2 had received the view that node 3 joined; node 3 has no link to this node and cannot be monitored.
    check(&mut machine, heard(2, view(4, 3, 3, true)), &[]);
    check(
        &mut machine,
        heard(2, report(4)),
        &["dead 3", "to 2: view 5 0 went", "to 2: view 6 3 went", "coordinator"],
    );
    check(&mut machine, asked_for_link(2, peer(3, 3, 4)), &["deny 2 NodeClosed"]);
    assert!(machine.is_coordinator());
    assert_eq!(machine.view(), ViewNumber(6));
}

#[test]
fn a_new_coordinator_passes_on_what_others_missed() {
    let mut machine = middle();
    check(&mut machine, heard(0, view(4, 3, 3, true)), &[]);
    check(&mut machine, asked_for_link(1, peer(3, 3, 4)), &["accept 1 from 3"]);
    check(&mut machine, link_lost(0), &["dead 0", "to 2: takeover 4", "to 3: takeover 4"]);
    check(&mut machine, heard(2, report(3)), &[]);
    check(
        &mut machine,
        heard(3, report(4)),
        &["to 2: view 4 3 came", "to 2: view 5 0 went", "to 3: view 5 0 went", "coordinator"],
    );
}

#[test]
fn takeover_question_is_answered_and_voids_the_former_coordinator() {
    let mut machine = Membership::new(identity(2));
    check(&mut machine, MemberEvent::Joined(welcome(2, 3, &[0, 1])), &["connect 0", "connect 1"]);
    check(&mut machine, link_up(0), &[]);
    check(&mut machine, link_up(1), &["ready"]);
    check(&mut machine, heard(0, view(4, 3, 3, true)), &[]);
    check(&mut machine, asked_for_link(1, peer(3, 3, 4)), &["accept 1 from 3"]);
    check(&mut machine, link_lost(3), &["dead 3", "to 0: lost 3"]);
    let takeover = MemberMessage::Takeover { number: ViewNumber(3) };
    check(
        &mut machine,
        heard(1, takeover),
        &["dead 0", "to 1: view 4 3 came", "to 1: lost 3", "to 1: report 4"],
    );
    check(&mut machine, heard(0, view(5, 3, 3, false)), &[]);
    assert_eq!(machine.view(), ViewNumber(4), "the dead are not heard");
    check(&mut machine, heard(1, view(5, 0, 0, false)), &[]);
    check(&mut machine, heard(1, view(6, 3, 3, false)), &[]);
    assert_eq!(machine.coordinator(), Some(NodeId(1)));
}

#[test]
fn last_survivor_is_coordinator_at_once() {
    let mut machine = middle();
    check(
        &mut machine,
        heard(2, MemberMessage::Leave { saved: false, names: false }),
        &["to 2: leave heard"],
    );
    check(&mut machine, heard(2, MemberMessage::Left), &["gone 2", "to 0: lost 2"]);
    check(
        &mut machine,
        heard(0, MemberMessage::Leave { saved: false, names: false }),
        &["to 0: leave heard"],
    );
    check(&mut machine, link_lost(0), &["gone 0", "coordinator"]);
    assert_eq!(machine.view(), ViewNumber(5));
    assert!(machine.has_left(NodeId(0)) && machine.has_left(NodeId(2)));
}

#[test]
fn leave_waits_for_every_linked_member_until_it_answers_or_dies() {
    let mut machine = middle();
    check(
        &mut machine,
        MemberEvent::Leave { saved: false, names: false },
        &["to 0: leave", "to 2: leave"],
    );
    check(&mut machine, heard(2, MemberMessage::LeaveHeard), &[]);
    check_violation(&machine, 2, MemberMessage::LeaveHeard, UNANNOUNCED);
    check(&mut machine, link_lost(0), &["dead 0", "to 2: takeover 3", "to 2: left", "closed"]);
    assert!(!machine.is_ready());
}

#[test]
fn leave_given_twice_waits_for_no_answer() {
    let mut machine = middle();
    check(
        &mut machine,
        MemberEvent::Leave { saved: false, names: false },
        &["to 0: leave", "to 2: leave"],
    );
    check(
        &mut machine,
        MemberEvent::Leave { saved: false, names: false },
        &["to 0: left", "to 2: left", "closed"],
    );
}

#[test]
fn coordinator_tells_a_leave_from_a_death() {
    let mut first = of_three(0);
    check(
        &mut first,
        heard(2, MemberMessage::Leave { saved: false, names: false }),
        &["to 2: leave heard"],
    );
    check(&mut first, heard(2, MemberMessage::Left), &["gone 2", "to 1: vote 1"]);
    check(&mut first, heard(1, MemberMessage::Voted { round: 1 }), &["to 1: view 4 2 left"]);
    let mut second = of_three(1);
    let (number, member) = (ViewNumber(4), listed(2, 2));
    let left = MemberMessage::View { number, member, change: Change::Left };
    check(&mut second, heard(0, left), &["gone 2"]);
    assert!(second.has_left(NodeId(2)) && !first.has_left(NodeId(1)));
    // A node that ends before all have answered: other members may lack what it sent.
    let mut first = of_three(0);
    check(
        &mut first,
        heard(2, MemberMessage::Leave { saved: false, names: false }),
        &["to 2: leave heard"],
    );
    check(&mut first, link_lost(2), &["gone 2", "to 1: vote 1"]);
    check(&mut first, heard(1, MemberMessage::Voted { round: 1 }), &["to 1: view 4 2 went"]);
}

const UNANNOUNCED: &str = "answer to a leave that was not announced";

#[test]
fn a_report_of_a_death_is_believed_once() {
    let mut machine = founder();
    check(&mut machine, asked_to_join(1, join(1)), &["admit 1 as 1 in view 2"]);
    check(&mut machine, asked_for_link(2, peer(1, 1, 2)), &["accept 2 from 1"]);
    check(
        &mut machine,
        asked_to_join(3, join(2)),
        &["to 1: view 3 2 came", "admit 3 as 2 in view 3"],
    );
    let lost =
        |life| MemberMessage::Lost { node: NodeId(2), incarnation: Incarnation(life), ended: true };
    check(&mut machine, heard(1, lost(77)), &[]);
    check(&mut machine, heard(1, lost(2)), &["dead 2", "to 1: view 4 2 went"]);
    check(&mut machine, heard(1, lost(2)), &[]);
}

#[test]
fn an_expelled_node_stops() {
    let mut machine = middle();
    check(&mut machine, heard(0, view(4, 1, 1, false)), &["failed NodeClosed"]);
    assert!(!machine.is_ready());
}

#[test]
fn invalid_member_messages_change_nothing() {
    let machine = middle();
    let number = ViewNumber(3);
    check_violation(
        &machine,
        9,
        MemberMessage::Leave { saved: false, names: false },
        "message from a node that is no member",
    );
    check_violation(
        &machine,
        1,
        MemberMessage::Leave { saved: false, names: false },
        "message from this node",
    );
    check_violation(&machine, 2, MemberMessage::LeaveHeard, UNANNOUNCED);
    check_violation(&machine, 2, MemberMessage::Left, "left without announcing it");
    let mut leaving = middle();
    check(
        &mut leaving,
        heard(2, MemberMessage::Leave { saved: false, names: false }),
        &["to 2: leave heard"],
    );
    check_violation(
        &leaving,
        2,
        MemberMessage::Leave { saved: false, names: false },
        "leaves twice",
    );
    let not_coordinator = "view from a node that is not the coordinator";
    check_violation(&machine, 2, view(4, 3, 3, true), not_coordinator);
    check_violation(&founder_with_peer(), 1, view(3, 3, 3, true), not_coordinator);
    check_violation(&machine, 0, view(5, 3, 3, true), "view out of order");
    check_violation(&machine, 0, view(4, 2, 9, true), "view names a node by a used number");
    check_violation(&machine, 0, view(4, 4, 9, true), "view names a node by a used number");
    check_violation(&machine, 0, view(4, 2, 9, false), "view removes a node that is no member");
    check_violation(&machine, 0, view(4, 3, 3, false), "view removes a node that is no member");
    check_violation(&machine, 2, MemberMessage::Takeover { number }, "takeover by a later node");
    check_violation(&machine, 0, report(3), "report without a question");
    let mut taking_over = middle();
    check(&mut taking_over, link_lost(0), &["dead 0", "to 2: takeover 3"]);
    check_violation(&taking_over, 2, report(4), "report of views that were not sent");
    let mut old = middle();
    check(&mut old, heard(0, view(3, 2, 2, true)), &[]);
    check(&mut old, heard(0, view(1, 9, 9, false)), &[]);
    assert_eq!(old, machine, "older views are past");
}

fn founder_with_peer() -> Membership {
    let mut machine = founder();
    check(&mut machine, asked_to_join(1, join(1)), &["admit 1 as 1 in view 2"]);
    check(&mut machine, asked_for_link(2, peer(1, 1, 2)), &["accept 2 from 1"]);
    machine
}

#[test]
fn found_and_joined_happen_once() {
    let mut machine = founder();
    check(&mut machine, MemberEvent::Found, &[]);
    check(&mut machine, MemberEvent::Joined(welcome(2, 7, &[0])), &[]);
    assert_eq!(machine.alive().collect::<Vec<_>>(), vec![(NodeId(0), Incarnation(0))]);
}

#[test]
fn protocol_violation_is_reported_to_the_coordinator() {
    let machine = middle();
    let lost = MemberMessage::Lost { node: NodeId(2), incarnation: Incarnation(2), ended: false };
    assert_eq!(machine.accusation(NodeId(2)), Some((NodeId(0), lost)));
    assert_eq!(machine.accusation(NodeId(0)), None, "no node is above the coordinator");
    assert_eq!(machine.accusation(NodeId(9)), None, "no member");
    let mut alone = machine;
    check(&mut alone, link_lost(0), &["dead 0", "to 2: takeover 3"]);
    assert_eq!(alone.accusation(NodeId(2)), None, "this node judges now");
}

#[test]
fn everybody_learns_where_everybody_is() {
    let mut effects = Effects::new();
    let mut first = founder();
    first.step(asked_to_join(1, join(1)), &mut effects).unwrap();
    let Some(MemberEffect::Admit { welcome, .. }) = effects.pop() else { panic!("{effects:?}") };
    assert_eq!(welcome.members.iter().map(|one| one.host).collect::<Vec<_>>(), [host(0)]);
    let mut second = Membership::new(identity(1));
    effects.clear();
    second.step(MemberEvent::Joined(welcome), &mut effects).unwrap();
    let (node, incarnation, born) = (NodeId(0), Incarnation(0), ViewNumber(1));
    let to_first = MemberEffect::Connect { node, incarnation, born, host: host(0) };
    assert_eq!(effects, [to_first]);
    // The next joiner learns of both, and existing members learn of it by a view.
    first.step(link_up(1), &mut effects).unwrap();
    effects.clear();
    first.step(asked_to_join(2, join(2)), &mut effects).unwrap();
    let Some(MemberEffect::Admit { welcome, .. }) = effects.pop() else { panic!("{effects:?}") };
    assert_eq!(welcome.members.iter().map(|one| one.host).collect::<Vec<_>>(), [host(0), host(1)]);
}

fn settled(node: u16, born: u64) -> MemberEvent {
    MemberEvent::Settled { node: NodeId(node), born: ViewNumber(born) }
}

/// The founder of a cluster of four, linked to nodes 1, 2 and 3.
fn full() -> Membership {
    let mut machine = founder();
    for node in 1..4 {
        let (life, number) = (u64::from(node), u64::from(node) + 1);
        machine.step(asked_to_join(life, join(life)), &mut Effects::new()).unwrap();
        let asked = asked_for_link(100 + life, peer(node, life, number));
        machine.step(asked, &mut Effects::new()).unwrap();
    }
    machine
}

#[test]
fn number_is_given_again_when_all_members_have_settled_the_removal() {
    let mut machine = full();
    check(&mut machine, asked_to_join(5, join(5)), &["deny 5 ClusterFull"]);
    check(&mut machine, link_lost(2), &["dead 2", "to 1: view 5 2 went", "to 3: view 5 2 went"]);
    let settled_message = MemberMessage::Settled { number: ViewNumber(5) };
    check(&mut machine, asked_to_join(5, join(5)), &["deny 5 Busy"]);
    check(&mut machine, heard(1, settled_message), &[]);
    check(&mut machine, settled(2, 3), &[]);
    check(&mut machine, asked_to_join(5, join(5)), &["deny 5 Busy"]);
    check(&mut machine, heard(3, settled_message), &[]);
    let mut effects = Effects::new();
    machine.step(asked_to_join(5, join(5)), &mut effects).unwrap();
    let [.., MemberEffect::Admitted { node: NodeId(2) }, MemberEffect::Admit { welcome, .. }] =
        &effects[..]
    else {
        panic!("{effects:?}");
    };
    assert_eq!((welcome.node, welcome.view), (NodeId(2), ViewNumber(6)));
    assert_eq!(welcome.memory, Some(Generation(1)), "the second memory of this number");
    assert_eq!(welcome.generations, [0, 1, 2, 3].map(|node| lent(node, 1, false)));
    assert!(machine.is_former(NodeId(2), ViewNumber(3)));
    assert!(!machine.is_former(NodeId(2), ViewNumber(6)));
    assert_eq!(machine.occupancy(), (4, 4));
}

#[test]
fn member_reports_settled_removals_to_its_coordinator_once() {
    let mut machine = middle();
    check(&mut machine, heard(0, view(4, 2, 2, false)), &["dead 2"]);
    check(&mut machine, settled(2, 3), &["to 0: settled 4"]);
    check(&mut machine, settled(2, 3), &[]);
    let used = "view names memory by a used generation";
    let mut later = machine.clone();
    later.generations.insert(NodeId(2), lent(2, 2, false));
    check_violation(&later, 0, view(5, 2, 22, true), used);
    check(&mut machine, heard(0, view(5, 2, PROGRAM, true)), &[]);
    let used = "view names a node by a used number";
    check_violation(&machine, 0, view(6, 2, PROGRAM, true), used);
    let mut unsettled = middle();
    check(&mut unsettled, heard(0, view(4, 2, 2, false)), &["dead 2"]);
    check_violation(&unsettled, 0, view(5, 2, 22, true), "view names a node by a used number");
}

#[test]
fn numbers_free_for_the_longest_are_given_first() {
    let mut machine = full();
    machine.identity.settings.nodes_max = 8; // these are the lower half
    for node in [3, 1] {
        machine.step(link_lost(node), &mut Effects::new()).unwrap();
        check(&mut machine, settled(node, u64::from(node) + 1), &[]);
    }
    let settled_message = MemberMessage::Settled { number: ViewNumber(6) };
    check(&mut machine, heard(2, settled_message), &[]);
    let admitted = ["to 2: view 7 3 came", "admit 5 as 3 in view 7"];
    check(&mut machine, asked_to_join(5, join(5)), &admitted);
    // A program takes no generation.
    let program = PROGRAM + 6;
    let admitted = ["to 2: view 8 1 came", "admit 6 as 1 in view 8"];
    check(&mut machine, asked_to_join(6, join(program)), &admitted);
    let next = [1, 3].map(|node| machine.next_generation(NodeId(node)));
    assert_eq!(next, [Generation(1), Generation(2)]);
}

#[test]
fn failed_joins_use_no_generation_up() {
    let mut machine = founder();
    machine.identity.settings.nodes_max = 2;
    for life in 1..=4 {
        let mut effects = Effects::new();
        machine.step(asked_to_join(life, join(life)), &mut effects).unwrap();
        let Some(MemberEffect::Admit { welcome, .. }) = effects.last() else {
            panic!("{effects:?}")
        };
        assert_eq!((welcome.node, welcome.memory), (NodeId(1), Some(Generation(0))));
        let born = welcome.view.0;
        if life == 4 {
            let linked = asked_for_link(100, peer(1, life, born));
            check(&mut machine, linked, &["accept 100 from 1"]);
            check(&mut machine, link_lost(1), &["dead 1"]);
        } else {
            let request = RequestId(life);
            check(&mut machine, MemberEvent::RequestLost { request }, &["dead 1"]);
        }
        check(&mut machine, settled(1, born), &[]);
    }
    assert_eq!(machine.next_generation(NodeId(1)), Generation(1), "the fourth was linked");
    // A member takes it from the coordinator.
    let mut member = middle();
    check(&mut member, heard(0, view(4, 2, 2, false)), &["dead 2"]);
    check(&mut member, settled(2, 3), &["to 0: settled 4"]);
    check(&mut member, heard(0, view(5, 2, 22, true)), &[]);
    assert_eq!(member.next_generation(NodeId(2)), Generation(1));
}

#[test]
fn number_whose_generations_are_used_up_is_for_nodes_without_memory() {
    let mut machine = full();
    machine.generations.insert(NodeId(2), lent(2, Generation::COUNT, false));
    machine.step(link_lost(2), &mut Effects::new()).unwrap();
    check(&mut machine, settled(2, 3), &[]);
    for node in [1, 3] {
        check(&mut machine, heard(node, MemberMessage::Settled { number: ViewNumber(5) }), &[]);
    }
    let mut effects = Effects::new();
    machine.step(asked_to_join(5, join(5)), &mut effects).unwrap();
    let [MemberEffect::Deny { refusal, .. }] = &effects[..] else { panic!("{effects:?}") };
    assert_eq!(refusal.code, ErrorCode::ClusterFull);
    assert!(refusal.text.contains("nodes without memory can join"), "{}", refusal.text);
    let program = PROGRAM + 6;
    let (one, three) = ("to 1: view 6 2 came", "to 3: view 6 2 came");
    check(&mut machine, asked_to_join(6, join(program)), &[one, three, "admit 6 as 2 in view 6"]);
}

#[test]
fn leases_of_the_founder_count_for_all() {
    let longer = Leases { fabric_ns: 9_000_000_000, member_ns: 9_000_000_000 };
    let settings = FounderSettings { nodes_max: 4, leases: longer };
    let mut second = Membership::new(Identity { settings, ..identity(1) });
    check(&mut second, MemberEvent::Joined(welcome(1, 2, &[0])), &["connect 0"]);
    check(&mut second, link_up(0), &["ready"]);
    assert_eq!(second.leases(), LEASES);
    check(&mut second, link_lost(0), &["dead 0", "coordinator"]);
    let mut effects = Effects::new();
    second.step(asked_to_join(7, join(2)), &mut effects).unwrap();
    let leases = effects.iter().find_map(|effect| match effect {
        MemberEffect::Admit { welcome, .. } => Some(welcome.settings.leases),
        _ => None,
    });
    assert_eq!(leases, Some(LEASES));
}

#[test]
fn earliest_member_coordinates_whatever_its_number() {
    let mut machine = Membership::new(identity(1));
    let mut welcome = welcome(1, 9, &[]);
    welcome.members = vec![
        ListedMember { born: ViewNumber(4), ..listed(3, 3) },
        ListedMember { born: ViewNumber(7), ..listed(0, 7) },
    ];
    check(&mut machine, MemberEvent::Joined(welcome), &["connect 3", "connect 0"]);
    check(&mut machine, link_up(0), &[]);
    check(&mut machine, link_up(3), &["ready"]);
    assert_eq!(machine.coordinator(), Some(NodeId(3)));
    check(
        &mut machine,
        heard(3, MemberMessage::Leave { saved: false, names: false }),
        &["to 3: leave heard"],
    );
    check(&mut machine, heard(3, MemberMessage::Left), &["gone 3"]);
    assert_eq!(machine.coordinator(), Some(NodeId(0)));
    // A number that this node has never known may have been used before its admission.
    check(&mut machine, link_lost(0), &["dead 0", "coordinator"]);
    check(&mut machine, asked_to_join(5, join(5)), &["admit 5 as 2 in view 12"]);
    check(&mut machine, asked_to_join(6, join(6)), &["deny 6 Busy"]);
}
