//! Execution of programs.
//!
//! A [`Machine`] is one call in progress: registers, stack, frames, meter and output, plain data that can be cloned,
//! serialized and restored elsewhere. [`Machine::run`] continues until the program returns, is stopped, or needs memory
//! outside of the call, for which it hands out a [`Request`]; [`Machine::answer`] takes the result. A run never blocks.
//! Its only callback is the [`Near`] that the executor lends for the duration of `run`, so that an executor with local
//! access to the memory need not leave the machine for each word.
//!
//! A call that only computes does not occupy its thread: [`Machine::run_slice`] ends with [`Outcome::Paused`] after a
//! number of instructions or of bytes that helpers move, at a safepoint: a back edge, a call, a helper, or one of the
//! marks that straight-line code has every 256 instructions or sixteen helpers. Slices cost nothing where none ends:
//! the slice replaces the budget in the meter, and programs that end within [`crate::Limits::unpaused_max`]
//! instructions are charged for neither.
//!
//! There are two interpreters with the same semantics. `run` works on pre-decoded instructions of a verified program
//! and checks only what costs nothing; [`Machine::run_checked`] assumes nothing, also takes unverified programs, and
//! finds every uninitialised read and every address used as a number. What the verifier accepts must run there
//! without a [`Fault`].
//!
//! Addresses in registers are virtual (area in the upper 32 bits, offset in the lower ones), the same wherever the call
//! runs.

mod call;
mod checked;
mod fast;
mod interpret;
mod long;
mod machine;
mod memory;
mod meter;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
pub mod native;
mod shadow;

pub use crate::decode::Area;
pub use machine::{AnswerError, Machine, RestoreError, StartError};
pub use memory::Lent;

use core::fmt;

use crate::helpers::{Call, Helper};

/// A stretch of memory of the call.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Span {
    /// Its first byte, as the program names it.
    pub address: u64,
    /// Bytes.
    pub length: u32,
}

/// The request of a suspended call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// Which helper.
    pub call: Call,
    /// R1 to R5; numbers and handles among them are checked against the helper's row.
    pub arguments: [u64; 5],
    /// The input bytes: [`Machine::bytes`] returns them.
    pub inputs: [Span; 2],
    /// The output buffer.
    pub output: Option<Span>,
}

/// The immediate reply of the executor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reply {
    /// It is done, with this result.
    Now(u64),
    /// It takes longer: the call suspends.
    Later,
    /// The word may not be accessed, which ends the call.
    Refused,
}

/// Buffers of a request that is carried out in place.
#[derive(Debug)]
pub struct Buffers<'a> {
    /// The input.
    pub inputs: [&'a [u8]; 2],
    /// The output. It is cleared, except for reads: these must write all of it if the result is 0, and until then it
    /// holds what the program last wrote there.
    pub output: &'a mut [u8],
}

/// An executor with local access to the memory. Requests that it does not answer suspend the call.
///
/// It must not block and should not take long. Results outside of the range that the helper's row
/// states are faults of the executor: [`Stop::BadReply`].
pub trait Near {
    /// The helper `load_u64`, separate as the most frequent one by far.
    fn load_u64(&mut self, region: u64, offset: u64) -> Reply {
        let _ = (region, offset);
        Reply::Later
    }

    /// The helper `read`, separate as the most frequent one with buffers. `out` is cleared, or still holds what the
    /// program last wrote there; with the result 0 all of it must be written.
    fn read(&mut self, region: u64, offset: u64, out: &mut [u8]) -> Reply {
        let _ = (region, offset, out);
        Reply::Later
    }

    /// Any other helper that suspends.
    fn perform(&mut self, request: &Request, buffers: Buffers<'_>) -> Reply {
        let _ = (request, buffers);
        Reply::Later
    }
}

/// An executor far from the memory: every access suspends.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Far;

impl Near for Far {}

/// How a run ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The program returned R0. Its output is [`Machine::output`].
    Returned(u64),
    /// It waits for an answer.
    Suspended(Request),
    /// It has used up its slice and continues in the next run. Only for runs with a slice.
    Paused,
    /// It was stopped and cannot continue.
    Stopped(Stop),
}

/// Which part of a budget was used up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Resource {
    /// Instructions.
    Instructions,
    /// Calls of helpers.
    HelperCalls,
    /// Bytes that helpers move.
    Bytes,
}

/// Why a call was stopped, and at which slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Stop {
    /// The budget is used up.
    Budget {
        /// The jump, call or mark that would have passed it.
        slot: usize,
        /// What ran out.
        resource: Resource,
    },
    /// A word was asked for that the caller may not access.
    Refused {
        /// The call of the helper.
        slot: usize,
        /// The helper.
        call: Call,
    },
    /// The executor's answer was not in the helper's range.
    BadReply {
        /// The call of the helper.
        slot: usize,
        /// The helper.
        call: Call,
    },
    /// The program did what no verified program does.
    Fault(Fault),
    /// The executor ended the call.
    Cancelled,
    /// The machine was not started, or has ended already.
    NotRunning,
}

/// What a program did that it must not, and at which slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fault {
    /// The instruction.
    pub slot: usize,
    /// What it did.
    pub kind: FaultKind,
}

/// What a program did that it must not.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum FaultKind {
    /// It read an uninitialised register or byte.
    Uninitialised,
    /// It touched memory that is not its own, or wrote what is read-only.
    OutOfBounds {
        /// The first byte.
        address: u64,
        /// Bytes.
        length: u32,
    },
    /// It used an address as a number, or let one out.
    AddressAsNumber,
    /// It used a number as an address, or as a handle.
    NumberAsAddress,
    /// An atomic that is not aligned to its size.
    Misaligned,
    /// It left its function otherwise than by exit, or went into the middle of an instruction.
    LostControl,
    /// It called deeper than there are frames.
    TooDeep,
    /// It called a helper that does not exist.
    UnknownHelper(u32),
    /// A helper's argument is out of its range.
    BadArgument {
        /// Counted from one.
        argument: u8,
    },
    /// It reached an instruction of which the verifier had proven that it would not.
    Unreachable,
    /// It wrote R10.
    FramePointer,
}

impl fmt::Display for Fault {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "slot {}: {:?}", self.slot, self.kind)
    }
}

impl Stop {
    /// The instruction that it was stopped at, if at one.
    pub const fn slot(&self) -> Option<usize> {
        match self {
            Self::Budget { slot, .. }
            | Self::Refused { slot, .. }
            | Self::BadReply { slot, .. } => Some(*slot),
            Self::Fault(fault) => Some(fault.slot),
            Self::Cancelled | Self::NotRunning => None,
        }
    }
}

impl fmt::Display for Resource {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Instructions => "instructions",
            Self::HelperCalls => "helper calls",
            Self::Bytes => "bytes that helpers move",
        })
    }
}

impl fmt::Display for Stop {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Budget { slot, resource } => {
                write!(out, "slot {slot}: it has used up its {resource}")
            }
            Self::Refused { slot, call } => {
                let name = Helper::of(*call).name;
                write!(out, "slot {slot}: {name} of memory that the caller may not access")
            }
            Self::BadReply { slot, call } => {
                let name = Helper::of(*call).name;
                write!(out, "slot {slot}: the executor's answer to {name} is out of range")
            }
            Self::Fault(fault) => fault.fmt(out),
            Self::Cancelled => write!(out, "cancelled"),
            Self::NotRunning => write!(out, "the machine does not run"),
        }
    }
}
