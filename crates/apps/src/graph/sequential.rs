//! The kernels for one thread on plain memory.

use super::csr::Csr;
use std::convert::Infallible;

/// The distance of a vertex that a search does not reach.
pub const UNREACHED: u32 = u32::MAX;
/// The damping factor of PageRank.
pub const DAMPING: f64 = 0.85;

/// Returns the distance of each vertex from `root`, by a queue; [`UNREACHED`] for all if there is no such vertex.
pub fn distances(graph: &Csr, root: usize) -> Vec<u32> {
    let mut distances = vec![UNREACHED; graph.vertices()];
    let mut queue = Vec::with_capacity(graph.vertices());
    if let Some(distance) = distances.get_mut(root) {
        *distance = 0;
        queue.push(root as u32);
    }
    let mut at = 0;
    while let Some(vertex) = queue.get(at).map(|vertex| *vertex as usize) {
        at += 1;
        let next = distances[vertex] + 1;
        for to in graph.row(vertex) {
            let distance = &mut distances[*to as usize];
            if *distance == UNREACHED {
                *distance = next;
                queue.push(*to);
            }
        }
    }
    distances
}

/// Returns the PageRank of each vertex after `iterations` iterations from the uniform distribution. Vertices without
/// edges give their rank to all vertices.
///
/// *Source*: Page, Brin, Motwani, Winograd, *The PageRank Citation Ranking*, 1998; the sum over the row of a vertex
/// as in the GAP benchmark suite (`pull`).
pub fn page_rank(graph: &Csr, iterations: u32) -> Vec<f64> {
    let vertices = graph.vertices();
    let mut ranks = vec![1.0 / vertices as f64; vertices];
    let mut shares = vec![0.0; vertices];
    for _ in 0..iterations {
        let mut dangling = 0.0;
        for (vertex, share) in shares.iter_mut().enumerate() {
            *share = share_of(ranks[vertex], graph.row(vertex).len(), &mut dangling);
        }
        let base = base_rank(vertices, dangling);
        for (vertex, rank) in ranks.iter_mut().enumerate() {
            *rank = base + DAMPING * sum_of(&shares, graph.row(vertex));
        }
    }
    ranks
}

/// Returns what a vertex gives to each neighbour, or adds its rank to `dangling`.
#[inline]
pub(super) fn share_of(rank: f64, neighbours: usize, dangling: &mut f64) -> f64 {
    if neighbours == 0 {
        *dangling += rank;
        return 0.0;
    }
    rank / neighbours as f64
}

/// Returns the sum of what the neighbours give. Not inlined: the sum stays in a register then.
#[inline(never)]
pub(super) fn sum_of(shares: &[f64], neighbours: &[u32]) -> f64 {
    neighbours.iter().map(|neighbour| shares[*neighbour as usize]).sum()
}

/// Returns the rank that every vertex gets, whatever its neighbours.
pub(super) fn base_rank(vertices: usize, dangling: f64) -> f64 {
    (1.0 - DAMPING + DAMPING * dangling) / vertices as f64
}

/// Returns the component of each vertex, named by its lowest vertex: union-find over each edge once.
pub fn components(graph: &Csr) -> Vec<u32> {
    let mut parents: Vec<u32> = (0..graph.vertices() as u32).collect();
    for vertex in 0..graph.vertices() as u32 {
        let lower = graph.row(vertex as usize).iter().copied().take_while(|to| *to < vertex);
        let Ok(()) = join(&mut parents[..], vertex, lower);
    }
    (0..graph.vertices() as u32)
        .map(|vertex| {
            let Ok(root) = find(&mut parents[..], vertex);
            root
        })
        .collect()
}

/// A forest of disjoint sets: the parent of each vertex, which is lower, or the vertex itself at a root.
pub(super) trait Forest {
    type Error;

    fn parent(&mut self, vertex: u32) -> Result<u32, Self::Error>;

    fn set_parent(&mut self, vertex: u32, parent: u32) -> Result<(), Self::Error>;
}

impl Forest for [u32] {
    type Error = Infallible;

    #[inline]
    fn parent(&mut self, vertex: u32) -> Result<u32, Infallible> {
        Ok(self[vertex as usize])
    }

    #[inline]
    fn set_parent(&mut self, vertex: u32, parent: u32) -> Result<(), Infallible> {
        self[vertex as usize] = parent;
        Ok(())
    }
}

/// Returns the lowest vertex of a set; halves the path to it (Tarjan and van Leeuwen, JACM 1984).
#[inline]
pub(super) fn find<F: Forest + ?Sized>(forest: &mut F, vertex: u32) -> Result<u32, F::Error> {
    let (mut at, mut parent) = (vertex, forest.parent(vertex)?);
    while parent != at {
        let above = forest.parent(parent)?;
        if above != parent {
            forest.set_parent(at, above)?;
        }
        (at, parent) = (parent, above);
    }
    Ok(at)
}

/// Joins the sets of a vertex and of others; the lowest root stays one.
#[inline]
pub(super) fn join<F: Forest + ?Sized>(
    forest: &mut F,
    vertex: u32,
    others: impl Iterator<Item = u32>,
) -> Result<(), F::Error> {
    let mut root = find(forest, vertex)?;
    for other in others {
        if forest.parent(other)? == root {
            continue;
        }
        let found = find(forest, other)?;
        if found < root {
            forest.set_parent(root, found)?;
            root = found;
        } else if root < found {
            forest.set_parent(found, root)?;
        }
    }
    Ok(())
}
