//! Runs the commands of a step, shows their output and counts their tests.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

/// The environment and results of the commands of one step.
pub(crate) struct Shell {
    /// Tests that passed.
    pub(crate) tests: usize,
    /// Ignored tests, which another step runs.
    pub(crate) ignored: usize,
    /// Skipped parts, with the reason.
    pub(crate) skipped: Vec<String>,
    /// The step was requested by name, and also runs what a full run has no time for.
    pub(crate) by_name: bool,
    variables: Vec<(String, String)>,
    nightly: bool,
}

impl Shell {
    pub(crate) fn new() -> Self {
        Self {
            tests: 0,
            ignored: 0,
            skipped: Vec::new(),
            by_name: false,
            variables: Vec::new(),
            nightly: false,
        }
    }

    /// Sets an environment variable for the commands that follow.
    pub(crate) fn set(&mut self, name: &str, value: impl Into<String>) {
        self.variables.retain(|(known, _)| known != name);
        self.variables.push((name.to_owned(), value.into()));
    }

    /// Builds the crates of the workspace with `--cfg NAME`, and all others as without it.
    pub(crate) fn set_cfg(&mut self, name: &str) {
        let folder = std::env::current_dir().unwrap_or_default();
        let wrapper = folder.join("xtask/cfg").join(name);
        self.set("RUSTC_WORKSPACE_WRAPPER", wrapper.display().to_string());
    }

    /// Uses a separate target folder from here on, since other flags would invalidate the common one.
    pub(crate) fn own_target(&mut self, name: &str) {
        let common = std::env::var("CARGO_TARGET_DIR").unwrap_or_else(|_| "target".to_owned());
        self.set("CARGO_TARGET_DIR", format!("{common}/{name}"));
    }

    /// Uses the nightly toolchain from here on; returns false, and records a skip, if it is not available.
    pub(crate) fn use_nightly(&mut self) -> bool {
        let works = || {
            let check =
                Command::new("rustup").args(["run", "nightly", "cargo", "--version"]).output();
            check.is_ok_and(|output| output.status.success())
        };
        let install = || {
            let words = ["toolchain", "install", "nightly", "--profile", "minimal"];
            let _ = Command::new("rustup").args(words).status();
        };
        if !works() {
            install();
        }
        self.nightly = works();
        if !self.nightly {
            self.skipped.push("no nightly toolchain here, and none could be installed".to_owned());
        }
        self.nightly
    }

    /// Runs cargo.
    pub(crate) fn cargo(&mut self, words: &[&str]) -> Result<(), String> {
        self.execute(words).map(|_| ())
    }

    /// Runs `cargo test`, and checks that tests ran, all passed and none was ignored.
    pub(crate) fn cargo_test(&mut self, words: &[&str]) -> Result<(), String> {
        match self.counted_test(words)?.ignored {
            0 => Ok(()),
            ignored => Err(format!("{ignored} tests were ignored: cargo test {}", words.join(" "))),
        }
    }

    /// Runs `cargo test` as [`Self::cargo_test`], but allows ignored tests, which another step runs.
    pub(crate) fn cargo_test_but_ignored(&mut self, words: &[&str]) -> Result<(), String> {
        self.ignored += self.counted_test(words)?.ignored;
        Ok(())
    }

    /// TestCounts the tests in the output of a test program, and returns those that passed.
    pub(crate) fn count(&mut self, output: &str) -> usize {
        let mut counts = TestCounts::default();
        output.lines().for_each(|line| counts.add(line));
        self.tests += counts.passed;
        self.ignored += counts.ignored;
        counts.passed
    }

    fn counted_test(&mut self, words: &[&str]) -> Result<TestCounts, String> {
        let words = [&["test"], words].concat();
        let counts = self.execute(&words)?;
        if counts.passed == 0 {
            return Err(format!("no test ran: cargo {}", words.join(" ")));
        }
        self.tests += counts.passed;
        Ok(counts)
    }

    fn execute(&self, words: &[&str]) -> Result<TestCounts, String> {
        let mut command = if self.nightly {
            let mut command = Command::new("rustup");
            command.args(["run", "nightly", "cargo"]);
            command
        } else {
            Command::new("cargo")
        };
        command.args(words).stdout(Stdio::piped());
        if std::env::var_os("CARGO_BUILD_JOBS").is_none() {
            command.env("CARGO_BUILD_JOBS", "2");
        }
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        let shown = self.shown(words);
        println!("+ {shown}");
        let mut child = command.spawn().map_err(|e| format!("{shown}: {e}"))?;
        let mut counts = TestCounts::default();
        if let Some(output) = child.stdout.take() {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                println!("{line}");
                counts.add(&line);
            }
        }
        let status = child.wait().map_err(|e| format!("{shown}: {e}"))?;
        if status.success() { Ok(counts) } else { Err(format!("failed ({status}): {shown}")) }
    }

    /// Returns the command in the form of a shell.
    fn shown(&self, words: &[&str]) -> String {
        let mut text = String::new();
        for (name, value) in &self.variables {
            text.push_str(&format!("{name}='{value}' "));
        }
        let cargo = if self.nightly { "cargo +nightly" } else { "cargo" };
        format!("{text}{cargo} {}", words.join(" "))
    }
}

/// Tests of a `cargo test` run.
#[derive(Default, PartialEq, Eq, Debug)]
struct TestCounts {
    passed: usize,
    ignored: usize,
}

impl TestCounts {
    /// Adds the numbers of a line such as `test result: ok. 3 passed; 0 failed; 1 ignored; ...`.
    fn add(&mut self, line: &str) {
        let Some(rest) = line.strip_prefix("test result: ") else {
            return;
        };
        for part in rest.split(['.', ';']) {
            let mut words = part.split_whitespace();
            let number = words.next().and_then(|word| word.parse::<usize>().ok());
            match (number, words.next()) {
                (Some(number), Some("passed")) => self.passed += number,
                (Some(number), Some("ignored")) => self.ignored += number,
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn result_lines_are_summed() {
        let mut counts = TestCounts::default();
        counts.add("running 4 tests");
        counts.add("test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 9 filtered out; finished in 0.01s");
        counts.add("test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.00s");
        assert_eq!(counts, TestCounts { passed: 5, ignored: 1 });
    }
}
