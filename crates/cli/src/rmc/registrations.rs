//! What registering each object of the library costs: those that name global addresses at an executor that
//! is part of a node.

use super::bench::Server;
use super::call::failed;
use super::{NAME, median};
use crate::arguments::{FabricArguments, FabricKind};
use crate::choice::{self, Chosen};
use crate::failure::Failure;
use crate::output::time;
use farside::call::rmc::library::ENTRIES;
use farside::call::{Caller, CallerOptions, Program};
use farside::{Config, Node};
use serde::Serialize;
use std::path::Path;
use std::time::Instant;

/// Rounds of an object at most: each keeps the executor from everything else.
const ROUNDS_MAX: usize = 50;
/// Bytes of memory and of cache of the node: no call is made.
const NODE_BYTES: u64 = 1 << 20;

/// From the first byte sent until the programs are known. Of each, the median.
#[derive(Debug, Serialize)]
pub(super) struct Registration {
    object: &'static str,
    /// Whether its programs need an executor that is part of a node.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    global: bool,
    /// Read and verified there: nobody has it registered.
    median_ns: u64,
    /// Where another session has.
    known_ns: u64,
}

/// Of every object: at an executor and, where that does not take it, at one that is part of a node. What
/// is registered there was given back by all before, unless another session is said to have it.
pub(super) fn measure(
    [caller, other]: [&mut Caller; 2],
    fabric: FabricKind,
    memory: &Path,
    rounds: usize,
) -> Result<Vec<Registration>, Failure> {
    let mut told = Vec::new();
    taken([caller, other], &mut told, false, rounds)?;
    let name = format!("bench-rmc-node-{}", std::process::id());
    let config = Config::new(&name).memory_bytes(NODE_BYTES).cache_bytes(NODE_BYTES);
    let founder = Node::create(&config)?;
    let at = if fabric == FabricKind::Tcp { "127.0.0.1:0" } else { &name };
    let server = Server::start(at, memory, &["--cluster", &name])?;
    let choice = FabricArguments::default();
    let Chosen { fabric: ours, address, .. } = choice::caller(&choice, &server.address, NAME)?;
    let connect = || Caller::connect(&ours, &address, &CallerOptions::default()).map_err(failed);
    taken([&mut connect()?, &mut connect()?], &mut told, true, rounds)?;
    drop(server);
    drop(founder);
    Ok(told)
}

/// Of those objects of which nothing was told yet and that the executor takes.
fn taken(
    [caller, other]: [&mut Caller; 2],
    told: &mut Vec<Registration>,
    global: bool,
    rounds: usize,
) -> Result<(), Failure> {
    for entry in ENTRIES {
        if told.iter().any(|known| known.object == entry.file) {
            continue;
        }
        let kept = match other.register(entry.object) {
            // It names global addresses.
            Err(error) if error.code == farside::ErrorCode::ExecutorLacks && !global => continue,
            registered => registered.map_err(failed)?,
        };
        let known_ns = median_of(caller, entry.object, rounds)?;
        give_back(other, &kept)?;
        let median_ns = median_of(caller, entry.object, rounds)?;
        told.push(Registration { object: entry.file, global, median_ns, known_ns });
    }
    Ok(())
}

/// Registers and gives back by turns.
fn median_of(caller: &mut Caller, object: &[u8], rounds: usize) -> Result<u64, Failure> {
    let mut samples = Vec::new();
    for _ in 0..rounds.clamp(1, ROUNDS_MAX) {
        let began = Instant::now();
        let programs = caller.register(object).map_err(failed)?;
        samples.push(u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX));
        give_back(caller, &programs)?;
    }
    Ok(median(samples))
}

/// The last session out erases an object.
fn give_back(caller: &mut Caller, programs: &[Program]) -> Result<(), Failure> {
    programs.first().map_or(Ok(()), |program| caller.unregister(program).map_err(failed))
}

/// For people.
pub(super) fn lines(registrations: &[Registration]) -> Vec<String> {
    let line = |Registration { object, global, median_ns, known_ns }: &Registration| {
        let (new, known) = (time(*median_ns as f64), time(*known_ns as f64));
        let node = if *global { ", at a node of the global memory" } else { "" };
        format!("{new:>14} to register {object}, {known} where another session has{node}")
    };
    registrations.iter().map(line).collect()
}
