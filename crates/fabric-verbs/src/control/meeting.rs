//! Queue pairs connected by rdma_cm: the control thread's part, next to the conversation.
//!
//! ```text
//! caller                                              called
//!   Connect                     - conversation ->       the program accepts
//!   resolve, connect(secret)  <- conversation -         Accepted(place, secret)
//!                               - rdma_cm ->            the secret's conversation: accept
//!   established               <- rdma_cm -              established
//!   Ready                       - conversation ->       the link is up
//! ```
//! The queue pairs of InfiniBand and RoCE are moved through their states by each side itself, with what
//! rdma_cm has negotiated; those of iWARP by the kernel. Steps that may block in the kernel run in a
//! thread of their own, and so does the destruction of an identifier.
//!
//! An iWARP connection ends with the first request that its target refuses, and neither adapter reports
//! to the requester which or why. So each side whose connection ends without a close sends `Parted`,
//! and when both have, the port derives the result from both. A peer whose process died sends nothing:
//! the end of its control stream reports that.

use super::ControlThread;
use crate::conversation::{Conversation, ConversationStage, Over};
use crate::core::Command;
use crate::ffi::{Id, ManagerEvent, OwnEnd, QueuePairHandle, Terms};
use crate::inbox::{Inbound, PendingReply};
use crate::random::random;
use crate::status::{self, numbers};
use crate::token::Token;
use crate::wire::{Accepted, Frame, Meeting, Parting, QueuePairEnd, SECRET_BYTES};
use farside_base::CompletionStatus;
use farside_fabric::{FabricError, Loss};
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long the kernel may take to resolve an address or a route.
const RESOLVE_MS: i32 = 2000;
/// How long a connection may take beyond two leases.
const MEETING_TIME: Duration = Duration::from_secs(3);

fn secret() -> Result<[u8; SECRET_BYTES], FabricError> {
    let mut out = [0; SECRET_BYTES];
    for part in out.chunks_exact_mut(8) {
        part.copy_from_slice(&random()?.to_ne_bytes());
    }
    Ok(out)
}

impl ControlThread {
    /// Accepts a peer on behalf of this program.
    pub(super) fn accept(
        &mut self,
        token: Token,
        handle: QueuePairHandle,
        end: QueuePairEnd,
        reply: &[u8],
        done: Arc<PendingReply<()>>,
    ) {
        let found = self.conversations.get_mut(&token.0);
        let Some(conversation) = found.filter(|found| found.stage == ConversationStage::Offered)
        else {
            return done.give(Err(FabricError::PeerLost));
        };
        conversation.handle = Some(handle);
        conversation.done = Some(done);
        conversation.own = Some(end);
        conversation.stage = ConversationStage::Confirming;
        let callers = conversation.peer_incarnation;
        let incarnation = self.core.incarnation;
        match self.expect(token) {
            Ok(meeting) => {
                let accepted = Accepted { incarnation, callers, end, meeting, reply };
                self.say(token, &Frame::Accepted(accepted));
            }
            Err(error) => self.over(token, Over::Unreachable(error.to_string())),
        }
    }

    /// Returns where the caller's request is expected, if rdma_cm connects.
    fn expect(&mut self, token: Token) -> Result<Option<Meeting>, FabricError> {
        let place = self.core.manager.as_ref().and_then(|manager| manager.place);
        let (Some(place), Some(expected)) = (place, &mut self.expected) else {
            return Ok(None);
        };
        let meeting = Meeting { place, secret: secret()? };
        expected.secrets.insert(meeting.secret, token);
        self.set_deadline(token);
        Ok(Some(meeting))
    }

    fn set_deadline(&mut self, token: Token) {
        let time = self.core.options.lease * 2 + MEETING_TIME;
        if let Some(conversation) = self.conversations.get_mut(&token.0) {
            conversation.met.deadline = Some(Instant::now() + time);
        }
    }

    /// Dials the address at which the accepting peer expects rdma_cm's request.
    pub(super) fn meet(&mut self, token: Token, meeting: Option<&Meeting>) -> Result<(), Over> {
        let core = Arc::clone(&self.core);
        let (Some(manager), Some(meeting), Some(expected)) =
            (&core.manager, meeting, &self.expected)
        else {
            let words = "it connects queue pairs in another way than requested".to_owned();
            return Err(Over::Violation(words));
        };
        if manager.address.is_ipv4() != meeting.place.is_ipv4() {
            let words =
                format!("no route by rdma_cm from {} to {}", manager.address, meeting.place);
            return Err(Over::Unreachable(words));
        }
        let failed = |error: io::Error| Over::Unreachable(format!("rdma_cm: {error}"));
        let id = Arc::new(Id::new(&manager.channel, token.0).map_err(failed)?);
        let kept = expected.keep(&id);
        if let Some(conversation) = self.conversations.get_mut(&token.0) {
            conversation.met.id = Some(kept);
            conversation.met.secret = meeting.secret;
        }
        self.set_deadline(token);
        id.resolve(manager.address, meeting.place, RESOLVE_MS).map_err(failed)
    }

