//! The model of reconnection: two members with a link that breaks at any time. Dials cross, are lost, and are answered
//! late; the founder may continue alone. The network guarantees only that both ends know the end of a link, with its
//! requests and answers in flight, within the time in which a fabric detects silence.
//!
//! With [`ContactPair::in_outage`] there is one outage of a given time: messages sent meanwhile are lost without
//! notice to the sender. All others arrive at once.
//!
//! The other member asks the founder whether it is still a member, and uses its cache while that lease is valid
//! (`Standing`). Its threads may be stopped at any step and continue at any later time: then it has noticed nothing,
//! its clock has advanced, and messages that arrived meanwhile, also an old answer, are waiting. The model does not
//! require that it has noticed the end of its link: the time alone must be enough.

use crate::explorer::{Model, Violation};
use farside_base::NodeId;
use farside_protocol::member::contact::{
    ContactEffect, ContactEvent, Contacts, DialFailure, Patience,
};
use farside_protocol::member::{Death, RequestId, Standing};

/// Maximum time from the end of a link to its detection.
const SILENCE: u64 = 2;

/// An outage, during which no message arrives.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Outage {
    /// Its duration.
    lasts: u64,
    /// The earliest and the latest time after its start at which the silence is detected.
    noticed: (u64, u64),
    /// Its start.
    since: Option<u64>,
}

impl Outage {
    /// Whether the outage is in progress at this time.
    fn is_on(&self, now: u64) -> bool {
        self.since.is_some_and(|since| now < since + self.lasts)
    }
}

/// A message in flight.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
enum ContactMessage {
    Dial {
        link: u8,
        from: usize,
    },
    Answer {
        link: u8,
        to: usize,
        answer: ContactReply,
    },
    /// To the founder: asks whether the sender is still a member.
    Ask {
        link: u8,
        asked: u64,
    },
    /// From the founder: the link was open at the time of the question.
    Confirmed {
        link: u8,
        asked: u64,
    },
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
enum ContactReply {
    Taken,
    Busy,
    Expelled,
    NoListener,
}

impl ContactMessage {
    const fn link(self) -> u8 {
        match self {
            Self::Dial { link, .. }
            | Self::Answer { link, .. }
            | Self::Ask { link, .. }
            | Self::Confirmed { link, .. } => link,
        }
    }

    const fn to(self) -> usize {
        match self {
            Self::Dial { from, .. } => 1 - from,
            Self::Answer { to, .. } => to,
            Self::Ask { .. } => 0,
            Self::Confirmed { .. } => 1,
        }
    }
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct ContactEnd {
    contacts: Contacts,
    link: Option<u8>,
    dial: Option<u8>,
}

/// The founder, another member, and the messages in flight between them.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct ContactPair {
    sides: [ContactEnd; 2],
    /// The other member knows that it was removed.
    out: bool,
    /// The founder has settled the memory that the other member had cached.
    settled: bool,
    now: u64,
    links: u8,
    /// Links that have ended and have messages in flight, with the time of their end.
    ended: Vec<(u8, u64)>,
    mail: Vec<ContactMessage>,
    breaks: u8,
    losses: u8,
    /// Number of requests that may arrive after their sender has closed the link, before that is detected.
    stale: u8,
    outage: Option<Outage>,
    /// The other member's lease.
    standing: Standing,
    /// Number of questions left.
    asks: u8,
    /// Number of stops left, and whether it is stopped.
    stops: u8,
    stopped: bool,
    /// The removal of the other member that the founder may still learn from a view.
    view: Option<Death>,
    /// Whether the founder may still end, whether it has ended, and whether it had removed the other member.
    ends: bool,
    dead: bool,
    removed: bool,
    /// The other member continues without the founder.
    alone: bool,
    /// A defect: the lease counts from the arrival of the answer.
    counts_from_answer: bool,
    broken: Option<&'static str>,
}

/// A step of the model.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ContactAction {
    /// The link breaks.
    Break,
    /// A side detects the end of its link.
    Notice(usize),
    /// The message at this index arrives.
    Deliver(usize),
    /// The message at this index is lost without notice to the dialling member.
    Lose(usize),
    /// The other member asks whether it is still a member.
    Ask,
    /// The other member is stopped.
    Stop,
    /// The other member continues.
    Continue,
    /// The process of the founder ends.
    End,
    /// The founder learns by a view that the other member is removed.
    View,
    /// Time passes.
    Tick,
}

