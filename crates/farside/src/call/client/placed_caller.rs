//! A client with several places: each call runs at the place with the least expected cost, or at its state.

use super::{CallAnswer, CallOptions, Caller, Site, Ticket};
use crate::call::scheduling::place_model::{PlaceModel, Prices};
use crate::call::scheduling::placement_policy::{Choice, LearningOptions, Placement};
use crate::call::transport::program_list::Program;
use crate::{Error, ErrorCode};
use farside_fabric::Fabric;
use std::collections::VecDeque;
use std::sync::Arc;

/// A program registered at every place of a [`Placed`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PlacedProgram(usize);

/// Handle of a call in progress at some place.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PlacedTicket(u64);

/// The answer to a call, with the place where it ran and why.
#[derive(Clone, PartialEq, Debug)]
pub struct PlacedAnswer {
    /// Its answer.
    pub answer: CallAnswer,
    /// The place and the reason.
    pub choice: Choice,
    /// From the beginning of the call until its answer was polled.
    pub took_ns: u64,
}

/// A program of a [`Placed`].
struct PlacedEntry {
    /// As registered by each caller.
    at: Vec<Program>,
    state: StateBinding,
}

/// The place of a program's state.
#[derive(Clone, Copy)]
enum StateBinding {
    /// The program keeps no state.
    None,
    /// Undecided: the place where its first call runs.
    Open,
    /// Bound by the user; no call has begun.
    Told(usize),
    /// Bound, and a call has begun.
    Begun(usize),
}

impl StateBinding {
    const fn place(self) -> Option<usize> {
        match self {
            Self::None | Self::Open => None,
            Self::Told(place) | Self::Begun(place) => Some(place),
        }
    }

    /// Returns the state after a call has begun at a place.
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

struct InFlight {
    ticket: PlacedTicket,
    caller: usize,
    at: Ticket,
    choice: Choice,
    begun_ns: u64,
}

/// Calls the same programs at several places with access to the same memory. Places are the memory's executor, the
/// executor next to its adapter, and the caller.
///
/// *Guarantees* are those of [`Caller`] for each call; between calls at different places there is no order. All
/// executors must have the same memory under the same numbers; this is not checked.
///
/// *State.* A program with state is bound to one executor's place, by [`Self::bind`] or by its first call, which is
/// placed like any other. All later calls run there regardless of cost. While the place is out of reach they fail,
/// as a call never runs away from its state; a place that is lost for good loses its state. State per caller and
/// shared state are those of this executor, so programs that share state must bind to the same place. Every other
/// executor at which the program is registered reserves memory for its state too, unused.
pub struct Placed {
    /// Provides the clock for latencies.
    fabric: Arc<dyn Fabric>,
    callers: Vec<Caller>,
    /// By place: the caller, and the site of its calls.
    places: Vec<(usize, Site)>,
    placement: Placement,
    programs: Vec<PlacedEntry>,
    in_flight: VecDeque<InFlight>,
    tickets: u64,
}

impl std::fmt::Debug for Placed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Placed").field("placement", &self.placement).finish_non_exhaustive()
    }
}

impl Placed {
    /// Returns a [`Placed`] without places.
    pub fn new(fabric: &Arc<dyn Fabric>, prices: Prices, options: LearningOptions) -> Self {
        Self {
            fabric: Arc::clone(fabric),
            callers: Vec::new(),
            places: Vec::new(),
            placement: Placement::new(prices, options),
            programs: Vec::new(),
            in_flight: VecDeque::new(),
            tickets: 0,
        }
    }

