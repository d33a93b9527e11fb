//! Debian packages of other releases, fetched through a private apt tree.
//!
//! The mirror, its proxy and its certificates are those of the machine's own apt; the release, the lists, the state
//! and the cache are private, so that the machine's apt is unchanged and root is not needed. Packages are verified with
//! Debian's keys as usual. They are unpacked, never installed, and none of their programs runs outside of the guest.

use super::cache::{failed, forget};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The release of the guest's userland: rdma-core 56, which supports FLUSH and ATOMIC WRITE.
const RELEASE: &str = "trixie";
/// The suite with the kernels: from 7.3 on rxe supports network namespaces, 6.12 does not.
const KERNEL_SUITE: &str = "trixie-backports";
/// Debian's keys, which every Debian machine has for its own apt.
const KEYS: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// A chosen package.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Chosen {
    pub(crate) name: String,
    pub(crate) version: String,
}

/// The private apt tree.
#[derive(Debug)]
pub(crate) struct Apt {
    root: PathBuf,
}

impl Apt {
    /// Creates a tree in `root`, an absolute path, with fresh lists.
    pub(crate) fn open(root: &Path) -> Result<Self, String> {
        let apt = Self { root: root.to_owned() };
        let mut errors = String::new();
        let mirrors = mirrors()?;
        for mirror in &mirrors {
            apt.write_configuration(mirror)?;
            match apt.run("apt-get", &["update"], None) {
                Ok(_) => return Ok(apt),
                Err(text) => errors.push_str(&format!("\n{text}")),
            }
        }
        let tried = if mirrors.is_empty() { "none is configured" } else { "none serves it" };
        Err(format!(
            "no mirror of this machine's apt has {RELEASE} and {KERNEL_SUITE}: {tried}{errors}"
        ))
    }

    /// Returns the version `wanted` of `package` if it is still served, otherwise the newest one in any suite.
    pub(crate) fn version(&self, package: &str, wanted: &str) -> Result<Option<String>, String> {
        let text = self.run("apt-cache", &["madison", package], None)?;
        let mut versions = text.lines().filter_map(|line| line.split('|').nth(1)).map(str::trim);
        let first = versions.clone().next();
        Ok(versions.find(|version| *version == wanted).or(first).map(str::to_owned))
    }

    /// Returns the names of all packages with this prefix.
    pub(crate) fn names(&self, start: &str) -> Result<Vec<String>, String> {
        let text = self.run("apt-cache", &["pkgnames", start], None)?;
        Ok(text.lines().map(str::to_owned).collect())
    }

    /// Returns the names of the dependencies of `package`.
    pub(crate) fn depends(&self, package: &str) -> Result<Vec<String>, String> {
        let text = self.run("apt-cache", &["depends", "--important", package], None)?;
        let names = text.lines().filter_map(|line| line.trim().strip_prefix("Depends: "));
        Ok(names.map(str::to_owned).collect())
    }

    /// Fetches packages (`name` or `name=version`), without dependencies, into `folder`.
    pub(crate) fn download(&self, packages: &[String], folder: &Path) -> Result<(), String> {
        std::fs::create_dir_all(folder).map_err(|e| failed(folder, e))?;
        let words: Vec<_> =
            ["download"].into_iter().chain(packages.iter().map(String::as_str)).collect();
        self.run("apt-get", &words, Some(folder)).map(|_| ())
    }

    /// Fetches packages with all dependencies, and unpacks them into `folder`.
    pub(crate) fn unpack_closure(
        &self,
        packages: &[&str],
        folder: &Path,
    ) -> Result<Vec<Chosen>, String> {
        let options =
            ["install", "--yes", "--no-install-recommends", "--download-only", "--no-remove"];
        self.run("apt-get", &[&options, packages].concat(), None)?;
        unpack(&self.root.join("cache/archives"), folder)
    }

    /// Writes the configuration of the tree for one mirror.
    fn write_configuration(&self, mirror: &str) -> Result<(), String> {
        forget(&self.root)?;
        for folder in ["state/lists/partial", "cache/archives/partial", "empty"] {
            let path = self.root.join(folder);
            std::fs::create_dir_all(&path).map_err(|e| failed(&path, e))?;
        }
        let sources: String = [RELEASE, KERNEL_SUITE]
            .map(|suite| format!("deb [signed-by={KEYS}] {mirror} {suite} main\n"))
            .concat();
        let root = self.root.display();
        // Settings to reach mirrors are the machine's; hooks, sources and pins are not.
        let mut configuration: String = dump()?
            .lines()
            .filter(|line| line.starts_with("Acquire::"))
            .map(|line| format!("{line}\n"))
            .collect();
        let own = [
            ("Dir::Etc::main", "/dev/null".to_owned()),
            ("Dir::Etc::parts", format!("{root}/empty")),
            ("Dir::Etc::sourcelist", format!("{root}/sources.list")),
            ("Dir::Etc::sourceparts", format!("{root}/empty")),
            ("Dir::Etc::preferences", "/dev/null".to_owned()),
            ("Dir::Etc::preferencesparts", format!("{root}/empty")),
            ("Dir::State", format!("{root}/state")),
            // Empty: no package is installed, so that all dependencies are fetched.
            ("Dir::State::status", format!("{root}/status")),
            ("Dir::Cache", format!("{root}/cache")),
            ("APT::Architecture", "amd64".to_owned()),
            ("APT::Sandbox::User", "root".to_owned()),
            ("APT::Default-Release", RELEASE.to_owned()),
            ("APT::Keep-Downloaded-Packages", "true".to_owned()),
            ("Acquire::Languages", "none".to_owned()),
            ("Acquire::Retries", "3".to_owned()),
            ("APT::Update::Error-Mode", "any".to_owned()),
            ("Debug::NoLocking", "true".to_owned()),
        ];
        for (name, value) in own {
            configuration.push_str(&format!("{name} \"{value}\";\n"));
        }
        for (name, text) in
            [("sources.list", sources), ("status", String::new()), ("apt.conf", configuration)]
        {
            let path = self.root.join(name);
            std::fs::write(&path, text).map_err(|e| failed(&path, e))?;
        }
        Ok(())
    }

