//! Two directions together: any channel there, any channel back (001 §3, §6).

use super::{Message, Options, Receiver, Sender, Sent, Ticket};
use crate::patience::Patience;
use crate::{Error, ErrorCode};
use farside_fabric::Fabric;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

/// How long who sleeps on one way leaves the other one alone while something is under way there.
const GLANCE: Duration = Duration::from_millis(5);

/// Waits for the next look at `receiver`, and looks after `sender` meanwhile: peers that connect to
/// it, acknowledgements, messages that need more than one request.
fn glance(
    receiver: &mut Receiver,
    sender: &mut Sender,
    patience: &mut Patience,
) -> Result<(), Error> {
    match sender.turn() {
        Err(error) if error.code != ErrorCode::PeerLost => return Err(error),
        _ => {}
    }
    if !receiver.arrives_by_completion() {
        return patience.wait();
    }
    // A peer that is there one way is coming the other way, which wakes nobody here.
    let settled = sender.is_settled() && sender.peers_now() == receiver.peers_now();
    let nap = if settled { None } else { Some(GLANCE) };
    patience.wait_for_event(receiver.port(), nap)
}

/// How the two directions of a connection shall be; equal at both ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Both {
    /// From the end that connects to the end that listens.
    pub there: Options,
    /// The other way.
    pub back: Options,
}

impl Both {
    /// The same channel both ways.
    pub const fn same(options: Options) -> Self {
        Self { there: options, back: options }
    }
}

/// The name at which the way back is to be had.
fn back_name(name: &str) -> String {
    format!("{name}.back")
}

/// The end of a connection that connects: a client.
///
/// Each direction is a channel of its own, with its own links and its own acknowledgement of
/// processing, so that any two make a connection. Use the two ends as they are.
#[derive(Debug)]
pub struct Connection {
    /// Towards the listener.
    pub sender: Sender,
    /// From the listener.
    pub receiver: Receiver,
}

impl Connection {
    /// Connects to the [`Service`] at `name`. Until it has answered, the sender is full.
    ///
    /// # Errors
    /// As [`Sender::connect`] and [`Receiver::connect`].
    pub fn connect(fabric: &Arc<dyn Fabric>, name: &str, both: &Both) -> Result<Self, Error> {
        // A number that no other connection has, by all odds.
        let connection = RandomState::new().hash_one(name) | 1;
        let sender = Sender::open(Arc::clone(fabric), name, &both.there, false, connection)?;
        let back = back_name(name);
        let receiver = Receiver::open(Arc::clone(fabric), &back, &both.back, false, connection)?;
        Ok(Self { sender, receiver })
    }

    /// Waits until both directions are connected.
    ///
    /// # Errors
    /// `TimedOut`; what the ends say.
    pub fn wait(&mut self, timeout: Duration) -> Result<(), Error> {
        let mut patience = Patience::new(timeout);
        loop {
            self.sender.turn()?;
            self.receiver.turn()?;
            if self.sender.peers_now() > 0 && self.receiver.peers_now() > 0 {
                return Ok(());
            }
            patience.wait()?;
        }
    }

    /// Sends a request and waits for the next message back.
    ///
    /// *Blocks*, as [`Sender::send_wait`] and [`Receiver::receive`].
    ///
    /// # Errors
    /// As theirs.
    pub fn call(&mut self, request: &[u8], timeout: Duration) -> Result<Message, Error> {
        self.sender.send_wait(request, timeout)?;
        let mut patience = Patience::new(timeout);
        loop {
            if let Some(answer) = self.receiver.poll()? {
                return Ok(answer);
            }
            glance(&mut self.receiver, &mut self.sender, &mut patience)?;
        }
    }
}

/// Whom a message came from, to answer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Caller(u64);

/// The end of connections that listens: a server of one client or many (N:1 there, 1:N back).
#[derive(Debug)]
pub struct Service {
    /// From the clients.
    pub receiver: Receiver,
    /// Towards the clients.
    pub sender: Sender,
}

impl Service {
    /// Listens at `name` for at most [`Options::peers`] clients.
    ///
    /// # Errors
    /// As [`Receiver::listen`] and [`Sender::listen`]; `BadForm` when the way back is a channel
    /// whose receivers all read one memory, so that no client could be answered alone.
    pub fn listen(fabric: &Arc<dyn Fabric>, name: &str, both: &Both) -> Result<Self, Error> {
        if both.back.kind.shares_sender() && both.back.peers > 1 {
            let text = format!("{} answers all clients at once", both.back.kind);
            return Err(Error::with(ErrorCode::BadForm, text));
        }
        let receiver = Receiver::listen(Arc::clone(fabric), name, &both.there)?;
        let sender = Sender::listen(Arc::clone(fabric), &back_name(name), &both.back)?;
        Ok(Self { receiver, sender })
    }

    /// The next message of any client and whom to answer, if one is here. A client that is gone
    /// takes nothing with it but its own connection.
    ///
    /// # Errors
    /// As [`Receiver::poll`], but for `PeerLost`: a service waits for the next client.
    #[inline]
    pub fn poll(&mut self) -> Result<Option<(Message, Caller)>, Error> {
        match self.receiver.poll() {
            Ok(Some(message)) => {
                let caller = Caller(self.receiver.connection(&message).unwrap_or(0));
                Ok(Some((message, caller)))
            }
            Ok(None) => Ok(None),
            Err(error) if error.code == ErrorCode::PeerLost => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Gives the memory of a message back.
    #[inline]
    pub fn release(&mut self, message: Message) {
        self.receiver.release(message);
    }

    /// Answers a client. `Full` also while the way back to it is still being connected.
    ///
    /// # Errors
    /// As [`Sender::send`]; `PeerLost` when the client is gone.
    #[inline]
    pub fn answer(&mut self, caller: Caller, message: &[u8]) -> Result<Sent, Error> {
        if self.sender.kind().shares_sender() {
            return self.sender.send(message);
        }
        self.sender.send_to(caller.0, message)
    }

    /// Answers a client, and waits for room as long as that takes.
    ///
    /// # Errors
    /// As [`Self::answer`]; `TimedOut`.
    pub fn answer_wait(
        &mut self,
        caller: Caller,
        message: &[u8],
        timeout: Duration,
    ) -> Result<Ticket, Error> {
        let mut patience = Patience::new(timeout);
        loop {
            match self.answer(caller, message) {
                Ok(Sent::Taken(ticket)) => return Ok(ticket),
                Ok(Sent::Full) => {}
                // The way back may be connected after the first message came.
                Err(error) if error.code == ErrorCode::PeerLost && self.is_coming(caller) => {}
                Err(error) => return Err(error),
            }
            patience.wait()?;
        }
    }

    /// Whether a client is there one way and not yet the other.
    fn is_coming(&self, caller: Caller) -> bool {
        self.receiver.knows(caller.0)
    }

    /// Waits until something may have arrived: spins first, then sleeps where the channel can.
    ///
    /// # Errors
    /// As [`Receiver::receive`].
    pub fn wait(&mut self, timeout: Duration) -> Result<(Message, Caller), Error> {
        let mut patience = Patience::new(timeout);
        loop {
            if let Some(found) = self.poll()? {
                return Ok(found);
            }
            glance(&mut self.receiver, &mut self.sender, &mut patience)?;
        }
    }
}
