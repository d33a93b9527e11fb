//! How far a WRITE has come, and who tells: the choice for fabrics with and without FLUSH.

use crate::{Capabilities, FlushScope};
use core::fmt;

/// What shows that the bytes of a WRITE are where a FLUSH of some scope would bring them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum FlushWay {
    /// The WRITE's own completion.
    Completion,
    /// A FLUSH behind it on its link.
    Flush,
    /// A READ behind it on its link, of any byte of its region: the answer comes once what was written
    /// before is in the target's memory. It says nothing of caches that lose their content with the
    /// power.
    Read,
    /// The target's processor alone: a message asks it to write the bytes back, and it answers.
    Target,
}

impl FlushWay {
    /// In a word.
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
            Self::Completion => "its completion says so",
            Self::Flush => "a FLUSH behind it says so",
            Self::Read => "a READ behind it says so, for want of a FLUSH",
            Self::Target => {
                "the target's program must say so, asked by a message, for want of a FLUSH"
            }
        })
    }
}

impl Capabilities {
    /// What shows that the bytes of a WRITE have come as far as `scope`, on this fabric: a FLUSH where
    /// there is one, and what does in its place where there is none. Nothing is done in its place
    /// unasked: a FLUSH that the fabric lacks is refused at `post`, and so is a region for it.
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
