//! Message port of calls: each message is one SEND into one receive, preceded by a WRITE of its output.

use crate::call::executor::Executor;
use crate::call::memory::remote::{BLOCK_BYTES, MemoryRequest};
use crate::progress::EnginePort;
use crate::registered::{Registered, control};
use crate::{Error, ErrorCode};
use farside_base::{
    Access, Capabilities, Completion, CompletionKind, CompletionStatus, LinkId, LocalSlice,
    Operation, ReceiveQueueId, RegionId, RegionKind, RemoteRegionId, RemoteSlice, Source, Work,
    WorkFlags, WorkId,
};
use farside_fabric::{Fabric, Stop};
use farside_protocol::call::Header;
use std::collections::VecDeque;
use std::sync::Arc;

/// Most messages posted with one doorbell; each may need two work requests.
const BATCH: usize = 16;
/// Messages up to this length are sent inline, if the fabric allows it.
const INLINE_BYTES: usize = 64;

/// Kinds of work request ids: receives carry their slot, requests of an executor their block.
const RECEIVES: u64 = 1 << 62;
const ACCESSES: u64 = 1 << 61;
const MESSAGES: u64 = 1 << 60;

/// Bytes written to memory of the receiver before a message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OutputWrite {
    pub(crate) from: LocalSlice,
    pub(crate) region: RemoteRegionId,
    pub(crate) offset: u64,
}

/// A work request that waits to be posted: the WRITE of an output, or the SEND of a message.
#[derive(Clone, Copy, Debug)]
struct Outgoing {
    link: LinkId,
    from: LocalSlice,
    /// Where an output is written.
    to: Option<RemoteSlice>,
    immediate: Option<u32>,
    /// The bytes of a message, if they are sent inline.
    inline: Option<[u8; INLINE_BYTES]>,
}

impl Outgoing {
    #[inline]
    fn work(&self) -> Work<'_> {
        let source = match &self.inline {
            Some(inline) => Source::Inline(&inline[..self.from.bytes as usize]),
            None => Source::Gather(std::slice::from_ref(&self.from)),
        };
        let (awaited, operation) = match self.to {
            Some(to) => (false, Operation::Write { source, to, immediate: None }),
            None => (true, Operation::Send { source, immediate: self.immediate }),
        };
        let flags = WorkFlags { awaited, ..WorkFlags::default() };
        Work { id: WorkId(MESSAGES), link: self.link, flags, operation }
    }
}

/// An event of the port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PortEvent {
    /// A message is in [`MessagePort::body`]; this is its header.
    Message(LinkId, u32),
    /// A request of an executor has completed.
    AccessCompleted(usize, CompletionStatus),
    /// A message could not be sent or received: the link has failed.
    LinkFailed(LinkId, CompletionStatus),
}

/// A port with receives and an outbox: all that calls use of a fabric.
pub(crate) struct MessagePort {
    fabric: Arc<dyn Fabric>,
    pub(crate) port: EnginePort,
    queue: ReceiveQueueId,
    inbox: Registered,
    /// Bytes of a receive.
    receive_bytes: u32,
    outbox: Registered,
    /// Bytes of a slot of the outbox.
    slot_bytes: u64,
    immediate: bool,
    inline_bytes: usize,
    outgoing: VecDeque<Outgoing>,
    /// Requests that their links cannot take at present; empty except during a flush.
    held: VecDeque<Outgoing>,
    /// The body of the last message.
    pub(crate) body: Vec<u8>,
}

/// Sizes of a [`MessagePort`].
pub(crate) struct MessagePortSizes {
    /// Posted receives.
    pub(crate) receives: usize,
    /// Bytes of the longest message received.
    pub(crate) receive_bytes: u32,
    /// Slots of the outbox.
    pub(crate) slots: usize,
    /// Bytes of the longest message sent.
    pub(crate) send_bytes: u32,
}

/// Returns a capability that calls need and the fabric lacks.
fn missing(has: &Capabilities) -> Option<&'static str> {
    let needs = [
        (has.send, "send"),
        (has.write, "write"),
        (has.read, "read"),
        (has.message_order, "message_order"),
        (has.shared_receive_queue, "shared_receive_queue"),
    ];
    needs.into_iter().find(|(has, _)| !has).map(|(_, name)| name)
}

impl MessagePort {
    pub(crate) fn open(
        fabric: &Arc<dyn Fabric>,
        listen: Option<&str>,
        sizes: &MessagePortSizes,
    ) -> Result<Self, Error> {
        let has = fabric.capabilities();
        if let Some(name) = missing(&has) {
            let text = format!("calls need `{name}`, which {} lacks", fabric.name());
            return Err(Error::with(ErrorCode::FabricLacks, text));
        }
        let mut port = EnginePort::open(&**fabric, listen.map(str::to_owned))?;
        let header = Header::BYTES as u32;
        let receive_bytes = (sizes.receive_bytes + header).next_multiple_of(8);
        let slot_bytes = u64::from((sizes.send_bytes + header).next_multiple_of(8));
        let inbox = Registered::own(fabric, u64::from(receive_bytes) * sizes.receives as u64)?;
        let outbox = Registered::own(fabric, slot_bytes * sizes.slots as u64)?;
        let queue = port.create_receive_queue(sizes.receives)?;
        let mut port = Self {
            fabric: Arc::clone(fabric),
            port,
            queue,
            inbox,
            receive_bytes,
            outbox,
            slot_bytes,
            immediate: has.immediate,
            inline_bytes: (has.inline_bytes_max as usize).min(INLINE_BYTES),
            outgoing: VecDeque::new(),
            held: VecDeque::new(),
            body: Vec::with_capacity(receive_bytes as usize),
        };
        for slot in 0..sizes.receives as u64 {
            port.post_receive(slot);
        }
        Ok(port)
    }