impl ContactPair {
    /// Two linked members; the founder has the lower or the higher number. The parameters bound the breaks of the link,
    /// the lost requests or answers, and the requests that arrive after their sender has closed.
    pub fn new(
        patience: Patience,
        founder_is_lower: bool,
        (breaks, losses, stale): (u8, u8, u8),
    ) -> Self {
        let numbers = if founder_is_lower { [0, 1] } else { [1, 0] };
        let side = |at: usize| {
            let mut contacts = Contacts::new(NodeId(numbers[at]), patience);
            contacts.step(ContactEvent::Linked { node: NodeId(numbers[1 - at]) }, &mut Vec::new());
            ContactEnd { contacts, link: Some(0), dial: None }
        };
        Self {
            sides: [side(0), side(1)],
            out: false,
            settled: false,
            now: 0,
            links: 1,
            ended: Vec::new(),
            mail: Vec::new(),
            breaks,
            losses,
            stale,
            outage: None,
            standing: Standing::new(patience.standing_ns),
            asks: 0,
            stops: 0,
            stopped: false,
            view: None,
            ends: false,
            dead: false,
            removed: false,
            alone: false,
            counts_from_answer: false,
            broken: None,
        }
    }

    /// As above, with limits on the questions and the stops of the other member.
    pub fn with_stops(self, asks: u8, stops: u8) -> Self {
        Self { asks, stops, ..self }
    }

    /// As above; the process of the founder may end at any step.
    pub fn with_end(self) -> Self {
        Self { ends: true, ..self }
    }

    /// As above; a view may remove the other member at any step, also while its link is up.
    pub fn with_view(self, death: Death) -> Self {
        Self { view: Some(death), ..self }
    }

    /// Creates two linked members with one outage of their link, of length `lasts`. Each detects the silence, which
    /// counts from the last byte, within the range `noticed` after the start of the outage.
    pub fn in_outage(
        patience: Patience,
        founder_is_lower: bool,
        lasts: u64,
        noticed: (u64, u64),
    ) -> Self {
        let outage = Some(Outage { lasts, noticed, since: None });
        Self { outage, ..Self::new(patience, founder_is_lower, (1, 0, 0)) }
    }

    /// Whether a side can have detected the end of its link.
    fn notices(&self, at: usize) -> bool {
        let ended = |link: u8| self.ended.iter().find(|(ended, _)| *ended == link);
        let Some((_, since)) = self.sides[at].link.and_then(ended) else {
            return false;
        };
        // Only links that ended by the outage are detected by silence alone.
        let outage = self.outage.filter(|outage| outage.since == Some(*since));
        outage.is_none_or(|outage| self.now >= since + outage.noticed.0)
    }

    fn has_ended(&self, link: u8) -> bool {
        self.ended.iter().any(|(ended, _)| *ended == link)
    }

    fn end(&mut self, link: Option<u8>) {
        if let Some(link) = link.filter(|link| !self.has_ended(*link)) {
            self.ended.push((link, self.now));
        }
    }

    /// Whether messages of a link are in flight.
    fn is_known(&self, link: u8) -> bool {
        self.mail.iter().any(|mail| mail.link() == link)
            || self.sides.iter().any(|side| side.link == Some(link))
    }

    /// Whether a running member can still detect an event of a link.
    fn is_noticeable(&self, link: u8) -> bool {
        let hears = |at: usize| at == 0 || !self.stopped;
        self.mail.iter().any(|mail| mail.link() == link && hears(mail.to()))
            || (0..2).any(|at| self.runs(at) && self.sides[at].link == Some(link))
    }

