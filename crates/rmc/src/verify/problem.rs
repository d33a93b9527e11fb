//! Refusals: why a program was rejected, and the text for its author.

use alloc::string::String;
use core::fmt;

use crate::helpers::{Argument, Helper, StateKind};
use crate::isa::Register;
use crate::program::SourcePosition;

/// Memory of a program, in messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum MemoryKind {
    /// Constant data.
    Constants,
    /// Variables of the queue pair.
    Own,
    /// Variables that queue pairs share.
    Shared,
    /// Parameters of the call.
    Context,
    /// The stack of a frame.
    Stack,
}

impl fmt::Display for MemoryKind {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Constants => "constant data",
            Self::Own => "the queue pair's variables",
            Self::Shared => "shared variables",
            Self::Context => "the context",
            Self::Stack => "the frame's stack",
        })
    }
}

/// What was found in a register.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum FoundValue {
    /// Uninitialised on at least one path.
    Nothing,
    /// A number from the first to the second, signed.
    Number(i64, i64),
    /// An address in that memory.
    Address(MemoryKind),
    /// The handle of a declared state of that kind.
    Handle(StateKind),
}

impl fmt::Display for FoundValue {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nothing => out.write_str("nothing, or different things on different paths"),
            Self::Number(i64::MIN, i64::MAX) => out.write_str("any number"),
            Self::Number(least, most) if least == most => write!(out, "the number {least}"),
            Self::Number(least, most) => write!(out, "a number from {least} to {most}"),
            Self::Address(memory) => write!(out, "an address in {memory}"),
            Self::Handle(kind) => write!(out, "the handle of a state of kind {kind:?}"),
        }
    }
}

/// What is wrong.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Problem {
    /// There is no code.
    NoCode,
    /// A part of the program is over its limit.
    TooLarge {
        /// Which part.
        what: &'static str,
        /// How much there is.
        found: u64,
        /// The limit.
        most: u64,
    },
    /// The list of functions does not divide the code.
    BadFunctions,
    /// A declared state makes no sense.
    BadState {
        /// Its name.
        name: String,
        /// Why.
        why: &'static str,
    },
    /// A jump leaves its function.
    JumpOutside {
        /// Where to.
        target: i64,
    },
    /// A jump or call goes into the middle of a wide load.
    IntoTheMiddle {
        /// Where to.
        target: i64,
    },
    /// A call goes to no function's start.
    NoFunction {
        /// Where to.
        target: i64,
    },
    /// The last instruction of a function falls through.
    FallsOff,
    /// The instruction has no encoding.
    NoSuchForm,
    /// No helper has this number.
    UnknownHelper {
        /// The number.
        number: u32,
    },
    /// A wide load names data or a state that the program has not.
    NoSuchData {
        /// What it names.
        what: &'static str,
        /// Which.
        at: u64,
        /// How many there are.
        count: u64,
    },
    /// R10 is written.
    FramePointer,
    /// A register is read that holds nothing.
    Uninitialised {
        /// Which.
        register: Register,
    },
    /// Bytes of the stack are read that hold nothing, or part of an address.
    UninitialisedStack {
        /// The first of them, from R10.
        offset: i64,
    },
    /// Memory outside of its bounds.
    OutOfBounds {
        /// The register that has the address.
        register: Register,
        /// Which memory.
        memory: MemoryKind,
        /// The least offset of the access.
        least: i64,
        /// The greatest offset of the access.
        most: i64,
        /// Its bytes.
        length: u64,
        /// Bytes of that memory.
        bound: u64,
    },
    /// Memory is written that is read-only.
    ReadOnly {
        /// Which memory.
        memory: MemoryKind,
    },
    /// An address is wanted.
    NotAnAddress {
        /// In which register.
        register: Register,
        /// What there is.
        found: FoundValue,
    },
    /// A number is wanted.
    NotANumber {
        /// In which register.
        register: Register,
        /// What there is.
        found: FoundValue,
    },
    /// An operation on addresses that is not allowed.
    AddressArithmetic,
    /// An address may be too far outside of its memory.
    AddressTooFar {
        /// The least offset.
        least: i64,
        /// The greatest offset.
        most: i64,
    },
    /// An address would be written where others can read it.
    AddressEscapes {
        /// Where to.
        memory: MemoryKind,
    },
    /// An address or handle is stored in pieces, or not aligned to eight bytes.
    AddressInPieces,
    /// A store with an imprecise offset may overwrite an address on the stack.
    MayOverwriteAddress,
    /// An atomic is not aligned to its size.
    Misaligned,
    /// An argument of a helper is not what its row says.
    BadArgument {
        /// The helper's name.
        helper: &'static str,
        /// Counted from one.
        argument: u8,
        /// What is wanted.
        expected: Expected,
        /// What there is.
        found: FoundValue,
    },
    /// The result is not a number.
    ResultIsNoNumber {
        /// What it is.
        found: FoundValue,
    },
    /// A function returns an address of its own frame.
    Dangling,
    /// Calls are nested deeper than there are frames.
    TooDeep {
        /// Frames that there are.
        most: usize,
    },
    /// The program has no path to its end.
    NeverEnds,
    /// Proving it took longer than allowed.
    TooComplex {
        /// Instructions that were walked.
        walked: u32,
    },
}

