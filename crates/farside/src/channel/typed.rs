//! Typed channels: messages are values of one type, or slices of them, instead of bytes.
//!
//! A value travels as its bytes in memory, so that it is copied as often as a message of bytes and never parsed.
//! `zerocopy` proves that it has no padding ([`IntoBytes`]), that a shared reference shows no change ([`Immutable`])
//! and that any bytes are a value ([`FromBytes`]): whatever a peer writes, a receiver gets a `T`.

use super::options::Options;
use super::{Message, Receiver, Sender, Sent, Ticket};
use crate::{Error, ErrorCode};
use farside_fabric::Fabric;
use std::marker::PhantomData;
use std::mem::size_of;
use std::sync::Arc;
use std::time::Duration;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// The sending end of a channel whose messages are values of `T`, or slices of them.
///
/// Both ends must use types of one size, which is checked when they connect.
///
/// ```
/// use farside::channel::{Kind, Options, TypedReceiver, TypedSender};
/// use farside::zerocopy::{FromBytes, Immutable, IntoBytes};
/// use std::time::Duration;
///
/// #[derive(FromBytes, IntoBytes, Immutable, PartialEq, Debug)]
/// #[repr(C)]
/// #[zerocopy(crate = "farside::zerocopy")] // for a program that does not depend on zerocopy itself
/// struct Sample {
///     time_ns: u64,
///     value: f64,
/// }
///
/// # fn main() -> Result<(), farside::Error> {
/// # let fabric = farside::fabrics::shared_memory()?;
/// # let name = format!("typed-{}", std::process::id());
/// # let second = Duration::from_secs(20);
/// let options = Options::typed::<Sample>(Kind::RingInlined, 16); // at most 16 of them in a message
/// let mut receiver = TypedReceiver::<Sample>::listen(fabric.clone(), &name, &options)?;
/// let mut sender = TypedSender::<Sample>::connect(fabric, &name, &options)?;
/// receiver.wait_for_peers(1, second)?;
///
/// sender.send_wait(&Sample { time_ns: 1, value: 0.5 }, second)?;
/// assert_eq!(receiver.receive(second)?, Sample { time_ns: 1, value: 0.5 });
///
/// let more = [Sample { time_ns: 2, value: 1.0 }, Sample { time_ns: 3, value: 2.0 }];
/// sender.send_slice_wait(&more, second)?;
/// assert_eq!(receiver.receive_slice(second)?, more);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct TypedSender<T> {
    sender: Sender,
    of: PhantomData<fn(T)>,
}

/// The receiving end of a channel whose messages are values of `T`, or slices of them; see [`TypedSender`].
#[derive(Debug)]
pub struct TypedReceiver<T> {
    receiver: Receiver,
    of: PhantomData<fn() -> T>,
}

/// Returns the options of a channel of such values.
fn sized<T>(options: &Options) -> Result<Options, Error> {
    let (bytes, bytes_max) = (size_of::<T>(), options.message_bytes_max);
    match u32::try_from(bytes) {
        Ok(value_bytes) if value_bytes > 0 && value_bytes <= bytes_max => {
            Ok(Options { value_bytes, ..*options })
        }
        _ => {
            let name = std::any::type_name::<T>();
            let text = format!(
                "{name} has {bytes} bytes, and message_bytes_max is {bytes_max}: a value has at least 1 byte, and \
                 at least one must fit; use Options::typed"
            );
            Err(Error::with(ErrorCode::BadConfiguration, text))
        }
    }
}

