//! The guest as a step of `cargo xtask ci`.
//!
//! It runs under User Mode Linux, whose kernel it builds if none is cached: 960 files, 14 minutes of processor time.
//! Two idle cores took 360 s for it, two busy ones have taken 15 minutes for a fifth of it. So a full run limits the
//! time of the build, and then runs the suites that no other step covers; requested by name, the step runs all. The
//! alternatives without a build were measured and are not sufficient: Debian's package `user-mode-linux` has no
//! InfiniBand at all; QEMU emulating Debian's kernel is ready after 25 s and takes twice the time for the conformance
//! suite, so it is used only for the NVDIMM, which uml lacks.

use super::boot::GuestExit;
use super::cache::Cache;
use super::engine::Engine;
use super::image::{self, Images};
use super::options::{Devices, EngineChoice, Job, Options, PROCESSORS_ON_PMEM};
use super::run::{GuestOutcome, run};
use super::{bench, check};
use crate::debian::is_root;
use crate::shell::Shell;
use std::time::{Duration, Instant};

/// Tests, and the guests in which they run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Suite {
    /// Options of `cargo test`, such as `["-p", "farside-fabric", "--lib"]`.
    pub(crate) cargo: &'static [&'static str],
    /// A substring of the names of the tests to run; empty for all.
    pub(crate) only: &'static str,
    /// Environment variables of the test programs.
    pub(crate) environment: &'static [(&'static str, &'static str)],
    pub(crate) nodes: u8,
    /// Whether to use soft-iWARP instead of soft-RoCE.
    pub(crate) siw: bool,
    /// The number of successive guests with one NVDIMM; zero for one guest without.
    pub(crate) on_nvdimm: u8,
    /// Memory of the guest; zero for the default.
    pub(crate) memory_mib: u32,
    /// Whether it runs also if the step was not requested by name.
    pub(crate) in_full_run: bool,
}

impl Suite {
    /// Returns a suite in one guest with one device.
    pub(crate) const fn new(cargo: &'static [&'static str]) -> Self {
        Self {
            cargo,
            only: "",
            environment: &[],
            nodes: 0,
            siw: false,
            on_nvdimm: 0,
            memory_mib: 0,
            in_full_run: false,
        }
    }
}

/// Time limit of the kernel build in a full run; two idle cores take 360 s.
const KERNEL_LIMIT: Duration = Duration::from_secs(900);
/// Time limit of one suite, in seconds.
const SUITE_TIME_S: u64 = 900;
/// The variable with the number of guests that have written to the NVDIMM before.
const NVDIMM_ROUND: &str = "FARSIDE_NVDIMM_ROUND";
/// The minimum size of an NVDIMM.
const NVDIMM_MIB: u32 = 64;

/// Runs the tests of `suites` in guests: those of a full run, or, if the step was requested by name, the guest's
/// self-test, all suites, and `farside bench fabric` between two nodes. Prints the duration of each part.
///
/// Nothing is skipped silently: if the guest is not available (on other processors, or if packages are missing that
/// only root can install; in a full run also if no mirror has its parts or its kernel is not built in time), the step
/// is skipped with the reason. A test that reports a skip fails the step.
pub(crate) fn rdma(shell: &mut Shell, suites: &[Suite]) -> Result<(), String> {
    let mut options = Options::new(Job::Check);
    options.engine = EngineChoice::Uml;
    let begun = Instant::now();
    if shell.by_name {
        checked(shell, &options, suites)?;
    } else {
        let mut images = Images::new(Cache::new(options.cache.as_deref())?);
        images.kernel_limit = Some(KERNEL_LIMIT);
        if let Err(text) = images.prepare(Engine::Uml) {
            shell.skipped.push(format!("the guest is not available: {}", in_one_line(&text)));
            return Ok(());
        }
        for suite in suites.iter().filter(|suite| suite.in_full_run) {
            run_suite(shell, &images, &options, suite)?;
        }
    }
    println!("in the guest: all in {:.1} s", begun.elapsed().as_secs_f64());
    Ok(())
}

fn in_one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Runs the guest's self-test with these options, then `suites`.
pub(crate) fn checked(
    shell: &mut Shell,
    options: &Options,
    suites: &[Suite],
) -> Result<(), String> {
    let images = Images::new(Cache::new(options.cache.as_deref())?);
    let engine = images.engine(options);
    if let Err(text) = images.meet_needs(engine) {
        if is_root() && image::is_supported() {
            return Err(text);
        }
        shell.skipped.push(in_one_line(&text));
        return Ok(());
    }
    shell.tests += check::run_all(&images, options)?;
    for suite in suites {
        run_suite(shell, &images, options, suite)?;
    }
    if !suites.is_empty() {
        let begun = Instant::now();
        bench::smoke(&images, options)?;
        shell.tests += 1;
        took("farside bench fabric between two nodes", 1, begun);
    }
    Ok(())
}

fn took(what: &str, tests: usize, begun: Instant) {
    println!("in the guest: {what}: {tests} tests in {:.1} s", begun.elapsed().as_secs_f64());
}