    /// Runs one of apt's programs on the tree, and returns its output.
    fn run(&self, program: &str, words: &[&str], folder: Option<&Path>) -> Result<String, String> {
        let mut command = Command::new(program);
        command.arg("-qq").args(words).env("APT_CONFIG", self.root.join("apt.conf"));
        command.env("LC_ALL", "C").stdin(Stdio::null());
        if let Some(folder) = folder {
            command.current_dir(folder);
        }
        output(command, &format!("{program} {}", words.join(" ")))
    }
}

/// Unpacks every package in `archives` into `folder`, deletes the archives, and returns the packages.
pub(crate) fn unpack(archives: &Path, folder: &Path) -> Result<Vec<Chosen>, String> {
    std::fs::create_dir_all(folder).map_err(|e| failed(folder, e))?;
    let entries = std::fs::read_dir(archives).map_err(|e| failed(archives, e))?;
    let mut chosen = Vec::new();
    for path in entries.flatten().map(|entry| entry.path()) {
        let Some(package) = path.file_name().and_then(|name| chosen_from(&name.to_string_lossy()))
        else {
            continue;
        };
        let mut command = Command::new("dpkg-deb");
        command.arg("--extract").arg(&path).arg(folder);
        output(command, &format!("dpkg-deb --extract {}", path.display()))?;
        std::fs::remove_file(&path).map_err(|e| failed(&path, e))?;
        chosen.push(package);
    }
    chosen.sort();
    Ok(chosen)
}

/// Returns name and version from the name of an archive; apt writes the colon of an epoch as `%3a`.
fn chosen_from(file: &str) -> Option<Chosen> {
    let mut parts = file.strip_suffix(".deb")?.split('_');
    let (name, version) = (parts.next()?, parts.next()?);
    Some(Chosen { name: name.to_owned(), version: version.replace("%3a", ":") })
}

/// Returns the mirrors of this machine's release, which also serve other releases.
fn mirrors() -> Result<Vec<String>, String> {
    let release = std::fs::read_to_string("/etc/os-release").unwrap_or_default();
    let mut command = Command::new("apt-get");
    // Prints the sources of apt without fetching, even before there are lists.
    command.args(["update", "--print-uris", "-o", "Debug::NoLocking=true"]);
    let text = output(command, "apt-get update --print-uris")?;
    Ok(mirrors_of(&text, codename(&release)))
}

/// Returns the word after `VERSION_CODENAME=`.
fn codename(os_release: &str) -> &str {
    let mut lines = os_release.lines();
    let value = lines.find_map(|line| line.strip_prefix("VERSION_CODENAME="));
    value.unwrap_or("stable").trim_matches('"')
}

/// Returns the mirrors of a suite from lines such as `'http://mirror/debian/dists/SUITE/InRelease' ...`.
fn mirrors_of(text: &str, suite: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    let end = format!("/dists/{suite}/InRelease");
    for line in text.lines() {
        let quoted = line.strip_prefix('\'').and_then(|rest| rest.split('\'').next());
        if let Some(mirror) = quoted.and_then(|uri| uri.strip_suffix(&end))
            && !found.iter().any(|known| known == mirror)
        {
            found.push(mirror.to_owned());
        }
    }
    // Debian's archive usually ends with `debian`; others with the same code name are tried after it.
    found.sort_by_key(|mirror| !mirror.ends_with("/debian"));
    found
}

fn dump() -> Result<String, String> {
    let mut command = Command::new("apt-config");
    command.arg("dump");
    output(command, "apt-config dump")
}

/// Runs a command and returns its output; on failure, the error is its name and the end of its error output.
pub(crate) fn output(mut command: Command, shown: &str) -> Result<String, String> {
    let output = command.output().map_err(|e| format!("{shown}: {e}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    let lines: Vec<_> = text.lines().collect();
    let end = lines[lines.len().saturating_sub(8)..].join("\n    ");
    Err(format!("failed ({}): {shown}\n    {end}", output.status))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mirrors_of_the_machines_release_are_used() {
        let text = "'http://a.example/other/dists/bookworm/InRelease' a_InRelease 0 \n\
                    'http://b.example/debian/dists/bookworm/InRelease' b_InRelease 0 \n\
                    'http://b.example/debian/dists/bookworm-updates/InRelease' c_InRelease 0 \n\
                    'http://b.example/debian/dists/bookworm/main/binary-amd64/Packages.xz' d 0 \n";
        let expected = ["http://b.example/debian", "http://a.example/other"];
        assert_eq!(mirrors_of(text, "bookworm"), expected);
        assert_eq!(codename("ID=debian\nVERSION_CODENAME=bookworm\n"), "bookworm");
    }

    #[test]
    fn archive_names_are_parsed() {
        let chosen = chosen_from("libcap2_1%3a2.66-4_amd64.deb").unwrap();
        assert_eq!((chosen.name.as_str(), chosen.version.as_str()), ("libcap2", "1:2.66-4"));
        assert_eq!(chosen_from("lock"), None);
    }
}
