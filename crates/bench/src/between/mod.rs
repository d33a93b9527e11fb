//! `farside bench fabric` between two ends: one serves ([`server`]), the other measures ([`client`],
//! `measure`) and prints perftest's tables (`table`). Both use only the fabric traits, so every fabric is
//! measured by the same code. The protocol between the ends is in [`wire`].

mod client;
mod end;
mod measure;
mod server;
mod table;
#[cfg(test)]
mod tests;
mod wire;

use crate::settings::{BenchFabric, Measure, Test};
use client::Client;
use farside_base::Capabilities;
use farside_command::choice::{self, Chosen};
use farside_command::failure::Failure;
use farside_command::output::Output;
use farside_command::signals;
use measure::{Extent, Flow};
use serde::Serialize;
use serde_json::json;
use server::Server;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use table::{Bandwidth, Latency};

/// Name of the serving end if an address has only a host.
pub(super) const NAME: &str = "bench";
/// Most bytes of an inline request of a latency test, as in perftest.
const LATENCY_INLINE: u32 = 220;
/// Bytes of an atomic operation.
const WORD: u32 = 8;

/// Serves if `--listen` is given, otherwise measures.
pub(super) fn run(arguments: &BenchFabric, output: Output) -> Result<(), Failure> {
    match (&arguments.listen, &arguments.to) {
        (Some(at), _) => serve(arguments, at, output),
        (None, Some(to)) => measure(arguments, to, output),
        (None, None) => Err(Failure::usage("give --listen ADDR to serve, or ADDR to measure")),
    }
}

/// Serves clients until a signal, or with `--once` the first one.
fn serve(arguments: &BenchFabric, at: &str, output: Output) -> Result<(), Failure> {
    let Chosen { fabric, address, security } = choice::listener(&arguments.choice, at, NAME)?;
    let name = fabric.name();
    let stop = Arc::new(AtomicBool::new(false));
    let mut server = Server::listen(fabric, address, arguments.strict_ordering, Arc::clone(&stop))?;
    let waiter = server.end().port.waiter();
    signals::watch(move || {
        stop.store(true, Ordering::Release);
        waiter.wake();
        true
    })?;
    let output = output.for_service()?;
    let address = server.end().port.address().unwrap_or_default();
    output.event(&json!({ "listening": address, "fabric": name, "security": security }), |_| {
        vec![format!("listening at {address} over {name} ({security}); Ctrl-C stops it")]
    });
    while let Some(served) = server.serve_one()? {
        let event = json!({ "served": { "tests": served.tests, "failure": served.failure } });
        let text = match &served.failure {
            None => format!("client served: {} tests", served.tests),
            Some(why) => format!("client lost after {} tests: {why}", served.tests),
        };
        output.event(&event, |_| vec![text]);
        if arguments.once {
            return served.failure.map_or(Ok(()), Err);
        }
    }
    Ok(())
}

/// One planned line of a table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Run {
    test: Test,
    measure: Measure,
    bytes: u32,
}

/// A requested test that cannot be measured.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
struct Skipped {
    test: Test,
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<u32>,
    why: String,
}

/// Returns the lines of the tables, in order, and the tests that the fabric cannot do.
///
/// # Errors
/// A test or a size that was requested explicitly and that the fabric cannot do.
fn plan(arguments: &BenchFabric, has: &Capabilities) -> Result<(Vec<Run>, Vec<Skipped>), Failure> {
    let (mut runs, mut skipped) = (Vec::new(), Vec::new());
    for &test in &arguments.tests {
        if let Err(missing) = server::requirements(test, 1).check(has) {
            let why = format!("the fabric lacks `{}`", missing.0);
            if !arguments.all_tests {
                return Err(Failure::system(format!("{}: {why}", test.name())));
            }
            skipped.push(Skipped { test, bytes: None, why });
            continue;
        }
        for &measure in &arguments.measures {
            for bytes in sizes(arguments, test, measure) {
                let why = match server::requirements(test, bytes).check(has) {
                    Ok(()) => {
                        runs.push(Run { test, measure, bytes });
                        continue;
                    }
                    Err(missing) => format!("over the fabric's limit `{}`", missing.0),
                };
                if !arguments.all {
                    return Err(Failure::system(format!("{} of {bytes} B: {why}", test.name())));
                }
                let left_out = Skipped { test, bytes: Some(bytes), why };
                if !skipped.contains(&left_out) {
                    skipped.push(left_out);
                }
            }
        }
    }
    Ok((runs, skipped))
}

/// Returns the sizes of a test: the requested ones, or perftest's defaults.
fn sizes(arguments: &BenchFabric, test: Test, measure: Measure) -> Vec<u32> {
    match (test, measure) {
        (Test::Atomic, _) => vec![WORD],
        _ if arguments.all => (1..=23).map(|power| 1 << power).collect(),
        _ if !arguments.bytes.is_empty() => arguments.bytes.clone(),
        (_, Measure::Latency) => vec![2],
        (_, Measure::Rate) => vec![8],
        (_, Measure::Bandwidth) => vec![65_536],
    }
}

/// The figures of a session.
#[derive(Default, Serialize)]
struct Figures {
    latency: Vec<Latency>,
    bandwidth: Vec<Bandwidth>,
    rate: Vec<Bandwidth>,
}

