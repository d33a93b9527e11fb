//! When a program is compiled: registering costs nobody what only those gain who call often, and what is called
//! seldom never costs it.

use super::words::Words;
use farside_rmc::Verified;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
use farside_rmc::run::native::Compiled;
use farside_rmc::run::{Lent, Machine, Near, Outcome};
use std::sync::Arc;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
use std::sync::OnceLock;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
use std::sync::atomic::{AtomicU32, Ordering};

/// The machine code of a program, made once it has been interpreted so often that this pays.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
#[derive(Debug, Default)]
pub(super) struct Native {
    /// Nothing inside where it is too large, or there was no memory for code: slower, and otherwise the same.
    code: OnceLock<Option<Compiled>>,
    /// How often it was interpreted, for a slice at most each time.
    interpreted: AtomicU32,
}

/// There is no compiler for this processor.
#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
#[derive(Debug, Default)]
pub(super) struct Native;

impl Native {
    /// As of [`super::loaded::Loaded::run`].
    #[inline]
    pub(super) fn run(
        &self,
        verified: &Arc<Verified>,
        machine: &mut Machine,
        instructions: u64,
        lent: Lent<'_>,
        words: &Words,
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
    /// Interpreted so often, short calls have taken some tenths of what compiling takes, and long ones about as long.
    const INTERPRETED_MAX: u32 = 16;

    /// The code, where there is any by now.
    #[inline]
    fn code(&self, verified: &Arc<Verified>) -> Option<&Compiled> {
        match self.code.get() {
            Some(code) => code.as_ref(),
            None => self.count(verified),
        }
    }

    /// Counts a slice that is interpreted; what comes behind the last one makes the code, at its caller's cost.
    #[cold]
    fn count(&self, verified: &Arc<Verified>) -> Option<&Compiled> {
        // Those of several threads may be counted as one.
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

    /// Sums what it counts down, and is cut into slices.
    const SUM: &str =
        "r0 = 0\nr2 = *(u64 *)(r1 + 0)\nagain:\nr0 += r2\nr2 += -1\nif r2 != 0 goto again\nexit";
    const TURNS: u64 = 10_000;

    #[test]
    fn a_call_goes_on_in_machine_code_where_the_interpreter_was() {
        let limits = Limits::DEFAULT;
        let verified = Arc::new(verify(assemble(SUM).unwrap(), &limits).unwrap());
        let (native, words) = (Native::default(), Words::default());
        let mut machine = Machine::new();
        let mut without = Vec::new();
        for _ in 0..3 {
            machine.start(&verified, &TURNS.to_le_bytes(), limits.budget).unwrap();
            let result = loop {
                without.push(native.code.get().is_none());
                let lent = Lent { own: &mut [], shared: &mut [] };
                match native.run(&verified, &mut machine, 1_000, lent, &words, &mut Far) {
                    Outcome::Paused => {}
                    Outcome::Returned(result) => break result,
                    outcome => panic!("{outcome:?}"),
                }
            };
            assert_eq!(result, TURNS * (TURNS + 1) / 2);
        }
        // The code came in the middle of the first call, with the slice behind those that were interpreted.
        let interpreted = without.iter().filter(|without| **without).count() - 1;
        assert_eq!(interpreted, Native::INTERPRETED_MAX as usize);
        assert!(without.len() > 2 * interpreted, "{} slices", without.len());
        assert!(without[interpreted + 1..].iter().all(|without| !without));
        assert!(matches!(native.code.get(), Some(Some(_))));
    }
}
