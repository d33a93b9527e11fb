//! Programs in text, as LLVM writes eBPF, and back; and a builder for Rust code.
//!
//! ```
//! use farside_rmc::assembler::assemble;
//!
//! let program = assemble(
//!     "
//!     // The sum of the numbers below ten.
//!         r0 = 0
//!         r1 = 0
//!     again:
//!         r0 += r1
//!         r1 += 1
//!         if r1 < 10 goto again
//!         exit
//!     ",
//! )?;
//! assert_eq!(program.code.len(), 6);
//! # Ok::<(), farside_rmc::assembler::AssembleError>(())
//! ```
//!
//! Labels end with a colon. A label after `.function` starts a function, which `call name` calls; the
//! same form calls helpers by name or number. `r1 = constant 8`, `r1 = own 8`, `r1 = shared 8` and
//! `r1 = state 2` are the wide loads of addresses and handles. Directives declare data:
//!
//! ```text
//! .program name              what it is called
//! .constants 01 02 ff        bytes in hexadecimal, appended
//! .own 16                    bytes of variables of each queue pair, initially zero
//! .shared 16                 bytes of variables that queue pairs share, initially zero
//! .state name map 8 16 100 shared      kind, bytes of key and value, entries, scope
//! ```

mod builder;
mod disassemble;
mod parse;

pub use builder::{BuildError, Builder, Label};
pub use disassemble::disassemble;
pub use parse::{AssembleError, assemble, assemble_named};
