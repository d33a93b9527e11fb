//! A caller with several places: each call runs where it is expected to cost least.

use super::caller::{Answer, Caller, Runs, Ticket};
use super::placement::{Choice, Manner, PlaceModel, Placement, Prices};
use super::programs::Program;
use crate::{Error, ErrorCode};
use farside_fabric::Fabric;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// A program that every place of a [`Placed`] knows.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PlacedProgram(usize);

/// A call in progress at some place.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PlacedTicket(u64);

/// How a call ended, and where it ran and why.
#[derive(Clone, PartialEq, Debug)]
pub struct PlacedAnswer {
    /// Its answer.
    pub answer: Answer,
    /// Where and why.
    pub choice: Choice,
    /// From its beginning until its answer was found.
    pub took_ns: u64,
}

struct UnderWay {
    ticket: PlacedTicket,
    caller: usize,
    at: Ticket,
    choice: Choice,
    begun_ns: u64,
}

/// Calls the same programs at several places that reach the same memory: at the executor beside it, at
/// the one beside its adapter, and here.
///
/// *Guarantees* are those of [`Caller`] for each call; between calls at different places there is no
/// order. All executors must have the same memory under the same numbers, which is for whoever adds them
/// to see to.
pub struct Placed {
    /// Whose clock measures.
    fabric: Arc<dyn Fabric>,
    callers: Vec<Caller>,
    /// By place: which caller, and how it runs there.
    places: Vec<(usize, Runs)>,
    placement: Placement,
    /// By program: as each caller knows it.
    programs: Vec<Vec<Program>>,
    under_way: VecDeque<UnderWay>,
    tickets: u64,
}

impl std::fmt::Debug for Placed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Placed").field("placement", &self.placement).finish_non_exhaustive()
    }
}

impl Placed {
    /// One without places.
    pub fn new(fabric: &Arc<dyn Fabric>, prices: Prices, manner: Manner) -> Self {
        Self {
            fabric: Arc::clone(fabric),
            callers: Vec::new(),
            places: Vec::new(),
            placement: Placement::new(prices, manner),
            programs: Vec::new(),
            under_way: VecDeque::new(),
            tickets: 0,
        }
    }

    /// Adds the places that a caller has: its executor, or itself, or both. The number of the first.
    ///
    /// # Errors
    /// `BadForm` once there are programs, which this caller does not know.
    pub fn add(&mut self, caller: Caller, places: &[(Runs, PlaceModel)]) -> Result<usize, Error> {
        if !self.programs.is_empty() {
            let text = "places are added before programs, so that each has all";
            return Err(Error::with(ErrorCode::BadForm, text));
        }
        let first = self.places.len();
        for (runs, model) in places {
            self.placement.add(model.clone());
            self.places.push((self.callers.len(), *runs));
        }
        self.callers.push(caller);
        Ok(first)
    }

    /// Registers all programs of an object at each executor.
    ///
    /// *Blocks*, as [`Caller::register`].
    ///
    /// # Errors
    /// As [`Caller::register`] and [`Self::add_program`].
    pub fn register(&mut self, object: &[u8]) -> Result<Vec<PlacedProgram>, Error> {
        let all = self.callers.iter_mut().map(|caller| caller.register(object));
        let all = all.collect::<Result<Vec<_>, Error>>()?;
        let count = all.iter().map(Vec::len).min().unwrap_or(0);
        let each = |at: usize| all.iter().map(|programs| programs[at].clone()).collect();
        (0..count).map(|at| self.add_program(each(at))).collect()
    }

    /// Adds a program that was registered at each executor: as each of them has told it, in the order in
    /// which their callers were added.
    ///
    /// # Errors
    /// `BadForm` where these are not as many as there are callers or not the same program, or for one
    /// that keeps state between calls, which is at one place: call it by its [`Caller`].
    pub fn add_program(&mut self, known: Vec<Program>) -> Result<PlacedProgram, Error> {
        let bad = |text: &str| Err(Error::with(ErrorCode::BadForm, text));
        let same = known.windows(2).all(|two| two[0].name == two[1].name);
        if known.is_empty() || known.len() != self.callers.len() || !same {
            return bad("each executor tells of the same program");
        }
        if known.iter().any(|program| program.keeps_state) {
            return bad("it keeps state between calls, which is at one place");
        }
        self.programs.push(known);
        Ok(PlacedProgram(self.programs.len() - 1))
    }

