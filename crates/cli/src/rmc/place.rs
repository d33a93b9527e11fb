//! Calls with a choice of places: each call runs at the place with the lowest expected latency.
//!
//! The report shows where calls ran and why.

use super::check::counted;
use super::connection::{Connection, Registered, connect};
use super::probe::{CallCost, Probe, readable};
use super::{membership, source};
use crate::settings::{PlaceName, RmcCall};
use farside::ErrorCode;
use farside::call::{
    CallAnswer, CallOptions, Caller, CallerOptions, Choice, ChoiceReason, LearningOptions,
    PlaceModel, Placed, PlacedAnswer, PlacedProgram, Prices, Processor, Site,
};
use farside_command::choice::{self, Chosen};
use farside_command::failure::{Failure, printable};
use farside_command::output::time;
use farside_launcher::latency::{Latencies, Percentiles};
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Name of the place in this process.
const HERE: &str = "here";
/// Describes a call that runs in this process.
pub(super) const A_REQUEST_EACH: &str = "each access a one-sided request";

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

/// Where calls run, according to the arguments.
pub(super) enum ExecutionSites {
    /// All at one site of the executor that the command names.
    Single(Site),
    /// At one of several places.
    Multiple(Candidates),
}

/// The places to choose from.
pub(super) struct Candidates {
    /// The executor that the command names, then those of `--also`.
    executors: Vec<ExecutorAddress>,
    /// The place where all calls run, if `--place` names one.
    pinned: Option<Pinned>,
}

