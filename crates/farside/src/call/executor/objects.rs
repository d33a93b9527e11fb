//! Objects that are registered here, or being loaded, with what their programs keep.

use super::{Executor, Running, Slice, Wait, stopped};
use crate::call::loaded::{self, Loaded, Loading, NotLoaded};
use crate::call::pace::{Pace, QUIET};
use crate::call::state::States;
use farside_protocol::call::{Stopped, object_of};
use farside_rmc::Limits;
use farside_rmc::program::Scope;
use std::collections::BTreeMap;
use std::sync::Arc;

/// An object that was registered: its programs, with the state that they keep together.
#[derive(Debug)]
pub(super) struct Registered {
    pub(super) programs: Vec<Known>,
    pub(super) shared: States,
    /// Of each session that has registered it.
    pub(super) own: BTreeMap<u32, States>,
}

/// An object that is being loaded.
#[derive(Debug)]
pub(super) struct Load {
    loading: Box<Loading>,
    pub(super) pace: Pace,
    progress: Progress,
}

/// How far a registration is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Progress {
    /// It waits for others, but has not had its first slice, which tells that.
    Queued,
    /// It waits for others, and is woken when they are over.
    Parked,
    Loading,
}

/// A program, and how many instructions a slice of it has.
#[derive(Debug)]
pub(super) struct Known {
    pub(super) loaded: Arc<Loaded>,
    pub(super) pace: Pace,
}

impl Registered {
    fn new(programs: &[Arc<Loaded>]) -> Self {
        let known =
            |loaded: &Arc<Loaded>| Known { loaded: Arc::clone(loaded), pace: Pace::INSTRUCTIONS };
        Self {
            programs: programs.iter().map(known).collect(),
            shared: states_of(programs, Scope::Shared),
            own: BTreeMap::new(),
        }
    }
}

/// New state for an object: all its programs see the same.
fn states_of(programs: &[Arc<Loaded>], scope: Scope) -> States {
    let first = programs.first();
    first.map_or_else(States::default, |one| States::new(one.verified().program(), scope))
}

impl Executor {
    /// The number under which an object is known here, or would be: made from its contents, and another one
    /// where that is another object's.
    pub(in crate::call) fn number_for(&self, object: &Arc<[u8]>) -> u64 {
        if let Some(number) = self.numbers.get(object) {
            return *number;
        }
        let mut numbers = (0..).map(|attempt| loaded::number(object, attempt));
        numbers.find(|number| !self.objects.contains_key(number)).unwrap_or(0)
    }

    /// All programs of an object that is here.
    pub(in crate::call) fn programs_of(&self, object: &Arc<[u8]>) -> Option<Vec<Arc<Loaded>>> {
        let known = self.objects.get(self.numbers.get(object)?)?;
        Some(known.programs.iter().map(|known| Arc::clone(&known.loaded)).collect())
    }

    /// All programs of an object: those that are here, else read and verified. A program is compiled after its first slices.
    pub(in crate::call) fn load(
        &self,
        object: &Arc<[u8]>,
        limits: &Limits,
    ) -> Result<Vec<Arc<Loaded>>, NotLoaded> {
        match self.programs_of(object) {
            Some(programs) => Ok(programs),
            None => Loading::new(object, limits, self.global.is_some()).whole(),
        }
    }

    /// Begins to load an object of a tenant, by slices at a place of the caller's choice where nothing is in progress, once
    /// no other one of the tenant is being loaded.
    pub(in crate::call) fn begin_loading(
        &mut self,
        (at, tenant): (usize, usize),
        object: &Arc<[u8]>,
        limits: &Limits,
    ) {
        let loading = Box::new(Loading::new(object, limits, self.global.is_some()));
        self.loads.insert(at, Load { loading, pace: Pace::WALKED, progress: Progress::Queued });
        self.queue.add(at, tenant);
        self.start_loading();
    }

    /// Lets those go on whose turn it is.
    fn start_loading(&mut self) {
        while let Some(at) = self.queue.start() {
            if let Some(load) = self.loads.get_mut(&at) {
                let before = std::mem::replace(&mut load.progress, Progress::Loading);
                if before == Progress::Parked {
                    self.watching.wake(at);
                }
            }
        }
    }

    /// An object is loaded, or will not be.
    pub(super) fn end_loading(&mut self, at: usize) -> Option<Load> {
        let load = self.loads.remove(&at)?;
        self.queue.remove(at);
        self.watching.remove(at);
        self.start_loading();
        Some(load)
    }

