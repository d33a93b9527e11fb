//! `farside rmc build`: compiles C source into an object and verifies its programs.

use super::check::{Checked, checked};
use super::source;
use crate::settings::RmcBuild;
use farside_command::failure::Failure;
use farside_command::output::Output;
use farside_command::result_file::{self, TemporaryFolder};
use farside_rmc::HEADER;
use std::ffi::OsString;
use std::io::ErrorKind;
use std::path::Path;
use std::process::{Command, Stdio};

/// Arguments of clang besides files.
const FLAGS: [&str; 9] = [
    "-target",
    "bpf",
    "-O2",
    // Source lines, for messages.
    "-g",
    "-Wall",
    // There is no C library: programs may use its names, and clang must not turn loops into calls of memcpy.
    "-ffreestanding",
    // Reproducible builds: the same source yields the same object in any folder. The temporary folder of the
    // header is remapped for the same reason.
    "-fdebug-compilation-dir=.",
    "-c",
    "-I",
];

pub(crate) fn run(arguments: &RmcBuild, output: Output) -> Result<(), Failure> {
    let RmcBuild { source, clang, keep_refused, .. } = arguments;
    let object = arguments.output.clone().unwrap_or_else(|| source.with_extension("o"));
    if object == *source {
        return Err(Failure::usage(format!(
            "{}: the object would replace its source: give another file with -o",
            source.display()
        )));
    }
    let bytes = compiled(source, clang)?;
    let programs = match source::object(source, &bytes) {
        Ok(programs) => programs,
        // An object that cannot be loaded is kept as well.
        Err(refusal) if *keep_refused => {
            result_file::write(&object, &bytes)?;
            return Err(refusal);
        }
        Err(refusal) => return Err(refusal),
    };
    let programs: Vec<_> = programs.into_iter().map(|program| checked(program, false).0).collect();
    let accepted = programs.iter().all(|program| program.accepted);
    let is_kept = accepted || *keep_refused;
    let written = if is_kept { result_file::write(&object, &bytes) } else { Ok(()) };
    // Report acceptance only after the object has been written.
    if written.is_ok() {
        let shown = if is_kept { &object } else { source };
        programs.iter().flat_map(|program| program.lines(shown)).for_each(|line| output.line(line));
    }
    let is_written = is_kept && written.is_ok();
    let end = written.and_then(|()| refusals(&programs, is_written).map_or(Ok(()), Err));
    let object = is_written.then(|| object.display().to_string());
    output.ended(serde_json::json!({ "object": object, "programs": programs }), end)
}

fn refusals(programs: &[Checked], is_written: bool) -> Option<Failure> {
    let refused = programs.iter().filter(|program| !program.accepted);
    let names: Vec<_> = refused.map(|program| program.program.as_str()).collect();
    let object = if is_written { "the object is kept" } else { "no object is written" };
    (!names.is_empty()).then(|| Failure::check(format!("refused: {}; {object}", names.join(", "))))
}

/// Compiles a source with clang, which prints its own messages, and returns the object.
fn compiled(source: &Path, clang: &Path) -> Result<Vec<u8>, Failure> {
    let folder = TemporaryFolder::new()?;
    let folder = folder.path();
    let failed = |e: std::io::Error| Failure::system(format!("{}: {e}", folder.display()));
    std::fs::write(folder.join("farside_rmc.h"), HEADER).map_err(failed)?;
    let object = folder.join("object.o");
    let mut command = Command::new(clang);
    let mut header = OsString::from("-fdebug-prefix-map=");
    header.push(folder);
    header.push("=farside");
    command
        .args(FLAGS)
        .arg(folder)
        .arg(header)
        .arg(source)
        .arg("-o")
        .arg(&object)
        .stdin(Stdio::null());
    let status = command.status().map_err(|e| no_clang(clang, &e))?;
    if !status.success() {
        let source = source.display();
        let text = format!("{}: did not compile {source} ({status})", clang.display());
        return Err(Failure::check(text));
    }
    std::fs::read(&object).map_err(failed)
}

fn no_clang(clang: &Path, error: &std::io::Error) -> Failure {
    let shown = clang.display();
    Failure::system(match error.kind() {
        ErrorKind::NotFound => format!(
            "{shown}: not found: install clang (Debian and Ubuntu: apt-get install clang), or give \
             its path with --clang PATH"
        ),
        _ => format!("{shown}: {error}"),
    })
}
