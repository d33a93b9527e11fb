//! The address space of a program: memory areas, numbered by the upper half of an address.

/// Memory that a program can name. Its number is the upper half of an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[repr(u8)]
pub enum Area {
    /// Constant data: read-only.
    Constants = 1,
    /// Variables of the queue pair.
    Own = 2,
    /// Variables that queue pairs share.
    Shared = 3,
    /// Parameters of the call: read-only, so that the same bytes can be sent again.
    Context = 4,
    /// The stack.
    Stack = 5,
}

impl Area {
    /// The address of its first byte.
    pub const fn base(self) -> u64 {
        (self as u64) << 32
    }

    /// The area of an address.
    pub const fn of(address: u64) -> Option<Self> {
        match address >> 32 {
            1 => Some(Self::Constants),
            2 => Some(Self::Own),
            3 => Some(Self::Shared),
            4 => Some(Self::Context),
            5 => Some(Self::Stack),
            _ => None,
        }
    }
}
