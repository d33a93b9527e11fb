//! Runs `bench/compare/rmc`, which measures other engines, as part of the same benchmark.

use farside_command::failure::Failure;
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::process::Command;

/// Results of the program.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Peers {
    /// Time of each engine for each workload.
    figures: Vec<serde_json::Value>,
    /// The printed lines.
    lines: Vec<String>,
}

impl Peers {
    /// Runs the program and parses its output. Blocks for half a minute.
    pub(super) fn measured_by(program: &Path) -> Result<Self, Failure> {
        let name = program.display();
        let wrong = |why: String| {
            Failure::usage(format!(
                "--peers {name}: {why}. Build it with `cargo build --release --manifest-path \
                 bench/compare/rmc/Cargo.toml`"
            ))
        };
        let done = Command::new(program).arg("--json").output();
        let done = done.map_err(|error| wrong(error.to_string()))?;
        if !done.status.success() {
            return Err(wrong(format!("it exited with {}", done.status)));
        }
        serde_json::from_slice(&done.stdout).map_err(|error| wrong(error.to_string()))
    }

    pub(super) fn lines(&self) -> &[String] {
        &self.lines
    }
}