/// How an index is bounded so that the verifier knows it and clang keeps it.
const BOUND: &str =
    "write i = FARSIDE_OPAQUE(i) and compare i with a constant just before it is used";

/// What a helper wants as an argument.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Expected(pub Argument);

impl fmt::Display for Expected {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        use crate::helpers::Extent;
        let pointed = |out: &mut fmt::Formatter<'_>, extent: &Extent| match extent {
            Extent::Argument { index, each: 1, most } => {
                write!(out, "as many bytes as argument {} says, at most {most}", index + 1)
            }
            Extent::Argument { index, each, most } => {
                write!(out, "{each} B for each that argument {} says, at most {most}", index + 1)
            }
            Extent::Key => out.write_str("a key of the state"),
            Extent::Value => out.write_str("a value of the state"),
        };
        match &self.0 {
            Argument::Number => out.write_str("a number"),
            Argument::Region => out.write_str("the number of a region"),
            Argument::Length(most) => write!(out, "a number of bytes, at most {most}"),
            Argument::State(kind) => write!(out, "the handle of a state of kind {kind:?}"),
            Argument::Readable(extent) => {
                out.write_str("the address of ")?;
                pointed(out, extent)
            }
            Argument::Writable(extent) => {
                out.write_str("the address of room for ")?;
                pointed(out, extent)
            }
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoCode => out.write_str("there is no code"),
            Self::TooLarge { what, found, most } => {
                write!(out, "{what}: {found}, which is over the limit of {most}")
            }
            Self::BadFunctions => out.write_str("the functions do not divide the code"),
            Self::BadState { name, why } => write!(out, "state `{name}`: {why}"),
            Self::JumpOutside { target } => {
                write!(out, "a jump to slot {target}, outside of its function")
            }
            Self::IntoTheMiddle { target } => {
                write!(out, "slot {target} is the middle of a wide load: jump to its start")
            }
            Self::NoFunction { target } => {
                write!(out, "a call to slot {target}, where no function starts")
            }
            Self::FallsOff => out.write_str("the function ends without exit or jump"),
            Self::NoSuchForm => out.write_str("the instruction set has no such combination"),
            Self::UnknownHelper { number } => write!(out, "no helper has the number {number}"),
            Self::NoSuchData { what, at, count } => {
                write!(out, "{what} {at}, of which the program has {count}")
            }
            Self::FramePointer => out.write_str("r10 is written: it is read-only"),
            Self::TooDeep { most } => {
                write!(out, "calls are nested deeper than {most} frames: use a loop in place of recursion")
            }
            Self::NeverEnds => out.write_str("no path leads to the end of the program: end each loop by a condition"),
            Self::TooComplex { walked } => {
                write!(
                    out,
                    "not proven within {walked} steps: split the loops into several calls, or let them end by \
                     comparing one counter with a constant"
                )
            }
            Self::Dangling => {
                out.write_str(
                    "the function returns an address of its own frame in r0, which is gone then: let the \
                     caller pass the address of its variable",
                )
            }
            _ => self.fmt_values(out),
        }
    }
}

