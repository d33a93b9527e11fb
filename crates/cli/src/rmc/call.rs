//! `farside rmc register` and `farside rmc call`: the callers of an executor.

use super::run::{hex, returned_text, status_of};
use super::{NAME, membership, source};
use crate::arguments::{CallerArguments, RmcCall, RmcRegister};
use crate::choice::{self, Chosen};
use crate::failure::Failure;
use crate::latency::{Latencies, Percentiles};
use crate::output::{Output, bytes, count, time};
use crate::signals;
use farside::ErrorCode;
use farside::call::{Answer, Caller, CallerOptions, Program};
use farside_base::Access;
use serde::Serialize;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// How often who keeps a registration looks whether its executor is there.
const PERIOD: Duration = Duration::from_millis(100);
/// An executor that stops a call at its deadline may say so a little later.
const GRACE: Duration = Duration::from_secs(5);

/// A registration as an executor told it.
#[derive(Debug, Serialize)]
struct Registered {
    address: String,
    fabric: &'static str,
    security: String,
    /// How the executor is reached, and why so.
    path: String,
    regions: Vec<Region>,
    programs: Vec<Listed>,
    /// Sending the object, verifying and compiling it there, and the answer.
    registered_ns: u64,
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
    /// Where it ran.
    runs: &'static str,
    returned: Returned,
    /// In hexadecimal.
    output: String,
    calls: u64,
    round_trip_ns: Percentiles,
}

#[derive(Debug, Serialize)]
struct Returned {
    result: u64,
    /// Where it is one of the negative numbers of the header.
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<&'static str>,
}

/// A connection with its programs.
struct Connection {
    caller: Caller,
    programs: Vec<Program>,
    registered: Registered,
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
    if shares && !arguments.here {
        return Err(Failure::usage(
            "--cluster and --node are for --here: without it the program runs at its executor, which is \
             part of a node where `farside rmc serve` was told so",
        ));
    }
    let mut connection = Connection::open(&arguments.to, &arguments.of.object, &arguments.caller)?;
    let programs = std::mem::take(&mut connection.programs);
    let name = arguments.of.program.as_deref();
    let program = source::chosen(&arguments.of.object, programs, name, |program| &program.name)?;
    let node = membership::joined(&arguments.member)?;
    node.iter().try_for_each(|node| connection.caller.share(node)).map_err(failed)?;
    let mut latencies = Latencies::default();
    let mut last = None;
    for _ in 0..arguments.times {
        let began = Instant::now();
        let answer = round_trip(&mut connection.caller, &program, &parameters, arguments)?;
        let took_ns = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        latencies.add(&[(took_ns, 1)]);
        last = Some(answer);
    }
    let Some(Answer { result, output: emitted }) = last else {
        return Err(Failure::usage("--times 0: nothing to do"));
    };
    drop(connection.caller);
    if let Some(node) = node {
        // Lines that were not taken back in time are so when it has left.
        let _ = node.leave();
    }
    let called = Called {
        program: source::plain(&program.name),
        runs: if arguments.here { "here" } else { "there" },
        returned: Returned { result, status: status_of(result) },
        output: hex(&emitted),
        calls: arguments.times,
        round_trip_ns: latencies.percentiles(),
        registered: connection.registered,
    };
    output.value(&called);
    called.lines().iter().for_each(|line| output.line(line));
    Ok(())
}

/// Calls once and waits for the end.
fn round_trip(
    caller: &mut Caller,
    program: &Program,
    parameters: &[u8],
    arguments: &RmcCall,
) -> Result<Answer, Failure> {
    let timeout = arguments.timeout_ms.map(Duration::from_millis);
    let begun = match arguments.here {
        true => caller.invoke_here(program, parameters),
        false => caller.invoke_until(program, parameters, timeout),
    };
    let Some(ticket) = begun.map_err(failed)? else {
        // One call at a time has a slot, unless the executor is out of reach at present.
        caller.turn().map_err(failed)?;
        return Err(Failure::from(farside::Error::with(
            ErrorCode::PeerLost,
            "the executor is out of reach at present",
        )));
    };
    let patience = match (timeout, arguments.here) {
        (Some(timeout), true) => timeout,
        (Some(timeout), false) => timeout.saturating_add(GRACE),
        (None, _) => Duration::MAX,
    };
    caller.wait(ticket, patience).map_err(|error| match (arguments.here, error.code) {
        // Whoever runs a call keeps its deadline, and nobody else was asked.
        (true, ErrorCode::TimedOut) => failed(ErrorCode::DeadlinePassed.into()),
        _ => failed(error),
    })
}

impl Connection {
    /// Connects, and registers all programs of a file.
    fn open(to: &str, object: &Path, arguments: &CallerArguments) -> Result<Self, Failure> {
        let contents = source::contents(object)?;
        let Chosen { fabric, address, security } = choice::caller(&arguments.choice, to, NAME)?;
        let options =
            CallerOptions { tenant: arguments.tenant.clone(), ..CallerOptions::default() };
        let connected = Caller::connect(&Arc::clone(&fabric), &address, &options);
        let mut caller = connected.map_err(|error| failed_at(&address, error))?;
        let began = Instant::now();
        let programs = caller.register(&contents).map_err(|error| {
            let what = format!("{}: ", object.display());
            failed(farside::Error { detail: what + &error.detail, ..error })
        })?;
        let registered = Registered {
            address,
            fabric: fabric.name(),
            security,
            path: caller.path().unwrap_or_default(),
            regions: caller.regions().map(Region::new).collect(),
            programs: programs.iter().map(Listed::new).collect(),
            registered_ns: u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX),
        };
        Ok(Self { caller, programs, registered })
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
fn failed_at(address: &str, error: farside::Error) -> Failure {
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
        let Returned { result, status } = self.returned;
        lines.push(returned_text(result, status));
        let length = self.output.len() / 2;
        if length > 0 {
            lines.push(format!("output      {length} B: {}", self.output));
        }
        let place = match self.runs {
            "here" => "here, each access a one-sided request",
            _ => "there, one round trip a call",
        };
        lines.push(format!("ran         {place}"));
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
