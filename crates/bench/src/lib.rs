//! Benchmarks of `farside bench`: figures, each with its baseline; and the [`demo`] of the command.
#![forbid(unsafe_code)]

mod baseline;
mod between;
mod channels;
mod contended;
pub mod demo;
pub mod durable;
mod fabric;
pub mod graph;
mod idle;
mod memory;
pub mod onesided;
pub mod plot;
mod policies;
mod recovery;
mod report;
pub mod rmc;
pub mod settings;
mod table;
mod window;
pub mod ycsb;

use crate::settings::{BenchChannels, BenchFabric, Effort};
use farside::Node;
use farside_command::failure::Failure;
use farside_command::output::Output;
use farside_launcher::cluster::Cluster;
use farside_launcher::ends::pair::{Mode, PairEnd};
use farside_launcher::hosts::Hosts;
use farside_launcher::worker::{Command, NodeSpec};
use memory::Bench;
use report::Report;
use std::time::Duration;

/// Spin budget of a home node that must not sleep during a measurement.
const AWAKE_NS: u64 = 10_000_000_000;

/// Measures the data channels.
pub fn channels(arguments: &BenchChannels, output: Output) -> Result<(), Failure> {
    channels::run(arguments, output)
}

/// Measures the coherent memory.
pub fn memory(effort: &Effort, output: Output) -> Result<(), Failure> {
    let mut report = Report::new(effort.windows, effort.only.clone());
    output.note("home awake");
    let other = report.allowed().processor(1);
    let awake = NodeSpec::bench("awake", Some(AWAKE_NS), other);
    with_home(&awake, |bench| bench.awake(&mut report))?;
    output.note("home asleep");
    let asleep = NodeSpec::bench("asleep", None, other);
    with_home(&asleep, |bench| bench.asleep(&mut report))?;
    output.note("idle");
    idle::time(&mut report)?;
    idle::memory(&mut report)?;
    output.note("contended locks");
    report.allowed().allow();
    contended::measure(&mut report)?;
    report.print(output);
    Ok(())
}

/// Runs `run` on a cluster of two nodes: a worker's, which starts the cluster, and this process's.
fn with_home(
    spec: &NodeSpec,
    run: impl FnOnce(&mut Bench<'_>) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let mut cluster = Cluster::start(&Hosts::Machine, spec, 1)?;
    let mine = NodeSpec { create: false, spin_ns: None, ..spec.clone() };
    let node = Node::join(&mine.config()?)?;
    node.wait_for_members(2, Duration::from_secs(10))?;
    run(&mut Bench::new(&node, &mut cluster)?)?;
    node.leave()?;
    cluster.leave()
}

/// Measures a fabric between two ends; without an address, the shared-memory fabric.
pub fn fabric(arguments: &BenchFabric, output: Output) -> Result<(), Failure> {
    if arguments.is_of_two_ends() {
        return between::run(arguments, output);
    }
    let mut report = Report::new(arguments.effort.windows, arguments.effort.only.clone());
    for mode in [Mode::Asleep, Mode::Awake] {
        let listen = format!("bench-{}-{mode:?}", std::process::id());
        let mut cluster = Cluster::of_workers(&Hosts::Machine, 1)?;
        cluster.ask(
            0,
            Command::Serve {
                listen: listen.clone(),
                mode,
                processor: report.allowed().processor(1),
            },
        )?;
        let fabric = farside_command::fabrics::shm()?;
        let mut end = PairEnd::connect(&*fabric, &listen)?;
        if mode == Mode::Asleep {
            fabric::one_sided(&mut end, &mut report)?;
        }
        fabric::messages(&mut end, mode, &mut report)?;
    }
    report.print(output);
    Ok(())
}
