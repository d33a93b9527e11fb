//! The common form of messages between nodes: 56 bytes, so that one fits a 64-byte slot of a ring together with the
//! slot's sequence word.
//!
//! ```text
//! 0        1       2           4                 8                                   56
//! +--------+-------+-----------+-----------------+------------------------------------+
//! | family | class | sequence  | credits, unused |  body, laid out by the family      |
//! +--------+-------+-----------+-----------------+------------------------------------+
//! ```
//! All integers are little-endian. The header belongs to [`crate::channel`].

use core::net::{IpAddr, Ipv6Addr, SocketAddr};

/// Bytes of a family's body.
pub const BODY: usize = 48;

/// Bytes of a whole message.
pub const MESSAGE: usize = BODY + 8;

/// The machine that handles a message.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Family {
    /// [`crate::coherence`].
    Coherence = 1,
    /// [`crate::lock`].
    Lock = 2,
    /// [`crate::member`].
    Member = 3,
    /// [`crate::allocate`].
    Allocate = 4,
    /// Only credits.
    Credit = 5,
}

impl Family {
    /// Decodes the byte of the wire form.
    #[inline]
    pub const fn from_bits(bits: u8) -> Option<Self> {
        match bits {
            1 => Some(Self::Coherence),
            2 => Some(Self::Lock),
            3 => Some(Self::Member),
            4 => Some(Self::Allocate),
            5 => Some(Self::Credit),
            _ => None,
        }
    }
}

/// The three classes that never wait for one another, so that full queues cannot deadlock: a request may cause
/// forwards and replies, a forward only replies, a reply nothing.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum Class {
    /// From a node to a home.
    Request = 0,
    /// From a home to a holder.
    Forward = 1,
    /// Answers.
    Reply = 2,
}

impl Class {
    /// Every class.
    pub const ALL: [Self; 3] = [Self::Request, Self::Forward, Self::Reply];

    /// Decodes the byte of the wire form.
    #[inline]
    pub const fn from_bits(bits: u8) -> Option<Self> {
        match bits {
            0 => Some(Self::Request),
            1 => Some(Self::Forward),
            2 => Some(Self::Reply),
            _ => None,
        }
    }
}

/// A message that no correct peer sends; names the broken rule. Close the link.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Violation(pub &'static str);

/// Bytes of an encoded host address.
pub const HOST: usize = 18;

/// Encodes a host's address: the IP address, IPv4 mapped, then the port; zeroes for none.
pub fn encode_host(host: Option<SocketAddr>) -> [u8; HOST] {
    let mut bytes = [0; HOST];
    if let Some(host) = host {
        let address = match host.ip() {
            IpAddr::V4(address) => address.to_ipv6_mapped(),
            IpAddr::V6(address) => address,
        };
        bytes[..16].copy_from_slice(&address.octets());
        bytes[16..].copy_from_slice(&host.port().to_le_bytes());
    }
    bytes
}

/// Decodes a host's address.
///
/// # Errors
/// [`Violation`] for an address without a port, or for bytes that [`encode_host`] never returns.
pub fn decode_host(bytes: &[u8; HOST]) -> Result<Option<SocketAddr>, Violation> {
    if *bytes == [0; HOST] {
        return Ok(None);
    }
    let [address @ .., low, high] = *bytes;
    let port = u16::from_le_bytes([low, high]);
    let ip = Ipv6Addr::from(address).to_canonical();
    if port == 0 || ip.is_unspecified() || ip.is_multicast() {
        return Err(Violation("an address that cannot be connected to"));
    }
    Ok(Some(SocketAddr::new(ip, port)))
}

/// Writes the fields of a body in order.
#[derive(Clone, Debug)]
pub struct Writer {
    body: [u8; BODY],
    at: usize,
}

impl Writer {
    /// An empty body.
    pub const fn new() -> Self {
        Self { body: [0; BODY], at: 0 }
    }

    fn put(mut self, bytes: &[u8]) -> Self {
        let end = self.at + bytes.len();
        assert!(end <= BODY, "the layout of a message fits its body");
        self.body[self.at..end].copy_from_slice(bytes);
        self.at = end;
        self
    }

    /// Adds a byte.
    pub fn u8(self, value: u8) -> Self {
        self.put(&[value])
    }

    /// Adds two bytes.
    pub fn u16(self, value: u16) -> Self {
        self.put(&value.to_le_bytes())
    }

