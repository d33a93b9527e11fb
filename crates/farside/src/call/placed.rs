//! A caller with several places: each call runs where it is expected to cost least, or where its state is.

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

/// A program as this end knows it.
struct Known {
    /// As each caller knows it.
    at: Vec<Program>,
    state: State,
}

/// Where the state of a program is, by the number of its place.
#[derive(Clone, Copy)]
enum State {
    /// It keeps none.
    None,
    /// Nowhere yet: it will be where the first call runs.
    Open,
    /// There, as the user has said; no call has begun.
    Told(usize),
    /// There, since a call has begun.
    Begun(usize),
}

impl State {
    const fn place(self) -> Option<usize> {
        match self {
            Self::None | Self::Open => None,
            Self::Told(place) | Self::Begun(place) => Some(place),
        }
    }

    /// A call has begun at a place.
    const fn begun(self, place: usize) -> Self {
        match self {
            Self::None => Self::None,
            Self::Open | Self::Told(_) | Self::Begun(_) => Self::Begun(place),
        }
    }

    const fn is_kept(self) -> bool {
        !matches!(self, Self::None)
    }
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
///
/// *State.* A program that keeps state between calls is bound to one place, an executor's, which its first
/// call chooses as any call does, or which [`Self::bind`] has said before. All later calls run there,
/// whatever costs less elsewhere by then; while it is out of reach they fail, since none ever runs where
/// the state is not, and a place that is lost for good takes its state along. What each caller has of
/// its own, and what callers share, is that of this executor: those that shall share state bind its
/// program to the same one. Every other executor that the program is registered at reserves room for its
/// state too, which stays unused.
pub struct Placed {
    /// Whose clock measures.
    fabric: Arc<dyn Fabric>,
    callers: Vec<Caller>,
    /// By place: which caller, and how it runs there.
    places: Vec<(usize, Runs)>,
    placement: Placement,
    programs: Vec<Known>,
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
    /// which their callers were added. One that was added before is the same again, wherever its state is.
    ///
    /// # Errors
    /// `BadForm` where these are not as many as there are callers or not the same program, or for one
    /// that keeps state between calls while no place is an executor's, which could keep it.
    pub fn add_program(&mut self, known: Vec<Program>) -> Result<PlacedProgram, Error> {
        let bad = |text: &str| Err(Error::with(ErrorCode::BadForm, text));
        let same = known.windows(2).all(|two| two[0].name == two[1].name);
        if known.is_empty() || known.len() != self.callers.len() || !same {
            return bad("each executor tells of the same program");
        }
        if let Some(before) = self.programs.iter().position(|one| one.at == known) {
            return Ok(PlacedProgram(before));
        }
        let keeps_state = known.iter().any(|program| program.keeps_state);
        if keeps_state && !self.places.iter().any(|(_, runs)| *runs == Runs::There) {
            return bad(
                "it keeps state between calls, which only an executor can: add such a place",
            );
        }
        let state = if keeps_state { State::Open } else { State::None };
        self.programs.push(Known { at: known, state });
        Ok(PlacedProgram(self.programs.len() - 1))
    }

    /// Says where a program's state shall be, before its first call; all its calls run there. May be said
    /// anew until a call has begun, and again at any time if it says the same. Sends nothing.
    ///
    /// # Errors
    /// `NoProgram` for one of another `Placed`. `BadForm` for one that keeps no state, for which a place
    /// can be pinned; for a place that there is not, or that runs calls here, which keeps no state; and
    /// for another place than the one where a call has begun, since state does not move.
    pub fn bind(&mut self, program: PlacedProgram, place: usize) -> Result<(), Error> {
        let bad = |text: &str| Err(Error::with(ErrorCode::BadForm, text));
        let known = self.programs.get_mut(program.0).ok_or(ErrorCode::NoProgram)?;
        let runs = self.places.get(place).map(|(_, runs)| *runs);
        match (known.state, runs) {
            (State::None, _) => bad("it keeps no state: pin a place instead"),
            (_, None) => bad("there is no place of this number"),
            (_, Some(Runs::Here)) => {
                bad("calls that run here keep no state: bind it to an executor's place")
            }
            (State::Open | State::Told(_), Some(Runs::There)) => {
                known.state = State::Told(place);
                Ok(())
            }
            (State::Begun(at), Some(Runs::There)) if at == place => Ok(()),
            (State::Begun(at), Some(Runs::There)) => {
                let name = name(&self.placement, at);
                bad(&format!("its state is at `{name}` since its first call, and does not move"))
            }
        }
    }

