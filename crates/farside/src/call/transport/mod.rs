//! What clients and servers share: the message port, the handshake, the list of programs, reconnect backoff.

pub(crate) mod backoff;
pub(crate) mod handshake;
pub(crate) mod message_port;
pub(crate) mod program_list;
