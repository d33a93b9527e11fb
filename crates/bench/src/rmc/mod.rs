//! `farside bench rmc`: compares a search as one remote memory call with the same search by one-sided requests, at
//! an executor in a separate process. Also measures registration, short calls during long ones, and the engine
//! against native Rust. `--peers` adds other engines, measured by `bench/compare/rmc`.

mod fairness;
pub mod figures;
mod peers;
mod registrations;
mod search_server;

use crate::settings::BenchRmc;
use fairness::Fairness;
use farside::call::rmc::library::{HostWord, LibraryEntry, ListSearch};
use farside::call::rmc::run::{Buffers, Lent, Machine, Near, Outcome, Reply, Request};
use farside::call::rmc::{Limits, Verified, helpers::status, verify};
use farside::call::{CallOptions, Caller, CallerOptions, Program, Site};
use farside_command::choice::{self, Chosen};
use farside_command::failure::Failure;
use farside_command::output::{Output, time};
use farside_command::result_file::{self, TemporaryFolder};
use farside_command::settings::{FabricKind, FabricSettings};
use farside_launcher::latency::median;
use peers::Peers;
use registrations::Registration;
use search_server::{SearchServer, timed};
use serde::Serialize;
use std::hint::black_box;
use std::time::Instant;

/// Numbers of list nodes visited by a search.
const LENGTHS: [u64; 5] = [1, 4, 8, 16, 64];
/// Number of list nodes in memory, and bytes of one: key, value, next.
const NODES: u64 = 64;
const NODE_BYTES: u64 = 24;
/// Bytes of the executor's memory.
const LONG_BYTES: usize = 1 << 20;
/// Offset of the first list node.
const START: u64 = 64;
/// Passes over all lengths, and warm-up searches of a length in each pass.
const PASSES: usize = 20;
const FIRST: usize = 8;
/// Calls in flight when the call rate is measured.
const WINDOW: usize = 32;

/// All results.
#[derive(Debug, Serialize)]
struct RmcBenchReport {
    engine: Vec<EngineTimes>,
    #[serde(skip_serializing_if = "Option::is_none")]
    peers: Option<Peers>,
    fabrics: Vec<FabricReport>,
}

/// Searches on this processor: the minimum of many short rounds, in nanoseconds.
#[derive(Debug, Serialize)]
struct EngineTimes {
    nodes: u64,
    native_ns: f64,
    farside_ns: f64,
}

/// Results over one fabric.
#[derive(Debug, Serialize)]
struct FabricReport {
    fabric: &'static str,
    path: String,
    searches: Vec<Search>,
    calls_per_second: f64,
    registrations: Vec<Registration>,
    fairness: Vec<Fairness>,
}

/// Median round trips of searches, measured alternately.
#[derive(Clone, Debug, Serialize)]
struct Search {
    nodes: u64,
    /// As one call.
    call_ns: u64,
    /// By one READ per node.
    one_sided_ns: u64,
    /// One-sided time divided by call time.
    ratio: f64,
    /// Ratio predicted from round trips alone: one READ per node against one call, both as measured in this run. See
    /// [`predict`].
    predicted: f64,
}

/// Returns memory with the list, its nodes scattered, and the offset of the first node.
fn list() -> (Vec<u8>, u64) {
    let offset = |at: u64| START + (at * 37 % NODES) * NODE_BYTES;
    let mut memory = vec![0; (START + NODES * NODE_BYTES) as usize];
    for at in 0..NODES {
        let next = if at + 1 < NODES { offset(at + 1) } else { 0 };
        let node = [at + 1, (at + 1) * 10, next].map(u64::to_le_bytes).concat();
        let start = offset(at) as usize;
        memory[start..start + node.len()].copy_from_slice(&node);
    }
    (memory, offset(0))
}

fn parameters(head: u64, key: u64) -> Vec<u8> {
    let head = HostWord::new(0, head).unwrap_or_default();
    ListSearch { head, key }.to_bytes()
}

