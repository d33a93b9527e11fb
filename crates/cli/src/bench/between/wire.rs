//! What the two ends say to each other: the hello and reply of a link, and messages of the control
//! link. All of it is JSON of bounded length; what does not parse is refused, whoever sent it.

use crate::failure::Failure;
use farside_base::RegionToken;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// What both ends call the protocol.
const PROTOCOL: &str = "farside-bench-fabric";
/// Changes whenever the meaning of anything below does.
const VERSION: u32 = 1;
/// Most bytes of a control message, a hello or a reply.
pub(super) const MESSAGE_BYTES_MAX: u32 = 512;
/// Most bytes of what is measured: one request.
pub(crate) const TRANSFER_BYTES_MAX: u32 = 64 << 20;
/// Most bytes of a sentence for people.
const WORDS_BYTES_MAX: usize = 300;

/// A test by its one operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Test {
    Write,
    Read,
    Atomic,
    Send,
}

impl Test {
    pub(crate) const ALL: [Self; 4] = [Self::Write, Self::Read, Self::Atomic, Self::Send];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Write => "write",
            Self::Read => "read",
            Self::Atomic => "atomic",
            Self::Send => "send",
        }
    }
}

/// What the serving end does during a test.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Part {
    /// Sleeps.
    Sleep,
    /// Looks at the last byte of its memory and writes the same back.
    AnswerWrites,
    /// Sends every message back.
    AnswerMessages,
    /// Takes messages.
    TakeMessages,
}

/// Opens a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum Hello {
    /// The control link of a new session, whose tests move at most so many bytes at once.
    Control { bytes_max: u32 },
    /// The link that is measured, of the session of that number, with the caller's memory.
    Data { session: u64, token: [u8; RegionToken::ENCODED] },
}

/// Answers a hello.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum Reply {
    Control { session: u64 },
    Data { token: [u8; RegionToken::ENCODED] },
}

/// A message of the control link.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum Message {
    /// A test begins; the other end answers `Ready` or `Refused`.
    Begin(Begin),
    /// It is over, and so many messages were sent on the measured link, all of which the other end
    /// awaits before it answers `Done`.
    End {
        messages: u64,
    },
    /// The session is over.
    Bye,
    Ready,
    Done,
    Refused {
        why: String,
    },
}

/// A test that begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Begin {
    pub(super) test: Test,
    pub(super) part: Part,
    /// Bytes of one request.
    pub(super) bytes: u32,
    /// Requests of up to so many bytes carry them inside.
    pub(super) inline_bytes: u32,
}

/// A hello or reply with what tells strangers and other versions apart.
#[derive(Serialize, Deserialize)]
struct Marked<T> {
    protocol: String,
    version: u32,
    body: T,
}

/// The part of it that stays the same in all versions.
#[derive(Deserialize)]
struct Mark {
    protocol: String,
    version: u32,
}

/// The wire form of a hello or reply.
pub(super) fn encode_marked(body: &impl Serialize) -> Vec<u8> {
    let marked = Marked { protocol: PROTOCOL.to_owned(), version: VERSION, body };
    serde_json::to_vec(&marked).unwrap_or_default()
}

/// Reads a hello or reply.
pub(super) fn decode_marked<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Failure> {
    let stranger = || Failure::system("the other end is no `farside bench fabric`");
    if too_long(bytes) {
        return Err(stranger());
    }
    let mark: Mark = serde_json::from_slice(bytes).map_err(|_| stranger())?;
    if mark.protocol != PROTOCOL {
        return Err(stranger());
    }
    if mark.version != VERSION {
        return Err(Failure::system(format!(
            "the other end is `farside bench fabric` of protocol version {}, this one of {VERSION}: \
             use the same farside on both sides",
            mark.version
        )));
    }
    let marked: Marked<T> = serde_json::from_slice(bytes).map_err(|_| stranger())?;
    Ok(marked.body)
}

impl Message {
    /// The wire form; sentences are cut so that it is never too long.
    pub(super) fn encode(&self) -> Vec<u8> {
        let cut = match self {
            Self::Refused { why } => Self::Refused { why: words(why.as_bytes()) },
            other => other.clone(),
        };
        serde_json::to_vec(&cut).unwrap_or_default()
    }

    /// Reads the wire form.
    pub(super) fn decode(bytes: &[u8]) -> Result<Self, Failure> {
        let junk = || Failure::system("the other end sent a control message that is none");
        if too_long(bytes) {
            return Err(junk());
        }
        serde_json::from_slice(bytes).map_err(|_| junk())
    }
}