/// Implements the methods that a typed sender and a typed receiver share.
macro_rules! typed_methods {
    ($end:ident, $untyped:ident, $field:ident, $peers:literal) => {
        impl<T> $end<T> {
            #[doc = concat!("As [`", stringify!($untyped), "::listen`].")]
            ///
            /// # Errors
            #[doc = concat!("As [`", stringify!($untyped), "::listen`]; ")]
            /// `BadConfiguration` if `T` has no bytes, or more than [`Options::message_bytes_max`].
            pub fn listen(
                fabric: Arc<dyn Fabric>,
                name: &str,
                options: &Options,
            ) -> Result<Self, Error> {
                let $field = $untyped::listen(fabric, name, &sized::<T>(options)?)?;
                Ok(Self { $field, of: PhantomData })
            }

            #[doc = concat!("As [`", stringify!($untyped), "::connect`].")]
            ///
            /// # Errors
            #[doc = concat!("As [`", stringify!($untyped), "::connect`] and [`Self::listen`]; ")]
            /// `ChannelMismatch`, from the first call afterwards, also if values have another size at the peer.
            pub fn connect(
                fabric: Arc<dyn Fabric>,
                name: &str,
                options: &Options,
            ) -> Result<Self, Error> {
                let $field = $untyped::connect(fabric, name, &sized::<T>(options)?)?;
                Ok(Self { $field, of: PhantomData })
            }

            /// Returns the end as one of bytes, for all its other operations.
            pub const fn untyped(&mut self) -> &mut $untyped {
                &mut self.$field
            }

            #[doc = concat!("Waits until this many ", $peers, " are connected, and accepts them.")]
            ///
            /// # Errors
            #[doc = concat!("As [`", stringify!($untyped), "::wait_for_peers`].")]
            pub fn wait_for_peers(&mut self, count: usize, timeout: Duration) -> Result<(), Error> {
                self.$field.wait_for_peers(count, timeout)
            }

            /// The same as [`Self::wait_for_peers`], for any executor and without a timeout.
            ///
            /// # Errors
            #[doc = concat!("As [`", stringify!($untyped), "::wait_for_peers_async`].")]
            pub async fn wait_for_peers_async(&mut self, count: usize) -> Result<(), Error> {
                self.$field.wait_for_peers_async(count).await
            }

            #[doc = concat!("As [`", stringify!($untyped), "::close`].")]
            ///
            /// # Errors
            #[doc = concat!("As [`", stringify!($untyped), "::close`].")]
            pub fn close(self, timeout: Duration) -> Result<(), Error> {
                self.$field.close(timeout)
            }

            #[doc = concat!("As [`", stringify!($untyped), "::close_async`].")]
            ///
            /// # Errors
            #[doc = concat!("As [`", stringify!($untyped), "::close_async`].")]
            pub async fn close_async(self) -> Result<(), Error> {
                self.$field.close_async().await
            }
        }
    };
}

typed_methods!(TypedSender, Sender, sender, "receivers");
typed_methods!(TypedReceiver, Receiver, receiver, "senders");

impl<T: IntoBytes + Immutable> TypedSender<T> {
    /// Sends a value, as [`Sender::send`].
    ///
    /// # Errors
    /// As [`Sender::send`].
    #[inline]
    pub fn send(&mut self, value: &T) -> Result<Sent, Error> {
        self.sender.send(value.as_bytes())
    }

    /// Sends a value, waiting for space as long as necessary.
    ///
    /// *Blocks*, as [`Sender::send_wait`].
    ///
    /// # Errors
    /// As [`Sender::send_wait`].
    pub fn send_wait(&mut self, value: &T, timeout: Duration) -> Result<Ticket, Error> {
        self.sender.send_wait(value.as_bytes(), timeout)
    }

    /// Sends a value, awaiting space for it.
    ///
    /// # Errors
    /// As [`Sender::send_async`].
    pub async fn send_async(&mut self, value: &T) -> Result<Ticket, Error> {
        self.sender.send_async(value.as_bytes()).await
    }

    /// Sends several values as one message, as [`Sender::send`].
    ///
    /// # Errors
    /// As [`Sender::send`].
    #[inline]
    pub fn send_slice(&mut self, values: &[T]) -> Result<Sent, Error> {
        self.sender.send(values.as_bytes())
    }

