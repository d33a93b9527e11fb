//! A port: its links, queues and tables. This file is the side that may call the kernel; requests
//! are in [`post`], messages that arrive in [`poll`].

mod cache;
mod closing;
mod import;
mod link;
mod poll;
mod post;

use crate::bell::{self, SharedBell, ShmWaiter};
use crate::connection::{Answer, Connection, ConnectionStage, Inbound, Inbox, KnownPeer};
use crate::control::{Control, Inner};
use crate::layout::{LINKS_MAX, board};
use crate::mapping::{OwnMemory, OwnWord, PeerMappings, PeerMemory, SharedMapping, prefault_peer};
use crate::message::{ControlMessage, DESCRIPTORS_MAX, Grant};
use crate::options::CAPABILITIES;
use crate::queue::{CompletionQueue, ShmReceiveQueue};
use crate::ring::{Consumer, Producer};
use crate::socket;
use cache::RegionCache;
use closing::{AskedImport, Landing, ask_for};
use farside_base::{
    Access, Completion, CompletionStatus, LinkId, Operation, Receive, ReceiveQueueId, RegionKind,
    RegionToken, RemoteRegionId, Work,
};
use farside_fabric::{
    Arena, FabricError, HELLO_BYTES_MAX, LinkEvent, Loss, PeerProcess, Port, PortSpec, Posted,
    Reached, RunNow, SharedWord, Stop, Waiter,
};
use import::ImportTable;
use link::{LinkHealth, LinkSlot, PendingLink, ShmLink};
use poll::PolledLink;
use rustix::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Most receives of one queue.
const RECEIVES_MAX: usize = 1 << 16;

/// Polls in a row that may return completions of requests alone; the next one checks for messages too.
/// The check touches a line of every link: this keeps it out of most round trips of a program that
/// posts and polls one request at a time, and delays a message by some 100 ns.
const PASSED_OVER_MAX: u32 = 7;

/// One port of a shared-memory fabric. In cache lines of its own, in pairs as they are prefetched.
#[repr(align(128))]
pub(crate) struct ShmPort {
    /// Keeps the control thread.
    _control: Arc<Control>,
    inner: Arc<Inner>,
    number: u32,
    /// The name at which it listens.
    name: Option<String>,
    inbox: Arc<Inbox>,
    bell: SharedBell,
    waiter: Arc<ShmWaiter<SharedBell>>,
    /// By number. Closed links leave a small entry, since numbers are not reused.
    links: Vec<LinkSlot>,
    /// The open links, as a check for messages needs them.
    open: Vec<PolledLink>,
    /// The index in `open` at which the next check begins.
    turn: usize,
    /// Polls since the last check.
    passed_over: u32,
    imports: ImportTable,
    regions: RegionCache,
    completions: CompletionQueue,
    queues: Vec<ShmReceiveQueue>,
    /// Lost links with messages that were not taken yet.
    losing: Vec<LinkId>,
    /// Requests of peers that had begun when their links were closed locally, and may still write.
    landing: Vec<Landing>,
    /// Pending imports.
    asked: Vec<AskedImport>,
    /// This port's in-flight word.
    work_word: OwnWord,
    /// A peer, or this process, does not support its half of the light and heavy barrier.
    careful: bool,
}

impl ShmPort {
    pub(crate) fn open(control: &Arc<Control>, spec: &PortSpec) -> Result<Self, FabricError> {
        let inner = &control.inner;
        let (number, inbox) = inner.take_port()?;
        let bell = inbox.bell().clone();
        let work_word = OwnWord::new(&inner.board.arena, board::in_flight(number));
        let port = Self {
            _control: Arc::clone(control),
            inner: Arc::clone(inner),
            number,
            name: spec.listen.clone(),
            waiter: Arc::new(ShmWaiter::new(bell.clone())),
            bell,
            links: Vec::new(),
            open: Vec::new(),
            turn: 0,
            passed_over: 0,
            imports: ImportTable::default(),
            regions: RegionCache::new(),
            completions: CompletionQueue::new(CAPABILITIES.outstanding_max),
            queues: Vec::new(),
            losing: Vec::new(),
            landing: Vec::new(),
            asked: Vec::new(),
            work_word: work_word.ok_or(FabricError::Limit("ports"))?,
            careful: !inner.barriers,
            inbox,
        };
        bell::disarm(&port.bell);
        if let Some(name) = &spec.listen {
            inner.listen(name, &port.inbox)?;
        }
        Ok(port)
    }

