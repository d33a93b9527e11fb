//! `cargo xtask rdma-guest`: runs a command in a temporary Linux guest with software verbs devices.
//!
//! | file | what |
//! | --- | --- |
//! | `options.rs` | the command line and its help |
//! | `cache.rs`, `apt.rs` | the cache, and the source of packages |
//! | `userland.rs`, `kernel.rs`, `uml.rs`, `initramfs.rs` | the parts of a guest |
//! | `image.rs` | the image from which a guest starts |
//! | `payload.rs`, `boot.rs` | the input of a run, and the run |
//! | `test_programs.rs` | tests as cargo builds them |
//! | `check.rs` | the self-test |
//! | `bench.rs` | comparison of the command's figures with perftest's |
//! | `step.rs` | both, and tests in the guest, as a step of `cargo xtask ci` |
//!
//! The scripts that run inside the guest are in `xtask/guest`.
#![allow(clippy::print_stderr, reason = "standard output belongs to the command in the guest")]

mod apt;
mod bench;
mod boot;
mod cache;
mod check;
mod engine;
mod image;
mod initramfs;
mod kernel;
mod options;
mod payload;
mod progress;
mod run;
mod step;
mod test_programs;
mod uml;
mod userland;

use crate::shell::Shell;
use boot::GuestExit;
use cache::Cache;
use engine::Engine;
use image::Images;
use options::USAGE;
use options::{EngineChoice, Job, Options};
use progress::say;
use run::{NO_SUCH_COMMAND, program_here, run};
use std::process::ExitCode;
pub(crate) use step::{Suite, rdma};

/// Exit code if the guest, not the command, failed.
const GUEST_FAILED: u8 = 125;
/// Exit code if the time limit passed.
const TIMEOUT: u8 = 124;

/// Runs `cargo xtask rdma-guest` with these arguments.
pub(crate) fn main(words: &[&str]) -> ExitCode {
    let variable = |name: &str| std::env::var(name).ok();
    let options = match Options::parse(words, &variable) {
        Ok(options) => options,
        Err(text) => {
            say(&format!("{text}\nsee cargo xtask rdma-guest --help"));
            return ExitCode::from(GUEST_FAILED);
        }
    };
    match carry_out(&options) {
        Ok(code) => ExitCode::from(code),
        Err(text) => {
            say(&text);
            ExitCode::from(GUEST_FAILED)
        }
    }
}

fn carry_out(options: &Options) -> Result<u8, String> {
    let images = Images::new(Cache::new(options.cache.as_deref())?);
    if options.rebuild {
        engines(options).iter().try_for_each(|engine| images.forget(*engine))?;
    }
    match &options.job {
        Job::Help => println!("{USAGE}"),
        Job::Chosen => print!("{}", images.chosen()),
        Job::Prepare => engines(options).iter().try_for_each(|engine| images.prepare(*engine))?,
        Job::Check => {
            let mut shell = Shell::new();
            step::checked(&mut shell, options, &[])?;
            if let [why, ..] = shell.skipped.as_slice() {
                return Err(why.clone());
            }
        }
        Job::Bench => return bench::compare(&images, options).map(|good| u8::from(!good)),
        Job::Command(_) | Job::Tests { .. } => {
            if let Job::Command(words) = &options.job
                && let Some(path) = program_here(words)
                && !path.is_file()
            {
                say(&format!("{}: there is no such program", path.display()));
                return Ok(NO_SUCH_COMMAND);
            }
            return match run(&images, options, true)?.end {
                GuestExit::Code(code) => Ok(code),
                GuestExit::Failed(text) => Err(text),
                GuestExit::Timeout => {
                    say(&format!("the time limit of {} s has passed", options.timeout_s));
                    Ok(TIMEOUT)
                }
            };
        }
    }
    Ok(0)
}

/// Returns the engines of a choice for jobs that run no guest.
fn engines(options: &Options) -> &'static [Engine] {
    match options.engine {
        EngineChoice::Uml => &[Engine::Uml],
        EngineChoice::Qemu => &[Engine::Qemu],
        EngineChoice::Auto => &[Engine::Qemu, Engine::Uml],
    }
}
