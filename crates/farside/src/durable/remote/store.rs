//! The program at the target: stores what messages bring, and answers once it is kept.

use super::plan::TargetStores;
use super::wire::{self, StoreRequest, StoreStatus};
use crate::canary;
use crate::durable::persistent::device_failure;
use crate::{Error, ErrorCode};
use farside_base::{
    Completion, CompletionKind, CompletionStatus, LinkId, LocalSlice, Operation, Receive,
    ReceiveQueueId, Source, Work, WorkFlags, WorkId,
};
use farside_fabric::{Port, Region, Stop};
use farside_fabric_shm::PersistentMapping;
use std::collections::VecDeque;
use std::io;

/// Persistent memory that a program stores to.
pub trait StorableMemory: Send {
    /// Returns its length in bytes.
    fn bytes(&self) -> u64;
    /// Copies bytes in, past the caches where possible. They are kept once a fence has passed.
    ///
    /// # Errors
    /// `InvalidInput` outside of it; then nothing is stored.
    fn store_non_temporal(&mut self, at: u64, bytes: &[u8]) -> io::Result<()>;
    /// Copies bytes in by plain stores.
    ///
    /// # Errors
    /// `InvalidInput` outside of it; then nothing is stored.
    fn store(&mut self, at: u64, bytes: &[u8]) -> io::Result<()>;
    /// Begins to write the lines of a range back.
    ///
    /// # Errors
    /// `InvalidInput` outside of it.
    fn write_back(&mut self, at: u64, bytes: u64) -> io::Result<()>;
    /// Returns once all that was written back or stored past the caches is kept.
    fn fence(&mut self);
}

impl StorableMemory for PersistentMapping {
    fn bytes(&self) -> u64 {
        Self::bytes(self)
    }

    fn store_non_temporal(&mut self, at: u64, bytes: &[u8]) -> io::Result<()> {
        Self::store_non_temporal(self, at, bytes)
    }

    fn store(&mut self, at: u64, bytes: &[u8]) -> io::Result<()> {
        Self::store(self, at, bytes)
    }

    fn write_back(&mut self, at: u64, bytes: u64) -> io::Result<()> {
        Self::write_back(self, at, bytes)
    }

    fn fence(&mut self) {
        Self::fence(self);
    }
}

/// Settings of a [`RemoteStore`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RemoteStoreOptions {
    /// Ids of its work requests: this one for answers, and the following `slots` for receives.
    pub first_id: u64,
    /// Receives that it keeps posted.
    pub slots: u32,
    /// Bytes of the longest message.
    pub message_bytes_max: u32,
}

impl Default for RemoteStoreOptions {
    /// 16 slots of 256 KiB, from id 0.
    fn default() -> Self {
        Self { first_id: 0, slots: 16, message_bytes_max: 256 << 10 }
    }
}

impl RemoteStoreOptions {
    /// Returns the bytes of the buffer that it needs.
    pub fn buffer_bytes(&self) -> u64 {
        u64::from(self.slots) * u64::from(self.message_bytes_max)
    }
}

/// Stores what the messages of [`RemotePersist`](super::RemotePersist) bring, on one port.
///
/// *Guarantees*: an answer is sent once all bytes of its message are in the persistence domain; a commit word is
/// stored only then, and answered once it is there too. Messages that are malformed or name other memory change
/// nothing and are refused. *Blocks*: no. *Cost*: two copies, one fence (two with a commit word), one SEND.
///
/// *Source*: 002 §4.1 (H2, H3), §4.2 (H4, H7).
pub struct RemoteStore {
    queue: ReceiveQueueId,
    buffer: Region,
    options: RemoteStoreOptions,
    memory: Box<dyn StorableMemory>,
    /// Answers that the port has not taken yet.
    answers: VecDeque<(LinkId, [u8; wire::ANSWER])>,
    stored: u64,
}

impl std::fmt::Debug for RemoteStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RemoteStore").field("options", &self.options).finish_non_exhaustive()
    }
}

impl RemoteStore {
    /// Posts the receives. Messages of all links of the queue are served.
    ///
    /// # Errors
    /// `BadConfiguration` if the buffer is shorter than [`RemoteStoreOptions::buffer_bytes`], or the queue does not take
    /// as many receives.
    pub fn new(
        port: &mut dyn Port,
        queue: ReceiveQueueId,
        buffer: Region,
        memory: Box<dyn StorableMemory>,
        options: RemoteStoreOptions,
    ) -> Result<Self, Error> {
        if buffer.token.bytes < options.buffer_bytes() {
            let text = format!(
                "the buffer of a remote store has {} B, and its slots need {} B: register more, or lower slots",
                buffer.token.bytes,
                options.buffer_bytes()
            );
            return Err(Error::with(ErrorCode::BadConfiguration, text));
        }
        let answers = VecDeque::new();
        let store = Self { queue, buffer, options, memory, answers, stored: 0 };
        (0..options.slots).try_for_each(|slot| store.receive(port, slot))?;
        Ok(store)
    }