    fn inner(&self) -> &Inner {
        &self.inner
    }

    /// Returns the memory for this end of a link, and the descriptors that the peer gets.
    fn link_memory(&self) -> Result<SharedMapping, FabricError> {
        let bytes = self.inner().geometry().bytes();
        SharedMapping::new("farside-link", bytes, PeerMappings::Read)
            .map_err(|reason| FabricError::System("link memory", reason))
    }

    /// Returns the descriptors sent with a hello or its answer.
    fn handed<'a>(&'a self, memory: &'a SharedMapping) -> [BorrowedFd<'a>; DESCRIPTORS_MAX] {
        let inner = self.inner();
        [memory.descriptor.as_fd(), inner.board.descriptor.as_fd(), inner.bells.descriptor.as_fd()]
    }

    fn slot_mut(&mut self, link: LinkId) -> &mut LinkSlot {
        let at = link.0 as usize;
        if at >= self.links.len() {
            self.links.resize_with(at + 1, || LinkSlot::Absent);
        }
        &mut self.links[at]
    }

    /// Makes a link usable.
    fn establish(
        &mut self,
        connection: Arc<Connection>,
        own: Arena,
        peer: KnownPeer,
        queue: ReceiveQueueId,
    ) {
        if !peer.barriers {
            // Before anything can arrive over the link.
            self.careful = true;
        }
        let geometry = self.inner().geometry();
        let number = connection.link;
        let own = OwnMemory::new(own);
        let link = ShmLink {
            producer: Producer::new(own.clone(), peer.memory.clone(), geometry),
            consumer: Consumer::new(own, peer.memory, peer.geometry),
            bell: peer.bell,
            number,
            queue: queue.0,
            state: LinkHealth::Up,
            deaf: false,
            heard: false,
            spoke: false,
            connection,
        };
        self.open.push(PolledLink::new(&link));
        *self.slot_mut(number) = LinkSlot::Open(Box::new(link));
    }

    /// Takes a link out of use, and keeps how later requests on it end.
    fn drop_link(&mut self, link: LinkId, gone: LinkSlot) {
        let before = std::mem::replace(self.slot_mut(link), gone);
        self.open.retain(|watch| watch.link != link);
        self.losing.retain(|losing| *losing != link);
        self.imports.drop_link(link);
        self.asked.retain(|asked| !asked.is_on(link));
        if let Some(connection) = before.connection() {
            self.inner().close(connection);
        }
        let counted = |slot: &LinkSlot| match slot {
            LinkSlot::Absent => false,
            LinkSlot::Waiting(_) | LinkSlot::Open(_) => true,
            LinkSlot::Gone { counted, .. } => *counted,
        };
        if counted(&before) && !counted(self.slot_mut(link)) {
            self.inbox.link_closed();
        }
    }

    /// Checks which links have ended and which regions are gone.
    #[cold]
    fn attend(&mut self) {
        self.inbox.attend();
        self.forget_regions();
        for at in 0..self.open.len() {
            let number = self.open[at].link;
            if let LinkSlot::Open(link) = self.slot_mut(number)
                && link.state == LinkHealth::Up
                && link.connection.is_down()
            {
                link.state = LinkHealth::Down;
                self.imports.drop_link(number);
            }
        }
    }

    /// Ends a link because a request or a message on it has failed. The other end is notified and runs
    /// no more requests; events follow only when one of them closes the link.
    #[cold]
    fn fail(&mut self, link: LinkId) {
        if let LinkSlot::Open(open) = self.slot_mut(link)
            && open.state != LinkHealth::Failed
        {
            open.state = LinkHealth::Failed;
            open.connection.tell_broken();
            self.imports.drop_link(link);
        }
    }

    fn news(&mut self, news: Inbound, out: &mut Vec<LinkEvent>) {
        match news {
            Inbound::Requested { connection, peer, hello } => {
                let link = connection.link;
                *self.slot_mut(link) =
                    LinkSlot::Waiting(Box::new(PendingLink::Requested { connection, peer }));
                out.push(LinkEvent::Requested { link, hello });
            }
            Inbound::Connected { link, peer, reply } => {
                // Closed locally meanwhile: then there is nothing to report.
                if let Some(PendingLink::Connecting { connection, own, queue }) =
                    self.slot_mut(link).take_connecting()
                {
                    self.establish(connection, own, peer, queue);
                    out.push(LinkEvent::Connected { link, reply });
                }
            }
            Inbound::Refused { link, reason } => {
                if self.slot_mut(link).connection().is_some() {
                    self.drop_link(link, LinkSlot::closed());
                    out.push(LinkEvent::Refused { link, reason });
                }
            }
            Inbound::Lost { link } => match self.slot_mut(link) {
                LinkSlot::Absent | LinkSlot::Gone { .. } => {}
                LinkSlot::Open(_) => self.losing.push(link),
                LinkSlot::Waiting(waiting) => {
                    let unanswered = matches!(**waiting, PendingLink::Requested { .. });
                    let gone = LinkSlot::Gone {
                        status: CompletionStatus::PeerLost,
                        unanswered,
                        counted: true,
                    };
                    self.drop_link(link, gone);
                    out.push(LinkEvent::Lost { link, loss: Loss::Ended });
                }
            },
        }
    }

    #[cold]
    fn tell_events(&mut self, out: &mut Vec<LinkEvent>) {
        if self.inbox.is_pending() {
            for news in self.inbox.take() {
                self.news(news, out);
            }
        }
        if !self.losing.is_empty() {
            self.settle_lost(out);
        }
    }

    /// Reports the lost links that have no messages left.
    fn settle_lost(&mut self, out: &mut Vec<LinkEvent>) {
        let mut at = 0;
        while let Some(&link) = self.losing.get(at) {
            let status = match self.slot_mut(link) {
                LinkSlot::Open(open) if !open.is_drained() => {
                    at += 1;
                    continue;
                }
                LinkSlot::Open(open) if open.state != LinkHealth::Failed => {
                    CompletionStatus::PeerLost
                }
                _ => CompletionStatus::Flushed,
            };
            let gone = LinkSlot::Gone { status, unanswered: false, counted: true };
            self.drop_link(link, gone);
            out.push(LinkEvent::Lost { link, loss: Loss::Ended });
        }
    }

    fn check_queue(&self, queue: ReceiveQueueId) -> Result<(), FabricError> {
        match self.queues.get(queue.0 as usize) {
            Some(known) if !known.is_ended() => Ok(()),
            _ => Err(FabricError::Unknown("receive queue")),
        }
    }

    /// Returns the request for a link that `accept` or `refuse` answers.
    fn take_request(&mut self, link: LinkId) -> Result<(Arc<Connection>, KnownPeer), FabricError> {
        let Some(slot) = self.links.get_mut(link.0 as usize) else {
            return Err(FabricError::Unknown("link"));
        };
        if let Some(request) = slot.take_requested() {
            return Ok(request);
        }
        match slot {
            LinkSlot::Gone { unanswered: true, .. } => {
                self.drop_link(link, LinkSlot::closed());
                Err(FabricError::PeerLost)
            }
            _ => Err(FabricError::Unknown("link")),
        }
    }

    /// Returns a link that regions can be imported on.
    fn importing(&self, link: LinkId) -> Result<&ShmLink, FabricError> {
        match self.links.get(link.0 as usize) {
            Some(LinkSlot::Open(open)) if open.state == LinkHealth::Up => Ok(open),
            Some(LinkSlot::Open(_) | LinkSlot::Gone { status: CompletionStatus::PeerLost, .. }) => {
                Err(FabricError::PeerLost)
            }
            _ => Err(FabricError::Unknown("link")),
        }
    }

    /// Requests a region from its owner and maps it.
    fn fetch(
        &self,
        link: &ShmLink,
        token: &RegionToken,
    ) -> Result<(Grant, PeerMemory), FabricError> {
        let inner = self.inner();
        let answer = link.connection.ask(inner.options.control_timeout, |question| {
            ask_for(inner, &link.connection, token, question)
        })?;
        self.map(answer)
    }

    /// Maps the answer of a region's owner.
    fn map(&self, answer: Answer) -> Result<(Grant, PeerMemory), FabricError> {
        let inner = self.inner();
        let (grant, descriptor) = answer.ok_or(FabricError::Unknown("region token"))?;
        let Some(descriptor) = descriptor else {
            return Ok((grant, PeerMemory::none()));
        };
        let memory = PeerMemory::new(descriptor.as_fd(), grant.bytes, grant.kind, grant.access)
            .map_err(|reason| FabricError::System("mapping a peer's region", reason))?;
        if grant.kind != RegionKind::Sparse {
            prefault_peer(&memory, inner.options.prefault_bytes_max);
        }
        Ok((grant, memory))
    }
}