    /// What chooses; to pin a place, to change prices, or to look.
    pub const fn placement(&mut self) -> &mut Placement {
        &mut self.placement
    }

    /// Begins a call that will make about so many accesses, where it is expected to cost least; `None`
    /// while as many are in progress there as may be.
    ///
    /// # Errors
    /// As [`Caller::invoke`] and [`Caller::invoke_here`]; `PeerLost` where no place is in reach,
    /// `NoProgram` for one of another `Placed`.
    pub fn begin(
        &mut self,
        program: PlacedProgram,
        parameters: &[u8],
        hint: Option<u64>,
    ) -> Result<Option<PlacedTicket>, Error> {
        let known = self.programs.get(program.0).ok_or(ErrorCode::NoProgram)?;
        for (place, (caller, _)) in self.places.iter().enumerate() {
            self.placement.set_in_reach(place, self.callers[*caller].is_connected());
        }
        let Some(choice) = self.placement.choose(program.0 as u64, hint) else {
            return Err(Error::with(ErrorCode::PeerLost, "no place of this call is in reach"));
        };
        let (caller, runs) = self.places[choice.place];
        let begun_ns = self.fabric.time_ns();
        let begun = self.callers[caller].invoke_at(runs, &known[caller], parameters)?;
        let Some(at) = begun else { return Ok(None) };
        self.tickets += 1;
        let ticket = PlacedTicket(self.tickets);
        self.under_way.push_back(UnderWay { ticket, caller, at, choice, begun_ns });
        Ok(Some(ticket))
    }

    /// Turns all callers. Never blocks.
    ///
    /// # Errors
    /// Why the last of them is over; while one is not, the others are not told.
    pub fn turn(&mut self) -> Result<(), Error> {
        let mut over = None;
        let mut living = 0;
        for caller in &mut self.callers {
            match caller.turn() {
                Ok(()) => living += 1,
                Err(error) => over = Some(error),
            }
        }
        match over {
            Some(error) if living == 0 => Err(error),
            _ => Ok(()),
        }
    }

    /// How a call ended, if it has; asked for once each.
    pub fn poll(&mut self, ticket: PlacedTicket) -> Option<Result<PlacedAnswer, Error>> {
        let at = self.under_way.iter().position(|one| one.ticket == ticket)?;
        let one = &self.under_way[at];
        let end = self.callers[one.caller].poll(one.at)?;
        let one = self.under_way.remove(at)?;
        Some(self.ended(one, end))
    }

    fn ended(&mut self, one: UnderWay, end: Result<Answer, Error>) -> Result<PlacedAnswer, Error> {
        let answer = end?;
        let took_ns = self.fabric.time_ns().saturating_sub(one.begun_ns);
        self.placement.ended(&one.choice, took_ns);
        Ok(PlacedAnswer { answer, choice: one.choice, took_ns })
    }

    /// Runs a program where it is expected to cost least and waits for its answer.
    ///
    /// *Blocks*, as [`Caller::wait`].
    ///
    /// # Errors
    /// As [`Self::begin`] and [`Caller::wait`]; `OverQuota` where as many calls are in progress there as
    /// may be.
    pub fn call(
        &mut self,
        program: PlacedProgram,
        parameters: &[u8],
        hint: Option<u64>,
        timeout: Duration,
    ) -> Result<PlacedAnswer, Error> {
        // What is over is told with the call itself.
        let _ = self.turn();
        let Some(ticket) = self.begin(program, parameters, hint)? else {
            let text = "as many calls are in progress there as may be: poll them first";
            return Err(Error::with(ErrorCode::OverQuota, text));
        };
        let Some(at) = self.under_way.iter().position(|one| one.ticket == ticket) else {
            return Err(ErrorCode::NoProgram.into());
        };
        let (caller, inner) = (self.under_way[at].caller, self.under_way[at].at);
        let end = self.callers[caller].wait(inner, timeout);
        self.callers[caller].forget(inner);
        match self.under_way.remove(at) {
            Some(one) => self.ended(one, end),
            None => Err(ErrorCode::NoProgram.into()),
        }
    }
}
