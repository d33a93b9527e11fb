//! Message port of calls: each message is one SEND into one receive, preceded by a WRITE of its output.

use crate::call::executor::Executor;
use crate::call::memory::remote::{BLOCK_BYTES, MemoryRequest};
use crate::registered::{Registered, control, not_reached};
use crate::{Error, ErrorCode};
use farside_base::{
    Access, Capabilities, Completion, CompletionKind, CompletionStatus, LinkId, LocalSlice,
    Operation, Receive, ReceiveQueueId, RegionId, RegionKind, RegionToken, RemoteRegionId,
    RemoteSlice, Source, Work, WorkFlags, WorkId,
};
use farside_fabric::{Fabric, LinkEvent, Port, PortSpec, Stop, Waiter};
use farside_protocol::call::Header;
use std::collections::VecDeque;
use std::sync::Arc;

/// Most messages posted with one doorbell; each may need two work requests.
const BATCH: usize = 16;
/// Completions polled at a time.
const COMPLETIONS: usize = 64;
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

/// A message that waits to be posted. Its body is in the outbox, after space for a header.
#[derive(Clone, Copy, Debug)]
struct Outgoing {
    link: LinkId,
    header: u32,
    slot: u64,
    bytes: u32,
    output: Option<OutputWrite>,
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

/// An event of a link.
pub(crate) enum CallLinkEvent {
    /// A peer wants to connect, with this hello.
    Requested(LinkId, Vec<u8>),
    /// The peer accepted, with this reply.
    Connected(LinkId, Vec<u8>),
    /// The peer refused, for this reason.
    Refused(LinkId, Vec<u8>),
    /// The peer was not reached.
    NotReached(LinkId, Error),
    Lost(LinkId),
}

/// A port with receives and an outbox: all that calls use of a fabric.
pub(crate) struct MessagePort {
    fabric: Arc<dyn Fabric>,
    port: Box<dyn Port>,
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
    /// Messages that their links cannot take at present; empty except during a flush.
    held: VecDeque<Outgoing>,
    completions: Box<[Completion; COMPLETIONS]>,
    /// Completions polled but not handled yet.
    taken: std::ops::Range<usize>,
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
        let spec = PortSpec { listen: listen.map(str::to_owned) };
        let mut port = fabric.open(&spec).map_err(|error| control(&error))?;
        let header = Header::BYTES as u32;
        let receive_bytes = (sizes.receive_bytes + header).next_multiple_of(8);
        let slot_bytes = u64::from((sizes.send_bytes + header).next_multiple_of(8));
        let inbox = Registered::own(fabric, u64::from(receive_bytes) * sizes.receives as u64)?;
        let outbox = Registered::own(fabric, slot_bytes * sizes.slots as u64)?;
        let queue = port.create_receive_queue(sizes.receives).map_err(|error| control(&error))?;
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
            completions: Box::new([Completion::BLANK; COMPLETIONS]),
            taken: 0..0,
            body: Vec::with_capacity(receive_bytes as usize),
        };
        for slot in 0..sizes.receives as u64 {
            port.post_receive(slot)?;
        }
        Ok(port)
    }

    fn post_receive(&mut self, slot: u64) -> Result<(), Error> {
        let bytes = self.receive_bytes;
        let offset = slot * u64::from(bytes);
        let into = LocalSlice { region: self.inbox.region.id, offset, bytes };
        let receive = Receive { id: WorkId(RECEIVES | slot), queue: self.queue, into };
        match self.port.post_receives(&[receive]).stop {
            None => Ok(()),
            Some(stop) => {
                let text = format!("a receive was not taken: {stop:?}");
                Err(Error::with(ErrorCode::BadConfiguration, text))
            }
        }
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
        let bytes = u32::try_from(parts[0].len() + parts[1].len()).unwrap_or(0);
        let (header, slot) = (header.encode(), slot as u64 * self.slot_bytes);
        self.outgoing.push_back(Outgoing { link, header, slot, bytes, output });
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
        let (header, slot) = (header.encode(), slot as u64 * self.slot_bytes);
        self.outgoing.push_back(Outgoing { link, header, slot, bytes, output: None });
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
        while forbidden.is_none() && !self.outgoing.is_empty() {
            // Most messages are posted alone; arrays for a whole batch are costly to fill.
            let flushed = match self.outgoing.len() {
                1 => self.post_some::<1, 2>(),
                _ => self.post_some::<BATCH, { 2 * BATCH }>(),
            };
            match flushed {
                Flushed::All => {}
                Flushed::Full(link) => {
                    let held = &mut self.held;
                    self.outgoing.retain(|message| {
                        let stays = message.link != link;
                        if !stays {
                            held.push_back(*message);
                        }
                        stays
                    });
                }
                Flushed::Forbidden(link) => forbidden = Some(link),
            }
        }
        // Appended after the remaining messages of other links.
        self.outgoing.append(&mut self.held);
        forbidden
    }

    /// Posts up to `MESSAGES_MAX` messages and their outputs with one doorbell.
    fn post_some<const MESSAGES_MAX: usize, const WORK_MAX: usize>(&mut self) -> Flushed {
        let count = self.outgoing.len().min(MESSAGES_MAX);
        let Some(first) = self.outgoing.front().copied() else {
            return Flushed::All;
        };
        let region = self.outbox.region.id;
        let arena = &self.outbox.region.arena;
        let message = |at: usize| self.outgoing.get(at).copied().unwrap_or(first);
        let slices: [[LocalSlice; 2]; MESSAGES_MAX] = std::array::from_fn(|at| {
            let message = message(at);
            let output = message.output.map(|output| output.from);
            [self.sent_part(&message, region), output.unwrap_or(self.sent_part(&message, region))]
        });
        let mut inline = [[0; INLINE_BYTES]; MESSAGES_MAX];
        for (at, bytes) in inline.iter_mut().enumerate().take(count) {
            let body = slices[at][0];
            if body.bytes as usize <= self.inline_bytes {
                let _ = arena.read(body.offset, &mut bytes[..body.bytes as usize]);
            }
        }
        let blank = self.message_work(&first, &slices[0], &inline[0]);
        let mut work = [blank; WORK_MAX];
        let mut ends = [0; MESSAGES_MAX];
        let mut length = 0;
        for at in 0..count {
            let message = message(at);
            if let Some(output) = message.output {
                work[length] = output_work(&message, &output, &slices[at]);
                length += 1;
            }
            work[length] = self.message_work(&message, &slices[at], &inline[at]);
            length += 1;
            ends[at] = length;
        }
        let posted = self.port.post(&work[..length]);
        // An output posted without its message is written again with the next doorbell.
        let whole = ends[..count].iter().take_while(|end| **end <= posted.accepted).count();
        let next = message(whole).link;
        self.outgoing.drain(..whole);
        match posted.stop {
            None => Flushed::All,
            Some(Stop::Invalid(_)) => Flushed::Forbidden(next),
            // Also if the peer accepts nothing at present: what was posted precedes the held messages.
            Some(_) => Flushed::Full(next),
        }
    }

    /// Returns the part of the outbox that is sent.
    fn sent_part(&self, message: &Outgoing, region: RegionId) -> LocalSlice {
        let header = Header::BYTES as u32;
        let (skipped, bytes) =
            if self.immediate { (header, message.bytes) } else { (0, message.bytes + header) };
        LocalSlice { region, offset: message.slot + u64::from(skipped), bytes }
    }

    fn message_work<'a>(
        &self,
        message: &Outgoing,
        slices: &'a [LocalSlice; 2],
        inline: &'a [u8; INLINE_BYTES],
    ) -> Work<'a> {
        let bytes = slices[0].bytes as usize;
        let source = match bytes <= self.inline_bytes {
            true => Source::Inline(&inline[..bytes]),
            false => Source::Gather(&slices[..1]),
        };
        let immediate = self.immediate.then_some(message.header);
        let operation = Operation::Send { source, immediate };
        let flags = WorkFlags { awaited: true, ..WorkFlags::default() };
        Work { id: WorkId(MESSAGES), link: message.link, flags, operation }
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
        loop {
            if self.taken.is_empty() {
                let count = self.port.poll(&mut self.completions[..]);
                self.taken = 0..count;
            }
            let at = self.taken.next()?;
            let completion = self.completions[at];
            if let Some(event) = self.event(&completion) {
                return Some(event);
            }
        }
    }

    fn event(&mut self, completion: &Completion) -> Option<PortEvent> {
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
        let again = self.post_receive(slot);
        debug_assert!(again.is_ok(), "{again:?}");
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

    /// Returns the events of links.
    pub(crate) fn link_events(&mut self) -> Vec<CallLinkEvent> {
        let mut events = Vec::new();
        self.port.link_events(&mut events);
        let event = |event| {
            Some(match event {
                LinkEvent::Requested { link, hello } => CallLinkEvent::Requested(link, hello),
                LinkEvent::Connected { link, reply } => CallLinkEvent::Connected(link, reply),
                LinkEvent::Refused { link, reason } => CallLinkEvent::Refused(link, reason),
                LinkEvent::NotReached { link, why } => {
                    CallLinkEvent::NotReached(link, not_reached(why, self.port.trouble(link)))
                }
                LinkEvent::Lost { link, .. } => CallLinkEvent::Lost(link),
                _ => return None,
            })
        };
        events.into_iter().filter_map(event).collect()
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
        self.port.connect(name, hello, self.queue).map_err(|error| control(&error))
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

    pub(crate) fn import(
        &mut self,
        link: LinkId,
        token: &RegionToken,
    ) -> Result<RemoteRegionId, Error> {
        self.port.import(link, token).map_err(|error| control(&error))
    }

    /// Returns what is known of the failure of a link.
    pub(crate) fn trouble(&self, link: LinkId) -> Option<String> {
        self.port.trouble(link)
    }

    pub(crate) fn path(&self, link: LinkId) -> String {
        self.port.path(link)
    }

    pub(crate) fn address(&self) -> Option<String> {
        self.port.address()
    }

    /// Returns the port, to be waited for.
    pub(crate) fn port(&mut self) -> &mut dyn Port {
        &mut *self.port
    }

    pub(crate) fn waiter(&self) -> Arc<dyn Waiter> {
        self.port.waiter()
    }

    /// Whether messages wait for space in the port.
    pub(crate) fn has_backlog(&self) -> bool {
        !self.outgoing.is_empty()
    }
}

fn output_work<'a>(
    message: &Outgoing,
    output: &OutputWrite,
    slices: &'a [LocalSlice; 2],
) -> Work<'a> {
    let to = RemoteSlice { region: output.region, offset: output.offset };
    let source = Source::Gather(&slices[1..]);
    let operation = Operation::Write { source, to, immediate: None };
    Work { id: WorkId(MESSAGES), link: message.link, flags: WorkFlags::default(), operation }
}

enum Flushed {
    All,
    /// The link takes no more at present.
    Full(LinkId),
    Forbidden(LinkId),
}
