//! Calls with several places: each runs where it is expected to take least, and where and why is shown.

use super::call::{A_REQUEST_EACH, Connection, Ended, Registered, connect, failed, nothing_to_do};
use super::check::counted;
use super::probe::{Probe, Takes, readable};
use super::{NAME, membership, source};
use crate::arguments::{PlaceName, RmcCall};
use crate::choice::{self, Chosen};
use crate::failure::Failure;
use crate::latency::{Latencies, Percentiles};
use crate::output::time;
use farside::ErrorCode;
use farside::call::{
    CallOptions, Caller, CallerOptions, Choice, ChoiceReason, LearningOptions, PlaceModel, Placed,
    PlacedAnswer, PlacedProgram, Prices, Processor, Site,
};
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// What the place in this process is called.
const HERE: &str = "here";

/// Where calls run, as it was told.
pub(super) enum Told {
    /// All at one place of the executor that the command names.
    One(Site),
    Several(Several),
}

/// Several places.
pub(super) struct Several {
    /// The executor that the command names, and the others.
    ends: Vec<End>,
    /// The one where all calls are to run.
    pinned: Option<Pinned>,
}

/// An executor.
struct End {
    /// As it was told.
    name: String,
    address: String,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Pinned {
    Here,
    /// At the executor of this number.
    At(usize),
}

/// Reads where calls are to run.
pub(super) fn told(arguments: &RmcCall) -> Result<Told, Failure> {
    let place = &arguments.place;
    let choice = &arguments.caller.choice;
    let full = |text: &str| choice::address_to_call(choice, text, NAME, &arguments.to);
    let mut ends: Vec<End> = Vec::new();
    for name in [&arguments.to].into_iter().chain(&place.also) {
        let address = full(name)?;
        if ends.iter().any(|end| end.address == address) {
            return Err(Failure::usage(format!("--also {name}: it is a place already")));
        }
        ends.push(End { name: name.clone(), address });
    }
    let pinned = match place.told() {
        PlaceName::Choose => None,
        PlaceName::Here => Some(Pinned::Here),
        PlaceName::There => Some(Pinned::At(0)),
        PlaceName::At(name) => {
            let address = full(&name).unwrap_or_else(|_| name.clone());
            let at = ends.iter().position(|end| end.address == address);
            Some(Pinned::At(at.ok_or_else(|| no_place(&name, &ends))?))
        }
    };
    if place.accesses.is_some() && pinned.is_some() {
        let text = "--accesses is for choosing: say --place choose, or --also alone";
        return Err(Failure::usage(text));
    }
    Ok(match (pinned, ends.len()) {
        (Some(Pinned::Here), 1) => Told::One(Site::Local),
        (Some(Pinned::At(_)), 1) => Told::One(Site::Remote),
        _ => Told::Several(Several { ends, pinned }),
    })
}

fn no_place(name: &str, ends: &[End]) -> Failure {
    let also = ends.iter().skip(1).map(|end| format!(", {}", end.name)).collect::<String>();
    let there = ends.first().map_or("", |end| &end.name);
    Failure::usage(format!(
        "--place {name}: no such place; there are choose, here, there ({there}){also}. Another executor \
         becomes one by --also {name}"
    ))
}

/// Calls again and again, each wherever it is expected to take least or all where it was told.
pub(super) fn call(
    Several { ends, pinned }: Several,
    arguments: &RmcCall,
    parameters: &[u8],
) -> Result<Ended, Failure> {
    let chosen = choice::caller(&arguments.caller.choice, &arguments.to, NAME)?;
    let (mut connections, measured) = connect_all(&chosen, &ends, arguments)?;
    let programs = connections.iter_mut().map(|connection| connection.program(arguments));
    let programs = programs.collect::<Result<Vec<_>, _>>()?;
    let node = membership::joined(&arguments.member)?;
    let by = measured.here_by;
    let (caller, program) = (&mut connections[by].caller, &programs[by]);
    node.iter().try_for_each(|node| caller.share(node)).map_err(failed)?;
    let not_here = match (caller.check_local(program), pinned) {
        (Ok(()), _) => None,
        // One that notifies runs here where it is told to.
        (Err(_), Some(Pinned::Here)) if !program.keeps_state => None,
        (Err(error), Some(Pinned::Here)) => return Err(failed(error)),
        (Err(error), _) => Some(source::plain(&error.detail)),
    };
    let (name, keeps_state) = (source::plain(&program.name), program.keeps_state);
    let (callers, mut registered): (Vec<_>, Vec<_>) =
        connections.into_iter().map(|one| (one.caller, one.registered)).unzip();
    let mut places = Places::new(&chosen, &ends);
    places.add(callers, &measured, not_here.is_none())?;
    let program = places.placed.add_program(programs).map_err(failed)?;
    places.pin(program, keeps_state, pinned)?;
    let ran = run(&mut places.placed, program, parameters, arguments)?;
    let also = registered.split_off(1);
    let placing = places.shown(program, &ran, not_here, also);
    let runs = places.runs(ran.last.choice.place);
    drop(places);
    if let Some(node) = node {
        // Lines that were not taken back in time are so when it has left.
        let _ = node.leave();
    }
    Ok(Ended {
        registered: registered.remove(0),
        program: name,
        site: runs,
        answer: ran.last.answer,
        latencies: ran.all,
        placing: Some(placing),
    })
}

/// What was measured before the first call.
struct Measured {
    /// At each executor.
    there: Vec<Takes>,
    /// In this process, where an executor lends memory that it reaches.
    here: Option<Takes>,
    /// The executor whose memory runs here work on.
    here_by: usize,
}

/// Connects to all executors, measures what calls take there and here, and registers the programs.
fn connect_all(
    chosen: &Chosen,
    ends: &[End],
    arguments: &RmcCall,
) -> Result<(Vec<Connection>, Measured), Failure> {
    let contents = source::contents(&arguments.of.object)?;
    let slots = CallerOptions::default().slots;
    let callers =
        ends.iter().map(|end| connect(&chosen.fabric, &end.address, &arguments.caller, slots));
    let mut callers = callers.collect::<Result<Vec<_>, _>>()?;
    let measured = measure(&mut callers, ends)?;
    let connections = callers.into_iter().zip(ends).map(|(caller, end)| {
        let chosen = Chosen {
            fabric: Arc::clone(&chosen.fabric),
            address: end.address.clone(),
            security: chosen.security.clone(),
        };
        Connection::register(caller, &chosen, &arguments.of.object, &contents)
    });
    Ok((connections.collect::<Result<_, _>>()?, measured))
}

/// Refuses executors whose memory is not the same, and measures all places.
fn measure(callers: &mut [Caller], ends: &[End]) -> Result<Measured, Failure> {
    let mut owners = callers.iter().enumerate().filter(|(_, caller)| caller.regions().count() > 0);
    let owner = owners.next().map(|(at, _)| at);
    if let (Some(one), Some((other, _))) = (owner, owners.next()) {
        let (one, other) = (&ends[one].name, &ends[other].name);
        return Err(Failure::usage(format!(
            "{one} and {other} have different memory: each lends its own. Places work on the same memory, \
             as an executor of `farside rmc serve --beside {one}` does"
        )));
    }
    let regions = owner.map(|at| readable(&callers[at])).unwrap_or_default();
    let region = regions.first().copied();
    let (mut there, mut here) = (Vec::new(), None);
    for (at, (caller, end)) in callers.iter_mut().zip(ends).enumerate() {
        let mut probe = Probe::register(caller, &end.name)?;
        match owner {
            Some(owner) if owner == at && region.is_some() => {
                here = Some(probe.measure(Site::Local, region)?);
            }
            Some(owner) if owner != at => probe.check(&regions, &ends[owner].name)?,
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
    ends: &'a [End],
    /// The number of each executor's place.
    there: Vec<usize>,
    /// The number of the place in this process.
    here: Option<usize>,
}

impl<'a> Places<'a> {
    fn new(chosen: &Chosen, ends: &'a [End]) -> Self {
        let placed = Placed::new(&chosen.fabric, Prices::LATENCY, LearningOptions::default());
        Self { placed, ends, there: Vec::new(), here: None }
    }

    fn add(
        &mut self,
        callers: Vec<Caller>,
        measured: &Measured,
        runs_here: bool,
    ) -> Result<(), Failure> {
        for (at, (caller, takes)) in callers.into_iter().zip(&measured.there).enumerate() {
            let mut places =
                vec![(Site::Remote, model(&self.ends[at].name, Processor::Host, *takes))];
            let is_here = runs_here && measured.here_by == at;
            // What was not measured begins as cheap as can be, and so is tried.
            let takes = measured.here.unwrap_or(Takes { call_ns: 0, access_ns: 0 });
            places.extend(is_here.then(|| (Site::Local, model(HERE, Processor::Client, takes))));
            let first = self.placed.add(caller, &places).map_err(failed)?;
            self.there.push(first);
            self.here = self.here.or(is_here.then_some(first + 1));
        }
        Ok(())
    }

    /// Makes all calls run where it was told.
    fn pin(
        &mut self,
        program: PlacedProgram,
        keeps_state: bool,
        pinned: Option<Pinned>,
    ) -> Result<(), Failure> {
        let place = match pinned {
            None => return Ok(()),
            Some(Pinned::Here) => self.here,
            Some(Pinned::At(end)) => Some(self.there[end]),
        };
        match place {
            Some(place) if keeps_state => self.placed.bind(program, place).map_err(failed),
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
        let end = self.there.iter().position(|at| *at == place);
        end.map_or(HERE, |end| &self.ends[end].name)
    }

    /// What happened, place by place: first here, then in the order in which they were told.
    fn shown(
        &self,
        program: PlacedProgram,
        ran: &Ran,
        not_here: Option<String>,
        also: Vec<Registered>,
    ) -> Placing {
        let places = self.here.iter().chain(&self.there).map(|place| {
            let latencies = ran.at.get(place);
            Place {
                place: self.name(*place).to_owned(),
                is_here: self.here == Some(*place),
                calls: latencies.map_or(0, Latencies::operations),
                round_trip_ns: latencies.map(Latencies::percentiles),
            }
        });
        Placing {
            places: places.collect(),
            last: Last::new(&ran.last.choice),
            state_at: self.placed.bound(program).map(|place| self.name(place).to_owned()),
            not_here,
            also: also.into_iter().map(Also::new).collect(),
        }
    }
}

/// What a call is taken to take at a place.
fn model(name: &str, core: Processor, Takes { call_ns, access_ns }: Takes) -> PlaceModel {
    let (round_trip_ns, start_ns) = match core {
        Processor::Client => (0, call_ns.max(1)),
        Processor::Nic | Processor::Host => (call_ns.max(1), 0),
    };
    // Latency alone counts here, so that bytes need not be told.
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

/// What calls came to.
struct Ran {
    all: Latencies,
    /// By place.
    at: BTreeMap<usize, Latencies>,
    last: PlacedAnswer,
}

fn run(
    placed: &mut Placed,
    program: PlacedProgram,
    parameters: &[u8],
    arguments: &RmcCall,
) -> Result<Ran, Failure> {
    let patience = arguments.timeout_ms.map_or(Duration::MAX, Duration::from_millis);
    let mut options = CallOptions::new().timeout(patience);
    options.accesses = arguments.place.accesses;
    let (mut all, mut at) = (Latencies::default(), BTreeMap::<_, Latencies>::new());
    let mut last = None;
    for _ in 0..arguments.times {
        let end = placed.call(program, parameters, options);
        let end = end.map_err(|error| match error.code {
            ErrorCode::TimedOut => failed(ErrorCode::DeadlinePassed.into()),
            _ => failed(error),
        })?;
        all.add(&[(end.took_ns, 1)]);
        at.entry(end.choice.place).or_default().add(&[(end.took_ns, 1)]);
        last = Some(end);
    }
    Ok(Ran { all, at, last: last.ok_or_else(nothing_to_do)? })
}

/// Where calls ran and why.
#[derive(Debug, Serialize)]
pub(super) struct Placing {
    places: Vec<Place>,
    last: Last,
    /// The place of what the program keeps between calls.
    #[serde(skip_serializing_if = "Option::is_none")]
    state_at: Option<String>,
    /// Why none ran in this process.
    #[serde(skip_serializing_if = "Option::is_none")]
    not_here: Option<String>,
    /// The executors of `--also`.
    also: Vec<Also>,
}

#[derive(Debug, Serialize)]
struct Place {
    place: String,
    #[serde(skip)]
    is_here: bool,
    calls: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    round_trip_ns: Option<Percentiles>,
}

/// The place of the last call.
#[derive(Debug, Serialize)]
struct Last {
    place: String,
    why: &'static str,
    expected_ns: u64,
    /// The best of the others.
    #[serde(skip_serializing_if = "Option::is_none")]
    other: Option<Other>,
    #[serde(skip)]
    words: &'static str,
}

#[derive(Debug, Serialize)]
struct Other {
    place: String,
    expected_ns: u64,
}

#[derive(Debug, Serialize)]
struct Also {
    address: String,
    path: String,
    registered_ns: u64,
}

impl Also {
    fn new(Registered { address, path, registered_ns, .. }: Registered) -> Self {
        Self { address, path, registered_ns }
    }
}

impl Last {
    fn new(choice: &Choice) -> Self {
        let (why, words) = match choice.why {
            ChoiceReason::Pinned => ("pinned", "as --place says"),
            ChoiceReason::StateThere => ("state_there", "where its state is"),
            ChoiceReason::Only => ("only", "since no other place in reach can run it"),
            ChoiceReason::Model => {
                ("model", "which takes least by what was measured before the first call")
            }
            ChoiceReason::Measured => ("measured", "which takes least by what calls took"),
            ChoiceReason::Explored => ("explored", "to know what it takes there by now"),
        };
        // A microsecond costs one.
        let other = choice.other.as_ref().map(|(name, cost)| Other {
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
        let other = self.other.as_ref().map(|Other { place, expected_ns }| {
            format!("; {} {}", time(*expected_ns as f64), at(place))
        });
        let other = other.unwrap_or_default();
        format!("last call   {}, {words}: {expected} expected{other}", at(place))
    }
}

/// A place as the end of a sentence.
fn at(place: &str) -> String {
    if place == HERE { HERE.to_owned() } else { format!("at {place}") }
}

impl Place {
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

impl Placing {
    /// The other executors.
    pub(super) fn also_lines(&self) -> impl Iterator<Item = String> {
        self.also.iter().map(|one| format!("also        {}, {}", one.address, one.path))
    }

    pub(super) fn lines(&self) -> Vec<String> {
        let mut lines: Vec<_> = self.places.iter().map(Place::text).collect();
        lines.extend(self.not_here.iter().map(|why| format!("not here    {why}")));
        lines.push(self.last.text());
        lines.extend(self.state_at.iter().map(|place| {
            format!("state       at {place}, where all its calls run: state does not move")
        }));
        lines
    }
}
