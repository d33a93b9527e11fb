//! Loads programs from files and from the library.

use farside_command::failure::{Failure, printable};
use farside_rmc::assembler::assemble_named;
use farside_rmc::library::LibraryEntry;
use farside_rmc::program::load;
use farside_rmc::{Limits, Program};
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// Loads the programs of a file (object or assembler source), or the library program with that name if there is no
/// such file.
pub(super) fn programs(path: &Path) -> Result<Vec<Program>, Failure> {
    let shown = path.display();
    if let Some(entry) = path.to_str().and_then(LibraryEntry::with_name).filter(|_| !path.exists())
    {
        let program = entry.program().map_err(|e| Failure::check(format!("{shown}: {e}")))?;
        return Ok(vec![program]);
    }
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("s" | "S" | "asm") => Ok(vec![assembled(path)?]),
        Some("c") => Err(uncompiled(path)),
        _ => object(path, &read(path)?),
    }
}

/// Returns the bytes that register the programs of a file or of the library program with that name: an object, or
/// assembler source.
pub(super) fn contents(path: &Path) -> Result<Vec<u8>, Failure> {
    if let Some(entry) = path.to_str().and_then(LibraryEntry::with_name).filter(|_| !path.exists())
    {
        return Ok(entry.object.to_vec());
    }
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("c") => Err(uncompiled(path)),
        _ => read(path),
    }
}

fn uncompiled(path: &Path) -> Failure {
    let shown = path.display();
    Failure::usage(format!("{shown}: C source: compile it first, with farside rmc build {shown}"))
}

/// Returns the program with the requested name, or the only one.
pub(super) fn select<P>(
    file: &Path,
    programs: Vec<P>,
    name: Option<&str>,
    name_of: impl Fn(&P) -> &str,
) -> Result<P, Failure> {
    let names: Vec<_> = programs.iter().map(|program| printable(name_of(program))).collect();
    let names = names.join(", ");
    // The name of a library program selects it from its object.
    let name = name.or_else(|| {
        let entry = file.to_str().and_then(LibraryEntry::with_name).filter(|_| !file.exists());
        entry.map(|entry| entry.name)
    });
    let file = file.display();
    let alone = programs.len() == 1;
    let mut wanted =
        programs.into_iter().filter(|program| name.is_none_or(|name| name == name_of(program)));
    match (wanted.next(), name) {
        (Some(program), Some(_)) => Ok(program),
        (Some(program), None) if alone => Ok(program),
        (_, None) => Err(Failure::usage(format!(
            "{file} has several programs: choose one with --program: {names}"
        ))),
        (None, Some(name)) => {
            Err(Failure::usage(format!("{file} has no program `{name}`; it has {names}")))
        }
    }
}

/// Loads the programs of an object.
pub(super) fn object(path: &Path, bytes: &[u8]) -> Result<Vec<Program>, Failure> {
    let failed = |e| Failure::check(format!("{}: {}", path.display(), printable(&format!("{e}"))));
    Ok(load(bytes, &Limits::DEFAULT)
        .map_err(failed)?
        .into_iter()
        .map(with_printable_names)
        .collect())
}

/// Makes the names of a program printable: those in a file may contain terminal control sequences.
fn with_printable_names(mut program: Program) -> Program {
    program.name = printable(&program.name);
    program.functions.iter_mut().for_each(|function| function.name = printable(&function.name));
    program.states.iter_mut().for_each(|state| state.name = printable(&state.name));
    program.lines.iter_mut().for_each(|line| line.file = printable(&line.file).into());
    program
}

fn assembled(path: &Path) -> Result<Program, Failure> {
    let shown = path.display();
    let text = String::from_utf8(read(path)?).map_err(|_| {
        Failure::check(format!("{shown}: not UTF-8 text, as assembler source must be"))
    })?;
    let name = |part: Option<&std::ffi::OsStr>| {
        part.map_or_else(|| "program".to_owned(), |part| part.to_string_lossy().into_owned())
    };
    let program = assemble_named(&name(path.file_name()), &text);
    let mut program = program.map_err(|e| Failure::check(format!("{shown}: {e}")))?;
    program.name = name(path.file_stem());
    Ok(program)
}

/// Reads a file, at most one byte more than the limit of objects.
fn read(path: &Path) -> Result<Vec<u8>, Failure> {
    let failed = |e| Failure::system(format!("{}: {e}", path.display()));
    let most = u64::try_from(Limits::DEFAULT.file_bytes_max).unwrap_or(u64::MAX);
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(failed)?;
    file.take(most.saturating_add(1)).read_to_end(&mut bytes).map_err(failed)?;
    Ok(bytes)
}