    fn runs(&self, at: usize) -> bool {
        !(if at == 0 { self.dead } else { self.stopped })
    }

    /// Whether the time limit of a detection has been reached.
    fn is_overdue(&self) -> bool {
        let silence = self.outage.map_or(SILENCE, |outage| outage.noticed.1);
        let late = |since: &u64| self.now >= since + silence;
        self.ended.iter().any(|(link, since)| late(since) && self.is_noticeable(*link))
    }

    /// The other member asks over its link, if the link may be open.
    fn ask(&mut self) {
        self.asks -= 1;
        let asked = self.now;
        if let Some(link) = self.sides[1].link.filter(|link| !self.has_ended(*link)) {
            self.mail.push(ContactMessage::Ask { link, asked });
        }
    }

    fn confirmed(&mut self, asked: u64) {
        let founder = self.peer(1);
        self.step(1, ContactEvent::Confirmed { node: founder, asked_ns: asked });
        let counts_from = if self.counts_from_answer { self.now } else { asked };
        self.standing.answered(founder, counts_from, |_| true);
    }

    fn peer(&self, at: usize) -> NodeId {
        NodeId(u16::from(self.sides[at].contacts.me() == NodeId(0)))
    }

    fn step(&mut self, at: usize, event: ContactEvent) {
        let mut effects = Vec::new();
        self.sides[at].contacts.step(event, &mut effects);
        for effect in effects {
            self.route(at, effect);
        }
    }

    fn route(&mut self, at: usize, effect: ContactEffect) {
        let (now_ns, node) = (self.now, self.peer(at));
        let to = 1 - at;
        if self.outage.is_some()
            && matches!(
                effect,
                ContactEffect::OutOfReach { .. }
                    | ContactEffect::Expelled { .. }
                    | ContactEffect::Dead { .. }
            )
        {
            self.broken = Some("given up after a short outage");
        }
        match effect {
            ContactEffect::Close { .. } => {
                let link = self.sides[at].link.take();
                self.end(link);
            }
            ContactEffect::Dial { .. } => {
                let link = self.links;
                self.links += 1;
                self.sides[at].dial = Some(link);
                self.mail.push(ContactMessage::Dial { link, from: at });
            }
            ContactEffect::HangUp { .. } => {
                let link = self.sides[at].dial.take();
                self.end(link);
            }
            ContactEffect::Accept { request, .. } => {
                let link = request.0 as u8;
                if self.sides[at].link.replace(link).is_some() {
                    self.broken = Some("a second link was accepted");
                }
                self.mail.push(ContactMessage::Answer { link, to, answer: ContactReply::Taken });
            }
            ContactEffect::TurnAway { request } => self.refuse(to, request, ContactReply::Busy),
            ContactEffect::Deny { request } => self.refuse(to, request, ContactReply::Expelled),
            // The founder is a quorum by itself and decides at once; the other member is removed.
            ContactEffect::OutOfReach { .. } | ContactEffect::Expelled { .. } if at == 0 => {
                self.removed = true;
                self.step(0, ContactEvent::Cut { node });
                self.step(0, ContactEvent::Dead { node, death: Death::Removed, now_ns });
            }
            ContactEffect::Dead { .. } if at == 0 => {
                self.step(0, ContactEvent::Dead { node, death: Death::Ended, now_ns });
            }
            ContactEffect::Dead { .. } if self.dead => {
                self.alone = true;
                if self.removed {
                    self.broken = Some("continues alone after it was removed");
                }
            }
            ContactEffect::Dead { .. }
            | ContactEffect::OutOfReach { .. }
            | ContactEffect::Expelled { .. } => {
                self.out = true;
            }
            ContactEffect::Settle { .. } => self.settled = true,
        }
    }

    fn refuse(&mut self, to: usize, request: RequestId, answer: ContactReply) {
        self.mail.push(ContactMessage::Answer { link: request.0 as u8, to, answer });
    }

