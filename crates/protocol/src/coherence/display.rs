//! One line of text for each message and effect, for transcripts and dumps.

use super::{CoherenceEffect, CoherenceMessage, Had, HeldLine, Level, PlacementTarget, Supply};
use core::fmt;

impl fmt::Display for CoherenceMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Read { line, frame, ticket } => {
                write!(f, "Read {line:?} {ticket:?} into frame {}", frame.0)
            }
            Self::Write { line, frame, ticket, held, covers } => {
                write!(f, "Write {line:?} {ticket:?} into frame {}", frame.0)?;
                if covers > 0 {
                    write!(f, ", covers {covers}")?;
                }
                held.map_or(Ok(()), |held| write!(f, ", holds {held:?}"))
            }
            Self::Evict { line, grant, dirty } => {
                let kind = if dirty { "dirty" } else { "clean" };
                write!(f, "Evict {line:?} {grant:?} {kind}")
            }
            Self::Recall { line, grant, down_to, forward } => {
                write!(f, "Recall {line:?} {grant:?} down to {down_to:?}")?;
                forward.map_or(Ok(()), |to| write!(f, ", bytes to {:?} {:?}", to.node, to.ticket))
            }
            Self::Grant { line, ticket, grant, level, supply, .. } => {
                write!(f, "Grant {line:?} {ticket:?} {grant:?} {level:?}, {supply}")
            }
            Self::Refuse { line, ticket, code, supplier } => {
                write!(f, "Refuse {line:?} {ticket:?} {code:?}")?;
                supplier.map_or(Ok(()), |node| write!(f, ", forwarded to {node:?}"))
            }
            Self::WriteBack { line, ticket, owned: None } => {
                write!(f, "WriteBack {line:?} {ticket:?}")
            }
            Self::WriteBack { line, ticket, owned: Some(grant) } => {
                write!(f, "WriteBack {line:?} {ticket:?} with the bytes of {grant:?}")
            }
            Self::Written { line, ticket } => write!(f, "Written {line:?} {ticket:?}"),
            Self::Data { line, ticket } => write!(f, "Data {line:?} {ticket:?}"),
            Self::Ack { line, grant, had, left } => {
                write!(f, "Ack {line:?} {grant:?} had {had}, left {left:?}")
            }
        }
    }
}

impl fmt::Display for Supply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Held => f.write_str("bytes are there"),
            Self::Home => f.write_str("bytes from home"),
            Self::Owner(node) => write!(f, "bytes from {node:?}"),
            Self::Nothing => f.write_str("no bytes"),
        }
    }
}

impl fmt::Display for Had {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Nothing => "nothing",
            Self::Clean => "a clean copy",
            Self::Bytes => "the bytes",
            Self::Forwarded => "the bytes and forwarded them",
        })
    }
}

impl fmt::Display for HeldLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.level {
            Level::Invalid => f.write_str("Invalid"),
            Level::Shared | Level::Dirty => write!(f, "{:?} {:?}", self.level, self.grant),
        }
    }
}

impl fmt::Display for CoherenceEffect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Send { to, message } => write!(f, "send to {to:?}: {message}"),
            Self::Place { to, target, message, .. } => match target {
                PlacementTarget::Frame(frame) => {
                    write!(f, "place in {to:?} frame {}: {message}", frame.0)
                }
                PlacementTarget::Home => write!(f, "place in {to:?} memory: {message}"),
            },
            Self::SetLevel { line, held, .. } => write!(f, "set {line:?} {held}"),
            Self::Release { line } => write!(f, "release {line:?}"),
            Self::Fill { operation, line } => write!(f, "fill {operation:?} {line:?}"),
            Self::Ready { operation, line } => write!(f, "ready {operation:?} {line:?}"),
            Self::Fail { operation, line, code } => {
                write!(f, "fail {operation:?} {line:?} {code:?}")
            }
            Self::Log { line } => write!(f, "log {line:?}"),
            Self::Restore { line } => write!(f, "restore {line:?}"),
            Self::DropHome { node } => write!(f, "drop home {node:?}"),
        }
    }
}
