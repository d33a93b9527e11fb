//! `farside rmc`: remote memory calls, from source to result.
//!
//! `build` and `check` verify programs and report their worst-case cost; `run` runs one on files, with the engines
//! that serve calls; `list` lists the library. `serve` lends memory over a fabric; `register`, `call` and `listen`
//! are its callers.

pub(crate) mod build;
pub(crate) mod call;
pub(crate) mod check;
mod connection;
pub(crate) mod list;
pub(crate) mod listen;
mod membership;
mod memory;
mod place;
mod probe;
pub(crate) mod run;
pub(crate) mod serve;
mod source;
mod states;
