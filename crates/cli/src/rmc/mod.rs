//! `farside rmc`: remote memory calls, from source to result.
//!
//! `build` and `check` verify programs and report their worst-case cost; `run` runs one on files, with the engines
//! that serve calls; `list` lists the library. `serve` lends memory over a fabric; `register`, `call` and `listen`
//! are its callers.

pub(crate) mod bench;
pub(crate) mod build;
pub(crate) mod call;
pub(crate) mod check;
mod connection;
mod fairness;
pub(crate) mod figures;
pub(crate) mod list;
pub(crate) mod listen;
mod membership;
mod memory;
mod peers;
mod place;
mod probe;
mod registrations;
pub(crate) mod run;
mod search_server;
pub(crate) mod serve;
mod source;
mod states;

/// Default name of a server, if an address gives only its host.
const NAME: &str = "rmc";

fn median(mut samples: Vec<u64>) -> u64 {
    samples.sort_unstable();
    samples.get(samples.len() / 2).copied().unwrap_or_default()
}
