//! The programs that run a guest.

/// A program that runs a guest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Engine {
    Uml,
    Qemu,
}

impl Engine {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Uml => "uml",
            Self::Qemu => "qemu",
        }
    }
}
