//! Vector IO (paper 000, section III-A): how the pieces of one transfer become work requests.

use farside_base::Capabilities;
use std::fmt;

/// How a [`RangeList`](super::RangeList) is moved.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[non_exhaustive]
pub enum VectorIo {
    /// The one with the lowest expected cost ([`VectorPlan`]).
    #[default]
    Auto,
    /// A work request for each range, up to 32 by one doorbell (*Doorbell* in the paper).
    Doorbell,
    /// A work request for ranges that are adjacent in the remote memory, with a list of their pieces in the buffer
    /// (*SGL*: scatter and gather list).
    Gather,
    /// The pieces are copied to or from one piece of staging memory by this processor (*SP*: software packing).
    Stage,
}

impl VectorIo {
    /// The three ways.
    pub const ALL: [Self; 3] = [Self::Doorbell, Self::Gather, Self::Stage];

    /// Returns its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Doorbell => "doorbell",
            Self::Gather => "gather",
            Self::Stage => "stage",
        }
    }
}

/// What a client assumes about costs, in nanoseconds: of its thread, not of the network.
#[derive(Clone, Copy, PartialEq, Debug)]
#[non_exhaustive]
pub struct VectorCosts {
    /// Of a work request with its completion.
    pub request_ns: f64,
    /// Of a piece of a request.
    pub slice_ns: f64,
    /// Of a copy to or from staging memory, however short.
    pub copy_ns: f64,
    /// Of each byte copied.
    pub byte_ns: f64,
}

impl Default for VectorCosts {
    /// Measured by `farside bench vector` over shared memory on a virtual x86-64 processor.
    fn default() -> Self {
        Self { request_ns: 55.0, slice_ns: 12.0, copy_ns: 9.0, byte_ns: 0.04 }
    }
}

/// What the cost of a list depends on.
#[derive(Clone, Copy)]
pub(super) struct ListForm {
    pub(super) ranges: u64,
    pub(super) bytes: u64,
    /// Runs of ranges that are adjacent in the remote memory: requests if they are staged. There may be more where one
    /// passes 4 GiB.
    pub(super) runs: u64,
    /// Their pieces in the buffer.
    pub(super) pieces: u64,
}

/// What each way of moving a list would cost, and which one is chosen.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub struct VectorPlan {
    /// The way with the lowest cost.
    pub chosen: VectorIo,
    /// Work requests and expected cost in nanoseconds, in the order of [`VectorIo::ALL`].
    pub ways: [(u64, f64); 3],
    ranges: u64,
    bytes: u64,
}

impl VectorPlan {
    /// Compares the ways for a list of this form on a fabric.
    pub(super) fn new(form: ListForm, has: &Capabilities, costs: &VectorCosts) -> Self {
        let ListForm { ranges, bytes, runs: staged, pieces } = form;
        let gathered = staged.max(pieces.div_ceil(has.slices_max.max(1).into()));
        let request = |count: u64| count as f64 * costs.request_ns;
        let ways = [
            (ranges, request(ranges)),
            (gathered, request(gathered) + (pieces - gathered.min(pieces)) as f64 * costs.slice_ns),
            (
                staged,
                request(staged) + ranges as f64 * costs.copy_ns + bytes as f64 * costs.byte_ns,
            ),
        ];
        let mut chosen = 1; // equal costs: no copies, and fewer requests
        for at in [0, 2] {
            if ways[at].1 < ways[chosen].1 {
                chosen = at;
            }
        }
        Self { chosen: VectorIo::ALL[chosen], ways, ranges, bytes }
    }
}

/// `stage: 16 ranges, 1024 B; doorbell 16 requests, 880 ns; gather 2 requests, 278 ns; stage 1 request, 240 ns`
impl fmt::Display for VectorPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} ranges, {} B", self.chosen.name(), self.ranges, self.bytes)?;
        for (way, (requests, cost_ns)) in VectorIo::ALL.iter().zip(self.ways) {
            let plural = if requests == 1 { "" } else { "s" };
            write!(f, "; {} {requests} request{plural}, {cost_ns:.0} ns", way.name())?;
        }
        Ok(())
    }
}
