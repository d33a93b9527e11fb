//! `farside rmc run`: runs one call in this process, on files.

use super::check::counted;
use super::memory::{Counts, Files};
use super::source;
use crate::settings::{EngineName, RmcRun};
use farside_command::failure::Failure;
use farside_command::output::{Output, bytes};
use farside_rmc::helpers::{Helper, status};
use farside_rmc::library::answer;
use farside_rmc::run::{Lent, Machine, Outcome, StartError};
use farside_rmc::{Limits, Program, Verified, verify};
use serde::Serialize;
use serde_json::json;
use std::fmt::Write;

/// Bytes of a program's identifier, which precedes the parameters.
const IDENTIFIER_BYTES: usize = 8;
/// Bytes of a program's result.
const RESULT_BYTES: usize = 8;

/// How a call ended.
#[derive(Debug, Serialize)]
#[serde(rename_all = "snake_case")]
enum Ending {
    Returned {
        result: u64,
        /// Present if it is one of the negative numbers of the header.
        #[serde(skip_serializing_if = "Option::is_none")]
        status: Option<&'static str>,
    },
    Stopped {
        why: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        line: Option<String>,
    },
}

#[derive(Debug, Serialize)]
struct RunReport {
    program: String,
    engine: EngineName,
    #[serde(flatten)]
    ending: Ending,
    /// In hexadecimal.
    output: String,
    counts: Counts,
    /// Network cost of the same accesses as one-sided requests.
    one_sided: NetworkCost,
    /// Network cost as one call.
    as_call: NetworkCost,
    written_back: Vec<String>,
}

/// Round trips, and payload bytes without headers.
#[derive(Debug, Serialize)]
struct NetworkCost {
    round_trips: u64,
    bytes_out: u64,
    bytes_back: u64,
}

pub(crate) fn run(arguments: &RmcRun, output: Output) -> Result<(), Failure> {
    let object = &arguments.of.object;
    let (programs, name) = (source::programs(object)?, arguments.of.program.as_deref());
    let program = source::select(object, programs, name, |program| &program.name)?;
    let parameters = arguments.of.parameters.read()?;
    let mut files = Files::open(&arguments.memory, &program)?;
    let verified = verify(program, &Limits::DEFAULT);
    let verified = verified.map_err(|e| Failure::check(format!("{}: {e}", object.display())))?;
    let mut machine = Machine::new();
    machine.start(&verified, &parameters, Limits::DEFAULT.budget).map_err(start_failure)?;
    let outcome = execute(arguments.engine, &mut machine, &verified, &mut files)?;
    let ending = ending(outcome, verified.program());
    let returned = matches!(ending, Ending::Returned { .. });
    let write = arguments.write_back && returned;
    let report = RunReport {
        program: verified.program().name.clone(),
        engine: arguments.engine,
        ending,
        output: hex(machine.output()),
        one_sided: one_sided(&files.counts),
        as_call: NetworkCost {
            round_trips: 1,
            bytes_out: (IDENTIFIER_BYTES + parameters.len()) as u64,
            bytes_back: (RESULT_BYTES + machine.output().len()) as u64,
        },
        written_back: if write { files.write_back()? } else { Vec::new() },
        counts: files.counts,
    };
    report.lines().iter().for_each(|line| output.line(line));
    let end = match &report.ending {
        Ending::Returned { .. } => Ok(()),
        Ending::Stopped { why, line } => {
            let line = line.as_ref().map(|line| format!("{line}: ")).unwrap_or_default();
            Err(Failure::check(format!("{}: {line}{why}", report.program)))
        }
    };
    output.ended(json!(report), end)
}

fn start_failure(error: StartError) -> Failure {
    match error {
        StartError::ContextTooShort { .. } | StartError::ContextTooLong { .. } => {
            Failure::usage(format!("--parameters: {error}"))
        }
        _ => Failure::check(error.to_string()),
    }
}

fn execute(
    engine: EngineName,
    machine: &mut Machine,
    verified: &Verified,
    files: &mut Files,
) -> Result<Outcome, Failure> {
    let program = verified.program();
    let mut variables = program.variables.clone();
    let lent = Lent { own: &mut variables.own, shared: &mut variables.shared };
    Ok(match engine {
        EngineName::Checked => machine.run_checked(program, lent, files),
        EngineName::Fast => machine.run(verified, lent, files),
        EngineName::Compiled => compiled(machine, verified, lent, files)?,
    })
}