    /// Adds the places of a caller: its executor, itself, or both. Returns the number of the first.
    ///
    /// # Errors
    /// `BadForm` once there are programs, since this caller has not registered them.
    pub fn add(&mut self, caller: Caller, places: &[(Site, PlaceModel)]) -> Result<usize, Error> {
        if !self.programs.is_empty() {
            let text = "places are added before programs, so that each has all";
            return Err(Error::with(ErrorCode::BadForm, text));
        }
        let first = self.places.len();
        for (site, model) in places {
            self.placement.add(model.clone());
            self.places.push((self.callers.len(), *site));
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

    /// Adds a program that was registered at each executor, as returned by the callers in the order of
    /// [`Self::add`]. A program added before keeps its identity and its state.
    ///
    /// # Errors
    /// `BadForm` if their number differs from that of the callers, if they are not the same program, or if the
    /// program keeps state and no place is an executor's.
    pub fn add_program(&mut self, known: Vec<Program>) -> Result<PlacedProgram, Error> {
        let bad = |text: &str| Err(Error::with(ErrorCode::BadForm, text));
        let same = known.windows(2).all(|two| two[0].name == two[1].name);
        if known.is_empty() || known.len() != self.callers.len() || !same {
            return bad("the programs must be the same one, registered once at each executor");
        }
        if let Some(before) = self.programs.iter().position(|one| one.at == known) {
            return Ok(PlacedProgram(before));
        }
        let keeps_state = known.iter().any(|program| program.keeps_state);
        if keeps_state && !self.places.iter().any(|(_, site)| *site == Site::Remote) {
            return bad(
                "it keeps state between calls, which only an executor can: add such a place",
            );
        }
        let state = if keeps_state { StateBinding::Open } else { StateBinding::None };
        self.programs.push(PlacedEntry { at: known, state });
        Ok(PlacedProgram(self.programs.len() - 1))
    }

    /// Binds a program's state to a place, before its first call. May be changed until a call has begun; repeating
    /// the same place is always permitted. Sends nothing.
    ///
    /// # Errors
    /// `NoProgram` for a program of another `Placed`. `BadForm` for a program without state, for which a place can
    /// be pinned; for an unknown place or a local one, which keeps no state; and for another place once a call has
    /// begun, since state does not move.
    pub fn bind(&mut self, program: PlacedProgram, place: usize) -> Result<(), Error> {
        let bad = |text: &str| Err(Error::with(ErrorCode::BadForm, text));
        let known = self.programs.get_mut(program.0).ok_or(ErrorCode::NoProgram)?;
        let site = self.places.get(place).map(|(_, site)| *site);
        match (known.state, site) {
            (StateBinding::None, _) => bad("it keeps no state: pin a place instead"),
            (_, None) => bad("there is no place of this number"),
            (_, Some(Site::Local)) => {
                bad("local runs keep no state: bind it to an executor's place")
            }
            (StateBinding::Open | StateBinding::Told(_), Some(Site::Remote)) => {
                known.state = StateBinding::Told(place);
                Ok(())
            }
            (StateBinding::Begun(at), Some(Site::Remote)) if at == place => Ok(()),
            (StateBinding::Begun(at), Some(Site::Remote)) => {
                let name = name(&self.placement, at);
                bad(&format!("its state is at `{name}` since its first call, and does not move"))
            }
        }
    }

    /// Returns the place to which a program's state is bound; `None` if it keeps none, is not bound yet, or is of
    /// another `Placed`.
    pub fn bound(&self, program: PlacedProgram) -> Option<usize> {
        self.programs.get(program.0).and_then(|known| known.state.place())
    }

    /// Returns the chooser, to pin a place, change prices or inspect it.
    pub const fn placement(&mut self) -> &mut Placement {
        &mut self.placement
    }

    /// Begins a call at the place with the least expected cost, or at its state; `None` if all slots there are in
    /// use. [`CallOptions::accesses`] helps to predict the cost; [`CallOptions::site`] has no effect. The first call
    /// of a program with state binds it once it has begun, however it ends.
    ///
    /// *Cost*: that of the call, and one evaluation per place. Allocates only for the first call of a program and
    /// size class.
    ///
    /// # Errors
    /// As [`Caller::invoke`]; `NoProgram` for a program of another `Placed`. `PeerLost`
    /// if no place that can run it is in reach, or the place of its state is not: it has not run, and may be
    /// retried if the executor returns. `BadForm` if the first call of a program with state is pinned to a place
    /// that keeps none: bind it to an executor's place.
    pub fn begin(
        &mut self,
        program: PlacedProgram,
        parameters: &[u8],
        options: CallOptions,
    ) -> Result<Option<PlacedTicket>, Error> {
        let known = self.programs.get_mut(program.0).ok_or(ErrorCode::NoProgram)?;
        for (place, (caller, _)) in self.places.iter().enumerate() {
            self.placement.set_in_reach(place, self.callers[*caller].is_connected());
        }
        let (places, state) = (&self.places, known.state);
        let can_run = |place: usize| match places.get(place) {
            Some((_, Site::Remote)) => true,
            Some((_, Site::Local)) => !state.is_kept(),
            None => false,
        };
        let number = program.0 as u64;
        let chosen = self.placement.choose_among(number, options.accesses, &can_run, state.place());
        let Some(choice) = chosen else { return Err(self.not_chosen(state)) };
        let (caller, site) = self.places[choice.place];
        let begun_ns = self.fabric.time_ns();
        let begun =
            self.callers[caller].invoke(&known.at[caller], parameters, options.site(site))?;
        let Some(at) = begun else { return Ok(None) };
        known.state = state.begun(choice.place);
        self.tickets += 1;
        let ticket = PlacedTicket(self.tickets);
        self.in_flight.push_back(InFlight { ticket, caller, at, choice, begun_ns });
        Ok(Some(ticket))
    }

    /// Returns why no place was chosen for a call of a program with this state.
    fn not_chosen(&self, state: StateBinding) -> Error {
        if let Some(at) = state.place() {
            let (name, caller) = (name(&self.placement, at), &self.callers[self.places[at].0]);
            let Error { detail, .. } = caller.unreachable();
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

    /// Whether one of the callers should be polled again at once: [`Caller::is_ready`].
    pub fn is_ready(&self) -> bool {
        self.callers.iter().any(Caller::is_ready)
    }

    /// Polls all callers. Never blocks.
    ///
    /// # Errors
    /// Why the last of them is closed; while another one is open, errors are not reported.
    pub fn progress(&mut self) -> Result<(), Error> {
        let mut over = None;
        let mut living = 0;
        for caller in &mut self.callers {
            match caller.progress() {
                Ok(()) => living += 1,
                Err(error) => over = Some(error),
            }
        }
        match over {
            Some(error) if living == 0 => Err(error),
            _ => Ok(()),
        }
    }

    /// Returns the outcome of a call that has ended, once.
    pub fn poll(&mut self, ticket: PlacedTicket) -> Option<Result<PlacedAnswer, Error>> {
        let at = self.in_flight.iter().position(|one| one.ticket == ticket)?;
        let one = &self.in_flight[at];
        let end = self.callers[one.caller].poll(one.at)?;
        let one = self.in_flight.remove(at)?;
        Some(self.ended(one, end))
    }

    fn ended(
        &mut self,
        one: InFlight,
        end: Result<CallAnswer, Error>,
    ) -> Result<PlacedAnswer, Error> {
        let answer = end?;
        let took_ns = self.fabric.time_ns().saturating_sub(one.begun_ns);
        self.placement.ended(&one.choice, took_ns);
        Ok(PlacedAnswer { answer, choice: one.choice, took_ns })
    }

    /// Runs a program at the place that [`Self::begin`] chooses, and waits for its answer.
    ///
    /// *Blocks*, as [`Caller::wait`].
    ///
    /// # Errors
    /// As [`Self::begin`] and [`Caller::wait`]; `OverQuota` if all slots at the place are in use.
    pub fn call(
        &mut self,
        program: PlacedProgram,
        parameters: &[u8],
        options: CallOptions,
    ) -> Result<PlacedAnswer, Error> {
        // An error of a session is also the outcome of the call.
        let _ = self.progress();
        let Some(ticket) = self.begin(program, parameters, options)? else {
            let text = "all slots at the place are in use: poll the calls in progress first";
            return Err(Error::with(ErrorCode::OverQuota, text));
        };
        let Some(at) = self.in_flight.iter().position(|one| one.ticket == ticket) else {
            return Err(ErrorCode::NoProgram.into());
        };
        let (caller, inner) = (self.in_flight[at].caller, self.in_flight[at].at);
        let caller = &mut self.callers[caller];
        let end = caller.wait(inner, options.timeout.unwrap_or(caller.connection.options.timeout));
        caller.forget(inner);
        match self.in_flight.remove(at) {
            Some(one) => self.ended(one, end),
            None => Err(ErrorCode::NoProgram.into()),
        }
    }
}

/// Returns the name of a place.
fn name(placement: &Placement, place: usize) -> &str {
    placement.places().get(place).map_or("?", |model| &model.name)
}