    /// Handles the events of rdma_cm.
    pub(super) fn look_at_manager(&mut self) {
        let channel = self.core.manager.as_ref().map(|manager| Arc::clone(&manager.channel));
        while let Some(event) = channel.as_ref().and_then(|channel| channel.next()) {
            self.take_manager_event(event);
        }
    }

    fn take_manager_event(&mut self, mut event: ManagerEvent) {
        if let Some(id) = event.request.take() {
            return self.match_request(id, &event.said);
        }
        let token = Token(event.token);
        let row = status::connection(event.number);
        let Some(conversation) = self.conversations.get_mut(&token.0) else {
            return;
        };
        let done = match (event.number, conversation.stage) {
            (numbers::CM_ADDR_RESOLVED, ConversationStage::Joining) => self.go_by_own_device(token),
            (numbers::CM_ROUTE_RESOLVED, ConversationStage::Joining) => self.ask_manager(token),
            (numbers::CM_CONNECT_RESPONSE, ConversationStage::Joining) => self.join_answered(token),
            (numbers::CM_ESTABLISHED, stage) => {
                conversation.met.established = true;
                if stage == ConversationStage::Joining {
                    self.joined(token, Ok(()));
                } else if stage == ConversationStage::Up
                    && let Some(done) = conversation.done.take()
                {
                    done.give(Ok(()));
                }
                Ok(())
            }
            (numbers::CM_DISCONNECTED, ConversationStage::Up) => {
                self.parted_here(token);
                Ok(())
            }
            // The device reports these by its own events.
            (
                numbers::CM_ADDR_CHANGE | numbers::CM_TIMEWAIT_EXIT | numbers::CM_DEVICE_REMOVAL,
                _,
            ) => Ok(()),
            (_, ConversationStage::Joining | ConversationStage::Confirming) => {
                let words = format!("rdma_cm: {row} (status {})", event.status);
                self.lose(token, Loss::Unreachable, row.status, words);
                Ok(())
            }
            _ => Ok(()),
        };
        if let Err(over) = done {
            self.over(token, over);
        }
    }

    /// Matches a peer's rdma_cm request with its conversation by the secret.
    fn match_request(&mut self, mut id: Id, said: &[u8]) {
        let Some(expected) = &mut self.expected else {
            return;
        };
        let secret = said.first_chunk::<SECRET_BYTES>();
        let token = secret.and_then(|secret| expected.secrets.remove(secret));
        let found = token.and_then(|token| self.conversations.get_mut(&token.0));
        let conversation = found.filter(|found| found.stage == ConversationStage::Confirming);
        let (Some(token), Some(conversation)) = (token, conversation) else {
            id.reject();
            let _ = expected.destroyer.send(Arc::new(id));
            return;
        };
        id.mark(token.0);
        let id = Arc::new(id);
        conversation.met.id = Some(expected.keep(&id));
        let Some((handle, terms)) = self.terms_of(token) else {
            return;
        };
        let iwarp = self.core.ways().iwarp;
        self.apart(token, move || {
            if !iwarp {
                id.join(&handle, &terms)?;
            }
            id.accept(&terms).map(|()| false)
        });
    }

    /// Queue pair and terms of a conversation's connection.
    fn terms_of(&self, token: Token) -> Option<(QueuePairHandle, Terms)> {
        let conversation = self.conversations.get(&token.0)?;
        let (own, peer) = (conversation.own.as_ref()?, conversation.peer.as_ref()?);
        let handle = conversation.handle.clone()?;
        let terms = self.core.terms(handle.number(), own, peer);
        Some((handle, terms))
    }

    /// Runs a step that may block in a thread of its own. The step returns true when the link is up.
    fn apart(&mut self, token: Token, step: impl FnOnce() -> io::Result<bool> + Send + 'static) {
        let core = Arc::clone(&self.core);
        let thread = std::thread::Builder::new().name("farside-join".to_owned());
        let started = thread.spawn(move || {
            let joined = match step() {
                Ok(false) => return,
                Ok(true) => Ok(()),
                Err(error) => Err(error),
            };
            core.command(Command::Joined { token, joined });
        });
        if let Err(error) = started {
            self.over(token, Over::Unreachable(error.to_string()));
        }
    }

    fn id_of(&self, token: Token) -> Option<Arc<Id>> {
        self.conversations.get(&token.0)?.met.id.as_ref()?.id.clone()
    }

    /// Checks that the resolved address is on the device of the queue pair, and resolves the route.
    fn go_by_own_device(&self, token: Token) -> Result<(), Over> {
        let Some(id) = self.id_of(token) else {
            return Ok(());
        };
        let device = &self.core.device;
        let own = (device.context.listed.name.clone(), device.port);
        let leads = id.device();
        if leads.as_ref() != Some(&own) {
            let words = format!("rdma_cm resolves to {leads:?}, but the queue pair is of {own:?}");
            return Err(Over::Unreachable(words));
        }
        id.resolve_route(RESOLVE_MS).map_err(|error| Over::Unreachable(error.to_string()))
    }

