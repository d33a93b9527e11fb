//! One end of one link. Each class of messages has its own credits: a message of a class is sent only while the peer
//! is known to have a receive posted for it. So a SEND never meets an empty receive queue and no class ever waits for
//! another (request, forward and reply cannot deadlock).
//!
//! ```text
//! byte 0 family | 1 class | 2..4 sequence | 4 request, 5 forward, 6 reply credits returned | 7 zero
//! ```
//! A received message is owed to the peer as one credit of its class. Owed credits travel with the next message; when
//! half of a class's credits are owed and no message can be sent, a message of family `Credit` carries only credits.
//! Such messages need receives too, but no credits: each returns at least half of a class, so at most two per class
//! are in flight at a time.
//!
//! **A link that breaks between two live ends** loses only the messages in flight. There are at most as many as the
//! peer has receives, so a resumable messenger keeps that many of its last messages. On a new link, each end reports
//! how many it has received, and the other sends the rest once more, unchanged, including credits; only then new
//! messages.

use super::canary::{MessagingMutant, mutant};
use crate::wire::{BODY, Class, Family, MESSAGE, Violation};
use alloc::collections::VecDeque;
use farside_base::Planted;

/// The maximum number of credit messages in flight to one end: two per class.
const CREDIT_MESSAGES: u32 = 2 * Class::ALL.len() as u32;

/// The round-robin order of the classes, by the class that is checked first.
const TURNS: [[Class; 3]; 3] = [
    [Class::Request, Class::Forward, Class::Reply],
    [Class::Forward, Class::Reply, Class::Request],
    [Class::Reply, Class::Request, Class::Forward],
];

/// The initial capacity, in messages of each class per credit.
const QUEUE_PER_CREDIT: usize = 8;

/// The queue and credits of one class.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Lane {
    /// Pushed and not sent, oldest first.
    queue: VecDeque<(Family, [u8; BODY])>,
    /// Sent, and not returned as credits. Invariant: at most the credits of the class.
    outstanding: u32,
    /// Received, and not returned as credits. Invariant: at most the credits of the class.
    owed: u32,
}

/// The message last returned by `peek`, which `sent` consumes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Shown {
    /// The class of the message; `None` for credits alone.
    class: Option<Class>,
    /// The credits it carries, by class.
    credits: [u8; 3],
}

/// Sent messages, kept in case they have to be sent again.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Kept {
    /// Oldest first; the youngest is the last message sent.
    messages: VecDeque<[u8; MESSAGE]>,
    /// How many of the youngest have to be sent again.
    again: usize,
    most: usize,
}

impl Kept {
    /// The next message to send again.
    #[inline]
    fn next(&self) -> Option<[u8; MESSAGE]> {
        let at = self.messages.len() - self.again;
        self.messages.get(at).copied()
    }

    #[inline]
    fn add(&mut self, message: [u8; MESSAGE]) {
        if self.messages.len() == self.most {
            self.messages.pop_front();
        }
        self.messages.push_back(message);
    }
}

/// One end of a link: the next message to send, and the validation of received ones.
///
/// *Guarantees.* Messages of a class arrive once each, in the order of `push`. `peek` returns a message only while
/// the peer has a receive for it. *Cost*: no allocation while no more than eight messages per credit of a class wait;
/// beyond that the queue grows, bounded by the operations that the machines admit.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Messenger {
    credits_per_class: u32,
    lanes: [Lane; 3],
    /// The class that is checked first.
    next: Class,
    shown: Option<Shown>,
    /// The number of messages sent, of all kinds; its low 16 bits travel.
    sent: u64,
    /// The number of messages received, of all kinds.
    received: u64,
    /// The last messages sent, which the peer may not have received; `None` if a broken link means the death of an
    /// end.
    kept: Option<Kept>,
    mutant: Planted<MessagingMutant>,
}

impl Messenger {
    /// The maximum number of credits of a class: what one message can return.
    pub const CREDITS_MAX: u32 = u8::MAX as u32;

    /// Creates the messenger of a new link. Both ends must be given the same number of credits
    /// (`Limits::credits_per_class`); it is clamped to 1 to [`Self::CREDITS_MAX`].
    pub fn new(credits_per_class: u32) -> Self {
        let credits_per_class = credits_per_class.clamp(1, Self::CREDITS_MAX);
        let lane = || Lane {
            queue: VecDeque::with_capacity(credits_per_class as usize * QUEUE_PER_CREDIT),
            outstanding: 0,
            owed: 0,
        };
        Self {
            credits_per_class,
            lanes: [lane(), lane(), lane()],
            next: Class::Request,
            shown: None,
            sent: 0,
            received: 0,
            kept: None,
            mutant: Planted::NONE,
        }
    }

    /// The same for a link that may break while both ends live. Costs a copy of each message, and memory for as many
    /// as the peer has receives.
    pub fn resumable(mut self) -> Self {
        let most = Self::receives_needed(self.credits_per_class) as usize;
        self.kept = Some(Kept { messages: VecDeque::with_capacity(most), again: 0, most });
        self
    }

