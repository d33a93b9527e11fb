//! Every half of every channel against a hostile peer that writes arbitrary bytes wherever it may, sends arbitrary
//! messages, and answers every READ with arbitrary bytes. The half must not panic, access memory outside its own,
//! return a message outside its buffer or longer than the maximum, or use memory that grows with the peer's actions.
//!
//! A failure prints the kind and the seed of the run.
#![allow(clippy::print_stderr, reason = "the line that repeats a failure")]

mod hostile;

use farside_protocol::channel::Receiver;
use farside_protocol::channel::{Kind, Sender};
use hostile::{HalfRole, Life};

/// Steps per run, and runs, of each kind and half.
const STEPS: u64 = 500;
const LIVES: u64 = 440;

struct FailureLine(Kind, HalfRole, u64);

impl Drop for FailureLine {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{} {:?} life {}", self.0, self.1, self.2);
        }
    }
}

/// Steps that were taken, and the number of runs that ended by a violation.
fn run(kind: Kind, role: HalfRole, lives: std::ops::Range<u64>) -> (u64, u64) {
    let (mut steps, mut violations) = (0, 0);
    for seed in lives {
        let line = FailureLine(kind, role, seed);
        let life = match role {
            HalfRole::Sender => Life::<Sender>::new(kind, seed).live(STEPS),
            HalfRole::Receiver => Life::<Receiver>::new(kind, seed).live(STEPS),
        };
        steps += life.steps;
        violations += life.violations;
        drop(line);
    }
    (steps, violations)
}

fn family(kinds: impl IntoIterator<Item = Kind>) {
    for kind in kinds {
        for role in [HalfRole::Sender, HalfRole::Receiver] {
            let (steps, _) = run(kind, role, 0..LIVES);
            assert!(steps >= 200_000, "{kind} {role:?}: {steps}");
        }
    }
}

#[test]
fn send_receive_and_write_slot_bear_everything() {
    family(Kind::ALL.into_iter().take(7));
}

#[test]
fn rings_bear_everything() {
    family(Kind::ALL.into_iter().skip(7).take(6));
}

#[test]
fn reads_bear_everything() {
    family(Kind::ALL.into_iter().skip(13));
}

#[test]
fn some_of_it_is_found_out() {
    for kind in Kind::ALL {
        let sender = run(kind, HalfRole::Sender, 0..40).1;
        let receiver = run(kind, HalfRole::Receiver, 0..40).1;
        assert!(sender + receiver > 0, "{kind}: nothing it did was a violation");
    }
}