fn check_hello(bytes: &[u8]) -> Result<(), FabricError> {
    if bytes.len() > HELLO_BYTES_MAX {
        return Err(FabricError::Limit("hello"));
    }
    Ok(())
}

impl Port for ShmPort {
    fn post(&mut self, work: &[Work<'_>]) -> Posted {
        if self.inbox.wants_attention() {
            return self.post_attending(work);
        }
        if let [Work { operation: Operation::Send { .. }, .. }] = work {
            return self.post_send(work);
        }
        self.post_at_work(work)
    }

    #[inline]
    fn run_now(&mut self, work: &Work<'_>) -> RunNow {
        if self.inbox.wants_attention() {
            return RunNow::NotRun;
        }
        self.run_at_work(work)
    }

    fn post_receives(&mut self, receives: &[Receive]) -> Posted {
        if let [only] = receives
            && !self.inbox.wants_attention()
            && self.post_receive_straight(only)
        {
            return Posted { accepted: 1, stop: None };
        }
        self.post_receives_generally(receives)
    }

    fn poll(&mut self, out: &mut [Completion]) -> usize {
        if self.passed_over < PASSED_OVER_MAX && self.completions.take_only(out) {
            self.passed_over += 1;
            return 1;
        }
        if !self.completions.is_empty() || self.inbox.wants_attention() {
            return self.poll_all(out);
        }
        self.passed_over = 0;
        match self.open.as_slice() {
            [only] if !only.is_idle() => return self.receive_from(0, out),
            [] | [_] => {}
            watches if watches.iter().all(PolledLink::is_idle) => {}
            _ => return self.receive(out),
        }
        0
    }

    fn link_events(&mut self, out: &mut Vec<LinkEvent>) {
        if self.inbox.is_pending() || !self.losing.is_empty() {
            self.tell_events(out);
        }
    }

    fn arm(&mut self) -> bool {
        self.tell_all();
        bell::arm(&self.bell);
        self.has_something()
    }

    fn disarm(&mut self) {
        bell::disarm(&self.bell);
    }

    fn waiter(&self) -> Arc<dyn Waiter> {
        Arc::clone(&self.waiter) as Arc<dyn Waiter>
    }

    fn wake_also(&mut self, waiter: Arc<dyn Waiter>) {
        self.inbox.wake_also(waiter);
    }

    fn create_receive_queue(&mut self, depth: usize) -> Result<ReceiveQueueId, FabricError> {
        if depth > RECEIVES_MAX {
            return Err(FabricError::Limit("receives"));
        }
        let queue = ShmReceiveQueue::new(depth as u32);
        if let Some(free) = self.queues.iter().position(ShmReceiveQueue::is_ended) {
            self.queues[free] = queue;
            return Ok(ReceiveQueueId(free as u32));
        }
        let number = u32::try_from(self.queues.len()).map_err(|_| FabricError::Limit("queues"))?;
        self.queues.push(queue);
        Ok(ReceiveQueueId(number))
    }

    fn destroy_receive_queue(&mut self, queue: ReceiveQueueId) -> Result<(), FabricError> {
        self.check_queue(queue)?;
        if self.links.iter().any(|slot| slot.queue() == Some(queue)) {
            return Err(FabricError::Limit("receive queue in use"));
        }
        self.queues[queue.0 as usize].end();
        Ok(())
    }

    fn address(&self) -> Option<String> {
        self.name.clone()
    }

    fn connect(
        &mut self,
        to: &str,
        hello: &[u8],
        receives: ReceiveQueueId,
    ) -> Result<LinkId, FabricError> {
        check_hello(hello)?;
        self.check_queue(receives)?;
        let memory = self.link_memory()?;
        let link = self.inbox.open_link(LINKS_MAX);
        let link = link.ok_or(FabricError::Limit("links_max"))?;
        let connection = match self.inner().connect(to, link, &self.inbox) {
            Ok(connection) => connection,
            Err(reason) => {
                *self.slot_mut(link) = LinkSlot::closed();
                self.inbox.link_closed();
                return Err(reason);
            }
        };
        let message =
            ControlMessage::Hello { terms: self.inner().terms(self.number), bytes: hello };
        let sent = self.inner().send(&connection, &message, &self.handed(&memory));
        let waiting = PendingLink::Connecting { connection, own: memory.arena, queue: receives };
        *self.slot_mut(link) = LinkSlot::Waiting(Box::new(waiting));
        if let Err(reason) = sent {
            self.drop_link(link, LinkSlot::closed());
            return Err(reason);
        }
        Ok(link)
    }

    fn accept(
        &mut self,
        link: LinkId,
        reply: &[u8],
        receives: ReceiveQueueId,
    ) -> Result<(), FabricError> {
        check_hello(reply)?;
        self.check_queue(receives)?;
        let memory = self.link_memory()?;
        let (connection, peer) = self.take_request(link)?;
        let message =
            ControlMessage::Accept { terms: self.inner().terms(self.number), bytes: reply };
        // Usable before the peer knows, since it may import regions at once.
        let ready = connection.advance(ConnectionStage::Requested, ConnectionStage::Ready);
        let sent = self.inner().send(&connection, &message, &self.handed(&memory));
        self.establish(connection, memory.arena, peer, receives);
        if !ready || sent.is_err() {
            self.drop_link(link, LinkSlot::closed());
            return Err(FabricError::PeerLost);
        }
        Ok(())
    }

    fn refuse(&mut self, link: LinkId, reason: &[u8]) -> Result<(), FabricError> {
        check_hello(reason)?;
        let connection = match self.take_request(link) {
            Ok((connection, _)) => connection,
            // There is no peer to report to.
            Err(FabricError::PeerLost) => return Ok(()),
            Err(reason) => return Err(reason),
        };
        let message = ControlMessage::Refuse { bytes: reason };
        // A dead peer needs no answer.
        let _ = self.inner().send(&connection, &message, &[]);
        self.inner().close(&connection);
        self.inbox.link_closed();
        Ok(())
    }

    fn import(&mut self, link: LinkId, token: &RegionToken) -> Result<RemoteRegionId, FabricError> {
        self.import_and_wait(link, token)
    }

    fn try_import(
        &mut self,
        link: LinkId,
        token: &RegionToken,
    ) -> Result<Option<RemoteRegionId>, FabricError> {
        self.import_begun(link, token)
    }

    fn reach(&self, link: LinkId, region: RemoteRegionId) -> Option<Reached> {
        let import = self.imports.find(link, region).filter(|import| import.is_open())?;
        import.memory.allowed(Access::READ).cloned().map(Reached::new)
    }

    fn reach_word(&self, link: LinkId, region: RemoteRegionId, offset: u64) -> Option<SharedWord> {
        let import = self.imports.find(link, region).filter(|import| import.is_open())?;
        let memory = import.memory.allowed(Access::READ.with(Access::WRITE))?;
        SharedWord::new(memory, offset).ok()
    }

    fn close(&mut self, link: LinkId) {
        if let Some(LinkSlot::Open(open)) = self.links.get(link.0 as usize) {
            open.shut();
            self.landing.retain(Landing::may_land);
            self.landing.extend(Landing::of(&open.connection));
        }
        let known = self.links.get(link.0 as usize);
        if known.is_some_and(|slot| !matches!(slot, LinkSlot::Absent)) {
            self.drop_link(link, LinkSlot::closed());
        }
    }

    fn may_land(&mut self, link: LinkId) -> bool {
        if self.landing.is_empty() {
            return false;
        }
        self.landing.retain(Landing::may_land);
        self.landing.iter().any(|landing| landing.link == link)
    }

    fn peer_process(&self, link: LinkId) -> PeerProcess {
        let connection = self.links.get(link.0 as usize).and_then(LinkSlot::connection);
        let Some(connection) = connection else { return PeerProcess::Elsewhere };
        match socket::peer_process(connection.socket.as_fd()) {
            Some(number) if number == std::process::id() => PeerProcess::Elsewhere,
            Some(number) => PeerProcess::Number(number),
            None => PeerProcess::Hidden,
        }
    }

    fn path(&self, link: LinkId) -> String {
        match self.links.get(link.0 as usize) {
            Some(LinkSlot::Open(open)) => self.path_of(open),
            Some(LinkSlot::Waiting(_)) => "shm: not answered yet".to_owned(),
            Some(LinkSlot::Gone { .. }) => "shm: closed".to_owned(),
            Some(LinkSlot::Absent) | None => "shm: no such link".to_owned(),
        }
    }

    fn trouble(&self, _link: LinkId) -> Option<String> {
        None
    }
}

impl ShmPort {
    fn path_of(&self, link: &ShmLink) -> String {
        let own = self.inner().geometry();
        let peer = match socket::peer_process(link.connection.socket.as_fd()) {
            Some(process) => format!("process {process}"),
            None => "a process of another process namespace".to_owned(),
        };
        let count = self.imports.of_link(link.number).count();
        let barriers =
            if self.careful { "full fences, since membarrier is missing" } else { "no fences" };
        format!(
            "shm: direct access to {count} imported regions of {peer}; ring of {} slots and {} KiB; {barriers}",
            own.slots,
            own.bulk / 1024,
        )
    }

