//! All of a port behind its lock: links, and what they share. Whoever holds the lock serves them, be it
//! the engine or a thread that polls.

use crate::call::{Call, Next};
use crate::connection::{Connection, Failure};
use crate::desk::Desk;
use crate::import::Imports;
use crate::link::{Answered, Link, Phase, Verdict};
use crate::options::{LINKS_MAX, TcpOptions};
use crate::port::PortShared;
use crate::region::{Regions, Registered};
use crate::trouble;
use farside_base::{CompletionStatus, LinkId, ReceiveQueueId, RegionId};
use farside_fabric::{FabricError, LinkEvent, Loss, NotReached};
use rustix::event::epoll;
use rustix::fd::OwnedFd;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// Links that one look at the epoll serves.
const EVENTS_MAX: usize = 16;
/// The link that something came over just now is looked at alone, but for every so many polls.
const SCAN_EVERY: u32 = 16;
/// So many times in a row something came over one link alone, until that one is looked at alone.
const WARM_AFTER: u32 = 4;

/// What one look at an epoll finds.
pub(crate) struct Found([epoll::Event; EVENTS_MAX]);

impl Found {
    pub(crate) fn new() -> Self {
        let (flags, data) = (epoll::EventFlags::empty(), epoll::EventData::new_u64(0));
        Self([epoll::Event { flags, data }; EVENTS_MAX])
    }

    /// Looks, without waiting.
    pub(crate) fn look(&mut self, epoll: &OwnedFd) -> &[epoll::Event] {
        let now = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
        let found = epoll::wait(epoll, &mut self.0[..], Some(&now)).unwrap_or(0);
        &self.0[..found]
    }
}

/// A place of the table of links.
pub(crate) struct Slot {
    pub(crate) state: State,
    /// What broke the link.
    pub(crate) trouble: Option<String>,
}

pub(crate) enum State {
    Open(Box<Link>),
    /// Broken, and not closed here yet: the next request ends with `next`.
    Down {
        next: CompletionStatus,
        queue: Option<ReceiveQueueId>,
    },
    /// Everything is flushed.
    Closed,
}

pub(crate) struct Core {
    pub(crate) slots: Vec<Slot>,
    pub(crate) desk: Desk,
    pub(crate) imports: Imports,
    pub(crate) options: Arc<TcpOptions>,
    pub(crate) epoll: Arc<OwnedFd>,
    pub(crate) shared: Weak<PortShared>,
    /// Links that are not closed.
    open: Vec<LinkId>,
    /// The link that something came over just now.
    hot: Option<LinkId>,
    /// The link that something came over last, and how many times in a row.
    warm: (LinkId, u32),
    /// Turns of threads that poll.
    turns: u32,
    /// Links whose peers are told of what was carried out a little later.
    deferred: Vec<LinkId>,
    /// A link with requests that wait for company: many are under way, and a thread polls.
    corked: Option<LinkId>,
    /// Links with bytes that no socket announces.
    again: Vec<LinkId>,
}

impl Core {
    pub(crate) fn new(
        options: Arc<TcpOptions>,
        regions: Regions,
        epoll: Arc<OwnedFd>,
        shared: Weak<PortShared>,
    ) -> Self {
        Self {
            slots: Vec::new(),
            desk: Desk::new(regions),
            imports: Imports::default(),
            options,
            epoll,
            shared,
            open: Vec::new(),
            hot: None,
            warm: (LinkId(u32::MAX), 0),
            turns: 0,
            deferred: Vec::new(),
            corked: None,
            again: Vec::new(),
        }
    }

    pub(crate) fn link(&self, id: LinkId) -> Option<&Link> {
        match &self.slots.get(id.0 as usize)?.state {
            State::Open(link) => Some(link),
            _ => None,
        }
    }

    pub(crate) fn link_mut(&mut self, id: LinkId) -> Option<&mut Link> {
        match &mut self.slots.get_mut(id.0 as usize)?.state {
            State::Open(link) => Some(link),
            _ => None,
        }
    }

