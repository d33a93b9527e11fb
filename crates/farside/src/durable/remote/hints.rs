//! The hints H1 to H9 of 002 §4, as switches.

use std::fmt;

/// The primitive that a hint is for (002 Table 3).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum RemotePrimitive {
    /// WRITEs.
    OneSided,
    /// Messages to a program at the target.
    TwoSided,
    /// Both.
    Both,
}

/// A hint of 002 §4.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub enum RemoteHint {
    /// Avoid the other socket: a port next to the memory.
    H1,
    /// Limit the threads that write to one DIMM.
    H2,
    /// WRITE only without DDIO; with DDIO, large writes by messages.
    H3,
    /// Non-temporal stores for large writes.
    H4,
    /// Whole lines of the medium (256 B).
    H5,
    /// Whole 64 B for small WRITEs.
    H6,
    /// Whole cache lines by non-temporal stores for small messages.
    H7,
    /// Locks and atomics in DRAM.
    H8,
    /// WRITE and confirmation outstanding together, with one doorbell.
    H9,
}

impl RemoteHint {
    /// All of them, in order.
    pub const ALL: [Self; 9] =
        [Self::H1, Self::H2, Self::H3, Self::H4, Self::H5, Self::H6, Self::H7, Self::H8, Self::H9];

    /// Returns its index in [`ALL`](Self::ALL).
    pub(super) const fn index(self) -> usize {
        self as usize
    }

    /// Returns the primitive that it is for: 002 Table 3.
    pub const fn primitive(self) -> RemotePrimitive {
        match self {
            Self::H1 | Self::H5 | Self::H8 => RemotePrimitive::Both,
            Self::H2 | Self::H4 | Self::H7 => RemotePrimitive::TwoSided,
            Self::H3 | Self::H6 | Self::H9 => RemotePrimitive::OneSided,
        }
    }

    /// Returns what it advises, in a few words.
    pub const fn advice(self) -> &'static str {
        match self {
            Self::H1 => "use a port on the socket of the memory",
            Self::H2 => "limit the threads that write to one DIMM",
            Self::H3 => "WRITE without DDIO; with DDIO, large writes by messages",
            Self::H4 => "large writes by non-temporal stores",
            Self::H5 => "write whole lines of the medium",
            Self::H6 => "pad small WRITEs to 64 B",
            Self::H7 => "small messages by non-temporal stores of whole cache lines",
            Self::H8 => "keep locks and atomics in DRAM",
            Self::H9 => "post WRITE and confirmation with one doorbell",
        }
    }
}

impl fmt::Display for RemoteHint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "H{}", self.index() + 1)
    }
}

/// The hints that are switched on.
///
/// ```
/// use farside::durable::remote::{RemoteHint, RemoteHints};
///
/// let hints = RemoteHints::ALL.without(RemoteHint::H9);
/// assert!(hints.has(RemoteHint::H1) && !hints.has(RemoteHint::H9));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct RemoteHints(u16);

impl RemoteHints {
    /// All.
    pub const ALL: Self = Self(0x1ff);
    /// None.
    pub const NONE: Self = Self(0);

    /// Returns these and one more.
    pub const fn with(self, hint: RemoteHint) -> Self {
        Self(self.0 | 1 << hint.index())
    }

    /// Returns these but one.
    pub const fn without(self, hint: RemoteHint) -> Self {
        Self(self.0 & !(1 << hint.index()))
    }

    /// Returns whether a hint is switched on.
    pub const fn has(self, hint: RemoteHint) -> bool {
        self.0 & 1 << hint.index() != 0
    }
}

impl Default for RemoteHints {
    /// All.
    fn default() -> Self {
        Self::ALL
    }
}

/// The outcome of a hint in one plan.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum HintOutcome {
    /// The plan follows the hint, with this effect. It may be the same without it.
    Applied(&'static str),
    /// It is switched off.
    Off,
    /// It is for the other primitive (002 Table 3).
    OtherPrimitive,
    /// It has nothing to decide for this write, because of this.
    NoNeed(&'static str),
    /// It cannot be followed, because of this.
    Impossible(&'static str),
}

impl fmt::Display for HintOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Applied(what) => write!(f, "applied: {what}"),
            Self::Off => f.write_str("switched off"),
            Self::OtherPrimitive => f.write_str("not for this primitive (002 Table 3)"),
            Self::NoNeed(why) => write!(f, "not needed: {why}"),
            Self::Impossible(why) => write!(f, "not possible: {why}"),
        }
    }
}
