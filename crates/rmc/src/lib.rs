//! Remote memory calls (003): small user programs that run at the site of the memory.
//!
//! A program is written in C against `farside_rmc.h` and compiled by stock clang to the eBPF instruction
//! set ([`program::load`]), or assembled ([`assembler`]). [`verify()`] proves that it touches only its own
//! memory, calls only known helpers with fitting arguments, lets no address out and ends within a known
//! worst case, or else is stopped by a meter; a [`Verification`] does so by steps. A [`Machine`] runs one call of it
//! and suspends at each access to memory outside; the executor that has the memory answers. [`library`] has programs
//! for common tasks.
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
//!     unreachable!("`Far` answers nothing in place");
//! };
//! assert_eq!(request.arguments[..2], [7, 64]);
//! machine.answer(verified.program(), Lent::default(), 41, &[])?;
//! assert_eq!(machine.run(&verified, Lent::default(), &mut Far), Outcome::Returned(42));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Design decisions
//!
//! - *eBPF* because clang generates it, it is widely known, and small enough to verify; not WebAssembly, since its
//!   engines compile for milliseconds, nor machine code, which cannot be verified.
//! - *A machine is a value.* A suspended call takes some hundred bytes, without a native stack. Therefore many calls
//!   overlap on one core, and a call can resume at another site.
//! - *Helpers are the only access to outside memory*, so that a program runs at the client, an adapter or the server.
//! - *An access to a word that is not permitted ends the call*, so that loads in loops need no check of a status.
//! - *Meters charge back edges*, by distance: the sum bounds what was executed, all engines count the same, and
//!   straight-line code is free.
//! - *Parameters are read-only*, so that a call can be retransmitted unchanged.
//! - *Bytes of a buffer that a helper does not write are cleared*, so that no bytes of another call are seen.
//!
//! Not included: I/O, clocks, threads, randomness, the standard library, and unsafe code except to enter machine code.
#![no_std]
#![deny(unsafe_code)]

extern crate alloc;

pub mod assembler;
mod cost;
mod decode;
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