    /// The place where a program's state is, or will be as [`Self::bind`] has said; `None` for one that
    /// keeps none, or whose first call is still to choose it, or of another `Placed`.
    pub fn bound(&self, program: PlacedProgram) -> Option<usize> {
        self.programs.get(program.0).and_then(|known| known.state.place())
    }

    /// What chooses; to pin a place, to change prices, or to look.
    pub const fn placement(&mut self) -> &mut Placement {
        &mut self.placement
    }

    /// Begins a call that will make about so many accesses, where it is expected to cost least, or where
    /// its program's state is; `None` while as many are in progress there as may be. The first call of a
    /// program that keeps state binds it to its place once it has begun, however it ends.
    ///
    /// *Cost*: what the call itself costs, and a look at each place. Nothing is allocated but for the first
    /// call of a program and size class.
    ///
    /// # Errors
    /// As [`Caller::invoke`] and [`Caller::invoke_here`]; `NoProgram` for one of another `Placed`.
    /// `PeerLost` where no place that can run it is in reach, or the one that has its state is not: it
    /// has not run. While the executor may come back, so may the call be tried again. `BadForm` where the
    /// first call would keep state at a pinned place that cannot: bind its program to an executor's.
    pub fn begin(
        &mut self,
        program: PlacedProgram,
        parameters: &[u8],
        hint: Option<u64>,
    ) -> Result<Option<PlacedTicket>, Error> {
        let known = self.programs.get_mut(program.0).ok_or(ErrorCode::NoProgram)?;
        for (place, (caller, _)) in self.places.iter().enumerate() {
            self.placement.set_in_reach(place, self.callers[*caller].is_connected());
        }
        let (places, state) = (&self.places, known.state);
        let can_run = |place: usize| match places.get(place) {
            Some((_, Runs::There)) => true,
            Some((_, Runs::Here)) => !state.is_kept(),
            None => false,
        };
        let number = program.0 as u64;
        let chosen = self.placement.choose_among(number, hint, &can_run, state.place());
        let Some(choice) = chosen else { return Err(self.not_chosen(state)) };
        let (caller, runs) = self.places[choice.place];
        let begun_ns = self.fabric.time_ns();
        let begun = self.callers[caller].invoke_at(runs, &known.at[caller], parameters)?;
        let Some(at) = begun else { return Ok(None) };
        known.state = state.begun(choice.place);
        self.tickets += 1;
        let ticket = PlacedTicket(self.tickets);
        self.under_way.push_back(UnderWay { ticket, caller, at, choice, begun_ns });
        Ok(Some(ticket))
    }

    /// Why no place was chosen for a call of a program whose state is there.
    fn not_chosen(&self, state: State) -> Error {
        if let Some(at) = state.place() {
            let (name, caller) = (name(&self.placement, at), &self.callers[self.places[at].0]);
            let Error { detail, .. } = caller.over();
            let text = format!(
                "its state is at `{name}`, which is out of reach, so it has not run: {detail}"
            );
            return Error::with(ErrorCode::PeerLost, text);
        }
        match self.placement.pinned().filter(|place| *place < self.places.len()) {
            Some(pinned) => {
                let name = name(&self.placement, pinned);
                let text = format!(
                    "it keeps state between calls, which `{name}` cannot, where calls are pinned: bind \
                     its program to an executor's place, or pin one"
                );
                Error::with(ErrorCode::BadForm, text)
            }
            None => Error::with(ErrorCode::PeerLost, "no place that can run it is in reach"),
        }
    }

    /// Whether one of the callers wants to be turned again at once: [`Caller::is_ready`].
    pub fn is_ready(&self) -> bool {
        self.callers.iter().any(Caller::is_ready)
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

    /// Runs a program where [`Self::begin`] does and waits for its answer.
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

/// What people call a place.
fn name(placement: &Placement, place: usize) -> &str {
    placement.places().get(place).map_or("?", |model| &model.name)
}
