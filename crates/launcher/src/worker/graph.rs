//! A member of a group that shares a graph.

use super::wire::{Answer, GraphForm, GraphSize, GraphTask, Kernel};
use farside::{Group, Session};
use farside_apps::graph::{AccessForm, Csr, Kronecker, SharedGraph, sequential};
use farside_command::failure::Failure;
use std::time::Instant;

/// The greatest relative error of a rank, whose sums are in another order.
const RANK_ERROR_MAX: f64 = 1e-9;

/// The part of one node, and the whole graph in plain memory.
pub(super) struct GraphMember {
    session: Session,
    group: Group,
    graph: Csr,
    shared: SharedGraph,
    /// The results of the sequential kernels.
    expected: Results,
}

#[derive(Default)]
struct Results {
    distances: Vec<u32>,
    ranks: Vec<f64>,
    labels: Vec<u32>,
}

impl GraphMember {
    /// Generates the graph and shares it, together with the other members.
    pub(super) fn build(
        mut session: Session,
        parameters: &Kronecker,
        rank: usize,
        members: usize,
    ) -> Result<Self, Failure> {
        let graph = Csr::of_kronecker(parameters);
        let mut group = Group::join_as(&mut session, "graph", members, rank)?;
        let shared = SharedGraph::build(&mut session, &mut group, &graph)?;
        Ok(Self { session, group, graph, shared, expected: Results::default() })
    }

    pub(super) fn size(&self) -> GraphSize {
        let (vertices, edges) = (self.graph.vertices() as u64, self.graph.edges() as u64 / 2);
        GraphSize { vertices, edges }
    }

    /// Performs a task on the graph that is built.
    pub(super) fn perform(&mut self, task: &GraphTask) -> Result<Answer, Failure> {
        match task {
            GraphTask::Build { .. } => Ok(Answer::Graph(self.size())),
            GraphTask::Sequential(kernel) => Ok(self.sequential(*kernel)),
            GraphTask::Shared(kernel, form) => self.run(*kernel, *form),
            GraphTask::Check(kernel) => self.check(*kernel),
        }
    }

    fn sequential(&mut self, kernel: Kernel) -> Answer {
        let (graph, start) = (&self.graph, Instant::now());
        match kernel {
            Kernel::Bfs => self.expected.distances = sequential::distances(graph, graph.hub()),
            Kernel::PageRank(iterations) => {
                self.expected.ranks = sequential::page_rank(graph, iterations);
            }
            Kernel::Components => self.expected.labels = sequential::components(graph),
        }
        elapsed(start)
    }

    /// Runs a kernel; its time begins when all members are ready.
    fn run(&mut self, kernel: Kernel, form: GraphForm) -> Result<Answer, Failure> {
        let Self { session, group, shared, .. } = self;
        let form = match form {
            GraphForm::Bulk => AccessForm::Bulk,
            GraphForm::Words => AccessForm::Words,
        };
        shared.clear(session)?;
        let root = self.graph.hub();
        group.barrier(session)?;
        let start = Instant::now();
        match kernel {
            Kernel::Bfs => shared.search(session, group, form, root)?,
            Kernel::PageRank(iterations) => shared.rank_pages(session, group, form, iterations)?,
            Kernel::Components => shared.find_components(session, group, form)?,
        }
        Ok(elapsed(start))
    }

    fn check(&mut self, kernel: Kernel) -> Result<Answer, Failure> {
        let Self { session, shared, expected, .. } = self;
        let wrong = match kernel {
            Kernel::Bfs => {
                first_wrong(&shared.distances(session)?, &expected.distances, |a, b| a == b)
            }
            Kernel::PageRank(_) => first_wrong(&shared.ranks(session)?, &expected.ranks, |a, b| {
                (a - b).abs() <= RANK_ERROR_MAX * b
            }),
            Kernel::Components => {
                first_wrong(&shared.labels(session)?, &expected.labels, |a, b| a == b)
            }
        };
        wrong.map_or(Ok(Answer::Nothing), |wrong| Err(Failure::check(wrong)))
    }
}

fn elapsed(start: Instant) -> Answer {
    Answer::ElapsedNs(start.elapsed().as_nanos() as u64)
}

/// Describes the first vertex with another result than expected, if any.
fn first_wrong<T: Copy + std::fmt::Display>(
    found: &[T],
    expected: &[T],
    is_right: impl Fn(T, T) -> bool,
) -> Option<String> {
    if found.len() != expected.len() {
        return Some(format!("{} results, and not {}", found.len(), expected.len()));
    }
    let mut both = found.iter().zip(expected).enumerate();
    let (vertex, (found, expected)) = both.find(|(_, (one, other))| !is_right(**one, **other))?;
    Some(format!("vertex {vertex} has the result {found}, and not {expected}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_wrong_result_is_described() {
        let equal = |one, other| one == other;
        assert_eq!(first_wrong(&[1, 2], &[1, 2], equal), None);
        let wrong = first_wrong(&[1, 5, 6], &[1, 2, 3], equal).unwrap();
        assert_eq!(wrong, "vertex 1 has the result 5, and not 2");
        assert_eq!(first_wrong(&[1], &[1, 2], equal).unwrap(), "1 results, and not 2");
    }
}