    #[inline(never)]
    fn post_receives_generally(&mut self, receives: &[Receive]) -> Posted {
        if self.inbox.wants_attention() {
            self.attend();
        }
        for (accepted, receive) in receives.iter().enumerate() {
            if self.post_receive_straight(receive) {
                continue;
            }
            if let Err(stop) = self.post_receive(receive) {
                let stop = Some(stop);
                return Posted { accepted, stop };
            }
        }
        Posted { accepted: receives.len(), stop: None }
    }

    /// Posts a valid receive on the fast path. Returns whether it did.
    #[inline(always)]
    fn post_receive_straight(&mut self, receive: &Receive) -> bool {
        let Some(arena) = self.regions.find(receive.into.region) else { return false };
        let Some(queue) = self.queues.get_mut(receive.queue.0 as usize) else { return false };
        arena.at(receive.into.offset, receive.into.bytes as usize).is_ok()
            && queue.push_straight(receive)
    }

    #[inline(never)]
    fn post_receive(&mut self, receive: &Receive) -> Result<(), Stop> {
        let arena = match self.regions.find(receive.into.region) {
            Some(arena) => arena,
            None => self.learn(receive.into.region)?,
        };
        arena
            .at(receive.into.offset, receive.into.bytes as usize)
            .map_err(|_| Stop::Invalid("local bounds"))?;
        let queue = self.queues.get_mut(receive.queue.0 as usize);
        let queue = queue.filter(|queue| !queue.is_ended());
        let queue = queue.ok_or(Stop::Invalid("receive queue"))?;
        if queue.push(receive) { Ok(()) } else { Err(Stop::QueueFull) }
    }

