//! Local runs of a caller: programs run on an executor of its own, by one-sided requests to the memory that the remote
//! executor lends (003 §5.2).

use super::connection::CallerConnection;
use super::outcome::{load_error, run_outcome};
use super::window::OutstandingCalls;
use super::{CallOptions, Program, Ticket, check_parameters};
use crate::call::executor::remote::ScratchPool;
use crate::call::executor::{Executor, SliceOutcome};
use crate::call::memory::global::GlobalMemory;
use crate::call::memory::lent_region::{LentRegion, RegionSite};
use crate::call::memory::remote::BLOCK_BYTES;
use crate::event_wait::EventWait;
use crate::registered::Registered;
use crate::{Error, ErrorCode, Node};
use farside_base::{Access, CompletionStatus};
use farside_protocol::call::object_of;
use farside_rmc::Limits;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

/// Maximum number of local runs in progress.
const RUNS_MAX: usize = 32;

/// Local runs, and the objects that they may run.
pub(super) struct LocalRunner {
    /// Created by the first run. Its regions are imported over the present link, so that it ends with that link.
    executor: Option<LocalExecutor>,
    /// The global memory for local runs, while there is no executor.
    global: Option<GlobalMemory>,
    /// Registered objects by number.
    objects: BTreeMap<u64, Arc<[u8]>>,
}

struct LocalExecutor {
    executor: Executor,
    scratch: Registered,
    /// By slot of the executor.
    runs: Vec<Option<LocalRun>>,
    running: usize,
    ready: VecDeque<usize>,
    /// No deadline of a run is earlier.
    deadline_ns: u64,
}

#[derive(Clone, Copy)]
struct LocalRun {
    ticket: Ticket,
    deadline_ns: u64,
}

impl LocalRunner {
    pub(super) const fn new() -> Self {
        Self { executor: None, global: None, objects: BTreeMap::new() }
    }

    /// Lets runs access the global memory through a node.
    pub(super) fn share(&mut self, node: &Node, caller: &CallerConnection) -> Result<(), Error> {
        let global = GlobalMemory::new(node, caller.messages.port.waiter())?;
        match &mut self.executor {
            Some(local) => local.executor.share(global),
            None => {
                self.global = Some(global);
                Ok(())
            }
        }
    }

    /// Keeps a registered object, so that its programs can run here.
    pub(super) fn add(&mut self, program: u64, object: &Arc<[u8]>) {
        self.objects.insert(object_of(program), Arc::clone(object));
    }

    /// Removes the object of a program.
    pub(super) fn remove(&mut self, program: u64) {
        self.objects.remove(&object_of(program));
        if let Some(local) = &mut self.executor {
            local.executor.erase(object_of(program));
        }
    }

    /// Begins a run; `None` if all slots are in use.
    pub(super) fn begin(
        &mut self,
        caller: &mut CallerConnection,
        calls: &mut OutstandingCalls,
        (program, parameters): (&Program, &[u8]),
        options: &CallOptions,
    ) -> Result<Option<Ticket>, Error> {
        check_stateless(program)?;
        check_parameters(program, parameters, Limits::DEFAULT.context_bytes_max)?;
        let local = self.prepare(caller, program)?;
        let Some(at) = local.runs.iter().position(Option::is_none) else {
            return Ok(None);
        };
        let started = local.executor.start(at, (0, 0), program.number, parameters);
        started.map_err(|error| Error::with(ErrorCode::BadParameters, error.to_string()))?;
        let deadline_ns = options
            .deadline_ns()
            .map_or(u64::MAX, |deadline_ns| caller.messages.time_ns().saturating_add(deadline_ns));
        let ticket = calls.new_ticket();
        local.runs[at] = Some(LocalRun { ticket, deadline_ns });
        local.deadline_ns = local.deadline_ns.min(deadline_ns);
        local.running += 1;
        local.ready.push_back(at);
        Ok(Some(ticket))
    }

