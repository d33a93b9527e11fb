//! `farside rmc register` and `farside rmc call`: callers of an executor.

use super::place::{ExecutionSites, PlacementReport};
use super::run::{hex, returned_text, status_of};
use super::{NAME, membership, place, source};
use crate::arguments::{CallerArguments, PlaceName, RmcCall, RmcRegister};
use crate::choice::{self, Chosen};
use crate::failure::Failure;
use crate::latency::{Latencies, Percentiles};
use crate::output::{Output, bytes, count, time};
use crate::signals;
use farside::ErrorCode;
use farside::call::{CallAnswer, CallOptions, Caller, CallerOptions, Program, Site};
use farside_base::Access;
use farside_fabric::Fabric;
use serde::Serialize;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// Interval at which `--keep` polls the connection and checks whether to stop.
const PERIOD: Duration = Duration::from_millis(100);
/// Describes a call that runs in this process.
pub(super) const A_REQUEST_EACH: &str = "each access a one-sided request";
/// Extra wait for an executor's answer that a call was stopped at its deadline.
const GRACE: Duration = Duration::from_secs(5);

/// A registration, as confirmed by the executor.
#[derive(Debug, Serialize)]
pub(super) struct Registered {
    pub(super) address: String,
    fabric: &'static str,
    security: String,
    /// How the executor is reached, and why.
    pub(super) path: String,
    regions: Vec<Region>,
    programs: Vec<ProgramInfo>,
    /// Time to send, verify and compile the object, and to receive the answer.
    pub(super) registered_ns: u64,
}

#[derive(Debug, Serialize)]
struct Region {
    region: u8,
    bytes: u64,
    /// Permitted accesses.
    access: Vec<&'static str>,
}

#[derive(Debug, Serialize)]
struct ProgramInfo {
    /// The number that invokes it, derived from its contents; in hexadecimal, since JSON numbers have only 53 bits.
    number: String,
    name: String,
    parameters_bytes: u32,
    keeps_state: bool,
}

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

/// Result of all calls, at one or several places.
pub(super) struct CallOutcome {
    pub(super) registered: Registered,
    pub(super) program: String,
    pub(super) site: Site,
    /// CallAnswer of the last call.
    pub(super) answer: CallAnswer,
    pub(super) latencies: Latencies,
    pub(super) placement: Option<PlacementReport>,
}

#[derive(Debug, Serialize)]
struct Returned {
    result: u64,
    /// Present if it is one of the negative numbers of the header.
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<&'static str>,
}

/// A connection with its programs.
pub(super) struct Connection {
    pub(super) caller: Caller,
    pub(super) programs: Vec<Program>,
    pub(super) registered: Registered,
}

pub(super) fn register(arguments: &RmcRegister, output: Output) -> Result<(), Failure> {
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
        connection.caller.turn().map_err(failed)?;
        match stop.recv_timeout(PERIOD) {
            Err(RecvTimeoutError::Timeout) => {}
            _ => return Ok(()),
        }
    }
}

pub(super) fn call(arguments: &RmcCall, output: Output) -> Result<(), Failure> {
    let parameters = arguments.of.parameters.read()?;
    let shares = arguments.member.cluster.is_some() || arguments.member.node.is_some();
    let may_run_here = matches!(arguments.place.told(), PlaceName::Here | PlaceName::Choose);
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
    let program = connection.program(arguments)?;
    let node = membership::joined(&arguments.member)?;
    node.iter().try_for_each(|node| connection.caller.share(node)).map_err(failed)?;
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
        program: source::printable(&program.name),
        site,
        answer: last.ok_or_else(nothing_to_do)?,
        latencies,
        placement: None,
        registered: connection.registered,
    })
}

pub(super) fn nothing_to_do() -> Failure {
    Failure::usage("--times 0: nothing to do")
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
    let Some(ticket) = caller.invoke(program, parameters, options).map_err(failed)? else {
        // A single call always has a slot, so the executor is disconnected: a poll returns the reason if it is final.
        caller.turn().map_err(failed)?;
        return Err(Failure::from(farside::Error::with(
            ErrorCode::PeerLost,
            "the executor is currently unreachable",
        )));
    };
    let patience = timeout.map_or(Duration::MAX, |timeout| timeout.saturating_add(GRACE));
    caller.wait(ticket, patience).map_err(failed)
}

