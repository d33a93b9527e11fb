//! `farside run`: a program as several processes of one machine that share a cluster.
//!
//! Each process is first this program again (`launched`), which asks the kernel for its own death with that
//! of its parent and then executes the program.

use farside_command::failure::Failure;
use farside_command::output::Output;
use farside_command::settings::LaunchFabric;

use farside::launch::LaunchedCluster;
use farside_command::signals;
use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};
use serde::Serialize;
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus, Stdio};
use std::thread::JoinHandle;

/// A program that runs as several processes of one cluster.
#[derive(Debug)]
pub struct RunProgram {
    /// Number of processes.
    pub processes: u32,
    /// The fabric between them.
    pub fabric: LaunchFabric,
    /// The program, and its arguments.
    pub command: Vec<OsString>,
}

/// Maximum bytes of a line; a longer one is printed in parts.
const LINE_BYTES_MAX: u64 = 64 << 10;

/// What happens to the processes, as `--json` shows it.
#[derive(Serialize)]
#[serde(rename_all = "snake_case", tag = "event")]
enum RunEvent<'a> {
    /// Every process was started.
    Started { fabric: &'a str, processes: Vec<u32> },
    /// A process has written a line.
    Output { rank: usize, stream: StreamName, line: &'a str },
    /// All processes have ended; the first one that failed.
    Ended {
        #[serde(skip_serializing_if = "Option::is_none")]
        failed: Option<Failed>,
    },
}

#[derive(Clone, Copy, Serialize)]
#[serde(rename_all = "lowercase")]
enum StreamName {
    Stdout,
    Stderr,
}

#[derive(Serialize)]
struct Failed {
    rank: u32,
    how: String,
}

/// Runs the program until all of its processes have ended, or one has failed.
///
/// # Errors
/// `Program` with the exit code of the process that failed; `Interrupted` after a signal.
pub fn run(arguments: &RunProgram, output: Output) -> Result<(), Failure> {
    let scheme = arguments.fabric.scheme();
    let mut command = launched(&arguments.command)?;
    let mut cluster = LaunchedCluster::launch(&mut command, arguments.processes, scheme)?;
    let interrupter = cluster.interrupter();
    signals::watch(move || {
        interrupter.interrupt();
        true
    })?;
    let processes = cluster.children().iter().map(|child| child.id()).collect();
    output.value(&RunEvent::Started { fabric: scheme.name(), processes });
    let readers = read_all(&mut cluster, output);
    let failed = cluster.wait()?;
    for reader in readers {
        let _ = reader.join(); // it has no result
    }
    let ended = failed.map(|failed| Failed { rank: failed.rank, how: failed.status.to_string() });
    output.value(&RunEvent::Ended { failed: ended });
    match failed {
        _ if signals::is_stopping() => Err(Failure::Interrupted),
        Some(failed) => Err(failure(failed.rank, failed.status)),
        None => Ok(()),
    }
}

/// Executes a program that the kernel kills with its parent. Called by `run` in each process.
///
/// # Errors
/// If there is no such program.
pub fn launch(parent: i32, command: &[OsString]) -> Result<(), Failure> {
    let armed = set_parent_process_death_signal(Some(Signal::KILL));
    armed.map_err(|e| Failure::system(format!("parent-death signal: {e}")))?;
    if getppid().map(Pid::as_raw_pid) != Some(parent) {
        return Err(Failure::Interrupted); // the parent died before the signal was set
    }
    let (program, rest) = split(command)?;
    let error = Command::new(program).args(rest).exec();
    Err(Failure::system(format!("{}: {error}", program.to_string_lossy())))
}

fn split(command: &[OsString]) -> Result<(&OsString, &[OsString]), Failure> {
    command.split_first().ok_or_else(|| Failure::usage("name the program to run"))
}

/// Returns the command of each process.
fn launched(program: &[OsString]) -> Result<Command, Failure> {
    split(program)?;
    let own = std::env::current_exe();
    let own = own.map_err(|e| Failure::system(format!("own program: {e}")))?;
    let mut command = Command::new(own);
    // A group of its own: Ctrl-C reaches the parent alone, which interrupts the processes.
    command
        .arg("launched")
        .arg(std::process::id().to_string())
        .arg("--")
        .args(program)
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    Ok(command)
}

/// Starts threads that print the output of the processes.
fn read_all(cluster: &mut LaunchedCluster, output: Output) -> Vec<JoinHandle<()>> {
    let mut readers = Vec::new();
    for (rank, child) in cluster.children().iter_mut().enumerate() {
        if let Some(stdout) = child.stdout.take() {
            readers.push(std::thread::spawn(move || {
                read(stdout, |line| print(output, rank, StreamName::Stdout, line));
            }));
        }
        if let Some(stderr) = child.stderr.take() {
            readers.push(std::thread::spawn(move || {
                read(stderr, |line| print(output, rank, StreamName::Stderr, line));
            }));
        }
    }
    readers
}

fn print(output: Output, rank: usize, stream: StreamName, line: &str) {
    output.value(&RunEvent::Output { rank, stream, line });
    let text = format!("[{rank}] {line}");
    match stream {
        StreamName::Stdout => output.line(text),
        StreamName::Stderr => output.error_line(text),
    }
}

/// Calls `see` for each line.
fn read(from: impl Read, mut see: impl FnMut(&str)) {
    let mut from = BufReader::new(from);
    let mut line = Vec::new();
    loop {
        line.clear();
        match from.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => return,
            Ok(_) => see(String::from_utf8_lossy(&line).trim_end_matches('\n')),
        }
    }
}

fn failure(rank: u32, status: ExitStatus) -> Failure {
    // As a shell reports it.
    let code = status.code().unwrap_or(128 + status.signal().unwrap_or(0));
    let code = u8::try_from(code).unwrap_or(1);
    Failure::Program { text: format!("process {rank}: {status}; the others were killed"), code }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_in_parts_of_bounded_size() {
        let long = "x".repeat(LINE_BYTES_MAX as usize + 1);
        let text = format!("a\n\n{long}\nlast");
        let mut lines = Vec::new();
        read(text.as_bytes(), |line| lines.push(line.len()));
        assert_eq!(lines, [1, 0, LINE_BYTES_MAX as usize, 1, 4]);
    }

    #[test]
    fn exit_code_is_that_of_the_process_or_of_its_signal() {
        let code = |raw| match failure(2, ExitStatus::from_raw(raw)) {
            Failure::Program { code, .. } => code,
            other => panic!("{other}"),
        };
        assert_eq!((code(7 << 8), code(9)), (7, 137));
    }
}