    /// The number of messages received, of all kinds: to be reported to the peer on a new link, once every message
    /// that arrived over the old one was passed to [`Self::received`].
    pub const fn received_count(&self) -> u64 {
        self.received
    }

    /// The number of messages sent, of all kinds. A peer that has received more than an earlier value of this has
    /// everything that was posted on the link before that.
    pub const fn sent_count(&self) -> u64 {
        self.sent
    }

    /// Resumes over a new link to a peer that has received `received_by_peer` messages: the rest is sent again. An
    /// error changes nothing.
    ///
    /// # Errors
    /// [`Violation`] for an impossible number: more than were sent, or fewer than can be missing.
    pub fn resume(&mut self, received_by_peer: u64) -> Result<(), Violation> {
        let missing = self.sent.checked_sub(received_by_peer);
        let missing = missing.ok_or(Violation("more messages received than sent"))?;
        let kept = self.kept.as_mut().ok_or(Violation("a link that cannot be resumed"))?;
        match usize::try_from(missing) {
            Ok(missing) if missing <= kept.messages.len() => kept.again = missing,
            _ => return Err(Violation("more messages missing than can be in flight")),
        }
        if mutant!(self, NothingSentAgain) {
            kept.again = 0;
        }
        self.shown = None;
        Ok(())
    }

    #[inline]
    fn again(&self) -> Option<[u8; MESSAGE]> {
        self.kept.as_ref().filter(|kept| kept.again > 0)?.next()
    }

    /// Enables a planted defect.
    #[cfg(canary)]
    pub fn with_mutant(mut self, mutant: MessagingMutant) -> Self {
        self.mutant = Planted::new(mutant);
        self
    }

    /// The number of receives that each end keeps posted for a link. Post the receive of a message again after
    /// [`Self::received`] and before the next [`Self::peek`], which may return its credit.
    pub const fn receives_needed(credits_per_class: u32) -> u32 {
        let credits = if credits_per_class == 0 {
            1
        } else if credits_per_class > Self::CREDITS_MAX {
            Self::CREDITS_MAX
        } else {
            credits_per_class
        };
        credits * Class::ALL.len() as u32 + CREDIT_MESSAGES
    }

    /// Queues a message. `family` must not be `Credit`, which is reserved for the messenger.
    #[inline]
    pub fn push(&mut self, class: Class, family: Family, body: &[u8; BODY]) {
        debug_assert!(family != Family::Credit, "credits are the messenger's own");
        self.lanes[class as usize].queue.push_back((family, *body));
    }

    /// The number of messages of a class that wait to be sent.
    pub fn waiting(&self, class: Class) -> usize {
        self.lanes[class as usize].queue.len()
    }

    /// Whether every pushed message has been sent at least once.
    pub fn has_sent_all(&self) -> bool {
        self.lanes.iter().all(|lane| lane.queue.is_empty()) && self.again().is_none()
    }

    /// Whether no message waits to be sent, credits included.
    #[inline]
    pub fn is_idle(&self) -> bool {
        self.lanes.iter().all(|lane| lane.queue.is_empty())
            && !self.must_return()
            && self.again().is_none()
    }

    /// Returns the message to send next, or `None` if there is none or no credit for it. Returns the same message
    /// until [`Self::sent`]; the credits in it may grow meanwhile.
    ///
    /// *Order.* Classes take turns, so a reply waits for at most one message of each other class, and never for their
    /// credits.
    #[inline]
    pub fn peek(&mut self) -> Option<[u8; MESSAGE]> {
        if let Some(message) = self.again() {
            return Some(message);
        }
        let class = match self.shown {
            Some(Shown { class: Some(class), .. }) => Some(class),
            _ => self.sendable(),
        };
        if class.is_none() && !(self.must_return() && self.may_send_credits()) {
            self.shown = None;
            return None;
        }
        let credits = self.lanes.each_ref().map(|lane| lane.owed as u8);
        self.shown = Some(Shown { class, credits });
        Some(self.encode(class, credits))
    }

    /// Notes that the fabric accepted the message returned by `peek`. Does nothing if there is none.
    #[inline]
    pub fn sent(&mut self) {
        if let Some(kept) = self.kept.as_mut().filter(|kept| kept.again > 0) {
            kept.again -= 1;
            return;
        }
        let Some(shown) = self.shown.take() else {
            return;
        };
        if self.kept.is_some() {
            let message = self.encode(shown.class, shown.credits);
            if let Some(kept) = self.kept.as_mut() {
                kept.add(message);
            }
        }
        for (lane, credits) in self.lanes.iter_mut().zip(&shown.credits) {
            lane.owed -= u32::from(*credits);
        }
        self.sent += 1;
        if let Some(class) = shown.class {
            let lane = &mut self.lanes[class as usize];
            lane.queue.pop_front();
            lane.outstanding += 1;
            self.next = TURNS[class as usize][1];
        }
    }

