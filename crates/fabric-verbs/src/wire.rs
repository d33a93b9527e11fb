//! The control stream of a link: frames of a length, a kind and fields in little-endian order. Lengths
//! are checked before anything is stored.
//!
//! | kind | from | content |
//! | --- | --- | --- |
//! | `Connect` | caller | version, incarnation, its queue pair, the name it wants, hello |
//! | `Accepted` | called | the same of the called, both incarnations, reply |
//! | `Refused` | called | the program's reason |
//! | `NoListener` | called | no port has that name |
//! | `Full` | called | the port has no room for another link |
//! | `Ready` | caller | its queue pair takes packets; both incarnations |
//! | `Alive` | both | keepalive |
//! | `Import`, `Imported` | both | a region's token; its key and address, or why there is none |
//! | `Close` | both | the link is over |
//! | `Parted` | both | the adapters' connection has ended, though neither end closed it, and why |
//!
//! Any other frame violates the protocol, and the stream is closed. Remote keys are sent by these
//! frames only, and so is the secret by which rdma_cm's request is matched with the caller's
//! conversation (`Meeting`): once, and valid as long as the conversation.

use farside_base::{Access, RegionToken};
use farside_fabric::HELLO_BYTES_MAX;
use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::ops::RangeInclusive;

/// The version of the protocol. Others are refused.
pub(crate) const VERSION: u16 = 2;
/// Most bytes of a name.
pub(crate) const NAME_BYTES_MAX: usize = 200;
/// Most bytes of a frame after its length.
pub(crate) const FRAME_BYTES_MAX: usize = HELLO_BYTES_MAX + 512;
/// Bytes of a frame's length.
pub(crate) const LENGTH_BYTES: usize = 4;
/// The range of leases.
pub(crate) const LEASE_MS: RangeInclusive<u32> = 50..=600_000;
/// Bytes that are read of a `Word`. Not fewer: an answer of less than soft-iWARP's header has room for
/// may be copied by a thread of the kernel that has no memory of the program's (Linux 7.3).
pub(crate) const WORD_BYTES: u32 = 64;
/// Bytes of a secret.
pub(crate) const SECRET_BYTES: usize = 32;

/// One end of a reliable connection, as its peer must know it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct QueuePairEnd {
    pub(crate) queue_pair: u32,
    /// The number of its first packet, 24 bits, random.
    pub(crate) packet: u32,
    pub(crate) gid: [u8; 16],
    pub(crate) lid: u16,
    /// `ibv_mtu`: the most it takes.
    pub(crate) mtu: u8,
    /// `ibv_port_attr::link_layer`.
    pub(crate) link_layer: u8,
    pub(crate) reads_in: u8,
    pub(crate) reads_out: u8,
    /// How long it hears nothing before it treats its peer as lost.
    pub(crate) lease_ms: u32,
    pub(crate) ways: Ways,
    /// A word that the peer may READ to prove that its earlier requests are done; zeroes if completions
    /// prove that.
    pub(crate) word: Word,
}

/// How an end connects its queue pair. Both ends of a link do it alike.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Ways {
    /// Connected by rdma_cm, at the address of a `Meeting`; else by the numbers of a `QueuePairEnd`.
    pub(crate) manager: bool,
    /// RDMA over TCP, which is incompatible with other transports.
    pub(crate) iwarp: bool,
}

/// `WORD_BYTES` that a peer may read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Word {
    pub(crate) address: u64,
    pub(crate) key: u32,
}

/// The address and secret for rdma_cm's request of a caller.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Meeting {
    pub(crate) place: SocketAddr,
    pub(crate) secret: [u8; SECRET_BYTES],
}

impl fmt::Debug for Meeting {
    /// Without the secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Meeting({})", self.place)
    }
}

/// Why a connection ended, as far as the reporting side knows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Parting {
    /// Its adapter does not report why.
    Unknown,
    /// A request of the other side was refused.
    Refused,
    /// One of its own requests failed.
    Own,
}

/// The first frame of the dialling side.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Connect<'a> {
    pub(crate) incarnation: u64,
    pub(crate) end: QueuePairEnd,
    pub(crate) name: &'a str,
    pub(crate) hello: &'a [u8],
}