impl Problem {
    /// Problems with what registers and memory hold.
    fn fmt_values(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Uninitialised { register } => write!(
                out,
                "r{} is read, which holds nothing, or a value on some paths only: set the variable where it is \
                 declared; if it is set on every path, compile with -O2, since clang leaves registers \
                 undefined at -O1",
                register.number()
            ),
            Self::UninitialisedStack { offset } => write!(
                out,
                "the byte at r10 {offset:+} is read, which nothing has written, or which is part of \
                 an address: start with an array of zeros (= {{0}})"
            ),
            Self::OutOfBounds { register, memory, least, most, length, bound } => {
                write!(
                    out,
                    "{length} B at offset {least} to {most} of {memory}, which has {bound} B: "
                )?;
                match bound.checked_sub(*length) {
                    Some(end) => {
                        write!(out, "the offset in r{} must be 0 to {end}", register.number())?;
                    }
                    None => write!(out, "the length must be at most {bound}")?,
                }
                write!(out, ": {BOUND}; the same for a length that is not constant")
            }
            Self::ReadOnly { memory } => {
                write!(out, "{memory} is read-only: write to a copy in a local variable")
            }
            Self::NotAnAddress { register, found } => write!(
                out,
                "r{} is used as an address, but is {found}: access memory of the host by helpers such as \
                 farside_read, and memory of the call by the name of a variable",
                register.number()
            ),
            Self::NotANumber { register, found } => write!(
                out,
                "r{} is used as a number, but is {found}: use an index or offset in place of the address",
                register.number()
            ),
            Self::ResultIsNoNumber { found } => write!(
                out,
                "r0 must be a number at the end, but is {found}: return an integer, and emit bytes by \
                 farside_emit"
            ),
            _ => self.fmt_addresses(out),
        }
    }

    /// Problems with what is done to addresses, and with arguments.
    fn fmt_addresses(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AddressArithmetic => out.write_str(
                "arithmetic on an address: only adding or subtracting a number, the difference and \
                 comparison of two addresses of one memory, and comparison with zero are possible; \
                 compute an index first, and add it to the array last",
            ),
            Self::AddressTooFar { least, most } => write!(
                out,
                "the address may be {} from the start of its memory, which is more than 512 MiB: {BOUND}",
                Distance(*least, *most)
            ),
            Self::AddressEscapes { memory } => write!(
                out,
                "an address would be written to {memory}: addresses stay on the stack, store an index"
            ),
            Self::AddressInPieces => out.write_str(
                "an address is stored whole, at a multiple of eight bytes: store it to a variable of \
                 pointer type that is not part of a packed structure",
            ),
            Self::MayOverwriteAddress => write!(
                out,
                "a store at an unknown offset may hit an address on the stack: {BOUND}, or make the array \
                 static"
            ),
            Self::Misaligned => out.write_str(
                "an atomic must be aligned to its size: use a variable of that type, not bytes of an array",
            ),
            Self::BadArgument { helper, argument, expected, found } => {
                write!(
                    out,
                    "argument {argument} of {helper}, in r{argument}, must be {expected}, but is {found}"
                )?;
                match (expected.0, found) {
                    (Argument::Length(_), FoundValue::Number(..)) => write!(out, ": {BOUND}"),
                    (_, FoundValue::Nothing) => out.write_str(": set it on every path"),
                    (Argument::Readable(_) | Argument::Writable(_), _) => {
                        out.write_str(": pass the address of a variable")
                    }
                    (Argument::State(_), _) => {
                        out.write_str(": pass the address of a state that is declared as that kind")
                    }
                    (Argument::Number | Argument::Region | Argument::Length(_), _) => {
                        out.write_str(": pass an integer")
                    }
                }
            }
            _ => Ok(()),
        }
    }
}

/// A range of distances from the start of memory.
struct Distance(i64, i64);

impl fmt::Display for Distance {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self(i64::MIN, i64::MAX) => out.write_str("any distance"),
            Self(least, most) => write!(out, "{least} to {most} B"),
        }
    }
}

/// A refused program: which instruction, from which line, and why.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refusal {
    /// The program.
    pub program: String,
    /// The instruction; `None` where it is the whole program's.
    pub slot: Option<usize>,
    /// The instruction as text.
    pub instruction: String,
    /// Where it came from, if that is known.
    pub line: Option<SourcePosition>,
    /// What is wrong.
    pub problem: Problem,
}

impl fmt::Display for Refusal {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "program `{}`", self.program)?;
        if let Some(line) = &self.line {
            write!(out, ", {line}")?;
        }
        if let Some(slot) = self.slot {
            write!(out, ", slot {slot} `{}`", self.instruction)?;
        }
        write!(out, ": {}", self.problem)
    }
}

impl core::error::Error for Refusal {}

/// A refused argument.
pub(super) fn bad_argument(helper: &Helper, at: usize, found: FoundValue) -> Problem {
    Problem::BadArgument {
        helper: helper.name,
        argument: at as u8 + 1,
        expected: Expected(helper.arguments[at]),
        found,
    }
}
