//! Debian packages that a task needs on this machine: root installs them, other users get the command line.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Stdio};

/// A required program or file, and the package that provides it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Need {
    /// A program's name, or the path of a file.
    pub(crate) what: &'static str,
    /// The Debian package that provides it.
    pub(crate) package: &'static str,
}

/// Installs the packages of unmet needs, if this process is root and the machine has apt; otherwise the error is the
/// command line to run. Reports progress to `say`.
pub(crate) fn ensure(needs: &[Need], say: &dyn Fn(&str)) -> Result<(), String> {
    let packages = missing(needs, &is_here);
    if packages.is_empty() {
        return Ok(());
    }
    let by_hand = format!("apt-get install --no-install-recommends {}", packages.join(" "));
    if !is_here("apt-get") {
        return Err(format!("needed on this machine, by Debian's names: {}", packages.join(" ")));
    }
    if !is_root() {
        return Err(format!("packages are missing; as root, once:\n    {by_hand}"));
    }
    say(&format!("installing on this machine: {}", packages.join(" ")));
    // Lists may be old or absent; if the update fails, the installation reports it.
    let _ = apt_get(&["update"]);
    let words = [&["install", "--yes", "--no-install-recommends"], packages.as_slice()].concat();
    apt_get(&words).map_err(|text| format!("{by_hand}\nfailed:\n{text}"))?;
    match missing(needs, &is_here).as_slice() {
        [] => Ok(()),
        rest => Err(format!("installed, but still not to be found: {}", rest.join(" "))),
    }
}

/// Returns whether this process runs as root.
pub(crate) fn is_root() -> bool {
    // The owner of a process's entry is its effective user.
    std::fs::metadata("/proc/self").is_ok_and(|entry| entry.uid() == 0)
}

/// Returns whether a program exists, or a file if `what` is a path.
pub(crate) fn is_here(what: &str) -> bool {
    if what.starts_with('/') {
        return Path::new(what).exists();
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    // Programs for administrators are often not in PATH.
    let more = ["/usr/sbin", "/sbin"].map(Into::into);
    std::env::split_paths(&path).chain(more).any(|folder| folder.join(what).is_file())
}

/// Returns the packages of unmet needs, each once.
fn missing(needs: &[Need], here: &dyn Fn(&str) -> bool) -> Vec<&'static str> {
    let mut packages = Vec::new();
    for need in needs {
        if !here(need.what) && !packages.contains(&need.package) {
            packages.push(need.package);
        }
    }
    packages
}

/// Runs apt-get quietly; on failure the error is the end of its output.
fn apt_get(words: &[&str]) -> Result<(), String> {
    let mut command = Command::new("apt-get");
    command.arg("-qq").args(words).env("DEBIAN_FRONTEND", "noninteractive").stdin(Stdio::null());
    let output = command.output().map_err(|e| format!("apt-get: {e}"))?;
    if output.status.success() {
        return Ok(());
    }
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    let lines: Vec<_> = text.lines().collect();
    Err(lines[lines.len().saturating_sub(10)..].join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_of_unmet_needs_are_named_once() {
        let need = |what, package| Need { what, package };
        let needs = [need("as", "binutils"), need("make", "make"), need("ld", "binutils")];
        assert_eq!(missing(&needs, &|what| what == "make"), ["binutils"]);
        assert_eq!(missing(&needs, &|_| true), [""; 0]);
    }

    #[test]
    fn missing_programs_and_files_are_not_found() {
        assert!(is_here("sh") && is_here("/proc/self"));
        assert!(!is_here("no-such-program-at-all") && !is_here("/proc/no-such-file"));
    }
}
