//! Messages that no correct peer sends are refused without a change; no message in any state panics or breaks an
//! invariant.

use crate::cluster::{Cluster, EXTENT, line};
use farside_base::{
    ErrorCode, GlobalAddress, Grant, Limits, LineAddress, LineSize, NodeId, OperationId, Ticket,
};
use farside_protocol::coherence::{
    Coherence, Effects, Event, Frame, Had, Held, Here, Level, Message, Requester, Supply, Want,
};

const FRAME: Frame = Frame(0);
const TICKET: Ticket = Ticket(1);
const GRANT: Grant = Grant(1);

fn foreign_line() -> LineAddress {
    GlobalAddress::new(NodeId(1), LineSize::DEFAULT, 0).unwrap().line()
}

/// Gives the machine of `at` a message; it must refuse it, and be unchanged.
#[track_caller]
fn refused(cluster: &mut Cluster, from: u16, at: u16, message: Message) {
    let extent = (at == 0).then_some(EXTENT);
    let held = cluster.held(at);
    let machine = &mut cluster.machines[usize::from(at)];
    let before = machine.clone();
    let mut effects = Effects::new();
    let from = NodeId(from);
    let here = Here { held, extent };
    let step = machine.step(Event::Received { from, message, here }, &mut effects);
    assert!(step.is_err(), "accepted: {message}");
    assert!(effects.is_empty());
    assert_eq!(*machine, before);
}

fn recall(grant: Grant, down_to: Level, forward: Option<u16>) -> Message {
    let forward =
        forward.map(|node| Requester { node: NodeId(node), frame: FRAME, ticket: TICKET });
    Message::Recall { line: line(), grant, down_to, forward }
}

fn grant(ticket: Ticket, level: Level, supply: Supply) -> Message {
    Message::Grant { line: line(), ticket, grant: Grant(9), level, supply, extent: EXTENT }
}

fn ack(grant: Grant, had: Had, left: Level) -> Message {
    Message::Ack { line: line(), grant, had, left }
}

fn evict(grant: Grant, dirty: bool) -> Message {
    Message::Evict { line: line(), grant, dirty }
}

fn read(line: LineAddress) -> Message {
    Message::Read { line, frame: FRAME, ticket: TICKET }
}

#[test]
fn messages_of_the_wrong_role_are_refused() {
    let mut cluster = Cluster::owned_by(3, 1);
    refused(&mut cluster, 2, 0, read(foreign_line()));
    refused(&mut cluster, 2, 1, recall(GRANT, Level::Invalid, None));
    refused(&mut cluster, 0, 0, recall(GRANT, Level::Invalid, None));
    refused(&mut cluster, 2, 1, grant(TICKET, Level::Dirty, Supply::Home));
    refused(&mut cluster, 500, 0, read(line()));
    let data = Message::Data { line: line(), ticket: TICKET };
    refused(&mut cluster, 1, 0, data);
    refused(&mut cluster, 0, 1, data);
    refused(&mut cluster, 2, 1, data);
}

#[test]
fn requests_that_no_holder_sends_are_refused() {
    let mut cluster = Cluster::owned_by(3, 1);
    refused(&mut cluster, 1, 0, read(line()));
    refused(&mut cluster, 1, 0, evict(GRANT, false));
    refused(&mut cluster, 2, 0, evict(Grant(7), true));
    refused(&mut cluster, 2, 0, evict(GRANT, false));
    cluster.read(2, 1);
    cluster.request(2, 0);
    cluster.write(0, 2);
    cluster.machines[0].invariants().unwrap();
    let mut twice = Cluster::owned_by(3, 1);
    twice.write(0, 1);
    twice.read(2, 2);
    twice.request(2, 0);
    refused(&mut twice, 2, 0, read(line()));
}

#[test]
fn unexpected_acknowledgements_are_refused() {
    let mut cluster = Cluster::owned_by(3, 1);
    refused(&mut cluster, 1, 0, ack(GRANT, Had::Bytes, Level::Invalid));
    cluster.read(2, 1);
    cluster.request(2, 0);
    refused(&mut cluster, 1, 0, ack(GRANT, Had::Bytes, Level::Dirty));
    refused(&mut cluster, 1, 0, ack(GRANT, Had::Clean, Level::Invalid));
    refused(&mut cluster, 1, 0, ack(GRANT, Had::Forwarded, Level::Invalid));
    refused(&mut cluster, 1, 0, ack(GRANT, Had::Nothing, Level::Shared));
    refused(&mut cluster, 2, 0, ack(GRANT, Had::Bytes, Level::Invalid));
    refused(&mut cluster, 1, 0, ack(Grant(0), Had::Bytes, Level::Invalid));
    let mut cluster = Cluster::shared_by(3, &[1, 2]);
    cluster.write(1, 1);
    cluster.request(1, 0);
    refused(&mut cluster, 1, 0, ack(GRANT, Had::Clean, Level::Invalid));
    refused(&mut cluster, 2, 0, ack(Grant(2), Had::Bytes, Level::Invalid));
    refused(&mut cluster, 2, 0, ack(Grant(2), Had::Clean, Level::Shared));
}

#[test]
fn recalls_that_no_home_sends_are_refused() {
    let mut cluster = Cluster::shared_by(3, &[1]);
    refused(&mut cluster, 0, 1, recall(GRANT, Level::Dirty, None));
    refused(&mut cluster, 0, 1, recall(GRANT, Level::Shared, None));
    refused(&mut cluster, 0, 1, recall(GRANT, Level::Invalid, Some(2)));
    refused(&mut cluster, 0, 1, recall(GRANT, Level::Invalid, Some(0)));
    refused(&mut cluster, 0, 1, recall(GRANT, Level::Invalid, Some(1)));
    refused(&mut cluster, 0, 1, recall(GRANT, Level::Invalid, Some(500)));
    cluster.issue(1, 1, Want::Read, true);
    cluster.write(0, 2);
    cluster.forward(0, 1);
    refused(&mut cluster, 0, 1, recall(GRANT, Level::Invalid, None));
}

