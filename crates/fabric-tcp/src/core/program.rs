//! Operations of the program on a port's core: posting requests, accepting and refusing links.

use super::{LinkSlotState, PortCore};
use crate::link::{Phase, TcpLink};
use crate::wire::{FrameKind, OUTSTANDING_MAX};
use farside_base::{Capabilities, CompletionStatus, LinkId, ReceiveQueueId, Work};
use farside_fabric::{FabricError, HELLO_BYTES_MAX, Parts, Posted, Stop};

impl PortCore {
    /// Accepts one request.
    fn take(&mut self, work: &Work<'_>, capabilities: &Capabilities) -> Result<(), Stop> {
        let parts = Parts::of(&work.operation);
        let slot = self.slots.get_mut(work.link.0 as usize).ok_or(Stop::Invalid("link"))?;
        let next = match &mut slot.state {
            LinkSlotState::Open(link) => {
                if !link.is_connected() {
                    return Err(Stop::Invalid("link"));
                }
                parts.check(capabilities)?;
                let mut token = None;
                if let Some(remote) = parts.remote {
                    token = self.imports.find(work.link, remote.region);
                    if token.is_none() {
                        for slice in parts.local {
                            self.queues.local(slice)?;
                        }
                        return Err(Stop::Invalid("remote region"));
                    }
                }
                return link.requester.post(work, &parts, token, &self.queues);
            }
            LinkSlotState::Disconnected { next, .. } => Some(next),
            LinkSlotState::Closed => None,
        };
        parts.check(capabilities)?;
        for slice in parts.local {
            self.queues.local(slice)?;
        }
        if self.queues.unpolled(work.link) >= OUTSTANDING_MAX {
            return Err(Stop::QueueFull);
        }
        let flushed = CompletionStatus::Flushed;
        let status = next.map_or(flushed, |next| std::mem::replace(next, flushed));
        self.queues.finish(work.link, (work.id, parts.kind), 0, status);
        Ok(())
    }

    pub(crate) fn post(
        &mut self,
        list: &[Work<'_>],
        capabilities: &Capabilities,
        claimed: bool,
    ) -> Posted {
        let mut stop = None;
        let mut accepted = 0;
        let mut last = None;
        for work in list {
            // Most lists are for one link; requests of another are flushed when the list changes to it.
            if let Some(before) = last.replace(work.link)
                && before != work.link
            {
                self.flush(before, false);
            }
            let mut taken = self.take(work, capabilities);
            if taken == Err(Stop::QueueFull) {
                // Answers received meanwhile may make room.
                self.serve(work.link, false);
                taken = self.take(work, capabilities);
            }
            match taken {
                Ok(()) => accepted += 1,
                Err(reason) => {
                    stop = Some(reason);
                    break;
                }
            }
        }
        if let Some(last) = last {
            self.flush_posted(last, claimed);
        }
        Posted { accepted, stop }
    }

    pub(crate) fn check_hello(bytes: &[u8]) -> Result<(), FabricError> {
        if bytes.len() > HELLO_BYTES_MAX { Err(FabricError::Limit("hello")) } else { Ok(()) }
    }

    /// Returns the link if the program may answer the peer's request for it.
    fn requested(&mut self, id: LinkId) -> Result<&mut TcpLink, FabricError> {
        let unknown = FabricError::Unknown("link");
        let slot = self.slots.get_mut(id.0 as usize).ok_or(FabricError::Unknown("link"))?;
        match &mut slot.state {
            LinkSlotState::Open(link) if matches!(link.phase, Phase::Requested) => Ok(link),
            LinkSlotState::Disconnected { queue: None, .. } => Err(FabricError::PeerLost),
            _ => Err(unknown),
        }
    }

    pub(crate) fn accept(
        &mut self,
        id: LinkId,
        reply: &[u8],
        receives: ReceiveQueueId,
    ) -> Result<(), FabricError> {
        Self::check_hello(reply)?;
        if matches!(self.requested(id), Err(FabricError::PeerLost)) {
            self.forget(id);
            self.queues.forget_events(id);
            return Err(FabricError::PeerLost);
        }
        self.requested(id)?;
        self.queues.join(receives)?;
        let link = self.requested(id)?;
        link.queue = Some(receives);
        link.accept(reply);
        self.flush(id, false);
        Ok(())
    }

    pub(crate) fn refuse(&mut self, id: LinkId, reason: &[u8]) -> Result<(), FabricError> {
        Self::check_hello(reason)?;
        match self.requested(id) {
            Ok(link) => {
                link.stage_control(FrameKind::Declined, 0, reason);
                self.flush(id, false);
            }
            Err(FabricError::PeerLost) => {}
            Err(unknown) => return Err(unknown),
        }
        self.forget(id);
        self.queues.forget_events(id);
        Ok(())
    }
}
