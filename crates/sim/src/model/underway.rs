//! The model of writes in flight on a link that breaks: a home writes frames of a peer and sends a message for each;
//! the peer takes the value, uses the frame locally, and then returns it. The link may break at any time: writes and
//! messages in flight are lost, but completions in flight to the home may still arrive, however late.

use crate::explorer::{Model, Violation};
use farside_base::NodeId;
use farside_protocol::messaging::{Messenger, WriteKey, WritesInFlight};
use farside_protocol::wire::{BODY, Class, Family, MESSAGE};
use std::collections::VecDeque;

const PEER: NodeId = NodeId(1);

/// The value that the peer writes into a frame that it uses locally.
const OWN: u8 = u8::MAX;

/// A value for a frame.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Write {
    frame: u8,
    value: u8,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Carried {
    Write(WriteKey, Write),
    Message([u8; MESSAGE]),
}

/// A home, a peer, and the requests and messages in flight between them.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Frames {
    home: Messenger,
    peer: Messenger,
    underway: WritesInFlight<Write>,
    /// Number of values still to be written.
    values: u8,
    written: u8,
    /// Frames that the home may write.
    free: Vec<u8>,
    memory: Vec<u8>,
    /// Frames in use by the peer's program.
    used: Vec<u8>,
    landed: u8,
    taken: u8,
    there: VecDeque<Carried>,
    back: VecDeque<[u8; MESSAGE]>,
    completions: VecDeque<WriteKey>,
    breaks: u8,
    broken: Option<&'static str>,
}

/// A step of the model.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum InFlightAction {
    /// The home gets a value for a free frame.
    Add,
    /// The home posts its next work request.
    Post,
    /// The oldest posted request takes effect at the peer.
    Take,
    /// The oldest completion is polled.
    Complete,
    /// The peer returns the oldest frame that it uses.
    GiveBack,
    /// The peer posts a message.
    Answer,
    /// A message arrives at the home.
    Arrive,
    /// The link breaks, with or without completions in flight, and a new one is established.
    Break {
        /// Whether completions in flight are lost too.
        silent: bool,
    },
}

impl Frames {
    /// Creates a model of `values` values written into `frames` frames over a link that breaks `breaks` times. `change`
    /// may plant a mutant.
    pub fn new(
        values: u8,
        frames: u8,
        breaks: u8,
        change: impl Fn(WritesInFlight<Write>) -> WritesInFlight<Write>,
    ) -> Self {
        Self {
            home: Messenger::new(1).resumable(),
            peer: Messenger::new(1).resumable(),
            underway: change(WritesInFlight::new()),
            values,
            written: 0,
            free: (0..frames).collect(),
            memory: vec![OWN; usize::from(frames)],
            used: Vec::new(),
            landed: 0,
            taken: 0,
            there: VecDeque::new(),
            back: VecDeque::new(),
            completions: VecDeque::new(),
            breaks,
            broken: None,
        }
    }

    fn add(&mut self) {
        let frame = self.free.remove(0);
        let write = Write { frame, value: self.written };
        self.written += 1;
        self.underway.add(PEER, write, true);
        let mut body = [0; BODY];
        (body[0], body[1]) = (write.frame, write.value);
        self.home.push(Class::Request, Family::Coherence, &body);
    }

    fn post(&mut self) {
        if let Some((key, _, &write)) = self.underway.waiting(0) {
            self.underway.posted(self.home.sent_count());
            self.there.push_back(Carried::Write(key, write));
        } else if let Some(message) = self.home.peek() {
            self.home.sent();
            self.there.push_back(Carried::Message(message));
        }
    }

    fn take(&mut self) {
        match self.there.pop_front() {
            Some(Carried::Write(key, write)) => {
                self.memory[usize::from(write.frame)] = write.value;
                if self.used.contains(&write.frame) {
                    self.broken = Some("a frame in use was written");
                }
                self.completions.push_back(key);
            }
            Some(Carried::Message(message)) => self.message(&message),
            None => {}
        }
    }

    fn message(&mut self, message: &[u8; MESSAGE]) {
        match self.peer.received(message) {
            Ok(Some((_, _, body))) => {
                let (frame, value) = (body[0], body[1]);
                if self.memory[usize::from(frame)] != value {
                    self.broken = Some("a message came before what it speaks of");
                }
                self.memory[usize::from(frame)] = OWN;
                self.used.push(frame);
                self.taken += 1;
            }
            Ok(None) => {}
            Err(violation) => self.broken = Some(violation.0),
        }
    }

