//! How the arrival of a WRITE at a scope is confirmed, on fabrics with and without FLUSH.

use crate::{Capabilities, FlushScope};
use core::fmt;

/// What confirms that the bytes of a WRITE are where a FLUSH of some scope would bring them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum FlushWay {
    /// The WRITE's own completion.
    Completion,
    /// A FLUSH posted after it on its link.
    Flush,
    /// A READ posted after it on its link, of any byte of its region: the answer comes once earlier writes
    /// are in the target's memory. It says nothing about caches that lose their content with the power.
    Read,
    /// Only the target's processor: a message asks it to write the bytes back, and it answers.
    Target,
}

impl FlushWay {
    /// A one-word name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Completion => "completion",
            Self::Flush => "flush",
            Self::Read => "read",
            Self::Target => "target",
        }
    }
}

impl fmt::Display for FlushWay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Completion => "its completion confirms it",
            Self::Flush => "a FLUSH after it confirms it",
            Self::Read => "a READ after it confirms it, for want of a FLUSH",
            Self::Target => {
                "the target's program must confirm it, asked by a message, for want of a FLUSH"
            }
        })
    }
}

impl Capabilities {
    /// What confirms that the bytes of a WRITE have reached `scope` on this fabric: a FLUSH if available,
    /// otherwise its replacement. No replacement is used implicitly: a FLUSH that the fabric lacks is
    /// refused at `post`, and so is a region for it.
    pub const fn flush_way(&self, scope: FlushScope) -> FlushWay {
        match (scope, self.flush) {
            (FlushScope::None, _) => FlushWay::Completion,
            (FlushScope::Visible, _) if self.completion_means_placed => FlushWay::Completion,
            (FlushScope::Visible, FlushScope::Visible | FlushScope::Persistent)
            | (FlushScope::Persistent, FlushScope::Persistent) => FlushWay::Flush,
            (FlushScope::Visible, FlushScope::None) if self.read && self.message_order => {
                FlushWay::Read
            }
            (FlushScope::Visible, FlushScope::None)
            | (FlushScope::Persistent, FlushScope::None | FlushScope::Visible) => FlushWay::Target,
        }
    }
}
