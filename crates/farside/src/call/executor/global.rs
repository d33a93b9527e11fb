//! Accesses to the global memory that miss: the call waits without blocking other calls.

use super::{
    AccessOutcome, ActiveCall, CallEnd, Executor, SliceOutcome, WaitState, returns_status, states,
    stopped, take, unregistered,
};
use crate::call::memory::global::{self, GlobalMemory, MissSession};
use crate::call::memory::perform;
use crate::event_wait::EventWait;
use crate::{Error, ErrorCode};
use farside_protocol::call::Stopped;
use farside_rmc::helpers::status;
use farside_rmc::run::{Buffers, Lent, Request, Stop};
use std::ops::ControlFlow::{Break, Continue};

impl Executor {
    /// Lets calls access the global memory.
    ///
    /// # Errors
    /// `Busy` while calls have operations pending at the node shared before.
    pub(crate) fn share(&mut self, global: GlobalMemory) -> Result<(), Error> {
        self.unshare()?;
        self.resources.global = Some(global);
        Ok(())
    }

    /// Ends access of calls to the global memory.
    ///
    /// # Errors
    /// As [`Self::share`].
    pub(crate) fn unshare(&mut self) -> Result<(), Error> {
        if self.calls.iter().flatten().any(|running| running.miss.is_some()) {
            let text = "calls have operations in flight at the node shared before: wait for them";
            return Err(Error::with(ErrorCode::Busy, text));
        }
        // Calls that wait for a session retry.
        let queue = self.resources.global.take().into_iter().flat_map(GlobalMemory::into_queue);
        queue.for_each(|at| self.blocked.wake(at));
        Ok(())
    }

    /// Waits with `wait` for an event of the port, or until an operation of the global memory completes.
    pub(crate) fn wait(
        &mut self,
        event_wait: &mut EventWait,
        wait: impl FnOnce(&mut EventWait) -> Result<(), Error>,
    ) -> Result<(), Error> {
        match self
            .resources
            .global
            .as_mut()
            .filter(|global| event_wait.parks_next() && global.is_awaited())
        {
            Some(global) => global.sleep(|| wait(event_wait)),
            None => wait(event_wait),
        }
    }

    /// Wakes calls whose operations have completed.
    pub(crate) fn take_completions(&mut self) {
        if let Some(global) = &self.resources.global {
            global.drive();
        }
        while let Some((at, miss)) =
            self.resources.global.as_mut().and_then(GlobalMemory::next_completed)
        {
            self.wake_with(at, miss);
        }
    }

    /// Wakes a call, and hands it the session that it waited for.
    fn wake_with(&mut self, at: usize, miss: Option<Box<MissSession>>) {
        if let Some(running) = self.calls.get_mut(at).and_then(Option::as_mut) {
            running.miss = running.miss.take().or(miss);
            self.blocked.wake(at);
        }
    }

    /// Returns the session of a call that no longer needs it or was stopped.
    pub(crate) fn return_session(&mut self, at: usize, running: &mut ActiveCall) {
        let Some(global) = &mut self.resources.global else { return };
        global.forget(at);
        if let Some(miss) = running.miss.take()
            && let Some((at, miss)) = global.give_back(miss)
        {
            self.wake_with(at, miss);
        }
    }

    /// Begins or continues an access to the global memory.
    pub(crate) fn poll_global(
        &mut self,
        at: usize,
        running: &mut ActiveCall,
        request: &Request,
        mut buffers: Buffers<'_>,
    ) -> AccessOutcome {
        running.wait = WaitState::Global;
        let Some(global) = &mut self.resources.global else {
            let text = "its executor is not part of a node of the global memory at present";
            return self.reached(running, request, Err(Error::with(ErrorCode::PeerLost, text)));
        };
        if running.miss.is_none() {
            running.miss = global.take(at);
        }
        let Some(miss) = &mut running.miss else {
            return Break(SliceOutcome::Waits);
        };
        if global::orders(request.call) {
            return match miss.poll_fence() {
                None => {
                    global.waits(miss, at);
                    Break(SliceOutcome::Waits)
                }
                Some(Ok(())) => {
                    running.wait = WaitState::Runnable;
                    self.return_session(at, running);
                    Continue(())
                }
                Some(Err(error)) => Break(SliceOutcome::Over(lost(running, &error))),
            };
        }
        let begun = match miss.accesses() {
            true => Ok(None),
            false => perform(&mut **miss, request, &mut buffers),
        };
        let end = match begun {
            Ok(_) => miss.poll(request.call),
            Err(error) => Some(Err(error)),
        };
        match end {
            None => {
                global.waits(miss, at);
                Break(SliceOutcome::Waits)
            }
            Some(end) => self.reached(running, request, end),
        }
    }