    /// Sends the request to the peer's kernel over the resolved route, with the secret.
    fn ask_manager(&mut self, token: Token) -> Result<(), Over> {
        let (Some(id), Some((_, terms))) = (self.id_of(token), self.terms_of(token)) else {
            return Ok(());
        };
        let said = self.conversations.get(&token.0).map(|found| found.met.secret);
        let said = said.unwrap_or_default();
        self.apart(token, move || id.connect(&terms, &said).map(|()| false));
        Ok(())
    }

    /// Connects this side's queue pair after the answer of the peer's kernel.
    fn join_answered(&mut self, token: Token) -> Result<(), Over> {
        if let (Some(id), Some((handle, terms))) = (self.id_of(token), self.terms_of(token)) {
            self.apart(token, move || {
                id.join(&handle, &terms)?;
                id.establish().map(|()| true)
            });
        }
        Ok(())
    }

    /// Handles the end of the adapters' connection of a link.
    fn parted_here(&mut self, token: Token) {
        let Some(conversation) = self.conversations.get_mut(&token.0) else {
            return;
        };
        let end = conversation.handle.as_ref().map_or(OwnEnd::Closed, QueuePairHandle::own_end);
        if end == OwnEnd::Closed {
            // The peer is notified at once.
            return;
        }
        conversation.met.ended.get_or_insert_with(Instant::now);
        let why = if end == OwnEnd::Failed { Parting::Own } else { Parting::Unknown };
        self.say_parted(token, why);
        self.part(token);
    }

    /// Handles an event of the device: a queue pair is broken, or has refused a request of the peer's
    /// (`Flushed`), of which the peer is notified.
    pub(super) fn pair_fails(&mut self, queue_pair: u64, row: &status::StatusRow) {
        // Of one that this side has ended all is known, and its address may be another one's by now.
        let is_it = |found: &Conversation| {
            let handle = found.handle.as_ref().filter(|handle| handle.own_end() == OwnEnd::None);
            let stage =
                matches!(found.stage, ConversationStage::Confirming | ConversationStage::Up);
            stage && handle.map(QueuePairHandle::address) == Some(queue_pair)
        };
        let Some((token, found)) = self.conversations.iter().find(|(_, found)| is_it(found)) else {
            return;
        };
        let (token, status) = (Token(*token), row.status);
        if let Some(inbox) = &found.inbox {
            inbox.push(Inbound::Fault { token, status, words: row.to_string() });
        }
        if status == CompletionStatus::Flushed {
            self.say_parted(token, Parting::Refused);
        }
    }

    pub(super) fn say_parted(&mut self, token: Token, why: Parting) {
        if let Some(conversation) = self.conversations.get_mut(&token.0)
            && !std::mem::replace(&mut conversation.met.said, true)
        {
            self.say(token, &Frame::Parted(why));
        }
    }

    /// Handles `Parted`: the peer reports the end of the connection.
    pub(super) fn parted_there(&mut self, token: Token, why: Parting) {
        if let Some(conversation) = self.conversations.get_mut(&token.0) {
            conversation.met.heard.get_or_insert_with(|| (why, Instant::now()));
        }
        self.part(token);
    }

    /// Reports the end to the port: at once if its adapter will report more, else when both sides know.
    fn part(&mut self, token: Token) {
        let tells = self.core.device.confirmation.is_none();
        let Some(conversation) = self.conversations.get_mut(&token.0) else {
            return;
        };
        let met = &mut conversation.met;
        if let (true, Some((why, _)), false) = (tells || met.ended.is_some(), met.heard, met.told) {
            met.told = true;
            if let Some(inbox) = &conversation.inbox {
                inbox.push(Inbound::Parted { token, why });
            }
        }
    }

    /// Checks a live conversation once a tick.
    pub(super) fn look_at_meeting(&mut self, token: Token, now: Instant) {
        let lease = self.core.options.lease;
        let Some(conversation) = self.conversations.get_mut(&token.0) else {
            return;
        };
        let waits = matches!(
            conversation.stage,
            ConversationStage::Joining | ConversationStage::Confirming
        ) || conversation.done.is_some();
        let met = &mut conversation.met;
        if waits && met.deadline.is_some_and(|deadline| now > deadline) {
            let words = "rdma_cm did not connect the queue pairs in time: look at the way between \
                         the devices' addresses, and at both kernels' logs";
            return self.over(token, Over::Unreachable(words.to_owned()));
        }
        let heard =
            met.heard.filter(|(_, since)| now.saturating_duration_since(*since) > lease / 2);
        if heard.is_some() && met.ended.is_none() {
            // Nothing local adds to what the peer reported.
            met.ended = Some(now);
            self.part(token);
        }
    }

    /// Once a tick: secrets end with their conversations.
    pub(super) fn forget_secrets(&mut self) {
        let conversations = &self.conversations;
        if let Some(expected) = &mut self.expected {
            expected.secrets.retain(|_, token| {
                let found = conversations.get(&token.0);
                found.is_some_and(|found| found.stage == ConversationStage::Confirming)
            });
        }
    }
}
