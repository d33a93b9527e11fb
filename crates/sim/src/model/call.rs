//! The model of remote memory calls: a caller and an executor with links that break. Messages in flight on a broken
//! link are lost. A caller that reconnects within the grace period finds its session, a later one does not.
//!
//! Checked: a call runs at most once, completes once, and with the result of its run.

use crate::explorer::{Model, Violation};
use farside_protocol::call::{
    CallId, Effect, Header, Invocation, Opened, Quota, Reply, RuntimeAction, Server, Session,
    SessionId, Settings, Sizes, Verb, Window,
};
use std::collections::{BTreeMap, VecDeque};

const ID: SessionId = SessionId(7);
const PROGRAM: u64 = 11 << 8;
/// Grace period of the session of a disconnected caller.
const GRACE_NS: u64 = 1;

/// How a call ended, as reported to its caller.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum CallEnd {
    /// By a reply.
    Replied(Reply),
    /// By the end of the session.
    Unknown,
}

/// A step of the model.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum CallAction {
    /// The caller begins a call.
    Begin,
    /// The caller cancels the call in this slot.
    Cancel(u8),
    /// A request reaches the executor.
    Take,
    /// The call selected by the scheduler runs to completion.
    Run,
    /// A reply reaches the caller.
    Arrive,
    /// The link breaks; messages in flight are lost.
    Break,
    /// The grace period of a disconnected caller ends.
    Expire,
    /// The caller reconnects.
    Link,
}

/// A request in flight, and the call that it belongs to.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Carried {
    header: Header,
    body: Vec<u8>,
}

/// A caller, an executor, and the messages in flight between them.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Calls {
    window: Window,
    server: Server,
    session: Option<Session>,
    linked: bool,
    there: VecDeque<Carried>,
    back: VecDeque<(Header, Reply)>,
    /// Unanswered requests by slot, kept for retransmission: the number of the call, and the bytes.
    asked: BTreeMap<u8, (u8, Carried)>,
    /// Parameters of the calls that the executor runs.
    running: BTreeMap<CallId, u8>,
    /// Number of runs of each call.
    runs: Vec<u8>,
    /// Outcome of each call.
    ends: Vec<Option<CallEnd>>,
    calls: u8,
    cancels: u8,
    breaks: u8,
    /// Sessions that ended while their caller was disconnected.
    expired: u8,
    broken: Option<String>,
}

impl Calls {
    /// Creates a model of `calls` calls in `slots` slots, with `breaks` broken links and `cancels` cancellations.
    pub fn new(
        calls: u8,
        slots: usize,
        breaks: u8,
        cancels: u8,
        change: impl Fn(Window, Settings) -> (Window, Server),
    ) -> Self {
        let settings = Settings {
            sessions_max: 1,
            tenant_sessions_max: 1,
            slots,
            grace_ns: GRACE_NS,
            quantum_ns: 1000,
            registering_bytes_max: u64::MAX,
        };
        let (window, mut server) = change(Window::new(slots), settings);
        server.add_tenant(Quota::DEFAULT);
        let mut model = Self {
            window,
            server,
            session: None,
            linked: false,
            there: VecDeque::new(),
            back: VecDeque::new(),
            asked: BTreeMap::new(),
            running: BTreeMap::new(),
            runs: Vec::new(),
            ends: Vec::new(),
            calls,
            cancels,
            breaks,
            expired: 0,
            broken: None,
        };
        model.link();
        model
    }

    fn begin(&mut self) {
        let number = self.runs.len() as u8;
        let (verb, head, length) = Invocation { program: PROGRAM, timeout_ns: None }.encode();
        let body = [&head[..length], &[number]].concat();
        self.send(verb, number, body);
        self.runs.push(0);
        self.ends.push(None);
    }

    fn send(&mut self, verb: Verb, number: u8, body: Vec<u8>) {
        let Some(header) = self.window.begin(verb) else { return };
        let carried = Carried { header, body };
        self.asked.insert(header.slot, (number, carried.clone()));
        if self.linked {
            self.there.push_back(carried);
        }
    }

    fn cancel(&mut self, slot: u8) {
        self.cancels -= 1;
        if let Some(target) = self.window.waiting(slot) {
            self.send(Verb::Cancel, u8::MAX, Window::cancellation(target).to_vec());
        }
    }

