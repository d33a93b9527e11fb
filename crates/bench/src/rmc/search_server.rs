//! The executor that the benchmarks of calls measure, and calls with their times.

use farside::call::{CallOptions, Caller, Program, Site};
use farside_command::failure::Failure;
use serde_json::Value;
use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// An executor in a separate process, killed on drop.
pub(super) struct SearchServer {
    child: Child,
    pub(super) address: String,
}

impl SearchServer {
    /// Starts `farside rmc serve` with `more` arguments, and waits for its address.
    pub(super) fn start(
        at: &str,
        memory: &std::path::Path,
        more: &[&str],
    ) -> Result<Self, Failure> {
        let system = |error: std::io::Error| {
            let text = format!("starting an executor: {error}");
            Failure::from(farside::Error::with(farside::ErrorCode::System, text))
        };
        let program = std::env::current_exe().map_err(system)?;
        let mut region = OsString::from("0=");
        region.push(memory);
        let mut command = Command::new(program);
        command.args(["--json", "rmc", "serve", at, "--memory"]).arg(region).args(more);
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(system)?;
        let mut line = String::new();
        if let Some(printed) = child.stdout.take() {
            BufReader::new(printed).read_line(&mut line).map_err(system)?;
        }
        let event: Value = serde_json::from_str(&line).unwrap_or_default();
        let address = event["address"].as_str().map(str::to_owned);
        let mut server = Self { child, address: address.unwrap_or_default() };
        if !server.address.is_empty() {
            return Ok(server);
        }
        // If it has exited by itself, `wait` returns that status.
        let _ = server.child.kill();
        let ended = server.child.wait().map_or_else(|e| e.to_string(), |status| status.to_string());
        let printed = line.trim();
        Err(system(std::io::Error::other(format!("it printed `{printed}` and exited ({ended})"))))
    }
}

impl Drop for SearchServer {
    fn drop(&mut self) {
        // It has no persistent state, so it needs no clean shutdown.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Timeout of a call.
const PATIENCE: Duration = Duration::from_secs(30);

/// Makes a call; returns its time in nanoseconds and its result.
pub(super) fn timed(
    caller: &mut Caller,
    runs: Site,
    program: &Program,
    parameters: &[u8],
) -> Result<(u64, u64), Failure> {
    let began = Instant::now();
    let answer = caller
        .call(program, parameters, CallOptions::new().site(runs).timeout(PATIENCE))
        .map_err(Failure::of_call)?;
    let took = began.elapsed();
    Ok((u64::try_from(took.as_nanos()).unwrap_or(u64::MAX), answer.result))
}
