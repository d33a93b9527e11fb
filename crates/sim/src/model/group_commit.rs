//! The model of group commit: programs that append and wait, and a device that may fail at any sync.
//!
//! A program appends a unit and waits for it, several times. The device keeps what a write was given when its sync ends
//! well, and nothing more after it has failed: not even if a later sync ends well.
//!
//! Checked: what was reported as durable is kept; at most one program writes; a program that waits is answered,
//! also after a failure.

use crate::explorer::{Model, Violation};
use farside_protocol::persist::{CommitStatus, GroupCommit};
use std::ops::Range;

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum CommitterState {
    Idle,
    /// Waits for this position. It waits for the report of another program, or asks again.
    Waits(u64, bool),
    Writes(u64, Range<u64>),
}

/// Programs that use one log.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Committers {
    commit: GroupCommit,
    programs: Vec<(CommitterState, u8)>,
    /// What the device keeps.
    kept: u64,
    has_failed: bool,
    /// Syncs that may fail.
    failures: u8,
    wrong: Option<&'static str>,
}

/// A step of the model.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum CommitAction {
    /// A program appends a unit.
    Append(usize),
    /// A program asks what to do.
    Ask(usize),
    /// The sync of the program that writes ends, well or not.
    Synced(usize, bool),
}

impl Committers {
    /// Programs that append `units` each; `change` may plant a mutant.
    pub fn new(
        programs: usize,
        units: u8,
        failures: u8,
        change: impl Fn(GroupCommit) -> GroupCommit,
    ) -> Self {
        Self {
            commit: change(GroupCommit::new(0)),
            programs: vec![(CommitterState::Idle, units); programs],
            kept: 0,
            has_failed: false,
            failures,
            wrong: None,
        }
    }

    fn ask(&mut self, number: usize, upto: u64) {
        self.programs[number].0 = match self.commit.status(upto) {
            CommitStatus::Durable => {
                if self.kept < upto {
                    self.wrong = Some("what is not kept was reported as durable");
                }
                CommitterState::Idle
            }
            CommitStatus::Failed => {
                if !self.has_failed {
                    self.wrong = Some("a failure was reported that was none");
                }
                self.programs[number].1 = 0;
                CommitterState::Idle
            }
            CommitStatus::Wait => CommitterState::Waits(upto, true),
            CommitStatus::Lead => {
                let writes = |(state, _): &_| matches!(state, CommitterState::Writes(..));
                if self.programs.iter().any(writes) {
                    self.wrong = Some("two programs write at the same time");
                }
                CommitterState::Writes(upto, self.commit.begin())
            }
        };
    }
}

impl Model for Committers {
    type Action = CommitAction;

    fn enabled(&self) -> Vec<CommitAction> {
        let mut actions = Vec::new();
        for (number, (state, units)) in self.programs.iter().enumerate() {
            match state {
                CommitterState::Idle if *units > 0 => actions.push(CommitAction::Append(number)),
                CommitterState::Waits(_, false) => actions.push(CommitAction::Ask(number)),
                CommitterState::Writes(..) => {
                    actions.push(CommitAction::Synced(number, true));
                    if self.failures > 0 {
                        actions.push(CommitAction::Synced(number, false));
                    }
                }
                _ => {}
            }
        }
        actions
    }

    fn apply(&mut self, action: CommitAction) {
        match action {
            CommitAction::Append(number) => {
                let end = self.commit.appended() + 1;
                self.commit.append_to(end);
                self.programs[number] =
                    (CommitterState::Waits(end, false), self.programs[number].1 - 1);
            }
            CommitAction::Ask(number) => {
                if let CommitterState::Waits(upto, _) = self.programs[number].0 {
                    self.ask(number, upto);
                }
            }
            CommitAction::Synced(number, is_durable) => {
                let CommitterState::Writes(upto, range) = self.programs[number].0.clone() else {
                    return;
                };
                self.failures -= u8::from(!is_durable);
                self.has_failed |= !is_durable;
                if !self.has_failed && self.kept >= range.start {
                    self.kept = self.kept.max(range.end);
                }
                self.commit.end(is_durable);
                self.programs[number].0 = CommitterState::Waits(upto, false);
                for (state, _) in &mut self.programs {
                    if let CommitterState::Waits(_, waits) = state {
                        *waits = false;
                    }
                }
            }
        }
    }

    fn violation(&self) -> Option<Violation> {
        if self.commit.durable() > self.kept {
            return Some(Violation::new("more is durable than the device keeps"));
        }
        self.wrong.map(Violation::new)
    }

    fn stuck(&self) -> Option<Violation> {
        let waits = |(state, _): &_| matches!(state, CommitterState::Waits(..));
        self.programs.iter().any(waits).then(|| Violation::new("a program waits forever"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::explorer::Explorer;

    fn explore(committers: &Committers, states: u64) {
        let coverage = Explorer::new().explore(committers).holds();
        let coverage = coverage.unwrap_or_else(|transcript| panic!("{transcript}"));
        assert_eq!(coverage.states, states, "{coverage:?}");
    }

    #[test]
    fn reported_positions_are_kept() {
        explore(&Committers::new(3, 2, 1, |commit| commit), 5_202);
        explore(&Committers::new(4, 1, 2, |commit| commit), 6_980);
    }

    #[cfg(canary)]
    #[test]
    fn canary_defects_are_found() {
        use farside_protocol::persist::PersistMutant::{
            AllAppendedDurable, DurableAtBegin, FailureForgotten, TwoLeaders,
        };
        for mutant in [AllAppendedDurable, DurableAtBegin, FailureForgotten, TwoLeaders] {
            let model = Committers::new(3, 2, 1, |commit| commit.with_mutant(mutant));
            assert!(Explorer::new().explore(&model).failure().is_some(), "{mutant:?}");
        }
    }
}
