//! Links of an executor: the role of each peer, the sessions, and the buffers of their outputs.

use super::registering::ReceivedObject;
use crate::call::transport::message_port::{MessagePort, OutputWrite};
use crate::registered::Registered;
use farside_base::{LinkId, LocalSlice, RemoteRegionId};
use farside_protocol::call::{CallId, Header, Reply, Session, Stopped, Verb, encode_reply};

/// The role of the peer of a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum LinkRole {
    Client(Session),
    /// Accesses the memory by one-sided requests.
    MemoryReader,
    /// Hosts the memory of this executor.
    Upstream,
}

/// The state of a session, in addition to that in the protocol machine.
#[derive(Debug)]
pub(super) struct SessionState {
    pub(super) link: Option<LinkId>,
    pub(super) tenant: usize,
    /// Remote region for its outputs, valid on this link.
    pub(super) output_region: Option<RemoteRegionId>,
    /// Bytes for each output in that region, on any link.
    pub(super) output_bytes: u32,
    /// The object of which parts are missing.
    pub(super) upload: Option<ReceivedObject>,
}

/// The links of an executor.
pub(super) struct ServerLinks {
    pub(super) messages: MessagePort,
    /// By link.
    roles: Vec<Option<LinkRole>>,
    /// By session number.
    sessions: Vec<Option<SessionState>>,
    /// A buffer for the output of each slot of each session.
    outputs: Registered,
    /// Bytes of such a buffer.
    output_bytes_max: u32,
    /// Slots of a session.
    slots: usize,
    /// Number of requests answered so far.
    pub(super) served: u64,
}

impl ServerLinks {
    pub(super) const fn new(
        messages: MessagePort,
        outputs: Registered,
        output_bytes_max: u32,
        slots: usize,
    ) -> Self {
        let roles = Vec::new();
        Self { messages, roles, sessions: Vec::new(), outputs, output_bytes_max, slots, served: 0 }
    }

    /// Returns the index of a slot among those of all sessions.
    pub(super) const fn slot_index(&self, call: CallId) -> usize {
        call.session.0 as usize * self.slots + call.slot as usize
    }

    /// Returns the call at an index of [`Self::slot_index`].
    pub(super) fn call_at(&self, at: usize) -> CallId {
        let (session, slot) = (at / self.slots, at % self.slots);
        let number = |value| u32::try_from(value).unwrap_or(u32::MAX);
        CallId { session: Session(number(session)), slot: u8::try_from(slot).unwrap_or(u8::MAX) }
    }

    pub(super) fn set_role(&mut self, link: LinkId, role: LinkRole) {
        let at = link.0 as usize;
        if self.roles.len() <= at {
            self.roles.resize(at + 1, None);
        }
        self.roles[at] = Some(role);
    }

    pub(super) fn role(&self, link: LinkId) -> Option<LinkRole> {
        self.roles.get(link.0 as usize).copied().flatten()
    }

    pub(super) fn set_session(&mut self, session: Session, state: SessionState) {
        let at = session.0 as usize;
        if self.sessions.len() <= at {
            self.sessions.resize_with(at + 1, || None);
        }
        self.sessions[at] = Some(state);
    }

    pub(super) fn session(&self, session: Session) -> Option<&SessionState> {
        self.sessions.get(session.0 as usize)?.as_ref()
    }

    pub(super) fn session_mut(&mut self, session: Session) -> Option<&mut SessionState> {
        self.sessions.get_mut(session.0 as usize)?.as_mut()
    }

    /// Returns the open sessions.
    pub(super) fn sessions(&self) -> impl Iterator<Item = (Session, &SessionState)> {
        let numbered = (0..).zip(&self.sessions);
        numbered.filter_map(|(number, state)| Some((Session(number), state.as_ref()?)))
    }

    /// Returns how each client is reached, and why so.
    pub(super) fn paths(&self) -> Vec<String> {
        let links = self.sessions().filter_map(|(_, state)| state.link);
        links.map(|link| self.messages.port.path(link)).collect()
    }

    pub(super) fn close(&mut self, link: LinkId) {
        self.messages.close(link);
        if let Some(role) = self.roles.get_mut(link.0 as usize) {
            *role = None;
        }
    }

    /// Removes a session, with its link.
    pub(super) fn end(&mut self, session: Session) {
        let state = self.sessions.get_mut(session.0 as usize).and_then(Option::take);
        if let Some(link) = state.and_then(|state| state.link) {
            self.close(link);
        }
    }

    fn output_offset(&self, call: CallId) -> u64 {
        self.slot_index(call) as u64 * u64::from(self.output_bytes_max)
    }

    /// Stores the output of a call until its reply is acknowledged; returns the reply that goes with it. Explanatory
    /// text is cut to the space of the caller.
    pub(super) fn put_output(&mut self, call: CallId, reply: Reply, output: &[u8]) -> Reply {
        let room = self.session(call.session).map_or(0, |state| state.output_bytes);
        let room = room.min(self.output_bytes_max) as usize;
        let (reply, output) = match output.len() <= room {
            true => (reply, output),
            false if reply.verb == Verb::Returned => {
                (Reply::stopped(Stopped::TooMuchOutput, None), &[][..])
            }
            false => (reply, &output[..room]),
        };
        if !output.is_empty() {
            // Within its slot: `room` was checked above.
            let _ = self.outputs.region.arena.write(self.output_offset(call), output);
        }
        Reply { output_bytes: u32::try_from(output.len()).unwrap_or(0), ..reply }
    }

    /// Queues a reply, with the output of its slot.
    pub(super) fn reply(&mut self, session: Session, header: Header, reply: &Reply) {
        self.served += 1;
        let call = CallId { session, slot: header.slot };
        let Some(state) = self.session(session) else { return };
        let Some(link) = state.link else { return };
        let output = match state.output_region {
            Some(region) if reply.output_bytes > 0 => Some(OutputWrite {
                from: LocalSlice {
                    region: self.outputs.region.id,
                    offset: self.output_offset(call),
                    bytes: reply.output_bytes,
                },
                region,
                offset: u64::from(header.slot) * u64::from(state.output_bytes),
            }),
            _ => None,
        };
        let (body, bytes) = encode_reply(reply);
        let slot = self.slot_index(call);
        self.messages.send(link, header, slot, [&body[..bytes], &[]], output);
    }
}

impl Drop for ServerLinks {
    fn drop(&mut self) {
        let open = (0..).zip(&self.roles).filter(|(_, role)| role.is_some());
        open.for_each(|(link, _)| self.messages.close(LinkId(link)));
    }
}