    /// Passes the result of an access to its call.
    fn reached(
        &mut self,
        running: &mut ActiveCall,
        request: &Request,
        end: Result<u64, Error>,
    ) -> AccessOutcome {
        running.wait = WaitState::Runnable;
        let result = match end {
            Ok(result) => result,
            Err(error) if returns_status(request.call) => status_of(error.code) as u64,
            Err(error) => {
                return Break(SliceOutcome::Over(lost(running, &error)));
            }
        };
        let Some((own, shared)) = states(&mut self.resources.objects, running) else {
            return Break(unregistered());
        };
        let lent = Lent { own: &mut own.variables, shared: &mut shared.variables };
        let bytes = running.miss.as_ref().map_or(&[][..], |miss| &miss.bytes);
        let bytes = if (result as i64) < 0 { &[][..] } else { bytes };
        take(&mut running.machine, &running.loaded, lent, result, bytes)
    }

    /// Delays the end of a call until all its writes are visible to others, and what it has written and read in memory of
    /// nodes with state is durable: hits may be of lines that this node has written and that are not.
    pub(crate) fn settled(
        &mut self,
        at: usize,
        running: &mut ActiveCall,
        slice: SliceOutcome,
    ) -> SliceOutcome {
        let Some(global) = &mut self.resources.global else { return slice };
        let may_be_lost = running.losses.is_some_and(|losses| !global.is_durable_since(losses));
        if running.miss.is_none()
            && may_be_lost
            && matches!(slice, SliceOutcome::Over(CallEnd::Returned(_)))
        {
            running.miss = global.take(at);
            if running.miss.is_none()
                && let SliceOutcome::Over(end) = slice
            {
                running.wait = WaitState::Fence(end);
                return SliceOutcome::Waits;
            }
        }
        let Some(miss) = &mut running.miss else { return slice };
        let end = match slice {
            SliceOutcome::Over(end) => end,
            SliceOutcome::Ready | SliceOutcome::Waits | SliceOutcome::Loaded(..) => {
                if !matches!(running.wait, WaitState::Global) && miss.settle() {
                    self.return_session(at, running);
                }
                return slice;
            }
        };
        let fence = match crate::canary::mutant!(crate::canary::nodes(), AnswersBeforeWrites) {
            true => Some(Ok(())),
            false => miss.poll_fence().map(|fenced| {
                let is_lost = running.losses.is_some_and(|losses| losses != global.losses());
                fenced.and(if is_lost { Err(ErrorCode::WritesLost.into()) } else { Ok(()) })
            }),
        };
        match (fence, end) {
            (None, end) => {
                global.waits(miss, at);
                running.wait = WaitState::Fence(end);
                SliceOutcome::Waits
            }
            (Some(Err(error)), CallEnd::Returned(_)) => {
                let text = format!("program `{}`, flushing its writes", running.loaded.name());
                SliceOutcome::Over(stopped(stop_of(error.code), None, format!("{text}: {error}")))
            }
            (Some(_), end) => SliceOutcome::Over(end),
        }
    }
}

/// Ends a call whose helper cannot return a status for a failed access.
fn lost(running: &mut ActiveCall, error: &Error) -> CallEnd {
    let stop = running.machine.refuse().unwrap_or(Stop::NotRunning);
    let slot = stop.slot();
    let loaded = &running.loaded;
    let place = slot.map_or_else(|| loaded.name().to_owned(), |slot| loaded.place(slot));
    stopped(stop_of(error.code), slot, format!("{place}: {error}"))
}

/// Returns the status for a failure, for helpers that return one.
const fn status_of(code: ErrorCode) -> i64 {
    match code {
        ErrorCode::Unallocated | ErrorCode::OutOfBounds | ErrorCode::ForeignAddress => {
            status::NOT_PERMITTED
        }
        ErrorCode::CacheFull => status::FULL,
        ErrorCode::TooLarge => status::OUT_OF_RANGE,
        _ => status::PEER_LOST,
    }
}

/// Returns the stop reason for a failure, for helpers that return no status.
const fn stop_of(code: ErrorCode) -> Stopped {
    match code {
        ErrorCode::Unallocated
        | ErrorCode::OutOfBounds
        | ErrorCode::ForeignAddress
        | ErrorCode::Misaligned
        | ErrorCode::TooLarge
        | ErrorCode::CacheFull => Stopped::NotPermitted,
        _ => Stopped::MemoryLost,
    }
}
