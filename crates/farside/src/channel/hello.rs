//! Handshake messages of the two ends of a channel.
//!
//! ```text
//! hello  "FSCH" | version | kind | role of the connector | 0 | connection | bytes of a value
//!        | shape | buffer token | bells token | counters token
//! reply  buffer token | bells token | counters token | number of the connector at the listener
//! refusal 0 (channel mismatch) or 1 (no free peer) | text
//! ```
//! If a half has no buffer or no counters, the token is zero.

use crate::refusal::Refusal;
use farside_base::RegionToken;
use farside_protocol::channel::{Kind, Peer, Shape};

const MAGIC: [u8; 4] = *b"FSCH";
/// Incremented with every change of a wire format of any channel.
const VERSION: u8 = 4;
const TOKENS: usize = 3 * RegionToken::ENCODED;

/// The half of the connecting end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Role {
    Sender = 1,
    Receiver = 2,
}

/// A half's regions, for its peer. The bells take the role of an omitted region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Tokens {
    pub(super) buffer: Option<RegionToken>,
    pub(super) bells: RegionToken,
    pub(super) counters: Option<RegionToken>,
}

impl Tokens {
    pub(super) fn encode(&self) -> [u8; TOKENS] {
        let mut out = [0; TOKENS];
        let tokens = [self.buffer.as_ref(), Some(&self.bells), self.counters.as_ref()];
        for (place, token) in out.chunks_exact_mut(RegionToken::ENCODED).zip(tokens) {
            if let Some(token) = token {
                place.copy_from_slice(&token.encode());
            }
        }
        out
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let (buffer, rest) = bytes.split_first_chunk()?;
        let (bells, counters) = rest.split_first_chunk()?;
        Some(Self {
            buffer: optional(buffer)?,
            bells: RegionToken::decode(bells)?,
            counters: optional(counters.try_into().ok()?)?,
        })
    }
}

/// Decodes a token, or zeros if there is none; `None` if it is neither.
#[expect(clippy::option_option, reason = "whether it can be read, and whether there is one")]
fn optional(bytes: &[u8; RegionToken::ENCODED]) -> Option<Option<RegionToken>> {
    let none = bytes.iter().all(|byte| *byte == 0);
    if none { Some(None) } else { RegionToken::decode(bytes).map(Some) }
}

/// The hello of the connecting end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Hello {
    pub(super) kind: Kind,
    pub(super) role: Role,
    /// The connection of which the channel is one direction; chosen by the connecting end.
    pub(super) connection: u64,
    /// Bytes of a value of a typed channel; zero: messages are bytes.
    pub(super) value_bytes: u32,
    pub(super) shape: Shape,
    pub(super) tokens: Tokens,
}

impl Hello {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        out.extend([VERSION, self.kind as u8, self.role as u8, 0]);
        out.extend(self.connection.to_le_bytes());
        out.extend(self.value_bytes.to_le_bytes());
        out.extend(self.shape.encode());
        out.extend(self.tokens.encode());
        out
    }

    /// Decodes a hello.
    ///
    /// # Errors
    /// What is wrong, for the connecting end.
    pub(super) fn decode(bytes: &[u8]) -> Result<Self, &'static str> {
        let Some((head, rest)) = bytes.split_first_chunk::<8>() else {
            return Err("this is the end of a channel, and the hello is not that of a channel");
        };
        let [m0, m1, m2, m3, version, kind, role, zero] = *head;
        if [m0, m1, m2, m3] != MAGIC || zero != 0 {
            return Err("this is the end of a channel, and the hello is not that of a channel");
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
        let (value_bytes, rest) = rest.split_first_chunk::<4>().ok_or(damaged)?;
        let value_bytes = u32::from_le_bytes(*value_bytes);
        let (shape, tokens) = rest.split_first_chunk::<{ Shape::ENCODED }>().ok_or(damaged)?;
        let shape = Shape::decode(shape).ok_or(damaged)?;
        let tokens = Tokens::decode(tokens).ok_or(damaged)?;
        Ok(Self { kind, role, connection, value_bytes, shape, tokens })
    }
}

impl Hello {
    /// Checks whether an end of this kind, role, shape and value can be a peer of the connecting end.
    pub(super) fn check(
        &self,
        kind: Kind,
        role: Role,
        shape: &Shape,
        value_bytes: u32,
    ) -> Result<(), Refusal> {
        if self.kind != kind {
            let text = format!("kind ({kind} there, {} here)", self.kind);
            return Err(Refusal::Mismatch(text));
        }
        if self.role == role {
            return Err("both ends have the same direction".into());
        }
        if self.shape != *shape {
            return Err(Refusal::Mismatch(self.shape.differences(shape)));
        }
        if self.value_bytes != value_bytes {
            let text = format!(
                "bytes of a value ({value_bytes} there, {} here; 0: the channel is not typed)",
                self.value_bytes
            );
            return Err(Refusal::Mismatch(text));
        }
        Ok(())
    }
}

/// The acceptance by a listener.
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
            value_bytes: 16,
            shape: Shape::fit(Kind::RingInlined, 100, &has),
            tokens: Tokens { buffer: None, bells: token(3), counters: None },
        }
    }

    #[test]
    fn hello_round_trips() {
        let mut hello = hello();
        assert_eq!(Hello::decode(&hello.encode()), Ok(hello));
        hello.tokens.buffer = Some(hello.tokens.bells);
        hello.role = Role::Receiver;
        assert_eq!(Hello::decode(&hello.encode()), Ok(hello));
        let region = RegionId(4);
        hello.tokens.counters = Some(RegionToken { region, ..hello.tokens.bells });
        assert_eq!(Hello::decode(&hello.encode()), Ok(hello));
        hello.tokens.buffer = None;
        assert_eq!(Hello::decode(&hello.encode()), Ok(hello));
    }

    #[test]
    fn reply_round_trips_and_other_lengths_are_refused() {
        let mut reply = Reply { tokens: hello().tokens, number: Peer(7) };
        for counters in [None, Some(reply.tokens.bells)] {
            reply.tokens.counters = counters;
            let bytes = reply.encode();
            assert_eq!(Reply::decode(&bytes), Some(reply));
            assert!((0..bytes.len()).all(|length| Reply::decode(&bytes[..length]).is_none()));
            assert_eq!(Reply::decode(&[&bytes[..], &[0]].concat()), None);
        }
    }

    #[test]
    fn shorter_or_changed_hello_is_refused_or_differs() {
        let bytes = hello().encode();
        for length in 0..bytes.len() {
            assert!(Hello::decode(&bytes[..length]).is_err(), "{length}");
        }
        assert!(Hello::decode(&[&bytes[..], &[0]].concat()).is_err(), "longer");
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 0x80;
            assert_ne!(Hello::decode(&changed), Ok(hello()), "{at}");
        }
    }
}
