//! The threads of a study as actors: senders, receivers, and ends that alternate between both.

use super::BenchRequest;
use super::charges::Charges;
use crate::fabric::SimNet;
use crate::random::Random;
use crate::stage::{Actor, Spent, Then};
use farside::Error;
use farside::channel::{Buffer, Message, Receiver, Sender, Sent, Slice};
use std::cell::RefCell;
use std::rc::Rc;

/// Unsuccessful checks of bells between two polls of the port, as in the facade's receiver.
const CHECKS_PER_POLL: u64 = 64;
/// Maximum pause between two round trips: several round trips of this hardware.
const PAUSE_NS: u64 = 5_000;

/// Counts and times of a study.
#[derive(Default, Debug)]
pub(super) struct Score {
    /// Number of released messages of the channel, including the warm-up.
    pub(super) received: u64,
    warm: u64,
    goal: u64,
    first_ns: u64,
    last_ns: u64,
    /// Measured round trip times.
    pub(super) trips_ns: Vec<u64>,
    /// Time at which the message in flight of a ping-pong was sent.
    since_ns: Option<u64>,
    /// Times from sending until the poll that found the message.
    pub(super) one_way_ns: Vec<u64>,
    pub(super) error: Option<Error>,
}

pub(super) type Scores = Rc<RefCell<Score>>;

impl Score {
    pub(super) fn new(request: &BenchRequest) -> Self {
        let messages = u64::from(request.messages.max(1));
        let warm = messages / 8 + 1;
        Self { warm, goal: warm + messages, ..Self::default() }
    }

    fn release(&mut self, now_ns: u64) {
        self.received += 1;
        if self.received == self.warm {
            self.first_ns = now_ns;
        }
        self.last_ns = now_ns;
        if let Some(since_ns) = self.since_ns.take().filter(|_| self.has_begun()) {
            self.one_way_ns.push(now_ns - since_ns);
        }
    }

    fn round_trip(&mut self, ns: u64) {
        if self.has_begun() {
            self.trips_ns.push(ns);
        }
    }

    pub(super) const fn has_begun(&self) -> bool {
        self.received >= self.warm
    }

    pub(super) const fn is_over(&self) -> bool {
        self.received >= self.goal || self.error.is_some()
    }

    /// Returns the number of measured messages.
    pub(super) const fn measured(&self) -> u64 {
        self.received.saturating_sub(self.warm)
    }

    pub(super) const fn elapsed_ns(&self) -> u64 {
        self.last_ns - self.first_ns
    }
}

/// A sender with its messages.
pub(super) struct Outbox {
    pub(super) net: SimNet,
    pub(super) sender: Sender,
    pub(super) charges: Charges,
    pub(super) message: Vec<u8>,
    /// Registered memory of messages that are sent without a copy.
    pub(super) slice: Option<Slice>,
    pub(super) _buffer: Option<Buffer>,
    /// Whether the sender must poll its port for messages to proceed.
    pub(super) needs_polls: bool,
    /// Whether a message is visible as soon as it is stored: then the time to store it is charged first.
    pub(super) stores: bool,
    /// Whether the message's copy has been charged.
    pub(super) copy_charged: bool,
    /// Whether the channel was full since the last message.
    pub(super) full: bool,
    /// Whether the last poll of the port may have freed space.
    pub(super) again: bool,
}

/// Result of offering a message to a channel.
enum Offered {
    Taken,
    /// The channel is full; how to continue.
    Full(Then),
    /// The message is being copied: continue with it.
    Copying,
}

impl Outbox {
    fn offer(&mut self) -> Result<Offered, Error> {
        if !self.copy_charged {
            self.copy_charged = true;
            let ns = self.charges.before_send_ns();
            self.net.spend_ns(ns);
            if self.stores && ns > 0 {
                return Ok(Offered::Copying);
            }
        }
        let sent = match self.slice {
            Some(slice) => self.sender.send_slices(&[slice])?,
            None => self.sender.send(&self.message)?,
        };
        if sent == Sent::Full {
            self.full = true;
            // It polled its port after the channel was full, which may have freed space.
            self.again = !self.again;
            return Ok(Offered::Full(if self.again { Then::Run } else { Then::Poll }));
        }
        self.again = false;
        if std::mem::take(&mut self.full) {
            self.net.spend_ns(self.charges.acknowledged_ns());
        }
        self.copy_charged = false;
        Ok(Offered::Taken)
    }

