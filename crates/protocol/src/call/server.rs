//! The executor's machine for requests, sessions and scheduling.

use super::canary::{CallMutant, mutant};
use super::message::{
    Header, Invocation, Part, Refused, Reply, Stopped, Verb, decode_target, one_word,
};
use super::programs::{Left, Programs, Quota, Sizes, Taken, object_of};
use super::schedule::{RunState, Schedule};
use super::sessions::{Arrived, Opened, SessionId, Slots};
use super::{CallId, SLOTS_MAX, Session};
use crate::wire::Violation;
use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use farside_base::Planted;

/// Settings of an executor.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Settings {
    /// The maximum number of sessions.
    pub sessions_max: u32,
    /// The maximum number of sessions of a tenant without a session quota.
    pub tenant_sessions_max: u32,
    /// Slots of each session, 1 to [`SLOTS_MAX`].
    pub slots: usize,
    /// How long a session without a link waits for its caller to reconnect.
    pub grace_ns: u64,
    /// The time that a session runs before another one does.
    pub quantum_ns: u64,
    /// The maximum size in bytes of objects that are being registered, of all tenants together.
    pub registering_bytes_max: u64,
}

/// An action that the runtime has to perform.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Effect {
    /// Send this reply, with the output stored for the slot.
    Reply(Session, Header, Reply),
    /// Drop the state of a call: it was stopped.
    Stop(CallId),
    /// Erase this session's state of this object.
    EraseOwn(Session, u64),
    /// Erase an object with its programs and all their state.
    Erase(u64),
    /// Drop the state of an ended session.
    Over(Session),
}

/// The action that a request requires of the runtime.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum RuntimeAction<'a> {
    /// None: the request is a repeated one, or is answered by an effect.
    Nothing,
    /// Run a program; then [`Server::answer`].
    Run(CallId, u64, &'a [u8]),
    /// Take a part of an object; then [`Server::answer`], after the last part once it is registered.
    Take(CallId, Part, &'a [u8]),
    /// Answer with the next notification of a topic.
    Listen(CallId, u64),
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct SessionEntry {
    id: SessionId,
    tenant: usize,
    linked: bool,
    /// When it ends unless its caller reconnects.
    ends_at_ns: u64,
    slots: Slots,
    /// Scheduled work, by slot.
    runs: Vec<Option<RunnableRequest>>,
}

/// A request in progress that needs the processor.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum RunnableRequest {
    /// A call of a program, which counts towards its tenant's calls, with its deadline.
    Call(Option<u64>),
    /// The loading of an object.
    Loading,
}

/// The executor's machine: see the module.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Server {
    settings: Settings,
    sessions: Vec<Option<SessionEntry>>,
    programs: Programs,
    schedule: Schedule,
    /// Deadline, call, and sequence number of the request in its slot.
    deadlines: BTreeSet<(u64, CallId, u16)>,
    /// The number of sessions without a link.
    away: usize,
    mutant: Planted<CallMutant>,
}

impl Server {
    /// A machine without sessions.
    pub fn new(settings: Settings) -> Self {
        Self::with(settings, Planted::NONE)
    }

    /// The same with a planted defect.
    #[cfg(canary)]
    pub fn with_mutant(settings: Settings, mutant: CallMutant) -> Self {
        Self::with(settings, Planted::new(mutant))
    }

    fn with(settings: Settings, mutant: Planted<CallMutant>) -> Self {
        let slots = settings.slots.clamp(1, SLOTS_MAX);
        Self {
            settings: Settings { slots, ..settings },
            sessions: Vec::new(),
            programs: Programs::new(
                settings.tenant_sessions_max,
                settings.registering_bytes_max,
                mutant,
            ),
            schedule: Schedule::new(settings.quantum_ns, mutant),
            deadlines: BTreeSet::new(),
            away: 0,
            mutant,
        }
    }

    /// Adds a tenant with this quota; returns its number.
    pub fn add_tenant(&mut self, quota: Quota) -> usize {
        self.schedule.add_tenant(quota.weight, quota.processor_ns_per_s);
        self.programs.add_tenant(quota)
    }

    /// The resources that a tenant has taken, and its quota.
    pub fn taken(&self, tenant: usize) -> (Taken, Quota) {
        self.programs.taken(tenant)
    }

    /// The tenant of a session.
    pub fn tenant(&self, session: Session) -> Option<usize> {
        Some(self.sessions.get(session.0 as usize)?.as_ref()?.tenant)
    }

    /// The number of slots of each session.
    pub const fn slots(&self) -> usize {
        self.settings.slots
    }

    /// The number of sessions.
    pub fn sessions(&self) -> usize {
        self.sessions.iter().flatten().count()
    }