fn measure(arguments: &BenchFabric, to: &str, output: Output) -> Result<(), Failure> {
    let Chosen { fabric, address, security } = choice::caller(&arguments.choice, to, NAME)?;
    let name = fabric.name();
    let has = fabric.capabilities();
    let (runs, skipped) = plan(arguments, &has)?;
    let inline_max = inline_max(arguments, &has)?;
    let flows = Flows::of(arguments, &has)?;
    let bytes_max = runs.iter().map(|run| run.bytes).max().unwrap_or(1).max(WORD);
    let mut client = Client::connect(fabric, &address, bytes_max, arguments.strict_ordering)?;
    let path = client.path();
    output.line(format!("fabric {name} ({security}) to {address}"));
    output.line(format!("path   {path}"));
    let mut figures = Figures::default();
    let mut before = None;
    for run in &runs {
        if before != Some((run.test, run.measure)) {
            head(run, flows.of_measure(run.measure), output);
            before = Some((run.test, run.measure));
        }
        one(&mut client, run, arguments, (inline_max, &flows), &mut figures, output)?;
    }
    client.leave()?;
    for one in &skipped {
        let bytes = one.bytes.map(|bytes| format!(" of {bytes} B")).unwrap_or_default();
        output.line(format!("note: {}{bytes} was not measured: {}", one.test.name(), one.why));
    }
    output.value(&json!({
        "fabric": name,
        "security": security,
        "to": address,
        "path": path,
        "window": flows.bandwidth.window,
        "strict_ordering": arguments.strict_ordering,
        "latency": figures.latency,
        "bandwidth": figures.bandwidth,
        "rate": figures.rate,
        "skipped": skipped,
    }));
    Ok(())
}

/// Measures one line and prints it.
fn one(
    client: &mut Client,
    run: &Run,
    arguments: &BenchFabric,
    (inline_max, flows): (Option<u32>, &Flows),
    figures: &mut Figures,
    output: Output,
) -> Result<(), Failure> {
    let Run { test, measure, bytes } = *run;
    // Only SEND and WRITE can be inline.
    let carries = matches!(test, Test::Write | Test::Send);
    let inline = |usual: u32| {
        let most = inline_max.unwrap_or(usual.min(client.capabilities().inline_bytes_max));
        if carries { most } else { 0 }
    };
    let extent = |usual| match (arguments.seconds, arguments.iterations) {
        (Some(seconds), _) => Extent::Time(Duration::from_secs_f64(seconds)),
        (None, count) => Extent::Iterations(count.unwrap_or(usual)),
    };
    match measure {
        Measure::Latency => {
            let inline = inline(LATENCY_INLINE);
            let found = measure::latency(client, test, bytes, inline, extent(1000))?;
            output.line(found.line());
            figures.latency.push(found);
        }
        Measure::Bandwidth | Measure::Rate => {
            let (inline, flow) = (inline(0), flows.of_measure(measure));
            let found = measure::stream(client, test, bytes, inline, flow, extent(5000))?;
            output.line(found.line());
            match measure {
                Measure::Rate => figures.rate.push(found),
                _ => figures.bandwidth.push(found),
            }
        }
    }
    Ok(())
}

/// Prints the title and the head of the next table.
fn head(run: &Run, flow: Flow, output: Output) {
    let test = run.test.name();
    if run.measure == Measure::Latency {
        let how = match run.test {
            Test::Write => "half of a round trip, both programs poll their memory",
            Test::Send => "half of a round trip, both programs poll for messages",
            Test::Read | Test::Atomic => "a whole round trip, the other program sleeps",
        };
        output.line(format!("\n{test} latency: {how}"));
        output.line(Latency::head());
        return;
    }
    let what = if run.measure == Measure::Rate { "rate" } else { "bandwidth" };
    let other = if run.test == Test::Send { "receives messages" } else { "sleeps" };
    let Flow { window, batch, signal_every } = flow;
    output.line(format!(
        "\n{test} {what}: the other program {other}; {window} in flight, {batch} a doorbell, every \
         {signal_every}th signaled, 1 MiB = 2^20 B"
    ));
    output.line(Bandwidth::head());
}

/// Returns the most bytes of an inline request, if `--inline` is given.
fn inline_max(arguments: &BenchFabric, has: &Capabilities) -> Result<Option<u32>, Failure> {
    match arguments.inline {
        Some(bytes) if bytes > has.inline_bytes_max => Err(Failure::system(format!(
            "--inline {bytes}: over the fabric's limit `inline_bytes_max`, {}",
            has.inline_bytes_max
        ))),
        other => Ok(other),
    }
}

/// Flow control of the requests of streams.
struct Flows {
    bandwidth: Flow,
    rate: Flow,
}

impl Flows {
    fn of(arguments: &BenchFabric, has: &Capabilities) -> Result<Self, Failure> {
        let most = has.outstanding_max;
        let window = match arguments.window {
            Some(window) if window > most => {
                return Err(Failure::system(format!(
                    "--window {window}: over the fabric's limit `outstanding_max`, {most}"
                )));
            }
            Some(window) => window,
            None => most.min(128),
        };
        let flow = |batch| {
            let batch = arguments.batch.unwrap_or(batch);
            let (window, every) = (u64::from(window), u64::from(arguments.signal_every));
            Flow::new(window, u64::from(batch), every)
        };
        Ok(Self { bandwidth: flow(1), rate: flow(32) })
    }

    fn of_measure(&self, measure: Measure) -> Flow {
        if measure == Measure::Rate { self.rate } else { self.bandwidth }
    }
}
