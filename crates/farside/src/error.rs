//! The error of an operation.

use farside_base::{Blame, ErrorCode, ErrorKind, GlobalAddress, NodeId};
use std::fmt;

/// An error: a row of the table, and its context.
///
/// `Display` and `Debug` are for people: what happened, the address and detail if any, and what to do.
/// `Debug` begins with the row's name, and is what `main` prints of an error that it returns.
#[derive(Clone, PartialEq, Eq)]
pub struct Error {
    /// The row; [`ErrorCode::entry`] has blame, retry, sentence and remedy.
    pub code: ErrorCode,
    /// The address concerned, if any.
    pub address: Option<GlobalAddress>,
    /// For `TimedOut`: the node that the operation waited for, as far as this node knows.
    pub awaited: Option<NodeId>,
    /// Details for people.
    pub detail: String,
}

impl Error {
    /// An error without context.
    pub fn new(code: ErrorCode) -> Self {
        Self { code, address: None, awaited: None, detail: String::new() }
    }

    /// An error at an address.
    pub fn at(code: ErrorCode, address: GlobalAddress) -> Self {
        Self { address: Some(address), ..Self::new(code) }
    }

    /// An error with details.
    pub fn with(code: ErrorCode, detail: impl Into<String>) -> Self {
        Self { detail: detail.into(), ..Self::new(code) }
    }

    /// The row of the table.
    pub const fn code(&self) -> ErrorCode {
        self.code
    }

    /// The family, by what a program does about the error.
    ///
    /// ```
    /// use farside::{Error, ErrorCode, ErrorKind};
    ///
    /// assert_eq!(Error::new(ErrorCode::LineLost).kind(), ErrorKind::Lost);
    /// ```
    pub const fn kind(&self) -> ErrorKind {
        self.code.entry().kind
    }

    /// The party to blame.
    pub fn blame(&self) -> Blame {
        self.code.entry().blame
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let entry = self.code.entry();
        write!(f, "{}", entry.sentence)?;
        if let Some(address) = self.address {
            write!(f, " (address {address})")?;
        }
        if let Some(node) = self.awaited {
            write!(f, " (waited for node {node})")?;
        }
        if !self.detail.is_empty() {
            write!(f, " ({})", self.detail)?;
        }
        write!(f, " {}", entry.remedy)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {self}", self.code.entry().name)
    }
}

impl std::error::Error for Error {}

impl From<ErrorCode> for Error {
    fn from(code: ErrorCode) -> Self {
        Self::new(code)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guide_lists_each_code_under_its_kind() {
        let guide = include_str!("../../../docs/guides/failures.md");
        for code in ErrorCode::ALL {
            let entry = code.entry();
            let row = format!("| `{:?}` |", entry.kind);
            let row = guide.lines().find(|line| line.starts_with(&row)).expect("a row of the kind");
            assert!(row.contains(&format!("`{}`", entry.name)), "{}: {row}", entry.name);
        }
    }

    #[test]
    fn error_of_main_prints_name_sentence_and_remedy() {
        let entry = ErrorCode::NodeLost.entry();
        let error = Error::with(ErrorCode::NodeLost, "node 3");
        let printed = format!("{error:?}");
        assert_eq!(printed, format!("NodeLost: {} (node 3) {}", entry.sentence, entry.remedy));
        assert_eq!(format!("{error:#?}"), printed);
    }
}
