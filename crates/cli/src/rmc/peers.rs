//! What `bench/compare/rmc` measures: other engines beside this one, as part of the same run.

use crate::failure::Failure;
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::process::Command;

/// What the program has measured.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Peers {
    /// What each party took for what.
    figures: Vec<serde_json::Value>,
    /// The same for people.
    lines: Vec<String>,
}

impl Peers {
    /// Runs the program, which takes half a minute, and takes what it prints.
    pub(super) fn measured_by(program: &Path) -> Result<Self, Failure> {
        let name = program.display();
        let wrong = |why: String| {
            Failure::usage(format!(
                "--peers {name}: {why}. It is the program that `cargo build --release \
                 --manifest-path bench/compare/rmc/Cargo.toml` makes"
            ))
        };
        let done = Command::new(program).arg("--json").output();
        let done = done.map_err(|error| wrong(error.to_string()))?;
        if !done.status.success() {
            return Err(wrong(format!("it ended with {}", done.status)));
        }
        serde_json::from_slice(&done.stdout).map_err(|error| wrong(error.to_string()))
    }

    pub(super) fn lines(&self) -> &[String] {
        &self.lines
    }
}