/// Measures calls and one-sided requests over each fabric.
pub fn run(arguments: &BenchRmc, output: Output) -> Result<(), Failure> {
    let rounds = usize::try_from(arguments.rounds).unwrap_or(usize::MAX).max(1);
    output.note("the engine");
    let engine = engine()?;
    let peers = match &arguments.peers {
        Some(program) => {
            output.note("other engines");
            Some(Peers::measured_by(program)?)
        }
        None => None,
    };
    let mut fabrics = Vec::new();
    for fabric in [FabricKind::Shm, FabricKind::Tcp] {
        if arguments.fabric.is_none_or(|only| only == fabric) {
            output.note(format!("calls over {fabric:?}"));
            fabrics.push(measure_fabric(fabric, rounds)?);
        }
    }
    let report = RmcBenchReport { engine, peers, fabrics };
    output.value(&report);
    report.lines().iter().for_each(|line| output.line(line));
    Ok(())
}

fn measure_fabric(fabric: FabricKind, rounds: usize) -> Result<FabricReport, Failure> {
    let (mut memory, head) = list();
    // The memory of long calls is filled with incompressible bytes.
    let mut last = 1_u32;
    memory.resize_with(LONG_BYTES, || {
        last = last.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (last >> 24) as u8
    });
    let folder = TemporaryFolder::new()?;
    let file = folder.path().join("memory");
    result_file::write(&file, &memory)?;
    let name = format!("bench-rmc-{}", std::process::id());
    let at = if fabric == FabricKind::Tcp { "127.0.0.1:0" } else { &name };
    let server = SearchServer::start(at, &file, &[])?;
    let choice = FabricSettings::default();
    let Chosen { fabric: ours, address, .. } =
        choice::caller(&choice, &server.address, choice::EXECUTOR)?;
    let connected = Caller::connect(&ours, &address, &CallerOptions::default());
    let mut caller = connected.map_err(Failure::of_call)?;
    let path = caller.path().unwrap_or_default();
    let connect =
        || Caller::connect(&ours, &address, &CallerOptions::default()).map_err(Failure::of_call);
    let mut other = connect()?;
    let registrations = registrations::measure([&mut caller, &mut other], fabric, &file, rounds)?;
    drop(other);
    let object =
        LibraryEntry::with_name("list_search").map(|entry| entry.object).unwrap_or_default();
    let search = caller.register(object).map_err(Failure::of_call)?.remove(0);
    let searches = compare(&mut caller, &search, head, rounds)?;
    let calls_per_second = rate(&mut caller, &search, head, rounds)?;
    let fairness =
        fairness::measure(&mut caller, connect()?, &search, &parameters(head, 1), rounds)?;
    Ok(FabricReport {
        fabric: ours.name(),
        path,
        searches,
        calls_per_second,
        registrations,
        fairness,
    })
}

/// Makes a search, checks its result and returns its time in nanoseconds.
fn timed_search(
    caller: &mut Caller,
    runs: Site,
    search: &Program,
    head: u64,
    nodes: u64,
) -> Result<u64, Failure> {
    let (ns, result) = timed(caller, runs, search, &parameters(head, nodes))?;
    if result != nodes * 10 {
        let text = format!("the search for {nodes} returned {result}");
        return Err(Failure::of_call(farside::Error::with(farside::ErrorCode::BadAnswer, text)));
    }
    Ok(ns)
}

/// Measures all lengths as calls and by one-sided requests. Lengths and methods alternate, so that other activity of
/// the machine affects all: for example, the kernel may schedule both processes on one processor for a while.
fn compare(
    caller: &mut Caller,
    search: &Program,
    head: u64,
    rounds: usize,
) -> Result<Vec<Search>, Failure> {
    let mut samples = LENGTHS.map(|nodes| (nodes, Vec::new(), Vec::new()));
    for _ in 0..PASSES {
        for (nodes, calls, requests) in &mut samples {
            for round in 0..FIRST + rounds.div_ceil(PASSES) {
                let call_ns = timed_search(caller, Site::Remote, search, head, *nodes)?;
                let one_sided_ns = timed_search(caller, Site::Local, search, head, *nodes)?;
                if round >= FIRST {
                    calls.push(call_ns);
                    requests.push(one_sided_ns);
                }
            }
        }
    }
    let mut searches = samples.map(|(nodes, calls, requests)| {
        let (call_ns, one_sided_ns) = (median(calls), median(requests));
        let ratio = one_sided_ns as f64 / call_ns.max(1) as f64;
        Search { nodes, call_ns, one_sided_ns, ratio, predicted: 0.0 }
    });
    predict(&mut searches);
    Ok(searches.to_vec())
}

