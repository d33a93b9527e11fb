//! `farside rmc register` and `farside rmc call`: callers of an executor.

use super::connection::{Connection, Registered};
use super::place::{A_REQUEST_EACH, CallOutcome, ExecutionSites, PlacementReport, nothing_to_do};
use super::run::{hex, returned_text, status_of};
use super::{membership, place};
use crate::settings::{PlaceName, RmcCall, RmcRegister};
use farside::ErrorCode;
use farside::call::{CallAnswer, CallOptions, Caller, Program, Site};
use farside_command::failure::{Failure, printable};
use farside_command::output::{Output, count, time};
use farside_command::signals;
use farside_launcher::latency::{Latencies, Percentiles};
use serde::Serialize;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// Interval at which `--keep` polls the connection and checks whether to stop.
const PERIOD: Duration = Duration::from_millis(100);

/// Extra wait for an executor's answer that a call was stopped at its deadline.
const GRACE: Duration = Duration::from_secs(5);

/// Report of `farside rmc call`.
#[derive(Debug, Serialize)]
struct CallReport {
    #[serde(flatten)]
    registered: Registered,
    program: String,
    /// Where the last call ran: `here`, or `there` at an executor.
    runs: &'static str,
    returned: Returned,
    /// In hexadecimal.
    output: String,
    calls: u64,
    round_trip_ns: Percentiles,
    /// Present if there were several places.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    placement: Option<PlacementReport>,
}

#[derive(Debug, Serialize)]
struct Returned {
    result: u64,
    /// Present if it is one of the negative numbers of the header.
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<&'static str>,
}

pub(crate) fn register(arguments: &RmcRegister, output: Output) -> Result<(), Failure> {
    let (stopping, stop) = channel();
    if arguments.keep {
        signals::watch(move || stopping.send(()).is_ok())?;
    }
    let mut connection = Connection::open(&arguments.to, &arguments.object, &arguments.caller)?;
    output.value(&connection.registered);
    connection.registered.lines().iter().for_each(|line| output.line(line));
    if !arguments.keep {
        return Ok(());
    }
    output.line("registered until Ctrl-C");
    loop {
        connection.caller.progress().map_err(Failure::of_call)?;
        match stop.recv_timeout(PERIOD) {
            Err(RecvTimeoutError::Timeout) => {}
            _ => return Ok(()),
        }
    }
}

pub(crate) fn call(arguments: &RmcCall, output: Output) -> Result<(), Failure> {
    let parameters = arguments.of.parameters.read()?;
    let shares = arguments.member.cluster.is_some() || arguments.member.node.is_some();
    let may_run_here = matches!(arguments.place.place, PlaceName::Here | PlaceName::Choose);
    if shares && !may_run_here {
        return Err(Failure::usage(
            "--cluster and --node need --here or --place choose: otherwise the program runs at its executor, \
             which joins a cluster by the same options of `farside rmc serve`",
        ));
    }
    let outcome = match place::placement(arguments)? {
        ExecutionSites::Single(site) => call_at(site, arguments, &parameters)?,
        ExecutionSites::Multiple(candidates) => place::call(candidates, arguments, &parameters)?,
    };
    let CallAnswer { result, output: emitted } = outcome.answer;
    let report = CallReport {
        program: outcome.program,
        runs: match outcome.site {
            Site::Local => "here",
            Site::Remote => "there",
        },
        returned: Returned { result, status: status_of(result) },
        output: hex(&emitted),
        calls: arguments.times,
        round_trip_ns: outcome.latencies.percentiles(),
        placement: outcome.placement,
        registered: outcome.registered,
    };
    output.value(&report);
    report.lines().iter().for_each(|line| output.line(line));
    Ok(())
}

/// Makes all calls at one site.
fn call_at(site: Site, arguments: &RmcCall, parameters: &[u8]) -> Result<CallOutcome, Failure> {
    let mut connection = Connection::open(&arguments.to, &arguments.of.object, &arguments.caller)?;
    let program = connection.program(&arguments.of)?;
    let node = membership::joined(&arguments.member)?;
    node.iter().try_for_each(|node| connection.caller.share(node)).map_err(Failure::of_call)?;
    let mut latencies = Latencies::default();
    let mut last = None;
    for _ in 0..arguments.times {
        let began = Instant::now();
        let answer =
            round_trip(&mut connection.caller, site, &program, parameters, arguments.timeout_ms)?;
        let took_ns = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        latencies.add(&[(took_ns, 1)]);
        last = Some(answer);
    }
    drop(connection.caller);
    if let Some(node) = node {
        // The error is ignored: the node has left in any case, though lines that only it had may be lost.
        let _ = node.leave();
    }
    Ok(CallOutcome {
        program: printable(&program.name),
        site,
        answer: last.ok_or_else(nothing_to_do)?,
        latencies,
        placement: None,
        registered: connection.registered,
    })
}

/// Makes one call and waits for its answer.
fn round_trip(
    caller: &mut Caller,
    site: Site,
    program: &Program,
    parameters: &[u8],
    timeout_ms: Option<u64>,
) -> Result<CallAnswer, Failure> {
    let timeout = timeout_ms.map(Duration::from_millis);
    let mut options = CallOptions::new().site(site);
    options.deadline = timeout;
    let Some(ticket) = caller.invoke(program, parameters, options).map_err(Failure::of_call)?
    else {
        // A single call always has a slot, so the executor is disconnected: a poll returns the reason if it is final.
        caller.progress().map_err(Failure::of_call)?;
        return Err(Failure::from(farside::Error::with(
            ErrorCode::PeerLost,
            "the executor is currently unreachable",
        )));
    };
    let patience = timeout.map_or(Duration::MAX, |timeout| timeout.saturating_add(GRACE));
    caller.wait(ticket, patience).map_err(Failure::of_call)
}

impl CallReport {
    fn lines(&self) -> Vec<String> {
        let mut lines = self.registered.lines();
        lines.extend(self.placement.iter().flat_map(PlacementReport::also_lines));
        let Returned { result, status } = self.returned;
        lines.push(returned_text(result, status));
        let length = self.output.len() / 2;
        if length > 0 {
            lines.push(format!("output      {length} B: {}", self.output));
        }
        match (&self.placement, self.runs) {
            (Some(placement), _) => lines.extend(placement.lines()),
            (None, "here") => lines.push(format!("ran         here, {A_REQUEST_EACH}")),
            (None, _) => {
                lines.push("ran         at the executor, one round trip per call".to_owned())
            }
        }
        let Percentiles { p50_ns, p99_ns, .. } = self.round_trip_ns;
        lines.push(match self.calls {
            1 => format!("round trip  {}", time(p50_ns as f64)),
            calls => format!(
                "round trip  median {}, p99 {} of {} calls",
                time(p50_ns as f64),
                time(p99_ns as f64),
                count(calls)
            ),
        });
        lines
    }
}
