//! Bidirectional connections: a channel of any kind for each direction (001 §3, §6).

use super::{Message, Options, Receiver, Sender, Sent, Ticket};
use crate::port_wait::{Awaited, Sleeper, Waits, wait, wait_async};
use crate::progress::EnginePort;
use crate::{Error, ErrorCode};
use farside_fabric::Fabric;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

/// Polls the direction that a wait does not sleep on: for connecting peers, acknowledgements, and messages that need
/// several requests. A lost peer is reported by the other direction.
fn poll_sender(sender: &mut Sender) -> Result<(), Error> {
    match sender.progress() {
        Err(error) if error.code != ErrorCode::PeerLost => Err(error),
        _ => Ok(()),
    }
}

/// Options of the two directions of a connection; equal at both ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct DuplexOptions {
    /// From the connecting end to the listening one.
    pub to_server: Options,
    /// From the listening end to the connecting one.
    pub to_client: Options,
}

impl DuplexOptions {
    /// Returns options for the two directions.
    pub const fn new(to_server: Options, to_client: Options) -> Self {
        Self { to_server, to_client }
    }

    /// Returns the same options for both directions.
    pub const fn same(options: Options) -> Self {
        Self::new(options, options)
    }

    /// Sets the options from the connecting end to the listening one.
    #[must_use]
    pub const fn to_server(self, to_server: Options) -> Self {
        Self { to_server, ..self }
    }

    /// Sets the options from the listening end to the connecting one.
    #[must_use]
    pub const fn to_client(self, to_client: Options) -> Self {
        Self { to_client, ..self }
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
    /// Starts to connect to the [`Service`] at `name`; [`Self::wait`] waits until it has accepted.
    ///
    /// # Errors
    /// As [`Sender::connect`] and [`Receiver::connect`].
    pub fn connect(
        fabric: &Arc<dyn Fabric>,
        name: &str,
        options: &DuplexOptions,
    ) -> Result<Self, Error> {
        let DuplexOptions { to_server, to_client } = options;
        // Random, so unique with overwhelming probability.
        let connection = RandomState::new().hash_one(name) | 1;
        let sender = Sender::open(Arc::clone(fabric), name, to_server, false, connection)?;
        let back = back_name(name);
        let receiver = Receiver::open(Arc::clone(fabric), &back, to_client, false, connection)?;
        Ok(Self { sender, receiver })
    }

    /// Waits until both directions are connected.
    ///
    /// *Blocks*: spins at first, then sleeps between polls.
    ///
    /// # Errors
    /// `TimedOut`; errors of the ends.
    pub fn wait(&mut self, timeout: Duration) -> Result<(), Error> {
        wait(self, Awaited::Peers, timeout, Self::poll_peers)
    }

    /// The same as [`Self::wait`], for any executor and without a timeout.
    ///
    /// # Errors
    /// Errors of the ends; `System` if the thread that wakes the task cannot be started.
    pub async fn wait_async(&mut self) -> Result<(), Error> {
        wait_async(self, Awaited::Peers, Self::poll_peers).await
    }

    fn poll_peers(&mut self) -> Result<Option<()>, Error> {
        self.sender.progress()?;
        self.receiver.progress()?;
        Ok((self.sender.peers() > 0 && self.receiver.peers() > 0).then_some(()))
    }

    /// Sends a request and waits for the next message of the service.
    ///
    /// *Blocks*, as [`Sender::send_wait`] and [`Receiver::receive`].
    ///
    /// # Errors
    /// As [`Sender::send_wait`] and [`Receiver::receive`].
    pub fn call(&mut self, request: &[u8], timeout: Duration) -> Result<Message, Error> {
        self.sender.send_wait(request, timeout)?;
        wait(self, Awaited::Messages, timeout, Self::poll_answer)
    }

    /// The same as [`Self::call`], for any executor and without a timeout.
    ///
    /// Dropping the future before it has its answer leaves the answer for the next receive.
    ///
    /// # Errors
    /// As [`Sender::send_async`] and [`Receiver::receive_async`].
    pub async fn call_async(&mut self, request: &[u8]) -> Result<Message, Error> {
        self.sender.send_async(request).await?;
        wait_async(self, Awaited::Messages, Self::poll_answer).await
    }

    #[inline]
    fn poll_answer(&mut self) -> Result<Option<Message>, Error> {
        if let Some(answer) = self.receiver.poll()? {
            return Ok(Some(answer));
        }
        poll_sender(&mut self.sender)?;
        Ok(None)
    }
}

/// The client that sent a message, for the answer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ClientId(u64);

/// The listening end of connections: a server of one or more clients (fan-in of requests, fan-out of answers).
///
/// ```
/// use farside::channel::{Connection, DuplexOptions, Kind, Options, Service};
/// use std::time::Duration;
/// # fn main() -> Result<(), farside::Error> {
/// # let second = Duration::from_secs(20);
/// # let name = format!("service-{}", std::process::id());
/// let options = DuplexOptions::same(Options::new(Kind::RingImmediate, 64));
/// let fabric = farside::fabrics::shared_memory()?;
/// let mut service = Service::listen(&fabric, &name, &options)?;
///
/// let client = std::thread::spawn(move || -> Result<Vec<u8>, farside::Error> {
///     let fabric = farside::fabrics::shared_memory()?;
///     let mut client = Connection::connect(&fabric, &name, &options)?;
///     client.wait(second)?;
///     Ok(client.call(b"ping", second)?.to_vec())
/// });
/// let (request, client_id) = service.wait(second)?;
/// assert_eq!(request.to_vec(), b"ping");
/// service.release(request);
/// service.answer_wait(client_id, b"pong", second)?;
/// assert_eq!(client.join().expect("the client does not panic")?, b"pong");
/// # Ok(())
/// # }
/// ```
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
    pub fn listen(
        fabric: &Arc<dyn Fabric>,
        name: &str,
        options: &DuplexOptions,
    ) -> Result<Self, Error> {
        let DuplexOptions { to_server, to_client } = options;
        if to_client.kind.shares_sender() && to_client.peers > 1 {
            let text = format!("{} answers all clients at once: choose another", to_client.kind);
            return Err(Error::with(ErrorCode::BadForm, text));
        }
        let receiver = Receiver::listen(Arc::clone(fabric), name, to_server)?;
        let sender = Sender::listen(Arc::clone(fabric), &back_name(name), to_client)?;
        Ok(Self { receiver, sender })
    }