/// Sets `predicted` from the round trips of a call and of a READ. That of a call is the shortest search as a call; that
/// of a READ is the slope of the one-sided searches, shortest to longest.
fn predict(searches: &mut [Search]) {
    let ends = (searches.first().cloned(), searches.last().cloned());
    let (Some(first), Some(last)) = ends else { return };
    let more_ns = last.one_sided_ns.saturating_sub(first.one_sided_ns) as f64;
    let read_ns = more_ns / last.nodes.saturating_sub(first.nodes).max(1) as f64;
    for search in searches {
        search.predicted = search.nodes as f64 * read_ns / first.call_ns.max(1) as f64;
    }
}

/// Returns the rate of one-node searches with [`WINDOW`] calls in flight.
fn rate(caller: &mut Caller, search: &Program, head: u64, rounds: usize) -> Result<f64, Failure> {
    let parameters = parameters(head, 1);
    let (mut begun, mut ended) = (0, 0);
    let calls = rounds.saturating_mul(WINDOW);
    let began = Instant::now();
    while ended < calls {
        while begun < calls && begun - ended < WINDOW {
            match caller
                .invoke(search, &parameters, CallOptions::new())
                .map_err(Failure::of_call)?
            {
                Some(_) => begun += 1,
                None => break,
            }
        }
        caller.progress().map_err(Failure::of_call)?;
        while let Some((_, end)) = caller.poll_any() {
            end.map_err(Failure::of_call)?;
            ended += 1;
        }
    }
    Ok(calls as f64 / began.elapsed().as_secs_f64())
}

/// Memory of this process, accessed as by an executor.
struct HostBytes(Vec<u8>);

impl HostBytes {
    fn get(&self, offset: u64, bytes: usize) -> Option<&[u8]> {
        let start = usize::try_from(offset).ok()?;
        self.0.get(start..start.checked_add(bytes)?)
    }
}

impl Near for HostBytes {
    #[inline]
    fn read(&mut self, region: u64, offset: u64, out: &mut [u8]) -> Reply {
        match self.get(offset, out.len()) {
            Some(bytes) if region == 0 => {
                out.copy_from_slice(bytes);
                Reply::Now(0)
            }
            _ => Reply::Now(status::NOT_PERMITTED.cast_unsigned()),
        }
    }

    fn perform(&mut self, _: &Request, _: Buffers<'_>) -> Reply {
        Reply::Refused
    }
}

/// The same search in Rust, with every access checked.
#[inline(never)]
fn native(memory: &HostBytes, mut at: u64, key: u64) -> Option<u64> {
    while at != 0 {
        let node = memory.get(at, NODE_BYTES as usize)?;
        let word = |offset: usize| {
            Some(u64::from_le_bytes(node.get(offset..offset + 8)?.try_into().ok()?))
        };
        if word(0)? == key {
            return word(8);
        }
        at = word(16)?;
    }
    None
}

/// Returns the minimum time of an operation over many short rounds.
fn minimum_ns(mut operation: impl FnMut()) -> f64 {
    const OPERATIONS: u32 = 200;
    let rounds = (0..300).map(|_| {
        let began = Instant::now();
        (0..OPERATIONS).for_each(|_| operation());
        began.elapsed().as_nanos() as f64 / f64::from(OPERATIONS)
    });
    rounds.fold(f64::MAX, f64::min)
}

fn engine() -> Result<Vec<EngineTimes>, Failure> {
    let unusable =
        |text: String| Failure::of_call(farside::Error::with(farside::ErrorCode::BadProgram, text));
    let entry = LibraryEntry::with_name("list_search");
    let entry = entry.ok_or_else(|| unusable("the library has no list_search".to_owned()))?;
    let program = entry.program().map_err(|error| unusable(error.to_string()))?;
    let verified =
        verify(program, &Limits::DEFAULT).map_err(|error| unusable(error.to_string()))?;
    let (memory, head) = list();
    let mut host = HostBytes(memory);
    let mut results = Vec::new();
    for nodes in LENGTHS {
        let native_ns = minimum_ns(|| {
            black_box(native(&host, black_box(head), black_box(nodes)));
        });
        let bytes = parameters(head, nodes);
        let farside_ns = program_ns(&verified, &bytes, nodes * 10, &mut host)?;
        results.push(EngineTimes { nodes, native_ns, farside_ns });
    }
    Ok(results)
}