    fn look(&mut self) -> Result<(), Error> {
        if self.needs_polls { self.sender.progress() } else { Ok(()) }
    }
}

/// A polling receiver.
pub(super) struct Inbox {
    pub(super) net: SimNet,
    pub(super) receiver: Receiver,
    pub(super) charges: Charges,
    pub(super) scores: Scores,
    /// Whether each message is acknowledged at once.
    pub(super) prompt: bool,
    pub(super) log: Vec<u8>,
    /// Number of unsuccessful checks since the last message; `checked_ns` is the time of the last one.
    pub(super) unsuccessful: u64,
    pub(super) checked_ns: u64,
}

impl Inbox {
    /// Returns the next message. Performs the checks that a resting actor skipped: after [`CHECKS_PER_POLL`]
    /// unsuccessful ones the facade polls its port.
    fn poll(&mut self) -> Result<Option<Message>, Error> {
        let now_ns = self.net.now_ns();
        let interval_ns = self.charges.check_ns().max(1);
        let skipped = (now_ns - self.checked_ns.min(now_ns)) / interval_ns;
        let checks = if self.charges.polls_port() { 1 } else { 1 + skipped.min(CHECKS_PER_POLL) };
        self.checked_ns = now_ns;
        for _ in 0..checks {
            if let Some(message) = self.receiver.poll()? {
                let after_unsuccessful = std::mem::take(&mut self.unsuccessful) > 0;
                self.net.spend_ns(self.charges.received_ns(after_unsuccessful));
                if self.log.len() >= message.len() {
                    message.read(0, &mut self.log[..message.len()])?;
                }
                return Ok(Some(message));
            }
            self.unsuccessful += 1;
        }
        self.net.spend_ns(self.charges.check_ns());
        Ok(None)
    }

    fn release(&mut self, message: Message) {
        self.net.spend_ns(self.charges.before_release_ns());
        self.receiver.release(message);
        if self.prompt {
            self.receiver.acknowledge();
        }
    }

    /// Returns how the actor continues after an unsuccessful poll.
    fn rest(&self) -> Then {
        if self.charges.polls_port() || self.unsuccessful >= CHECKS_PER_POLL {
            return Then::Poll;
        }
        Then::PollAtMost((CHECKS_PER_POLL - self.unsuccessful) * self.charges.check_ns().max(1))
    }
}

fn go(then: Then) -> Spent {
    Spent { then, ..Spent::NOTHING }
}

/// Returns the step of an actor, or ends it after an error.
fn step(scores: &Scores, step: Result<Then, Error>) -> Spent {
    step.map_or_else(
        |error| {
            scores.borrow_mut().error.get_or_insert(error);
            go(Then::End)
        },
        go,
    )
}

/// Sends as many messages as permitted.
pub(super) struct BenchSource {
    pub(super) outbox: Outbox,
    pub(super) scores: Scores,
}

impl BenchSource {
    fn step(&mut self) -> Result<Then, Error> {
        match self.outbox.offer()? {
            Offered::Taken | Offered::Copying => Ok(Then::Run),
            Offered::Full(then) => Ok(then),
        }
    }
}

impl Actor for BenchSource {
    fn run(&mut self) -> Spent {
        let result = self.step();
        step(&self.scores, result)
    }
}

/// Receives and releases messages.
pub(super) struct Sink {
    pub(super) inbox: Inbox,
}

impl Sink {
    fn step(&mut self) -> Result<Then, Error> {
        let Some(message) = self.inbox.poll()? else {
            return Ok(self.inbox.rest());
        };
        self.inbox.release(message);
        let now_ns = self.inbox.net.now_ns();
        self.inbox.scores.borrow_mut().release(now_ns);
        Ok(Then::Run)
    }
}

