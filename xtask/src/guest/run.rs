//! One run of a guest: builds the tests, copies files in and out, and boots.

use super::boot::{self, GuestExit};
use super::cache::{self, RunFolder};
use super::image::Images;
use super::options::{Job, Options};
use super::payload::{self, Pmem, Share};
use super::{apt, test_programs};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Exit code if the command does not exist on this machine; the guest's shell uses the same one.
pub(super) const NO_SUCH_COMMAND: u8 = 127;

/// The end of a run, and its output.
#[derive(Debug)]
pub(super) struct GuestOutcome {
    pub(super) end: GuestExit,
    pub(super) stdout: String,
    pub(super) stderr: String,
}

/// Runs the command or the tests of `options` in a new guest.
pub(super) fn run(images: &Images, options: &Options, show: bool) -> Result<GuestOutcome, String> {
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
pub(super) fn program_here(words: &[String]) -> Option<PathBuf> {
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
