//! Handshake messages between callers and executors.
//!
//! ```text
//! hello    "FSRC" | version (1) | purpose (1) | slots (2) | session (16) | tenant (32)
//!          | bytes of output per slot (8) | token of the output region
//! welcome  "FSRC" | version (1) | resumed (1) | slots (2) | message bytes (4) | output bytes (4)
//!          | regions (2) | zero (6) | for each: number (1), zero (7), token
//! refusal  "FSRC" | version (1) | why (1) | zero (2) | text
//! ```
//! A tenant's name is padded with zeros. A peer that accesses only the memory has no session and no output region.

use farside_base::RegionToken;
use farside_protocol::call::{Refused, SessionId};

const MAGIC: [u8; 4] = *b"FSRC";
/// Incremented with every change of a wire format of calls.
const VERSION: u8 = 4;
/// Most bytes of a tenant's name.
pub(crate) const TENANT_BYTES_MAX: usize = 32;

/// The purpose of a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Purpose {
    /// To invoke calls.
    Calls = 1,
    /// To access the regions by one-sided requests.
    Memory = 2,
}

/// The hello of a caller.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct SessionHello {
    pub(crate) purpose: Purpose,
    /// Calls that it wants to have in progress.
    pub(crate) slots: u16,
    pub(crate) session: SessionId,
    pub(crate) tenant: String,
    /// Most bytes of output per call that it accepts.
    pub(crate) output_bytes: u32,
    /// The region for outputs, one part per slot.
    pub(crate) room: Option<RegionToken>,
}

/// The executor's acceptance.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Welcome {
    /// The session existed.
    pub(crate) resumed: bool,
    pub(crate) slots: u16,
    /// Most bytes of a request's body.
    pub(crate) message_bytes: u32,
    pub(crate) regions: Vec<(u8, RegionToken)>,
}

/// The executor's refusal of a valid hello. An invalid hello is refused with text alone.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct SessionRefusal {
    pub(crate) why: Refused,
    /// Text for people: the usage, and what to do.
    pub(crate) text: String,
}

const NOT_A_HELLO: &str = "this is an executor of calls, and the hello is not that of a caller";
const DAMAGED: &str = "the hello is damaged";

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*head)
    }

    fn zeroes<const N: usize>(&mut self) -> Option<()> {
        (self.take::<N>()? == [0; N]).then_some(())
    }
}

impl SessionHello {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        out.extend([VERSION, self.purpose as u8]);
        out.extend(self.slots.to_le_bytes());
        out.extend(self.session.0.to_le_bytes());
        let mut tenant = [0; TENANT_BYTES_MAX];
        let name = self.tenant.as_bytes();
        let length = name.len().min(TENANT_BYTES_MAX);
        tenant[..length].copy_from_slice(&name[..length]);
        out.extend(tenant);
        out.extend(u64::from(self.output_bytes).to_le_bytes());
        out.extend(self.room.map_or([0; RegionToken::ENCODED], |token| token.encode()));
        out
    }

    /// Decodes a hello.
    ///
    /// # Errors
    /// What is wrong, for the caller.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, &'static str> {
        let mut reader = Reader(bytes);
        if reader.take() != Some(MAGIC) {
            return Err(NOT_A_HELLO);
        }
        let [version, purpose] = reader.take().ok_or(NOT_A_HELLO)?;
        if version != VERSION {
            return Err("the two ends speak different versions");
        }
        Self::fields(purpose, reader).ok_or(DAMAGED)
    }

    fn fields(purpose: u8, mut reader: Reader<'_>) -> Option<Self> {
        let purpose = match purpose {
            1 => Purpose::Calls,
            2 => Purpose::Memory,
            _ => return None,
        };
        let slots = u16::from_le_bytes(reader.take()?);
        let session = SessionId(u128::from_le_bytes(reader.take()?));
        let tenant: [u8; TENANT_BYTES_MAX] = reader.take()?;
        let length = tenant.iter().position(|byte| *byte == 0).unwrap_or(TENANT_BYTES_MAX);
        let (name, rest) = tenant.split_at(length);
        let tenant = std::str::from_utf8(name).ok()?.to_owned();
        let output_bytes = u32::try_from(u64::from_le_bytes(reader.take()?)).ok()?;
        let token: [u8; RegionToken::ENCODED] = reader.take()?;
        let room = match token == [0; RegionToken::ENCODED] {
            true => None,
            false => Some(RegionToken::decode(&token)?),
        };
        let whole = reader.0.is_empty() && rest.iter().all(|byte| *byte == 0);
        let sense = match purpose {
            Purpose::Calls => slots > 0 && room.is_some() == (output_bytes > 0),
            Purpose::Memory => room.is_none(),
        };
        (whole && sense).then_some(Self { purpose, slots, session, tenant, output_bytes, room })
    }
}

