//! Handshake of a client with a memory server.
//!
//! ```text
//! hello   "FSMS" | version | zeros, 3 bytes | connection, 8 bytes
//! reply   incarnation of the server, 8 bytes | region token | socket of the memory + 1, 2 bytes: 0 if it is on none |
//!         1 if it serves one client at a time, else 0
//! refusal as that of a channel ([`Refusal`](crate::refusal::Refusal))
//! ```

use farside_base::RegionToken;

const MAGIC: [u8; 4] = *b"FSMS";
/// Incremented with every change of this handshake.
const VERSION: u8 = 3;

/// The hello of a client: the random number of the connection, by which the server ends an earlier one of this number.
pub(super) fn encode_hello(connection: u64) -> [u8; 16] {
    let mut out = [0; 16];
    out[..4].copy_from_slice(&MAGIC);
    out[4] = VERSION;
    out[8..].copy_from_slice(&connection.to_le_bytes());
    out
}

/// Returns the number of the connection.
///
/// # Errors
/// What is wrong, for the client.
pub(super) fn decode_hello(bytes: &[u8]) -> Result<u64, &'static str> {
    let hello: Option<(&[u8; 8], &[u8; 8])> = match bytes.split_first_chunk() {
        Some((head, rest)) => rest.try_into().ok().map(|client| (head, client)),
        None => None,
    };
    match hello {
        Some(([m0, m1, m2, m3, version, 0, 0, 0], client)) if [*m0, *m1, *m2, *m3] == MAGIC => {
            match *version {
                VERSION => Ok(u64::from_le_bytes(*client)),
                _ => Err("the two ends speak different versions"),
            }
        }
        _ => Err("this is a memory server, and the hello is not that of a client of one"),
    }
}

/// What a server lends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct LendReply {
    /// Random for each server: after a restart its memory is new.
    pub(super) incarnation: u64,
    pub(super) token: RegionToken,
    /// The socket of the server's machine next to which the memory is.
    pub(super) socket: Option<u16>,
    /// Whether it serves one client at a time.
    pub(super) is_exclusive: bool,
}

impl LendReply {
    pub(super) fn encode(&self) -> [u8; 11 + RegionToken::ENCODED] {
        let mut out = [0; 11 + RegionToken::ENCODED];
        let socket = self.socket.map_or(0, |socket| socket.saturating_add(1));
        out[..8].copy_from_slice(&self.incarnation.to_le_bytes());
        out[8..8 + RegionToken::ENCODED].copy_from_slice(&self.token.encode());
        out[8 + RegionToken::ENCODED..][..2].copy_from_slice(&socket.to_le_bytes());
        out[10 + RegionToken::ENCODED] = u8::from(self.is_exclusive);
        out
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let (incarnation, rest) = bytes.split_first_chunk()?;
        let (token, socket) = rest.split_first_chunk()?;
        let token = RegionToken::decode(token)?;
        let [low, high, exclusive @ (0 | 1)] = *socket else { return None };
        let socket = u16::from_le_bytes([low, high]).checked_sub(1);
        let (incarnation, is_exclusive) = (u64::from_le_bytes(*incarnation), exclusive == 1);
        Some(Self { incarnation, token, socket, is_exclusive })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farside_base::{Access, RegionId, RemoteKey};

    #[test]
    fn hello_and_reply_survive_the_wire_and_junk_does_not() {
        assert_eq!(decode_hello(&encode_hello(u64::MAX - 1)), Ok(u64::MAX - 1));
        let token = RegionToken {
            region: RegionId(3),
            key: RemoteKey(9),
            bytes: 1 << 40,
            access: Access::READ.with(Access::ATOMIC),
        };
        for socket in [None, Some(0), Some(300)] {
            let reply = LendReply { incarnation: 7, token, socket, is_exclusive: socket.is_none() };
            assert_eq!(LendReply::decode(&reply.encode()), Some(reply));
            assert_eq!(LendReply::decode(&reply.encode()[1..]), None);
        }
        for length in 0..40 {
            assert!(decode_hello(&vec![0xff; length]).is_err());
            assert_eq!(LendReply::decode(&vec![0xff; length]), None);
        }
        let mut other_version = encode_hello(1);
        other_version[4] += 1;
        assert!(decode_hello(&other_version).is_err_and(|text| text.contains("versions")));
    }
}
