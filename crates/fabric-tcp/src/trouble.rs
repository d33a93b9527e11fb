//! What broke a link, in words: cause, whose fault, what to do.

use crate::connection::Failure;
use farside_base::CompletionStatus;
use farside_fabric::Loss;
use std::io::ErrorKind;
use std::net::SocketAddr;

/// What is known of the peer after a failure, and the words.
pub(crate) fn of_failure(failure: &Failure, peer: Option<SocketAddr>) -> (Loss, String) {
    let peer = peer.map_or_else(|| "the peer".to_owned(), |peer| peer.to_string());
    let (loss, text) = match failure {
        Failure::Ended => (Loss::Ended, "ended the connection: its link or port was closed, or its process is gone; connect anew".to_owned()),
        Failure::Io(reason)
            if matches!(
                reason.kind(),
                ErrorKind::ConnectionReset | ErrorKind::BrokenPipe | ErrorKind::ConnectionRefused
            ) =>
        {
            (Loss::Ended, format!("reset the connection ({reason}): its process is gone, or it gave this side up; connect anew"))
        }
        Failure::Io(reason) => {
            (Loss::Unreachable, format!("is not reached ({reason}); see to the network between, then connect anew"))
        }
        Failure::Bootstrap(reason) => (Loss::Unreachable, reason.to_string()),
        Failure::Violation(what) => {
            (Loss::Unreachable, format!("broke the protocol ({what}): a fault of the peer, or of what lies between; bring both to one release"))
        }
        Failure::Silence => {
            (Loss::Unreachable, "was not heard for a lease: its host or the way to it is down or overloaded, or its process is stopped; connect anew once it is back".to_owned())
        }
        Failure::NoProgress => {
            (Loss::Unreachable, "is there, but has not answered a request in time; see to its load, or raise request_timeout".to_owned())
        }
    };
    (loss, format!("{peer} {text}"))
}

/// Why a link is of no use after the peer refused a request.
pub(crate) fn of_refusal(status: CompletionStatus) -> String {
    let text = match status {
        CompletionStatus::RemoteAlignment => "the word is not 8-byte aligned at the target",
        CompletionStatus::LengthExceeded => "the message is longer than the receive that it met",
        _ => "the target's region has ended, or its key, bounds or permissions do not allow it",
    };
    format!("a request of this side was refused: {text}; mend the request and connect anew")
}
