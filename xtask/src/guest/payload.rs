//! The input of a guest: the folder `share` with settings, files and the command.

use super::boot::read;
use super::cache::failed;
use super::options::Options;
use super::userland::{copy, write};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

const INIT: &str = include_str!("../../guest/init.sh");
const ON: &str = include_str!("../../guest/on.sh");

/// The use of the NVDIMM of a guest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Pmem {
    None,
    /// Format it as one device for programs to map.
    Format,
    Use,
}

/// The folder that a guest shares with this machine.
#[derive(Debug)]
pub(crate) struct Share {
    pub(crate) folder: PathBuf,
    /// The guest's own libraries.
    guest_libraries: BTreeSet<String>,
    links: String,
}

impl Share {
    /// Creates `run`/share; `libraries` is the file with the names of the guest's libraries.
    pub(crate) fn new(
        run: &Path,
        options: &Options,
        pmem: Pmem,
        libraries: &Path,
    ) -> Result<Self, String> {
        let folder = run.join("share");
        std::fs::create_dir(&folder).map_err(|e| failed(&folder, e))?;
        write(&folder.join("init.sh"), INIT, 0o755)?;
        write(&folder.join("on.sh"), ON, 0o755)?;
        let pmem = match pmem {
            Pmem::None => "none",
            Pmem::Format => "format",
            Pmem::Use => "use",
        };
        let (kind, nodes) = (options.devices.name(), options.nodes);
        let limit = options.timeout_s;
        let settings = format!("KIND={kind} NODES={nodes} PMEM={pmem} TIMEOUT_S={limit}\n");
        write(&folder.join("settings"), &settings, 0o644)?;
        let guest_libraries = read(libraries).lines().map(str::to_owned).collect();
        Ok(Self { folder, guest_libraries, links: String::new() })
    }

    /// Copies a file or folder to the same path, with the libraries that its programs need.
    pub(crate) fn take(&mut self, path: &Path) -> Result<(), String> {
        let path = std::path::absolute(path).map_err(|e| failed(path, e))?;
        let text = path.to_str().filter(|text| !text.contains('\n'));
        let text =
            text.ok_or(format!("{}: the guest does not support this name", path.display()))?;
        let to = self.folder.join("files").join(text.trim_start_matches('/'));
        self.links.push_str(text);
        self.links.push('\n');
        self.take_to(&path, &to)
    }

    /// Copies several, each once. Folders come before their contents.
    pub(crate) fn take_all<'a>(
        &mut self,
        paths: impl Iterator<Item = &'a PathBuf>,
    ) -> Result<(), String> {
        let mut taken = BTreeSet::new();
        for path in paths {
            if taken.insert(path) {
                self.take(path)?;
            }
        }
        Ok(())
    }

    /// Writes the script that the guest runs.
    pub(crate) fn command(&self, script: &str) -> Result<(), String> {
        write(&self.folder.join("links"), &self.links, 0o644)?;
        write(&self.folder.join("command"), script, 0o755)
    }

    fn take_to(&mut self, from: &Path, to: &Path) -> Result<(), String> {
        let about = from.metadata().map_err(|e| failed(from, e))?;
        if about.is_dir() {
            std::fs::create_dir_all(to).map_err(|e| failed(to, e))?;
            let entries = std::fs::read_dir(from).map_err(|e| failed(from, e))?;
            for entry in entries.flatten() {
                let name = entry.file_name();
                // Large folders that are not part of a package.
                let skipped = name == ".git" || name.to_string_lossy().starts_with("target");
                let path = entry.path();
                // Links to folders may be cyclic or broken.
                let followed = path.is_file() || !path.is_symlink();
                if !skipped && followed {
                    self.take_to(&path, &to.join(&name))?;
                }
            }
            return Ok(());
        }
        if !about.is_file() {
            return Ok(());
        }
        copy(from, to)?;
        self.take_libraries(from)
    }

    /// Copies the libraries of a program that the guest lacks.
    fn take_libraries(&mut self, program: &Path) -> Result<(), String> {
        if !is_elf(program) {
            return Ok(());
        }
        // It fails for files without dynamic libraries.
        let output = Command::new("ldd").arg(program).env("LC_ALL", "C").output();
        let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
        for (name, path) in libraries(&text.unwrap_or_default()) {
            let to = self.folder.join("libraries").join(name);
            if !self.guest_libraries.contains(name) && !to.exists() {
                copy(Path::new(path), &to)?;
            }
        }
        Ok(())
    }
}

fn is_elf(path: &Path) -> bool {
    use std::io::Read;
    let mut start = [0; 4];
    let read = std::fs::File::open(path).and_then(|mut file| file.read_exact(&mut start));
    read.is_ok() && start == *b"\x7fELF"
}

/// Returns name and path of each library in lines such as `libx.so.1 => /lib/libx.so.1 (0x7f00)`.
fn libraries(text: &str) -> Vec<(&str, &str)> {
    let pair = |line| {
        let (name, rest) = str::split_once(line, " => ")?;
        let path = rest.split(" (0x").next()?;
        path.starts_with('/').then_some((name.trim(), path))
    };
    text.lines().filter_map(pair).collect()
}

/// Quotes a word for the shell.
pub(crate) fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// Returns the start of every script: variables, and the folder of the command.
pub(crate) fn preamble(environment: &[(String, String)], folder: &Path) -> String {
    let exports =
        environment.iter().map(|(name, value)| format!("export {name}={}\n", quoted(value)));
    let folder = quoted(&folder.display().to_string());
    format!("{}mkdir -p {folder} && cd {folder} || exit 125\n", exports.collect::<String>())
}

/// Returns the environment of the command: variables that are always passed, then the requested ones.
pub(crate) fn environment(options: &Options) -> Vec<(String, String)> {
    let passed = |name: &str| name == "RUST_BACKTRACE" || name.starts_with("FARSIDE_");
    let text = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
        Some((name.into_string().ok()?, value.into_string().ok()?))
    };
    let mut all: Vec<_> =
        std::env::vars_os().filter_map(text).filter(|(name, _)| passed(name)).collect();
    all.extend(options.environment.iter().cloned());
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_with_a_path_are_parsed() {
        let text = "\tlinux-vdso.so.1 (0x7ffc)\n\tlibz.so.1 => /lib/libz.so.1 (0x7f01)\n\
                    \tlibgone.so.2 => not found\n\t/lib64/ld-linux-x86-64.so.2 (0x7f02)\n";
        assert_eq!(libraries(text), [("libz.so.1", "/lib/libz.so.1")]);
    }

    #[test]
    fn quoted_words_survive_the_shell() {
        for word in ["", "plain", "two words", "it's", "$HOME `x` \\ \"", "a\nb"] {
            let text = format!("printf %s {}", quoted(word));
            let output = Command::new("sh").args(["-c", &text]).output();
            assert_eq!(output.unwrap().stdout, word.as_bytes(), "{word:?}");
        }
    }
}
