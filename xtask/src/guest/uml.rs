//! The kernel of User Mode Linux, built once from Debian's source.

use super::apt::Apt;
use super::cache::{failed, fingerprint};
use super::kernel::numbers;
use super::progress::say;
use super::userland::{copy, write};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The tested source; if it is not served any more, the newest one of the suite is used.
const SOURCE: &str = "linux-source-7.3";
const VERSION: &str = "7.3.4-1~bpo13+1";
const CONFIG: &str = include_str!("../../guest/uml.config");
const SCRIPT: &str = include_str!("../../guest/build-uml.sh");
/// Number of steps that make prints for this configuration, for the progress display only.
const STEPS: u32 = 960;
/// Interval between progress messages.
const PROGRESS: Duration = Duration::from_secs(15);

/// Returns the fingerprint of the kernel that this file builds.
pub(crate) fn identity() -> String {
    fingerprint(&[SOURCE, VERSION, CONFIG, SCRIPT])
}

/// Fills `folder` with `linux`, `config` and `build.log`, and returns the chosen version. Ends a build that takes
/// longer than `limit`.
pub(crate) fn build(
    apt: &Apt,
    work: &Path,
    folder: &Path,
    limit: Option<Duration>,
) -> Result<String, String> {
    let (name, version) = choose(apt)?;
    say(&format!("fetching {name} {version} (about 160 MB)"));
    let archives = work.join("source-archive");
    apt.download(&[format!("{name}={version}")], &archives)?;
    let entries = std::fs::read_dir(&archives).map_err(|e| failed(&archives, e))?;
    let package = entries.flatten().map(|entry| entry.path()).next();
    let package = package.ok_or(format!("apt fetched nothing for {name}"))?;
    let (script, config) = (work.join("build-uml.sh"), work.join("uml.config"));
    write(&script, SCRIPT, 0o755)?;
    write(&config, CONFIG, 0o644)?;
    let jobs = std::thread::available_parallelism().map_or(1, |number| number.get());
    say(&format!(
        "building the kernel of User Mode Linux with {jobs} processes; this is done once"
    ));
    let mut command = match limit {
        // Ends all processes of the build.
        Some(limit) => {
            let mut command = Command::new("timeout");
            command.arg(limit.as_secs().to_string()).arg("bash");
            command
        }
        None => Command::new("bash"),
    };
    command.args(["-c", r#"exec bash "$@" 2>&1"#, "-"]);
    command.arg(&script).arg(&package).arg(&config).arg(jobs.to_string()).current_dir(work);
    // Settings for the project's builds must not affect the kernel.
    for name in ["CFLAGS", "CC", "MAKEFLAGS", "KBUILD_OUTPUT", "ARCH", "CROSS_COMPILE"] {
        command.env_remove(name);
    }
    follow(command, &folder.join("build.log"))?;
    for name in ["linux", "config"] {
        copy(&work.join(name), &folder.join(name))?;
    }
    Ok(version)
}

/// Returns the tested source if the mirror still has it, otherwise the newest one.
fn choose(apt: &Apt) -> Result<(String, String), String> {
    let mut names = apt.names("linux-source-")?;
    names.retain(|name| name.ends_with(|c: char| c.is_ascii_digit()));
    let newest = names.iter().max_by_key(|name| numbers(name)).cloned();
    let name = names.into_iter().find(|name| name == SOURCE).or(newest);
    let name = name.ok_or("the suite has no linux-source")?;
    let version = apt.version(&name, VERSION)?.ok_or(format!("no version of {name}"))?;
    Ok((name, version))
}

/// Runs a build, writes its output to `log`, and prints the progress periodically.
fn follow(mut command: Command, log: &Path) -> Result<(), String> {
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = command.spawn().map_err(|e| format!("bash: {e}"))?;
    let begun = Instant::now();
    let mut shown = begun;
    let mut steps = 0;
    let mut text = String::new();
    for line in child.stdout.take().into_iter().flat_map(|output| BufReader::new(output).lines()) {
        // Compilers may quote bytes that are not UTF-8.
        let line = line.unwrap_or_default();
        steps += u32::from(line.starts_with("  CC ") || line.starts_with("  AS "));
        text.push_str(&line);
        text.push('\n');
        if shown.elapsed() >= PROGRESS {
            shown = Instant::now();
            let percent = (steps * 100 / STEPS).min(99);
            say(&format!("building the kernel: {percent} % after {} s", begun.elapsed().as_secs()));
        }
    }
    let status = child.wait().map_err(|e| format!("bash: {e}"))?;
    std::fs::write(log, &text).map_err(|e| failed(log, e))?;
    if status.success() {
        say(&format!("the kernel is built, in {} s", begun.elapsed().as_secs()));
        return Ok(());
    }
    // The exit code of `timeout`.
    if status.code() == Some(124) {
        let (percent, seconds) = ((steps * 100 / STEPS).min(99), begun.elapsed().as_secs());
        return Err(format!("its kernel was built to {percent} % within the limit of {seconds} s"));
    }
    let complaints = |line: &&str| line.contains("rror") || line.contains("not found");
    let lines: Vec<_> = text.lines().collect();
    let mut end: Vec<_> = lines.iter().copied().filter(complaints).take(10).collect();
    end.extend(&lines[lines.len().saturating_sub(5)..]);
    Err(format!("the kernel of User Mode Linux could not be built:\n    {}", end.join("\n    ")))
}
