//! Instructions per operation, counted by valgrind's callgrind, against a table that may only fall by intent.

use crate::debian::{self, Need};
use crate::shell::Shell;
use std::path::Path;
use std::process::Command;

/// An operation of `crates/farside/examples/instructions.rs`.
struct OperationRow {
    operation: &'static str,
    /// Its instructions; of both nodes where there are two.
    instructions: u32,
    /// How often it is executed: few where each execution needs a line of its own.
    count: u64,
}

/// Lower a row when an operation takes less; raise one only with the reason in the commit.
const TABLE: &[OperationRow] = &[
    OperationRow { operation: "read-local", instructions: 132, count: 20_000 },
    OperationRow { operation: "read-cached", instructions: 160, count: 20_000 },
    OperationRow { operation: "read-direct", instructions: 319, count: 20_000 },
    OperationRow { operation: "write-owned", instructions: 189, count: 20_000 },
    OperationRow { operation: "fetch-add", instructions: 138, count: 20_000 },
    OperationRow { operation: "lock", instructions: 241, count: 20_000 },
    OperationRow { operation: "read-miss", instructions: 13_699, count: 2_000 },
    OperationRow { operation: "write-miss", instructions: 14_342, count: 2_000 },
    OperationRow { operation: "call", instructions: 9_896, count: 2_000 },
];

/// Percent by which compilers and processors differ.
const TOLERANCE: f64 = 5.0;

/// Runs the step: an error if an operation takes more than its row.
///
/// The build has assertions and no link-time optimization: the numbers are to be compared with each other, not with
/// those of a release.
pub(crate) fn run(shell: &mut Shell) -> Result<(), String> {
    debian::ensure(&[Need { what: "valgrind", package: "valgrind" }], &|text| println!("{text}"))?;
    // With more units, which functions are inlined changes with the rest of the crate: a call took 6 % more after a change
    // that its code has no part in.
    shell.set("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "1");
    shell.cargo(&[
        "build",
        "--release",
        "--quiet",
        "-p",
        "farside",
        "--example",
        "instructions",
    ])?;
    let target = std::env::var("CARGO_TARGET_DIR").unwrap_or_else(|_| "target".to_owned());
    let program = Path::new(&target).join("release/examples/instructions");
    let mut over = Vec::new();
    for row in TABLE {
        let executed = |count: u64| counted(&program, row.operation, count);
        let (once, twice) = std::thread::scope(|scope| {
            let twice = scope.spawn(|| executed(2 * row.count));
            (executed(row.count), twice.join())
        });
        let twice = twice.map_err(|_| "a thread panicked")?;
        let each = (twice? - once?) / row.count as f64;
        let percent = (each / f64::from(row.instructions) - 1.0) * 100.0;
        println!("{:<12} {each:>8.1} instructions, {percent:+.1} %", row.operation);
        if percent > TOLERANCE {
            over.push(format!("{} takes {each:.1}, not {}", row.operation, row.instructions));
        }
    }
    if over.is_empty() { Ok(()) } else { Err(over.join("; ")) }
}

/// The instructions of a whole run.
fn counted(program: &Path, operation: &str, count: u64) -> Result<f64, String> {
    let mut valgrind = Command::new("valgrind");
    valgrind.args(["--tool=callgrind", "--callgrind-out-file=/dev/null"]);
    valgrind.arg(program).args([operation, &count.to_string()]);
    let output = valgrind.output().map_err(|reason| format!("valgrind: {reason}"))?;
    let text = String::from_utf8_lossy(&output.stderr);
    total(&text).filter(|_| output.status.success()).ok_or_else(|| format!("{operation}: {text}"))
}

/// The total that callgrind prints.
fn total(text: &str) -> Option<f64> {
    let line = text.lines().find_map(|line| line.split_once("Collected : "))?.1;
    line.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_are_read() {
        let text = "==7== Events    : Ir\n==7== Collected : 123456\n==7==\n";
        assert_eq!(total(text), Some(123_456.0));
        assert_eq!(total("==7== Collected : many"), None);
    }
}
