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
mod image;
mod initramfs;
mod kernel;
mod options;
mod payload;
mod step;
mod test_programs;
mod uml;
mod userland;

use crate::shell::Shell;
use boot::GuestExit;
use cache::{Cache, RunFolder};
use image::Images;
use options::USAGE;
use options::{EngineChoice, Job, Options};
use payload::{Pmem, Share};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
pub(crate) use step::{Suite, rdma};

/// Exit code if the guest, not the command, failed.
const GUEST_FAILED: u8 = 125;
/// Exit code if the time limit passed.
const TIMEOUT: u8 = 124;
/// Exit code if the command does not exist on this machine; the guest's shell uses the same one.
const NO_SUCH_COMMAND: u8 = 127;

/// A program that runs a guest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Engine {
    Uml,
    Qemu,
}

impl Engine {
    fn name(self) -> &'static str {
        match self {
            Self::Uml => "uml",
            Self::Qemu => "qemu",
        }
    }
}

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

/// The end of a run, and its output.
#[derive(Debug)]
struct GuestOutcome {
    end: GuestExit,
    stdout: String,
    stderr: String,
}

/// Runs the command or the tests of `options` in a new guest.
fn run(images: &Images, options: &Options, show: bool) -> Result<GuestOutcome, String> {
    // Cargo first, since it reports failures soonest.
    let programs = match &options.job {
        Job::Tests { cargo, .. } => test_programs::build(cargo)?,
        _ => Vec::new(),
    };
    let engine = images.engine(options);
    let mut image = images.image(engine, options.tools)?;
    let folder = RunFolder::new(&images.cache)?;
    let pmem = if options.has_pmem() { Pmem::Use } else { Pmem::None };
    let _pmem_held = match pmem {
        Pmem::None => None,
        _ => {
            images.add_pmem(&mut image, options, &folder.path)?;
            image.pmem.as_ref().map(|(file, _)| hold(file)).transpose()?
        }
    };
    let mut share = Share::new(&folder.path, options, pmem, &images.libraries())?;
    options.with.iter().try_for_each(|path| share.take(path))?;
    let here = std::env::current_dir().map_err(|e| format!("current folder: {e}"))?;
    let start = payload::preamble(&payload::environment(options), &here);
    let script = match &options.job {
        Job::Tests { arguments, .. } => {
            let packages = programs.iter().map(|program| &program.package);
            let files = programs.iter().map(|program| &program.path);
            share.take_all(packages.chain(files))?;
            test_programs::script(&programs, arguments)
        }
        Job::Command(words) => command_script(words, &mut share)?,
        Job::Help | Job::Prepare | Job::Check | Job::Bench | Job::Chosen => String::new(),
    };
    share.command(&format!("{start}{script}"))?;
    let end = boot::boot(&image, options, &folder.path, show)?;
    if let Some(out) = &options.out {
        bring_back(&share.folder.join("out"), out)?;
    }
    let text = |name| boot::read(&share.folder.join(name));
    Ok(GuestOutcome { end, stdout: text("stdout"), stderr: text("stderr") })
}

/// Returns the script that runs `words`; copies a program of this machine to the guest.
fn command_script(words: &[String], share: &mut Share) -> Result<String, String> {
    let mut words = words.to_vec();
    if let Some(path) = program_here(&words) {
        share.take(&path)?;
        words[0] = path.display().to_string();
    }
    let quoted: Vec<_> = words.iter().map(|word| payload::quoted(word)).collect();
    Ok(format!("exec {}\n", quoted.join(" ")))
}

/// Returns the path of a command that is a program of this machine; `None` for programs of the guest.
fn program_here(words: &[String]) -> Option<PathBuf> {
    let program = words.first().filter(|word| word.contains('/'))?;
    std::path::absolute(program).ok()
}

/// Locks an NVDIMM file, so that no second guest can use it.
fn hold(file: &Path) -> Result<File, String> {
    let held = File::open(file).map_err(|e| cache::failed(file, e))?;
    held.try_lock().map_err(|_| format!("{}: another guest is using it", file.display()))?;
    Ok(held)
}

/// Copies the guest's files in /out to `to`.
fn bring_back(from: &Path, to: &Path) -> Result<(), String> {
    std::fs::create_dir_all(to).map_err(|e| cache::failed(to, e))?;
    if !from.exists() {
        return Ok(());
    }
    let mut command = Command::new("cp");
    command.arg("-R").arg("--").arg(from.join(".")).arg(to);
    apt::output(command, "copying the guest's files in /out").map(|_| ())
}

/// Prints a progress message.
fn say(text: &str) {
    eprintln!("rdma-guest: {text}");
}
