//! What clients and servers share: the message port, the handshake, the list of programs.

pub(crate) mod handshake;
pub(crate) mod message_port;
pub(crate) mod program_list;
