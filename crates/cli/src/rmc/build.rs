//! `farside rmc build`: from C to an object that is accepted.

use super::check::{Checked, checked};
use super::source;
use crate::arguments::RmcBuild;
use crate::failure::Failure;
use crate::output::Output;
use farside_rmc::HEADER;
use std::ffi::OsString;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// What clang is told besides files.
const FLAGS: [&str; 9] = [
    "-target",
    "bpf",
    "-O2",
    // Lines of the source, for messages.
    "-g",
    "-Wall",
    // There is no C library: its names are free for users, and loops stay loops, as nobody has a memcpy.
    "-ffreestanding",
    // The same source makes the same object in whatever folder it is compiled; the header's folder, whose
    // name is another one each time, is renamed for the same reason.
    "-fdebug-compilation-dir=.",
    "-c",
    "-I",
];

pub(super) fn run(arguments: &RmcBuild, output: Output) -> Result<(), Failure> {
    let RmcBuild { source, clang, .. } = arguments;
    let object = arguments.output.clone().unwrap_or_else(|| source.with_extension("o"));
    if object == *source {
        return Err(Failure::usage(format!(
            "{}: the object would replace its source: name another with -o",
            source.display()
        )));
    }
    let bytes = compiled(source, clang)?;
    let programs = source::object(source, &bytes)?;
    let programs: Vec<_> = programs.into_iter().map(|program| checked(program, false).0).collect();
    let accepted = programs.iter().all(|program| program.accepted);
    let written = if accepted { replace(&object, &bytes) } else { Ok(()) };
    // What is accepted is said once it is there.
    if written.is_ok() {
        let shown = if accepted { &object } else { source };
        programs.iter().flat_map(|program| program.lines(shown)).for_each(|line| output.line(line));
    }
    let end = written.and_then(|()| refusals(&programs).map_or(Ok(()), Err));
    let object = end.is_ok().then(|| object.display().to_string());
    output.ended(serde_json::json!({ "object": object, "programs": programs }), end)
}

fn refusals(programs: &[Checked]) -> Option<Failure> {
    let refused = programs.iter().filter(|program| !program.accepted);
    let names: Vec<_> = refused.map(|program| program.program.as_str()).collect();
    (!names.is_empty())
        .then(|| Failure::check(format!("refused: {}; no object is written", names.join(", "))))
}

/// The object that clang makes of a source. What clang has to say, it says itself.
fn compiled(source: &Path, clang: &Path) -> Result<Vec<u8>, Failure> {
    let folder = Folder::new()?;
    let failed = |e: std::io::Error| Failure::system(format!("{}: {e}", folder.0.display()));
    std::fs::write(folder.0.join("farside_rmc.h"), HEADER).map_err(failed)?;
    let object = folder.0.join("object.o");
    let mut command = Command::new(clang);
    let mut header = OsString::from("-fdebug-prefix-map=");
    header.push(&folder.0);
    header.push("=farside");
    command
        .args(FLAGS)
        .arg(&folder.0)
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
            "{shown}: not found: install clang (Debian and Ubuntu: apt-get install clang), or say \
             where it is with --clang PATH"
        ),
        _ => format!("{shown}: {error}"),
    })
}

/// Puts bytes in the place of a file at once, so that it is never half written.
pub(super) fn replace(path: &Path, bytes: &[u8]) -> Result<(), Failure> {
    let failed = |e: std::io::Error| Failure::system(format!("{}: {e}", path.display()));
    // Where a link leads to, so that it stays one.
    let path = &std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.part", std::process::id()));
    let part = path.with_file_name(name);
    let done = std::fs::write(&part, bytes)
        .and_then(|()| match std::fs::metadata(path) {
            Ok(was) => std::fs::set_permissions(&part, was.permissions()),
            Err(_) => Ok(()),
        })
        .and_then(|()| std::fs::rename(&part, path));
    if done.is_err() {
        let _ = std::fs::remove_file(&part);
    }
    done.map_err(failed)
}

/// A folder for files in between, removed with the value.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Result<Self, Failure> {
        let base = std::env::temp_dir();
        // A folder that exists is somebody else's, who may have guessed the name.
        for turn in 0..100 {
            let path = base.join(format!("farside-rmc-{}-{turn}", std::process::id()));
            match std::fs::create_dir(&path) {
                Ok(()) => return Ok(Self(path)),
                Err(e) if e.kind() == ErrorKind::AlreadyExists => {}
                Err(e) => return Err(Failure::system(format!("{}: {e}", path.display()))),
            }
        }
        Err(Failure::system(format!("{}: no name is free for a folder", base.display())))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