    /// Adds four bytes.
    pub fn u32(self, value: u32) -> Self {
        self.put(&value.to_le_bytes())
    }

    /// Adds eight bytes.
    pub fn u64(self, value: u64) -> Self {
        self.put(&value.to_le_bytes())
    }

    /// Adds a host's address: 16 bytes, IPv4 mapped, and two of port; zeroes for none.
    pub fn host(self, host: Option<SocketAddr>) -> Self {
        self.put(&encode_host(host))
    }

    /// The body, padded with zeroes.
    pub const fn finish(self) -> [u8; BODY] {
        self.body
    }
}

impl Default for Writer {
    fn default() -> Self {
        Self::new()
    }
}

/// Reads the fields of a body in order.
#[derive(Clone, Debug)]
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Reads from the start of a body.
    pub const fn new(body: &'a [u8; BODY]) -> Self {
        Self { rest: body }
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], Violation> {
        let (head, rest) =
            self.rest.split_first_chunk::<N>().ok_or(Violation("message too short"))?;
        self.rest = rest;
        Ok(*head)
    }

    /// Takes a byte.
    pub fn u8(&mut self) -> Result<u8, Violation> {
        Ok(self.take::<1>()?[0])
    }

    /// Takes one byte that is 0 or 1; `why` is the violation by another value.
    ///
    /// # Errors
    /// The violation.
    pub fn flag(&mut self, why: &'static str) -> Result<bool, Violation> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Violation(why)),
        }
    }

    /// Takes two bytes.
    pub fn u16(&mut self) -> Result<u16, Violation> {
        Ok(u16::from_le_bytes(self.take()?))
    }

    /// Takes four bytes.
    pub fn u32(&mut self) -> Result<u32, Violation> {
        Ok(u32::from_le_bytes(self.take()?))
    }

    /// Takes eight bytes.
    pub fn u64(&mut self) -> Result<u64, Violation> {
        Ok(u64::from_le_bytes(self.take()?))
    }

    /// Takes a host's address.
    pub fn host(&mut self) -> Result<Option<SocketAddr>, Violation> {
        decode_host(&self.take()?)
    }

    /// Checks that only padding is left.
    pub fn finish(self) -> Result<(), Violation> {
        let (words, rest) = self.rest.as_chunks::<8>();
        let zero = words.iter().all(|word| u64::from_ne_bytes(*word) == 0);
        if zero && rest.iter().all(|byte| *byte == 0) {
            Ok(())
        } else {
            Err(Violation("padding is not zero"))
        }
    }
}

/// Two bytes at an offset. This and the following functions are inlined with constant offsets: then a field costs one
/// load or store, and bounds checks that cannot fail are removed.
#[inline(always)]
pub(crate) fn u16_at(body: &[u8; BODY], at: usize) -> u16 {
    u16::from_le_bytes(take(body, at))
}

/// Four bytes at an offset.
#[inline(always)]
pub(crate) fn u32_at(body: &[u8; BODY], at: usize) -> u32 {
    u32::from_le_bytes(take(body, at))
}

/// Eight bytes at an offset.
#[inline(always)]
pub(crate) fn u64_at(body: &[u8; BODY], at: usize) -> u64 {
    u64::from_le_bytes(take(body, at))
}

#[inline(always)]
fn take<const N: usize>(body: &[u8; BODY], at: usize) -> [u8; N] {
    let mut bytes = [0; N];
    bytes.copy_from_slice(&body[at..at + N]);
    bytes
}

/// Writes bytes at an offset.
#[inline(always)]
pub(crate) fn put<const N: usize>(body: &mut [u8; BODY], at: usize, bytes: [u8; N]) {
    body[at..at + N].copy_from_slice(&bytes);
}

/// Checks that only padding follows from `end` on.
#[inline(always)]
pub(crate) fn padding_from(body: &[u8; BODY], end: usize) -> Result<(), Violation> {
    let (words, _) = body.as_chunks::<8>();
    let word_at = |at: usize| words.get(at).map_or(0, |word| u64::from_le_bytes(*word));
    let rest = word_at(end / 8) >> (end % 8 * 8);
    if (end / 8 + 1..BODY / 8).fold(rest, |all, at| all | word_at(at)) == 0 {
        Ok(())
    } else {
        Err(Violation("padding is not zero"))
    }
}
