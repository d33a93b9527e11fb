//! What the two ends of a channel say to each other when they connect.
//!
//! ```text
//! hello  "FSCH" | version | kind | role of the connector | 0 | connection | shape
//!        | buffer token | bells token
//! reply  buffer token | bells token | number of the connector at the listener
//! ```

use farside_base::RegionToken;
use farside_protocol::channel::{Kind, Peer, Shape};

const MAGIC: [u8; 4] = *b"FSCH";
/// Raised with every change of a wire form of any channel.
const VERSION: u8 = 1;
const TOKENS: usize = 2 * RegionToken::ENCODED;

/// Which half the speaker is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Role {
    Sender = 1,
    Receiver = 2,
}

/// A half's regions, for its peer. Without a buffer there are bells alone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Tokens {
    pub(super) buffer: Option<RegionToken>,
    pub(super) bells: RegionToken,
}

impl Tokens {
    pub(super) fn encode(&self) -> [u8; TOKENS] {
        let mut out = [0; TOKENS];
        let (buffer, bells) = out.split_at_mut(RegionToken::ENCODED);
        if let Some(token) = &self.buffer {
            buffer.copy_from_slice(&token.encode());
        }
        bells.copy_from_slice(&self.bells.encode());
        out
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; TOKENS] = bytes.try_into().ok()?;
        let (buffer, bells) = bytes.split_first_chunk::<{ RegionToken::ENCODED }>()?;
        let none = buffer.iter().all(|byte| *byte == 0);
        Some(Self {
            buffer: if none { None } else { Some(RegionToken::decode(buffer)?) },
            bells: RegionToken::decode(bells.try_into().ok()?)?,
        })
    }
}

/// What a connector says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Hello {
    pub(super) kind: Kind,
    pub(super) role: Role,
    /// The connection that the channel is one direction of; drawn by the connector.
    pub(super) connection: u64,
    pub(super) shape: Shape,
    pub(super) tokens: Tokens,
}

impl Hello {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        out.extend([VERSION, self.kind as u8, self.role as u8, 0]);
        out.extend(self.connection.to_le_bytes());
        out.extend(self.shape.encode());
        out.extend(self.tokens.encode());
        out
    }

    /// Reads a hello.
    ///
    /// # Errors
    /// What is wrong, to be told to the connector.
    pub(super) fn decode(bytes: &[u8]) -> Result<Self, &'static str> {
        let Some((head, rest)) = bytes.split_first_chunk::<8>() else {
            return Err("this is the end of a channel, and no hello of a channel came");
        };
        let [m0, m1, m2, m3, version, kind, role, zero] = *head;
        if [m0, m1, m2, m3] != MAGIC || zero != 0 {
            return Err("this is the end of a channel, and no hello of a channel came");
        }
        if version != VERSION {
            return Err("the two ends speak different versions");
        }
        let damaged = "the hello is damaged";
        let kind = Kind::from_number(kind).ok_or(damaged)?;
        let role = match role {
            1 => Role::Sender,
            2 => Role::Receiver,
            _ => return Err(damaged),
        };
        let (connection, rest) = rest.split_first_chunk::<8>().ok_or(damaged)?;
        let connection = u64::from_le_bytes(*connection);
        let (shape, tokens) = rest.split_first_chunk::<{ Shape::ENCODED }>().ok_or(damaged)?;
        let shape = Shape::decode(shape).ok_or(damaged)?;
        let tokens = Tokens::decode(tokens).ok_or(damaged)?;
        Ok(Self { kind, role, connection, shape, tokens })
    }
}

/// What a listener answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Reply {
    pub(super) tokens: Tokens,
    pub(super) number: Peer,
}

impl Reply {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = self.tokens.encode().to_vec();
        out.extend(self.number.0.to_le_bytes());
        out
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let (tokens, number) = bytes.split_last_chunk::<2>()?;
        let tokens = Tokens::decode(tokens)?;
        Some(Self { tokens, number: Peer(u16::from_le_bytes(*number)) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farside_base::{Access, RegionId, RemoteKey};
    use farside_fabric::{Fabric, MemFabric};

    fn hello() -> Hello {
        let has = MemFabric::new().capabilities();
        let token = |region| RegionToken {
            region: RegionId(region),
            key: RemoteKey(77),
            bytes: 4096,
            access: Access::WRITE,
        };
        Hello {
            kind: Kind::RingInlined,
            role: Role::Sender,
            connection: 0x1234_5678_9abc_def0,
            shape: Shape::fit(Kind::RingInlined, 100, &has),
            tokens: Tokens { buffer: None, bells: token(3) },
        }
    }

    #[test]
    fn a_hello_leads_back() {
        let mut hello = hello();
        assert_eq!(Hello::decode(&hello.encode()), Ok(hello));
        hello.tokens.buffer = Some(hello.tokens.bells);
        hello.role = Role::Receiver;
        assert_eq!(Hello::decode(&hello.encode()), Ok(hello));
    }

    #[test]
    fn every_shorter_or_changed_hello_is_refused_or_something_else() {
        let bytes = hello().encode();
        for length in 0..bytes.len() {
            assert!(Hello::decode(&bytes[..length]).is_err(), "{length}");
        }
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 0x80;
            assert_ne!(Hello::decode(&changed), Ok(hello()), "{at}");
        }
    }
}