/// Measures the program as machine code if this target has a compiler, otherwise interpreted.
fn program_ns(
    verified: &Verified,
    bytes: &[u8],
    value: u64,
    host: &mut HostBytes,
) -> Result<f64, Failure> {
    let mut machine = Machine::new();
    let budget = Limits::DEFAULT.budget;
    let mut wrong = None;
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    let compiled = farside::call::rmc::run::native::Compiled::new(verified.clone()).ok();
    // As at an executor, where machine code reads lent regions directly.
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    let (memory, region) = (host.0.clone(), farside::call::rmc::run::native::NativeRegion::of);
    let ns = minimum_ns(|| {
        #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
        let outcome = match &compiled {
            Some(code) => code
                .call(
                    &mut machine,
                    black_box(bytes),
                    budget,
                    Lent::default(),
                    &[region(&memory)],
                    host,
                )
                .unwrap_or(Outcome::Returned(u64::MAX)),
            None => interpreted(&mut machine, verified, bytes, host),
        };
        #[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
        let outcome = interpreted(&mut machine, verified, bytes, host);
        if outcome != Outcome::Returned(value) {
            wrong = Some(outcome);
        }
    });
    let _ = budget;
    match wrong {
        None => Ok(ns),
        Some(outcome) => {
            let text = format!("the search ended with {outcome:?}");
            Err(Failure::of_call(farside::Error::with(farside::ErrorCode::BadAnswer, text)))
        }
    }
}

fn interpreted(
    machine: &mut Machine,
    verified: &Verified,
    bytes: &[u8],
    host: &mut HostBytes,
) -> Outcome {
    match machine.start(verified, black_box(bytes), Limits::DEFAULT.budget) {
        Ok(()) => machine.run(verified, Lent::default(), host),
        Err(_) => Outcome::Returned(u64::MAX),
    }
}

impl RmcBenchReport {
    fn lines(&self) -> Vec<String> {
        let mut lines = vec![
            "list search on this processor, minimum of many rounds".to_owned(),
            format!("{:>8} {:>14} {:>14}", "nodes", "native Rust", "program"),
        ];
        for EngineTimes { nodes, native_ns, farside_ns } in &self.engine {
            lines.push(format!("{nodes:>8} {native_ns:>11.1} ns {farside_ns:>11.1} ns"));
        }
        lines.extend(self.peers.iter().flat_map(|peers| peers.lines().iter().cloned()));
        for fabric in &self.fabrics {
            lines.push(String::new());
            lines.push(format!("at an executor over {}", fabric.path));
            lines.push(format!(
                "{:>8} {:>14} {:>14} {:>14} {:>14}",
                "nodes", "one call", "one-sided", "one-sided/call", "predicted"
            ));
            for Search { nodes, call_ns, one_sided_ns, ratio, predicted } in &fabric.searches {
                let (call, requests) = (time(*call_ns as f64), time(*one_sided_ns as f64));
                let ratios = format!("{ratio:>14.2} {predicted:>14.2}");
                lines.push(format!("{nodes:>8} {call:>14} {requests:>14} {ratios}"));
            }
            let rate = fabric.calls_per_second;
            lines.push(format!("{rate:>12.0} calls per second, {WINDOW} in flight"));
            lines.extend(registrations::lines(&fabric.registrations));
            lines.extend(fairness::lines(&fabric.fairness));
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratio_is_predicted_from_round_trips() {
        let search = |nodes, call_ns, one_sided_ns| Search {
            nodes,
            call_ns,
            one_sided_ns,
            ratio: 0.0,
            predicted: 0.0,
        };
        // A READ takes 10 plus a fixed 5 per search; the round trip of a call takes 20.
        let mut searches = [search(1, 20, 15), search(4, 21, 45), search(16, 25, 165)];
        predict(&mut searches);
        assert_eq!(searches.map(|search| search.predicted), [0.5, 2.0, 8.0]);
        predict(&mut []);
    }
}