/// The answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Accepted<'a> {
    pub(crate) incarnation: u64,
    /// The caller's, so that it knows that it is meant.
    pub(crate) callers: u64,
    pub(crate) end: QueuePairEnd,
    /// Where rdma_cm connects, if it does.
    pub(crate) meeting: Option<Meeting>,
    pub(crate) reply: &'a [u8],
}

/// A region as a peer may use it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Imported {
    pub(crate) key: u32,
    pub(crate) address: u64,
    pub(crate) bytes: u64,
    pub(crate) access: Access,
}

/// Why a region cannot be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NotImported {
    /// There is no such region.
    Unknown,
    /// Its owner has no memory window left for this link.
    NoWindow,
}

/// One frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Frame<'a> {
    Connect(Connect<'a>),
    Accepted(Accepted<'a>),
    Refused(&'a [u8]),
    NoListener,
    Full,
    Ready { incarnation: u64, callers: u64 },
    Alive,
    Import { request: u32, token: RegionToken },
    Imported { request: u32, region: Result<Imported, NotImported> },
    Close,
    Parted(Parting),
}

/// Why received bytes are not a frame of this protocol.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Malformed(pub(crate) &'static str);

impl Frame<'_> {
    const fn kind(&self) -> u8 {
        match self {
            Self::Connect(_) => 1,
            Self::Accepted(_) => 2,
            Self::Refused(_) => 3,
            Self::NoListener => 4,
            Self::Full => 5,
            Self::Ready { .. } => 6,
            Self::Alive => 7,
            Self::Import { .. } => 8,
            Self::Imported { .. } => 9,
            Self::Close => 10,
            Self::Parted(_) => 11,
        }
    }

    /// Appends the frame with its length.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend([0; LENGTH_BYTES]);
        out.push(self.kind());
        match self {
            Self::Connect(connect) => {
                out.extend(VERSION.to_le_bytes());
                out.extend(connect.incarnation.to_le_bytes());
                connect.end.encode(out);
                put(out, connect.name.as_bytes());
                put(out, connect.hello);
            }
            Self::Accepted(accepted) => {
                out.extend(VERSION.to_le_bytes());
                out.extend(accepted.incarnation.to_le_bytes());
                out.extend(accepted.callers.to_le_bytes());
                accepted.end.encode(out);
                out.push(u8::from(accepted.meeting.is_some()));
                if let Some(meeting) = &accepted.meeting {
                    meeting.encode(out);
                }
                put(out, accepted.reply);
            }
            Self::Refused(reason) => put(out, reason),
            Self::Ready { incarnation, callers } => {
                out.extend(incarnation.to_le_bytes());
                out.extend(callers.to_le_bytes());
            }
            Self::Import { request, token } => {
                out.extend(request.to_le_bytes());
                out.extend(token.encode());
            }
            Self::Imported { request, region } => {
                out.extend(request.to_le_bytes());
                out.push(match region {
                    Err(NotImported::Unknown) => 0,
                    Ok(_) => 1,
                    Err(NotImported::NoWindow) => 2,
                });
                if let Ok(region) = region {
                    out.extend(region.key.to_le_bytes());
                    out.extend(region.address.to_le_bytes());
                    out.extend(region.bytes.to_le_bytes());
                    out.push(region.access.to_bits());
                }
            }
            Self::Parted(why) => out.push(match why {
                Parting::Unknown => 0,
                Parting::Refused => 1,
                Parting::Own => 2,
            }),
            Self::NoListener | Self::Full | Self::Alive | Self::Close => {}
        }
        let bytes = u32::try_from(out.len() - start - LENGTH_BYTES).unwrap_or(u32::MAX);
        out[start..start + LENGTH_BYTES].copy_from_slice(&bytes.to_le_bytes());
    }
}

