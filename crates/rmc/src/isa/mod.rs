//! The instruction set: eBPF (RFC 9669), all conformance groups except the deprecated legacy packet access.
//!
//! [`decode`] and [`encode`] translate between an [`Instruction`] and slots of 64 bits. Positions are slots, as in all
//! eBPF tools: a wide load has two, of which the second is not a valid jump target.
//!
//! The machine is little-endian on every processor, so that a run may move between processors.

mod decode;
mod encode;
mod semantics;

pub use decode::{DecodeError, decode, decode_all};
pub use encode::{EncodeError, encode};
pub use semantics::{alu, byte_swap, compare, sign_extend};

/// One of the eleven registers. R0 is the result, R1 to R5 are arguments, which calls destroy, R6 to R9
/// outlive calls, R10 is the end of the frame's stack and is never written.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub struct Register(u8);

impl Register {
    /// Results of programs, functions and helpers.
    pub const R0: Self = Self(0);
    /// The first argument; at the start of a program, the address of the context.
    pub const R1: Self = Self(1);
    /// The second argument; at the start of a program, the size of the context.
    pub const R2: Self = Self(2);
    /// The third argument.
    pub const R3: Self = Self(3);
    /// The fourth argument.
    pub const R4: Self = Self(4);
    /// The fifth argument.
    pub const R5: Self = Self(5);
    /// Outlives calls.
    pub const R6: Self = Self(6);
    /// Outlives calls.
    pub const R7: Self = Self(7);
    /// Outlives calls.
    pub const R8: Self = Self(8);
    /// Outlives calls.
    pub const R9: Self = Self(9);
    /// The end of the frame's stack, which grows downwards from it.
    pub const R10: Self = Self(10);
    /// How many there are.
    pub const COUNT: usize = 11;

    /// All of them, in order.
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        (0..Self::COUNT as u8).map(Self)
    }

    /// Register `number`, if there is one.
    pub const fn new(number: u8) -> Option<Self> {
        if number < 11 { Some(Self(number)) } else { None }
    }

    /// Its number.
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    /// Its number, as encoded.
    pub const fn number(self) -> u8 {
        self.0
    }
}

/// How much of a register an operation works on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Width {
    /// The lower 32 bits; a result clears the upper ones.
    Word,
    /// All 64 bits.
    Double,
}

/// How much memory an access moves.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Size {
    /// One byte.
    Byte,
    /// Two bytes.
    Half,
    /// Four bytes.
    Word,
    /// Eight bytes.
    Double,
}

impl Size {
    /// Every size.
    pub const ALL: [Self; 4] = [Self::Byte, Self::Half, Self::Word, Self::Double];

    /// In bytes.
    pub const fn bytes(self) -> usize {
        match self {
            Self::Byte => 1,
            Self::Half => 2,
            Self::Word => 4,
            Self::Double => 8,
        }
    }
}

/// Arithmetic and moves.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum AluOp {
    /// Sum, wrapping.
    Add,
    /// Difference, wrapping.
    Sub,
    /// Product, wrapping.
    Mul,
    /// Unsigned quotient; zero when divided by zero.
    Div,
    /// Signed quotient, rounded to zero; zero when divided by zero; the least number by -1 is itself.
    SignedDiv,
    /// Bits of either.
    Or,
    /// Bits of both.
    And,
    /// Shift left, by the count modulo the width.
    ShiftLeft,
    /// Unsigned shift right, by the count modulo the width.
    ShiftRight,
    /// The negated destination; the operand is zero and ignored.
    Neg,
    /// Unsigned remainder; the dividend when divided by zero.
    Mod,
    /// Signed remainder with the dividend's sign; the dividend when divided by zero.
    SignedMod,
    /// Bits of exactly one.
    Xor,
    /// The operand.
    Move,
    /// The operand's lowest byte, sign-extended.
    MoveSigned8,
    /// The operand's lowest two bytes, sign-extended.
    MoveSigned16,
    /// The operand's lowest four bytes, sign-extended. Exists in 64 bits only.
    MoveSigned32,
    /// Signed shift right, by the count modulo the width.
    ShiftRightSigned,
}

impl AluOp {
    /// Every operation.
    pub const ALL: [Self; 18] = [
        Self::Add,
        Self::Sub,
        Self::Mul,
        Self::Div,
        Self::SignedDiv,
        Self::Or,
        Self::And,
        Self::ShiftLeft,
        Self::ShiftRight,
        Self::Neg,
        Self::Mod,
        Self::SignedMod,
        Self::Xor,
        Self::Move,
        Self::MoveSigned8,
        Self::MoveSigned16,
        Self::MoveSigned32,
        Self::ShiftRightSigned,
    ];

    /// Whether it takes its operand from a register alone.
    pub const fn needs_register(self) -> bool {
        matches!(self, Self::MoveSigned8 | Self::MoveSigned16 | Self::MoveSigned32)
    }

    /// Whether it ignores the old value of the destination.
    pub const fn is_move(self) -> bool {
        matches!(self, Self::Move | Self::MoveSigned8 | Self::MoveSigned16 | Self::MoveSigned32)
    }
}

/// Which order of bytes is made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Order {
    /// To or from little-endian: keeps the order, cuts off what is above.
    Little,
    /// To or from big-endian: reverses the bytes.
    Big,
    /// Reverses the bytes on every machine.
    Swapped,
}