    /// Handles a received message; returns `None` for credits alone. An error changes nothing.
    ///
    /// # Errors
    /// [`Violation`]: no correct peer sends this. Close the link.
    #[inline]
    pub fn received(
        &mut self,
        bytes: &[u8],
    ) -> Result<Option<(Class, Family, [u8; BODY])>, Violation> {
        let bytes: &[u8; MESSAGE] =
            bytes.try_into().map_err(|_| Violation("message of a wrong length"))?;
        let (header, body) = bytes
            .split_first_chunk::<{ MESSAGE - BODY }>()
            .ok_or(Violation("message of a wrong length"))?;
        let body: &[u8; BODY] =
            body.try_into().map_err(|_| Violation("message of a wrong length"))?;
        let [family, class, low, high, returned @ .., reserved] = *header;
        let family = Family::from_bits(family).ok_or(Violation("unknown family"))?;
        let class = Class::from_bits(class).ok_or(Violation("unknown class"))?;
        if reserved != 0 {
            return Err(Violation("reserved byte is not zero"));
        }
        self.check_sequence(u16::from_le_bytes([low, high]))?;
        self.check_returned(returned)?;
        match family {
            Family::Credit => check_credit_message(class, returned, body)?,
            _ => self.check_room(class)?,
        }
        self.received += 1;
        for (lane, credits) in self.lanes.iter_mut().zip(&returned) {
            lane.outstanding -= u32::from(*credits);
        }
        if family == Family::Credit {
            return Ok(None);
        }
        self.lanes[class as usize].owed += 1;
        Ok(Some((class, family, *body)))
    }

    #[inline]
    fn check_sequence(&self, sequence: u16) -> Result<(), Violation> {
        // The link keeps order, so the 16 bits that travel are never stale: they only reveal a peer that lost,
        // repeated or invented a message.
        if sequence == self.received as u16 || mutant!(self, SequenceUnchecked) {
            Ok(())
        } else {
            Err(Violation("message out of sequence"))
        }
    }

    #[inline]
    fn check_returned(&self, returned: [u8; 3]) -> Result<(), Violation> {
        let believable = |(lane, credits): (&Lane, &u8)| u32::from(*credits) <= lane.outstanding;
        if self.lanes.iter().zip(&returned).all(believable) {
            Ok(())
        } else {
            Err(Violation("more credits returned than messages sent"))
        }
    }

    /// Checks that no more messages of a class are unreturned than it has credits.
    #[inline]
    fn check_room(&self, class: Class) -> Result<(), Violation> {
        let room = self.lanes[class as usize].owed < self.credits_per_class;
        if room || mutant!(self, SharedPool) {
            Ok(())
        } else {
            Err(Violation("more messages than credits"))
        }
    }

    /// The next class in round-robin order with a message and a credit.
    #[inline]
    fn sendable(&self) -> Option<Class> {
        let may_go =
            |class: Class| !self.lanes[class as usize].queue.is_empty() && self.has_credit(class);
        TURNS[self.next as usize].into_iter().find(|class| may_go(*class))
    }

    #[inline]
    fn has_credit(&self, class: Class) -> bool {
        if mutant!(self, SharedPool) {
            return self.may_send_credits();
        }
        let extra = u32::from(mutant!(self, CreditOffByOne));
        self.lanes[class as usize].outstanding < self.credits_per_class + extra
    }

    fn may_send_credits(&self) -> bool {
        let outstanding: u32 = self.lanes.iter().map(|lane| lane.outstanding).sum();
        let pool = self.credits_per_class * Class::ALL.len() as u32;
        outstanding < pool || !mutant!(self, SharedPool)
    }

    /// Whether half of a class's credits, rounded up, are owed.
    #[inline]
    fn must_return(&self) -> bool {
        let half = self.credits_per_class.div_ceil(2);
        self.lanes.iter().any(|lane| lane.owed >= half)
    }

    #[inline]
    fn encode(&self, class: Option<Class>, credits: [u8; 3]) -> [u8; MESSAGE] {
        let mut message = [0; MESSAGE];
        let (header, rest) = message.split_at_mut(MESSAGE - BODY);
        let oldest = class.and_then(|class| self.lanes[class as usize].queue.front());
        let family = match oldest {
            Some((family, body)) => {
                rest.copy_from_slice(body);
                *family
            }
            None => Family::Credit,
        };
        let [low, high] = (self.sent as u16).to_le_bytes();
        let [request, forward, reply] = credits;
        let class = class.unwrap_or(Class::Request) as u8;
        header.copy_from_slice(&[family as u8, class, low, high, request, forward, reply, 0]);
        message
    }
}

fn check_credit_message(
    class: Class,
    returned: [u8; 3],
    body: &[u8; BODY],
) -> Result<(), Violation> {
    if class != Class::Request || body.iter().any(|byte| *byte != 0) {
        return Err(Violation("credit message with content"));
    }
    if returned == [0; 3] {
        return Err(Violation("credit message without credits"));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