/// An executor.
struct ExecutorAddress {
    /// Its name in the arguments.
    name: String,
    address: String,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Pinned {
    Here,
    /// At the executor with this index.
    At(usize),
}

/// Determines where calls run from the arguments.
pub(super) fn placement(arguments: &RmcCall) -> Result<ExecutionSites, Failure> {
    let place = &arguments.place;
    let choice = &arguments.caller.choice;
    let full = |text: &str| choice::address_to_call(choice, text, choice::EXECUTOR, &arguments.to);
    let mut executors: Vec<ExecutorAddress> = Vec::new();
    for name in [&arguments.to].into_iter().chain(&place.also) {
        let address = full(name)?;
        if executors.iter().any(|executor| executor.address == address) {
            return Err(Failure::usage(format!("--also {name}: it is a place already")));
        }
        executors.push(ExecutorAddress { name: name.clone(), address });
    }
    let pinned = match &place.place {
        PlaceName::Choose => None,
        PlaceName::Here => Some(Pinned::Here),
        PlaceName::There => Some(Pinned::At(0)),
        PlaceName::At(name) => {
            let address = full(name).unwrap_or_else(|_| name.clone());
            let at = executors.iter().position(|executor| executor.address == address);
            Some(Pinned::At(at.ok_or_else(|| no_place(name, &executors))?))
        }
    };
    if place.accesses.is_some() && pinned.is_some() {
        let text = "--accesses needs --place choose, or --also without --place";
        return Err(Failure::usage(text));
    }
    Ok(match (pinned, executors.len()) {
        (Some(Pinned::Here), 1) => ExecutionSites::Single(Site::Local),
        (Some(Pinned::At(_)), 1) => ExecutionSites::Single(Site::Remote),
        _ => ExecutionSites::Multiple(Candidates { executors, pinned }),
    })
}

fn no_place(name: &str, executors: &[ExecutorAddress]) -> Failure {
    let also = executors.iter().skip(1).map(|one| format!(", {}", one.name)).collect::<String>();
    let there = executors.first().map_or("", |one| &one.name);
    Failure::usage(format!(
        "--place {name}: no such place; the places are choose, here, there ({there}){also}. Add an \
         executor with --also {name}"
    ))
}

/// Makes all calls: each at the place with the lowest expected latency, or all at the pinned place.
pub(super) fn call(
    Candidates { executors, pinned }: Candidates,
    arguments: &RmcCall,
    parameters: &[u8],
) -> Result<CallOutcome, Failure> {
    let chosen = choice::caller(&arguments.caller.choice, &arguments.to, choice::EXECUTOR)?;
    let (mut connections, measured) = connect_all(&chosen, &executors, arguments)?;
    let programs = connections.iter_mut().map(|connection| connection.program(&arguments.of));
    let programs = programs.collect::<Result<Vec<_>, _>>()?;
    let node = membership::joined(&arguments.member)?;
    let by = measured.here_by;
    let (caller, program) = (&mut connections[by].caller, &programs[by]);
    node.iter().try_for_each(|node| caller.share(node)).map_err(Failure::of_call)?;
    let not_here = match (caller.check_local(program), pinned) {
        (Ok(()), _) => None,
        // A program that sends notifications may run in this process if pinned here.
        (Err(_), Some(Pinned::Here)) if !program.keeps_state => None,
        (Err(error), Some(Pinned::Here)) => return Err(Failure::of_call(error)),
        (Err(error), _) => Some(printable(&error.detail)),
    };
    let (name, keeps_state) = (printable(&program.name), program.keeps_state);
    let (callers, mut registered): (Vec<_>, Vec<_>) =
        connections.into_iter().map(|one| (one.caller, one.registered)).unzip();
    let mut places = Places::new(&chosen, &executors);
    places.add(callers, &measured, not_here.is_none())?;
    let program = places.placed.add_program(programs).map_err(Failure::of_call)?;
    places.pin(program, keeps_state, pinned)?;
    let ran = run(&mut places.placed, program, parameters, arguments)?;
    let also = registered.split_off(1);
    let placement = places.report(program, &ran, not_here, also);
    let runs = places.runs(ran.last.choice.place);
    drop(places);
    if let Some(node) = node {
        // The error is ignored: the node has left in any case, though lines that only it had may be lost.
        let _ = node.leave();
    }
    Ok(CallOutcome {
        registered: registered.remove(0),
        program: name,
        site: runs,
        answer: ran.last.answer,
        latencies: ran.all,
        placement: Some(placement),
    })
}

pub(super) fn nothing_to_do() -> Failure {
    Failure::usage("--times 0: nothing to do")
}

/// Costs measured before the first call.
struct Measured {
    /// At each executor.
    there: Vec<CallCost>,
    /// In this process, if an executor lends memory that it can read.
    here: Option<CallCost>,
    /// Index of the executor whose memory calls in this process access.
    here_by: usize,
}

/// Connects to all executors, measures the cost of calls at each place, and registers the programs.
fn connect_all(
    chosen: &Chosen,
    executors: &[ExecutorAddress],
    arguments: &RmcCall,
) -> Result<(Vec<Connection>, Measured), Failure> {
    let contents = source::contents(&arguments.of.object)?;
    let slots = CallerOptions::default().slots;
    let callers =
        executors.iter().map(|one| connect(&chosen.fabric, &one.address, &arguments.caller, slots));
    let mut callers = callers.collect::<Result<Vec<_>, _>>()?;
    let measured = measure(&mut callers, executors)?;
    let connections = callers.into_iter().zip(executors).map(|(caller, executor)| {
        let chosen = Chosen {
            fabric: Arc::clone(&chosen.fabric),
            address: executor.address.clone(),
            security: chosen.security.clone(),
        };
        Connection::register(caller, &chosen, &arguments.of.object, &contents)
    });
    Ok((connections.collect::<Result<_, _>>()?, measured))
}

/// Refuses executors with different memory, and measures all places.
fn measure(callers: &mut [Caller], executors: &[ExecutorAddress]) -> Result<Measured, Failure> {
    let mut owners = callers.iter().enumerate().filter(|(_, caller)| caller.regions().count() > 0);
    let owner = owners.next().map(|(at, _)| at);
    if let (Some(one), Some((other, _))) = (owner, owners.next()) {
        let (one, other) = (&executors[one].name, &executors[other].name);
        return Err(Failure::usage(format!(
            "{one} and {other} have different memory: each lends its own. All places must access the same \
             memory: start the other executor with `farside rmc serve --beside {one}`"
        )));
    }
    let regions = owner.map(|at| readable(&callers[at])).unwrap_or_default();
    let region = regions.first().copied();
    let (mut there, mut here) = (Vec::new(), None);
    for (at, (caller, executor)) in callers.iter_mut().zip(executors).enumerate() {
        let mut probe = Probe::register(caller, &executor.name)?;
        match owner {
            Some(owner) if owner == at && region.is_some() => {
                here = Some(probe.measure(Site::Local, region)?);
            }
            Some(owner) if owner != at => probe.check(&regions, &executors[owner].name)?,
            Some(_) | None => {}
        }
        there.push(probe.measure(Site::Remote, region)?);
        probe.end()?;
    }
    Ok(Measured { there, here, here_by: owner.unwrap_or(0) })
}

/// The places of calls.
struct Places<'a> {
    placed: Placed,
    executors: &'a [ExecutorAddress],
    /// Index of each executor's place.
    there: Vec<usize>,
    /// Index of the place in this process.
    here: Option<usize>,
}

