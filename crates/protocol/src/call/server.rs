//! The executor's machine: requests in, effects out.

use super::canary::{Canary, Mutant};
use super::message::{
    Header, Invocation, Part, Refused, Reply, Stopped, Verb, decode_target, one_word,
};
use super::programs::{Left, Programs, Quota, Sizes, Taken, object_of};
use super::schedule::{Schedule, Turn};
use super::sessions::{Arrived, Opened, SessionId, Slots};
use super::{SLOTS_MAX, Session};
use crate::wire::Violation;
use alloc::collections::BTreeSet;
use alloc::vec::Vec;

/// Bounds of an executor.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Settings {
    /// Most sessions.
    pub sessions_max: u32,
    /// Most sessions of a tenant whose quota does not say.
    pub tenant_sessions_max: u32,
    /// Slots of each session, 1 to [`SLOTS_MAX`].
    pub slots: usize,
    /// How long a session waits for its caller to come back over another link.
    pub grace_ns: u64,
    /// What a session uses before another one's turn.
    pub quantum_ns: u64,
    /// Most bytes of objects that are being registered, of all tenants together.
    pub registering_bytes_max: u64,
}

/// A request in progress.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Call {
    /// Whose.
    pub session: Session,
    /// Where.
    pub slot: u8,
}

/// What the runtime has to do.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Effect {
    /// Send this reply, with the output that the slot has.
    Reply(Session, Header, Reply),
    /// Forget what it knows of a call: it goes on no more.
    Stop(Call),
    /// Erase what this session has at this object.
    EraseOwn(Session, u64),
    /// Erase an object with its programs and all their state.
    Erase(u64),
    /// A session is over: forget what it has.
    Over(Session),
}

/// What a request asks the runtime to do.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Asked<'a> {
    /// Nothing: it was there already, or is answered by an effect.
    Nothing,
    /// Run a program; then [`Server::answer`].
    Run(Call, u64, &'a [u8]),
    /// Take a part of an object; then [`Server::answer`], with the last part after registering.
    Take(Call, Part, &'a [u8]),
    /// Answer with the next notification of a topic.
    Listen(Call, u64),
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Entry {
    id: SessionId,
    tenant: usize,
    linked: bool,
    /// When it ends unless its caller comes back.
    ends_at_ns: u64,
    slots: Slots,
    /// What is scheduled, by slot.
    runs: Vec<Option<Run>>,
}

/// A request in progress that the processor works on.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Run {
    /// A call of a program, which counts towards its tenant's calls, until then.
    Call(Option<u64>),
    /// The loading of an object.
    Loading,
}

/// The executor's machine. See the module.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Server {
    settings: Settings,
    sessions: Vec<Option<Entry>>,
    programs: Programs,
    schedule: Schedule,
    /// When, which call, which request of its slot.
    deadlines: BTreeSet<(u64, Call, u16)>,
    /// Sessions without a link.
    away: usize,
    canary: Canary,
}

impl Server {
    /// A machine without sessions.
    pub fn new(settings: Settings) -> Self {
        Self::with(settings, Canary::default())
    }

    /// The same with a defect in it.
    #[cfg(canary)]
    pub fn with_mutant(settings: Settings, mutant: Mutant) -> Self {
        Self::with(settings, Canary::new(mutant))
    }

    fn with(settings: Settings, canary: Canary) -> Self {
        let slots = settings.slots.clamp(1, SLOTS_MAX);
        Self {
            settings: Settings { slots, ..settings },
            sessions: Vec::new(),
            programs: Programs::new(
                settings.tenant_sessions_max,
                settings.registering_bytes_max,
                canary,
            ),
            schedule: Schedule::new(settings.quantum_ns, canary),
            deadlines: BTreeSet::new(),
            away: 0,
            canary,
        }
    }

    /// A tenant with these bounds; its number.
    pub fn add_tenant(&mut self, quota: Quota) -> usize {
        self.schedule.add_tenant(quota.weight, quota.processor_ns_per_s);
        self.programs.add_tenant(quota)
    }

    /// What a tenant has taken, and what it may.
    pub fn taken(&self, tenant: usize) -> (Taken, Quota) {
        self.programs.taken(tenant)
    }

    /// The tenant of a session.
    pub fn tenant(&self, session: Session) -> Option<usize> {
        Some(self.sessions.get(session.0 as usize)?.as_ref()?.tenant)
    }

    /// Slots that each session has.
    pub const fn slots(&self) -> usize {
        self.settings.slots
    }

    /// Sessions that there are.
    pub fn sessions(&self) -> usize {
        self.sessions.iter().flatten().count()
    }

    /// Programs that there are.
    pub fn programs(&self) -> usize {
        self.programs.len()
    }

