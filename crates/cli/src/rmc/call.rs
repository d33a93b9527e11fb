//! `farside rmc register` and `farside rmc call`: the callers of an executor.

use super::place::{Placing, Told};
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

/// How often who keeps a registration looks whether its executor is there.
const PERIOD: Duration = Duration::from_millis(100);
/// What a run here is made of.
pub(super) const A_REQUEST_EACH: &str = "each access a one-sided request";
/// An executor that stops a call at its deadline may say so a little later.
const GRACE: Duration = Duration::from_secs(5);

/// A registration as an executor told it.
#[derive(Debug, Serialize)]
pub(super) struct Registered {
    pub(super) address: String,
    fabric: &'static str,
    security: String,
    /// How the executor is reached, and why so.
    pub(super) path: String,
    regions: Vec<Region>,
    programs: Vec<Listed>,
    /// Sending the object, verifying and compiling it there, and the answer.
    pub(super) registered_ns: u64,
}

#[derive(Debug, Serialize)]
struct Region {
    region: u8,
    bytes: u64,
    /// What may be done with it.
    access: Vec<&'static str>,
}

#[derive(Debug, Serialize)]
struct Listed {
    /// What it is invoked by, made from its contents; in hexadecimal, since JSON's numbers are too short.
    number: String,
    name: String,
    parameters_bytes: u32,
    keeps_state: bool,
}

/// What a call came to.
#[derive(Debug, Serialize)]
struct Called {
    #[serde(flatten)]
    registered: Registered,
    program: String,
    /// Where it ran: here, or at an executor.
    runs: &'static str,
    returned: Returned,
    /// In hexadecimal.
    output: String,
    calls: u64,
    round_trip_ns: Percentiles,
    /// Where there were several places.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    placing: Option<Placing>,
}

/// What calls came to, wherever they ran.
pub(super) struct Ended {
    pub(super) registered: Registered,
    pub(super) program: String,
    pub(super) site: Site,
    /// The last one's.
    pub(super) answer: CallAnswer,
    pub(super) latencies: Latencies,
    pub(super) placing: Option<Placing>,
}

#[derive(Debug, Serialize)]
struct Returned {
    result: u64,
    /// Where it is one of the negative numbers of the header.
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
    let (told, stop) = channel();
    if arguments.keep {
        signals::watch(move || told.send(()).is_ok())?;
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
            "--cluster and --node are for --here and --place choose: elsewhere the program runs at its \
             executor, which is part of a node where `farside rmc serve` was told so",
        ));
    }
    let ended = match place::told(arguments)? {
        Told::One(site) => call_at(site, arguments, &parameters)?,
        Told::Several(several) => place::call(several, arguments, &parameters)?,
    };
    let CallAnswer { result, output: emitted } = ended.answer;
    let called = Called {
        program: ended.program,
        runs: match ended.site {
            Site::Local => "here",
            Site::Remote => "there",
        },
        returned: Returned { result, status: status_of(result) },
        output: hex(&emitted),
        calls: arguments.times,
        round_trip_ns: ended.latencies.percentiles(),
        placing: ended.placing,
        registered: ended.registered,
    };
    output.value(&called);
    called.lines().iter().for_each(|line| output.line(line));
    Ok(())
}

/// Calls at one place, again and again.
fn call_at(site: Site, arguments: &RmcCall, parameters: &[u8]) -> Result<Ended, Failure> {
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
        // Lines that were not taken back in time are so when it has left.
        let _ = node.leave();
    }
    Ok(Ended {
        program: source::plain(&program.name),
        site,
        answer: last.ok_or_else(nothing_to_do)?,
        latencies,
        placing: None,
        registered: connection.registered,
    })
}

pub(super) fn nothing_to_do() -> Failure {
    Failure::usage("--times 0: nothing to do")
}

/// Calls once and waits for the end.
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
        // One call at a time has a slot, unless the executor is out of reach at present.
        caller.turn().map_err(failed)?;
        return Err(Failure::from(farside::Error::with(
            ErrorCode::PeerLost,
            "the executor is out of reach at present",
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

    /// Registers all programs of a file at the executor of that address.
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
            programs: programs.iter().map(Listed::new).collect(),
            registered_ns: u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX),
        };
        Ok(Self { caller, programs, registered })
    }

    /// The program that was asked for.
    pub(super) fn program(&mut self, RmcCall { of, .. }: &RmcCall) -> Result<Program, Failure> {
        let programs = std::mem::take(&mut self.programs);
        source::chosen(&of.object, programs, of.program.as_deref(), |program| &program.name)
    }
}

/// A row of the table, whose details may hold what an object's author or a peer has written.
pub(super) fn failed(error: farside::Error) -> Failure {
    let error = farside::Error { detail: source::plain(&error.detail), ..error };
    if error.code == ErrorCode::BadParameters {
        return Failure::usage(format!("--parameters: {}", error.detail));
    }
    error.into()
}

/// The same, naming whom it is about.
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

impl Listed {
    fn new(program: &Program) -> Self {
        Self {
            number: format!("{:#018x}", program.number),
            name: source::plain(&program.name),
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
        lines.extend(self.programs.iter().map(Listed::text));
        lines.push(format!("registered  in {}", time(self.registered_ns as f64)));
        lines
    }
}

impl Called {
    fn lines(&self) -> Vec<String> {
        let mut lines = self.registered.lines();
        lines.extend(self.placing.iter().flat_map(Placing::also_lines));
        let Returned { result, status } = self.returned;
        lines.push(returned_text(result, status));
        let length = self.output.len() / 2;
        if length > 0 {
            lines.push(format!("output      {length} B: {}", self.output));
        }
        match (&self.placing, self.runs) {
            (Some(placing), _) => lines.extend(placing.lines()),
            (None, "here") => lines.push(format!("ran         here, {A_REQUEST_EACH}")),
            (None, _) => lines.push("ran         there, one round trip a call".to_owned()),
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
