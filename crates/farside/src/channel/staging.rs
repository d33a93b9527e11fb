//! Staging memory for messages that are too long to be inline.

use super::sender::Ticket;
use crate::Error;
use crate::registered::Registered;
use farside_base::LocalSlice;
use farside_fabric::Fabric;
use std::collections::VecDeque;
use std::sync::Arc;

/// Most staged messages in flight.
const PLACES: u32 = 16;

/// Registered memory for copies of messages, used round robin.
pub(super) struct Staging {
    memory: Registered,
    step: u64,
    next: u32,
    /// The messages whose slots are in use, oldest first.
    busy: VecDeque<Ticket>,
}

impl Staging {
    pub(super) fn new(fabric: &Arc<dyn Fabric>, message_bytes_max: u32) -> Result<Self, Error> {
        let step = u64::from(message_bytes_max).next_multiple_of(64);
        let memory = Registered::own(fabric, step * u64::from(PLACES))?;
        let busy = VecDeque::with_capacity(PLACES as usize);
        Ok(Self { memory, step, next: 0, busy })
    }

    /// Copies a message to the next slot, if it is free. Without [`Self::keep`] the slot stays free.
    pub(super) fn write(&self, message: &[u8]) -> Option<LocalSlice> {
        if self.busy.len() == PLACES as usize {
            return None;
        }
        let offset = u64::from(self.next) * self.step;
        let region = &self.memory.region;
        region.arena.write(offset, message).ok()?;
        Some(LocalSlice { region: region.id, offset, bytes: message.len() as u32 })
    }

    /// Marks the last written slot as in flight.
    pub(super) fn keep(&mut self, ticket: Ticket) {
        self.busy.push_back(ticket);
        self.next = (self.next + 1) % PLACES;
    }

    pub(super) fn oldest(&self) -> Option<Ticket> {
        self.busy.front().copied()
    }

    pub(super) fn drop_oldest(&mut self) {
        self.busy.pop_front();
    }
}
