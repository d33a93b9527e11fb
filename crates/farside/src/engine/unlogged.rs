//! Lines of homes with state whose latest bytes this node may have, and no log: a fence waits until all of them are
//! durable.
//!
//! A line of another home joins when this node owns it. A fence has it written back, which its home confirms once the
//! bytes are durable, whichever node has the line by then; it leaves when that is confirmed and this node does not own it
//! again. A line of this home joins when a session may write it, and leaves when it is logged, which needs no request.
//!
//! A home that dies takes the writes with it that it had not logged. Their number of *losses* rises then, and the next
//! fence of each session fails with `WritesLost`: hits leave no trace of which sessions wrote.

use super::Engine;
use crate::ErrorCode;
use crate::canary;
use crate::operation::{persist_number, persist_operation};
use farside_base::{LineAddress, NodeId, OperationId};
use farside_protocol::coherence::Level;
use std::collections::{BTreeMap, BTreeSet};

/// A fence that waits.
#[derive(Debug)]
struct Persist {
    operation: OperationId,
    /// Write-backs in flight.
    write_backs: BTreeSet<u64>,
    /// Lines of this home that are to be logged.
    own: BTreeSet<LineAddress>,
    outcome: Result<(), ErrorCode>,
}

/// A write-back for a fence.
#[derive(Clone, Copy, Debug)]
struct WriteBack {
    line: LineAddress,
    /// Of the line at its start.
    serial: u64,
}

/// Lines that may not be durable, and the fences that wait for them.
#[derive(Debug, Default)]
pub(crate) struct Unlogged {
    /// With a number that is new whenever this node may write the line again.
    lines: BTreeMap<LineAddress, u64>,
    fences: Vec<Persist>,
    /// The write-backs in flight, by number.
    write_backs: BTreeMap<u64, WriteBack>,
    next: u64,
    losses: u32,
}

impl Unlogged {
    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }
}

impl Engine {
    /// Notes that this node may write a line from now on.
    pub(super) fn may_write(&mut self, line: LineAddress) {
        let home = line.home();
        let keeps = match home == self.me() {
            true => self.keeps_state(),
            false => self.membership.machine().keeps(home),
        };
        if keeps {
            let serial = self.unlogged.number();
            self.unlogged.lines.insert(line, serial);
            self.publish_unlogged();
        }
    }

    /// A number that changes whenever this node may write the line again.
    pub(super) fn write_serial(&self, line: LineAddress) -> Option<u64> {
        self.unlogged.lines.get(&line).copied()
    }

    /// What this node wrote to the line when it had this number is durable.
    fn is_durable(&mut self, line: LineAddress, serial: Option<u64>) {
        let is_owned = self.here(line).held.level == Level::Dirty;
        let newest = self.write_serial(line) == serial
            || canary::mutant!(canary::nodes(), StateWriteBackTooEarly);
        if !is_owned && serial.is_some() && newest {
            self.unlogged.lines.remove(&line);
            self.publish_unlogged();
        }
    }

    /// Publishes to the sessions whether a fence has to wait.
    fn publish_unlogged(&self) {
        let count = u32::try_from(self.unlogged.lines.len()).unwrap_or(u32::MAX);
        self.lines.set_unlogged(self.unlogged.losses, count);
    }

    /// Starts an operation that ends when what this node has written so far is durable.
    pub(super) fn start_persist(&mut self, operation: OperationId) {
        let mut fence = Persist {
            operation,
            write_backs: BTreeSet::new(),
            own: BTreeSet::new(),
            outcome: Ok(()),
        };
        let mut asked = Vec::new();
        let me = self.me();
        let lines: Vec<(LineAddress, u64)> =
            self.unlogged.lines.iter().map(|(line, serial)| (*line, *serial)).collect();
        for (line, serial) in lines {
            if line.home() == me {
                fence.own.insert(line);
                continue;
            }
            let number = self.unlogged.number();
            fence.write_backs.insert(number);
            self.unlogged.write_backs.insert(number, WriteBack { line, serial });
            asked.push((number, line));
        }
        if fence.own.is_empty() && asked.is_empty() {
            return self.finish(operation, Ok(()));
        }
        self.unlogged.fences.push(fence);
        for (number, line) in asked {
            self.start_write_back(persist_operation(number), line);
        }
    }

    /// A write-back for a fence has ended.
    pub(super) fn persisted(&mut self, operation: OperationId, outcome: Result<(), ErrorCode>) {
        let number = persist_number(operation);
        let Some(WriteBack { line, serial }) = self.unlogged.write_backs.remove(&number) else {
            return;
        };
        let outcome = match outcome {
            Ok(()) | Err(ErrorCode::Unallocated) => {
                self.is_durable(line, Some(serial)); // or freed
                Ok(())
            }
            // Each session learns of a loss by their number.
            Err(ErrorCode::NodeLost | ErrorCode::NodeLeft | ErrorCode::HomeAway) => {
                self.unlogged_home_gone(line.home());
                Ok(())
            }
            failed => failed,
        };
        for fence in &mut self.unlogged.fences {
            if fence.write_backs.remove(&number) && fence.outcome.is_ok() {
                fence.outcome = outcome;
            }
        }
        self.end_fences();
    }

    /// A line of this home is durable.
    pub(super) fn own_line_durable(&mut self, line: LineAddress, serial: Option<u64>) {
        self.is_durable(line, serial);
        for fence in &mut self.unlogged.fences {
            fence.own.remove(&line);
        }
        self.end_fences();
    }

    fn end_fences(&mut self) {
        let ended = |fence: &mut Persist| fence.own.is_empty() && fence.write_backs.is_empty();
        let ended: Vec<Persist> = self.unlogged.fences.extract_if(.., ended).collect();
        for fence in ended {
            self.finish(fence.operation, fence.outcome);
        }
    }

    /// Handles the end of a home: what it had not logged is gone.
    pub(super) fn unlogged_home_gone(&mut self, home: NodeId) {
        let before = self.unlogged.lines.len();
        self.unlogged.lines.retain(|line, _| line.home() != home);
        let told = !canary::mutant!(canary::nodes(), StateLossNotTold);
        if self.unlogged.lines.len() < before && told {
            self.unlogged.losses = self.unlogged.losses.wrapping_add(1);
            self.publish_unlogged();
        }
    }
}