#[test]
fn unexpected_answers_are_refused() {
    let mut cluster = Cluster::shared_by(3, &[1]);
    refused(&mut cluster, 0, 1, grant(Ticket(2), Level::Dirty, Supply::Home));
    cluster.write(1, 1);
    refused(&mut cluster, 0, 1, grant(Ticket(1), Level::Dirty, Supply::Home));
    refused(&mut cluster, 0, 1, grant(Ticket(2), Level::Shared, Supply::Home));
    let refuse = |ticket, code| Message::Refuse { line: line(), ticket, code, supplier: None };
    refused(&mut cluster, 0, 1, refuse(Ticket(1), ErrorCode::LineLost));
    refused(&mut cluster, 0, 1, refuse(Ticket(2), ErrorCode::Busy));
    cluster.read(2, 2);
    refused(&mut cluster, 0, 2, grant(Ticket(1), Level::Shared, Supply::Held));
    let data = |ticket| Message::Data { line: line(), ticket };
    refused(&mut cluster, 1, 2, data(Ticket(2)));
    let from = NodeId(1);
    let here = Here::default();
    let mut effects = Effects::new();
    let message = data(Ticket(1));
    cluster.machines[2].step(Event::Received { from, message, here }, &mut effects).unwrap();
    refused(&mut cluster, 1, 2, data(Ticket(1)));
    refused(&mut cluster, 0, 2, grant(Ticket(1), Level::Shared, Supply::Home));
    refused(&mut cluster, 0, 2, grant(Ticket(1), Level::Shared, Supply::Owner(NodeId(0))));
}

/// A deterministic pseudo-random sequence for a seed.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 20) % bound
    }

    fn node(&mut self) -> NodeId {
        NodeId(self.below(4) as u16)
    }

    fn level(&mut self) -> Level {
        [Level::Invalid, Level::Shared, Level::Dirty][self.below(3) as usize]
    }

    fn line(&mut self) -> LineAddress {
        let node = NodeId(self.below(3) as u16);
        GlobalAddress::new(node, LineSize::DEFAULT, 0).unwrap().line()
    }

    fn here(&mut self) -> Here {
        let grant = Grant(self.below(6));
        Here {
            held: Held { level: self.level(), grant },
            extent: (self.below(8) > 0).then_some(EXTENT),
        }
    }

    fn requester(&mut self) -> Requester {
        Requester { node: self.node(), frame: FRAME, ticket: Ticket(self.below(4)) }
    }

    fn message(&mut self, line: LineAddress) -> Message {
        let (ticket, grant) = (Ticket(self.below(4)), Grant(self.below(6)));
        let optional = self.below(2) == 1;
        match self.below(10) {
            0 => Message::Read { line, frame: FRAME, ticket },
            1 => Message::Write {
                line,
                frame: FRAME,
                ticket,
                held: optional.then_some(grant),
                covers: [0, 8, 512][self.below(3) as usize],
            },
            2 => Message::Evict { line, grant, dirty: optional },
            3 => Message::Recall {
                line,
                grant,
                down_to: self.level(),
                forward: optional.then(|| self.requester()),
            },
            4 => Message::Grant {
                line,
                ticket,
                grant,
                level: self.level(),
                supply: [Supply::Held, Supply::Home, Supply::Owner(self.node()), Supply::Nothing]
                    [self.below(4) as usize],
                extent: EXTENT,
            },
            5 => Message::Refuse {
                line,
                ticket,
                code: ErrorCode::LineLost,
                supplier: optional.then(|| self.node()),
            },
            6 => Message::Data { line, ticket },
            8 => Message::WriteBack { line, ticket },
            9 => Message::Written { line, ticket },
            _ => Message::Ack {
                line,
                grant,
                had: [Had::Nothing, Had::Clean, Had::Bytes, Had::Forwarded][self.below(4) as usize],
                left: self.level(),
            },
        }
    }

    fn event(&mut self) -> Event {
        let (line, here) = (self.line(), self.here());
        let operation = OperationId(self.below(1_000));
        match self.below(40) {
            0..7 => Event::Issue {
                operation,
                line,
                want: [Want::Read, Want::Write, Want::Overwrite { covers: 512, continues: false }]
                    [self.below(3) as usize],
                pin: self.below(4) == 0,
                frame: FRAME,
                here,
            },
            7 => Event::Cancel { operation, line, here },
            8..10 => Event::Unpin { line, here },
            10..12 => Event::Evict { line, here },
            12 => Event::Retire { operation, line, here },
            13..16 => Event::Placed { line, here },
            16 if self.below(8) == 0 => Event::NodeDead { node: self.node() },
            17 => Event::Settled { node: self.node() },
            18..20 => {
                let operation = (self.below(2) == 0).then_some(operation);
                Event::WriteBack { operation, line, here }
            }
            20 if self.below(8) == 0 => Event::DropPins,
            _ => Event::Received { from: self.node(), message: self.message(line), here },
        }
    }
}

/// Arbitrary messages of peers and events of a runtime: a machine refuses or handles each, and changes nothing if it
/// refuses.
#[test]
fn arbitrary_messages_never_panic() {
    let (mut taken, mut refused) = (0, 0);
    for seed in 1..3_000_u64 {
        let mut numbers = Numbers(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
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
