//! Registered objects, objects being loaded, and the state of their programs.

use super::{ActiveCall, Executor, SliceOutcome, WaitState, stopped};
use crate::call::executor::loading::{self, LoadError, LoadedProgram, ObjectLoading};
use crate::call::executor::state::States;
use crate::call::scheduling::time_slice::{QUIET, SliceLength};
use farside_protocol::call::{Stopped, object_of};
use farside_rmc::Limits;
use farside_rmc::program::Scope;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A registered object: its programs, and the state that they share.
#[derive(Debug)]
pub(crate) struct RegisteredObject {
    pub(crate) programs: Vec<RegisteredProgram>,
    pub(crate) shared: States,
    /// State of each session that has registered it.
    pub(crate) own: BTreeMap<u32, States>,
}

/// An object being loaded.
#[derive(Debug)]
pub(crate) struct PendingLoad {
    loading: Box<ObjectLoading>,
    pub(crate) slice_length: SliceLength,
    progress: LoadProgress,
}

/// Progress of a registration.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum LoadProgress {
    /// Queued; its request has not had its first slice yet.
    Queued,
    /// Queued; woken when it may proceed.
    Parked,
    ObjectLoading,
}

/// A program, and the instructions per slice.
#[derive(Debug)]
pub(crate) struct RegisteredProgram {
    pub(crate) loaded: Arc<LoadedProgram>,
    pub(crate) slice_length: SliceLength,
}

impl RegisteredObject {
    fn new(programs: &[Arc<LoadedProgram>]) -> Self {
        let known = |loaded: &Arc<LoadedProgram>| RegisteredProgram {
            loaded: Arc::clone(loaded),
            slice_length: SliceLength::INSTRUCTIONS,
        };
        Self {
            programs: programs.iter().map(known).collect(),
            shared: states_of(programs, Scope::Shared),
            own: BTreeMap::new(),
        }
    }
}

/// Returns new state for an object, shared by all its programs.
fn states_of(programs: &[Arc<LoadedProgram>], scope: Scope) -> States {
    let first = programs.first();
    first.map_or_else(States::default, |one| States::new(one.verified().program(), scope))
}

impl Executor {
    /// Returns the number of an object, existing or to be assigned: derived from its contents, with another attempt
    /// if another object has that number.
    pub(crate) fn number_for(&self, object: &Arc<[u8]>) -> u64 {
        if let Some(number) = self.numbers.get(object) {
            return *number;
        }
        let mut numbers = (0..).map(|attempt| loading::number(object, attempt));
        numbers.find(|number| !self.resources.objects.contains_key(number)).unwrap_or(0)
    }

    /// Returns all programs of a registered object.
    pub(crate) fn programs_of(&self, object: &Arc<[u8]>) -> Option<Vec<Arc<LoadedProgram>>> {
        let known = self.resources.objects.get(self.numbers.get(object)?)?;
        Some(known.programs.iter().map(|known| Arc::clone(&known.loaded)).collect())
    }

    /// Returns all programs of an object: the registered ones, else read and verified here. Compiled after their
    /// first slices.
    pub(crate) fn load(
        &self,
        object: &Arc<[u8]>,
        limits: &Limits,
    ) -> Result<Vec<Arc<LoadedProgram>>, LoadError> {
        match self.programs_of(object) {
            Some(programs) => Ok(programs),
            None => ObjectLoading::new(object, limits, self.resources.global.is_some()).whole(),
        }
    }

    /// Begins to load an object of a tenant in slices, at an unused slot of the executor. Starts once no other
    /// object of the tenant is being loaded.
    pub(crate) fn begin_loading(
        &mut self,
        (at, tenant): (usize, usize),
        object: &Arc<[u8]>,
        limits: &Limits,
    ) {
        let loading = Box::new(ObjectLoading::new(object, limits, self.resources.global.is_some()));
        self.loads.insert(
            at,
            PendingLoad {
                loading,
                slice_length: SliceLength::WALKED,
                progress: LoadProgress::Queued,
            },
        );
        self.queue.add(at, tenant);
        self.start_loading();
    }

    /// Starts the queued registrations that may proceed.
    fn start_loading(&mut self) {
        while let Some(at) = self.queue.start() {
            if let Some(load) = self.loads.get_mut(&at) {
                let before = std::mem::replace(&mut load.progress, LoadProgress::ObjectLoading);
                if before == LoadProgress::Parked {
                    self.blocked.wake(at);
                }
            }
        }
    }

    /// Removes a registration that has ended, and starts the next.
    pub(crate) fn end_loading(&mut self, at: usize) -> Option<PendingLoad> {
        let load = self.loads.remove(&at)?;
        self.queue.remove(at);
        self.blocked.remove(at);
        self.start_loading();
        Some(load)
    }