impl Actor for Sink {
    fn run(&mut self) -> Spent {
        let result = self.step();
        step(&self.inbox.scores.clone(), result)
    }
}

/// Answers each message with another one.
pub(super) struct Echo {
    pub(super) inbox: Inbox,
    pub(super) outbox: Outbox,
    /// Number of pending answers.
    pub(super) due: u32,
}

impl Echo {
    fn step(&mut self) -> Result<Then, Error> {
        if self.due > 0 {
            return match self.outbox.offer()? {
                Offered::Taken => {
                    self.due -= 1;
                    Ok(Then::Run)
                }
                Offered::Copying => Ok(Then::Run),
                Offered::Full(then) => Ok(then),
            };
        }
        self.outbox.look()?;
        let Some(message) = self.inbox.poll()? else {
            return Ok(self.inbox.rest());
        };
        self.inbox.release(message);
        self.due += 1;
        let now_ns = self.inbox.net.now_ns();
        self.inbox.scores.borrow_mut().release(now_ns);
        if self.outbox.stores {
            return Ok(Then::Run);
        }
        self.step()
    }
}

impl Actor for Echo {
    fn run(&mut self) -> Spent {
        let result = self.step();
        step(&self.inbox.scores.clone(), result)
    }
}

/// Progress of a round trip.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Trip {
    Pause,
    Send,
    /// The message has been offered since then.
    Sending(u64),
    Waiting(u64),
    Back(u64),
}

/// Sends one message at a time, and waits for the answer or the acknowledgement.
pub(super) struct Pinger {
    pub(super) outbox: Outbox,
    /// Without one it waits until the sender knows that the message was processed.
    pub(super) inbox: Option<Inbox>,
    pub(super) scores: Scores,
    pub(super) random: Random,
    pub(super) trip: Trip,
}

impl Pinger {
    fn step(&mut self) -> Result<Spent, Error> {
        let now_ns = self.outbox.net.now_ns();
        if let Trip::Back(since_ns) = self.trip {
            self.scores.borrow_mut().round_trip(now_ns - since_ns);
            self.trip = Trip::Pause;
        }
        let (trip, then) = match self.trip {
            Trip::Pause | Trip::Back(_) => {
                self.trip = Trip::Send;
                let other_ns = self.random.below(PAUSE_NS);
                return Ok(Spent { other_ns, ..Spent::NOTHING });
            }
            Trip::Send => {
                self.scores.borrow_mut().since_ns = Some(now_ns);
                self.send(now_ns)?
            }
            Trip::Sending(since_ns) => self.send(since_ns)?,
            Trip::Waiting(since_ns) => self.wait(since_ns)?,
        };
        self.trip = trip;
        Ok(go(then))
    }

    fn send(&mut self, since_ns: u64) -> Result<(Trip, Then), Error> {
        Ok(match self.outbox.offer()? {
            Offered::Taken => (Trip::Waiting(since_ns), Then::Run),
            Offered::Copying => (Trip::Sending(since_ns), Then::Run),
            Offered::Full(then) => (Trip::Sending(since_ns), then),
        })
    }

    fn wait(&mut self, since_ns: u64) -> Result<(Trip, Then), Error> {
        let Some(inbox) = &mut self.inbox else {
            if !self.outbox.sender.try_flush()? {
                return Ok((Trip::Waiting(since_ns), Then::Poll));
            }
            self.outbox.net.spend_ns(self.outbox.charges.acknowledged_ns());
            return Ok((Trip::Back(since_ns), Then::Run));
        };
        self.outbox.look()?;
        let Some(message) = inbox.poll()? else {
            return Ok((Trip::Waiting(since_ns), inbox.rest()));
        };
        inbox.release(message);
        Ok((Trip::Back(since_ns), Then::Run))
    }
}

impl Actor for Pinger {
    fn run(&mut self) -> Spent {
        let result = self.step();
        result.unwrap_or_else(|error| step(&self.scores, Err(error)))
    }
}