/// Passes no regions to the machine code, so that every access calls `files` and is counted.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
fn compiled(
    machine: &mut Machine,
    verified: &Verified,
    lent: Lent<'_>,
    files: &mut Files,
) -> Result<Outcome, Failure> {
    let compiled = farside_rmc::run::native::Compiled::new(verified.clone());
    let compiled = compiled.map_err(|e| Failure::system(e.to_string()))?;
    Ok(compiled.run(machine, lent, &[], files))
}

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
fn compiled(_: &mut Machine, _: &Verified, _: Lent<'_>, _: &mut Files) -> Result<Outcome, Failure> {
    Err(Failure::usage("--engine compiled: only available on x86-64 Linux: use --engine fast"))
}

fn ending(outcome: Outcome, program: &Program) -> Ending {
    let stopped = |why: String, slot: Option<usize>| {
        let line = slot.and_then(|slot| program.line_at(slot)).map(ToString::to_string);
        Ending::Stopped { why, line }
    };
    match outcome {
        Outcome::Returned(result) => Ending::Returned { result, status: status_of(result) },
        Outcome::Suspended(request) => stopped(
            format!(
                "suspended in {}, which this command cannot resume",
                Helper::of(request.call).name
            ),
            None,
        ),
        Outcome::Paused => stopped("its slice ended".to_string(), None),
        Outcome::Stopped(stop) => stopped(stop.to_string(), stop.slot()),
    }
}

/// Returns the header's name of a result that is one of its negative numbers.
pub(super) fn status_of(result: u64) -> Option<&'static str> {
    answer(result).err().and_then(status_name)
}

/// Returns the header's name of a status.
fn status_name(number: i64) -> Option<&'static str> {
    Some(match number {
        status::NOT_PERMITTED => "FARSIDE_NOT_PERMITTED",
        status::NOT_FOUND => "FARSIDE_NOT_FOUND",
        status::OUT_OF_RANGE => "FARSIDE_OUT_OF_RANGE",
        status::FULL => "FARSIDE_FULL",
        status::TIMED_OUT => "FARSIDE_TIMED_OUT",
        status::BUSY => "FARSIDE_BUSY",
        status::PEER_LOST => "FARSIDE_PEER_LOST",
        _ => return None,
    })
}

fn one_sided(counts: &Counts) -> NetworkCost {
    NetworkCost {
        round_trips: counts.accesses,
        bytes_out: counts.bytes_written,
        bytes_back: counts.bytes_read,
    }
}

/// Returns the printed line of a result.
pub(super) fn returned_text(result: u64, status: Option<&str>) -> String {
    let signed = result.cast_signed();
    let status = status.map(|name| format!(", {name}")).unwrap_or_default();
    format!("returned    {result} ({result:#x}, {signed}{status})")
}

pub(super) fn hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        // Writing to a `String` cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

impl NetworkCost {
    fn text(&self) -> String {
        let Self { round_trips, bytes_out, bytes_back } = self;
        let (out, back) = (bytes(*bytes_out), bytes(*bytes_back));
        format!("{}, {out} out, {back} back", counted(*round_trips, "round trip"))
    }
}

impl RunReport {
    fn lines(&self) -> Vec<String> {
        let mut lines = vec![match &self.ending {
            Ending::Returned { result, status } => returned_text(*result, *status),
            Ending::Stopped { why, line } => {
                let line = line.as_ref().map(|line| format!("{line}: ")).unwrap_or_default();
                format!("stopped     {line}{why}")
            }
        }];
        let length = self.output.len() / 2;
        if length > 0 {
            lines.push(format!("output      {length} B: {}", self.output));
        }
        let counts = &self.counts;
        let helpers: Vec<_> =
            counts.helpers.iter().map(|(name, count)| format!("{count} {name}")).collect();
        let helpers =
            if helpers.is_empty() { String::new() } else { format!(" ({})", helpers.join(", ")) };
        lines.push(format!("accesses    {}{helpers}", counts.accesses));
        lines.push(format!("one-sided   {}", self.one_sided.text()));
        lines.push(format!("as a call   {}", self.as_call.text()));
        if counts.other_calls > 0 {
            lines.push(format!(
                "other       {} without a one-sided equivalent",
                counted(counts.other_calls, "call")
            ));
        }
        lines.extend(self.written_back.iter().map(|file| format!("written     {file}")));
        lines
    }
}
