//! Which requests a home grants: all, or fewer while it leaves.

use super::line::Waiter;

/// Which requests a home grants.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(super) enum HomeService {
    #[default]
    Open,
    /// Only those of sessions that hold locks.
    Draining,
    /// None.
    Closed,
}

impl HomeService {
    /// Whether a request is refused.
    pub(super) const fn refuses(self, waiter: &Waiter) -> bool {
        match self {
            Self::Open => false,
            Self::Draining => !waiter.holds,
            Self::Closed => true,
        }
    }
}