    fn post_receive(&mut self, slot: u64) {
        let bytes = self.receive_bytes;
        let offset = slot * u64::from(bytes);
        let into = LocalSlice { region: self.inbox.region.id, offset, bytes };
        self.port.post_receive(WorkId(RECEIVES | slot), self.queue, into);
    }

    /// Queues a message of these parts, copied into a slot of the outbox. The slot must not be reused before the
    /// message was answered. The next [`Self::flush`] posts it.
    pub(crate) fn send(
        &mut self,
        link: LinkId,
        header: Header,
        slot: usize,
        parts: [&[u8]; 2],
        output: Option<OutputWrite>,
    ) {
        self.put(header, slot, parts);
        if let Some(OutputWrite { from, region, offset }) = output {
            let to = Some(RemoteSlice { region, offset });
            self.outgoing.push_back(Outgoing { link, from, to, immediate: None, inline: None });
        }
        let bytes = u32::try_from(parts[0].len() + parts[1].len()).unwrap_or(0);
        self.send_again(link, header, slot, bytes);
    }

    /// Copies a message into a slot of the outbox, to be sent by [`Self::send_again`].
    pub(crate) fn put(&self, header: Header, slot: usize, parts: [&[u8]; 2]) {
        let offset = slot as u64 * self.slot_bytes;
        let arena = &self.outbox.region.arena;
        // Callers check lengths: a message fits its slot.
        if !self.immediate {
            let _ = arena.write(offset, &u64::from(header.encode()).to_le_bytes());
        }
        let _ = arena.write(offset + Header::BYTES as u64, parts[0]);
        if !parts[1].is_empty() {
            let behind = offset + (Header::BYTES + parts[0].len()) as u64;
            let _ = arena.write(behind, parts[1]);
        }
    }

    /// Sends the message that is still in a slot of the outbox again.
    pub(crate) fn send_again(&mut self, link: LinkId, header: Header, slot: usize, bytes: u32) {
        let head = Header::BYTES as u32;
        let (skipped, bytes) = if self.immediate { (head, bytes) } else { (0, bytes + head) };
        let offset = slot as u64 * self.slot_bytes + u64::from(skipped);
        let from = LocalSlice { region: self.outbox.region.id, offset, bytes };
        let inline = (bytes as usize <= self.inline_bytes).then(|| {
            let mut inline = [0; INLINE_BYTES];
            let _ = self.outbox.region.arena.read(offset, &mut inline[..bytes as usize]);
            inline
        });
        let immediate = self.immediate.then_some(header.encode());
        self.outgoing.push_back(Outgoing { link, from, to: None, immediate, inline });
    }

    /// Sends the last message of a link: this end does not reconnect. Needs no slot of the outbox if the fabric
    /// carries immediates; otherwise it overwrites slot 0, whose answer is no longer awaited.
    pub(crate) fn leave(&mut self, link: LinkId) {
        self.forget(link);
        self.send(link, Header::LEAVE, 0, [&[], &[]], None);
        let _ = self.flush();
    }

    /// Drops the queued messages of a link that was closed.
    fn forget(&mut self, link: LinkId) {
        self.outgoing.retain(|message| message.link != link);
    }

    /// Posts queued messages as far as the port takes them; a full link delays no other. Returns a link whose
    /// message the fabric rejects.
    #[inline]
    pub(crate) fn flush(&mut self) -> Option<LinkId> {
        // Most polls have nothing to send.
        if self.outgoing.is_empty() { None } else { self.flush_some() }
    }

    #[inline(never)]
    fn flush_some(&mut self) -> Option<LinkId> {
        let mut forbidden = None;
        while forbidden.is_none() {
            let Self { outgoing, held, port, .. } = self;
            let work = |at: usize| outgoing.get(at).map(Outgoing::work);
            let mut messages = (0..outgoing.len()).filter(|at| outgoing[*at].to.is_none());
            let count = messages.nth(BATCH - 1).map_or(outgoing.len(), |last| last + 1);
            let Some(posted) = port.post_batch::<{ 2 * BATCH }>(count, work) else { break };
            outgoing.drain(..posted.accepted);
            let Some(next) = outgoing.front().map(|next| next.link) else { break };
            match posted.stop {
                None => {}
                Some(Stop::Invalid(_)) => forbidden = Some(next),
                // Also if the peer accepts nothing at present: what was posted precedes the held requests.
                Some(_) => outgoing.retain(|one| {
                    let stays = one.link != next;
                    if !stays {
                        held.push_back(*one);
                    }
                    stays
                }),
            }
        }
        // Appended after the remaining requests of other links.
        self.outgoing.append(&mut self.held);
        forbidden
    }