    /// Checks whether runs of a program here are equivalent to remote ones.
    pub(super) fn check(
        &mut self,
        caller: &mut CallerConnection,
        program: &Program,
    ) -> Result<(), Error> {
        check_stateless(program)?;
        let local = self.prepare(caller, program)?;
        match local.executor.loaded(program.number) {
            Some(loaded) if loaded.notifies() => {
                let text =
                    "its notifications do not reach subscribers at its executor from a local run";
                Err(Error::with(ErrorCode::NotHere, text))
            }
            _ => Ok(()),
        }
    }

    /// Returns the executor, with the program loaded.
    fn prepare(
        &mut self,
        caller: &mut CallerConnection,
        program: &Program,
    ) -> Result<&mut LocalExecutor, Error> {
        let Self { executor, global, objects } = self;
        let local = match executor {
            Some(local) => local,
            None => executor.insert(LocalExecutor::open(caller, global)?),
        };
        if local.executor.loaded(program.number).is_some() {
            return Ok(local);
        }
        let number = object_of(program.number);
        let object = objects.get(&number).ok_or_else(|| Error::new(ErrorCode::NoProgram))?;
        let programs = local.executor.load(object, &Limits::DEFAULT).map_err(load_error)?;
        let place = (program.number - number) as usize;
        let loaded = programs.get(place).ok_or_else(|| Error::new(ErrorCode::NoProgram))?;
        // Each access would be refused with a status that the program might take for an answer.
        if let (true, Some(helper)) = (caller.regions.is_empty(), loaded.memory_helper()) {
            let text = format!(
                "`{}` calls {helper}, and this executor lends no memory itself: if it was started with \
                 --beside, call the executor that it names",
                loaded.name()
            );
            return Err(Error::with(ErrorCode::NotHere, text));
        }
        local.executor.keep(object, number, 0, &programs);
        Ok(local)
    }

    /// Whether a run could continue at the next poll.
    pub(super) fn is_ready(&self) -> bool {
        self.executor.as_ref().is_some_and(|local| !local.ready.is_empty())
    }

    /// Whether a poll has no work on local runs, so that callers without them pay nothing.
    pub(super) fn is_idle(&self) -> bool {
        self.executor.as_ref().is_none_or(|local| {
            local.running == 0
                && !local.executor.has_blocked()
                && local.executor.resources.global.is_none()
        })
    }

    /// Records the completion of a one-sided request.
    pub(super) fn completed(&mut self, block: usize, status: CompletionStatus) {
        if let Some(local) = &mut self.executor {
            local.executor.completed(block, status);
        }
    }

    /// Stops a run; returns whether there was one.
    pub(super) fn stop(&mut self, ticket: Ticket) -> bool {
        let Some(local) = &mut self.executor else { return false };
        let is_run = |run: &Option<LocalRun>| run.is_some_and(|run| run.ticket == ticket);
        let at = local.runs.iter().position(is_run);
        at.is_some_and(|at| local.stop(at).is_some())
    }

    /// Ends all runs, as their memory is disconnected.
    pub(super) fn disconnected(&mut self, calls: &mut OutstandingCalls) {
        let Some(mut local) = self.executor.take() else { return };
        for at in 0..local.runs.len() {
            if let Some(run) = local.stop(at) {
                let text = "the memory that it accesses is out of reach";
                calls.end(run.ticket, Err(Error::with(ErrorCode::PeerLost, text)));
            }
        }
        self.global = local.executor.resources.global.take();
    }

