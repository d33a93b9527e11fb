//! Debian packages that a task needs on this machine: installed by root, named for anybody else.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Stdio};

/// Something that must be here, and the package that brings it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Need {
    /// A program's name, or the path of a file.
    pub(crate) what: &'static str,
    /// The Debian package that has it.
    pub(crate) package: &'static str,
}

/// Installs the packages of the needs that are not met, when this is root and the machine has apt;
/// otherwise the error is the command line that a person has to run. `say` hears what is done.
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
    // Lists may be old or absent; if they cannot be renewed, the installation tells.
    let _ = apt_get(&["update"]);
    let words = [&["install", "--yes", "--no-install-recommends"], packages.as_slice()].concat();
    apt_get(&words).map_err(|text| format!("{by_hand}\nfailed:\n{text}"))?;
    match missing(needs, &is_here).as_slice() {
        [] => Ok(()),
        rest => Err(format!("installed, but still not to be found: {}", rest.join(" "))),
    }
}

/// Whether this process may do everything.
pub(crate) fn is_root() -> bool {
    // The kernel gives a process's own entry to its effective user.
    std::fs::metadata("/proc/self").is_ok_and(|entry| entry.uid() == 0)
}

/// Whether there is such a program, or such a file when `what` is a path.
pub(crate) fn is_here(what: &str) -> bool {
    if what.starts_with('/') {
        return Path::new(what).exists();
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    // Programs of administrators are not in everybody's PATH.
    let more = ["/usr/sbin", "/sbin"].map(Into::into);
    std::env::split_paths(&path).chain(more).any(|folder| folder.join(what).is_file())
}

/// The packages of unmet needs, each once.
fn missing(needs: &[Need], here: &dyn Fn(&str) -> bool) -> Vec<&'static str> {
    let mut packages = Vec::new();
    for need in needs {
        if !here(need.what) && !packages.contains(&need.package) {
            packages.push(need.package);
        }
    }
    packages
}

/// Runs apt-get quietly; on failure the error is the end of what it printed.
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
    fn what_is_not_here_is_not_found() {
        assert!(is_here("sh") && is_here("/proc/self"));
        assert!(!is_here("no-such-program-at-all") && !is_here("/proc/no-such-file"));
    }
}