/// Connects to an executor.
pub(super) fn connect(
    fabric: &Arc<dyn Fabric>,
    address: &str,
    arguments: &CallerArguments,
    slots: u16,
) -> Result<Caller, Failure> {
    let tenant = arguments.tenant.clone();
    let options = CallerOptions { tenant, slots, ..CallerOptions::default() };
    Caller::connect(fabric, address, &options).map_err(|error| failed_at(address, error))
}

impl Connection {
    /// Connects, and registers all programs of a file.
    fn open(to: &str, object: &Path, arguments: &CallerArguments) -> Result<Self, Failure> {
        let contents = source::contents(object)?;
        let chosen = choice::caller(&arguments.choice, to, NAME)?;
        let slots = CallerOptions::default().slots;
        let caller = connect(&chosen.fabric, &chosen.address, arguments, slots)?;
        Self::register(caller, &chosen, object, &contents)
    }

    /// Registers all programs of a file at a connected executor.
    pub(super) fn register(
        mut caller: Caller,
        Chosen { fabric, address, security }: &Chosen,
        object: &Path,
        contents: &[u8],
    ) -> Result<Self, Failure> {
        let began = Instant::now();
        let programs = caller.register(contents).map_err(|error| {
            let what = format!("{}: ", object.display());
            failed(farside::Error { detail: what + &error.detail, ..error })
        })?;
        let registered = Registered {
            address: address.clone(),
            fabric: fabric.name(),
            security: security.clone(),
            path: caller.path().unwrap_or_default(),
            regions: caller.regions().map(Region::new).collect(),
            programs: programs.iter().map(ProgramInfo::new).collect(),
            registered_ns: u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX),
        };
        Ok(Self { caller, programs, registered })
    }

    /// Returns the requested program.
    pub(super) fn program(&mut self, RmcCall { of, .. }: &RmcCall) -> Result<Program, Failure> {
        let programs = std::mem::take(&mut self.programs);
        source::select(&of.object, programs, of.program.as_deref(), |program| &program.name)
    }
}

/// Converts an error of a call, whose detail may contain untrusted text of an object or a peer.
pub(super) fn failed(error: farside::Error) -> Failure {
    let error = farside::Error { detail: source::printable(&error.detail), ..error };
    if error.code == ErrorCode::BadParameters {
        return Failure::usage(format!("--parameters: {}", error.detail));
    }
    error.into()
}

/// Like [`failed`], with the executor's address in the detail.
pub(super) fn failed_at(address: &str, error: farside::Error) -> Failure {
    let detail = match error.detail.as_str() {
        "" => address.to_owned(),
        text if text.contains(address) => text.to_owned(),
        text => format!("{address}: {text}"),
    };
    failed(farside::Error { detail, ..error })
}

impl Region {
    fn new((region, bytes, access): (u8, u64, Access)) -> Self {
        let rights = [(Access::READ, "read"), (Access::WRITE, "write"), (Access::ATOMIC, "atomic")];
        let access = rights.iter().filter(|(right, _)| access.allows(*right));
        Self { region, bytes, access: access.map(|(_, name)| *name).collect() }
    }

    fn text(&self) -> String {
        let rights = self.access.join(", ");
        format!("region      {}: {}, {rights}", self.region, bytes(self.bytes))
    }
}

impl ProgramInfo {
    fn new(program: &Program) -> Self {
        Self {
            number: format!("{:#018x}", program.number),
            name: source::printable(&program.name),
            parameters_bytes: program.parameter_bytes,
            keeps_state: program.keeps_state,
        }
    }

    fn text(&self) -> String {
        let state = if self.keeps_state { ", keeps state" } else { "" };
        let Self { number, name, parameters_bytes, .. } = self;
        format!("program     {number} {name}: {parameters_bytes} B of parameters{state}")
    }
}

impl Registered {
    fn lines(&self) -> Vec<String> {
        let mut lines = vec![
            format!("executor    {} over {} ({})", self.address, self.fabric, self.security),
            format!("path        {}", self.path),
        ];
        lines.extend(self.regions.iter().map(Region::text));
        lines.extend(self.programs.iter().map(ProgramInfo::text));
        lines.push(format!("registered  in {}", time(self.registered_ns as f64)));
        lines
    }
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
