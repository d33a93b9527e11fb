//! Failures of connections, and their texts: cause, fault, remedy.

use farside_base::CompletionStatus;
use farside_bootstrap::BootstrapError;
use farside_fabric::Loss;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;

/// Why a connection failed.
#[derive(Debug)]
pub(crate) enum ConnectionFailure {
    /// The peer ended it.
    Ended,
    /// The socket reported an error.
    Io(io::Error),
    /// The handshake or the protection failed.
    Bootstrap(BootstrapError),
    /// The peer violated the protocol.
    Violation(&'static str),
    /// The peer was silent for a lease.
    Silence,
    /// Requests that the peer has received made no progress.
    NoProgress,
}

impl From<io::Error> for ConnectionFailure {
    fn from(reason: io::Error) -> Self {
        Self::Io(reason)
    }
}

impl From<BootstrapError> for ConnectionFailure {
    fn from(reason: BootstrapError) -> Self {
        match reason {
            BootstrapError::Ended => Self::Ended,
            BootstrapError::Io(reason) => Self::Io(reason),
            reason => Self::Bootstrap(reason),
        }
    }
}

impl ConnectionFailure {
    /// Returns what is known of the peer after a failure, and the text.
    pub(crate) fn describe(&self, peer: Option<SocketAddr>) -> (Loss, String) {
        let peer = peer.map_or_else(|| "the peer".to_owned(), |peer| peer.to_string());
        let unreachable = |text: &str| (Loss::Unreachable, text.to_owned());
        let (loss, text) = match self {
            Self::Ended => (
                Loss::Ended,
                "ended the connection: its link or port was closed, or its process is gone; \
                 reconnect"
                    .to_owned(),
            ),
            Self::Io(reason)
                if matches!(
                    reason.kind(),
                    ErrorKind::ConnectionReset
                        | ErrorKind::BrokenPipe
                        | ErrorKind::ConnectionRefused
                ) =>
            {
                let text = format!(
                    "reset the connection ({reason}): its process is gone, or it dropped this \
                     link; reconnect"
                );
                (Loss::Ended, text)
            }
            Self::Io(reason) => unreachable(&format!(
                "is not reached ({reason}); check the network between, then reconnect"
            )),
            Self::Bootstrap(reason) => unreachable(&reason.to_string()),
            Self::Violation(what) => unreachable(&format!(
                "broke the protocol ({what}): a fault of the peer or of the network between; run \
                 the same release on both"
            )),
            Self::Silence => unreachable(
                "was silent for a lease: its host or the network path is down or overloaded, or \
                 its process is stopped; reconnect once it is back",
            ),
            Self::NoProgress => unreachable(
                "is alive, but has not answered a request in time; check its load, or raise \
                 request_timeout",
            ),
        };
        (loss, format!("{peer} {text}"))
    }
}

/// Returns the text for a link that failed because the peer refused a request.
pub(crate) fn describe_refusal(status: CompletionStatus) -> String {
    let text = match status {
        CompletionStatus::RemoteAlignment => "the word is not 8-byte aligned at the target",
        CompletionStatus::LengthExceeded => "the message is longer than its receive",
        _ => "the target's region was deregistered, or key, bounds or permissions do not match",
    };
    format!("a request of this side was refused: {text}; fix the request and reconnect")
}
