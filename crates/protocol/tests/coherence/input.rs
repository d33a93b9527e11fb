//! Messages that no correct peer sends are refused without a change; no message in any state panics or breaks an
//! invariant.

use crate::cluster::{CoherenceCluster, EXTENT, line};
use farside_base::{
    ErrorCode, GlobalAddress, Grant, Limits, LineAddress, LineSize, NodeId, OperationId, Random,
    Ticket,
};
use farside_protocol::coherence::{
    Coherence, CoherenceEvent, CoherenceMessage, Effects, Frame, Had, HeldLine, Here, Level,
    Requester, Supply, Want,
};

const FRAME: Frame = Frame(0);
const TICKET: Ticket = Ticket(1);
const GRANT: Grant = Grant(1);

fn foreign_line() -> LineAddress {
    GlobalAddress::new(NodeId(1), LineSize::DEFAULT, 0).unwrap().line()
}

/// Gives the machine of `at` a message; it must refuse it, and be unchanged.
#[track_caller]
fn refused(cluster: &mut CoherenceCluster, from: u16, at: u16, message: CoherenceMessage) {
    let extent = (at == 0).then_some(EXTENT);
    let held = cluster.held(at);
    let machine = &mut cluster.machines[usize::from(at)];
    let before = machine.clone();
    let mut effects = Effects::new();
    let from = NodeId(from);
    let here = Here { held, extent };
    let step = machine.step(CoherenceEvent::Received { from, message, here }, &mut effects);
    assert!(step.is_err(), "accepted: {message}");
    assert!(effects.is_empty());
    assert_eq!(*machine, before);
}

fn recall(grant: Grant, down_to: Level, forward: Option<u16>) -> CoherenceMessage {
    let forward =
        forward.map(|node| Requester { node: NodeId(node), frame: FRAME, ticket: TICKET });
    CoherenceMessage::Recall { line: line(), grant, down_to, forward }
}

fn grant(ticket: Ticket, level: Level, supply: Supply) -> CoherenceMessage {
    CoherenceMessage::Grant { line: line(), ticket, grant: Grant(9), level, supply, extent: EXTENT }
}

fn ack(grant: Grant, had: Had, left: Level) -> CoherenceMessage {
    CoherenceMessage::Ack { line: line(), grant, had, left }
}

fn evict(grant: Grant, dirty: bool) -> CoherenceMessage {
    CoherenceMessage::Evict { line: line(), grant, dirty }
}

fn read(line: LineAddress) -> CoherenceMessage {
    CoherenceMessage::Read { line, frame: FRAME, ticket: TICKET }
}

#[test]
fn messages_of_the_wrong_role_are_refused() {
    let mut cluster = CoherenceCluster::owned_by(3, 1);
    refused(&mut cluster, 2, 0, read(foreign_line()));
    refused(&mut cluster, 2, 1, recall(GRANT, Level::Invalid, None));
    refused(&mut cluster, 0, 0, recall(GRANT, Level::Invalid, None));
    refused(&mut cluster, 2, 1, grant(TICKET, Level::Dirty, Supply::Home));
    refused(&mut cluster, 500, 0, read(line()));
    let data = CoherenceMessage::Data { line: line(), ticket: TICKET };
    refused(&mut cluster, 1, 0, data);
    refused(&mut cluster, 0, 1, data);
    refused(&mut cluster, 2, 1, data);
}

#[test]
fn requests_that_no_holder_sends_are_refused() {
    let mut cluster = CoherenceCluster::owned_by(3, 1);
    refused(&mut cluster, 1, 0, read(line()));
    refused(&mut cluster, 1, 0, evict(GRANT, false));
    refused(&mut cluster, 2, 0, evict(Grant(7), true));
    refused(&mut cluster, 2, 0, evict(GRANT, false));
    cluster.read(2, 1);
    cluster.request(2, 0);
    cluster.write(0, 2);
    cluster.machines[0].invariants().unwrap();
    let mut twice = CoherenceCluster::owned_by(3, 1);
    twice.write(0, 1);
    twice.read(2, 2);
    twice.request(2, 0);
    refused(&mut twice, 2, 0, read(line()));
}

