//! Runs steps, and prints what each checks, its duration, and how to repeat a failed one.

use crate::shell::Shell;
use crate::steps::{ALL, Step};
use std::time::{Duration, Instant};

/// The options of `cargo xtask ci`.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct Options {
    only: Vec<String>,
    fail_fast: bool,
}

impl Options {
    pub(crate) fn parse(words: &[&str]) -> Result<Self, String> {
        let mut options = Self { only: Vec::new(), fail_fast: false };
        let mut words = words.iter();
        while let Some(word) = words.next() {
            match *word {
                "--fail-fast" => options.fail_fast = true,
                "--only" => {
                    let name = words.next().ok_or("--only needs the name of a step")?;
                    if !ALL.iter().any(|step| step.name == *name) {
                        return Err(format!("no step `{name}`; see cargo xtask list"));
                    }
                    options.only.push((*name).to_owned());
                }
                other => return Err(format!("unknown option `{other}`; see cargo xtask")),
            }
        }
        Ok(options)
    }

    /// Returns whether to run a step. A full run skips steps that others include.
    fn wants(&self, step: &Step) -> bool {
        if self.only.is_empty() {
            return step.within.is_none();
        }
        self.only.iter().any(|name| name == step.name)
    }
}

/// Runs the requested steps; an error if any failed.
pub(crate) fn ci(options: &Options) -> Result<(), String> {
    let start = Instant::now();
    let mut table = Vec::new();
    let mut failed = Vec::new();
    for step in ALL.iter().filter(|step| options.wants(step)) {
        println!("==== {}: {}", step.name, step.sentence);
        let begun = Instant::now();
        let mut shell = Shell::new();
        shell.by_name = !options.only.is_empty();
        let done = (step.run)(&mut shell);
        let line = row(step.name, &done, &shell, begun.elapsed());
        if let Err(text) = done {
            println!("{text}");
            println!("to run it again: cargo xtask ci --only {}", step.name);
            failed.push(step.name);
        }
        println!("{line}\n");
        table.push(line);
        if options.fail_fast && !failed.is_empty() {
            break;
        }
    }
    println!("==== summary, {:.0} s", start.elapsed().as_secs_f64());
    table.iter().for_each(|line| println!("{line}"));
    if failed.is_empty() {
        return Ok(());
    }
    let again: Vec<_> = failed.iter().map(|name| format!("--only {name}")).collect();
    Err(format!("to run what failed again: cargo xtask ci {}", again.join(" ")))
}

/// Prints the steps.
pub(crate) fn list() {
    for step in ALL {
        let within = match (step.within, step.more_by_name) {
            (Some(name), _) => format!(" (part of {name})"),
            (None, Some(more)) => format!(" (with --only also: {more})"),
            (None, None) => String::new(),
        };
        println!("{:<12} {}{within}", step.name, step.sentence);
    }
}

fn row(name: &str, done: &Result<(), String>, shell: &Shell, time: Duration) -> String {
    let state = match done {
        Err(_) => "FAILED",
        Ok(()) if shell.skipped.is_empty() => "ok",
        Ok(()) => "SKIPPED",
    };
    let tests = match (shell.tests, shell.ignored) {
        (0, _) => String::new(),
        (tests, 0) => format!("{tests} tests"),
        (tests, ignored) => format!("{tests} tests, {ignored} left to other steps"),
    };
    let skipped = shell.skipped.join("; ");
    let line = format!("{name:<12} {state:<8} {:>6.1} s  {tests}{skipped}", time.as_secs_f64());
    line.trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_parsed_and_junk_is_refused() {
        let options = Options::parse(&["--only", "tidy", "--fail-fast"]).unwrap();
        assert_eq!((options.only.as_slice(), options.fail_fast), (&["tidy".to_owned()][..], true));
        for junk in [&["--only"][..], &["--only", "polish"], &["tidy"]] {
            assert!(Options::parse(junk).is_err(), "{junk:?}");
        }
    }
}