impl QueuePairEnd {
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend(self.queue_pair.to_le_bytes());
        out.extend(self.packet.to_le_bytes());
        out.extend(self.gid);
        out.extend(self.lid.to_le_bytes());
        out.extend([self.mtu, self.link_layer, self.reads_in, self.reads_out]);
        out.extend(self.lease_ms.to_le_bytes());
        out.push(u8::from(self.ways.manager) | u8::from(self.ways.iwarp) << 1);
        out.extend(self.word.address.to_le_bytes());
        out.extend(self.word.key.to_le_bytes());
    }

    fn decode(from: &mut FrameReader<'_>) -> Result<Self, Malformed> {
        let end = Self {
            queue_pair: u32::from_le_bytes(from.array()?),
            packet: u32::from_le_bytes(from.array()?),
            gid: from.array()?,
            lid: u16::from_le_bytes(from.array()?),
            mtu: from.byte()?,
            link_layer: from.byte()?,
            reads_in: from.byte()?,
            reads_out: from.byte()?,
            lease_ms: u32::from_le_bytes(from.array()?),
            ways: match from.byte()? {
                ways @ 0..4 => Ways { manager: ways & 1 != 0, iwarp: ways & 2 != 0 },
                _ => return Err(Malformed("an unknown way to connect")),
            },
            word: Word { address: from.word()?, key: u32::from_le_bytes(from.array()?) },
        };
        let fits = end.queue_pair < 1 << 24 && end.packet < 1 << 24 && (1..=5).contains(&end.mtu);
        if !fits {
            return Err(Malformed("a queue pair with impossible numbers"));
        }
        let lease = LEASE_MS.contains(&end.lease_ms);
        if lease { Ok(end) } else { Err(Malformed("an impossible lease")) }
    }
}

impl Meeting {
    fn encode(&self, out: &mut Vec<u8>) {
        let six = match self.place.ip() {
            IpAddr::V4(four) => four.to_ipv6_mapped(),
            IpAddr::V6(six) => six,
        };
        out.extend(six.octets());
        out.extend(self.place.port().to_le_bytes());
        out.extend(self.secret);
    }

    fn decode(from: &mut FrameReader<'_>) -> Result<Self, Malformed> {
        let six = Ipv6Addr::from(from.array::<16>()?);
        let number = six.to_ipv4_mapped().map_or(IpAddr::V6(six), IpAddr::V4);
        let port = u16::from_le_bytes(from.array()?);
        let secret = from.array()?;
        if port == 0 || number.is_unspecified() || number.is_multicast() {
            return Err(Malformed("an address that cannot be dialled"));
        }
        Ok(Self { place: SocketAddr::new(number, port), secret })
    }
}

/// Appends bytes with their number before them.
fn put(out: &mut Vec<u8>, bytes: &[u8]) {
    let count = u16::try_from(bytes.len()).unwrap_or(u16::MAX);
    out.extend(count.to_le_bytes());
    out.extend(&bytes[..usize::from(count)]);
}

/// The rest of a frame that is being read.
struct FrameReader<'a>(&'a [u8]);

impl<'a> FrameReader<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or(Malformed("a short frame"))?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let mut out = [0; N];
        out.copy_from_slice(self.take(N)?);
        Ok(out)
    }

    fn byte(&mut self) -> Result<u8, Malformed> {
        Ok(self.array::<1>()?[0])
    }

    fn word(&mut self) -> Result<u64, Malformed> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    fn bytes(&mut self, most: usize) -> Result<&'a [u8], Malformed> {
        let count = usize::from(u16::from_le_bytes(self.array()?));
        if count > most {
            return Err(Malformed("more bytes than are allowed"));
        }
        self.take(count)
    }

    fn version(&mut self) -> Result<(), Malformed> {
        match u16::from_le_bytes(self.array()?) {
            VERSION => Ok(()),
            _ => Err(Malformed("another version of this protocol")),
        }
    }
}

/// The first frame of `bytes` and how many bytes it takes; `None` when it is not whole yet.
///
/// # Errors
/// When it can never become one.
pub(crate) fn decode(bytes: &[u8]) -> Result<Option<(Frame<'_>, usize)>, Malformed> {
    let Some((length, rest)) = bytes.split_first_chunk::<LENGTH_BYTES>() else {
        return Ok(None);
    };
    let length = usize::try_from(u32::from_le_bytes(*length)).unwrap_or(usize::MAX);
    if length == 0 || length > FRAME_BYTES_MAX {
        return Err(Malformed("a frame of an impossible length"));
    }
    let Some(body) = rest.get(..length) else {
        return Ok(None);
    };
    let mut from = FrameReader(body);
    let frame = decode_body(&mut from)?;
    if !from.0.is_empty() {
        return Err(Malformed("bytes after the end of a frame"));
    }
    Ok(Some((frame, LENGTH_BYTES + length)))
}