    /// A caller is linked and wants this session. Of a tenant that `add_tenant` has numbered.
    ///
    /// # Errors
    /// `TenantSessions` when the tenant has as many as it may, `Sessions` when there are too many of all
    /// tenants together. One that is there already is neither.
    pub fn open(&mut self, id: SessionId, tenant: usize) -> Result<Opened, Refused> {
        let known = self.sessions.iter().position(|entry| {
            entry.as_ref().is_some_and(|entry| entry.id == id && entry.tenant == tenant)
        });
        let slots = || Slots::new(self.settings.slots, self.canary);
        if let Some(at) = known {
            let number = number(at);
            let fresh = self.canary_forgets().then(slots);
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
        let entry = Entry { id, tenant, linked: true, ends_at_ns: 0, slots, runs };
        if at == self.sessions.len() {
            self.sessions.push(None);
        }
        self.sessions[at] = Some(entry);
        self.schedule.open(number(at), tenant);
        Ok(Opened::New(number(at)))
    }

    fn canary_forgets(&self) -> bool {
        self.canary.is(Mutant::SlotsForgotten)
    }

    fn entry(&mut self, session: Session) -> Option<&mut Entry> {
        self.sessions.get_mut(session.0 as usize)?.as_mut()
    }

    /// The link of a session is lost; its caller has some time to come back.
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

    /// A session is over: everything of it ends.
    pub fn end(&mut self, session: Session, effects: &mut Vec<Effect>) {
        let Some(entry) = self.sessions.get_mut(session.0 as usize).and_then(Option::take) else {
            return;
        };
        for slot in entry.slots.all_running() {
            effects.push(Effect::Stop(Call { session, slot }));
        }
        self.away -= usize::from(!entry.linked);
        let calls = entry.runs.iter().filter(|run| matches!(run, Some(Run::Call(_))));
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

    /// Time has passed: deadlines, and sessions whose callers have not come back.
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

    /// When [`Self::tick`] has something to do next, or a tenant may run again.
    pub fn wakes_at_ns(&self) -> Option<u64> {
        let sessions = if self.away > 0 { self.sessions.as_slice() } else { &[] };
        let away = sessions.iter().flatten().filter(|entry| !entry.linked);
        let ends = away.map(|entry| entry.ends_at_ns);
        let deadline = self.deadlines.first().map(|(at_ns, ..)| *at_ns);
        ends.chain(deadline).chain(self.schedule.wakes_at_ns()).min()
    }

    /// A request has come over the link of this session.
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
    ) -> Result<Asked<'a>, Violation> {
        let entry = self.entry(session).ok_or(Violation("a request of no session"))?;
        if header.verb == Verb::Leave {
            if header != Header::LEAVE || !body.is_empty() {
                return Err(Violation("a caller that leaves says nothing else"));
            }
            self.end(session, effects);
            return Ok(Asked::Nothing);
        }
        match entry.slots.arrived(header)? {
            Arrived::New => {}
            Arrived::Running => return Ok(Asked::Nothing),
            Arrived::Done(reply) => {
                if !self.canary.is(Mutant::ReplyForgotten) {
                    effects.push(Effect::Reply(session, header_of(header, reply), reply));
                }
                return Ok(Asked::Nothing);
            }
        }
        let call = Call { session, slot: header.slot };
        match header.verb {
            Verb::Invoke | Verb::InvokeUntil => {
                let (invocation, parameters) = Invocation::decode(header.verb, body)?;
                Ok(self.invoke(call, header.sequence, &invocation, parameters, now_ns, effects))
            }
            Verb::Register => {
                let (part, bytes) = Part::decode(body)?;
                Ok(Asked::Take(call, part, bytes))
            }
            Verb::Unregister => {
                let program = one_word(body)?;
                self.asked_to_unregister(call, program, effects);
                Ok(Asked::Nothing)
            }
            Verb::Cancel => {
                let (slot, sequence) = decode_target(body)?;
                self.cancel(call, Call { session, slot }, sequence, effects);
                Ok(Asked::Nothing)
            }
            Verb::Listen => Ok(Asked::Listen(call, one_word(body)?)),
            Verb::Leave | Verb::Returned | Verb::Stopped | Verb::Refused => {
                Err(Violation("a reply where requests come"))
            }
        }
    }