    /// A place for a further link.
    pub(crate) fn add(&mut self, phase: Phase) -> Result<LinkId, FabricError> {
        if self.open.len() >= LINKS_MAX as usize {
            return Err(FabricError::Limit("links_max"));
        }
        let id = u32::try_from(self.slots.len()).map_err(|_| FabricError::Limit("link numbers"))?;
        let id = LinkId(id);
        let state = State::Open(Box::new(Link::new(id, phase)));
        self.slots.push(Slot { state, trouble: None });
        self.desk.add_link();
        self.open.push(id);
        Ok(id)
    }

    /// A peer that named this port: the program is asked. Gives the connection back when there is no
    /// room.
    pub(crate) fn request(
        &mut self,
        connection: Connection,
        host: IpAddr,
        (hello, early, lease_ms): (&[u8], &[u8], u32),
    ) -> Result<(), (Connection, &'static str)> {
        let of_host = |id: &&LinkId| self.link(**id).is_some_and(|link| link.host == Some(host));
        if self.open.iter().filter(of_host).count() >= self.options.limits.links_per_host_max {
            return Err((connection, "links_per_host_max"));
        }
        let Ok(id) = self.add(Phase::Requested) else {
            return Err((connection, "links_max"));
        };
        if let Some(link) = self.link_mut(id) {
            link.host = Some(host);
            link.peer_lease_ms = lease_ms;
            link.connection = Some(connection);
        }
        self.desk.tell(LinkEvent::Requested { link: id, hello: hello.to_vec() });
        self.with_link(id, |link, desk| link.feed(early, desk));
        self.serve(id, false);
        Ok(())
    }

    /// Does something with a link; should that fail, the link does.
    pub(crate) fn with_link<T>(
        &mut self,
        id: LinkId,
        act: impl FnOnce(&mut Link, &mut Desk) -> Result<T, Failure>,
    ) -> Option<T> {
        let State::Open(link) = &mut self.slots.get_mut(id.0 as usize)?.state else {
            return None;
        };
        match act(link, &mut self.desk) {
            Ok(value) => Some(value),
            Err(failure) => {
                self.fail(id, &failure);
                None
            }
        }
    }

    /// Receives and sends all that there is on a link.
    pub(crate) fn serve(&mut self, id: LinkId, defer: bool) {
        let advanced = self.with_link(id, |link, _| {
            let calling = matches!(link.phase, Phase::Calling(_));
            match &mut link.connection {
                None => Ok(false),
                Some(Connection::Stream(stream)) if calling && !stream.is_ready() => {
                    if !stream.advance()? {
                        return Ok(false);
                    }
                    if stream.protect() == farside_bootstrap::Protect::Nothing
                        && let Some(connection) = &mut link.connection
                    {
                        connection.make_plain();
                    }
                    Ok(true)
                }
                Some(_) => Ok(true),
            }
        });
        if advanced == Some(true) {
            self.receive(id);
        }
        self.flush(id, defer);
    }

    fn receive(&mut self, id: LinkId) {
        let more = self.with_link(id, |link, desk| link.receive(desk));
        if more == Some(true) {
            self.again.push(id);
        }
    }

    /// Sends what may go on a link, and sees to what has changed about it.
    pub(crate) fn flush(&mut self, id: LinkId, defer: bool) {
        let owes = self.with_link(id, |link, desk| {
            if matches!(link.phase, Phase::Calling(_)) {
                return Ok(false);
            }
            link.flush(defer, desk)?;
            Ok(defer && link.owes_acknowledgement())
        });
        if owes == Some(true) {
            self.defer(id);
        }
        if self.link(id).is_some_and(Link::is_over) {
            self.answered(id);
        }
        self.watch(id);
    }

    fn defer(&mut self, id: LinkId) {
        if !self.deferred.contains(&id) {
            self.deferred.push(id);
        }
    }

    /// Tells peers that wait for receives which have come.
    pub(crate) fn run_hints(&mut self) {
        while let Some(waiting) = self.desk.hints.pop() {
            if let Some(link) = self.link_mut(waiting) {
                link.responder.receive_came();
            }
            self.flush(waiting, false);
        }
    }

