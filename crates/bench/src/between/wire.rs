//! Protocol between the two ends: hello and reply of a link, and messages of the control link. All of them are
//! JSON of bounded length; input that does not parse is refused.

use crate::settings::Test;
use farside_base::RegionToken;
use farside_command::failure::Failure;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Name of the protocol.
const PROTOCOL: &str = "farside-bench-fabric";
/// Version of the protocol; each change of the types below increments it.
const VERSION: u32 = 1;
/// Most bytes of a control message, a hello or a reply.
pub(super) const MESSAGE_BYTES_MAX: u32 = 512;

/// Most bytes of a text that is printed.
const TEXT_BYTES_MAX: usize = 300;

/// What the serving end does during a test.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Part {
    /// Sleeps.
    Sleep,
    /// Polls the last byte of its memory and WRITEs the same value back.
    AnswerWrites,
    /// Sends every message back.
    AnswerMessages,
    /// Receives messages.
    TakeMessages,
}

/// Opens a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum Hello {
    /// The control link of a new session. Requests of its tests have at most `bytes_max` bytes.
    Control { bytes_max: u32 },
    /// The measured link of a session, with the token of the client's region.
    Data { session: u64, token: [u8; RegionToken::ENCODED] },
}

/// Answers a hello.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum ServerReply {
    Control { session: u64 },
    Data { token: [u8; RegionToken::ENCODED] },
}

/// A message of the control link.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum ControlMessage {
    /// A test begins; the other end answers `Ready` or `Refused`.
    Begin(Begin),
    /// The test is over. The other end answers `Done` when it has received `messages` messages on the
    /// measured link.
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
    /// Most bytes of an inline request.
    pub(super) inline_bytes: u32,
}

/// A hello or reply with the protocol's name and version.
#[derive(Serialize, Deserialize)]
struct Versioned<T> {
    protocol: String,
    version: u32,
    body: T,
}

/// The members that are the same in all versions.
#[derive(Deserialize)]
struct VersionHeader {
    protocol: String,
    version: u32,
}

/// Encodes a hello or reply.
pub(super) fn encode_versioned(body: &impl Serialize) -> Vec<u8> {
    let versioned = Versioned { protocol: PROTOCOL.to_owned(), version: VERSION, body };
    serde_json::to_vec(&versioned).unwrap_or_default()
}

/// Decodes a hello or reply.
pub(super) fn decode_versioned<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Failure> {
    let other_program = || Failure::system("the other end is no `farside bench fabric`");
    if too_long(bytes) {
        return Err(other_program());
    }
    let header: VersionHeader = serde_json::from_slice(bytes).map_err(|_| other_program())?;
    if header.protocol != PROTOCOL {
        return Err(other_program());
    }
    if header.version != VERSION {
        return Err(Failure::system(format!(
            "the other end is `farside bench fabric` of protocol version {}, this one of {VERSION}: \
             use the same farside at both ends",
            header.version
        )));
    }
    let versioned: Versioned<T> = serde_json::from_slice(bytes).map_err(|_| other_program())?;
    Ok(versioned.body)
}

impl ControlMessage {
    /// Encodes the message; truncates texts so that it is never too long.
    pub(super) fn encode(&self) -> Vec<u8> {
        let cut = match self {
            Self::Refused { why } => Self::Refused { why: printable(why.as_bytes()) },
            other => other.clone(),
        };
        serde_json::to_vec(&cut).unwrap_or_default()
    }

    /// Decodes a message.
    pub(super) fn decode(bytes: &[u8]) -> Result<Self, Failure> {
        let junk = || Failure::system("the other end sent an invalid control message");
        if too_long(bytes) {
            return Err(junk());
        }
        serde_json::from_slice(bytes).map_err(|_| junk())
    }
}

fn too_long(bytes: &[u8]) -> bool {
    !u32::try_from(bytes.len()).is_ok_and(|length| length <= MESSAGE_BYTES_MAX)
}

/// Returns a text of the other end, truncated and safe to print.
pub(super) fn printable(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let plain = |c: char| if c.is_control() || c == '"' || c == '\\' { '?' } else { c };
    let mut out = String::new();
    for letter in text.chars().map(plain) {
        if out.len() + letter.len_utf8() > TEXT_BYTES_MAX {
            break;
        }
        out.push(letter);
    }
    out
}

