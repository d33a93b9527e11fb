//! Data channels: the twenty ways of 001 Table 2 to bring messages from a sender to a receiver.

mod advisor;
mod awaiting;
mod buffer;
mod connection;
mod drive;
mod hello;
mod options;
mod receiver;
mod sender;
mod staging;
pub mod table;
mod wait;

pub use advisor::{Advice, Fitting, Need, Unfit, UnknownNeed, Wish, advise};
pub use buffer::{Buffer, Slice};
pub use connection::{Both, Caller, Connection, Service};
pub use farside_protocol::channel::{Acknowledge, Family, Kind, Shape, Signal, UnknownKind};
pub use options::Options;
pub use receiver::{Message, Offer, Receiver, can_sleep};
pub use sender::{Loan, Sender, Sent, Ticket};