    /// Has the epoll look for what the link waits for.
    fn watch(&mut self, id: LinkId) {
        let is_watched = |link: &Link| link.watched == Some(link.wants_write());
        if self.link(id).is_none_or(is_watched) {
            return;
        }
        let epoll = Arc::clone(&self.epoll);
        let Some(link) = self.link_mut(id) else {
            return;
        };
        let wants_write = link.wants_write();
        let Some(connection) = &link.connection else {
            return;
        };
        let mut flags = epoll::EventFlags::IN;
        if wants_write {
            flags |= epoll::EventFlags::OUT;
        }
        let data = epoll::EventData::new_u64(u64::from(id.0));
        let done = match link.watched {
            None => epoll::add(&*epoll, connection.socket(), data, flags),
            Some(_) => epoll::modify(&*epoll, connection.socket(), data, flags),
        };
        match done {
            Ok(()) => link.watched = Some(wants_write),
            Err(reason) => self.fail(id, &Failure::Io(reason.into())),
        }
    }

    /// Sends a link's requests that were posted, unless so many are under way already that they may wait
    /// for more until the thread polls, which it does all the time.
    pub(crate) fn flush_posted(&mut self, id: LinkId, claimed: bool) {
        let crowded = claimed && self.link(id).is_some_and(|link| link.requester.is_crowded());
        if self.corked != Some(id) {
            self.uncork();
        }
        if crowded {
            self.corked = Some(id);
        } else {
            self.corked = None;
            self.flush(id, false);
        }
    }

    /// Sends what waited for company.
    pub(crate) fn uncork(&mut self) {
        if let Some(id) = self.corked.take() {
            self.flush(id, false);
        }
    }

    /// Tells peers what was carried out and not told yet.
    pub(crate) fn flush_deferred(&mut self) {
        self.uncork();
        while let Some(id) = self.deferred.pop() {
            self.flush(id, false);
        }
    }

    /// What a thread that polls does: looks at the link that something came over just now, and at the
    /// epoll otherwise, which asks no socket for its lock that the kernel needs to bring something. With
    /// `defer`, what was carried out for a program that has something to do now is told to the peer with
    /// the program's answer, or at the next turn.
    pub(crate) fn turn(&mut self, claimed: bool) {
        self.turns = self.turns.wrapping_add(1);
        let all = self.turns.is_multiple_of(SCAN_EVERY);
        if let Some(hot) = self.hot.take() {
            // However much comes over one link, the others have their turn.
            if self.look(hot, claimed) && !all {
                return;
            }
        }
        self.flush_deferred();
        match self.warm().filter(|_| !all) {
            Some(warm) => {
                self.look(warm, claimed);
            }
            None => {
                self.scan(claimed);
            }
        }
    }

    /// Receives on one link; only if something has come, there can be something to send that was not
    /// before. Whether it has.
    fn look(&mut self, id: LinkId, defer: bool) -> bool {
        self.desk.moved = false;
        if !self.link(id).is_some_and(Link::is_up) {
            self.serve(id, defer);
        } else {
            self.receive(id);
            let quiet = |link: &Link| defer && link.only_acknowledges();
            if self.desk.moved && self.link(id).is_some_and(quiet) {
                self.defer(id);
            } else if self.desk.moved {
                self.flush(id, defer);
            }
        }
        if self.desk.moved {
            self.hot = Some(id);
        }
        self.desk.moved
    }

    /// What the engine does for a port again and again: looks at the link that alone has brought
    /// anything for a while. `None` without one.
    pub(crate) fn look_at_warm(&mut self) -> Option<bool> {
        let warm = self.warm()?;
        Some(self.look(warm, false))
    }

    /// The link that alone has brought anything for a while, unless the epoll must be asked whether there
    /// is room to send: trying to receive takes one call fewer.
    fn warm(&self) -> Option<LinkId> {
        let (id, streak) = self.warm;
        if streak < WARM_AFTER || self.has_more() {
            return None;
        }
        let link = self.link(id).filter(|link| !link.wants_write())?;
        link.connection.as_ref().is_some_and(Connection::is_plain).then_some(id)
    }

    /// Whether bytes are here that no socket announces, so that another look must follow.
    pub(crate) fn has_more(&self) -> bool {
        !self.again.is_empty()
    }

