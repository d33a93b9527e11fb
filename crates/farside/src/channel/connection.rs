//! Bidirectional connections: a channel of any kind for each direction (001 §3, §6).

use super::{Message, Options, Receiver, Sender, Sent, Ticket};
use crate::patience::Patience;
use crate::{Error, ErrorCode};
use farside_fabric::Fabric;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

/// Longest sleep on one direction while the other has pending operations.
const GLANCE: Duration = Duration::from_millis(5);

/// Waits before the next poll of `receiver`, and polls `sender` meanwhile: for connecting peers, acknowledgements,
/// and messages that need several requests.
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
    // A peer connected in one direction only is still connecting in the other, without an event here.
    let settled = sender.is_settled() && sender.peers_now() == receiver.peers_now();
    let nap = if settled { None } else { Some(GLANCE) };
    patience.wait_for_event(receiver.port(), nap)
}

/// Options of the two directions of a connection; equal at both ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Both {
    /// From the connecting end to the listening one.
    pub there: Options,
    /// From the listening end to the connecting one.
    pub back: Options,
}

impl Both {
    /// Returns the same options for both directions.
    pub const fn same(options: Options) -> Self {
        Self { there: options, back: options }
    }
}

/// Returns the name at which the return direction listens.
fn back_name(name: &str) -> String {
    format!("{name}.back")
}

/// The connecting end of a connection: a client.
///
/// Each direction is a separate channel, with separate links and acknowledgements, so that any two kinds can be
/// combined. Use the two ends directly.
#[derive(Debug)]
pub struct Connection {
    /// To the listener.
    pub sender: Sender,
    /// From the listener.
    pub receiver: Receiver,
}

impl Connection {
    /// Connects to the [`Service`] at `name`. Until it accepts, sends return [`Sent::Full`].
    ///
    /// # Errors
    /// As [`Sender::connect`] and [`Receiver::connect`].
    pub fn connect(fabric: &Arc<dyn Fabric>, name: &str, both: &Both) -> Result<Self, Error> {
        // Random, so unique with overwhelming probability.
        let connection = RandomState::new().hash_one(name) | 1;
        let sender = Sender::open(Arc::clone(fabric), name, &both.there, false, connection)?;
        let back = back_name(name);
        let receiver = Receiver::open(Arc::clone(fabric), &back, &both.back, false, connection)?;
        Ok(Self { sender, receiver })
    }

    /// Waits until both directions are connected.
    ///
    /// # Errors
    /// `TimedOut`; errors of the ends.
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

    /// Sends a request and waits for the next message of the service.
    ///
    /// *Blocks*, as [`Sender::send_wait`] and [`Receiver::receive`].
    ///
    /// # Errors
    /// As [`Sender::send_wait`] and [`Receiver::receive`].
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

/// The client that sent a message, for the answer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Caller(u64);

/// The listening end of connections: a server of one or more clients (fan-in of requests, fan-out of answers).
#[derive(Debug)]
pub struct Service {
    /// From the clients.
    pub receiver: Receiver,
    /// To the clients.
    pub sender: Sender,
}

impl Service {
    /// Listens at `name` for at most [`Options::peers`] clients.
    ///
    /// # Errors
    /// As [`Receiver::listen`] and [`Sender::listen`]; `BadForm` if the return channel is one whose receivers all
    /// read one memory, so that no client could be answered individually.
    pub fn listen(fabric: &Arc<dyn Fabric>, name: &str, both: &Both) -> Result<Self, Error> {
        if both.back.kind.shares_sender() && both.back.peers > 1 {
            let text = format!("{} answers all clients at once: choose another", both.back.kind);
            return Err(Error::with(ErrorCode::BadForm, text));
        }
        let receiver = Receiver::listen(Arc::clone(fabric), name, &both.there)?;
        let sender = Sender::listen(Arc::clone(fabric), &back_name(name), &both.back)?;
        Ok(Self { receiver, sender })
    }

    /// Returns the next message and its client, if one has arrived. The loss of a client affects only its
    /// connection.
    ///
    /// # Errors
    /// As [`Receiver::poll`], except `PeerLost`: a service waits for the next client.
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

    /// Releases the memory of a message.
    #[inline]
    pub fn release(&mut self, message: Message) {
        self.receiver.release(message);
    }

    /// Answers a client. Returns [`Sent::Full`] also while the return direction is still connecting.
    ///
    /// # Errors
    /// As [`Sender::send`]; `PeerLost` if the client is lost.
    #[inline]
    pub fn answer(&mut self, caller: Caller, message: &[u8]) -> Result<Sent, Error> {
        if self.sender.kind().shares_sender() {
            return self.sender.send(message);
        }
        self.sender.send_to(caller.0, message)
    }

    /// Answers a client, waiting for space as long as necessary.
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
                // The return direction may be connected after the first message arrived.
                Err(error) if error.code == ErrorCode::PeerLost && self.is_coming(caller) => {}
                Err(error) => return Err(error),
            }
            patience.wait()?;
        }
    }

    /// Whether a client is connected in the request direction only.
    fn is_coming(&self, caller: Caller) -> bool {
        self.receiver.knows(caller.0)
    }

    /// Waits for the next message: spins first, then sleeps if the channel supports it.
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
