//! A probe program that measures the cost of calls at a place, and checks that executors access the same memory.

use super::connection::failed_at;
use farside::call::{CallOptions, Caller, Program, Site};
use farside::{Error, ErrorCode};
use farside_base::Access;
use farside_command::failure::Failure;
use farside_command::output::bytes;
use farside_launcher::latency::median;
use farside_rmc::helpers::status;
use std::time::{Duration, Instant};

/// Measured calls of each size at each place, after half as many warm-up calls.
const ROUNDS: usize = 16;
/// Number of accesses of the longer call.
const ACCESSES: u64 = 9;
/// Timeout of a call.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Reads a byte repeatedly. Parameters: region, offset, count. Returns the status of the last read.
const TEXT: &str = "
.program placement_probe
    r6 = *(u64 *)(r1 + 0)
    r7 = *(u64 *)(r1 + 8)
    r8 = *(u64 *)(r1 + 16)
    r0 = 0
again:
    if r8 == 0 goto over
    r1 = r6
    r2 = r7
    r3 = r10
    r3 += -8
    r4 = 1
    call read
    if r0 != 0 goto over
    r8 += -1
    goto again
over:
    exit
";

/// Cost of a call at a place: a fixed part, and a part for each access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct CallCost {
    pub(super) call_ns: u64,
    pub(super) access_ns: u64,
}

/// A readable region: its number and length.
pub(super) type Readable = (u8, u64);

/// Returns the readable regions that an executor lends to this caller.
pub(super) fn readable(caller: &Caller) -> Vec<Readable> {
    let regions = caller.regions().filter(|(.., access)| access.allows(Access::READ));
    regions.map(|(region, bytes, _)| (region, bytes)).collect()
}

/// The probe program, registered at an executor.
pub(super) struct Probe<'a> {
    caller: &'a mut Caller,
    program: Program,
    /// Name of the executor in messages.
    name: &'a str,
}

impl<'a> Probe<'a> {
    pub(super) fn register(caller: &'a mut Caller, name: &'a str) -> Result<Self, Failure> {
        let programs = caller.register(TEXT.as_bytes()).map_err(|e| failed_at(name, e))?;
        let program = programs.into_iter().next();
        let program = program.ok_or_else(|| Failure::of_call(ErrorCode::NoProgram.into()))?;
        Ok(Self { caller, program, name })
    }

    /// Unregisters the program, so that it does not count towards a quota.
    pub(super) fn end(self) -> Result<(), Failure> {
        self.caller.unregister(&self.program).map_err(|e| failed_at(self.name, e))
    }

    fn run(&mut self, runs: Site, region: u8, offset: u64, times: u64) -> Result<i64, Error> {
        let parameters = [u64::from(region), offset, times].map(u64::to_le_bytes).concat();
        let answer = self.caller.call(
            &self.program,
            &parameters,
            CallOptions::new().site(runs).timeout(TIMEOUT),
        )?;
        Ok(answer.result.cast_signed())
    }

    /// Refuses an executor that has regions of other lengths than the owner's.
    pub(super) fn check(&mut self, regions: &[Readable], owner: &str) -> Result<(), Failure> {
        for (region, length) in regions {
            let mut at = |offset| self.run(Site::Remote, *region, offset, 1);
            let ends = at(length.saturating_sub(1)).and_then(|last| Ok((last, at(*length)?)));
            let name = self.name;
            match ends.map_err(|e| failed_at(name, e))? {
                (status::OK, status::NOT_PERMITTED) => {}
                (status::PEER_LOST, _) | (_, status::PEER_LOST) => {
                    let text = format!("the memory that {name} accesses is unreachable");
                    return Err(Failure::of_call(Error::with(ErrorCode::PeerLost, text)));
                }
                _ => {
                    let length = bytes(*length);
                    return Err(Failure::usage(format!(
                        "{name} and {owner} have different memory: region {region} has {length} at \
                         {owner}, but another length at {name}. All places must access the same memory: \
                         start the other executor with `farside rmc serve --beside {owner}`"
                    )));
                }
            }
        }
        Ok(())
    }

    /// Measures a place, with accesses to `region` if one is given.
    pub(super) fn measure(
        &mut self,
        runs: Site,
        region: Option<Readable>,
    ) -> Result<CallCost, Failure> {
        let one = u64::from(region.is_some());
        let region = region.map_or(0, |(region, _)| region);
        let mut median_of = |times: u64| -> Result<u64, Error> {
            let mut samples = Vec::with_capacity(ROUNDS);
            for round in 0..ROUNDS + ROUNDS / 2 {
                let began = Instant::now();
                self.run(runs, region, 0, times)?;
                let took_ns = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
                samples.extend((round >= ROUNDS / 2).then_some(took_ns));
            }
            Ok(median(samples))
        };
        let both = median_of(one).and_then(|few| Ok((few, median_of(one * ACCESSES)?)));
        let (few_ns, many_ns) = both.map_err(|e| failed_at(self.name, e))?;
        Ok(CallCost::of(few_ns, many_ns))
    }
}

impl CallCost {
    /// Computes the cost from the time of a call with one access and of one with [`ACCESSES`].
    const fn of(one_ns: u64, many_ns: u64) -> Self {
        let access_ns = many_ns.saturating_sub(one_ns) / (ACCESSES - 1);
        Self { call_ns: one_ns.saturating_sub(access_ns), access_ns }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn call_cost_separates_fixed_and_access_time() {
        let cost = |call_ns, access_ns| CallCost { call_ns, access_ns };
        assert_eq!(CallCost::of(2_100, 2_900), cost(2_000, 100));
        assert_eq!(CallCost::of(50_000, 450_000), cost(0, 50_000), "each access a round trip");
        assert_eq!(CallCost::of(2_100, 2_000), cost(2_100, 0), "noise");
    }
}