    fn deliver(&mut self, mail: ContactMessage) {
        match mail {
            ContactMessage::Dial { link, from: 1 } if self.dead => {
                self.mail.push(ContactMessage::Answer {
                    link,
                    to: 1,
                    answer: ContactReply::NoListener,
                });
            }
            ContactMessage::Answer { to: 0, .. } if self.dead => {}
            ContactMessage::Dial { link, from } if from == 0 && self.out => {
                self.mail.push(ContactMessage::Answer {
                    link,
                    to: from,
                    answer: ContactReply::NoListener,
                });
            }
            ContactMessage::Dial { link, .. } if self.has_ended(link) && self.stale == 0 => {}
            ContactMessage::Dial { link, from } => {
                self.stale -= u8::from(self.has_ended(link));
                let node = self.peer(1 - from);
                let request = RequestId(u64::from(link));
                self.step(1 - from, ContactEvent::Dialled { node, request });
            }
            ContactMessage::Answer { link, to, answer } => self.answered(link, to, answer),
            // Messages on a link that the founder has closed have no effect.
            ContactMessage::Ask { link, asked }
                if !self.dead && self.sides[0].link == Some(link) =>
            {
                self.mail.push(ContactMessage::Confirmed { link, asked });
            }
            ContactMessage::Ask { .. } => {}
            ContactMessage::Confirmed { asked, .. } => self.confirmed(asked),
        }
    }

    fn answered(&mut self, link: u8, at: usize, answer: ContactReply) {
        // A member that has abandoned its dial receives no answer.
        if self.sides[at].dial != Some(link) {
            return;
        }
        let (node, now_ns) = (self.peer(at), self.now);
        let why = match answer {
            ContactReply::Taken => {
                self.step(at, ContactEvent::Answered { node });
                let side = &mut self.sides[at];
                if side.dial.take_if(|dial| *dial == link).is_some()
                    && side.link.replace(link).is_some()
                {
                    self.broken = Some("a second link was accepted");
                }
                return;
            }
            ContactReply::Busy => DialFailure::Busy,
            ContactReply::Expelled => DialFailure::Expelled,
            ContactReply::NoListener => DialFailure::Ended,
        };
        self.sides[at].dial = None;
        self.step(at, ContactEvent::Failed { node, why, now_ns });
    }

    fn lose(&mut self, mail: ContactMessage) {
        self.losses -= 1;
        let link = mail.link();
        self.end(Some(link));
        let at = match mail {
            ContactMessage::Dial { from, .. } => from,
            ContactMessage::Answer { to, .. } => to,
            ContactMessage::Ask { .. } | ContactMessage::Confirmed { .. } => return,
        };
        if self.sides[at].dial == Some(link) {
            self.sides[at].dial = None;
            let (node, now_ns) = (self.peer(at), self.now);
            self.step(at, ContactEvent::Failed { node, why: DialFailure::NoAnswer, now_ns });
        }
    }

    /// The current link of both sides, or the last one, unless it has ended.
    fn shared(&self) -> Option<u8> {
        let link = self.sides[0].link.filter(|link| self.sides[1].link == Some(*link));
        link.filter(|link| !self.has_ended(*link))
    }

    /// Whether a thread of the other member that reads the clock now may use the cache.
    fn uses(&self) -> bool {
        !self.out && self.now < self.standing.until()
    }
}

impl Model for ContactPair {
    type Action = ContactAction;

