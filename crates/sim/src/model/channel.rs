//! The model of the messenger: two ends of one ordered, lossless link. Each end issues a few requests; a request causes
//! a forward, a forward a reply. If message classes shared queues or credits, this cycle would deadlock.

use crate::explorer::{Model, Violation};
use farside_protocol::messaging::Messenger;
use farside_protocol::wire::{BODY, Class, Family, MESSAGE};
use std::collections::VecDeque;

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct MessengerEnd {
    messenger: Messenger,
    /// Number of requests still to be issued.
    issues: u8,
    /// Number of messages pushed so far, by class.
    pushed: [u8; 3],
    /// Number of messages received so far, by class.
    taken: [u8; 3],
    /// Messages in flight to this end, which its posted receives must hold.
    wire: VecDeque<[u8; MESSAGE]>,
}

/// Two ends and the messages in flight.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Channel {
    ends: [MessengerEnd; 2],
    requests: u8,
    receives: usize,
    /// Number of link breaks left.
    breaks: u8,
    /// Number of messages that the wire may still duplicate; 0 by default, since links do not duplicate.
    repeats: u8,
    /// The wire has duplicated a message.
    repeated: bool,
    /// A messenger refused a duplicate, and the link was closed.
    closed: bool,
    broken: Option<&'static str>,
}

/// A step of the model; the number is the end.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum MessengerAction {
    /// The end's program issues a request.
    Issue(usize),
    /// The end posts the next message of its messenger.
    Send(usize),
    /// The oldest message in flight to the end arrives.
    Deliver(usize),
    /// The oldest message in flight to the end is duplicated.
    Repeat(usize),
    /// The link breaks, and a new one is established.
    Break,
}

impl Channel {
    /// Creates two ends with `credits` credits per class; each issues `requests` requests. `change` may plant a mutant.
    pub fn new(credits: u32, requests: u8, change: impl Fn(Messenger) -> Messenger) -> Self {
        let end = || MessengerEnd {
            messenger: change(Messenger::new(credits)),
            issues: requests,
            pushed: [0; 3],
            taken: [0; 3],
            wire: VecDeque::new(),
        };
        Self {
            ends: [end(), end()],
            requests,
            receives: Messenger::receives_needed(credits) as usize,
            breaks: 0,
            repeats: 0,
            repeated: false,
            closed: false,
            broken: None,
        }
    }

    /// As `new`, on a wire that duplicates `repeats` messages. The messengers must detect this and close the link.
    pub fn repeating(mut self, repeats: u8) -> Self {
        self.repeats = repeats;
        self
    }

    /// As `new`, with a link that breaks `breaks` times; the messengers resume over the new link.
    pub fn breaking(mut self, breaks: u8) -> Self {
        self.breaks = breaks;
        for end in &mut self.ends {
            end.messenger = end.messenger.clone().resumable();
        }
        self
    }

    /// Drops the messages in flight. Over a new link the ends exchange how many messages they have received.
    fn break_link(&mut self) {
        self.breaks -= 1;
        let received = self.ends.each_ref().map(|end| end.messenger.received_count());
        for (end, received) in self.ends.iter_mut().zip([received[1], received[0]]) {
            end.wire.clear();
            if let Err(violation) = end.messenger.resume(received) {
                self.broken = Some(violation.0);
            }
        }
    }

    fn push(&mut self, at: usize, class: Class) {
        let end = &mut self.ends[at];
        let mut body = [0; BODY];
        body[0] = end.pushed[class as usize];
        end.pushed[class as usize] += 1;
        end.messenger.push(class, Family::Coherence, &body);
    }

    fn send(&mut self, at: usize) {
        let Some(bytes) = self.ends[at].messenger.peek() else {
            return;
        };
        self.ends[at].messenger.sent();
        let wire = &mut self.ends[1 - at].wire;
        wire.push_back(bytes);
        if wire.len() > self.receives {
            self.broken = Some("a message found no receive");
        }
    }

    fn deliver(&mut self, at: usize) {
        let end = &mut self.ends[at];
        let Some(bytes) = end.wire.pop_front() else {
            return;
        };
        let (class, body) = match end.messenger.received(&bytes) {
            Ok(Some((class, _, body))) => (class, body),
            Ok(None) => return,
            Err(_) if self.repeated => {
                self.closed = true;
                return;
            }
            Err(violation) => {
                self.broken = Some(violation.0);
                return;
            }
        };
        if body[0] != end.taken[class as usize] {
            self.broken = Some("lost, repeated or out of order");
        }
        end.taken[class as usize] += 1;
        match class {
            Class::Request => self.push(at, Class::Forward),
            Class::Forward => self.push(at, Class::Reply),
            Class::Reply => {}
        }
    }
}

