//! Messages between two nodes over one link: the [`Messenger`] (order, credits and validation of the 56-byte messages
//! of [`crate::wire`]) and the [`WritesInFlight`] that messages refer to.
//!
//! Links, receives and work requests are not handled here. The runtime posts what [`Messenger::peek`] returns and
//! passes received messages to [`Messenger::received`].

mod canary;
mod in_flight;
mod messenger;

#[cfg(canary)]
pub use canary::MessagingMutant;
pub use in_flight::{WriteKey, WritesInFlight};
pub use messenger::Messenger;