    fn enabled(&self) -> Vec<ContactAction> {
        let mut actions = Vec::new();
        actions
            .extend((self.breaks > 0 && self.shared().is_some()).then_some(ContactAction::Break));
        let notices = |at: &usize| self.runs(*at) && self.notices(*at);
        actions.extend([0, 1].into_iter().filter(notices).map(ContactAction::Notice));
        for (at, mail) in self.mail.iter().enumerate() {
            let hears = mail.to() == 0 || !self.stopped;
            actions.extend(hears.then_some(ContactAction::Deliver(at)));
            actions.extend((self.losses > 0).then_some(ContactAction::Lose(at)));
        }
        let asks = self.asks > 0 && !self.stopped && self.sides[1].link.is_some();
        actions.extend(asks.then_some(ContactAction::Ask));
        actions.extend((self.stops > 0 && !self.stopped).then_some(ContactAction::Stop));
        actions.extend(self.stopped.then_some(ContactAction::Continue));
        actions.extend((self.ends && !self.dead).then_some(ContactAction::End));
        let known = self.sides[0].contacts.knows(self.peer(0));
        actions.extend((self.view.is_some() && known).then_some(ContactAction::View));
        let wakes = |at: usize| self.runs(at) && self.sides[at].contacts.wakes_at_ns().is_some();
        let waits = (0..2).any(wakes) || self.uses();
        let aged = self.ended.iter().any(|(link, _)| self.is_noticeable(*link));
        let delays = self.outage.is_none() || self.mail.is_empty();
        let ticks = (waits || aged) && delays && !self.is_overdue();
        actions.extend(ticks.then_some(ContactAction::Tick));
        actions
    }

    fn apply(&mut self, action: ContactAction) {
        match action {
            ContactAction::Break => {
                self.breaks -= 1;
                let link = self.shared();
                self.end(link);
                if let Some(outage) = &mut self.outage {
                    outage.since = Some(self.now);
                }
            }
            ContactAction::Notice(at) => {
                let (node, now_ns) = (self.peer(at), self.now);
                let is_up = self.sides[at].contacts.is_up(node);
                self.step(at, ContactEvent::Broken { node, now_ns });
                if !is_up {
                    self.sides[at].link = None;
                }
            }
            ContactAction::Deliver(at) => {
                let mail = self.mail.remove(at);
                self.deliver(mail);
            }
            ContactAction::Lose(at) => {
                let mail = self.mail.remove(at);
                self.lose(mail);
            }
            ContactAction::Ask => self.ask(),
            ContactAction::Stop => {
                self.stops -= 1;
                self.stopped = true;
            }
            ContactAction::Continue => self.stopped = false,
            ContactAction::End => {
                self.dead = true;
                for link in [self.sides[0].link, self.sides[0].dial] {
                    self.end(link);
                }
            }
            ContactAction::View => {
                let (node, now_ns) = (self.peer(0), self.now);
                if let Some(death) = self.view.take() {
                    self.step(0, ContactEvent::Dead { node, death, now_ns });
                }
            }
            ContactAction::Tick => {
                self.now += 1;
                for at in [0, 1] {
                    if self.runs(at) {
                        self.step(at, ContactEvent::Tick { now_ns: self.now });
                    }
                }
            }
        }
        if self.outage.is_some_and(|outage| outage.is_on(self.now)) {
            self.mail.clear();
        }
        self.mail.sort_unstable();
        let known: Vec<_> =
            self.ended.iter().copied().filter(|(link, _)| self.is_known(*link)).collect();
        self.ended = known;
    }

    fn violation(&self) -> Option<Violation> {
        let live = |at: usize| self.sides[at].link.filter(|link| !self.has_ended(*link));
        let apart = matches!((live(0), live(1)), (Some(here), Some(there)) if here != there);
        let text = match () {
            () if self.broken.is_some() => self.broken,
            () if apart => Some("two links at once"),
            () if self.settled && self.uses() => Some("settled while it is used"),
            () => None,
        };
        text.map(Violation::new)
    }

