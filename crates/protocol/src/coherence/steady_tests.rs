//! A machine that has reached its peak load allocates no more memory.

use super::{
    Coherence, CoherenceEffect, CoherenceEvent, CoherenceMessage, Effects, Extent, Frame, HeldLine,
    Here, Want,
};
use crate::Table;
use alloc::vec;
use alloc::vec::Vec;
use farside_base::{GlobalAddress, Limits, LineAddress, LineSize, NodeId, OperationId};

/// Three machines over a network that delivers in the order of sending.
struct Steady {
    machines: Vec<Coherence>,
    tags: Vec<Table<LineAddress, HeldLine>>,
    effects: Vec<(NodeId, CoherenceEffect)>,
    buffer: Effects,
}

impl Steady {
    fn new() -> Self {
        let machine = |node| Coherence::new(NodeId(node), &Limits::DEFAULT);
        Self {
            machines: (0..3).map(machine).collect(),
            tags: vec![Table::new(); 3],
            effects: Vec::new(),
            buffer: Effects::new(),
        }
    }

    fn here(&self, node: NodeId, line: LineAddress) -> Here {
        let held = self.tags[usize::from(node.0)].get(line).copied();
        Here {
            held: held.unwrap_or_default(),
            extent: (line.home() == node).then_some(Extent { first: true, bytes: 512 }),
        }
    }

    fn step(&mut self, node: NodeId, event: CoherenceEvent) {
        let machine = &mut self.machines[usize::from(node.0)];
        machine.step(event, &mut self.buffer).expect("machines are correct");
        self.effects.extend(self.buffer.drain(..).map(|effect| (node, effect)));
    }

    fn issue(&mut self, node: NodeId, line: LineAddress, want: Want) {
        let here = self.here(node, line);
        let event = CoherenceEvent::Issue {
            operation: OperationId(1),
            line,
            want,
            pin: false,
            frame: Frame(0),
            here,
        };
        self.step(node, event);
    }

    fn receive(&mut self, from: NodeId, to: NodeId, message: CoherenceMessage) {
        let here = self.here(to, message.line());
        self.step(to, CoherenceEvent::Received { from, message, here });
    }

    fn run(&mut self) {
        let mut at = 0;
        while let Some((node, effect)) = self.effects.get(at).copied() {
            at += 1;
            match effect {
                CoherenceEffect::Send { to, message } => self.receive(node, to, message),
                CoherenceEffect::Place { line, to, message, .. } => {
                    self.receive(node, to, message);
                    let here = self.here(node, line);
                    self.step(node, CoherenceEvent::Placed { line, here });
                }
                CoherenceEffect::SetLevel { line, held, .. } => {
                    self.tags[usize::from(node.0)].insert(line, held);
                }
                CoherenceEffect::Release { .. } | CoherenceEffect::Ready { .. } => {}
                CoherenceEffect::Fail { .. }
                | CoherenceEffect::Fill { .. }
                | CoherenceEffect::Log { .. }
                | CoherenceEffect::Restore { .. }
                | CoherenceEffect::DropHome { .. } => {
                    panic!("nothing fails here")
                }
            }
        }
        self.effects.clear();
    }

    /// More concurrent work than any round has.
    fn storm(&mut self) {
        for number in 0..1_800 {
            let (node, home) = (NodeId(number % 3), NodeId(number / 3 % 3));
            let offset = u64::from(number) / 9 * 512;
            let line = GlobalAddress::new(home, LineSize::DEFAULT, offset).unwrap().line();
            self.issue(node, line, Want::Read);
        }
        self.run();
    }

    /// Reads, writes and evictions of 200 lines by all nodes, in a deterministic order for a seed.
    fn round(&mut self, seed: u64) {
        for step in 0..2_000_u64 {
            let number = (seed * 2_000 + step).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
            let node = NodeId((number % 3) as u16);
            let home = NodeId((number / 3 % 3) as u16);
            let offset = number / 9 % 200 * 512;
            let line = GlobalAddress::new(home, LineSize::DEFAULT, offset).unwrap().line();
            match number / 1_800 % 4 {
                0 => self.issue(node, line, Want::Write),
                1 if home != node => {
                    let here = self.here(node, line);
                    self.step(node, CoherenceEvent::Evict { line, here });
                }
                _ => self.issue(node, line, Want::Read),
            }
            if step % 4 == 3 {
                self.run();
            }
        }
        self.run();
    }
}

#[test]
fn memory_does_not_grow_after_the_first_rounds() {
    let mut steady = Steady::new();
    steady.storm();
    (0..4).for_each(|seed| steady.round(seed));
    let memory =
        |steady: &Steady| -> Vec<usize> { steady.machines.iter().map(Coherence::memory).collect() };
    let before = memory(&steady);
    (4..20).for_each(|seed| steady.round(seed));
    assert_eq!(memory(&steady), before);
    for machine in &steady.machines {
        machine.invariants().unwrap();
        assert_eq!(machine.lines_busy(), 0);
        assert!(machine.counters().lines_forwarded > 100);
    }
}