    /// Returns the number of messages that it has stored.
    pub const fn stored(&self) -> u64 {
        self.stored
    }

    fn slice(&self, slot: u32) -> LocalSlice {
        let bytes = self.options.message_bytes_max;
        let offset = u64::from(slot) * u64::from(bytes);
        LocalSlice { region: self.buffer.id, offset, bytes }
    }

    fn receive(&self, port: &mut dyn Port, slot: u32) -> Result<(), Error> {
        let id = WorkId(self.options.first_id + 1 + u64::from(slot));
        let receive = Receive { id, queue: self.queue, into: self.slice(slot) };
        match port.post_receives(&[receive]).stop {
            None => Ok(()),
            Some(stop) => {
                let text = format!("remote store: the receive queue takes no more: {stop:?}");
                Err(Error::with(ErrorCode::BadConfiguration, text))
            }
        }
    }

    /// Handles a completion of the port. Returns whether it was of this store.
    ///
    /// # Errors
    /// `DeviceFailed` if the memory failed; the requester is notified. Those of [`new`](Self::new).
    pub fn on_completion(
        &mut self,
        port: &mut dyn Port,
        completion: &Completion,
    ) -> Result<bool, Error> {
        let Some(slot) = completion.id.0.checked_sub(self.options.first_id) else {
            return Ok(false);
        };
        if slot > u64::from(self.options.slots) {
            return Ok(false);
        }
        let Some(slot) = u32::try_from(slot).ok().and_then(|slot| slot.checked_sub(1)) else {
            // An answer has left, or its link is gone: the requester has its own error.
            self.answer(port);
            return Ok(true);
        };
        let is_message = completion.status == CompletionStatus::Success
            && completion.kind == CompletionKind::Receive;
        let outcome = if is_message { self.serve(slot, completion) } else { Ok(()) };
        self.receive(port, slot)?;
        self.answer(port);
        outcome.map(|()| true)
    }

    /// Stores a message, and queues its answer.
    fn serve(&mut self, slot: u32, completion: &Completion) -> Result<(), Error> {
        let mut message = vec![0; completion.bytes as usize];
        let read = self.buffer.memory().read(self.slice(slot).offset, &mut message);
        let request = match read {
            Ok(()) => wire::decode(&message),
            Err(_) => Err(0),
        };
        let (number, stored) = match request {
            Ok(request) => (request.number, self.store(&request, &message)),
            Err(number) => (number, Err(io::ErrorKind::InvalidInput.into())),
        };
        let status = match &stored {
            Ok(()) => StoreStatus::Kept,
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => StoreStatus::Refused,
            Err(_) => StoreStatus::Failed,
        };
        self.stored += u64::from(status == StoreStatus::Kept);
        self.answers.push_back((completion.link, wire::encode_answer(number, status)));
        match (status, stored) {
            (StoreStatus::Failed, Err(error)) => Err(device_failure("store to", &error)),
            _ => Ok(()),
        }
    }

    /// Brings a request's bytes into the persistence domain; its word only after all others.
    fn store(&mut self, request: &StoreRequest, message: &[u8]) -> io::Result<()> {
        let bytes = self.memory.bytes();
        let mut ends = request.parts.iter().map(|part| part.offset.checked_add(part.bytes as u64));
        if ends.any(|end| end.is_none_or(|end| end > bytes)) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let records = request.parts.len() - usize::from(request.has_word);
        for (number, part) in request.parts.iter().enumerate() {
            if number == records && !canary::mutant!(canary::nodes(), RemoteStoreWordNotBehind) {
                self.memory.fence();
            }
            let bytes = message.get(part.start..part.start + part.bytes).unwrap_or_default();
            match request.stores {
                TargetStores::NonTemporal => self.memory.store_non_temporal(part.offset, bytes)?,
                TargetStores::WriteBack => {
                    self.memory.store(part.offset, bytes)?;
                    if !canary::mutant!(canary::nodes(), RemoteStoreNotWrittenBack) {
                        self.memory.write_back(part.offset, bytes.len() as u64)?;
                    }
                }
            }
        }
        if !canary::mutant!(canary::nodes(), RemoteStoreNotFenced) {
            self.memory.fence();
        }
        Ok(())
    }

    /// Posts the answers that the port takes.
    fn answer(&mut self, port: &mut dyn Port) {
        while let Some((link, bytes)) = self.answers.front() {
            let work = Work {
                id: WorkId(self.options.first_id),
                link: *link,
                flags: WorkFlags { signalled: true, ..WorkFlags::default() },
                operation: Operation::Send { source: Source::Inline(bytes), immediate: None },
            };
            match port.post(&[work]).stop {
                Some(Stop::QueueFull | Stop::ReceiverNotReady) => return,
                // The link is closed: the requester gets its own error.
                _ => self.answers.pop_front(),
            };
        }
    }
}