    fn take(&mut self) {
        let (Some(Carried { header, body }), Some(session)) =
            (self.there.pop_front(), self.session)
        else {
            return;
        };
        let mut effects = Vec::new();
        match self.server.request(session, header, &body, 0, &mut effects) {
            Ok(RuntimeAction::Run(call, PROGRAM, [number])) => {
                self.running.insert(call, *number);
            }
            Ok(RuntimeAction::Nothing) => {}
            other => self.broken = Some(format!("a request was taken as {other:?}")),
        }
        self.carry_out(effects);
    }

    fn run(&mut self) {
        let Some(call) = self.server.next(0) else { return };
        let Some(number) = self.running.remove(&call) else {
            self.broken = Some(format!("{call:?} is scheduled and does not run"));
            return;
        };
        let runs = &mut self.runs[usize::from(number)];
        *runs += 1;
        if *runs > 1 {
            self.broken = Some(format!("call {number} ran twice"));
        }
        let mut effects = Vec::new();
        self.server.answer(call, Reply::returned(u64::from(number), 0), &mut effects);
        self.carry_out(effects);
        self.server.ran(call, 1, farside_protocol::call::RunState::Over);
    }

    fn carry_out(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Reply(_, header, reply) => self.back.push_back((header, reply)),
                Effect::Stop(call) => {
                    self.running.remove(&call);
                }
                Effect::Over(_) | Effect::Erase(PROGRAM) => {}
                other => self.broken = Some(format!("unexpected effect {other:?}")),
            }
        }
    }

    fn arrive(&mut self) {
        let Some((header, reply)) = self.back.pop_front() else { return };
        match self.window.reply(header) {
            Ok(answered) => {
                let Some((number, _)) = self.asked.remove(&answered.slot) else { return };
                self.ended(number, CallEnd::Replied(reply));
            }
            Err(violation) => self.broken = Some(violation.0.to_owned()),
        }
    }

    fn ended(&mut self, number: u8, end: CallEnd) {
        // A cancellation leaves no state.
        let Some(place) = self.ends.get_mut(usize::from(number)) else { return };
        if place.replace(end).is_some() {
            self.broken = Some(format!("call {number} ended twice"));
        }
    }

    fn break_link(&mut self) {
        self.breaks -= 1;
        self.linked = false;
        self.there.clear();
        self.back.clear();
        let mut effects = Vec::new();
        if let Some(session) = self.session {
            self.server.lost(session, 0, &mut effects);
        }
        self.carry_out(effects);
    }

    fn expire(&mut self) {
        let mut effects = Vec::new();
        self.server.tick(GRACE_NS, &mut effects);
        self.carry_out(effects);
        self.expired += 1;
    }

    fn link(&mut self) {
        self.linked = true;
        match self.server.open(ID, 0) {
            Ok(Opened::Resumed(session)) => {
                self.session = Some(session);
                for header in self.window.again().collect::<Vec<_>>() {
                    match self.asked.get(&header.slot) {
                        Some((_, carried)) if carried.header == header => {
                            self.there.push_back(carried.clone());
                        }
                        _ => self.broken = Some(format!("{header:?} was never asked")),
                    }
                }
            }
            Ok(Opened::New(session)) => {
                self.session = Some(session);
                for header in self.window.over() {
                    if let Some((number, _)) = self.asked.remove(&header.slot) {
                        self.ended(number, CallEnd::Unknown);
                    }
                }
                if let Err(refused) = self.server.register(
                    session,
                    PROGRAM,
                    Sizes { programs: 1, ..Sizes::default() },
                ) {
                    self.broken = Some(format!("{refused:?}"));
                }
            }
            Err(refused) => self.broken = Some(format!("{refused:?}")),
        }
    }
}

impl Model for Calls {
    type Action = CallAction;