    /// The number of programs.
    pub fn programs(&self) -> usize {
        self.programs.len()
    }

    /// Opens or resumes a session for a linked caller, of a tenant added by `add_tenant`.
    ///
    /// # Errors
    /// `TenantSessions` if the tenant's limit is reached, `Sessions` if the limit of all tenants together is.
    /// Resuming an existing session never fails.
    pub fn open(&mut self, id: SessionId, tenant: usize) -> Result<Opened, Refused> {
        let known = self.sessions.iter().position(|entry| {
            entry.as_ref().is_some_and(|entry| entry.id == id && entry.tenant == tenant)
        });
        let slots = || Slots::new(self.settings.slots, self.mutant);
        if let Some(at) = known {
            let number = number(at);
            let fresh = mutant!(self, SlotsForgotten).then(slots);
            if let Some(entry) = &mut self.sessions[at] {
                self.away -= usize::from(!entry.linked);
                entry.linked = true;
                entry.slots.unlinked();
                if let Some(fresh) = fresh {
                    entry.slots = fresh;
                }
            }
            return Ok(Opened::Resumed(number));
        }
        let free = self.sessions.iter().position(Option::is_none);
        let at = free.unwrap_or(self.sessions.len());
        if at as u64 >= u64::from(self.settings.sessions_max) {
            return Err(Refused::Sessions);
        }
        self.programs.open(tenant)?;
        let slots = slots();
        let runs = alloc::vec![None; self.settings.slots];
        let entry = SessionEntry { id, tenant, linked: true, ends_at_ns: 0, slots, runs };
        if at == self.sessions.len() {
            self.sessions.push(None);
        }
        self.sessions[at] = Some(entry);
        self.schedule.open(number(at), tenant);
        Ok(Opened::New(number(at)))
    }

    fn entry(&mut self, session: Session) -> Option<&mut SessionEntry> {
        self.sessions.get_mut(session.0 as usize)?.as_mut()
    }

    /// Handles the loss of a session's link; its caller has the grace period to reconnect.
    pub fn lost(&mut self, session: Session, now_ns: u64, effects: &mut Vec<Effect>) {
        let grace_ns = self.settings.grace_ns;
        let Some(entry) = self.entry(session) else {
            return;
        };
        let was_linked = core::mem::replace(&mut entry.linked, false);
        entry.slots.unlinked();
        entry.ends_at_ns = now_ns.saturating_add(grace_ns);
        self.away += usize::from(was_linked);
        if grace_ns == 0 {
            self.end(session, effects);
        }
    }

    /// Ends a session and all its requests.
    pub fn end(&mut self, session: Session, effects: &mut Vec<Effect>) {
        let Some(entry) = self.sessions.get_mut(session.0 as usize).and_then(Option::take) else {
            return;
        };
        for slot in entry.slots.all_running() {
            effects.push(Effect::Stop(CallId { session, slot }));
        }
        self.away -= usize::from(!entry.linked);
        let calls = entry.runs.iter().filter(|run| matches!(run, Some(RunnableRequest::Call(_))));
        calls.for_each(|_| self.programs.ended(entry.tenant));
        self.schedule.close(session);
        self.deadlines.retain(|(_, call, _)| call.session != session);
        self.programs.release(session, entry.tenant);
        for object in self.programs.of(session) {
            self.drop_object(session, entry.tenant, object, effects);
        }
        self.programs.close(entry.tenant);
        effects.push(Effect::Over(session));
    }

    fn drop_object(
        &mut self,
        session: Session,
        tenant: usize,
        object: u64,
        effects: &mut Vec<Effect>,
    ) -> bool {
        let left = self.programs.unregister(session, tenant, object);
        match left {
            Some(Left::Own(object)) => effects.push(Effect::EraseOwn(session, object)),
            Some(Left::All(object)) => effects.push(Effect::Erase(object)),
            None => {}
        }
        left.is_some()
    }

    /// Handles expired deadlines, and sessions that were not reconnected in time.
    pub fn tick(&mut self, now_ns: u64, effects: &mut Vec<Effect>) {
        while let Some((at_ns, call, sequence)) = self.deadlines.first().copied() {
            if at_ns > now_ns {
                break;
            }
            self.deadlines.pop_first();
            let running = self.entry(call.session).and_then(|entry| entry.slots.running(call.slot));
            if running == Some(sequence) {
                effects.push(Effect::Stop(call));
                self.answer(call, Reply::stopped(Stopped::Late, None), effects);
            }
        }
        let sessions = if self.away > 0 { self.sessions.len() } else { 0 };
        for at in 0..sessions {
            let over = self.sessions[at]
                .as_ref()
                .is_some_and(|entry| !entry.linked && entry.ends_at_ns <= now_ns);
            if over {
                self.end(number(at), effects);
            }
        }
    }