    fn invoke<'a>(
        &mut self,
        call: Call,
        sequence: u16,
        invocation: &Invocation,
        parameters: &'a [u8],
        now_ns: u64,
        effects: &mut Vec<Effect>,
    ) -> Asked<'a> {
        let tenant = self.entry(call.session).map_or(0, |entry| entry.tenant);
        if let Err(refused) = self.programs.call(call.session, tenant, invocation.program) {
            let reply = match refused == Refused::Calls {
                true => Reply::over_calls(self.programs.taken(tenant).1.calls),
                false => Reply::refused(refused, 0),
            };
            self.answer(call, reply, effects);
            return Asked::Nothing;
        }
        let deadline_ns = invocation.timeout_ns.map(|timeout_ns| now_ns.saturating_add(timeout_ns));
        if let Some(entry) = self.entry(call.session) {
            entry.runs[usize::from(call.slot)] = Some(Run::Call(deadline_ns));
        }
        if let Some(at_ns) = deadline_ns {
            self.deadlines.insert((at_ns, call, sequence));
        }
        self.schedule.ready(call, now_ns);
        Asked::Run(call, invocation.program, parameters)
    }

    /// A session needs an object no more; whether it had registered it.
    pub fn unregister(&mut self, session: Session, object: u64, effects: &mut Vec<Effect>) -> bool {
        let tenant = self.entry(session).map_or(0, |entry| entry.tenant);
        self.drop_object(session, tenant, object, effects)
    }

    fn asked_to_unregister(&mut self, call: Call, program: u64, effects: &mut Vec<Effect>) {
        let reply = match self.unregister(call.session, object_of(program), effects) {
            true => Reply::returned(0, 0),
            false => Reply::refused(Refused::NoProgram, 0),
        };
        self.answer(call, reply, effects);
    }

    fn cancel(&mut self, call: Call, target: Call, sequence: u16, effects: &mut Vec<Effect>) {
        let running = self.entry(target.session).and_then(|entry| entry.slots.running(target.slot));
        let found = running == Some(sequence) && target != call;
        if found {
            effects.push(Effect::Stop(target));
            self.answer(target, Reply::stopped(Stopped::Cancelled, None), effects);
        }
        let reply = Reply::returned(u64::from(found), 0);
        self.answer(call, reply, effects);
    }

    /// A request was carried out, or was not. Does nothing for one that has ended already.
    pub fn answer(&mut self, call: Call, reply: Reply, effects: &mut Vec<Effect>) {
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
        if run == Some(Run::Loading) {
            self.programs.release(call.session, tenant);
        }
        if let Some(Run::Call(deadline_ns)) = run {
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

    /// A session registers an object, whose number's lowest byte is zero; whether the object is new here and
    /// has to be kept.
    ///
    /// # Errors
    /// What the tenant has too much of.
    pub fn register(
        &mut self,
        session: Session,
        object: u64,
        sizes: Sizes,
    ) -> Result<bool, Refused> {
        let tenant = self.entry(session).map_or(0, |entry| entry.tenant);
        self.programs.register(session, tenant, object_of(object), sizes)
    }

    /// A session begins to register an object of `bytes`, which count until [`Self::release`], the end of its loading
    /// in any way, or the session's end.
    ///
    /// # Errors
    /// `State` where that is more than the tenant may have, `Registrations` where too much is being registered already.
    pub fn reserve(&mut self, session: Session, bytes: u64) -> Result<(), Refused> {
        let tenant = self.entry(session).map_or(0, |entry| entry.tenant);
        self.programs.reserve(session, tenant, bytes)
    }

    /// A session has registered its object, or will not.
    pub fn release(&mut self, session: Session) {
        let tenant = self.entry(session).map_or(0, |entry| entry.tenant);
        self.programs.release(session, tenant);
    }

    /// Bytes of all objects that are being registered.
    pub fn registering_bytes(&self) -> u64 {
        self.programs.registering_bytes()
    }

    /// Whether the tenant of a session may register anything more, so that it is worth reading.
    pub fn may_register(&self, session: Session) -> bool {
        let entry = self.sessions.get(session.0 as usize).and_then(Option::as_ref);
        entry.is_some_and(|entry| self.programs.has_room(entry.tenant))
    }

    /// An object whose last part was taken is loaded in turns as calls have them, at its session's cost, until
    /// [`Self::answer`], which releases its reservation.
    pub fn load(&mut self, call: Call, now_ns: u64) {
        if let Some(entry) = self.entry(call.session) {
            entry.runs[usize::from(call.slot)] = Some(Run::Loading);
            self.schedule.ready(call, now_ns);
        }
    }

    /// Whose call runs next.
    pub fn next(&mut self, now_ns: u64) -> Option<Call> {
        self.schedule.next(now_ns)
    }

    /// The call that was at turn has used so much of the processor.
    pub fn ran(&mut self, call: Call, used_ns: u64, turn: Turn) {
        self.schedule.ran(call, used_ns, turn);
    }

    /// What a call waited for has come.
    pub fn ready(&mut self, call: Call, now_ns: u64) {
        let runs = self.entry(call.session).and_then(|entry| entry.runs[usize::from(call.slot)]);
        if runs.is_some() {
            self.schedule.ready(call, now_ns);
        }
    }

    /// Whether no call could run, now or when its tenant may.
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
