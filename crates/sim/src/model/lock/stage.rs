//! How far the leave of a home is.

/// How far the leave is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub(super) enum LeaveStage {
    #[default]
    Member,
    Draining,
    Closed,
    Left,
}
