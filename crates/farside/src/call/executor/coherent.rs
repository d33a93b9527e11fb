//! Accesses to the global memory that miss: the call waits without blocking other calls.

use super::{Answered, End, Executor, Running, Slice, Wait, states, stopped, take};
use crate::call::global::{self, Global, Seat};
use crate::patience::Patience;
use crate::{Error, ErrorCode};
use farside_protocol::call::Stopped;
use farside_rmc::helpers::{Helper, HelperEffect, status};
use farside_rmc::run::{Lent, Request, Stop};

impl Executor {
    /// Lets calls access the global memory.
    ///
    /// # Errors
    /// `Busy` while calls have operations pending at the node shared before.
    pub(in crate::call) fn share(&mut self, global: Global) -> Result<(), Error> {
        self.unshare()?;
        self.global = Some(global);
        Ok(())
    }

    /// Ends access of calls to the global memory.
    ///
    /// # Errors
    /// As [`Self::share`].
    pub(in crate::call) fn unshare(&mut self) -> Result<(), Error> {
        if self.calls.iter().flatten().any(|running| running.seat.is_some()) {
            let text = "calls have operations in flight at the node shared before: wait for them";
            return Err(Error::with(ErrorCode::Busy, text));
        }
        // Calls that wait for a seat retry.
        let queue = self.global.take().into_iter().flat_map(Global::into_queue);
        queue.for_each(|at| self.watching.wake(at));
        Ok(())
    }

    /// Waits with `wait` for an event of the port, or until an operation of the global memory completes.
    pub(in crate::call) fn wait(
        &mut self,
        patience: &mut Patience,
        wait: impl FnOnce(&mut Patience) -> Result<(), Error>,
    ) -> Result<(), Error> {
        match self.global.as_mut().filter(|global| patience.sleeps_next() && global.is_awaited()) {
            Some(global) => global.sleep(|| wait(patience)),
            None => wait(patience),
        }
    }

    /// Wakes calls whose operations have completed.
    pub(super) fn hear(&mut self) {
        if let Some(global) = &self.global {
            global.drive();
        }
        while let Some((at, seat)) = self.global.as_mut().and_then(Global::heard) {
            self.wake_with(at, seat);
        }
    }

    /// Wakes a call, and hands it the seat that it waited for.
    fn wake_with(&mut self, at: usize, seat: Option<Box<Seat>>) {
        if let Some(running) = self.calls.get_mut(at).and_then(Option::as_mut) {
            running.seat = running.seat.take().or(seat);
            self.watching.wake(at);
        }
    }

    /// Returns the seat of a call that no longer needs it or was stopped.
    pub(super) fn leave_seat(&mut self, at: usize, running: &mut Running) {
        let Some(global) = &mut self.global else { return };
        global.forget(at);
        if let Some(seat) = running.seat.take()
            && let Some((at, seat)) = global.give_back(seat)
        {
            self.wake_with(at, seat);
        }
    }

    /// Begins or continues an access to the global memory.
    pub(super) fn reach(
        &mut self,
        at: usize,
        running: &mut Running,
        request: &Request,
        inputs: [&[u8]; 2],
    ) -> Answered {
        running.wait = Wait::Global;
        let Some(global) = &mut self.global else {
            let text = "its executor is not part of a node of the global memory at present";
            return self.reached(running, request, Err(Error::with(ErrorCode::PeerLost, text)));
        };
        if running.seat.is_none() {
            running.seat = global.take(at);
        }
        let Some(seat) = &mut running.seat else {
            return Answered::Slice(Slice::Waits);
        };
        if global::orders(request.call) {
            return match seat.poll_fence() {
                None => {
                    global.waits(seat, at);
                    Answered::Slice(Slice::Waits)
                }
                Some(Ok(())) => {
                    running.wait = Wait::Turn;
                    self.leave_seat(at, running);
                    Answered::GoesOn
                }
                Some(Err(error)) => Answered::Slice(Slice::Over(lost(running, &error))),
            };
        }
        let begun = if seat.accesses() { Ok(()) } else { seat.begin(request, inputs[0]) };
        let end = match begun {
            Ok(()) => seat.poll(request.call),
            Err(error) => Some(Err(error)),
        };
        match end {
            None => {
                global.waits(seat, at);
                Answered::Slice(Slice::Waits)
            }
            Some(end) => self.reached(running, request, end),
        }
    }

    /// Passes the result of an access to its call.
    fn reached(
        &mut self,
        running: &mut Running,
        request: &Request,
        end: Result<u64, Error>,
    ) -> Answered {
        running.wait = Wait::Turn;
        let helper = Helper::with_number(request.call as u32);
        let told = helper.is_some_and(|helper| helper.effect == HelperEffect::Suspends);
        let result = match end {
            Ok(result) => result,
            Err(error) if told => status_of(error.code) as u64,
            Err(error) => return Answered::Slice(Slice::Over(lost(running, &error))),
        };
        let Some((own, shared)) = states(&mut self.objects, running) else {
            return Answered::GoesOn; // `go_on` ends the call
        };
        let lent = Lent { own: &mut own.variables, shared: &mut shared.variables };
        let bytes = running.seat.as_ref().map_or(&[][..], |seat| &seat.bytes);
        let bytes = if (result as i64) < 0 { &[][..] } else { bytes };
        take(&mut running.machine, &running.loaded, lent, result, bytes)
    }

    /// Delays the end of a call until all its writes are visible to others.
    pub(super) fn settled(&mut self, at: usize, running: &mut Running, slice: Slice) -> Slice {
        let (Some(seat), Some(global)) = (&mut running.seat, &mut self.global) else {
            return slice;
        };
        let end = match slice {
            Slice::Over(end) => end,
            Slice::Ready | Slice::Waits | Slice::Loaded(..) => {
                if !matches!(running.wait, Wait::Global) && seat.settle() {
                    self.leave_seat(at, running);
                }
                return slice;
            }
        };
        let fence = match crate::canary::is(crate::canary::NodeMutant::AnswersBeforeWrites) {
            true => Some(Ok(())),
            false => seat.poll_fence(),
        };
        match (fence, end) {
            (None, end) => {
                global.waits(seat, at);
                running.wait = Wait::Fence(end);
                Slice::Waits
            }
            (Some(Err(error)), End::Returned(_)) => {
                let text = format!("program `{}`, flushing its writes", running.loaded.name());
                Slice::Over(stopped(stop_of(error.code), None, format!("{text}: {error}")))
            }
            (Some(_), end) => Slice::Over(end),
        }
    }
}

/// Ends a call whose helper cannot return a status for a failed access.
fn lost(running: &mut Running, error: &Error) -> End {
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
