//! Remote memory calls (003): small programs of the user that run beside the memory.
//!
//! A program is written in C against `farside_rmc.h` and compiled by stock clang to the eBPF instruction
//! set ([`program::load`]), or assembled ([`assembler`]). [`verify()`] proves that it touches only its own
//! memory, calls only known helpers with fitting arguments, lets no address out and ends within a known
//! worst case, or else is stopped by a meter; a [`Verification`] does so by steps. A [`Machine`] runs one call
//! of it and suspends at each access to memory outside; whoever has that memory answers. [`library`] has
//! programs that are ready.
//!
//! ```
//! use farside_rmc::assembler::assemble;
//! use farside_rmc::run::{Far, Lent, Machine, Outcome};
//! use farside_rmc::{Limits, verify};
//!
//! // The 8 bytes at (region, offset) plus one; both numbers are parameters.
//! let program = assemble(
//!     "
//!     r2 = *(u64 *)(r1 + 8)
//!     r1 = *(u64 *)(r1 + 0)
//!     call load_u64
//!     r0 += 1
//!     exit
//!     ",
//! )?;
//! let verified = verify(program, &Limits::DEFAULT)?;
//! assert_eq!((verified.worst().instructions, verified.worst().words), (5, 1));
//! assert_eq!(verified.context_bytes(), 16);
//!
//! let mut machine = Machine::new();
//! let context = [[7u64.to_le_bytes(), 64u64.to_le_bytes()]].concat().concat();
//! machine.start(&verified, &context, Limits::DEFAULT.budget)?;
//! let Outcome::Suspended(request) = machine.run(&verified, Lent::default(), &mut Far) else {
//!     unreachable!("nobody near answers");
//! };
//! assert_eq!(request.arguments[..2], [7, 64]);
//! machine.answer(verified.program(), Lent::default(), 41, &[])?;
//! assert_eq!(machine.run(&verified, Lent::default(), &mut Far), Outcome::Returned(42));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Why it is like this
//!
//! - *eBPF* because clang makes it, people know it, and it is small enough to be verified by one page of
//!   rules; not WebAssembly, whose engines bring a compiler that takes milliseconds, nor machine code,
//!   which cannot be verified.
//! - *A machine is a value.* What a suspended call is fits into some hundred bytes, without a stack of the
//!   processor's. So many calls overlap on one core, and a call can go on at another place.
//! - *Memory outside is reached by helpers alone*, so that the same program runs at the client, beside an
//!   adapter or at the server, whatever memory is there.
//! - *A word that must not be accessed ends the call*, so that loading words needs no second result and
//!   no test of it in each turn of a loop. Buffers come with a status.
//! - *Meters charge jumps backwards*, by the distance: the sum bounds what was executed, both interpreters
//!   and compiled code count the same, and straight code pays nothing.
//! - *Parameters are read-only*, so that a call that has to be sent again is the same call.
//! - *What a helper leaves of a buffer is cleared*, so that no bytes of another call are ever seen.
//!
//! What is absent: input and output, clocks, threads, randomness, the standard library, and unsafe code
//! but where machine code is mapped and entered.
#![no_std]
#![deny(unsafe_code)]

extern crate alloc;

pub mod assembler;
pub mod helpers;
pub mod isa;
pub mod library;
mod limits;
pub mod program;
pub mod run;
pub mod verify;

pub use limits::{Budget, FRAME_BYTES, FRAMES_MAX, Limits};
pub use program::Program;
pub use run::Machine;
pub use verify::{Refusal, Verification, Verified, verify};

/// The C header that programs include, for commands that compile them.
pub const HEADER: &str = include_str!("../include/farside_rmc.h");
