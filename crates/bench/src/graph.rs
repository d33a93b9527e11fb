//! Kernels on a graph that several nodes share, compared with one thread on plain memory.

use crate::settings::{BenchGraph, KernelName};
use farside_command::failure::Failure;
use farside_command::output::{Output, Table, count, time};
use farside_launcher::cluster::{Cluster, unexpected};
use farside_launcher::hosts::Hosts;
use farside_launcher::worker::{
    Answer, Command, GraphForm, GraphSize, GraphTask, Kernel, NodeSpec, NodeStats,
};
use serde::Serialize;

/// Memory of a node besides its part of the graph.
const MEMORY_BYTES_MIN: u64 = 64 << 20;
/// Cache of a node: for the parts of others where they cannot be read directly.
const CACHE_BYTES: u64 = 64 << 20;
/// The share of the sequential speed that each access by itself shall reach.
const WORDS_TARGET: f64 = 0.1;

/// One kernel in one form.
#[derive(Clone, Debug, Serialize)]
struct GraphFigure {
    kernel: &'static str,
    form: GraphForm,
    median_ns: u64,
    best_ns: u64,
    sequential_median_ns: u64,
    sequential_best_ns: u64,
    /// The sequential median divided by this median.
    speed: f64,
    /// The speed to be reached, if any.
    target: Option<f64>,
    met: Option<bool>,
}

impl GraphFigure {
    fn new(kernel: KernelName, form: GraphForm, times: &mut [u64], sequential: &mut [u64]) -> Self {
        let ((median_ns, best_ns), (sequential_median_ns, sequential_best_ns)) =
            (median_and_best(times), median_and_best(sequential));
        let speed = sequential_median_ns as f64 / median_ns.max(1) as f64;
        let target = match (kernel, form) {
            (KernelName::Bfs, GraphForm::Bulk) => None,
            (_, GraphForm::Bulk) => Some(1.0),
            (_, GraphForm::Words) => Some(WORDS_TARGET),
        };
        Self {
            kernel: kernel.name(),
            form,
            median_ns,
            best_ns,
            sequential_median_ns,
            sequential_best_ns,
            speed,
            target,
            met: target.map(|target| speed >= target),
        }
    }
}

/// Runs `farside bench graph`.
///
/// # Errors
/// `Failure::Check` if a result differs from the sequential one.
pub fn run(arguments: &BenchGraph, output: Output) -> Result<(), Failure> {
    #[derive(Serialize)]
    struct GraphReport {
        #[serde(flatten)]
        size: GraphSize,
        figures: Vec<GraphFigure>,
        nodes: Vec<NodeStats>,
        fabric: &'static str,
    }
    let hosts = Hosts::of(&arguments.places)?;
    let spec = NodeSpec {
        memory_bytes: memory_bytes(arguments),
        cache_bytes: CACHE_BYTES,
        ..NodeSpec::bench("graph", None, None)
    };
    let mut cluster = Cluster::start(&hosts, &spec, usize::from(arguments.nodes))?;
    output.note(format!("generating 2^{} vertices", arguments.scale));
    let size = build(&mut cluster, arguments)?;
    let steps = arguments.kernels.len() * (1 + arguments.forms.len());
    let bar = output.bar("runs", u64::from(arguments.runs) * steps as u64);
    let mut figures = Vec::new();
    for name in &arguments.kernels {
        figures.extend(measure(&mut cluster, arguments, *name, || bar.inc(1))?);
    }
    bar.finish_and_clear();
    let nodes = cluster.stats()?.into_iter().map(|(_, stats)| stats).collect();
    cluster.leave()?;
    let (vertices, edges) = (count(size.vertices), count(size.edges));
    output.line(format!("{vertices} vertices, {edges} edges, {} nodes", arguments.nodes));
    output.line(table(&figures).text());
    output.value(&GraphReport { size, figures, nodes, fabric: hosts.fabric() });
    Ok(())
}

/// Returns the memory of a node for its part of the graph and the arrays over all vertices, with reserve for uneven
/// parts.
fn memory_bytes(arguments: &BenchGraph) -> u64 {
    let vertices = 1_u64 << arguments.scale.min(32);
    let parts = (8 * u64::from(arguments.edge_factor) + 40) * vertices / u64::from(arguments.nodes);
    MEMORY_BYTES_MIN + parts + parts / 2 + 10 * vertices
}