impl Model for Channel {
    type Action = MessengerAction;

    fn enabled(&self) -> Vec<MessengerAction> {
        let mut actions = Vec::new();
        if self.closed {
            return actions;
        }
        if self.breaks > 0 {
            actions.push(MessengerAction::Break);
        }
        for (at, end) in self.ends.iter().enumerate() {
            if end.issues > 0 {
                actions.push(MessengerAction::Issue(at));
            }
            if end.messenger.clone().peek().is_some() {
                actions.push(MessengerAction::Send(at));
            }
            if !end.wire.is_empty() {
                actions.push(MessengerAction::Deliver(at));
            }
            if !end.wire.is_empty() && self.repeats > 0 {
                actions.push(MessengerAction::Repeat(at));
            }
        }
        actions
    }

    fn apply(&mut self, action: MessengerAction) {
        match action {
            MessengerAction::Issue(at) => {
                self.ends[at].issues -= 1;
                self.push(at, Class::Request);
            }
            MessengerAction::Send(at) => self.send(at),
            MessengerAction::Deliver(at) => self.deliver(at),
            MessengerAction::Break => self.break_link(),
            MessengerAction::Repeat(at) => {
                self.repeats -= 1;
                self.repeated = true;
                if let Some(oldest) = self.ends[at].wire.front().copied() {
                    self.ends[at].wire.push_front(oldest);
                }
            }
        }
    }

    fn violation(&self) -> Option<Violation> {
        self.broken.map(Violation::new)
    }

    fn stuck(&self) -> Option<Violation> {
        let done = |end: &MessengerEnd| end.taken == [self.requests; 3];
        let all_done = self.ends.iter().all(done);
        (!all_done && !self.closed).then(|| Violation::new("deadlock"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::explorer::Explorer;

    fn states(credits: u32, requests: u8) -> u64 {
        let model = Channel::new(credits, requests, |messenger| messenger);
        match Explorer::new().explore(&model).holds() {
            Ok(coverage) => coverage.states,
            Err(text) => panic!("credits {credits}, requests {requests}: {text}"),
        }
    }

    #[test]
    fn nothing_is_lost_and_nothing_waits_for_ever() {
        let cases = [(1, 1), (1, 2), (2, 2), (3, 2), (1, 3)];
        let states = cases.map(|(credits, requests)| states(credits, requests));
        assert_eq!(states, [196, 6_573, 20_927, 12_546, 123_701], "{cases:?}");
    }

    #[test]
    fn a_repeated_message_is_noticed() {
        let model = Channel::new(2, 1, |messenger| messenger).repeating(1);
        let coverage = Explorer::new().explore(&model).holds().expect("no violation");
        assert_eq!(coverage.states, 983);
    }

    #[test]
    fn a_link_that_breaks_and_comes_back_loses_and_repeats_nothing() {
        let cases = [(1, 1, 2), (1, 2, 1)];
        let states = cases.map(|(credits, requests, breaks)| {
            let model = Channel::new(credits, requests, |messenger| messenger).breaking(breaks);
            match Explorer::new().explore(&model).holds() {
                Ok(coverage) => coverage.states,
                Err(text) => panic!("credits {credits}, requests {requests}: {text}"),
            }
        });
        assert_eq!(states, [2_222, 468_680], "{cases:?}");
    }

    #[cfg(canary)]
    #[test]
    fn canary_loss_on_a_broken_link_is_found() {
        use farside_protocol::messaging::MessagingMutant;
        let change =
            |messenger: Messenger| messenger.with_mutant(MessagingMutant::NothingSentAgain);
        let model = Channel::new(2, 1, change).breaking(1);
        let failure = Explorer::new().explore(&model).failure().expect("a failure");
        assert_eq!(failure.violation.0, "deadlock", "{}", failure.transcript);
    }

    #[cfg(canary)]
    #[test]
    fn canary_defects_are_found() {
        use farside_protocol::messaging::MessagingMutant;
        let cases = [
            (MessagingMutant::CreditOffByOne, "more messages than credits", 6),
            (MessagingMutant::SharedPool, "deadlock", 18),
            (MessagingMutant::SequenceUnchecked, "lost, repeated or out of order", 6),
        ];
        for (mutant, expected, steps) in cases {
            let model = Channel::new(1, 3, |messenger| messenger.with_mutant(mutant));
            let model = model.repeating(u8::from(mutant == MessagingMutant::SequenceUnchecked));
            let failure = Explorer::new().explore(&model).failure().expect("a failure");
            let found = (failure.violation.0.as_str(), failure.trace.len());
            assert_eq!(found, (expected, steps), "{mutant:?}: {}", failure.transcript);
        }
    }
}