fn too_long(bytes: &[u8]) -> bool {
    !u32::try_from(bytes.len()).is_ok_and(|length| length <= MESSAGE_BYTES_MAX)
}

/// A sentence of the other end, cut and safe to print.
pub(super) fn words(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let plain = |c: char| if c.is_control() || c == '"' || c == '\\' { '?' } else { c };
    let mut out = String::new();
    for letter in text.chars().map(plain) {
        if out.len() + letter.len_utf8() > WORDS_BYTES_MAX {
            break;
        }
        out.push(letter);
    }
    out
}

/// Reads the other end's token.
pub(super) fn token(bytes: &[u8; RegionToken::ENCODED]) -> Result<RegionToken, Failure> {
    RegionToken::decode(bytes).ok_or_else(|| Failure::system("the other end sent no region"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages() -> Vec<Message> {
        let mut all: Vec<_> = Test::ALL
            .into_iter()
            .map(|test| {
                let part = if test == Test::Send { Part::AnswerMessages } else { Part::Sleep };
                Message::Begin(Begin { test, part, bytes: u32::MAX, inline_bytes: u32::MAX })
            })
            .collect();
        let why = "\u{1}\u{1f600}\"\\".repeat(1000);
        all.extend([
            Message::End { messages: u64::MAX },
            Message::Bye,
            Message::Ready,
            Message::Done,
        ]);
        all.push(Message::Refused { why });
        all
    }

    #[test]
    fn messages_survive_the_wire_within_their_bound() {
        for message in messages() {
            let wire = message.encode();
            assert!(wire.len() <= MESSAGE_BYTES_MAX as usize, "{} bytes", wire.len());
            let back = Message::decode(&wire).unwrap();
            match message {
                Message::Refused { .. } => assert!(matches!(back, Message::Refused { .. })),
                other => assert_eq!(back, other),
            }
        }
    }

    #[test]
    fn hellos_survive_the_wire_within_their_bound() {
        let data = Hello::Data { session: u64::MAX, token: [255; RegionToken::ENCODED] };
        for hello in [Hello::Control { bytes_max: u32::MAX }, data] {
            let wire = encode_marked(&hello);
            assert!(wire.len() <= MESSAGE_BYTES_MAX as usize);
            assert_eq!(decode_marked::<Hello>(&wire), Ok(hello));
            assert!(decode_marked::<Reply>(&wire).is_err() || hello != data);
        }
    }

    #[test]
    fn junk_is_refused_wherever_it_comes() {
        let long = vec![b' '; MESSAGE_BYTES_MAX as usize + 1];
        let deep = b"[".repeat(500);
        let junk: [&[u8]; 8] =
            [b"", b"\xff\xfe", b"null", b"{}", b"\"bye\" \"bye\"", &long, &deep, b"{\"begin\":{}}"];
        for bytes in junk {
            assert!(Message::decode(bytes).is_err(), "{bytes:?}");
            assert!(decode_marked::<Hello>(bytes).is_err(), "{bytes:?}");
            assert!(decode_marked::<Reply>(bytes).is_err(), "{bytes:?}");
        }
        assert!(token(&[255; RegionToken::ENCODED]).is_err());
    }

    #[test]
    fn every_byte_that_is_cut_or_changed_is_survived() {
        let hello = encode_marked(&Hello::Data { session: 7, token: [9; RegionToken::ENCODED] });
        let begin = messages()[0].encode();
        for wire in [hello, begin] {
            for at in 0..wire.len() {
                assert!(Message::decode(&wire[..at]).is_err());
                assert!(decode_marked::<Hello>(&wire[..at]).is_err());
                for bit in 0..8 {
                    let mut changed = wire.clone();
                    changed[at] ^= 1 << bit;
                    // Whatever it says now: it is an answer, and no panic.
                    let _ = Message::decode(&changed);
                    let _ = decode_marked::<Hello>(&changed);
                }
            }
        }
    }

    #[test]
    fn strangers_and_other_versions_are_told_apart() {
        let said = |bytes: &[u8]| decode_marked::<Hello>(bytes).unwrap_err().to_string();
        let other = format!("{{\"protocol\":\"{PROTOCOL}\",\"version\":9,\"new\":[],\"body\":1}}");
        assert!(said(other.as_bytes()).contains("version 9"));
        assert!(said(b"{\"protocol\":\"x\",\"version\":1}").contains("no `farside bench fabric`"));
    }

    #[test]
    fn sentences_of_others_are_cut_and_plain() {
        assert_eq!(words(b"a\x1b[31mb\xff\n"), "a?[31mb\u{fffd}?");
        assert_eq!(words(&[b'x'; 1000]).len(), WORDS_BYTES_MAX);
    }
}