fn decode_body<'a>(from: &mut FrameReader<'a>) -> Result<Frame<'a>, Malformed> {
    Ok(match from.byte()? {
        1 => {
            from.version()?;
            let incarnation = from.word()?;
            let end = QueuePairEnd::decode(from)?;
            let name = std::str::from_utf8(from.bytes(NAME_BYTES_MAX)?);
            let name = name.map_err(|_| Malformed("a name that is no text"))?;
            Frame::Connect(Connect { incarnation, end, name, hello: from.bytes(HELLO_BYTES_MAX)? })
        }
        2 => {
            from.version()?;
            Frame::Accepted(Accepted {
                incarnation: from.word()?,
                callers: from.word()?,
                end: QueuePairEnd::decode(from)?,
                meeting: match from.byte()? {
                    0 => None,
                    1 => Some(Meeting::decode(from)?),
                    _ => return Err(Malformed("neither a meeting nor none")),
                },
                reply: from.bytes(HELLO_BYTES_MAX)?,
            })
        }
        3 => Frame::Refused(from.bytes(HELLO_BYTES_MAX)?),
        4 => Frame::NoListener,
        5 => Frame::Full,
        6 => Frame::Ready { incarnation: from.word()?, callers: from.word()? },
        7 => Frame::Alive,
        8 => {
            let request = u32::from_le_bytes(from.array()?);
            let token = RegionToken::decode(&from.array()?).ok_or(Malformed("no token"))?;
            Frame::Import { request, token }
        }
        9 => {
            let request = u32::from_le_bytes(from.array()?);
            let region = match from.byte()? {
                0 => Err(NotImported::Unknown),
                2 => Err(NotImported::NoWindow),
                1 => Ok(Imported {
                    key: u32::from_le_bytes(from.array()?),
                    address: from.word()?,
                    bytes: from.word()?,
                    access: Access::from_bits(from.byte()?).ok_or(Malformed("no access"))?,
                }),
                _ => return Err(Malformed("neither a region nor none")),
            };
            Frame::Imported { request, region }
        }
        10 => Frame::Close,
        11 => Frame::Parted(match from.byte()? {
            0 => Parting::Unknown,
            1 => Parting::Refused,
            2 => Parting::Own,
            _ => return Err(Malformed("an unknown reason to part")),
        }),
        _ => return Err(Malformed("an unknown kind of frame")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use farside_base::{RegionId, RemoteKey};

    const END: QueuePairEnd = QueuePairEnd {
        queue_pair: 0x12_3456,
        packet: 0xff_ffff,
        gid: [7; 16],
        lid: 9,
        mtu: 5,
        link_layer: 2,
        reads_in: 16,
        reads_out: 8,
        lease_ms: 1000,
        ways: Ways { manager: true, iwarp: true },
        word: Word { address: u64::MAX - 7, key: 3 },
    };

    fn meeting(place: &str) -> Meeting {
        Meeting { place: place.parse().unwrap(), secret: [0xa5; SECRET_BYTES] }
    }

    fn frames() -> Vec<Frame<'static>> {
        let token = RegionToken {
            region: RegionId(3),
            key: RemoteKey(u64::MAX - 1),
            bytes: 4096,
            access: Access::ALL,
        };
        let region = Imported { key: 5, address: 1 << 47, bytes: 4096, access: Access::READ };
        let connect = Connect { incarnation: 1, end: END, name: "ring", hello: b"hello" };
        let accepted =
            Accepted { incarnation: 2, callers: 1, end: END, meeting: None, reply: &[9; 300] };
        let (four, six) = (meeting("10.77.0.1:4791"), meeting("[2001:db8::7]:1"));
        let plain = QueuePairEnd { ways: Ways::default(), word: Word::default(), ..END };
        vec![
            Frame::Connect(connect),
            Frame::Connect(Connect { name: "", hello: &[1; HELLO_BYTES_MAX], ..connect }),
            Frame::Accepted(accepted),
            Frame::Accepted(Accepted { meeting: Some(four), ..accepted }),
            Frame::Accepted(Accepted { meeting: Some(six), end: plain, ..accepted }),
            Frame::Refused(b"no room"),
            Frame::NoListener,
            Frame::Full,
            Frame::Ready { incarnation: 2, callers: 1 },
            Frame::Alive,
            Frame::Import { request: 77, token },
            Frame::Imported { request: 77, region: Ok(region) },
            Frame::Imported { request: 78, region: Err(NotImported::Unknown) },
            Frame::Imported { request: 79, region: Err(NotImported::NoWindow) },
            Frame::Close,
            Frame::Parted(Parting::Unknown),
            Frame::Parted(Parting::Refused),
            Frame::Parted(Parting::Own),
        ]
    }

    #[test]
    fn frames_survive_the_wire_one_after_the_other() {
        let mut bytes = Vec::new();
        for frame in frames() {
            frame.encode(&mut bytes);
        }
        let mut left = &bytes[..];
        for frame in frames() {
            let (read, taken) = decode(left).unwrap().unwrap();
            assert_eq!(read, frame);
            left = &left[taken..];
        }
        assert_eq!(decode(left), Ok(None));
    }

    #[test]
    fn a_part_of_a_frame_is_none_yet() {
        for frame in frames() {
            let mut bytes = Vec::new();
            frame.encode(&mut bytes);
            for end in 0..bytes.len() {
                assert_eq!(decode(&bytes[..end]), Ok(None), "{frame:?} up to {end}");
            }
        }
    }

    #[test]
    fn lengths_are_held_before_anything_is_kept() {
        for length in [0, u32::MAX, u32::try_from(FRAME_BYTES_MAX).unwrap() + 1] {
            assert!(decode(&length.to_le_bytes()).is_err());
        }
    }

    #[test]
    fn hostile_bytes_are_refused_or_read_and_never_more() {
        let mut random = farside_base::Random::new(0x5eed_5eed);
        for round in 0..20_000 {
            let frames = frames();
            let mut bytes = Vec::new();
            frames[round % frames.len()].encode(&mut bytes);
            for _ in 0..1 + random.word() % 4 {
                let at = usize::try_from(random.word()).unwrap() % bytes.len();
                bytes[at] = random.byte();
            }
            if let Ok(Some((_, taken))) = decode(&bytes) {
                assert!(taken <= bytes.len());
            }
            let junk: Vec<u8> = (0..random.word() % 64).map(|_| random.byte()).collect();
            let _ = decode(&junk);
        }
    }

    #[test]
    fn impossible_meetings_ways_and_partings_are_refused() {
        let accepted = |meeting| {
            let end = END;
            let frame = Frame::Accepted(Accepted {
                incarnation: 2,
                callers: 1,
                end,
                meeting: Some(meeting),
                reply: b"",
            });
            let mut bytes = Vec::new();
            frame.encode(&mut bytes);
            bytes
        };
        let good = accepted(meeting("10.77.0.1:4791"));
        assert!(matches!(decode(&good), Ok(Some(_))));
        for place in ["10.77.0.1:0", "0.0.0.0:9", "[::]:9", "224.0.0.1:9", "[ff02::1]:9"] {
            assert!(decode(&accepted(meeting(place))).is_err(), "{place}");
        }
        // Neither present nor absent: the byte before the address.
        let at = good.len() - 2 - SECRET_BYTES - 2 - 16 - 1;
        assert_eq!(good[at], 1);
        let mut lie = good.clone();
        lie[at] = 2;
        assert!(decode(&lie).is_err());
        // Cut short: the rest is read as something else, and never past the end.
        lie[at] = 0;
        assert!(decode(&lie).is_err());
        // The ways are before the word, which is before the meeting.
        let mut lie = good;
        lie[at - 13] = 4;
        assert_eq!(decode(&lie), Err(Malformed("an unknown way to connect")));
        for bytes in [&[2, 0, 0, 0, 11, 3][..], &[1, 0, 0, 0, 11], &[3, 0, 0, 0, 11, 0, 0]] {
            assert!(decode(bytes).is_err(), "{bytes:?}");
        }
    }

    #[test]
    fn a_meeting_does_not_tell_its_secret() {
        let words = format!("{:?}", meeting("10.77.0.1:4791"));
        assert_eq!(words, "Meeting(10.77.0.1:4791)");
    }

    #[test]
    fn impossible_queue_pairs_are_refused() {
        for end in [
            QueuePairEnd { queue_pair: 1 << 24, ..END },
            QueuePairEnd { packet: 1 << 24, ..END },
            QueuePairEnd { mtu: 0, ..END },
            QueuePairEnd { mtu: 6, ..END },
            QueuePairEnd { lease_ms: 49, ..END },
            QueuePairEnd { lease_ms: 600_001, ..END },
        ] {
            let mut bytes = Vec::new();
            Frame::Connect(Connect { incarnation: 1, end, name: "a", hello: b"" })
                .encode(&mut bytes);
            assert!(decode(&bytes).is_err(), "{end:?}");
        }
    }
}