    /// Returns whether the caller has anything to do.
    fn has_something(&mut self) -> bool {
        if !self.completions.is_empty() || self.inbox.is_pending() {
            return true;
        }
        let mut something = false;
        for watch in &self.open {
            let Some(LinkSlot::Open(link)) = self.links.get_mut(watch.link.0 as usize) else {
                continue;
            };
            let queue = self.queues.get(link.queue as usize);
            let deliverable = queue.is_some_and(|queue| !queue.is_empty()) && !link.is_drained();
            something |= deliverable || link.producer.has_room_again();
        }
        let drained = |link: &LinkId| match self.links.get(link.0 as usize) {
            Some(LinkSlot::Open(open)) => open.is_drained(),
            _ => true,
        };
        something || self.losing.iter().any(drained)
    }
}

impl Drop for ShmPort {
    fn drop(&mut self) {
        let inner = &self.inner;
        inner.forget_port(&self.inbox);
        for news in self.inbox.close() {
            if let Inbound::Requested { connection, .. } = news {
                inner.close(&connection);
            }
        }
        for slot in &self.links {
            // First, or a request that finds the memory revoked after this would not know that the peer ended.
            if let LinkSlot::Open(open) = slot {
                open.shut();
            }
            if let Some(connection) = slot.connection() {
                inner.close(connection);
            }
        }
        // A requester that loads the word from now on means the next port of this number.
        self.work_word.store(0, Ordering::Release);
        inner.give_back_port(self.number);
    }
}
