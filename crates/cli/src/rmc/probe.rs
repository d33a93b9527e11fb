//! A small program that measures what calls take at a place, and tells whether executors have the same
//! memory.

use super::call::{failed, failed_at};
use super::median;
use crate::failure::Failure;
use crate::output::bytes;
use farside::call::{CallOptions, Caller, Program, Site};
use farside::{Error, ErrorCode};
use farside_base::Access;
use farside_rmc::helpers::status;
use std::time::{Duration, Instant};

/// Calls of each size at each place, half as many before them.
const ROUNDS: usize = 16;
/// Accesses of the larger size.
const ACCESSES: u64 = 9;
/// How long a call of it may take.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Reads a byte again and again: region, offset, how often. The status of the last read.
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

/// What a call takes at a place: itself, and each of its accesses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Takes {
    pub(super) call_ns: u64,
    pub(super) access_ns: u64,
}

/// A region whose bytes may be read: its number and length.
pub(super) type Readable = (u8, u64);

/// The regions that an executor lends to whoever calls it, as far as they may be read.
pub(super) fn readable(caller: &Caller) -> Vec<Readable> {
    let regions = caller.regions().filter(|(.., access)| access.allows(Access::READ));
    regions.map(|(region, bytes, _)| (region, bytes)).collect()
}

/// The program, registered at an executor.
pub(super) struct Probe<'a> {
    caller: &'a mut Caller,
    program: Program,
    /// What people call the executor.
    name: &'a str,
}

impl<'a> Probe<'a> {
    pub(super) fn register(caller: &'a mut Caller, name: &'a str) -> Result<Self, Failure> {
        let programs = caller.register(TEXT.as_bytes()).map_err(|e| failed_at(name, e))?;
        let program = programs.into_iter().next();
        let program = program.ok_or_else(|| failed(ErrorCode::NoProgram.into()))?;
        Ok(Self { caller, program, name })
    }

    /// Gives it back, so that it counts towards no quota.
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

    /// Refuses an executor whose regions do not end where those of another one do.
    pub(super) fn check(&mut self, regions: &[Readable], owner: &str) -> Result<(), Failure> {
        for (region, length) in regions {
            let mut at = |offset| self.run(Site::Remote, *region, offset, 1);
            let ends = at(length.saturating_sub(1)).and_then(|last| Ok((last, at(*length)?)));
            let name = self.name;
            match ends.map_err(|e| failed_at(name, e))? {
                (status::OK, status::NOT_PERMITTED) => {}
                (status::PEER_LOST, _) | (_, status::PEER_LOST) => {
                    let text = format!("the memory that {name} works on is out of reach");
                    return Err(failed(Error::with(ErrorCode::PeerLost, text)));
                }
                _ => {
                    let length = bytes(*length);
                    return Err(Failure::usage(format!(
                        "{name} and {owner} have different memory: region {region} has {length} at \
                         {owner}, and not so at {name}. Places work on the same memory, as an executor \
                         of `farside rmc serve --beside {owner}` does"
                    )));
                }
            }
        }
        Ok(())
    }

    /// Measures a place that reaches this region, or no memory.
    pub(super) fn measure(
        &mut self,
        runs: Site,
        region: Option<Readable>,
    ) -> Result<Takes, Failure> {
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
        Ok(Takes::of(few_ns, many_ns))
    }
}

impl Takes {
    /// Of a call with one access and one with [`ACCESSES`].
    const fn of(one_ns: u64, many_ns: u64) -> Self {
        let access_ns = many_ns.saturating_sub(one_ns) / (ACCESSES - 1);
        Self { call_ns: one_ns.saturating_sub(access_ns), access_ns }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_and_its_accesses_are_told_apart() {
        let takes = |call_ns, access_ns| Takes { call_ns, access_ns };
        assert_eq!(Takes::of(2_100, 2_900), takes(2_000, 100));
        assert_eq!(Takes::of(50_000, 450_000), takes(0, 50_000), "each access a round trip");
        assert_eq!(Takes::of(2_100, 2_000), takes(2_100, 0), "noise");
    }
}