    /// Serves every link that has something. True when another look must follow.
    pub(crate) fn scan(&mut self, defer: bool) -> bool {
        for id in std::mem::take(&mut self.again) {
            self.serve(id, defer);
        }
        let epoll = Arc::clone(&self.epoll);
        self.serve_found(Found::new().look(&epoll), defer);
        self.has_more()
    }

    /// Serves the links that a look at the epoll has found.
    pub(crate) fn serve_found(&mut self, found: &[epoll::Event], defer: bool) {
        for event in found {
            let (id, flags) = (LinkId(event.data.u64() as u32), event.flags);
            if flags != epoll::EventFlags::IN
                && let Some(link) = self.link_mut(id)
            {
                link.has_room();
            }
            self.desk.moved = false;
            self.serve(id, defer);
            if self.desk.moved {
                self.hot = Some(id);
                let (last, streak) = self.warm;
                self.warm = (id, if last == id { streak.saturating_add(1) } else { 0 });
            }
        }
    }

    /// Begins, or goes on, with a call.
    pub(crate) fn call(&mut self, id: LinkId, mut call: Box<Call>) {
        let lease_ms = self.options.lease_ms();
        loop {
            let failure = match call.next() {
                Next::Connect(to) => match call.connect(to, &self.options) {
                    Ok(connection) => {
                        let Some(link) = self.link_mut(id) else {
                            return;
                        };
                        *link = Link::calling(id, link.queue, call);
                        link.connection = Some(connection);
                        link.lease_ms = lease_ms;
                        self.serve(id, false);
                        return;
                    }
                    Err(failure) => failure,
                },
                Next::Resolve(endpoint) => {
                    if let Some(link) = self.link_mut(id) {
                        *link = Link::calling(id, link.queue, call);
                    }
                    self.resolve(id, endpoint);
                    return;
                }
                Next::Nobody => return self.not_reached(id, call.why, call.trouble),
            };
            call.failed(&failure);
        }
    }

    /// Looks a name up, on a thread of its own, since that may take seconds.
    fn resolve(&mut self, id: LinkId, endpoint: farside_bootstrap::Endpoint) {
        let shared = Weak::clone(&self.shared);
        let look = move || {
            let found = endpoint.resolve();
            if let Some(shared) = shared.upgrade() {
                shared.with_core(|core| core.resolved(id, found));
            }
        };
        let started = std::thread::Builder::new().name("farside-resolve".to_owned()).spawn(look);
        if let Err(reason) = started {
            self.resolved(id, Err(reason));
        }
    }

    fn resolved(&mut self, id: LinkId, found: io::Result<Vec<SocketAddr>>) {
        let Some(link) = self.link_mut(id) else {
            return;
        };
        match std::mem::replace(&mut link.phase, Phase::Requested) {
            Phase::Calling(mut call) if link.connection.is_none() => {
                call.resolved(found);
                self.call(id, call);
            }
            phase => link.phase = phase,
        }
    }

    fn not_reached(&mut self, id: LinkId, why: NotReached, trouble: String) {
        self.desk.tell(LinkEvent::NotReached { link: id, why });
        self.forget(id);
        if let Some(slot) = self.slots.get_mut(id.0 as usize) {
            slot.trouble = Some(trouble);
        }
    }

    /// The peer has answered a call, but has not accepted it.
    fn answered(&mut self, id: LinkId) {
        let Some(link) = self.link_mut(id) else {
            return;
        };
        match std::mem::replace(&mut link.phase, Phase::Requested) {
            Phase::Over(Answered::Declined(reason)) => {
                self.desk.tell(LinkEvent::Refused { link: id, reason });
                self.forget(id);
            }
            Phase::Over(Answered::Nobody(mut call)) => {
                call.nobody();
                self.call(id, call);
            }
            phase => link.phase = phase,
        }
    }