    /// Posts the requests of an executor with this scratch memory as far as the port takes them; returns whether it
    /// took any.
    pub(crate) fn post_requests(&mut self, executor: &mut Executor, scratch: RegionId) -> bool {
        let mut posted_any = false;
        while let Some((request, block)) = executor.scratch.next_post() {
            match self.post_request(request, *block, scratch) {
                Ok(true) => {
                    executor.scratch.posted();
                    posted_any = true;
                }
                Ok(false) => break,
                Err(_) => executor.not_posted(),
            }
        }
        posted_any
    }

    /// Posts one request; returns whether the port posted_any it, or why it never will.
    fn post_request(
        &mut self,
        request: &MemoryRequest,
        block: usize,
        scratch: RegionId,
    ) -> Result<bool, &'static str> {
        let id = WorkId(ACCESSES | block as u64);
        let port = &mut self.port;
        let posted =
            request.post(id, scratch, block as u64 * BLOCK_BYTES, |work| port.post(&[work]));
        match posted.stop {
            None => Ok(true),
            Some(Stop::Invalid(why)) => Err(why),
            Some(_) => Ok(false),
        }
    }

    /// Returns the next event, if any.
    pub(crate) fn next(&mut self) -> Option<PortEvent> {
        while let Some(completion) = self.port.next(true) {
            let event = self.decode(&completion);
            if event.is_some() {
                return event;
            }
        }
        None
    }

    /// Returns the event of a completion, if it has one.
    pub(crate) fn decode(&mut self, completion: &Completion) -> Option<PortEvent> {
        let Completion { id: WorkId(id), link, status, .. } = *completion;
        if id & ACCESSES != 0 {
            let block = usize::try_from(id & (ACCESSES - 1)).unwrap_or(usize::MAX);
            return Some(PortEvent::AccessCompleted(block, status));
        }
        let received =
            matches!(completion.kind, CompletionKind::Receive | CompletionKind::ReceiveImmediate);
        if !received {
            let failed = status != CompletionStatus::Success;
            return failed.then_some(PortEvent::LinkFailed(link, status));
        }
        let slot = id & (RECEIVES - 1);
        let arrived = status == CompletionStatus::Success;
        let header = if arrived { self.receive(slot, completion) } else { None };
        // The completion just polled has left a free entry in the queue.
        self.post_receive(slot);
        match header {
            Some(header) => Some(PortEvent::Message(link, header)),
            None => Some(PortEvent::LinkFailed(link, status)),
        }
    }

    /// Copies a message out; returns its header, or `None` if it has none.
    fn receive(&mut self, slot: u64, completion: &Completion) -> Option<u32> {
        let bytes = completion.bytes.min(self.receive_bytes) as usize;
        let offset = slot * u64::from(self.receive_bytes);
        self.body.resize(bytes, 0);
        self.inbox.region.arena.read(offset, &mut self.body).ok()?;
        if self.immediate {
            return completion.immediate;
        }
        let (header, _) = self.body.split_first_chunk::<{ Header::BYTES }>()?;
        let header = u32::try_from(u64::from_le_bytes(*header)).ok()?;
        self.body.drain(..Header::BYTES);
        Some(header)
    }

    /// Returns the time of the fabric.
    pub(crate) fn time_ns(&self) -> u64 {
        self.fabric.time_ns()
    }

    /// Returns how long the fabric lets a peer be silent.
    pub(crate) fn lease_ns(&self) -> u64 {
        self.fabric.lease_ns()
    }

    pub(crate) fn fabric(&self) -> &Arc<dyn Fabric> {
        &self.fabric
    }

    /// Registers memory with this access for peers.
    pub(crate) fn register(&self, bytes: u64, access: Access) -> Result<Registered, Error> {
        Registered::new(&self.fabric, bytes, access, RegionKind::Memory)
    }

    pub(crate) fn connect(&mut self, name: &str, hello: &[u8]) -> Result<LinkId, Error> {
        self.port.connect(name, hello, self.queue)
    }

    pub(crate) fn accept(&mut self, link: LinkId, reply: &[u8]) -> Result<(), Error> {
        self.port.accept(link, reply, self.queue).map_err(|error| control(&error))
    }

    /// Refuses a peer, which may be gone already.
    pub(crate) fn refuse(&mut self, link: LinkId, reason: &[u8]) {
        let _ = self.port.refuse(link, reason);
    }

    /// Closes a link and drops its queued messages.
    pub(crate) fn close(&mut self, link: LinkId) {
        self.forget(link);
        self.port.close(link);
    }

    /// Whether messages wait for space in the port.
    pub(crate) fn has_backlog(&self) -> bool {
        !self.outgoing.is_empty()
    }
}