    /// Objects of a tenant that are being loaded or wait for that.
    pub(in crate::call) fn loading_of(&self, tenant: usize) -> usize {
        self.queue.of(tenant)
    }

    /// Objects that wait to be loaded, and those that are being loaded.
    pub(in crate::call) fn loading(&self) -> (usize, usize) {
        self.queue.counts()
    }

    /// Whether an object is being loaded at one of these places.
    pub(in crate::call) fn is_loading(&self, mut places: std::ops::Range<usize>) -> bool {
        !self.loads.is_empty() && places.any(|at| self.loads.contains_key(&at))
    }

    pub(super) fn go_on_loading(&mut self, at: usize) -> Slice {
        let Some(load) = self.loads.get_mut(&at) else {
            return Slice::Over(stopped(Stopped::Fault, None, "there is no such call"));
        };
        if load.progress != Progress::Loading {
            load.progress = Progress::Parked;
            return Slice::Waits;
        }
        let instructions = if self.is_quiet { load.pace.now() * QUIET } else { load.pace.now() };
        let instructions = u32::try_from(instructions).unwrap_or(u32::MAX);
        let Some(end) = load.loading.step(instructions) else {
            return Slice::Ready;
        };
        let object = Arc::clone(load.loading.object());
        // What it has for its proof is freed before the next one begins.
        drop(self.end_loading(at));
        Slice::Loaded(object, end)
    }

    /// Keeps the programs of an object for a session.
    pub(in crate::call) fn keep(
        &mut self,
        object: &Arc<[u8]>,
        number: u64,
        session: u32,
        programs: &[Arc<Loaded>],
    ) {
        let known = self.objects.entry(number).or_insert_with(|| Registered::new(programs));
        let own = || states_of(programs, Scope::QueuePair);
        known.own.entry(session).or_insert_with(own);
        self.numbers.insert(Arc::clone(object), number);
    }

    /// Erases what a session has at an object. Calls of it end.
    pub(in crate::call) fn erase_own(&mut self, session: u32, number: u64) {
        if let Some(known) = self.objects.get_mut(&number)
            && let Some(own) = known.own.remove(&session)
        {
            self.erased.add(own);
            self.wake_orphans(number);
        }
    }

    /// Erases an object and all its state. Calls of it end.
    pub(in crate::call) fn erase(&mut self, number: u64) {
        if let Some(known) = self.objects.remove(&number) {
            self.numbers.retain(|_, other| *other != number);
            known.own.into_values().chain([known.shared]).for_each(|gone| self.erased.add(gone));
            self.wake_orphans(number);
        }
    }

    /// Calls whose program was unregistered wait for nothing more.
    fn wake_orphans(&mut self, number: u64) {
        let known = self.objects.get(&number);
        let is_kept = |session| known.is_some_and(|known| known.own.contains_key(session));
        for (at, running) in self.calls.iter().enumerate() {
            let Some(running) = running else { continue };
            let waits = !matches!(running.wait, Wait::Turn | Wait::Pieces(_));
            if waits && object_of(running.program) == number && !is_kept(&running.session) {
                self.watching.wake(at);
            }
        }
    }

    /// Frees some of what was erased; whether there was anything. A turn does so once, so that no call waits
    /// while much is freed.
    pub(in crate::call) fn free_some(&mut self) -> bool {
        self.erased.free_some()
    }

    pub(super) fn known(&self, program: u64) -> Option<&Known> {
        let object = self.objects.get(&object_of(program))?;
        object.programs.get((program - object_of(program)) as usize)
    }

    pub(in crate::call) fn loaded(&self, program: u64) -> Option<&Arc<Loaded>> {
        self.known(program).map(|known| &known.loaded)
    }
}

/// What a call may touch besides its own stack: what its session has at its object, and what all share;
/// nothing once that is gone, though another object has its number by now.
pub(super) fn states<'a>(
    objects: &'a mut BTreeMap<u64, Registered>,
    running: &Running,
) -> Option<(&'a mut States, &'a mut States)> {
    let object = object_of(running.program);
    let Registered { programs, shared, own } = objects.get_mut(&object)?;
    let known = programs.get((running.program - object) as usize)?;
    let own = own.get_mut(&running.session)?;
    Arc::ptr_eq(&known.loaded, &running.loaded).then_some((own, shared))
}
