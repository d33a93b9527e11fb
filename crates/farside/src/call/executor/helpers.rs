//! Helpers of a call during a slice: what they access, and why an access is deferred.

use super::state::{Declared, Done, Holder};
use crate::call::memory::global::{GlobalMemory, MissSession, is_global, orders};
use crate::call::memory::local::LocalMemory;
use crate::call::memory::regions::RegionTable;
use crate::call::memory::{AccessDenied, BYTES_PER_ACCESS, chunked, perform};
use farside_rmc::helpers::{Call, Helper, HelperEffect, status};
use farside_rmc::run::{Buffers, Near, Reply, Request};

/// Maximum bytes of a notification, and maximum number of notifications that were not sent yet.
const NOTIFICATION_BYTES_MAX: usize = 4096;
const NOTIFICATIONS_MAX: usize = 256;

/// A notification for subscribers of a topic.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Notification {
    pub(crate) topic: u64,
    pub(crate) bytes: Vec<u8>,
}

/// The resources that a call can access during a slice.
pub(super) struct CallHelpers<'a> {
    pub(super) memory: &'a RegionTable,
    pub(super) own: &'a mut Declared,
    pub(super) shared: &'a mut Declared,
    /// Time since the executor started.
    pub(super) now_ns: u64,
    /// Accesses that the slice has left; later ones wait for the next slice.
    pub(super) left: usize,
    pub(super) holder: Holder,
    pub(super) notifications: &'a mut Vec<Notification>,
    /// The global memory, if calls may access it.
    pub(super) global: Option<&'a mut GlobalMemory>,
    /// The call's session, while it has operations pending in the global memory.
    pub(super) miss: Option<&'a mut MissSession>,
    /// The node's write losses before the call's first access of the global memory.
    pub(super) losses: &'a mut Option<u64>,
    /// Why the last request was deferred, if it was.
    pub(super) deferral: Option<Deferral>,
}

/// Why a request was not answered at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Deferral {
    /// The slice is over.
    Slice,
    /// Its buffer is long; it proceeds in chunks.
    Chunked,
    /// The memory is remote.
    Remote,
    /// Another call holds the lock.
    Lock,
    /// The word is unchanged.
    Word,
    /// The access to the global memory misses, or must wait for writes of the call.
    Global,
}

/// Whether a helper returns a status, so that a denied access does not end its call.
pub(super) fn returns_status(call: Call) -> bool {
    let helper = Helper::with_number(call as u32);
    helper.is_some_and(|helper| helper.effect == HelperEffect::Suspends)
}

impl CallHelpers<'_> {
    /// Consumes the cost of this many bytes; returns whether the slice had any left.
    fn takes(&mut self, bytes: usize) -> bool {
        if self.left == 0 {
            self.deferral = Some(Deferral::Slice);
            return false;
        }
        self.left = self.left.saturating_sub(1 + bytes / BYTES_PER_ACCESS);
        true
    }

    fn defer(&mut self, why: Deferral) -> Reply {
        self.deferral = Some(why);
        Reply::Later
    }

    /// Returns the reply to an access that was not performed.
    fn denied(&mut self, call: Call, why: AccessDenied) -> Reply {
        match why {
            AccessDenied::NotLocal | AccessDenied::Lost => self.defer(Deferral::Remote),
            AccessDenied::NotPermitted if returns_status(call) => {
                Reply::Now(status::NOT_PERMITTED as u64)
            }
            AccessDenied::NotPermitted => Reply::Refused,
        }
    }

    /// Performs a helper on local regions.
    fn region(&mut self, request: &Request, buffers: &mut Buffers<'_>) -> Reply {
        match perform(&mut LocalMemory(self.memory), request, buffers) {
            Ok(Some(result)) => Reply::Now(result),
            Ok(None) => self.defer(Deferral::Word),
            Err(why) => self.denied(request.call, why),
        }
    }

    fn global(&mut self, request: &Request, buffers: &mut Buffers<'_>) -> Reply {
        let miss = self.miss.as_deref_mut();
        let global = self.global.as_mut();
        if let (None, Some(global)) = (&self.losses, &global) {
            *self.losses = Some(global.losses());
        }
        match global.and_then(|global| global.hit(miss, request, buffers)) {
            Some(result) => Reply::Now(result),
            None => self.defer(Deferral::Global),
        }
    }

    fn state(&mut self, request: &Request, buffers: &mut Buffers<'_>) -> Reply {
        let Buffers { inputs, output } = buffers;
        let mut perform = |states: &mut Declared| {
            states.perform(request.call, &request.arguments, *inputs, output, self.holder)
        };
        let done = match perform(self.own) {
            Done::Elsewhere => perform(self.shared),
            done => done,
        };
        // At most one allocation per slice bounds the delay of other calls.
        if self.own.take_made() | self.shared.take_made() {
            self.left = 0;
        }
        match done {
            Done::Result(result) => Reply::Now(result),
            Done::Held => self.defer(Deferral::Lock),
            Done::Elsewhere => Reply::Now(status::NOT_PERMITTED as u64),
        }
    }

    fn notify(&mut self, topic: u64, bytes: &[u8]) -> Reply {
        if bytes.len() > NOTIFICATION_BYTES_MAX {
            return Reply::Now(status::OUT_OF_RANGE as u64);
        }
        if self.notifications.len() >= NOTIFICATIONS_MAX {
            return self.defer(Deferral::Slice);
        }
        self.notifications.push(Notification { topic, bytes: bytes.to_vec() });
        Reply::Now(status::OK as u64)
    }
}

impl Near for CallHelpers<'_> {
    #[inline]
    fn load_u64(&mut self, region: u64, offset: u64) -> Reply {
        if !self.takes(8) {
            return Reply::Later;
        }
        match LocalMemory(self.memory).load_word((region, offset)) {
            Ok(word) => Reply::Now(word),
            Err(why) => self.denied(Call::LoadU64, why),
        }
    }

    #[inline]
    fn read(&mut self, region: u64, offset: u64, out: &mut [u8]) -> Reply {
        let memory = LocalMemory(self.memory);
        if memory.is_long(region, out.len()) {
            return self.defer(Deferral::Chunked);
        }
        if !self.takes(out.len()) {
            return Reply::Later;
        }
        match memory.read_into((region, offset), out) {
            Ok(()) => Reply::Now(status::OK as u64),
            Err(why) => self.denied(Call::Read, why),
        }
    }

    fn perform(&mut self, request: &Request, mut buffers: Buffers<'_>) -> Reply {
        let moved = chunked::moved(request);
        if LocalMemory(self.memory).is_long(request.arguments[0], moved) {
            return self.defer(Deferral::Chunked);
        }
        let others = buffers.inputs.iter().map(|input| input.len()).sum::<usize>();
        if !self.takes(others.max(moved).max(buffers.output.len())) {
            return Reply::Later;
        }
        if orders(request.call) && self.miss.as_deref_mut().is_some_and(|miss| !miss.settle()) {
            return self.defer(Deferral::Global);
        }
        match request.call {
            call if is_global(call) => self.global(request, &mut buffers),
            Call::ArrayRead
            | Call::ArrayWrite
            | Call::CounterAdd
            | Call::MapGet
            | Call::MapPut
            | Call::MapRemove
            | Call::Lock
            | Call::TryLock
            | Call::Unlock => self.state(request, &mut buffers),
            Call::TimeNs => Reply::Now(self.now_ns),
            Call::Notify => self.notify(request.arguments[0], buffers.inputs[0]),
            _ => self.region(request, &mut buffers),
        }
    }
}