    fn arrive(&mut self) {
        let Some(message) = self.back.pop_front() else { return };
        match self.home.received(&message) {
            Ok(Some((_, _, body))) => self.free.push(body[0]),
            Ok(None) => {}
            Err(violation) => self.broken = Some(violation.0),
        }
    }

    fn break_link(&mut self, silent: bool) {
        self.breaks -= 1;
        if silent {
            self.completions.clear();
        }
        self.there.clear();
        self.back.clear();
        self.underway.hold(PEER);
        let received = self.peer.received_count();
        let landed = &mut self.landed;
        self.underway.resume(PEER, received, |_| *landed += 1);
        let home = self.home.resume(received);
        let peer = self.peer.resume(self.home.received_count());
        if let Err(violation) = home.and(peer) {
            self.broken = Some(violation.0);
        }
    }
}

impl Model for Frames {
    type Action = InFlightAction;

    fn enabled(&self) -> Vec<InFlightAction> {
        let table = [
            (InFlightAction::Add, self.written < self.values && !self.free.is_empty()),
            (InFlightAction::Post, !self.underway.is_idle() || self.home.clone().peek().is_some()),
            (InFlightAction::Take, !self.there.is_empty()),
            (InFlightAction::Complete, !self.completions.is_empty()),
            (InFlightAction::GiveBack, !self.used.is_empty()),
            (InFlightAction::Answer, self.peer.clone().peek().is_some()),
            (InFlightAction::Arrive, !self.back.is_empty()),
            (InFlightAction::Break { silent: false }, self.breaks > 0),
            (
                InFlightAction::Break { silent: true },
                self.breaks > 0 && !self.completions.is_empty(),
            ),
        ];
        table.into_iter().filter(|(_, can)| *can).map(|(action, _)| action).collect()
    }

    fn apply(&mut self, action: InFlightAction) {
        match action {
            InFlightAction::Add => self.add(),
            InFlightAction::Post => self.post(),
            InFlightAction::Take => self.take(),
            InFlightAction::Complete => {
                let key = self.completions.pop_front();
                let landed = key.and_then(|key| self.underway.landed(key));
                self.landed += u8::from(landed.is_some());
            }
            InFlightAction::GiveBack => {
                let mut body = [0; BODY];
                body[0] = self.used.remove(0);
                self.peer.push(Class::Reply, Family::Coherence, &body);
            }
            InFlightAction::Answer => {
                if let Some(message) = self.peer.peek() {
                    self.peer.sent();
                    self.back.push_back(message);
                }
            }
            InFlightAction::Arrive => self.arrive(),
            InFlightAction::Break { silent } => self.break_link(silent),
        }
    }

    fn violation(&self) -> Option<Violation> {
        self.broken.map(Violation::new)
    }

    fn stuck(&self) -> Option<Violation> {
        let all = (self.taken, self.landed) == (self.values, self.values);
        (!all).then(|| Violation::new("deadlock"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::explorer::Explorer;

    #[test]
    fn writes_land_once_each_whatever_breaks() {
        let cases = [(2, 1, 2), (2, 2, 2), (3, 1, 1), (3, 2, 1)];
        let states = cases.map(|(values, frames, breaks)| {
            let model = Frames::new(values, frames, breaks, |underway| underway);
            match Explorer::new().explore(&model).holds() {
                Ok(coverage) => coverage.states,
                Err(text) => panic!("{values} values, {frames} frames, {breaks} breaks: {text}"),
            }
        });
        assert_eq!(states, [11_958, 39_193, 48_012, 304_054], "{cases:?}");
    }

    #[cfg(canary)]
    #[test]
    fn canary_a_write_again_after_its_message_is_found() {
        use farside_protocol::messaging::MessagingMutant;
        let change =
            |underway: WritesInFlight<Write>| underway.with_mutant(MessagingMutant::WrittenAgain);
        let model = Frames::new(2, 1, 1, change);
        let failure = Explorer::new().explore(&model).failure().expect("a failure");
        let expected = "a frame in use was written";
        assert_eq!(failure.violation.0, expected, "{}", failure.transcript);
    }
}