    /// Returns the next message and its client, if one has arrived. The loss of a client affects only its
    /// connection.
    ///
    /// # Errors
    /// As [`Receiver::poll`], except `PeerLost`: a service waits for the next client.
    #[inline]
    pub fn poll(&mut self) -> Result<Option<(Message, ClientId)>, Error> {
        match self.receiver.poll() {
            Ok(Some(message)) => {
                let client = ClientId(self.receiver.connection(&message).unwrap_or(0));
                Ok(Some((message, client)))
            }
            Ok(None) => Ok(None),
            Err(error) if error.code == ErrorCode::PeerLost => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Waits for the next message: spins first, then sleeps if the channel supports it.
    ///
    /// # Errors
    /// As [`Receiver::receive`].
    pub fn wait(&mut self, timeout: Duration) -> Result<(Message, ClientId), Error> {
        wait(self, Awaited::Messages, timeout, Self::poll_request)
    }

    /// The same as [`Self::wait`], for any executor and without a timeout.
    ///
    /// # Errors
    /// As [`Receiver::receive_async`].
    pub async fn wait_async(&mut self) -> Result<(Message, ClientId), Error> {
        wait_async(self, Awaited::Messages, Self::poll_request).await
    }

    #[inline]
    fn poll_request(&mut self) -> Result<Option<(Message, ClientId)>, Error> {
        if let Some(found) = self.poll()? {
            return Ok(Some(found));
        }
        poll_sender(&mut self.sender)?;
        Ok(None)
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
    pub fn answer(&mut self, client: ClientId, message: &[u8]) -> Result<Sent, Error> {
        let sent = if self.sender.kind().shares_sender() {
            self.sender.send(message)
        } else {
            self.sender.send_to(client.0, message)
        };
        match sent {
            // The return direction may be connected after the first message arrived.
            Err(error)
                if error.code == ErrorCode::PeerLost && self.receiver.is_connected(client.0) =>
            {
                Ok(Sent::Full)
            }
            sent => sent,
        }
    }

    /// Answers a client, waiting for space as long as necessary.
    ///
    /// *Blocks*, as [`Sender::send_wait`].
    ///
    /// # Errors
    /// As [`Self::answer`]; `TimedOut`.
    pub fn answer_wait(
        &mut self,
        client: ClientId,
        message: &[u8],
        timeout: Duration,
    ) -> Result<Ticket, Error> {
        wait(self, Awaited::Words, timeout, |service| Ok(service.answer(client, message)?.ticket()))
    }

    /// The same as [`Self::answer_wait`], for any executor and without a timeout.
    ///
    /// # Errors
    /// As [`Self::answer`]; `System` if the thread that wakes the task cannot be started.
    pub async fn answer_async(
        &mut self,
        client: ClientId,
        message: &[u8],
    ) -> Result<Ticket, Error> {
        wait_async(self, Awaited::Words, |service| Ok(service.answer(client, message)?.ticket()))
            .await
    }
}

/// Waits on two ends sleep on the port of the receiver, and poll the sender at intervals while it has work.
macro_rules! waits_on_both {
    ($ends:ident) => {
        impl Waits for $ends {
            fn is_announced(&self, awaited: Awaited) -> bool {
                awaited == Awaited::Messages && self.receiver.is_announced(awaited)
            }

            fn is_quiet(&self) -> bool {
                // A peer connected in one direction only is still connecting in the other, without an event here.
                self.receiver.is_quiet()
                    && self.sender.is_settled()
                    && self.sender.peers() == self.receiver.peers()
            }

            fn port(&mut self) -> &mut EnginePort {
                self.receiver.port()
            }

            fn sleeper(&mut self) -> &mut Option<Sleeper> {
                self.receiver.sleeper()
            }
        }
    };
}

waits_on_both!(Connection);
waits_on_both!(Service);
