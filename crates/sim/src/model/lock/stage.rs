//! The stages of a home's leave.

/// The stage of a home's leave.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub(super) enum LeaveStage {
    #[default]
    Member,
    Draining,
    Closed,
    Left,
}