/// When a jump is taken, of destination and operand.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Condition {
    /// Equal.
    Equal,
    /// Greater, unsigned.
    Greater,
    /// Greater or equal, unsigned.
    GreaterEqual,
    /// They have a bit in common.
    Set,
    /// Not equal.
    NotEqual,
    /// Greater, signed.
    SignedGreater,
    /// Greater or equal, signed.
    SignedGreaterEqual,
    /// Less, unsigned.
    Less,
    /// Less or equal, unsigned.
    LessEqual,
    /// Less, signed.
    SignedLess,
    /// Less or equal, signed.
    SignedLessEqual,
}

impl Condition {
    /// Every condition.
    pub const ALL: [Self; 11] = [
        Self::Equal,
        Self::Greater,
        Self::GreaterEqual,
        Self::Set,
        Self::NotEqual,
        Self::SignedGreater,
        Self::SignedGreaterEqual,
        Self::Less,
        Self::LessEqual,
        Self::SignedLess,
        Self::SignedLessEqual,
    ];
}

/// The second operand.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Operand {
    /// A register's value.
    Register(Register),
    /// A number, sign-extended to the width.
    Immediate(i32),
}

/// What an atomic does to memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum AtomicOp {
    /// Adds.
    Add,
    /// Sets bits.
    Or,
    /// Keeps bits.
    And,
    /// Flips bits.
    Xor,
    /// Exchanges with the source. Always fetches.
    Exchange,
    /// Stores the source where memory is equal to R0; R0 gets the old value. Always fetches.
    CompareExchange,
}

impl AtomicOp {
    /// Every atomic.
    pub const ALL: [Self; 6] =
        [Self::Add, Self::Or, Self::And, Self::Xor, Self::Exchange, Self::CompareExchange];
}

/// What a wide load puts into a register.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Wide {
    /// A number.
    Value(u64),
    /// The address of this byte of the program's constant data (source field 3).
    Constant(u32),
    /// The declared state with this number, for helpers (source field 5).
    StateHandle(u32),
    /// The address of a byte of the program's variables, which outlive calls (source field 6).
    Variable {
        /// Whether it is one of the shared variables, or of those of the queue pair.
        shared: bool,
        /// Which byte.
        offset: u32,
    },
}

/// One instruction, as meant.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Instruction {
    /// `dst = dst op src`.
    Alu {
        /// How much of the registers.
        width: Width,
        /// What is done.
        op: AluOp,
        /// The first operand and result.
        dst: Register,
        /// The second operand.
        src: Operand,
    },
    /// The lower `size` of `dst` in another order, the rest zero.
    Bytes {
        /// Which order.
        order: Order,
        /// Half, word or double.
        size: Size,
        /// What is changed.
        dst: Register,
    },
    /// `dst` = 64 bits. Takes two slots.
    LoadWide {
        /// The destination.
        dst: Register,
        /// What is loaded.
        value: Wide,
    },
    /// `dst = *(base + offset)`, zero-extended, or sign-extended.
    Load {
        /// How much is read.
        size: Size,
        /// Whether it is sign-extended; never for a double.
        signed: bool,
        /// The destination.
        dst: Register,
        /// The address, without the offset.
        base: Register,
        /// Added to the address.
        offset: i16,
    },
    /// `*(base + offset) = src`.
    Store {
        /// How much is written.
        size: Size,
        /// The address, without the offset.
        base: Register,
        /// Added to the address.
        offset: i16,
        /// What is written.
        src: Operand,
    },
    /// Atomic change of memory.
    Atomic {
        /// Four or eight bytes.
        width: Width,
        /// What is done.
        op: AtomicOp,
        /// Whether `src` (R0 for a compare-exchange) gets the old value.
        fetch: bool,
        /// The address, without the offset.
        base: Register,
        /// Added to the address.
        offset: i16,
        /// The operand.
        src: Register,
    },
    /// Jumps to the slot at `offset` from the next one.
    Jump {
        /// In slots, from the next.
        offset: i32,
    },
    /// Jumps to the slot at `offset` from the next one if the condition holds.
    JumpIf {
        /// How much of the registers is compared.
        width: Width,
        /// When.
        condition: Condition,
        /// The first operand.
        dst: Register,
        /// The second operand.
        src: Operand,
        /// In slots, from the next.
        offset: i16,
    },
    /// Calls the helper with this number.
    CallHelper {
        /// See [`crate::helpers`].
        number: u32,
    },
    /// Calls the function at the slot at `offset` from the next one, with a new frame.
    CallFunction {
        /// In slots, from the next.
        offset: i32,
    },
    /// Returns from a function, or ends the program.
    Exit,
    /// The second slot of a wide load: no instruction.
    SecondHalf,
}

impl Instruction {
    /// How many slots it takes.
    pub const fn slots(self) -> usize {
        if matches!(self, Self::LoadWide { .. }) { 2 } else { 1 }
    }

    /// The jump target of the instruction at slot `at`, if it has one; calls do not count.
    pub fn jump_target(self, at: usize) -> Option<i64> {
        let offset = match self {
            Self::Jump { offset } => i64::from(offset),
            Self::JumpIf { offset, .. } => i64::from(offset),
            _ => return None,
        };
        Some(at as i64 + 1 + offset)
    }

    /// Whether what follows it can be reached by falling through.
    pub const fn falls_through(self) -> bool {
        !matches!(self, Self::Jump { .. } | Self::Exit)
    }
}
