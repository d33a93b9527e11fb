//! The control thread of a fabric: connections, keepalives, imports of peers, asynchronous events of
//! the device.
//!
//! It sleeps until a socket, the device or a port has something, or a tick has passed (an eighth of the
//! lease, while there are links). It never blocks on a peer. Results go to the inboxes of ports.
//!
//! Not here: the data path. Ports post and poll by themselves; this thread only moves a queue pair to
//! the error state, so that outstanding work requests of a dead link are flushed.

mod import;
mod meeting;
mod time;

use crate::conversation::{CALL_AGAIN, Conversation, ConversationStage, Over};
use crate::core::{Command, Core, Dial, LEASE_TICKS};
use crate::device::port_state;
use crate::ffi::AsyncEvent;
use crate::inbox::Inbound;
use crate::neighbour;
use crate::pending_work::PendingDials;
use crate::status::{self, numbers};
use crate::token::{Token, lock};
use crate::wire::{self, Accepted, Connect, Frame, Parting};
use farside_base::CompletionStatus;
use farside_bootstrap::{Admission, Endpoint, HandshakeLimits};
use farside_fabric::{FabricError, Loss, NotReached, PendingConnection, PendingLimits};
use rustix::event::{Timespec, epoll};
use rustix::fd::OwnedFd;
use std::collections::HashMap;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The interval of polls for the completion of a bind.
const BIND_POLL_INTERVAL: Duration = Duration::from_millis(1);
const DOORBELL: u64 = 0;
const LISTENER: u64 = 1;
const DEVICE: u64 = 2;
const MANAGER: u64 = 3;
/// How often neighbour discovery is restarted when the port has come up, and the interval: longer than
/// any neighbour takes to answer.
const SEEKS: u32 = 8;
const SEEK_AGAIN: Duration = Duration::from_millis(150);
/// The refusal of a host that has `links_per_host_max` links.
const SHARE_IS_TAKEN: &[u8] = b"link limit per host reached: links_per_host_max";

/// Owns the thread; dropped with the last port and the fabric.
pub(crate) struct Control {
    pub(crate) core: Arc<Core>,
    /// Which peers may dial.
    pub(crate) admission: Option<Admission>,
    thread: Option<JoinHandle<()>>,
}

impl Control {
    pub(crate) fn start(
        core: Arc<Core>,
        listener: Option<TcpListener>,
    ) -> Result<Self, FabricError> {
        let system = |what| move |reason: std::io::Error| FabricError::System(what, reason);
        let local = listener.as_ref().and_then(|listener| listener.local_addr().ok());
        let admission = local.map(|local| Admission::of(&core.options.security, local));
        let admission = admission.transpose()?;
        let mut thread =
            ControlThread::new(Arc::clone(&core), listener).map_err(system("epoll"))?;
        thread.admission = admission.clone();
        let thread = std::thread::Builder::new()
            .name("farside-verbs".to_owned())
            .spawn(move || thread.run())
            .map_err(system("control thread"))?;
        Ok(Self { core, admission, thread: Some(thread) })
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        self.core.command(Command::Stop);
        if let Some(thread) = self.thread.take() {
            // It panicked or it did not; it has ended.
            let _ = thread.join();
        }
    }
}

struct ControlThread {
    core: Arc<Core>,
    epoll: OwnedFd,
    listener: Option<TcpListener>,
    admission: Option<Admission>,
    conversations: HashMap<u64, Conversation>,
    /// How often discovery is still to be restarted since the port came up, and when next.
    seeks: u32,
    seek_at: Instant,
    /// Conversations that dial and have no answer yet.
    calling: Vec<Token>,
    /// Conversations for whose peers a window is being bound.
    binding: Vec<Token>,
    /// The state of rdma_cm, if it connects queue pairs.
    expected: Option<PendingDials>,
    limits: HandshakeLimits,
    tick: Duration,
    next_tick: Instant,
    /// The interval of checks of peers and leases: a tick, or less for a peer with a shorter lease.
    beat: Duration,
    next_beat: Instant,
    stopped: bool,
    /// The listener is not watched for a tick.
    paused: bool,
}