    /// Sends several values as one message, waiting for space as long as necessary.
    ///
    /// *Blocks*, as [`Sender::send_wait`].
    ///
    /// # Errors
    /// As [`Sender::send_wait`].
    pub fn send_slice_wait(&mut self, values: &[T], timeout: Duration) -> Result<Ticket, Error> {
        self.sender.send_wait(values.as_bytes(), timeout)
    }

    /// Sends several values as one message, awaiting space for it.
    ///
    /// # Errors
    /// As [`Sender::send_async`].
    pub async fn send_slice_async(&mut self, values: &[T]) -> Result<Ticket, Error> {
        self.sender.send_async(values.as_bytes()).await
    }
}

impl<T: FromBytes + IntoBytes> TypedReceiver<T> {
    /// Returns the next value, if one has arrived, and releases its memory.
    ///
    /// *Cost*: as [`Receiver::poll`]; one copy.
    ///
    /// # Errors
    /// As [`Receiver::poll`] and [`Self::value`].
    #[inline]
    pub fn poll(&mut self) -> Result<Option<T>, Error> {
        match self.receiver.poll()? {
            Some(message) => self.value(message).map(Some),
            None => Ok(None),
        }
    }

    /// Waits for the next value.
    ///
    /// *Blocks*, as [`Receiver::receive`].
    ///
    /// # Errors
    /// As [`Receiver::receive`] and [`Self::value`].
    pub fn receive(&mut self, timeout: Duration) -> Result<T, Error> {
        let message = self.receiver.receive(timeout)?;
        self.value(message)
    }

    /// Awaits the next value, on any executor.
    ///
    /// # Errors
    /// As [`Receiver::receive_async`] and [`Self::value`].
    pub async fn receive_async(&mut self) -> Result<T, Error> {
        let message = self.receiver.receive_async().await?;
        self.value(message)
    }

    /// Waits for the next message and returns all values in it.
    ///
    /// *Blocks*, as [`Receiver::receive`].
    ///
    /// # Errors
    /// As [`Receiver::receive`] and [`Self::values`].
    pub fn receive_slice(&mut self, timeout: Duration) -> Result<Vec<T>, Error> {
        let message = self.receiver.receive(timeout)?;
        self.values(message)
    }

    /// Awaits the next message, on any executor, and returns all values in it.
    ///
    /// # Errors
    /// As [`Receiver::receive_async`] and [`Self::values`].
    pub async fn receive_slice_async(&mut self) -> Result<Vec<T>, Error> {
        let message = self.receiver.receive_async().await?;
        self.values(message)
    }

    /// Returns the value of a message of this end, and releases the message.
    ///
    /// For messages that [`Self::untyped`] received, of which [`Message::from`] names the sender.
    ///
    /// # Errors
    /// `BadForm` if the message is not one value; it is released then too.
    #[inline]
    pub fn value(&mut self, message: Message) -> Result<T, Error> {
        let mut value = T::new_zeroed();
        let read = if message.len() == size_of::<T>() {
            message.read(0, value.as_mut_bytes())
        } else {
            Err(other_length::<T>(message.len(), "use receive_slice for several values"))
        };
        self.receiver.release(message);
        read.map(|()| value)
    }

    /// Returns the values of a message of this end, and releases the message.
    ///
    /// # Errors
    /// `BadForm` if the message does not consist of whole values; it is released then too.
    pub fn values(&mut self, message: Message) -> Result<Vec<T>, Error> {
        let count = message.len() / size_of::<T>();
        let mut values: Vec<T> = (0..count).map(|_| T::new_zeroed()).collect();
        let read = if message.len() == count * size_of::<T>() {
            message.read(0, values.as_mut_slice().as_mut_bytes())
        } else {
            Err(other_length::<T>(message.len(), "send through a TypedSender"))
        };
        self.receiver.release(message);
        read.map(|()| values)
    }
}

#[cold]
fn other_length<T>(bytes: usize, remedy: &str) -> Error {
    let (name, size) = (std::any::type_name::<T>(), size_of::<T>());
    let text = format!("the message has {bytes} bytes, and {name} has {size}: {remedy}");
    Error::with(ErrorCode::BadForm, text)
}