impl Welcome {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        out.extend([VERSION, u8::from(self.resumed)]);
        out.extend(self.slots.to_le_bytes());
        out.extend(self.message_bytes.to_le_bytes());
        out.extend(u16::try_from(self.regions.len()).unwrap_or(u16::MAX).to_le_bytes());
        out.extend([0; 2]);
        for (number, token) in &self.regions {
            out.extend([*number, 0, 0, 0, 0, 0, 0, 0]);
            out.extend(token.encode());
        }
        out
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader(bytes);
        let head: [u8; 6] = reader.take()?;
        let resumed = match head {
            [m0, m1, m2, m3, VERSION, resumed @ 0..=1] if [m0, m1, m2, m3] == MAGIC => resumed == 1,
            _ => return None,
        };
        let slots = u16::from_le_bytes(reader.take()?);
        let message_bytes = u32::from_le_bytes(reader.take()?);
        let count = u16::from_le_bytes(reader.take()?);
        reader.zeroes::<2>()?;
        let mut regions = Vec::new();
        for _ in 0..count {
            let [number] = reader.take()?;
            reader.zeroes::<7>()?;
            regions.push((number, RegionToken::decode(&reader.take()?)?));
        }
        let whole = reader.0.is_empty() && slots > 0;
        whole.then_some(Self { resumed, slots, message_bytes, regions })
    }
}

impl SessionRefusal {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        out.extend([VERSION, self.why as u8, 0, 0]);
        out.extend(self.text.as_bytes());
        out
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let (head, text) = bytes.split_first_chunk()?;
        let why = match *head {
            [m0, m1, m2, m3, VERSION, why, 0, 0] if [m0, m1, m2, m3] == MAGIC => u64::from(why),
            _ => return None,
        };
        let text = std::str::from_utf8(text).ok()?.to_owned();
        let (why, _) = Refused::of(why)?;
        Some(Self { why, text })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farside_base::{Access, RegionId, RemoteKey};

    fn token(region: u32) -> RegionToken {
        let key = RemoteKey(77);
        RegionToken { region: RegionId(region), key, bytes: 4096, access: Access::ALL }
    }

    fn hello() -> SessionHello {
        SessionHello {
            purpose: Purpose::Calls,
            slots: 32,
            session: SessionId(1 << 99),
            tenant: "search".to_owned(),
            output_bytes: 4096,
            room: Some(token(3)),
        }
    }

    #[test]
    fn hello_round_trips_and_other_lengths_are_refused() {
        let memory = SessionHello {
            purpose: Purpose::Memory,
            slots: 0,
            output_bytes: 0,
            room: None,
            ..hello()
        };
        let long = SessionHello { tenant: "x".repeat(TENANT_BYTES_MAX), ..hello() };
        for hello in [hello(), memory, long] {
            let bytes = hello.encode();
            assert_eq!(SessionHello::decode(&bytes), Ok(hello));
            assert!((0..bytes.len()).all(|length| SessionHello::decode(&bytes[..length]).is_err()));
            assert!(SessionHello::decode(&[&bytes[..], &[0]].concat()).is_err());
        }
    }

    #[test]
    fn changed_hello_is_refused_or_differs() {
        let bytes = hello().encode();
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 0x80;
            assert_ne!(SessionHello::decode(&changed), Ok(hello()), "{at}");
        }
        let without = SessionHello { room: None, ..hello() };
        assert!(SessionHello::decode(&without.encode()).is_err(), "output without a region");
    }

    #[test]
    fn welcome_round_trips_and_other_lengths_are_refused() {
        let regions = vec![(0, token(1)), (255, token(2))];
        let welcome = Welcome { resumed: true, slots: 8, message_bytes: 100, regions };
        let bytes = welcome.encode();
        assert_eq!(Welcome::decode(&bytes), Some(welcome));
        assert!((0..bytes.len()).all(|length| Welcome::decode(&bytes[..length]).is_none()));
        assert_eq!(Welcome::decode(&[&bytes[..], &[0]].concat()), None);
    }

    #[test]
    fn refusal_round_trips_and_plain_text_is_none() {
        let text = "the tenant has 1 of 1 callers".to_owned();
        let refusal = SessionRefusal { why: Refused::TenantSessions, text };
        let bytes = refusal.encode();
        assert_eq!(SessionRefusal::decode(&bytes), Some(refusal));
        assert!((0..8).all(|length| SessionRefusal::decode(&bytes[..length]).is_none()));
        for (at, byte) in [(0, 0), (4, VERSION + 1), (5, 0), (5, 200), (7, 1), (8, 0xff)] {
            let mut changed = bytes.clone();
            changed[at] = byte;
            assert_eq!(SessionRefusal::decode(&changed), None, "{at}");
        }
        assert_eq!(SessionRefusal::decode(NOT_A_HELLO.as_bytes()), None);
    }
}
