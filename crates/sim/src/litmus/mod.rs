//! Litmus tests: small programs with outcomes that distinguish memory models, run at every height.
//!
//! - [`CATALOG`] contains the tests as data, with the verdicts of partial and total store order.
//! - [`outcomes`] enumerates what a model allows, by a small reference machine.
//! - A [`LitmusSubject`] runs the programs step by step, a [`FreeSubject`] on real threads; [`walk`] and [`run_free`]
//!   drive them over [placements](Placement).
//! - A [`LitmusReport`] compares observed outcomes with allowed ones: it fails on a forbidden outcome, and lists
//!   allowed ones that were never observed.

mod catalog;
mod machine;
mod node;
mod program;
mod reference;
mod report;
mod run;
mod search;
mod wire;

pub use catalog::CATALOG;
pub use machine::{
    LIMITS, MachineAction, Machines, Start, machine_ends, machine_report, machine_walks,
    machine_walks_with,
};
pub use node::NodeSubject;
pub use program::{Condition, Instruction, Litmus, LitmusOutcome, ModelVerdict, Outcomes};
pub use reference::{MemoryModel, Reference, ReferenceAction, outcomes};
pub use report::{LitmusReport, Observations, Row};
pub use run::{FreeSubject, LitmusSubject, Pace, Placement, Spot, Stuck, observe, run_free, walk};
pub use search::{RunEnds, RunModel, ends};
pub use wire::WireSubject;