#[test]
fn unexpected_acknowledgements_are_refused() {
    let mut cluster = CoherenceCluster::owned_by(3, 1);
    refused(&mut cluster, 1, 0, ack(GRANT, Had::Bytes, Level::Invalid));
    cluster.read(2, 1);
    cluster.request(2, 0);
    refused(&mut cluster, 1, 0, ack(GRANT, Had::Bytes, Level::Dirty));
    refused(&mut cluster, 1, 0, ack(GRANT, Had::Clean, Level::Invalid));
    refused(&mut cluster, 1, 0, ack(GRANT, Had::Forwarded, Level::Invalid));
    refused(&mut cluster, 1, 0, ack(GRANT, Had::Nothing, Level::Shared));
    refused(&mut cluster, 2, 0, ack(GRANT, Had::Bytes, Level::Invalid));
    refused(&mut cluster, 1, 0, ack(Grant(0), Had::Bytes, Level::Invalid));
    let mut cluster = CoherenceCluster::shared_by(3, &[1, 2]);
    cluster.write(1, 1);
    cluster.request(1, 0);
    refused(&mut cluster, 1, 0, ack(GRANT, Had::Clean, Level::Invalid));
    refused(&mut cluster, 2, 0, ack(Grant(2), Had::Bytes, Level::Invalid));
    refused(&mut cluster, 2, 0, ack(Grant(2), Had::Clean, Level::Shared));
}

#[test]
fn recalls_that_no_home_sends_are_refused() {
    let mut cluster = CoherenceCluster::shared_by(3, &[1]);
    refused(&mut cluster, 0, 1, recall(GRANT, Level::Dirty, None));
    refused(&mut cluster, 0, 1, recall(GRANT, Level::Invalid, Some(0)));
    refused(&mut cluster, 0, 1, recall(GRANT, Level::Invalid, Some(1)));
    refused(&mut cluster, 0, 1, recall(GRANT, Level::Invalid, Some(500)));
    cluster.issue(1, 1, Want::Read, true);
    cluster.write(0, 2);
    cluster.forward(0, 1);
    refused(&mut cluster, 0, 1, recall(GRANT, Level::Invalid, None));
}

#[test]
fn write_backs_of_lines_that_their_sender_does_not_own_are_refused() {
    let write_back = |grant| {
        let (line, ticket, owned) = (line(), Ticket(9), Some(Grant(grant)));
        CoherenceMessage::WriteBack { line, ticket, owned }
    };
    let mut cluster = CoherenceCluster::owned_by(3, 1);
    refused(&mut cluster, 1, 0, write_back(0));
    refused(&mut cluster, 1, 0, write_back(2));
    refused(&mut cluster, 2, 0, write_back(1));
    let mut cluster = CoherenceCluster::shared_by(3, &[1]);
    refused(&mut cluster, 1, 0, write_back(1));
}

#[test]
fn unexpected_answers_are_refused() {
    let mut cluster = CoherenceCluster::shared_by(3, &[1]);
    refused(&mut cluster, 0, 1, grant(Ticket(2), Level::Dirty, Supply::Home));
    cluster.write(1, 1);
    refused(&mut cluster, 0, 1, grant(Ticket(1), Level::Dirty, Supply::Home));
    refused(&mut cluster, 0, 1, grant(Ticket(2), Level::Shared, Supply::Home));
    let refuse =
        |ticket, code| CoherenceMessage::Refuse { line: line(), ticket, code, supplier: None };
    refused(&mut cluster, 0, 1, refuse(Ticket(1), ErrorCode::LineLost));
    refused(&mut cluster, 0, 1, refuse(Ticket(2), ErrorCode::Busy));
    cluster.read(2, 2);
    refused(&mut cluster, 0, 2, grant(Ticket(1), Level::Shared, Supply::Held));
    let data = |ticket| CoherenceMessage::Data { line: line(), ticket };
    refused(&mut cluster, 1, 2, data(Ticket(2)));
    let from = NodeId(1);
    let here = Here::default();
    let mut effects = Effects::new();
    let message = data(Ticket(1));
    cluster.machines[2]
        .step(CoherenceEvent::Received { from, message, here }, &mut effects)
        .unwrap();
    refused(&mut cluster, 1, 2, data(Ticket(1)));
    refused(&mut cluster, 0, 2, grant(Ticket(1), Level::Shared, Supply::Home));
    refused(&mut cluster, 0, 2, grant(Ticket(1), Level::Shared, Supply::Owner(NodeId(0))));
}

struct InputGenerator(Random);

impl InputGenerator {
    fn node(&mut self) -> NodeId {
        NodeId(self.0.below(4) as u16)
    }

    fn level(&mut self) -> Level {
        [Level::Invalid, Level::Shared, Level::Dirty][self.0.below(3) as usize]
    }

