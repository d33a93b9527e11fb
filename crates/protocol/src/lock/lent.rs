//! A line that its node has lent to the hit path.

use super::{Mode, Range, Token};
use farside_base::SessionId;

/// The terms of a lent line.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Loan {
    /// The token of the first grant; each further grant has the next one.
    pub first: Token,
    /// The number of grants.
    pub tokens: u32,
    /// Bytes of the line that can be locked; at least one.
    pub bytes: u32,
}

/// The lock that is held on a line when its loan ends.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Hold {
    /// The session that holds it.
    pub session: SessionId,
    /// The locked bytes.
    pub range: Range,
    /// The mode.
    pub mode: Mode,
}
