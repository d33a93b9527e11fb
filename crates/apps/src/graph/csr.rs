//! A graph in plain memory.

use super::kronecker::Kronecker;
use std::ops::Range;

/// An undirected graph as compressed sparse rows: each edge in the rows of both of its vertices, rows in ascending
/// order, without loops and repetitions.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Csr {
    offsets: Vec<u64>,
    targets: Vec<u32>,
}

impl Csr {
    /// Builds the graph of `vertices` vertices with these edges.
    ///
    /// # Panics
    /// If an edge names a vertex that is not below `vertices`.
    pub fn new(vertices: usize, edges: &[(u32, u32)]) -> Self {
        let both = || {
            let proper = edges.iter().filter(|(from, to)| from != to);
            proper.flat_map(|(from, to)| [(*from, *to), (*to, *from)])
        };
        let mut ends = vec![0; vertices + 1];
        both().for_each(|(from, _)| ends[from as usize + 1] += 1);
        for vertex in 0..vertices {
            ends[vertex + 1] += ends[vertex];
        }
        let mut next = ends.clone();
        let mut targets = vec![0; ends[vertices]];
        for (from, to) in both() {
            assert!((to as usize) < vertices, "vertex {to} of {vertices}");
            targets[next[from as usize]] = to;
            next[from as usize] += 1;
        }
        let (mut offsets, mut kept) = (vec![0], 0);
        for row in ends.windows(2) {
            targets[row[0]..row[1]].sort_unstable();
            let begin = kept;
            for at in row[0]..row[1] {
                if kept == begin || targets[kept - 1] != targets[at] {
                    targets[kept] = targets[at];
                    kept += 1;
                }
            }
            offsets.push(kept as u64);
        }
        targets.truncate(kept);
        targets.shrink_to_fit();
        Self { offsets, targets }
    }

    /// Generates a Kronecker graph.
    pub fn of_kronecker(parameters: &Kronecker) -> Self {
        Self::new(parameters.vertices(), &parameters.edges())
    }

    /// Returns the number of vertices.
    pub fn vertices(&self) -> usize {
        self.offsets.len() - 1
    }

    /// Returns the number of entries of all rows: twice the number of edges.
    pub fn edges(&self) -> usize {
        self.targets.len()
    }

    /// Returns the neighbours of a vertex.
    ///
    /// # Panics
    /// If there is no such vertex.
    #[inline]
    pub fn row(&self, vertex: usize) -> &[u32] {
        &self.targets[self.offsets[vertex] as usize..self.offsets[vertex + 1] as usize]
    }

    /// Returns a vertex with the most neighbours, where a search reaches much of the graph; 0 without any vertex.
    pub fn hub(&self) -> usize {
        (0..self.vertices()).max_by_key(|vertex| self.row(*vertex).len()).unwrap_or(0)
    }

    /// Returns the first vertices of `parts` parts with about as many entries each, and at the end the number of
    /// vertices. All but the last are multiples of `step`.
    pub(super) fn cuts(&self, parts: usize, step: usize) -> Vec<usize> {
        let cut = |part: usize| {
            let before = (self.edges() * part / parts) as u64;
            self.offsets.partition_point(|offset| *offset < before).min(self.vertices())
        };
        let inner = (0..parts).map(|part| cut(part) / step * step);
        inner.chain([self.vertices()]).collect()
    }

    /// Returns the offsets of these rows in their own entries, and the entries.
    pub(super) fn part(&self, rows: Range<usize>) -> (Vec<u64>, &[u32]) {
        let offsets = &self.offsets[rows.start..=rows.end];
        let (first, end) = (offsets[0], offsets[offsets.len() - 1]);
        let entries = &self.targets[first as usize..end as usize];
        (offsets.iter().map(|offset| offset - first).collect(), entries)
    }
}
