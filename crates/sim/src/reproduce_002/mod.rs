//! Figures and tables of paper 002 (Wei et al., *Characterizing and Optimizing Remote Persistent Memory with RDMA and
//! NVM*, USENIX ATC 2021) in virtual time, on the simulated adapters and persistent memory of
//! [`OPTANE_CX5`](crate::fabric::OPTANE_CX5), beside the numbers of the paper's text. **A model, not a measurement.**
//!
//! Programs post raw work requests and are charged by [`XEON_5215M`](crate::fabric::XEON_5215M). The numbers of the
//! paper's diagrams are not available, so its text is compared.
//!
//! | figure | load |
//! | --- | --- |
//! | 4, 6 | clients post READs and WRITEs of random addresses |
//! | 5, 7 | clients send messages, and 20 threads of the server load or store the payload |
//! | 8, 9 | as 6 and 7, hint by hint |
//! | 10 | random addresses of one DIMM |
//! | 11 | one client, one payload after the other |
//! | 12, 13 | counters of the memory |
//! | §4.3 | one WRITE and what makes it persistent |
//! | §5 | WRITEs with H1 to H6 on the next generation, faster adapters, and memory behind CXL |
//!
//! Hints are those of 002 Table 3: H1 own socket, H2 few threads a DIMM, H3 DDIO off, H4 non-temporal stores, H5 256
//! bytes, H6 and H7 64 bytes, H8 atomics in DRAM, H9 WRITE and READ by one doorbell.

mod access;
mod factors;
mod future;
mod hints;
mod limits;
mod partial;
mod persist;
mod scene;

use crate::paper_figure::PaperFigure;
use access::Diagram::{Bandwidths, Rates};
use farside_fabric::FabricError;

/// The figures, tables and sections (`s4.3`, `s5`), in the order of the paper.
pub const FIGURES: [&str; 24] = [
    "I", "II", "III", "4a", "4b", "5a", "5b", "6a", "6b", "7a", "7b", "8a", "8b", "9a", "9b",
    "10a", "10b", "11a", "11b", "12", "13a", "13b", "s4.3", "s5",
];

/// Figures of the paper that are not reproduced, and why.
pub const NOT_REPRODUCED: &str =
    "1 to 3, which are drawings without measurements, and 14 to 17, which are two applications";

/// Returns the figures that a name means: one of [`FIGURES`], or the number of those with letters, as `6`; none if
/// there is no such figure.
pub fn named(name: &str) -> Vec<&'static str> {
    let lettered = |id: &str| id.strip_suffix(|c: char| c.is_ascii_lowercase()) == Some(name);
    FIGURES.into_iter().filter(|id| *id == name || lettered(id)).collect()
}

/// Returns a figure by its id, one of [`FIGURES`]; `None` for others. Deterministic: a function of the profile.
///
/// # Errors
/// None that a caller causes: a study failed on the simulated fabric, which is a defect of it.
pub fn figure(id: &str) -> Result<Option<PaperFigure>, FabricError> {
    Ok(Some(match id {
        "I" => hints::granularities(),
        "II" => hints::testbed(),
        "III" => hints::hints()?,
        "4a" => access::reads("4a", Rates)?,
        "4b" => access::reads("4b", Bandwidths)?,
        "5a" => access::messages_read("5a", Rates)?,
        "5b" => access::messages_read("5b", Bandwidths)?,
        "6a" => access::writes("6a", Rates)?,
        "6b" => access::writes("6b", Bandwidths)?,
        "7a" => access::messages_written("7a", Rates)?,
        "7b" => access::messages_written("7b", Bandwidths)?,
        "8a" => factors::small_writes()?,
        "8b" => factors::large_writes()?,
        "9a" => factors::small_messages()?,
        "9b" => factors::large_messages()?,
        "10a" => limits::threads_at_one_dimm()?,
        "10b" => limits::clients_at_one_dimm()?,
        "11a" => limits::bulk_writes()?,
        "11b" => limits::amplification()?,
        "12" => partial::requests(),
        "13a" => partial::writes()?,
        "13b" => partial::messages()?,
        "s4.3" => persist::latencies()?,
        "s5" => future::generations()?,
        _ => return Ok(None),
    }))
}
