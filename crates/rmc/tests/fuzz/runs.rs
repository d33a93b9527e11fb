//! A call by each engine.

use farside_rmc::helpers::Call;
use farside_rmc::run::{Buffers, Far, Lent, Machine, Near, Outcome, Reply, Stop};
use farside_rmc::{Budget, Verified};

use super::words::REGIONS;
use super::{AnyHost, Compiled, End, NativeRegion};

pub(super) fn variables(verified: &Verified) -> (Vec<u8>, Vec<u8>) {
    let variables = &verified.program().variables;
    (variables.own.clone(), variables.shared.clone())
}

pub(super) fn run_checked(
    verified: &Verified,
    context: &[u8],
    mut host: AnyHost,
    budget: Budget,
) -> (End, u64) {
    let mut machine = Machine::new();
    let (mut own, mut shared) = variables(verified);
    if machine.start(verified, context, budget).is_err() {
        return ((Outcome::Stopped(Stop::NotRunning), own, shared, Vec::new()), 0);
    }
    let lent = Lent { own: &mut own, shared: &mut shared };
    let outcome = machine.run_checked(verified.program(), lent, &mut host);
    ((outcome, machine.output().to_vec(), own, shared), machine.executed())
}

pub(super) fn run_fast(
    verified: &Verified,
    context: &[u8],
    mut host: AnyHost,
    budget: Budget,
) -> End {
    let mut machine = Machine::new();
    let (mut own, mut shared) = variables(verified);
    if machine.start(verified, context, budget).is_err() {
        return (Outcome::Stopped(Stop::NotRunning), own, shared, Vec::new());
    }
    let lent = Lent { own: &mut own, shared: &mut shared };
    let outcome = machine.run(verified, lent, &mut host);
    (outcome, machine.output().to_vec(), own, shared)
}

/// How machine code is run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum NativeMode {
    /// By a machine that was started.
    Started,
    /// Started by the code itself.
    Called,
    /// With the executor's regions lent.
    Beside,
}

pub(super) fn run_native(
    compiled: &Compiled,
    context: &[u8],
    mut host: AnyHost,
    budget: Budget,
    way: NativeMode,
) -> End {
    let mut machine = Machine::new();
    let (mut own, mut shared) = variables(compiled.verified());
    let lent = Lent { own: &mut own, shared: &mut shared };
    let regions = if way == NativeMode::Beside { &REGIONS.map(NativeRegion::of)[..] } else { &[] };
    let outcome = if way == NativeMode::Started {
        let started = machine.start(compiled.verified(), context, budget);
        started.map(|()| compiled.run(&mut machine, lent, regions, &mut host))
    } else {
        compiled.call(&mut machine, context, budget, lent, regions, &mut host)
    };
    let outcome = outcome.unwrap_or(Outcome::Stopped(Stop::NotRunning));
    (outcome, machine.output().to_vec(), own, shared)
}

/// Suspends at every request, and continues in another machine.
pub(super) fn run_moved(
    verified: &Verified,
    compiled: &Compiled,
    context: &[u8],
    mut host: AnyHost,
    budget: Budget,
) -> Result<End, String> {
    let mut machine = Machine::new();
    let (mut own, mut shared) = variables(verified);
    if machine.start(verified, context, budget).is_err() {
        return Ok((Outcome::Stopped(Stop::NotRunning), own, shared, Vec::new()));
    }
    let mut turn = 0;
    let lent_regions = REGIONS.map(NativeRegion::of);
    let regions = if host.chance.clone().one_in(2) { &lent_regions[..] } else { &[] };
    loop {
        turn += 1;
        let lent = Lent { own: &mut own, shared: &mut shared };
        // Machine code and the interpreter alternate until the machine has moved.
        let outcome = if turn % 2 == 1 {
            compiled.run(&mut machine, lent, regions, &mut Far)
        } else {
            machine.run(verified, lent, &mut Far)
        };
        let Outcome::Suspended(request) = outcome else {
            return Ok((outcome, machine.output().to_vec(), own, shared));
        };
        if turn % 3 == 0 {
            let moved = Machine::from_bytes(verified, &machine.to_bytes());
            machine = moved.map_err(|error| format!("{request:?}: {error}"))?;
        }
        let mut output = vec![0; request.output.map_or(0, |span| span.length as usize)];
        let reply = match request.call {
            Call::LoadU64 => host.load_u64(request.arguments[0], request.arguments[1]),
            Call::Read => host.read(request.arguments[0], request.arguments[1], &mut output),
            _ => host.perform(&request, Buffers { inputs: [&[], &[]], output: &mut output }),
        };
        let lent = Lent { own: &mut own, shared: &mut shared };
        match reply {
            Reply::Now(result) => machine
                .answer(verified.program(), lent, result, &output)
                .map_err(|error| format!("{request:?}: {error}"))?,
            _ => {
                let stop = machine.refuse().map_err(|error| error.to_string())?;
                return Ok((Outcome::Stopped(stop), machine.output().to_vec(), own, shared));
            }
        }
    }
}
