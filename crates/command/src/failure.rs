//! Failures of commands, and their exit codes.

use farside::ErrorCode;
use farside_apps::dht::DhtError;
use farside_apps::hashtable::TableError;
use farside_apps::log::LogError;
use farside_apps::shuffle::ShuffleError;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::process::ExitCode;

/// The reason why a command failed.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum Failure {
    /// The arguments contradict each other. Exit code 2, as for arguments that clap refuses.
    Usage {
        /// What is wrong and how to fix it.
        text: String,
    },
    /// An operation on the global memory failed, with a row of the error table.
    Operation {
        /// The row's number.
        number: u16,
        /// The row's name, which is as stable as the number.
        name: String,
        /// What happened and what to do.
        text: String,
    },
    /// An operation on a file, process or other system resource failed.
    System {
        /// The resource and the reason.
        text: String,
    },
    /// A verification failed.
    Check {
        /// The violated property.
        text: String,
    },
    /// A program that `farside run` started has failed.
    Program {
        /// Which process, and how it ended.
        text: String,
        /// The exit code of the command.
        code: u8,
    },
    /// Ended by a signal; exit code 130.
    Interrupted,
    /// Another failure, which the command's result already contains.
    #[serde(skip)]
    Reported(Box<Self>),
}

impl Failure {
    /// Returns that the arguments contradict each other.
    pub fn usage(text: impl Into<String>) -> Self {
        Self::Usage { text: text.into() }
    }

    fn operation(code: ErrorCode, text: String) -> Self {
        let entry = code.entry();
        Self::Operation { number: entry.number, name: entry.name.to_owned(), text }
    }

    /// Returns that an operation on a system resource failed.
    pub fn system(text: impl Into<String>) -> Self {
        Self::System { text: text.into() }
    }

    /// Returns that a verification failed.
    pub fn check(text: impl Into<String>) -> Self {
        Self::Check { text: text.into() }
    }

    /// Converts an error of a call, whose detail may contain untrusted text of an object or a peer.
    pub fn of_call(error: farside::Error) -> Self {
        let error = farside::Error { detail: printable(&error.detail), ..error };
        if error.code == ErrorCode::BadParameters {
            return Self::usage(format!("--parameters: {}", error.detail));
        }
        error.into()
    }

    /// Returns 1 if an operation failed, 2 for wrong usage, 130 if interrupted, and the code of a program that failed.
    pub fn exit_code(&self) -> ExitCode {
        match self {
            Self::Usage { .. } => ExitCode::from(2),
            Self::Interrupted => ExitCode::from(130),
            Self::Program { code, .. } => ExitCode::from(*code),
            Self::Operation { .. } | Self::System { .. } | Self::Check { .. } => ExitCode::from(1),
            Self::Reported(failure) => failure.exit_code(),
        }
    }

    /// Returns whether it is this row of the error table.
    pub fn is(&self, code: ErrorCode) -> bool {
        matches!(self, Self::Operation { number, .. } if *number == code.entry().number)
    }
}

/// Replaces control characters in untrusted text.
pub fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c }).collect()
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Usage { text }
            | Self::System { text }
            | Self::Check { text }
            | Self::Program { text, .. } => f.write_str(text),
            Self::Operation { name, text, .. } => write!(f, "{name}: {text}"),
            Self::Interrupted => f.write_str("interrupted"),
            Self::Reported(failure) => failure.fmt(f),
        }
    }
}

impl From<DhtError> for Failure {
    fn from(error: DhtError) -> Self {
        Self::operation(error.code(), error.to_string())
    }
}

impl From<LogError> for Failure {
    fn from(error: LogError) -> Self {
        Self::operation(error.code(), error.to_string())
    }
}

impl From<TableError> for Failure {
    fn from(error: TableError) -> Self {
        Self::operation(error.code(), error.to_string())
    }
}

impl From<ShuffleError> for Failure {
    fn from(error: ShuffleError) -> Self {
        Self::operation(error.code(), error.to_string())
    }
}

impl From<farside::Error> for Failure {
    fn from(error: farside::Error) -> Self {
        Self::operation(error.code, error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operation_failure_keeps_name_and_number() {
        let failure = Failure::from(farside::Error::new(ErrorCode::NodeLost));
        assert!(failure.is(ErrorCode::NodeLost) && !failure.is(ErrorCode::LineLost));
        assert!(failure.to_string().starts_with("NodeLost: "));
        let back: Failure =
            serde_json::from_str(&serde_json::to_string(&failure).unwrap()).unwrap();
        assert_eq!(back, failure);
    }
}
