//! Lazy compilation of programs: a program is compiled after several interpreted slices, so that registration and
//! rarely called programs never pay for it.

use crate::call::memory::direct_loads::DirectLoads;
use farside_rmc::Verified;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
use farside_rmc::run::native::Compiled;
use farside_rmc::run::{Lent, Machine, Near, Outcome};
use std::sync::Arc;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
use std::sync::OnceLock;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
use std::sync::atomic::{AtomicU32, Ordering};

/// The machine code of a program, compiled once it has been interpreted often enough to pay off.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
#[derive(Debug, Default)]
pub(crate) struct Native {
    /// `None` inside if the code is too large or no memory for code was available: slower, but the same results.
    code: OnceLock<Option<Compiled>>,
    /// Number of slices interpreted so far.
    interpreted: AtomicU32,
}

/// No compiler exists for this processor.
#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
#[derive(Debug, Default)]
pub(crate) struct Native;

impl Native {
    /// As [`crate::call::executor::loading::LoadedProgram::run`].
    #[inline]
    pub(crate) fn run(
        &self,
        verified: &Arc<Verified>,
        machine: &mut Machine,
        instructions: u64,
        lent: Lent<'_>,
        words: &DirectLoads,
        near: &mut impl Near,
    ) -> Outcome {
        #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
        if let Some(code) = self.code(verified) {
            return code.run_slice(machine, instructions, lent, words.regions(), near);
        }
        #[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
        let _ = words;
        machine.run_slice(verified, instructions, lent, near)
    }
}

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
impl Native {
    /// Slices before compiling. Short calls have by then taken some tenths of the compile time, long ones about as
    /// much.
    const INTERPRETED_MAX: u32 = 16;

    /// Returns the code, if compiled by now.
    #[inline]
    fn code(&self, verified: &Arc<Verified>) -> Option<&Compiled> {
        match self.code.get() {
            Some(code) => code.as_ref(),
            None => self.count(verified),
        }
    }

    /// Counts an interpreted slice; the slice after the last one compiles, at the cost of its caller.
    #[cold]
    fn count(&self, verified: &Arc<Verified>) -> Option<&Compiled> {
        // Concurrent threads may be counted once; an approximate count suffices.
        let interpreted = self.interpreted.load(Ordering::Relaxed);
        if interpreted < Self::INTERPRETED_MAX {
            self.interpreted.store(interpreted + 1, Ordering::Relaxed);
            return None;
        }
        self.code.get_or_init(|| Compiled::new(Arc::clone(verified)).ok()).as_ref()
    }
}

#[cfg(test)]
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod tests {
    use super::*;
    use farside_rmc::assembler::assemble;
    use farside_rmc::run::Far;
    use farside_rmc::{Limits, verify};

    /// Sums a countdown; takes several slices.
    const SUM: &str =
        "r0 = 0\nr2 = *(u64 *)(r1 + 0)\nagain:\nr0 += r2\nr2 += -1\nif r2 != 0 goto again\nexit";
    const ITERATIONS: u64 = 10_000;

    #[test]
    fn call_continues_in_machine_code_where_the_interpreter_stopped() {
        let limits = Limits::DEFAULT;
        let verified = Arc::new(verify(assemble(SUM).unwrap(), &limits).unwrap());
        let (native, words) = (Native::default(), DirectLoads::default());
        let mut machine = Machine::new();
        let mut without = Vec::new();
        for _ in 0..3 {
            machine.start(&verified, &ITERATIONS.to_le_bytes(), limits.budget).unwrap();
            let result = loop {
                without.push(native.code.get().is_none());
                let lent = Lent { own: &mut [], shared: &mut [] };
                match native.run(&verified, &mut machine, 1_000, lent, &words, &mut Far) {
                    Outcome::Paused => {}
                    Outcome::Returned(result) => break result,
                    outcome => panic!("{outcome:?}"),
                }
            };
            assert_eq!(result, ITERATIONS * (ITERATIONS + 1) / 2);
        }
        // The first call compiled the code halfway, in the slice after the interpreted ones.
        let interpreted = without.iter().filter(|without| **without).count() - 1;
        assert_eq!(interpreted, Native::INTERPRETED_MAX as usize);
        assert!(without.len() > 2 * interpreted, "{} slices", without.len());
        assert!(without[interpreted + 1..].iter().all(|without| !without));
        assert!(matches!(native.code.get(), Some(Some(_))));
    }
}