    fn line(&mut self) -> LineAddress {
        let node = NodeId(self.0.below(3) as u16);
        GlobalAddress::new(node, LineSize::DEFAULT, 0).unwrap().line()
    }

    fn here(&mut self) -> Here {
        let grant = Grant(self.0.below(6));
        Here {
            held: HeldLine { level: self.level(), grant },
            extent: (self.0.below(8) > 0).then_some(EXTENT),
        }
    }

    fn requester(&mut self) -> Requester {
        Requester { node: self.node(), frame: FRAME, ticket: Ticket(self.0.below(4)) }
    }

    fn message(&mut self, line: LineAddress) -> CoherenceMessage {
        let (ticket, grant) = (Ticket(self.0.below(4)), Grant(self.0.below(6)));
        let optional = self.0.below(2) == 1;
        match self.0.below(10) {
            0 => CoherenceMessage::Read { line, frame: FRAME, ticket },
            1 => CoherenceMessage::Write {
                line,
                frame: FRAME,
                ticket,
                held: optional.then_some(grant),
                covers: [0, 8, 512][self.0.below(3) as usize],
            },
            2 => CoherenceMessage::Evict { line, grant, dirty: optional },
            3 => CoherenceMessage::Recall {
                line,
                grant,
                down_to: self.level(),
                forward: optional.then(|| self.requester()),
            },
            4 => CoherenceMessage::Grant {
                line,
                ticket,
                grant,
                level: self.level(),
                supply: [Supply::Held, Supply::Home, Supply::Owner(self.node()), Supply::Nothing]
                    [self.0.below(4) as usize],
                extent: EXTENT,
            },
            5 => CoherenceMessage::Refuse {
                line,
                ticket,
                code: ErrorCode::LineLost,
                supplier: optional.then(|| self.node()),
            },
            6 => CoherenceMessage::Data { line, ticket },
            8 => CoherenceMessage::WriteBack { line, ticket, owned: optional.then_some(grant) },
            9 => CoherenceMessage::Written { line, ticket },
            _ => CoherenceMessage::Ack {
                line,
                grant,
                had: [Had::Nothing, Had::Clean, Had::Bytes, Had::Forwarded]
                    [self.0.below(4) as usize],
                left: self.level(),
            },
        }
    }

    fn event(&mut self) -> CoherenceEvent {
        let (line, here) = (self.line(), self.here());
        let operation = OperationId(self.0.below(1_000));
        match self.0.below(40) {
            0..7 => CoherenceEvent::Issue {
                operation,
                line,
                want: [Want::Read, Want::Write, Want::Overwrite { covers: 512, continues: false }]
                    [self.0.below(3) as usize],
                pin: self.0.below(4) == 0,
                frame: FRAME,
                here,
            },
            7 => CoherenceEvent::Cancel { operation, line, here },
            8..10 => CoherenceEvent::Unpin { line, here },
            10..12 => CoherenceEvent::Evict { line, here },
            12 => CoherenceEvent::Retire { operation, line, here },
            13..16 => CoherenceEvent::Placed { line, here },
            16 if self.0.below(8) == 0 => CoherenceEvent::NodeDead { node: self.node() },
            17 => CoherenceEvent::Settled { node: self.node() },
            18..20 => {
                let operation = (self.0.below(2) == 0).then_some(operation);
                CoherenceEvent::WriteBack { operation, line, here }
            }
            20 if self.0.below(8) == 0 => CoherenceEvent::DropPins,
            _ => CoherenceEvent::Received { from: self.node(), message: self.message(line), here },
        }
    }
}

/// Arbitrary messages of peers and events of a runtime: a machine refuses or handles each, and changes nothing if it
/// refuses.
#[test]
fn arbitrary_messages_never_panic() {
    let (mut taken, mut refused) = (0, 0);
    for seed in 1..3_000_u64 {
        let mut numbers = InputGenerator(Random::new(seed));
        let mut machine = Coherence::new(NodeId(0), &Limits::TINY);
        let mut effects = Effects::new();
        for step in 0..60 {
            let event = numbers.event();
            let before = machine.clone();
            let already = effects.len();
            match machine.step(event, &mut effects) {
                Ok(()) => taken += 1,
                Err(_) => {
                    refused += 1;
                    assert_eq!(machine, before, "seed {seed} step {step}");
                    assert_eq!(effects.len(), already, "seed {seed} step {step}");
                }
            }
        }
    }
    assert!(taken > 50_000 && refused > 50_000, "{taken} taken, {refused} refused");
}