impl<'a> Places<'a> {
    fn new(chosen: &Chosen, executors: &'a [ExecutorAddress]) -> Self {
        let placed = Placed::new(&chosen.fabric, Prices::LATENCY, LearningOptions::default());
        Self { placed, executors, there: Vec::new(), here: None }
    }

    fn add(
        &mut self,
        callers: Vec<Caller>,
        measured: &Measured,
        runs_here: bool,
    ) -> Result<(), Failure> {
        for (at, (caller, cost)) in callers.into_iter().zip(&measured.there).enumerate() {
            let mut places =
                vec![(Site::Remote, model(&self.executors[at].name, Processor::Host, *cost))];
            let is_here = runs_here && measured.here_by == at;
            // An unmeasured place starts with zero cost, so that it is tried.
            let cost = measured.here.unwrap_or(CallCost { call_ns: 0, access_ns: 0 });
            places.extend(is_here.then(|| (Site::Local, model(HERE, Processor::Client, cost))));
            let first = self.placed.add(caller, &places).map_err(Failure::of_call)?;
            self.there.push(first);
            self.here = self.here.or(is_here.then_some(first + 1));
        }
        Ok(())
    }

    /// Makes all calls run at the pinned place, if there is one.
    fn pin(
        &mut self,
        program: PlacedProgram,
        keeps_state: bool,
        pinned: Option<Pinned>,
    ) -> Result<(), Failure> {
        let place = match pinned {
            None => return Ok(()),
            Some(Pinned::Here) => self.here,
            Some(Pinned::At(executor)) => Some(self.there[executor]),
        };
        match place {
            Some(place) if keeps_state => {
                self.placed.bind(program, place).map_err(Failure::of_call)
            }
            place => {
                self.placed.placement().pin(place);
                Ok(())
            }
        }
    }

    fn runs(&self, place: usize) -> Site {
        if self.here == Some(place) { Site::Local } else { Site::Remote }
    }

    fn name(&self, place: usize) -> &str {
        let executor = self.there.iter().position(|at| *at == place);
        executor.map_or(HERE, |executor| &self.executors[executor].name)
    }

    /// Returns the report of all places: this process first, then the executors in the order of the arguments.
    fn report(
        &self,
        program: PlacedProgram,
        ran: &PlacedRun,
        not_here: Option<String>,
        also: Vec<Registered>,
    ) -> PlacementReport {
        let places = self.here.iter().chain(&self.there).map(|place| {
            let latencies = ran.at.get(place);
            PlaceReport {
                place: self.name(*place).to_owned(),
                is_here: self.here == Some(*place),
                calls: latencies.map_or(0, Latencies::operations),
                round_trip_ns: latencies.map(Latencies::percentiles),
            }
        });
        PlacementReport {
            places: places.collect(),
            last: LastCall::new(&ran.last.choice),
            state_at: self.placed.bound(program).map(|place| self.name(place).to_owned()),
            not_here,
            also: also.into_iter().map(OtherExecutor::new).collect(),
        }
    }
}

/// Returns the cost model of a place.
fn model(name: &str, core: Processor, CallCost { call_ns, access_ns }: CallCost) -> PlaceModel {
    let (round_trip_ns, start_ns) = match core {
        Processor::Client => (0, call_ns.max(1)),
        Processor::Nic | Processor::Host => (call_ns.max(1), 0),
    };
    // Only latency is priced, so byte counts are not needed.
    let (call_bytes, access_bytes) = (0, 0);
    PlaceModel {
        name: name.into(),
        core,
        round_trip_ns,
        start_ns,
        access_ns,
        call_bytes,
        access_bytes,
    }
}

/// Latencies and last answer of all calls.
struct PlacedRun {
    all: Latencies,
    /// Latencies by place.
    at: BTreeMap<usize, Latencies>,
    last: PlacedAnswer,
}

fn run(
    placed: &mut Placed,
    program: PlacedProgram,
    parameters: &[u8],
    arguments: &RmcCall,
) -> Result<PlacedRun, Failure> {
    let patience = arguments.timeout_ms.map_or(Duration::MAX, Duration::from_millis);
    let mut options = CallOptions::new().timeout(patience);
    options.accesses = arguments.place.accesses;
    let (mut all, mut at) = (Latencies::default(), BTreeMap::<_, Latencies>::new());
    let mut last = None;
    for _ in 0..arguments.times {
        let end = placed.call(program, parameters, options);
        let end = end.map_err(|error| match error.code {
            ErrorCode::TimedOut => Failure::of_call(ErrorCode::DeadlinePassed.into()),
            _ => Failure::of_call(error),
        })?;
        all.add(&[(end.took_ns, 1)]);
        at.entry(end.choice.place).or_default().add(&[(end.took_ns, 1)]);
        last = Some(end);
    }
    Ok(PlacedRun { all, at, last: last.ok_or_else(nothing_to_do)? })
}