    /// Runs a slice of each ready run; returns whether requests were posted.
    pub(super) fn run_slices(
        &mut self,
        now_ns: u64,
        caller: &mut CallerConnection,
        calls: &mut OutstandingCalls,
    ) -> bool {
        let Some(local) = &mut self.executor else { return false };
        if local.deadline_ns <= now_ns {
            local.stop_late(now_ns, calls);
        }
        if local.executor.has_blocked() {
            local.executor.poll_blocked(now_ns);
        }
        while let Some(at) = local.executor.take_woken() {
            local.ready.push_back(at);
        }
        // Only the runs ready now, each for one slice.
        for _ in 0..local.ready.len() {
            let Some(at) = local.ready.pop_front() else { break };
            match local.executor.slice(at, now_ns) {
                SliceOutcome::Ready => local.ready.push_back(at),
                // Local objects are loaded synchronously.
                SliceOutcome::Waits | SliceOutcome::Loaded(..) => {}
                SliceOutcome::Over(end) => {
                    let output = std::mem::take(&mut local.executor.output);
                    if let Some(run) = local.runs[at].take() {
                        local.running -= 1;
                        calls.end(run.ticket, run_outcome(end, output));
                    }
                }
            }
        }
        local.executor.resources.notifications.clear();
        caller.messages.post_requests(&mut local.executor, local.scratch.region.id)
    }

    /// Waits for an event of the port or of the global memory, or for the next poll of blocked runs.
    pub(super) fn wait(
        &mut self,
        caller: &mut CallerConnection,
        wait: &mut EventWait,
    ) -> Result<(), Error> {
        let nap = caller.nap();
        let Some(local) = &mut self.executor else {
            return wait.wait_for_event(&mut caller.messages.port, nap);
        };
        if local.executor.has_blocked() {
            return wait.wait();
        }
        let deadline = (local.deadline_ns < u64::MAX).then(|| {
            Duration::from_nanos(local.deadline_ns.saturating_sub(caller.messages.time_ns()))
        });
        let nap = nap.into_iter().chain(deadline).min();
        let port = &mut caller.messages.port;
        local.executor.wait(wait, |wait| wait.wait_for_event(port, nap))
    }
}

impl LocalExecutor {
    /// Returns an executor on the regions of a connected caller.
    fn open(
        caller: &mut CallerConnection,
        global: &mut Option<GlobalMemory>,
    ) -> Result<Self, Error> {
        let link = caller.link().ok_or_else(|| caller.unreachable())?;
        let scratch = caller.messages.register(RUNS_MAX as u64 * BLOCK_BYTES, Access::NONE)?;
        let mut executor = Executor::new(ScratchPool::new(Some(&scratch.region.arena)), 1);
        executor.resources.memory.add(0);
        for (number, token) in &caller.regions {
            let site = RegionSite::Remote(link, caller.messages.port.import(link, token)?);
            let lent = LentRegion { site, bytes: token.bytes, access: token.access };
            executor.resources.memory.lend(*number, lent, None);
        }
        executor.resources.global = global.take();
        let (runs, ready) = (vec![None; RUNS_MAX], VecDeque::new());
        Ok(Self { executor, scratch, runs, running: 0, ready, deadline_ns: u64::MAX })
    }

    fn stop(&mut self, at: usize) -> Option<LocalRun> {
        let run = self.runs[at].take()?;
        self.executor.stop(at);
        self.running -= 1;
        self.ready.retain(|other| *other != at);
        Some(run)
    }

    /// Stops the runs whose deadline has passed.
    fn stop_late(&mut self, now_ns: u64, calls: &mut OutstandingCalls) {
        let deadline_ns = |run: Option<LocalRun>| run.map_or(u64::MAX, |run| run.deadline_ns);
        for at in 0..self.runs.len() {
            if deadline_ns(self.runs[at]) <= now_ns
                && let Some(run) = self.stop(at)
            {
                calls.end(run.ticket, Err(ErrorCode::DeadlinePassed.into()));
            }
        }
        self.deadline_ns = self.runs.iter().map(|run| deadline_ns(*run)).min().unwrap_or(u64::MAX);
    }
}

fn check_stateless(program: &Program) -> Result<(), Error> {
    if program.keeps_state {
        let text = "it keeps state between calls, which is at its executor";
        return Err(Error::with(ErrorCode::NotHere, text));
    }
    Ok(())
}