fn run_suite(
    shell: &mut Shell,
    images: &Images,
    options: &Options,
    suite: &Suite,
) -> Result<(), String> {
    let mut words = suite.cargo.join(" ");
    if !suite.only.is_empty() {
        words.push_str(&format!(" -- {}", suite.only));
    }
    let mut options = options.clone();
    options.nodes = suite.nodes;
    if suite.memory_mib > 0 {
        options.memory_mib = suite.memory_mib;
    }
    if suite.siw {
        options.devices = Devices::Siw;
    }
    options.timeout_s = SUITE_TIME_S;
    let variables = suite.environment.iter();
    let variables = variables.map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    options.environment.extend(variables);
    options.job = Job::Tests {
        cargo: suite.cargo.iter().map(|&word| word.to_owned()).collect(),
        // Skips are reported on standard output, which passing tests show only with --nocapture.
        arguments: ["--nocapture", "--test-threads=1", suite.only]
            .into_iter()
            .filter(|argument| !argument.is_empty())
            .map(str::to_owned)
            .collect(),
    };
    let nvdimm = images.cache.common.join(format!("nvdimm-of-{}", std::process::id()));
    if suite.on_nvdimm > 0 {
        // User Mode Linux has none.
        (options.engine, options.processors) = (EngineChoice::Qemu, PROCESSORS_ON_PMEM);
        (options.pmem_mib, options.pmem_file) = (NVDIMM_MIB, Some(nvdimm.clone()));
    }
    let mut done = Ok(());
    for round in 0..suite.on_nvdimm.max(1) {
        let begun = Instant::now();
        let mut options = options.clone();
        if suite.on_nvdimm > 0 {
            // The data of the previous guests must be present.
            options.environment.push((NVDIMM_ROUND.to_owned(), round.to_string()));
        }
        let outcome = run(images, &options, true)?;
        let passed = shell.count(&outcome.stdout);
        done = judged(&outcome, passed).map_err(|text| {
            format!("{text}\nfailed: cargo xtask rdma-guest {}--tests {words}", shown(suite))
        });
        if done.is_err() {
            break;
        }
        took(&words, passed, begun);
    }
    // The next run creates it again.
    let _ = std::fs::remove_file(nvdimm);
    done
}

/// Returns a suite's options for repeating it.
fn shown(suite: &Suite) -> String {
    let mut text = String::new();
    if suite.nodes > 0 {
        text.push_str(&format!("--nodes {} ", suite.nodes));
    }
    if suite.siw {
        text.push_str("--siw ");
    }
    if suite.memory_mib > 0 {
        text.push_str(&format!("--memory {} ", suite.memory_mib));
    }
    if suite.on_nvdimm > 0 {
        text.push_str(&format!("--pmem {NVDIMM_MIB} --processors {PROCESSORS_ON_PMEM} "));
    }
    for (name, value) in suite.environment {
        text.push_str(&format!("--env {name}={value} "));
    }
    text
}

fn judged(outcome: &GuestOutcome, passed: usize) -> Result<(), String> {
    let skipped = outcome.stdout.lines().find(|line| line.contains("skipped: "));
    match (&outcome.end, skipped) {
        (GuestExit::Failed(text), _) => Err(text.clone()),
        (GuestExit::Timeout, _) => Err(format!("the time limit of {SUITE_TIME_S} s has passed")),
        (GuestExit::Code(0), Some(line)) => Err(format!("the guest lacks something: {line}")),
        (GuestExit::Code(0), None) if passed == 0 => Err("no test ran".to_owned()),
        (GuestExit::Code(0), None) => Ok(()),
        (GuestExit::Code(code), _) => Err(format!("exit code {code}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_skipped_and_what_does_not_run_is_no_success() {
        let judged = |end, stdout: &str, passed| {
            let (stdout, stderr) = (stdout.to_owned(), String::new());
            judged(&GuestOutcome { end, stdout, stderr }, passed)
        };
        assert_eq!(judged(GuestExit::Code(0), "test a ... ok\n", 1), Ok(()));
        assert!(judged(GuestExit::Code(0), "test a ... skipped: no device\nok\n", 1).is_err());
        assert!(judged(GuestExit::Code(0), "", 0).is_err());
        assert!(judged(GuestExit::Code(101), "test a ... ok\n", 1).is_err());
        assert!(judged(GuestExit::Timeout, "test a ... ok\n", 1).is_err());
    }

    #[test]
    fn a_suite_is_shown_as_it_is_run() {
        let suite = Suite { nodes: 2, environment: &[("A", "b")], ..Suite::new(&["-p", "x"]) };
        assert_eq!(shown(&suite), "--nodes 2 --env A=b ");
        assert_eq!(shown(&Suite { memory_mib: 3000, ..Suite::new(&[]) }), "--memory 3000 ");
        assert_eq!(shown(&Suite { siw: true, ..Suite::new(&[]) }), "--siw ");
        assert_eq!(shown(&Suite { on_nvdimm: 2, ..Suite::new(&[]) }), "--pmem 64 --processors 1 ");
    }
}