    fn stuck(&self) -> Option<Violation> {
        let over = (self.settled || self.dead) && (self.out || self.alone);
        (self.shared().is_none() && !over).then(|| Violation::new("neither linked nor over"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::explorer::Explorer;

    fn patience(lease_ns: u64, unaware_ns: u64, standing_ns: u64) -> Patience {
        let (dial_min_ns, dial_max_ns, dial_timeout_ns) = (1, 2, u64::MAX);
        let judge_ns = 1;
        Patience {
            lease_ns,
            dial_min_ns,
            dial_max_ns,
            dial_timeout_ns,
            unaware_ns,
            judge_ns,
            standing_ns,
            confirmed_ns: lease_ns,
        }
    }

    #[test]
    fn both_go_on_over_one_link_or_one_of_them_is_out() {
        let never = u64::MAX;
        let cases = [
            (2, true, (1, 1, 1), never),
            (2, false, (1, 1, 1), never),
            (3, true, (1, 1, 1), never),
            (3, false, (1, 1, 1), never),
            (2, true, (2, 1, 2), never),
            (3, true, (1, 1, 1), 1),
            (3, false, (1, 1, 1), 1),
        ];
        let states = cases.map(|(lease_ns, lower, happens, dial_timeout_ns)| {
            let patience = patience(lease_ns, SILENCE + 1, SILENCE);
            let model = ContactPair::new(Patience { dial_timeout_ns, ..patience }, lower, happens);
            match Explorer::new().explore(&model).holds() {
                Ok(coverage) => coverage.states,
                Err(text) => panic!("lease {lease_ns}, {lower}, {happens:?}: {text}"),
            }
        });
        assert_eq!(
            states,
            [16_074, 15_307, 49_335, 45_915, 337_787, 134_223, 144_308],
            "{cases:?}"
        );
    }

    /// Timeouts from the leases of a cluster and its fabric; the shortest wait between dials is 1.
    const LEASES: (u64, u64) = (120, 4);

    fn in_outage(patience: Patience, founder_is_lower: bool) -> ContactPair {
        let (lease, silence) = LEASES;
        // A peer sends at least four times per lease of the fabric.
        let noticed = (silence - silence / 4, silence);
        ContactPair::in_outage(patience, founder_is_lower, lease + silence - 1, noticed)
    }

    #[test]
    fn an_outage_shorter_than_the_leases_puts_no_member_out_of_reach() {
        let states = [true, false].map(|founder_is_lower| {
            let model = in_outage(Patience::of_lease(LEASES.0, LEASES.1, 0), founder_is_lower);
            match Explorer::new().explore(&model).holds() {
                Ok(coverage) => coverage.states,
                Err(text) => panic!("{founder_is_lower}: {text}"),
            }
        });
        assert_eq!(states, [559, 559]);
    }

    /// Removing the timeout of a dial, or the time for one more dial, makes the model fail.
    #[test]
    fn a_dial_that_an_outage_swallows_expels_without_a_timeout_or_time_for_another() {
        let right = Patience::of_lease(LEASES.0, LEASES.1, 0);
        let waits = Patience { dial_timeout_ns: u64::MAX, ..right };
        let short = Patience { lease_ns: LEASES.0, ..right };
        for patience in [waits, short] {
            let explored = Explorer::new().explore(&in_outage(patience, true));
            let failure = explored.failure().expect("a failure");
            assert_eq!(failure.violation.0, "given up after a short outage");
        }
    }

    #[test]
    fn stopped_member_uses_nothing_that_is_settled() {
        let cases = [
            (true, (1, 0, 0), (1, 1)),
            (false, (1, 0, 0), (2, 1)),
            (true, (1, 1, 0), (2, 1)),
            (true, (1, 0, 0), (2, 2)),
        ];
        let states = cases.map(|(lower, happens, (asks, stops))| {
            let model = ContactPair::new(patience(1, SILENCE + 1, SILENCE), lower, happens);
            let model = model.with_stops(asks, stops);
            match Explorer::new().explore(&model).holds() {
                Ok(coverage) => coverage.states,
                Err(text) => panic!("{lower}, {happens:?}, {asks} {stops}: {text}"),
            }
        });
        assert_eq!(states, [3_565, 13_762, 38_959, 28_675], "{cases:?}");
    }

    fn is_found(model: &ContactPair) {
        let failure = Explorer::new().explore(model).failure().expect("a failure");
        assert_eq!(failure.violation.0, "settled while it is used", "{}", failure.transcript);
    }

    /// Removing the wait makes the model fail.
    #[test]
    fn memory_that_settles_at_once_is_still_used() {
        is_found(&ContactPair::new(patience(1, 0, SILENCE), true, (1, 0, 0)).with_stops(1, 0));
    }

    #[test]
    fn member_removed_by_a_view_uses_nothing_that_is_settled() {
        let states = [true, false].map(|lower| {
            let model = ContactPair::new(patience(1, SILENCE + 1, SILENCE), lower, (0, 0, 0));
            let model = model.with_stops(2, 1).with_view(Death::Removed);
            match Explorer::new().explore(&model).holds() {
                Ok(coverage) => coverage.states,
                Err(text) => panic!("{lower}: {text}"),
            }
        });
        assert_eq!(states, [3_690, 1_455]);
    }

    /// Removing the reason makes the model fail.
    #[test]
    fn member_taken_for_ended_while_its_link_is_up_is_found() {
        let model = ContactPair::new(patience(1, SILENCE + 1, SILENCE), true, (0, 0, 0));
        is_found(&model.with_stops(1, 0).with_view(Death::Ended));
    }

    fn of_end(lease_ns: u64, lower: bool, (asks, stops): (u8, u8)) -> ContactPair {
        let model = ContactPair::new(patience(lease_ns, SILENCE + 1, SILENCE), lower, (1, 0, 0));
        model.with_stops(asks, stops).with_end()
    }

    #[test]
    fn no_member_continues_alone_after_it_was_removed() {
        let cases = [(1, true, (1, 1)), (2, false, (1, 1)), (3, true, (1, 1)), (3, false, (2, 0))];
        let states = cases.map(|(lease_ns, lower, happens)| {
            match Explorer::new().explore(&of_end(lease_ns, lower, happens)).holds() {
                Ok(coverage) => coverage.states,
                Err(text) => panic!("lease {lease_ns}, {lower}, {happens:?}: {text}"),
            }
        });
        assert_eq!(states, [13_623, 101_391, 175_179, 190_514], "{cases:?}");
    }

    #[test]
    fn member_that_was_confirmed_in_time_continues_alone() {
        use ContactAction::{Ask, Deliver, End, Notice};
        let after = |first: &[ContactAction]| {
            let mut model = of_end(1, true, (1, 0));
            for action in first.iter().chain(&[End, Notice(1), Deliver(0), Deliver(0)]) {
                assert!(model.enabled().contains(action), "{action:?}: {model:?}");
                model.apply(*action);
            }
            assert_eq!((model.violation(), model.stuck()), (None, None));
            (model.alone, model.out)
        };
        assert_eq!(after(&[]), (false, true));
        assert_eq!(after(&[Ask, Deliver(0), Deliver(0)]), (true, false));
    }

    /// Removing the bound makes the model fail.
    #[test]
    fn end_that_counts_as_certain_whenever_it_is_found_is_found() {
        let mut patience = patience(1, SILENCE + 1, SILENCE);
        patience.confirmed_ns = u64::MAX;
        let model = ContactPair::new(patience, true, (1, 0, 0)).with_stops(1, 1).with_end();
        let failure = Explorer::new().explore(&model).failure().expect("a failure");
        let expected = "continues alone after it was removed";
        assert_eq!(failure.violation.0, expected, "{}", failure.transcript);
    }

    #[test]
    fn standing_that_outlasts_the_wait_is_found() {
        is_found(
            &ContactPair::new(patience(1, SILENCE, SILENCE + 3), true, (1, 0, 0)).with_stops(1, 1),
        );
    }

    #[test]
    fn standing_that_counts_from_its_answer_is_found() {
        let model = ContactPair::new(patience(1, SILENCE + 1, SILENCE), true, (1, 0, 0));
        is_found(&ContactPair { counts_from_answer: true, ..model }.with_stops(1, 1));
    }
}