    fn enabled(&self) -> Vec<CallAction> {
        let room = self.window.room() > 0;
        let table = [
            (CallAction::Begin, room && self.runs.len() < usize::from(self.calls)),
            (CallAction::Take, !self.there.is_empty()),
            (CallAction::Run, !self.server.is_idle()),
            (CallAction::Arrive, !self.back.is_empty()),
            (CallAction::Break, self.linked && self.breaks > 0),
            (CallAction::Expire, !self.linked && self.server.sessions() > 0),
            (CallAction::Link, !self.linked),
        ];
        let mut actions: Vec<_> =
            table.into_iter().filter(|(_, can)| *can).map(|(action, _)| action).collect();
        if room && self.cancels > 0 {
            let invoked = self.asked.values().filter(|(number, _)| *number != u8::MAX);
            actions.extend(invoked.map(|(_, carried)| CallAction::Cancel(carried.header.slot)));
        }
        actions
    }

    fn apply(&mut self, action: CallAction) {
        match action {
            CallAction::Begin => self.begin(),
            CallAction::Cancel(slot) => self.cancel(slot),
            CallAction::Take => self.take(),
            CallAction::Run => self.run(),
            CallAction::Arrive => self.arrive(),
            CallAction::Break => self.break_link(),
            CallAction::Expire => self.expire(),
            CallAction::Link => self.link(),
        }
    }

    fn violation(&self) -> Option<Violation> {
        if let Some(text) = &self.broken {
            return Some(Violation::new(text.clone()));
        }
        for (number, end) in self.ends.iter().enumerate() {
            let ran = self.runs[number] == 1;
            match end {
                Some(CallEnd::Replied(Reply { verb: Verb::Returned, result, .. }))
                    if *result != number as u64 || !ran =>
                {
                    return Some(Violation::new(format!("call {number} returned {result}")));
                }
                Some(CallEnd::Replied(Reply { verb: Verb::Stopped, .. })) if ran => {
                    return Some(Violation::new(format!("call {number} was stopped and ran")));
                }
                Some(CallEnd::Unknown) if self.expired == 0 => {
                    let text = format!("call {number} ended with a session that lives");
                    return Some(Violation::new(text));
                }
                _ => {}
            }
        }
        None
    }

    fn stuck(&self) -> Option<Violation> {
        let all = self.runs.len() == usize::from(self.calls);
        let ended = self.ends.iter().all(Option::is_some);
        (!all || !ended).then(|| Violation::new("a call never ends"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::explorer::Explorer;

    fn sound(window: Window, settings: Settings) -> (Window, Server) {
        (window, Server::new(settings))
    }

    #[test]
    fn a_call_runs_once_and_ends_once_however_links_break() {
        let cases = [(2, 1, 2, 1), (3, 2, 2, 1), (4, 2, 3, 1), (4, 3, 2, 2)];
        let states = cases.map(|(calls, slots, breaks, cancels)| {
            let model = Calls::new(calls, slots, breaks, cancels, sound);
            match Explorer::new().explore(&model).holds() {
                Ok(coverage) => coverage.states,
                Err(text) => panic!("{calls} calls, {slots} slots, {breaks} breaks: {text}"),
            }
        });
        assert_eq!(states, [252, 8_760, 75_271, 743_493], "{cases:?}");
    }

    #[cfg(canary)]
    fn found(change: impl Fn(Window, Settings) -> (Window, Server)) -> String {
        let model = Calls::new(2, 2, 1, 1, change);
        let failure = Explorer::new().explore(&model).failure().expect("a failure");
        failure.violation.0
    }

    #[cfg(canary)]
    fn found_in_server(mutant: farside_protocol::call::CallMutant) -> String {
        found(|window, settings| (window, Server::with_mutant(settings, mutant)))
    }

    #[cfg(canary)]
    #[test]
    fn canary_defects_of_sessions_are_found() {
        use farside_protocol::call::CallMutant;
        assert_eq!(found_in_server(CallMutant::RunAgain), "call 0 ran twice");
        assert_eq!(found_in_server(CallMutant::ReplyForgotten), "a call never ends");
        assert_eq!(found_in_server(CallMutant::RepliedUnasked), "a reply to another request");
        assert_eq!(found_in_server(CallMutant::SlotsForgotten), "call 0 ran twice");
        let text = found_in_server(CallMutant::CancelledRuns);
        assert!(text.ends_with("is scheduled and does not run"), "{text}");
        let silent = |window: Window, settings| {
            (window.with_mutant(CallMutant::NothingSentAgain), Server::new(settings))
        };
        assert_eq!(found(silent), "a call never ends");
    }
}
