//! Figures and tables of paper 000 (Ma et al., *Thinking More about RDMA Memory Semantics*, IEEE Cluster 2020) in
//! virtual time, on the simulated adapters of [`CONNECTX3_IB`](crate::fabric::CONNECTX3_IB), beside the numbers that
//! the paper's text and tables give. **A model, not a measurement.**
//!
//! Programs post raw work requests and are charged by [`E5_2640_V2`](crate::fabric::E5_2640_V2). The numbers of the
//! paper's diagrams are not available, so its text and tables are compared.
//!
//! | figure | load |
//! | --- | --- |
//! | 1 | one WRITE or READ at a time; rates with eight queue pairs |
//! | 3, 4, 5 | one batch at a time and thread: SP copies and posts one WRITE, Doorbell posts a list, SGL posts one WRITE of many slices |
//! | 6 | eight queue pairs, addresses in steps or at random at each end |
//! | 8 | one WRITE at a time; a block is written after `theta` copies into it |
//! | Table III | one request at a time for latencies; eight queue pairs for rates |
//! | 10 | one machine a client; a lock is taken and released, a number is taken |
//! | 12, 13 | one thread a front-end, two a machine; a put is a FETCH_ADD and a WRITE, `theta` hot ones a lock and a block |
//! | 15 | executors on eight machines, each waiting for a batch; rows of 64 bytes |
//! | 16 to 18 | the shuffle of 15 with rows of 16 bytes, then a time for each row that comes from one machine's |
//! | 19 | one thread an engine, two a machine; a batch is a FETCH_ADD and a WRITE of slices |
//!
//! The applications are those of the paper's text; the lines *Farside* post the requests of `farside_apps` as its tests
//! count them, without what its programs compute. Not reproduced: what the paper measures in local memory (Figure 6c,
//! local locks and vector IO), since processor caches are not modelled.

mod access;
mod atomics;
mod hashtable;
mod join;
mod log;
mod machines;
pub(crate) mod scene;
mod shuffle;
mod sockets;
mod vector;

use crate::paper_figure::PaperFigure;
use farside_fabric::FabricError;

/// The figures and tables, in the order of the paper.
pub const FIGURES: [&str; 24] = [
    "1", "3a", "3b", "4", "5", "I", "6a", "6b", "6c", "6d", "8", "II", "III", "10a", "10b", "12",
    "13a", "13b", "15", "16a", "16b", "17", "18", "19",
];

/// Returns the figures that a name means: one of [`FIGURES`], or the number of those with letters, as `6`; none if
/// there is no such figure.
pub fn named(name: &str) -> Vec<&'static str> {
    let lettered = |id: &str| id.strip_suffix(|c: char| c.is_ascii_lowercase()) == Some(name);
    FIGURES.into_iter().filter(|id| *id == name || lettered(id)).collect()
}

/// Figures of the paper that are not reproduced, and why.
pub const NOT_REPRODUCED: &str = "2, 7, 9, 11 and 14, which are drawings without measurements";

/// Returns a figure by its id, one of [`FIGURES`]; `None` for others. Deterministic: a function of the profile.
///
/// # Errors
/// None that a caller causes: a study failed on the simulated fabric, which is a defect of it.
pub fn figure(id: &str) -> Result<Option<PaperFigure>, FabricError> {
    Ok(Some(match id {
        "1" => access::throttling()?,
        "3a" => vector::payloads("3a", 4)?,
        "3b" => vector::payloads("3b", 16)?,
        "4" => vector::batches()?,
        "5" => vector::threads()?,
        "I" => vector::judgement(),
        "6a" => access::patterns("6a", scene::Verb::Write)?,
        "6b" => access::patterns("6b", scene::Verb::Read)?,
        "6c" => access::local(),
        "6d" => access::regions()?,
        "8" => access::consolidation()?,
        "II" => sockets::memory(),
        "III" => sockets::placements()?,
        "10a" => atomics::locks()?,
        "10b" => atomics::sequencers()?,
        "12" => hashtable::optimizations()?,
        "13a" => hashtable::shares()?,
        "13b" => hashtable::thetas()?,
        "15" => shuffle::batches()?,
        "16a" => join::batches()?,
        "16b" => join::executors()?,
        "17" => join::sizes()?,
        "18" => join::utilization()?,
        "19" => log::engines()?,
        _ => return Ok(None),
    }))
}