    /// Ends a link for good, without a word to the program.
    pub(crate) fn forget(&mut self, id: LinkId) {
        let Some(slot) = self.slots.get_mut(id.0 as usize) else {
            return;
        };
        let queue = match std::mem::replace(&mut slot.state, State::Closed) {
            State::Closed => return,
            State::Down { queue, .. } => queue,
            State::Open(mut link) => {
                // What was carried out is told before the farewell, or the peer would take it for lost.
                if link.is_up() && link.confirmed {
                    link.has_room();
                    let _ = link.flush(false, &mut self.desk);
                }
                link.incoming.end(&mut self.desk);
                link.requester.fail(id, CompletionStatus::Flushed, &mut self.desk);
                if let Some(connection) = &mut link.connection {
                    connection.end();
                }
                link.queue
            }
        };
        self.imports.forget(id);
        self.open.retain(|open| *open != id);
        if self.hot == Some(id) {
            self.hot = None;
        }
        if let Some(queue) = queue {
            self.desk.leave(queue, id);
        }
    }

    /// Something about a link has failed: it is down, or the call goes on elsewhere.
    pub(crate) fn fail(&mut self, id: LinkId, failure: &Failure) {
        let Some(link) = self.link_mut(id) else {
            return;
        };
        let phase = std::mem::replace(&mut link.phase, Phase::Requested);
        match phase {
            Phase::Calling(mut call) => {
                call.failed(failure);
                return self.call(id, call);
            }
            Phase::Asked(_) | Phase::Requested | Phase::Up | Phase::Over(_) => {}
        }
        let refusal = link.refusal;
        let peer = link.connection.as_ref().and_then(|connection| connection.ends().1);
        let (loss, text) = match refusal {
            Some(status) => (Loss::Ended, trouble::of_refusal(status)),
            None => trouble::of_failure(failure, peer),
        };
        let first = refusal.unwrap_or(match loss {
            Loss::Ended => CompletionStatus::PeerLost,
            _ => CompletionStatus::Unreachable,
        });
        let queue = link.queue;
        let down = State::Down { next: first, queue };
        let Some(slot) = self.slots.get_mut(id.0 as usize) else {
            return;
        };
        slot.trouble = Some(text);
        if let State::Open(mut link) = std::mem::replace(&mut slot.state, down) {
            link.incoming.end(&mut self.desk);
            let next = link.requester.fail(id, first, &mut self.desk);
            slot.state = State::Down { next, queue };
            if let Some(connection) = &mut link.connection {
                connection.end();
            }
        }
        if let Some(queue) = queue {
            self.desk.stop_waiting(queue, id);
        }
        if refusal.is_none() {
            self.desk.tell(LinkEvent::Lost { link: id, loss });
        }
    }

    /// A region has come.
    pub(crate) fn add_region(&mut self, region: &Registered) {
        self.desk.regions.insert(region.clone());
    }

    /// A region has ended: nothing of a peer reaches it any more.
    pub(crate) fn end_region(&mut self, region: RegionId) {
        self.desk.regions.remove(region);
        for id in self.open_links() {
            let ended = self.with_link(id, |link, desk| {
                link.copy_shown(Some(region));
                link.responder.end_region(region);
                if link.incoming.end_region(region, desk) {
                    link.responder.refuse(CompletionStatus::RemoteAccess);
                }
                Ok(link.responder.has_answers())
            });
            if ended == Some(true) {
                self.flush(id, false);
            }
        }
    }

    pub(crate) fn open_links(&self) -> Vec<LinkId> {
        self.open.clone()
    }

    /// What happens by time alone. With `late`, this process did not run for long, so that silence is
    /// its own. Returns the time until the next tick.
    pub(crate) fn tick(&mut self, now: Instant, late: bool) -> Duration {
        self.flush_deferred();
        if late {
            self.scan(false);
        }
        let options = Arc::clone(&self.options);
        let mut next = options.tick();
        let mut at = 0;
        while let Some(id) = self.open.get(at).copied() {
            at += 1;
            let verdict = self.with_link(id, |link, _| link.tick(now, late, &options));
            if matches!(verdict, Some(Verdict::Speak)) {
                if let Some(link) = self.link_mut(id) {
                    link.say_alive();
                }
                self.flush(id, false);
            }
            next = self.link(id).map_or(next, |link| next.min(link.tick_every(&options)));
            let calls = self.link(id).is_some_and(|link| matches!(link.phase, Phase::Calling(_)));
            if calls {
                self.serve(id, false);
            }
        }
        next
    }
}