impl ControlThread {
    fn new(core: Arc<Core>, listener: Option<TcpListener>) -> std::io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let input = epoll::EventFlags::IN;
        let data = epoll::EventData::new_u64;
        epoll::add(&epoll, &core.doorbell, data(DOORBELL), input)?;
        epoll::add(&epoll, core.device.context.events(), data(DEVICE), input)?;
        if let Some(listener) = &listener {
            listener.set_nonblocking(true)?;
            epoll::add(&epoll, listener, data(LISTENER), input)?;
        }
        let mut expected = None;
        if let Some(manager) = &core.manager {
            epoll::add(&epoll, manager.channel.borrowed(), data(MANAGER), input)?;
            expected = Some(PendingDials::new()?);
        }
        let tick = core.options.lease / u32::try_from(LEASE_TICKS).unwrap_or(8);
        let lease = core.options.lease;
        let limits = HandshakeLimits {
            time: HandshakeLimits::DEFAULT.time.max(lease),
            ..HandshakeLimits::DEFAULT
        };
        let (conversations, next_tick) = (HashMap::new(), Instant::now() + tick);
        Ok(Self {
            core,
            epoll,
            listener,
            admission: None,
            conversations,
            seeks: 0,
            seek_at: next_tick,
            calling: Vec::new(),
            binding: Vec::new(),
            expected,
            limits,
            tick,
            next_tick,
            beat: tick,
            next_beat: next_tick,
            stopped: false,
            paused: false,
        })
    }

    fn run(&mut self) {
        let mut events = Vec::with_capacity(64);
        while !self.stopped {
            let left = self.next_beat.saturating_duration_since(Instant::now());
            // An idle fabric sleeps until a peer dials.
            let idle = self.conversations.is_empty() && !self.paused && self.seeks == 0;
            let left = if self.binding.is_empty() { left } else { left.min(BIND_POLL_INTERVAL) };
            let left = if self.calling.is_empty() { left } else { left.min(CALL_AGAIN) };
            let left = if self.seeks > 0 { left.min(SEEK_AGAIN) } else { left };
            let time = if idle { None } else { Timespec::try_from(left).ok() };
            events.clear();
            let buffer = rustix::buffer::spare_capacity(&mut events);
            // Interrupted: nothing to do, and the loop continues.
            let _ = epoll::wait(&self.epoll, buffer, time.as_ref());
            for event in &events {
                match event.data.u64() {
                    DOORBELL => self.obey(),
                    LISTENER => self.answer_callers(),
                    DEVICE => self.look_at_device(),
                    MANAGER => self.look_at_manager(),
                    token => self.go_on(Token(token)),
                }
            }
            self.look_for_binds();
            self.call_again();
            self.find_peers();
            self.tick(idle);
        }
        for token in self.tokens() {
            self.close(token);
        }
    }

    fn tokens(&self) -> Vec<Token> {
        self.conversations.keys().map(|token| Token(*token)).collect()
    }

    fn obey(&mut self) {
        for command in self.core.take_commands() {
            match command {
                Command::Connect(call) => self.call(call),
                Command::Resolved { token, addresses } => self.call_them(token, addresses),
                Command::Joined { token, joined } => self.joined(token, joined),
                Command::Accept { token, handle, end, reply, done } => {
                    self.accept(token, handle, end, &reply, done);
                }
                Command::Refuse { token, reason } => {
                    self.say(token, &Frame::Refused(&reason));
                    self.close(token);
                }
                Command::Refused { token } => self.say_parted(token, Parting::Refused),
                Command::Import { token, region, answer } => {
                    let conversation = self.conversations.get_mut(&token.0);
                    match conversation.filter(|found| found.stage == ConversationStage::Up) {
                        Some(conversation) => {
                            conversation.imports_made = conversation.imports_made.wrapping_add(1);
                            let request = conversation.imports_made;
                            conversation.imports.insert(request, answer);
                            self.say(token, &Frame::Import { request, token: region });
                        }
                        None => answer.give(Err(FabricError::PeerLost)),
                    }
                }
                Command::Bound { token, status } => self.bound(token, status),
                Command::Close { token } => self.close(token),
                Command::ClosePort { number } => {
                    for token in self.tokens() {
                        let conversation = self.conversations.get(&token.0);
                        let inbox = conversation.and_then(|found| found.inbox.as_ref());
                        if inbox.is_some_and(|inbox| inbox.number == number) {
                            self.close(token);
                        }
                    }
                }
                Command::Stop => self.stopped = true,
            }
        }
    }

    /// Resolves a dial's hosts, in another thread if that may take long, and starts it.
    fn call(&mut self, call: Box<Dial>) {
        let (token, targets) = (call.token, call.targets.clone());
        self.conversations.insert(token.0, Conversation::calling(call, self.limits));
        let resolved = |targets: Vec<Endpoint>| -> Vec<(Endpoint, SocketAddr)> {
            let all = targets.into_iter().filter_map(|target| {
                let addresses = target.resolve().ok()?;
                Some(addresses.into_iter().map(move |address| (target.clone(), address)))
            });
            all.flatten().collect()
        };
        let numbers =
            |target: &Endpoint| matches!(target.host, farside_bootstrap::HostAddress::Ip(_));
        if targets.iter().all(numbers) {
            return self.call_them(token, resolved(targets));
        }
        let core = Arc::clone(&self.core);
        let look_up = move || {
            core.command(Command::Resolved { token, addresses: resolved(targets) });
        };
        let thread = std::thread::Builder::new().name("farside-lookup".to_owned());
        if thread.spawn(look_up).is_err() {
            self.call_them(token, Vec::new());
        }
    }

    fn call_them(&mut self, token: Token, addresses: Vec<(Endpoint, SocketAddr)>) {
        let Some(conversation) = self.conversations.get_mut(&token.0) else {
            return;
        };
        let call = conversation.call.as_ref();
        if addresses.is_empty() && call.is_some_and(|call| !call.targets.is_empty()) {
            conversation.unreachable = Some("the host's name cannot be resolved".to_owned());
        }
        conversation.targets = addresses.into();
        self.call_next(token);
    }

    /// Dials the next address, or reports that no peer was reached.
    fn call_next(&mut self, token: Token) {
        let Some(conversation) = self.conversations.get_mut(&token.0) else {
            return;
        };
        if conversation.call_next(self.limits) {
            // It may be in the list already, for the previous address.
            if !self.calling.contains(&token) {
                self.calling.push(token);
            }
            return self.watch(token);
        }
        let why = match conversation.unreachable.is_some() {
            true => NotReached::Unreachable,
            false => NotReached::NoListener,
        };
        let words = conversation.unreachable.take();
        let words = words.unwrap_or_else(|| "no port listens at that name".to_owned());
        self.not_reached(token, why, words);
    }

    /// Repeats dials that had no answer for a while.
    fn call_again(&mut self) {
        if self.calling.is_empty() {
            return;
        }
        let now = Instant::now();
        let mut calling = std::mem::take(&mut self.calling);
        calling.retain(|token| {
            let Some(found) = self.conversations.get_mut(&token.0) else {
                return false;
            };
            let calls = found.stage == ConversationStage::Calling;
            if calls && now >= found.again_at && found.call_again(now) {
                self.watch(*token);
            }
            calls
        });
        self.calling.append(&mut calling);
    }

    fn not_reached(&mut self, token: Token, why: NotReached, words: String) {
        if let Some(conversation) = self.conversations.remove(&token.0)
            && let Some(inbox) = &conversation.inbox
        {
            inbox.push(Inbound::NotReached { token, why, words });
        }
    }

    fn answer_callers(&mut self) {
        let Some(listener) = &self.listener else {
            return;
        };
        let accepted = listener.accept();
        let socket = match accepted {
            Ok((socket, _)) => socket,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return,
            // Out of descriptors, for example: a pending connection would keep this thread awake.
            Err(_) => {
                self.paused = epoll::delete(&self.epoll, listener).is_ok();
                return;
            }
        };
        let host = socket.peer_addr().ok().map(|from| from.ip().to_canonical());
        // Checked before it takes an entry.
        if self.admission.as_ref().is_some_and(|admission| admission.judge(&socket).is_err()) {
            return;
        }
        let pending = self.conversations.iter().filter_map(|(token, found)| {
            let age = (found.deadline, *token);
            let fresh = found.stage == ConversationStage::Called;
            fresh.then_some(PendingConnection {
                peer: found.caller,
                silent: found.is_silent(),
                age,
            })
        });
        if let Some((_, oldest)) = PendingLimits::DEFAULT.gives_way(pending, host) {
            self.close(Token(oldest));
        }
        let ready = socket.set_nonblocking(true).and_then(|()| socket.set_nodelay(true));
        let token = Token(self.core.number());
        let security = &self.core.options.security;
        if ready.is_ok()
            && let Ok(made) = Conversation::called(socket, security, self.limits)
            && let Some(socket) = made.socket()
            && epoll::add(
                &self.epoll,
                socket,
                epoll::EventData::new_u64(token.0),
                epoll::EventFlags::IN,
            )
            .is_ok()
        {
            self.conversations.insert(token.0, made);
        }
    }

    /// Listens again, when it had to stop.
    fn listen_again(&mut self) {
        if let Some(listener) = &self.listener
            && std::mem::take(&mut self.paused)
        {
            let data = epoll::EventData::new_u64(LISTENER);
            let added = epoll::add(&self.epoll, listener, data, epoll::EventFlags::IN);
            self.paused = added.is_err();
        }
    }

    /// Watches a socket that is new to the poller.
    fn watch(&mut self, token: Token) {
        let Some(conversation) = self.conversations.get(&token.0) else {
            return;
        };
        let both = epoll::EventFlags::IN | epoll::EventFlags::OUT;
        let data = epoll::EventData::new_u64(token.0);
        if let Some(socket) = conversation.socket()
            && let Err(error) = epoll::add(&self.epoll, socket, data, both)
        {
            self.not_reached(token, NotReached::Unreachable, error.to_string());
        }
    }

    /// Requests writability from the epoll while output is pending.
    fn rewatch(&mut self, token: Token) {
        let Some(conversation) = self.conversations.get_mut(&token.0) else {
            return;
        };
        let wants = conversation.wants_write();
        if std::mem::replace(&mut conversation.watches_writes, wants) == wants {
            return;
        }
        let output = if wants { epoll::EventFlags::OUT } else { epoll::EventFlags::empty() };
        let data = epoll::EventData::new_u64(token.0);
        if let Some(socket) = conversation.socket() {
            // Fails for a socket that is not watched, which `watch` has reported.
            let _ = epoll::modify(&self.epoll, socket, data, epoll::EventFlags::IN | output);
        }
    }

    fn say(&mut self, token: Token, frame: &Frame<'_>) {
        let Some(conversation) = self.conversations.get_mut(&token.0) else {
            return;
        };
        match conversation.say(frame).and_then(|()| conversation.flush()) {
            Ok(()) => self.rewatch(token),
            Err(over) => self.over(token, over),
        }
    }

    /// Reads, answers and writes as far as a conversation's socket allows.
    fn go_on(&mut self, token: Token) {
        match self.turn(token) {
            Ok(()) => self.rewatch(token),
            Err(over) => self.over(token, over),
        }
    }

    fn turn(&mut self, token: Token) -> Result<(), Over> {
        let core = Arc::clone(&self.core);
        loop {
            let Some(conversation) = self.conversations.get_mut(&token.0) else {
                return Ok(());
            };
            if !conversation.advance(&core.options.security, self.limits)? {
                return Ok(());
            }
            if conversation.stage == ConversationStage::Securing {
                ask(&core, conversation)?;
            }
            conversation.flush()?;
            // Frames received before the end count: they are handled first.
            let (filled, calls) = (conversation.fill(), conversation.calls);
            let mut any = false;
            while let Some(conversation) = self.conversations.get_mut(&token.0)
                && let Some(bytes) = conversation.take_frame()?
            {
                conversation.heard = Instant::now();
                any = true;
                if let Some((frame, _)) = wire::decode(&bytes)? {
                    self.hear(token, &frame)?;
                }
            }
            let Some(conversation) = self.conversations.get(&token.0) else {
                return Ok(());
            };
            if conversation.calls != calls {
                // The dial continues with another address; the failure of the first is expected.
                return Ok(());
            }
            filled?;
            let more = conversation.holds_bytes();
            if !any && !more {
                return Ok(());
            }
        }
    }

    /// Handles a frame of the peer.
    fn hear(&mut self, token: Token, frame: &Frame<'_>) -> Result<(), Over> {
        let Some(conversation) = self.conversations.get_mut(&token.0) else {
            return Ok(());
        };
        match (conversation.stage, frame) {
            (ConversationStage::Called, Frame::Connect(connect)) => self.offer(token, connect),
            (ConversationStage::Asking, Frame::Accepted(accepted)) => {
                self.connected(token, accepted)
            }
            (ConversationStage::Asking, Frame::Refused(reason)) => {
                self.refused(token, reason);
                Ok(())
            }
            (ConversationStage::Asking, Frame::Full) => {
                self.refused(token, b"the peer's port has no room for another link");
                Ok(())
            }
            (ConversationStage::Asking, Frame::NoListener) => {
                self.call_next(token);
                Ok(())
            }
            (ConversationStage::Confirming, Frame::Ready { incarnation, callers }) => {
                let own = self.core.incarnation;
                if (*incarnation, *callers) != (own, conversation.peer_incarnation) {
                    return Err(Over::Violation(
                        "it names another incarnation of this fabric".to_owned(),
                    ));
                }
                conversation.stage = ConversationStage::Up;
                // With rdma_cm the local kernel has to report it too.
                if (self.core.manager.is_none() || conversation.met.established)
                    && let Some(done) = conversation.done.take()
                {
                    done.give(Ok(()));
                }
                Ok(())
            }
            (ConversationStage::Up, Frame::Import { request, token: region }) => {
                self.import(token, *request, region)
            }
            (ConversationStage::Up, Frame::Imported { request, region }) => {
                if let Some(answer) = conversation.imports.remove(request) {
                    answer.give(Ok(*region));
                }
                Ok(())
            }
            (ConversationStage::Up, Frame::Parted(why)) => {
                self.parted_there(token, *why);
                Ok(())
            }
            (stage, Frame::Alive) if stage.keeps_alive() => Ok(()),
            (_, Frame::Close) => Err(Over::Ended),
            (stage, _) => Err(Over::Violation(format!("an unexpected frame in state {stage:?}"))),
        }
    }

    /// Asks the program whether a peer may connect.
    fn offer(&mut self, token: Token, connect: &Connect<'_>) -> Result<(), Over> {
        let found = lock(&self.core.names).get(connect.name).map(Arc::clone);
        let Some(inbox) = found else {
            self.say(token, &Frame::NoListener);
            self.close(token);
            return Ok(());
        };
        if let Some(words) = self.core.differs(&connect.end) {
            self.say(token, &Frame::Refused(words.as_bytes()));
            self.close(token);
            return Ok(());
        }
        if self.has_its_share(token) {
            self.say(token, &Frame::Refused(SHARE_IS_TAKEN));
            self.close(token);
            return Ok(());
        }
        let links = inbox.links.fetch_add(1, Ordering::AcqRel);
        if links >= u64::from(self.core.capabilities.links_max) {
            inbox.links.fetch_sub(1, Ordering::AcqRel);
            self.say(token, &Frame::Full);
            self.close(token);
            return Ok(());
        }
        let Some(conversation) = self.conversations.get_mut(&token.0) else {
            return Ok(());
        };
        conversation.stage = ConversationStage::Offered;
        conversation.peer = Some(connect.end);
        self.quicken(&connect.end);
        let Some(conversation) = self.conversations.get_mut(&token.0) else {
            return Ok(());
        };
        conversation.peer_incarnation = connect.incarnation;
        conversation.inbox = Some(Arc::clone(&inbox));
        let (from, hello) = (conversation.from.clone(), connect.hello.to_vec());
        inbox.push(Inbound::Requested { token, peer: connect.end, from, hello });
        Ok(())
    }

    /// Returns whether the dialling host has `links_per_host_max` links already.
    fn has_its_share(&self, token: Token) -> bool {
        let caller = self.conversations.get(&token.0).and_then(|found| found.caller);
        let links = self.conversations.values().filter(|found| {
            found.caller.is_some()
                && found.caller == caller
                && found.stage != ConversationStage::Called
        });
        links.count() >= self.core.options.links_per_host_max
    }

    /// Handles the acceptance of the peer's program.
    fn connected(&mut self, token: Token, accepted: &Accepted<'_>) -> Result<(), Over> {
        let core = Arc::clone(&self.core);
        let Some(conversation) = self.conversations.get_mut(&token.0) else {
            return Ok(());
        };
        if accepted.callers != core.incarnation {
            return Err(Over::Violation(
                "it answers another incarnation of this fabric".to_owned(),
            ));
        }
        let (Some(own), Some(handle)) = (conversation.own, &conversation.handle) else {
            return Ok(());
        };
        let (peer, handle) = (accepted.end, handle.clone());
        conversation.stage = ConversationStage::Joining;
        conversation.peer = Some(peer);
        conversation.peer_incarnation = accepted.incarnation;
        conversation.reply = accepted.reply.to_vec();
        conversation.call = None;
        self.quicken(&peer);
        if core.manager.is_some() || accepted.meeting.is_some() {
            return self.meet(token, accepted.meeting.as_ref());
        }
        // In another thread: the kernel may take a second, and other links need keepalives.
        let thread = std::thread::Builder::new().name("farside-join".to_owned());
        let started = thread.spawn(move || {
            let joined = core.join(&handle, &own, &peer);
            core.command(Command::Joined { token, joined });
        });
        started.map(|_| ()).map_err(|error| Over::Unreachable(error.to_string()))
    }

    /// This side's queue pair is connected: the link is up, and the peer is notified.
    fn joined(&mut self, token: Token, joined: std::io::Result<()>) {
        let own = self.core.incarnation;
        let joins = |found: &&mut Conversation| match found.stage {
            ConversationStage::Joining => true,
            // The accepting side's, by rdma_cm.
            ConversationStage::Confirming => joined.is_err(),
            _ => false,
        };
        let Some(conversation) = self.conversations.get_mut(&token.0).filter(joins) else {
            return;
        };
        let (Ok(()), Some(peer)) = (&joined, conversation.peer) else {
            let reason = joined.err().map_or_else(String::new, |error| error.to_string());
            let words = format!("the queue pair cannot be connected: {reason}");
            return self.over(token, Over::Unreachable(words));
        };
        conversation.stage = ConversationStage::Up;
        let (incarnation, callers) = (conversation.peer_incarnation, own);
        let (from, reply) = (conversation.from.clone(), std::mem::take(&mut conversation.reply));
        let inbox = conversation.inbox.clone();
        // Before the peer may send, so that no message arrives before its link.
        if let Some(inbox) = inbox {
            inbox.push(Inbound::Connected { token, peer, from, reply });
        }
        self.say(token, &Frame::Ready { incarnation, callers });
    }

    fn refused(&mut self, token: Token, reason: &[u8]) {
        if let Some(conversation) = self.conversations.remove(&token.0)
            && let Some(inbox) = &conversation.inbox
        {
            inbox.push(Inbound::Refused { token, reason: reason.to_vec() });
        }
    }

    /// Ends a link from this side, without an event to its port.
    fn close(&mut self, token: Token) {
        if let Some(mut conversation) = self.conversations.remove(&token.0) {
            if conversation.stage.keeps_alive() {
                // A full queue means that the peer does not read; it sees the end of the socket.
                let _ = conversation.say(&Frame::Close);
            }
            conversation.hang_up();
            self.core.windows.end_link(token);
            forget(&conversation);
        }
    }

    /// Ends a conversation that failed, and reports it to its port.
    fn over(&mut self, token: Token, over: Over) {
        let Some(conversation) = self.conversations.get_mut(&token.0) else {
            return;
        };
        if matches!(conversation.stage, ConversationStage::Calling | ConversationStage::Securing) {
            return self.not_called(token, over);
        }
        let (loss, status, words) = match over {
            Over::Ended => {
                (Loss::Ended, CompletionStatus::PeerLost, "the peer has ended".to_owned())
            }
            Over::Unreachable(words) => (Loss::Unreachable, CompletionStatus::Unreachable, words),
            Over::NoListener => {
                let words = "the peer's host refuses connections".to_owned();
                (Loss::Ended, CompletionStatus::PeerLost, words)
            }
            Over::Violation(words) => {
                let words =
                    format!("the peer violates the protocol of the control stream: {words}");
                (Loss::Unreachable, CompletionStatus::PeerLost, words)
            }
            Over::NotTrusted(words) if conversation.stage == ConversationStage::Asking => {
                // The peer's verdict arrived after this side's first frame.
                return self.not_reached(token, NotReached::NotPermitted, words);
            }
            Over::NotTrusted(words) => (Loss::Unreachable, CompletionStatus::PeerLost, words),
        };
        self.lose(token, loss, status, words);
    }

    /// Handles a failed dial: an untrusted peer ends it, otherwise the next address is dialled.
    fn not_called(&mut self, token: Token, over: Over) {
        let Some(conversation) = self.conversations.get_mut(&token.0) else {
            return;
        };
        match over {
            Over::NotTrusted(words) => {
                return self.not_reached(token, NotReached::NotPermitted, words);
            }
            Over::NoListener => {}
            Over::Unreachable(words) | Over::Violation(words) => {
                conversation.unreachable = Some(words);
            }
            Over::Ended => {
                conversation.unreachable = Some("the peer closed the connection".to_owned())
            }
        }
        self.call_next(token);
    }

    /// Ends a link because of its peer or the network path, and reports it to the port.
    fn lose(&mut self, token: Token, loss: Loss, status: CompletionStatus, words: String) {
        let Some(mut conversation) = self.conversations.remove(&token.0) else {
            return;
        };
        if let Some(handle) = &conversation.handle {
            handle.fail();
        }
        self.core.windows.end_link(token);
        forget(&conversation);
        if conversation.stage.keeps_alive() && loss == Loss::Unreachable {
            conversation.hang_up();
        }
        let told =
            conversation.stage.keeps_alive() || conversation.stage == ConversationStage::Resolving;
        if let Some(inbox) = conversation.inbox.as_ref().filter(|_| told) {
            inbox.push(Inbound::Lost { token, loss, status, words });
        }
    }

    /// Takes the asynchronous events of the device.
    fn look_at_device(&mut self) {
        while let Some(event) = self.core.device.context.next_event() {
            self.take_event(event);
        }
    }

    fn take_event(&mut self, event: AsyncEvent) {
        let row = status::event(event.number);
        let own_port = event.element & 0xffff_ffff == u64::from(self.core.device.port);
        match event.number {
            numbers::EVENT_QP_FATAL
            | numbers::EVENT_QP_REQ_ERR
            | numbers::EVENT_QP_ACCESS_ERR
            | numbers::EVENT_PATH_MIG_ERR => {
                self.pair_fails(event.element, &row);
            }
            numbers::EVENT_CQ_ERR | numbers::EVENT_SRQ_ERR | numbers::EVENT_DEVICE_FATAL => {
                let one = event.number != numbers::EVENT_DEVICE_FATAL;
                for inbox in lock(&self.core.ports).iter() {
                    let (queue, words) = (one.then_some(event.element), row.to_string());
                    inbox.push(Inbound::Broken { queue, words });
                }
            }
            numbers::EVENT_GID_CHANGE | numbers::EVENT_LID_CHANGE if own_port => {
                self.resolve_again(row);
            }
            numbers::EVENT_PORT_ACTIVE | numbers::EVENT_PORT_ERR if own_port => {
                let up = event.number == numbers::EVENT_PORT_ACTIVE;
                lock(&self.core.state).up = up;
                if up {
                    self.resolve_again(row);
                    (self.seeks, self.seek_at) = (SEEKS, Instant::now());
                } else {
                    lock(&self.core.ports).iter().for_each(|inbox| inbox.push(Inbound::PortDown));
                }
            }
            _ => {}
        }
    }

    /// Restarts neighbour discovery when the port is up again, and repeatedly in case the network was
    /// not ready yet. Without `CAP_NET_ADMIN` discovery takes as long as before.
    fn find_peers(&mut self) {
        let now = Instant::now();
        if self.seeks == 0 || now < self.seek_at {
            return;
        }
        (self.seeks, self.seek_at) = (self.seeks - 1, now + SEEK_AGAIN);
        let controls = self.conversations.values().map(|found| found.from.parse::<SocketAddr>());
        let controls = controls.filter_map(|from| from.ok().map(|from| from.ip()));
        let ends = self.conversations.values().filter_map(|found| found.peer.as_ref());
        let ends = ends.map(|peer| std::net::Ipv6Addr::from(peer.gid).to_canonical());
        let _ = neighbour::forget_questions(&controls.chain(ends).collect());
    }

    /// Queries the port's current address. Links by another address are lost, so that their programs
    /// reconnect; regions stay registered.
    fn resolve_again(&mut self, row: status::StatusRow) {
        let core = Arc::clone(&self.core);
        let device = &core.device;
        let now = port_state(&device.context, device.port, &core.options);
        let moved = {
            let mut state = lock(&core.state);
            match now {
                Ok(now) => {
                    let same = (now.gid, now.gid_index, now.lid)
                        == (state.gid, state.gid_index, state.lid);
                    *state = now;
                    !same
                }
                // No address at all: links live or not, as their packets arrive.
                Err(_) => false,
            }
        };
        if moved {
            for token in self.tokens() {
                let words = row.to_string();
                let Some(conversation) = self.conversations.get(&token.0) else {
                    continue;
                };
                match conversation.stage {
                    // Not yet of this port.
                    ConversationStage::Called => {}
                    // It would name the old address.
                    ConversationStage::Resolving
                    | ConversationStage::Calling
                    | ConversationStage::Securing => {
                        self.not_reached(token, NotReached::Unreachable, words);
                    }
                    ConversationStage::Asking
                    | ConversationStage::Joining
                    | ConversationStage::Offered
                    | ConversationStage::Confirming
                    | ConversationStage::Up => {
                        self.lose(token, Loss::Unreachable, CompletionStatus::Unreachable, words);
                    }
                }
            }
        }
    }
}

/// Sends `Connect`: this side's identity and the requested port.
fn ask(core: &Core, conversation: &mut Conversation) -> Result<(), Over> {
    let Some(call) = &conversation.call else {
        return Ok(());
    };
    let (name, hello) = (call.name.clone(), call.hello.clone());
    let (incarnation, end) = (core.incarnation, call.end);
    conversation.stage = ConversationStage::Asking;
    conversation.heard = Instant::now();
    conversation.say(&Frame::Connect(Connect { incarnation, end, name: &name, hello: &hello }))
}

/// Fails the requests that wait for an ended conversation.
fn forget(conversation: &Conversation) {
    if let Some(done) = &conversation.done {
        done.give(Err(FabricError::PeerLost));
    }
    for answer in conversation.imports.values() {
        answer.give(Err(FabricError::PeerLost));
    }
}