    /// The next time at which [`Self::tick`] has work, or a tenant may run again.
    pub fn wakes_at_ns(&self) -> Option<u64> {
        let sessions = if self.away > 0 { self.sessions.as_slice() } else { &[] };
        let away = sessions.iter().flatten().filter(|entry| !entry.linked);
        let ends = away.map(|entry| entry.ends_at_ns);
        let deadline = self.deadlines.first().map(|(at_ns, ..)| *at_ns);
        ends.chain(deadline).chain(self.schedule.wakes_at_ns()).min()
    }

    /// Handles a request received over the link of this session.
    ///
    /// # Errors
    /// [`Violation`]: no correct caller sends this. Close the link and end the session.
    pub fn request<'a>(
        &mut self,
        session: Session,
        header: Header,
        body: &'a [u8],
        now_ns: u64,
        effects: &mut Vec<Effect>,
    ) -> Result<RuntimeAction<'a>, Violation> {
        let entry = self.entry(session).ok_or(Violation("a request of an unknown session"))?;
        if header.verb == Verb::Leave {
            if header != Header::LEAVE || !body.is_empty() {
                return Err(Violation("a leave message with content"));
            }
            self.end(session, effects);
            return Ok(RuntimeAction::Nothing);
        }
        match entry.slots.arrived(header)? {
            Arrived::New => {}
            Arrived::Running => return Ok(RuntimeAction::Nothing),
            Arrived::Done(reply) => {
                if !mutant!(self, ReplyForgotten) {
                    effects.push(Effect::Reply(session, header_of(header, reply), reply));
                }
                return Ok(RuntimeAction::Nothing);
            }
        }
        let call = CallId { session, slot: header.slot };
        match header.verb {
            Verb::Invoke | Verb::InvokeUntil => {
                let (invocation, parameters) = Invocation::decode(header.verb, body)?;
                Ok(self.invoke(call, header.sequence, &invocation, parameters, now_ns, effects))
            }
            Verb::Register => {
                let (part, bytes) = Part::decode(body)?;
                Ok(RuntimeAction::Take(call, part, bytes))
            }
            Verb::Unregister => {
                let program = one_word(body)?;
                self.asked_to_unregister(call, program, effects);
                Ok(RuntimeAction::Nothing)
            }
            Verb::Cancel => {
                let (slot, sequence) = decode_target(body)?;
                self.cancel(call, CallId { session, slot }, sequence, effects);
                Ok(RuntimeAction::Nothing)
            }
            Verb::Listen => Ok(RuntimeAction::Listen(call, one_word(body)?)),
            Verb::Leave | Verb::Returned | Verb::Stopped | Verb::Refused => {
                Err(Violation("a reply instead of a request"))
            }
        }
    }

    fn invoke<'a>(
        &mut self,
        call: CallId,
        sequence: u16,
        invocation: &Invocation,
        parameters: &'a [u8],
        now_ns: u64,
        effects: &mut Vec<Effect>,
    ) -> RuntimeAction<'a> {
        let tenant = self.entry(call.session).map_or(0, |entry| entry.tenant);
        if let Err(refused) = self.programs.call(call.session, tenant, invocation.program) {
            let reply = match refused == Refused::Calls {
                true => Reply::over_calls(self.programs.taken(tenant).1.calls),
                false => Reply::refused(refused, 0),
            };
            self.answer(call, reply, effects);
            return RuntimeAction::Nothing;
        }
        let deadline_ns = invocation.timeout_ns.map(|timeout_ns| now_ns.saturating_add(timeout_ns));
        if let Some(entry) = self.entry(call.session) {
            entry.runs[usize::from(call.slot)] = Some(RunnableRequest::Call(deadline_ns));
        }
        if let Some(at_ns) = deadline_ns {
            self.deadlines.insert((at_ns, call, sequence));
        }
        self.schedule.ready(call, now_ns);
        RuntimeAction::Run(call, invocation.program, parameters)
    }

    /// Drops a session's registration of an object; returns whether there was one.
    pub fn unregister(&mut self, session: Session, object: u64, effects: &mut Vec<Effect>) -> bool {
        let tenant = self.entry(session).map_or(0, |entry| entry.tenant);
        self.drop_object(session, tenant, object, effects)
    }

    fn asked_to_unregister(&mut self, call: CallId, program: u64, effects: &mut Vec<Effect>) {
        let reply = match self.unregister(call.session, object_of(program), effects) {
            true => Reply::returned(0, 0),
            false => Reply::refused(Refused::NoProgram, 0),
        };
        self.answer(call, reply, effects);
    }

    fn cancel(&mut self, call: CallId, target: CallId, sequence: u16, effects: &mut Vec<Effect>) {
        let running = self.entry(target.session).and_then(|entry| entry.slots.running(target.slot));
        let found = running == Some(sequence) && target != call;
        if found {
            effects.push(Effect::Stop(target));
            self.answer(target, Reply::stopped(Stopped::Cancelled, None), effects);
        }
        let reply = Reply::returned(u64::from(found), 0);
        self.answer(call, reply, effects);
    }

    /// Completes a request with this reply. Does nothing for one that has ended already.
    pub fn answer(&mut self, call: CallId, reply: Reply, effects: &mut Vec<Effect>) {
        let Some(entry) = self.entry(call.session) else {
            return;
        };
        let Some((sequence, asked)) = entry.slots.done(call.slot, reply) else {
            return;
        };
        let (run, tenant) = (entry.runs[usize::from(call.slot)].take(), entry.tenant);
        if run.is_some() {
            self.schedule.forget(call);
        }
        if run == Some(RunnableRequest::Loading) {
            self.programs.release(call.session, tenant);
        }
        if let Some(RunnableRequest::Call(deadline_ns)) = run {
            self.programs.ended(tenant);
            if let Some(at_ns) = deadline_ns {
                self.deadlines.remove(&(at_ns, call, sequence));
            }
        }
        if asked {
            let header = Header { slot: call.slot, sequence, verb: reply.verb };
            effects.push(Effect::Reply(call.session, header, reply));
        }
    }

    /// Registers an object, with zero as the lowest byte of its number, for a session; returns whether it is new and
    /// has to be stored.
    ///
    /// # Errors
    /// The limit of the tenant that is exceeded.
    pub fn register(
        &mut self,
        session: Session,
        object: u64,
        sizes: Sizes,
    ) -> Result<bool, Refused> {
        let tenant = self.entry(session).map_or(0, |entry| entry.tenant);
        self.programs.register(session, tenant, object_of(object), sizes)
    }

    /// Reserves `bytes` for the object that a session begins to register, until [`Self::release`], the end of its
    /// loading in any way, or the session's end.
    ///
    /// # Errors
    /// `State` if that exceeds the tenant's quota, `Registrations` if too much is being registered already.
    pub fn reserve(&mut self, session: Session, bytes: u64) -> Result<(), Refused> {
        let tenant = self.entry(session).map_or(0, |entry| entry.tenant);
        self.programs.reserve(session, tenant, bytes)
    }

    /// Releases a session's reservation: its object is registered, or will not be.
    pub fn release(&mut self, session: Session) {
        let tenant = self.entry(session).map_or(0, |entry| entry.tenant);
        self.programs.release(session, tenant);
    }

    /// Bytes of all objects that are being registered.
    pub fn registering_bytes(&self) -> u64 {
        self.programs.registering_bytes()
    }

    /// Whether the tenant of a session may register anything more, so that reading it is worthwhile.
    pub fn may_register(&self, session: Session) -> bool {
        let entry = self.sessions.get(session.0 as usize).and_then(Option::as_ref);
        entry.is_some_and(|entry| self.programs.has_room(entry.tenant))
    }

    /// Schedules the loading of an object with all parts received, like a call and at its session's cost, until
    /// [`Self::answer`], which releases its reservation.
    pub fn load(&mut self, call: CallId, now_ns: u64) {
        if let Some(entry) = self.entry(call.session) {
            entry.runs[usize::from(call.slot)] = Some(RunnableRequest::Loading);
            self.schedule.ready(call, now_ns);
        }
    }

    /// Returns the call to run next.
    pub fn next(&mut self, now_ns: u64) -> Option<CallId> {
        self.schedule.next(now_ns)
    }

    /// Charges the call that ran for the processor time used.
    pub fn ran(&mut self, call: CallId, used_ns: u64, state: RunState) {
        self.schedule.ran(call, used_ns, state);
    }

    /// Makes a blocked call runnable.
    pub fn ready(&mut self, call: CallId, now_ns: u64) {
        let runs = self.entry(call.session).and_then(|entry| entry.runs[usize::from(call.slot)]);
        if runs.is_some() {
            self.schedule.ready(call, now_ns);
        }
    }

    /// Whether no call is runnable, now or when its tenant has allowance again.
    pub fn is_idle(&self) -> bool {
        self.schedule.is_idle()
    }
}

const fn header_of(request: Header, reply: Reply) -> Header {
    Header { verb: reply.verb, ..request }
}

fn number(at: usize) -> Session {
    Session(u32::try_from(at).unwrap_or(u32::MAX))
}