/// Decodes the other end's token.
pub(super) fn token(bytes: &[u8; RegionToken::ENCODED]) -> Result<RegionToken, Failure> {
    RegionToken::decode(bytes).ok_or_else(|| Failure::system("the other end sent no region"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages() -> Vec<ControlMessage> {
        let mut all: Vec<_> = Test::ALL
            .into_iter()
            .map(|test| {
                let part = if test == Test::Send { Part::AnswerMessages } else { Part::Sleep };
                ControlMessage::Begin(Begin { test, part, bytes: u32::MAX, inline_bytes: u32::MAX })
            })
            .collect();
        let why = "\u{1}\u{1f600}\"\\".repeat(1000);
        all.extend([
            ControlMessage::End { messages: u64::MAX },
            ControlMessage::Bye,
            ControlMessage::Ready,
            ControlMessage::Done,
        ]);
        all.push(ControlMessage::Refused { why });
        all
    }

    #[test]
    fn messages_are_bounded_and_decode_to_themselves() {
        for message in messages() {
            let wire = message.encode();
            assert!(wire.len() <= MESSAGE_BYTES_MAX as usize, "{} bytes", wire.len());
            let back = ControlMessage::decode(&wire).unwrap();
            match message {
                ControlMessage::Refused { .. } => {
                    assert!(matches!(back, ControlMessage::Refused { .. }))
                }
                other => assert_eq!(back, other),
            }
        }
    }

    #[test]
    fn hellos_are_bounded_and_decode_to_themselves() {
        let data = Hello::Data { session: u64::MAX, token: [255; RegionToken::ENCODED] };
        for hello in [Hello::Control { bytes_max: u32::MAX }, data] {
            let wire = encode_versioned(&hello);
            assert!(wire.len() <= MESSAGE_BYTES_MAX as usize);
            assert_eq!(decode_versioned::<Hello>(&wire), Ok(hello));
            assert!(decode_versioned::<ServerReply>(&wire).is_err() || hello != data);
        }
    }

    #[test]
    fn junk_is_refused_by_all_decoders() {
        let long = vec![b' '; MESSAGE_BYTES_MAX as usize + 1];
        let deep = b"[".repeat(500);
        let junk: [&[u8]; 8] =
            [b"", b"\xff\xfe", b"null", b"{}", b"\"bye\" \"bye\"", &long, &deep, b"{\"begin\":{}}"];
        for bytes in junk {
            assert!(ControlMessage::decode(bytes).is_err(), "{bytes:?}");
            assert!(decode_versioned::<Hello>(bytes).is_err(), "{bytes:?}");
            assert!(decode_versioned::<ServerReply>(bytes).is_err(), "{bytes:?}");
        }
        assert!(token(&[255; RegionToken::ENCODED]).is_err());
    }

    #[test]
    fn truncated_and_corrupted_bytes_do_not_panic() {
        let hello = encode_versioned(&Hello::Data { session: 7, token: [9; RegionToken::ENCODED] });
        let begin = messages()[0].encode();
        for wire in [hello, begin] {
            for at in 0..wire.len() {
                assert!(ControlMessage::decode(&wire[..at]).is_err());
                assert!(decode_versioned::<Hello>(&wire[..at]).is_err());
                for bit in 0..8 {
                    let mut changed = wire.clone();
                    changed[at] ^= 1 << bit;
                    // Any result is right, but no panic.
                    let _ = ControlMessage::decode(&changed);
                    let _ = decode_versioned::<Hello>(&changed);
                }
            }
        }
    }

    #[test]
    fn other_protocols_and_versions_are_distinguished() {
        let said = |bytes: &[u8]| decode_versioned::<Hello>(bytes).unwrap_err().to_string();
        let other = format!("{{\"protocol\":\"{PROTOCOL}\",\"version\":9,\"new\":[],\"body\":1}}");
        assert!(said(other.as_bytes()).contains("version 9"));
        assert!(said(b"{\"protocol\":\"x\",\"version\":1}").contains("no `farside bench fabric`"));
    }

    #[test]
    fn texts_of_the_other_end_are_truncated_and_printable() {
        assert_eq!(printable(b"a\x1b[31mb\xff\n"), "a?[31mb\u{fffd}?");
        assert_eq!(printable(&[b'x'; 1000]).len(), TEXT_BYTES_MAX);
    }
}
