//! Why a channel or a memory server refuses a connection.

use crate::{Error, ErrorCode};

/// Why a listener refuses a connection, with a text.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Refusal {
    /// The two ends differ in kind, version or options.
    Mismatch(String),
    /// The limit of peers is reached.
    Full(String),
}

impl Refusal {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let (kind, text) = match self {
            Self::Mismatch(text) => (0, text),
            Self::Full(text) => (1, text),
        };
        [&[kind], text.as_bytes()].concat()
    }

    /// Decodes a refusal by a listener or its fabric; a fabric names the limit of links that was reached.
    pub(crate) fn decode(bytes: &[u8]) -> Self {
        let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
        match bytes {
            [0, rest @ ..] => Self::Mismatch(text(rest)),
            [1, rest @ ..] => Self::Full(text(rest)),
            limit if limit.ends_with(b"links_max") || limit.ends_with(b"links_per_host_max") => {
                Self::Full(format!("the fabric of the listener is at its limit {}", text(limit)))
            }
            other => Self::Mismatch(text(other)),
        }
    }
}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Mismatch(text) => Self::with(ErrorCode::ChannelMismatch, text),
            Refusal::Full(text) => Self::with(ErrorCode::ChannelFull, text),
        }
    }
}

impl From<&'static str> for Refusal {
    fn from(text: &'static str) -> Self {
        Self::Mismatch(text.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusal_round_trips_and_link_limits_are_recognized() {
        for refusal in [Refusal::Mismatch("other".to_owned()), Refusal::Full("its 1".to_owned())] {
            assert_eq!(Refusal::decode(&refusal.encode()), refusal);
        }
        for limit in ["links_max", "as many links here as one may: links_per_host_max"] {
            assert!(matches!(Refusal::decode(limit.as_bytes()), Refusal::Full(_)), "{limit}");
        }
        assert_eq!(Refusal::decode(b""), Refusal::Mismatch(String::new()));
    }
}