/// Where calls ran and why.
#[derive(Debug, Serialize)]
pub(super) struct PlacementReport {
    places: Vec<PlaceReport>,
    last: LastCall,
    /// The place of the state that the program keeps between calls.
    #[serde(skip_serializing_if = "Option::is_none")]
    state_at: Option<String>,
    /// Why no call ran in this process.
    #[serde(skip_serializing_if = "Option::is_none")]
    not_here: Option<String>,
    /// The executors of `--also`.
    also: Vec<OtherExecutor>,
}

#[derive(Debug, Serialize)]
struct PlaceReport {
    place: String,
    #[serde(skip)]
    is_here: bool,
    calls: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    round_trip_ns: Option<Percentiles>,
}

/// The place of the last call.
#[derive(Debug, Serialize)]
struct LastCall {
    place: String,
    why: &'static str,
    expected_ns: u64,
    /// The best alternative.
    #[serde(skip_serializing_if = "Option::is_none")]
    other: Option<Alternative>,
    #[serde(skip)]
    words: &'static str,
}

#[derive(Debug, Serialize)]
struct Alternative {
    place: String,
    expected_ns: u64,
}

#[derive(Debug, Serialize)]
struct OtherExecutor {
    address: String,
    path: String,
    registered_ns: u64,
}

impl OtherExecutor {
    fn new(Registered { address, path, registered_ns, .. }: Registered) -> Self {
        Self { address, path, registered_ns }
    }
}

impl LastCall {
    fn new(choice: &Choice) -> Self {
        let (why, words) = match choice.why {
            ChoiceReason::Pinned => ("pinned", "pinned by --place"),
            ChoiceReason::StateThere => ("state_there", "the place of its state"),
            ChoiceReason::Only => ("only", "the only reachable place that can run it"),
            ChoiceReason::Model => ("model", "fastest in the measurements before the first call"),
            ChoiceReason::Measured => ("measured", "fastest in the calls so far"),
            ChoiceReason::Explored => ("explored", "to measure it again"),
        };
        // A cost of 1 is one microsecond.
        let other = choice.other.as_ref().map(|(name, cost)| Alternative {
            place: name.to_string(),
            expected_ns: (cost * 1e3) as u64,
        });
        Self {
            place: choice.name.to_string(),
            why,
            expected_ns: choice.expected_ns as u64,
            other,
            words,
        }
    }

    fn text(&self) -> String {
        let Self { place, expected_ns, words, .. } = self;
        let expected = time(*expected_ns as f64);
        let other = self.other.as_ref().map(|Alternative { place, expected_ns }| {
            format!("; {} {}", time(*expected_ns as f64), at(place))
        });
        let other = other.unwrap_or_default();
        format!("last call   {}, {words}: {expected} expected{other}", at(place))
    }
}

/// Formats a place: `here`, or `at` an executor.
fn at(place: &str) -> String {
    if place == HERE { HERE.to_owned() } else { format!("at {place}") }
}

impl PlaceReport {
    fn text(&self) -> String {
        let Self { place, is_here, calls, round_trip_ns } = self;
        let what = if *is_here { format!(", {A_REQUEST_EACH}") } else { String::new() };
        let at = at(place) + &what;
        let took = round_trip_ns.map(|Percentiles { p50_ns, p99_ns, .. }| match calls {
            1 => format!(": {}", time(p50_ns as f64)),
            _ => format!(": median {}, p99 {}", time(p50_ns as f64), time(p99_ns as f64)),
        });
        format!("ran         {} {at}{}", counted(*calls, "call"), took.unwrap_or_default())
    }
}

impl PlacementReport {
    /// Returns the lines of the executors of `--also`.
    pub(super) fn also_lines(&self) -> impl Iterator<Item = String> {
        self.also.iter().map(|one| format!("also        {}, {}", one.address, one.path))
    }

    pub(super) fn lines(&self) -> Vec<String> {
        let mut lines: Vec<_> = self.places.iter().map(PlaceReport::text).collect();
        lines.extend(self.not_here.iter().map(|why| format!("not here    {why}")));
        lines.push(self.last.text());
        lines.extend(self.state_at.iter().map(|place| {
            format!("state       at {place}, which runs all its calls: state does not move")
        }));
        lines
    }
}