    /// Returns the objects of a tenant that are being loaded or queued.
    pub(crate) fn loading_of(&self, tenant: usize) -> usize {
        self.queue.of(tenant)
    }

    /// Returns how many objects are queued and how many are being loaded.
    pub(crate) fn loading(&self) -> (usize, usize) {
        self.queue.counts()
    }

    /// Whether an object is being loaded at one of these slots.
    pub(crate) fn is_loading(&self, mut places: std::ops::Range<usize>) -> bool {
        !self.loads.is_empty() && places.any(|at| self.loads.contains_key(&at))
    }

    pub(crate) fn continue_loading(&mut self, at: usize) -> SliceOutcome {
        let Some(load) = self.loads.get_mut(&at) else {
            return SliceOutcome::Over(stopped(Stopped::Fault, None, "there is no such call"));
        };
        if load.progress != LoadProgress::ObjectLoading {
            load.progress = LoadProgress::Parked;
            return SliceOutcome::Waits;
        }
        let instructions =
            if self.is_quiet { load.slice_length.work() * QUIET } else { load.slice_length.work() };
        let instructions = u32::try_from(instructions).unwrap_or(u32::MAX);
        let Some(end) = load.loading.step(instructions) else {
            return SliceOutcome::Ready;
        };
        let object = Arc::clone(load.loading.object());
        // The verifier's memory is freed before the next verification begins.
        drop(self.end_loading(at));
        SliceOutcome::Loaded(object, end)
    }

    /// Keeps the programs of an object for a session.
    pub(crate) fn keep(
        &mut self,
        object: &Arc<[u8]>,
        number: u64,
        session: u32,
        programs: &[Arc<LoadedProgram>],
    ) {
        let known =
            self.resources.objects.entry(number).or_insert_with(|| RegisteredObject::new(programs));
        let own = || states_of(programs, Scope::QueuePair);
        known.own.entry(session).or_insert_with(own);
        self.numbers.insert(Arc::clone(object), number);
    }

    /// Erases the state of a session at an object. Its calls end.
    pub(crate) fn erase_own(&mut self, session: u32, number: u64) {
        if let Some(known) = self.resources.objects.get_mut(&number)
            && let Some(own) = known.own.remove(&session)
        {
            self.erased.add(own);
            self.wake_orphans(number);
        }
    }

    /// Erases an object and all its state. Its calls end.
    pub(crate) fn erase(&mut self, number: u64) {
        if let Some(known) = self.resources.objects.remove(&number) {
            self.numbers.retain(|_, other| *other != number);
            known.own.into_values().chain([known.shared]).for_each(|gone| self.erased.add(gone));
            self.wake_orphans(number);
        }
    }

    /// Wakes waiting calls of an unregistered program, so that they end.
    fn wake_orphans(&mut self, number: u64) {
        let known = self.resources.objects.get(&number);
        let is_kept = |session| known.is_some_and(|known| known.own.contains_key(session));
        for (at, running) in self.calls.iter().enumerate() {
            let Some(running) = running else { continue };
            let waits = !matches!(running.wait, WaitState::Runnable | WaitState::Chunked(_));
            if waits && object_of(running.program) == number && !is_kept(&running.session) {
                self.blocked.wake(at);
            }
        }
    }

    /// Frees some of the erased state; returns whether there was any. Called once per poll, so that no call waits
    /// while much is freed.
    pub(crate) fn free_some(&mut self) -> bool {
        self.erased.free_some()
    }

    pub(crate) fn known(&self, program: u64) -> Option<&RegisteredProgram> {
        let object = self.resources.objects.get(&object_of(program))?;
        object.programs.get((program - object_of(program)) as usize)
    }

    pub(crate) fn loaded(&self, program: u64) -> Option<&Arc<LoadedProgram>> {
        self.known(program).map(|known| &known.loaded)
    }
}

/// Returns the state that a call may access: that of its session at its object, and the shared state. `None` once
/// its object is gone, even if another object has its number.
pub(crate) fn states<'a>(
    objects: &'a mut BTreeMap<u64, RegisteredObject>,
    running: &ActiveCall,
) -> Option<(&'a mut States, &'a mut States)> {
    let object = object_of(running.program);
    let RegisteredObject { programs, shared, own } = objects.get_mut(&object)?;
    let known = programs.get((running.program - object) as usize)?;
    let own = own.get_mut(&running.session)?;
    Arc::ptr_eq(&known.loaded, &running.loaded).then_some((own, shared))
}
