//! Texts for a broken link: cause, fault, remedy.

use crate::connection::ConnectionFailure;
use farside_base::CompletionStatus;
use farside_fabric::Loss;
use std::io::ErrorKind;
use std::net::SocketAddr;

/// Returns what is known of the peer after a failure, and the text.
pub(crate) fn of_failure(failure: &ConnectionFailure, peer: Option<SocketAddr>) -> (Loss, String) {
    let peer = peer.map_or_else(|| "the peer".to_owned(), |peer| peer.to_string());
    let (loss, text) = match failure {
        ConnectionFailure::Ended => (Loss::Ended, "ended the connection: its link or port was closed, or its process is gone; reconnect".to_owned()),
        ConnectionFailure::Io(reason)
            if matches!(
                reason.kind(),
                ErrorKind::ConnectionReset | ErrorKind::BrokenPipe | ErrorKind::ConnectionRefused
            ) =>
        {
            (Loss::Ended, format!("reset the connection ({reason}): its process is gone, or it dropped this link; reconnect"))
        }
        ConnectionFailure::Io(reason) => {
            (Loss::Unreachable, format!("is not reached ({reason}); check the network between, then reconnect"))
        }
        ConnectionFailure::Bootstrap(reason) => (Loss::Unreachable, reason.to_string()),
        ConnectionFailure::Violation(what) => {
            (Loss::Unreachable, format!("broke the protocol ({what}): a fault of the peer or of the network between; run the same release on both"))
        }
        ConnectionFailure::Silence => {
            (Loss::Unreachable, "was silent for a lease: its host or the network path is down or overloaded, or its process is stopped; reconnect once it is back".to_owned())
        }
        ConnectionFailure::NoProgress => {
            (Loss::Unreachable, "is alive, but has not answered a request in time; check its load, or raise request_timeout".to_owned())
        }
    };
    (loss, format!("{peer} {text}"))
}

/// Returns the text for a link that failed because the peer refused a request.
pub(crate) fn of_refusal(status: CompletionStatus) -> String {
    let text = match status {
        CompletionStatus::RemoteAlignment => "the word is not 8-byte aligned at the target",
        CompletionStatus::LengthExceeded => "the message is longer than its receive",
        _ => "the target's region was deregistered, or key, bounds or permissions do not match",
    };
    format!("a request of this side was refused: {text}; fix the request and reconnect")
}
