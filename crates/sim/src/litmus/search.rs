//! Exhaustive search for all outcomes of one program.

use super::program::{LitmusOutcome, Outcomes};
use crate::explorer::{self, Coverage, Explorer, Model, Violation};
use std::cell::RefCell;
use std::hash::{Hash, Hasher};
use std::rc::Rc;

/// A model of a running program.
pub trait RunModel: Model {
    /// Returns the outcome of the run; `None` if some thread waits forever.
    fn outcome(&self) -> Option<LitmusOutcome>;
}

/// All outcomes of a program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RunEnds {
    /// The outcomes.
    pub outcomes: Outcomes,
    /// Extent of the search.
    pub coverage: Coverage,
}

/// Visits every state, at most `states_max`, and collects the outcomes.
///
/// # Errors
/// The transcript of a violation or of a run that does not end; or that the bound was reached.
pub fn ends<R: RunModel>(start: &R, states_max: u64) -> Result<RunEnds, String> {
    let collecting = Collecting { run: start.clone(), outcomes: Rc::default() };
    let explorer = Explorer::new().bounds(states_max, usize::MAX);
    let coverage = match explorer.explore(&collecting) {
        explorer::Outcome::Holds(coverage) => coverage,
        explorer::Outcome::Fails(failure) => return Err(failure.transcript),
        explorer::Outcome::OutOfBounds(coverage) => {
            return Err(format!("more than {states_max} states: {coverage:?}"));
        }
    };
    let outcomes = collecting.outcomes.take();
    Ok(RunEnds { outcomes, coverage })
}

/// A run that records the outcomes of its final states in a shared set, which is not part of the state.
#[derive(Clone)]
struct Collecting<R> {
    run: R,
    outcomes: Rc<RefCell<Outcomes>>,
}

impl<R: RunModel> PartialEq for Collecting<R> {
    fn eq(&self, other: &Self) -> bool {
        self.run == other.run
    }
}

impl<R: RunModel> Eq for Collecting<R> {}

impl<R: RunModel> Hash for Collecting<R> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.run.hash(state);
    }
}

impl<R: RunModel> Model for Collecting<R> {
    type Action = R::Action;

    fn enabled(&self) -> Vec<R::Action> {
        self.run.enabled()
    }

    fn apply(&mut self, action: R::Action) {
        self.run.apply(action);
    }

    fn violation(&self) -> Option<Violation> {
        self.run.violation()
    }

    fn stuck(&self) -> Option<Violation> {
        match self.run.outcome() {
            Some(outcome) => {
                self.outcomes.borrow_mut().insert(outcome);
                self.run.stuck()
            }
            None => Some(Violation::new("a run that does not end")),
        }
    }

    fn narrate(&mut self, action: R::Action, lines: &mut Vec<String>) {
        self.run.narrate(action, lines);
    }
}