/// Lets all nodes generate the graph and share it.
fn build(cluster: &mut Cluster, arguments: &BenchGraph) -> Result<GraphSize, Failure> {
    let members = cluster.workers_count();
    let &BenchGraph { scale, edge_factor, seed, .. } = arguments;
    let task = |rank| GraphTask::Build { scale, edge_factor, seed, rank, members };
    let answers = ask_each(cluster, |rank| Command::Graph(task(rank)))?;
    let one = |answer| match answer {
        Answer::Graph(size) => Ok(size),
        other => Err(unexpected(&other)),
    };
    let sizes: Vec<_> = answers.into_iter().map(one).collect::<Result<_, _>>()?;
    let none = || Failure::usage("a graph needs a node");
    sizes.first().copied().ok_or_else(none)
}

/// Sends every node a command, and returns their answers.
fn ask_each(
    cluster: &mut Cluster,
    command: impl Fn(usize) -> Command,
) -> Result<Vec<Answer>, Failure> {
    let all = (0..cluster.workers_count()).map(|index| (index, command(index))).collect();
    cluster.ask_all(all, |_| {})?.into_iter().collect()
}

/// Measures a kernel: in each run, the sequential one and then each form, whose result is checked.
fn measure(
    cluster: &mut Cluster,
    arguments: &BenchGraph,
    name: KernelName,
    ran: impl Fn(),
) -> Result<Vec<GraphFigure>, Failure> {
    let kernel = match name {
        KernelName::Bfs => Kernel::Bfs,
        KernelName::PageRank => Kernel::PageRank(arguments.iterations),
        KernelName::Components => Kernel::Components,
    };
    let mut sequential = Vec::new();
    let mut times = vec![Vec::new(); arguments.forms.len()];
    for _ in 0..arguments.runs {
        let answer = cluster.ask(0, Command::Graph(GraphTask::Sequential(kernel)))?;
        sequential.push(longest(vec![answer])?);
        ran();
        for (form, times) in arguments.forms.iter().zip(&mut times) {
            let task = Command::Graph(GraphTask::Shared(kernel, *form));
            times.push(longest(ask_each(cluster, |_| task.clone())?)?);
            cluster.ask(0, Command::Graph(GraphTask::Check(kernel)))?;
            ran();
        }
    }
    let each = arguments.forms.iter().zip(&mut times);
    Ok(each.map(|(form, times)| GraphFigure::new(name, *form, times, &mut sequential)).collect())
}

/// Returns the longest time.
fn longest(answers: Vec<Answer>) -> Result<u64, Failure> {
    let times = answers.into_iter().map(|answer| match answer {
        Answer::ElapsedNs(time) => Ok(time),
        other => Err(unexpected(&other)),
    });
    times.collect::<Result<Vec<_>, _>>().map(|times| times.into_iter().max().unwrap_or(0))
}

fn median_and_best(times: &mut [u64]) -> (u64, u64) {
    times.sort_unstable();
    let at = |index: usize| times.get(index).copied().unwrap_or(0);
    (at(times.len() / 2), at(0))
}

fn table(rows: &[GraphFigure]) -> Table {
    let heads =
        ["kernel", "form", "median", "best", "sequential", "its best", "speed", "target", ""];
    let mut table = Table::new(heads);
    for row in rows {
        let form = match row.form {
            GraphForm::Bulk => "bulk",
            GraphForm::Words => "words",
        };
        table.row([
            row.kernel.to_owned(),
            form.to_owned(),
            time(row.median_ns as f64),
            time(row.best_ns as f64),
            time(row.sequential_median_ns as f64),
            time(row.sequential_best_ns as f64),
            format!("{:.2} x", row.speed),
            row.target.map(|target| format!(">= {target} x")).unwrap_or_default(),
            row.met.map_or("", |met| if met { "met" } else { "MISSED" }).to_owned(),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speed_is_ratio_of_medians_and_judged_by_form() {
        let row =
            |kernel, form| GraphFigure::new(kernel, form, &mut [30, 10, 20], &mut [5, 40, 10]);
        let bulk = row(KernelName::PageRank, GraphForm::Bulk);
        assert_eq!((bulk.median_ns, bulk.best_ns, bulk.speed), (20, 10, 0.5));
        assert_eq!((bulk.target, bulk.met), (Some(1.0), Some(false)));
        assert_eq!(row(KernelName::Components, GraphForm::Words).met, Some(true));
        assert_eq!(row(KernelName::Bfs, GraphForm::Bulk).met, None);
    }
}
