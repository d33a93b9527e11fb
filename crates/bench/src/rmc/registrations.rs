//! Measures the registration of each object of the library. Objects that use global addresses are registered at an
//! executor that is part of a node.

use super::search_server::SearchServer;
use farside::call::rmc::library::ENTRIES;
use farside::call::{Caller, CallerOptions, Program};
use farside::{Config, Node};
use farside_command::choice::{self, Chosen};
use farside_command::failure::Failure;
use farside_command::output::time;
use farside_command::settings::{FabricKind, FabricSettings};
use farside_launcher::latency::median;
use serde::Serialize;
use std::path::Path;
use std::time::Instant;

/// Maximum rounds of an object: a registration blocks the executor.
const ROUNDS_MAX: usize = 50;
/// Memory and cache of the node; minimal, since no call is made.
const NODE_BYTES: u64 = 1 << 20;

/// Median registration times of an object, from the first byte sent until the answer.
#[derive(Debug, Serialize)]
pub(super) struct Registration {
    object: &'static str,
    /// Whether its programs need an executor that is part of a node.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    global: bool,
    /// If no session has it registered: it is loaded and verified.
    median_ns: u64,
    /// If another session has it registered.
    known_ns: u64,
}

/// Measures every object: at an executor, or at one that is part of a node if the first refuses it. Between rounds
/// every session unregisters the object, except for `known_ns`.
pub(super) fn measure(
    [caller, other]: [&mut Caller; 2],
    fabric: FabricKind,
    memory: &Path,
    rounds: usize,
) -> Result<Vec<Registration>, Failure> {
    let mut results = Vec::new();
    measure_at([caller, other], &mut results, false, rounds)?;
    let name = format!("bench-rmc-node-{}", std::process::id());
    let config = Config::new(&name).memory_bytes(NODE_BYTES).cache_bytes(NODE_BYTES);
    let founder = Node::create(&config)?;
    let at = if fabric == FabricKind::Tcp { "127.0.0.1:0" } else { &name };
    let server = SearchServer::start(at, memory, &["--cluster", &name])?;
    let choice = FabricSettings::default();
    let Chosen { fabric: ours, address, .. } =
        choice::caller(&choice, &server.address, choice::EXECUTOR)?;
    let connect =
        || Caller::connect(&ours, &address, &CallerOptions::default()).map_err(Failure::of_call);
    measure_at([&mut connect()?, &mut connect()?], &mut results, true, rounds)?;
    drop(server);
    drop(founder);
    Ok(results)
}

/// Measures the objects that have no result yet and that the executor accepts.
fn measure_at(
    [caller, other]: [&mut Caller; 2],
    results: &mut Vec<Registration>,
    global: bool,
    rounds: usize,
) -> Result<(), Failure> {
    for entry in ENTRIES {
        if results.iter().any(|known| known.object == entry.file) {
            continue;
        }
        let kept = match other.register(entry.object) {
            // It uses global addresses.
            Err(error) if error.code == farside::ErrorCode::ExecutorLacks && !global => continue,
            registered => registered.map_err(Failure::of_call)?,
        };
        let known_ns = median_of(caller, entry.object, rounds)?;
        unregister(other, &kept)?;
        let median_ns = median_of(caller, entry.object, rounds)?;
        results.push(Registration { object: entry.file, global, median_ns, known_ns });
    }
    Ok(())
}

/// Returns the median time of a registration, unregistering after each.
fn median_of(caller: &mut Caller, object: &[u8], rounds: usize) -> Result<u64, Failure> {
    let mut samples = Vec::new();
    for _ in 0..rounds.clamp(1, ROUNDS_MAX) {
        let began = Instant::now();
        let programs = caller.register(object).map_err(Failure::of_call)?;
        samples.push(u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX));
        unregister(caller, &programs)?;
    }
    Ok(median(samples))
}

/// Unregisters an object; the executor erases it when the last session does.
fn unregister(caller: &mut Caller, programs: &[Program]) -> Result<(), Failure> {
    programs.first().map_or(Ok(()), |program| caller.unregister(program).map_err(Failure::of_call))
}

/// Returns the printed lines.
pub(super) fn lines(registrations: &[Registration]) -> Vec<String> {
    let line = |Registration { object, global, median_ns, known_ns }: &Registration| {
        let (new, known) = (time(*median_ns as f64), time(*known_ns as f64));
        let node = if *global { ", at a node of the global memory" } else { "" };
        format!("{new:>14} to register {object}, {known} if another session has it{node}")
    };
    registrations.iter().map(line).collect()
}
