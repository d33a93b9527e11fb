//! Kronecker graphs as of Graph500.

use crate::ycsb::WorkloadRandom;
use std::fmt;

/// The probabilities of Graph500 of the upper left, upper right and lower left quarter.
const A: f64 = 0.57;
const B: f64 = 0.19;
const C: f64 = 0.19;

/// The parameters of a Kronecker graph: 2^`scale` vertices, `edge_factor` times as many edges.
///
/// *Source*: the generator of the Graph500 specification (kernel 0), with its permutation of the vertices. Edges may
/// repeat and may be loops.
///
/// ```
/// use farside_apps::graph::{Csr, Kronecker};
///
/// let graph = Csr::of_kronecker(&Kronecker::new(10, 16, 1).unwrap());
/// assert_eq!(graph.vertices(), 1024);
/// assert!(graph.edges() <= 2 * 16 * 1024, "each edge in both directions, without repetitions and loops");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Kronecker {
    scale: u32,
    edge_factor: u32,
    seed: u64,
}

/// A parameter of a Kronecker graph out of its range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KroneckerError {
    /// The scale is above [`Kronecker::SCALE_MAX`].
    Scale(u32),
    /// The edge factor is above [`Kronecker::EDGE_FACTOR_MAX`].
    EdgeFactor(u32),
}

impl fmt::Display for KroneckerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Scale(scale) => {
                write!(f, "scale: at most {}, and it is {scale}", Kronecker::SCALE_MAX)
            }
            Self::EdgeFactor(factor) => {
                write!(f, "edge factor: at most {}, and it is {factor}", Kronecker::EDGE_FACTOR_MAX)
            }
        }
    }
}

impl std::error::Error for KroneckerError {}

impl Kronecker {
    /// The largest scale: 16 million vertices, some GiB for each process that generates the graph.
    pub const SCALE_MAX: u32 = 24;
    /// The largest edge factor.
    pub const EDGE_FACTOR_MAX: u32 = 256;

    /// Returns the parameters, if they are in their ranges.
    ///
    /// # Errors
    /// The parameter that is out of its range.
    pub fn new(scale: u32, edge_factor: u32, seed: u64) -> Result<Self, KroneckerError> {
        if scale > Self::SCALE_MAX {
            return Err(KroneckerError::Scale(scale));
        }
        if edge_factor > Self::EDGE_FACTOR_MAX {
            return Err(KroneckerError::EdgeFactor(edge_factor));
        }
        Ok(Self { scale, edge_factor, seed })
    }

    /// Returns the number of vertices.
    pub fn vertices(&self) -> usize {
        1 << self.scale
    }

    /// Generates the edges, the same for the same parameters.
    pub fn edges(&self) -> Vec<(u32, u32)> {
        let mut random = WorkloadRandom::new(self.seed);
        let mut names: Vec<u32> = (0..1 << self.scale).collect();
        for last in (1..names.len()).rev() {
            let chosen = (random.unit() * (last + 1) as f64) as usize;
            names.swap(last, chosen.min(last));
        }
        let count = self.vertices() * self.edge_factor as usize;
        let edge = |_| {
            let (from, to) = self.edge(&mut random);
            (names[from], names[to])
        };
        (0..count).map(edge).collect()
    }

    /// Draws an edge: one quarter of the matrix for each bit.
    fn edge(&self, random: &mut WorkloadRandom) -> (usize, usize) {
        (0..self.scale).fold((0, 0), |(from, to), _| {
            let lower = random.unit() > A + B;
            let left = if lower { C / (1.0 - A - B) } else { A / (A + B) };
            let right = random.unit() > left;
            (from << 1 | usize::from(lower), to << 1 | usize::from(right))
        })
    }
}
