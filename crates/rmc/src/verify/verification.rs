//! Verification as a state machine of bounded steps, so that an executor interleaves it with other work.
//!
//! The analyses are tried in the order of their cost at run time: path exploration with loop summarization, then
//! with unrolled loops, then the fixpoint. If the fixpoint finds a problem, paths are explored once more before the
//! program is refused. If the exploration was cut short because some loop has no bound, it is repeated with the whole
//! limit: the ranges of two counters have more pairs than the loop reaches. Else the registers that such loops change
//! are widened at their headers, so that paths through them end: the fixpoint is not path-sensitive.

use alloc::boxed::Box;
use core::mem::{replace, take};
use core::sync::atomic::{AtomicU64, Ordering};
use core::{fmt, iter};

use super::explore::{Explored, Explorer};
use super::fixpoint::Fixpoint;
use super::interned::Interned;
use super::live::Liveness;
use super::problem::{Problem, Refusal};
use super::step::{Facts, Stepper};
use super::{Verified, structure};
use crate::assembler::disassemble;
use crate::cost::{Charges, Cost};
use crate::decode::{fuse, predecode};
use crate::isa::{Instruction, Operand};
use crate::limits::{Budget, Limits, SLOW_WEIGHT, UNPAUSED_HELPER_WEIGHT};
use crate::program::Program;

/// How many programs this process has verified.
static VERIFIED: AtomicU64 = AtomicU64::new(0);

/// A verification in progress: plain data that any thread may continue with [`Verification::step`].
///
/// Its verdict is that of [`verify()`], which is a loop over it, for any sizes of steps. It analyses at most
/// three times `walked_max` and once `widened_max` instructions of [`Limits`], all that twice before it refuses,
/// besides abandoned loop summarizations, which are bounded by the size of the program; some steps analyse none.
///
/// ```
/// use farside_rmc::assembler::assemble;
/// use farside_rmc::{Limits, Verification};
///
/// let program = assemble("r0 = 0\nagain:\nr0 += 1\nif r0 < 1000 goto again\nexit")?;
/// let mut verification = Verification::new(program, &Limits::DEFAULT);
/// let verdict = loop {
///     // Other work runs here.
///     if let Some(verdict) = verification.step(64) {
///         break verdict?;
///     }
/// };
/// assert_eq!(verdict.worst().instructions, 1 + 2 * 1_000 + 1);
/// assert!(verification.walked() < 10, "a counted loop is summarized");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Verification {
    stage: VerificationStage,
    walked: u64,
}

/// The next stage. The stepper, which has the program, is passed from each stage to the next.
enum VerificationStage {
    /// What can be seen without running anything; slots before this one are right.
    Structure(Box<Stepper>, usize),
    /// Which registers are read later.
    Liveness(Box<Stepper>, Liveness),
    /// Path exploration; with what is already proven, if it is repeated for a better worst case.
    Paths(Box<Explorer>, Option<(Facts, Cost)>),
    /// The fixpoint, which holds for any number of iterations.
    Fixpoint(Fixpoint),
    /// What a machine runs, with the worst case and whether it is metered.
    Operations(Box<Stepper>, Cost, bool),
    /// The verdict is out.
    Over,
}

impl Verification {
    /// Maximum working memory of a verification with [`Limits::DEFAULT`], in bytes: abstract states, with a limited
    /// number of values, sets of numbers, and stretches of paths, at most one per instruction analysed. A program that
    /// needs more is refused ([`Problem::TooComplex`]).
    pub const BYTES_MAX: usize = 32 << 20;

    /// Starts a verification. Problems of the program are reported by [`Verification::step`].
    pub fn new(program: Program, limits: &Limits) -> Self {
        Self::with_numbers(program, limits, Interned::new())
    }

    /// With a new table of numbers.
    pub(super) fn with_numbers(program: Program, limits: &Limits, numbers: Interned) -> Self {
        let stepper = Box::new(Stepper::new(program, limits, numbers));
        Self { stage: VerificationStage::Structure(stepper, 0), walked: 0 }
    }

    /// Analyses up to `instructions` more, and at least one. Returns the verdict once, when the verification ends, and
    /// `None` before and after.
    ///
    /// # Errors
    /// Which instruction is refused, its source line, and why, as [`verify()`].
    ///
    /// # Cost
    /// Some 100 ns an instruction, and a microsecond for programs built to be slow. A step never analyses more
    /// instructions than given; ends of paths count as instructions. The stages that analyse none are separate steps,
    /// of which the last takes time proportional to the program. Growing tables are moved, and finished stages freed,
    /// within one step: up to some milliseconds for a program that fills the memory limit of the analysis.
    pub fn step(&mut self, instructions: u32) -> Option<Result<Verified, Box<Refusal>>> {
        let instructions = instructions.max(1);
        let next = match replace(&mut self.stage, VerificationStage::Over) {
            VerificationStage::Structure(stepper, slot) => check(stepper, slot, instructions),
            VerificationStage::Liveness(stepper, liveness) => {
                Ok(settle(stepper, liveness, instructions))
            }
            VerificationStage::Paths(explorer, proven) => {
                self.explore(explorer, proven, instructions)
            }
            VerificationStage::Fixpoint(fixpoint) => self.widen(fixpoint, instructions),
            VerificationStage::Operations(stepper, worst, metered) => {
                return Some(Ok(accept(*stepper, worst, metered)));
            }
            VerificationStage::Over => return None,
        };
        match next {
            Ok(stage) => {
                self.stage = stage;
                None
            }
            Err(refusal) => Some(Err(refusal)),
        }
    }

    /// Instructions analysed so far, as a measure of the cost.
    pub fn walked(&self) -> u64 {
        self.walked
    }

    fn explore(
        &mut self,
        mut explorer: Box<Explorer>,
        proven: Option<(Facts, Cost)>,
        instructions: u32,
    ) -> Result<VerificationStage, Box<Refusal>> {
        let before = explorer.walked();
        let explored = explorer.explore(instructions);
        self.walked += explorer.walked() - before;
        let explored = match explored {
            Ok(None) => return Ok(VerificationStage::Paths(explorer, proven)),
            Ok(Some(explored)) => explored,
            Err(found) => return again(explorer.stepper, found),
        };
        let budget = explorer.stepper.limits.budget;
        let has_counted = explorer.has_counted();
        match explored {
            Explored::Closed(_) if !explorer.stepper.facts.of_all.ends => {
                Err(refusal(&explorer.stepper, None, Problem::NeverEnds))
            }
            Explored::Closed(worst) if worst.within(&budget) => {
                Ok(VerificationStage::Operations(explorer.stepper, worst, false))
            }
            // Unrolled, the worst case may be lower.
            Explored::Closed(worst) if has_counted && worst != Cost::ENDLESS => {
                Ok(exactly(explorer.stepper, Some(worst)))
            }
            Explored::Closed(worst) => {
                let worst = metered_worst(worst, budget);
                Ok(VerificationStage::Operations(explorer.stepper, worst, true))
            }
            Explored::TooMuch if has_counted => Ok(exactly(explorer.stepper, None)),
            Explored::TooMuch => match proven {
                Some((facts, worst)) => {
                    let mut stepper = explorer.stepper;
                    stepper.facts = Facts { live: take(&mut stepper.facts.live), ..facts };
                    Ok(VerificationStage::Operations(stepper, metered_worst(worst, budget), true))
                }
                None => Ok(VerificationStage::Fixpoint(Fixpoint::new(*explorer))),
            },
        }
    }

    fn widen(
        &mut self,
        mut fixpoint: Fixpoint,
        instructions: u32,
    ) -> Result<VerificationStage, Box<Refusal>> {
        let before = fixpoint.walked();
        let found = fixpoint.find(instructions);
        self.walked += fixpoint.walked() - before;
        match found {
            Ok(false) => Ok(VerificationStage::Fixpoint(fixpoint)),
            Ok(true) if fixpoint.stepper.facts.of_all.ends => {
                let worst = metered_worst(Cost::ENDLESS, fixpoint.stepper.limits.budget);
                Ok(VerificationStage::Operations(fixpoint.stepper, worst, true))
            }
            Ok(true) => Err(refusal(&fixpoint.stepper, None, Problem::NeverEnds)),
            Err(found) if !fixpoint.stepper.is_patient => {
                let mut stepper = fixpoint.stepper;
                stepper.again();
                (stepper.is_patient, stepper.counts) = (true, true);
                (stepper.widens, stepper.refused) = (!stepper.was_cut, Some(found));
                Ok(paths(stepper, None))
            }
            Err(found) => again(fixpoint.stepper, found),
        }
    }
}

/// Verifies a program against limits: runs a [`Verification`] to completion.
///
/// # Errors
/// Which instruction is refused, its source line, and why. The verdict is deterministic for a program and limits.
///
/// # Cost
/// Some microseconds for a program of the library, tens of milliseconds for a program built to be slow.
pub fn verify(program: Program, limits: &Limits) -> Result<Verified, Box<Refusal>> {
    let mut verification = Verification::new(program, limits);
    loop {
        if let Some(verdict) = verification.step(u32::MAX) {
            return verdict;
        }
    }
}

impl fmt::Debug for Verification {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let over = matches!(self.stage, VerificationStage::Over);
        let mut out = out.debug_struct("Verification");
        out.field("walked", &self.walked).field("over", &over).finish_non_exhaustive()
    }
}

fn check(
    stepper: Box<Stepper>,
    slot: usize,
    slots: u32,
) -> Result<VerificationStage, Box<Refusal>> {
    let program = &stepper.program;
    if slot == 0 {
        structure::whole(program, &stepper.limits)
            .map_err(|problem| refusal(&stepper, None, problem))?;
    }
    let end = program.code.len().min(slot.saturating_add(slots as usize));
    structure::check(program, slot..end)
        .map_err(|(slot, problem)| refusal(&stepper, Some(slot), problem))?;
    if end < program.code.len() {
        return Ok(VerificationStage::Structure(stepper, end));
    }
    let liveness = Liveness::new(program);
    Ok(VerificationStage::Liveness(stepper, liveness))
}

fn settle(
    mut stepper: Box<Stepper>,
    mut liveness: Liveness,
    instructions: u32,
) -> VerificationStage {
    match liveness.settle(instructions) {
        Some(live) => {
            stepper.facts.live = live;
            stepper.facts.meetings = structure::meeting_points(&stepper.program);
            paths(stepper, None)
        }
        None => VerificationStage::Liveness(stepper, liveness),
    }
}

fn paths(stepper: Box<Stepper>, proven: Option<(Facts, Cost)>) -> VerificationStage {
    VerificationStage::Paths(Box::new(Explorer::new(stepper)), proven)
}

/// Repeats the exploration with unrolled loops, after summarization gave too high a cost; safety may be proven already,
/// with this worst case.
fn exactly(mut stepper: Box<Stepper>, worst: Option<Cost>) -> VerificationStage {
    let facts = stepper.again();
    stepper.counts = false;
    paths(stepper, worst.map(|worst| (facts, worst)))
}

/// Repeats the exploration without dropping stack values, if a dropped one may have caused the problem; else refuses.
fn again(
    mut stepper: Box<Stepper>,
    (slot, problem): (usize, Problem),
) -> Result<VerificationStage, Box<Refusal>> {
    let (slot, problem) = stepper.refused.take().unwrap_or((slot, problem));
    let by_faint = stepper.has_forgotten_faint && matches!(problem, Problem::AddressTooFar { .. });
    if !stepper.has_forgotten && !by_faint {
        return Err(refusal(&stepper, Some(slot), problem));
    }
    stepper.again();
    (stepper.forgets, stepper.counts, stepper.widens) = (false, true, false);
    Ok(paths(stepper, None))
}

/// The worst case of a metered program: at most the budget.
fn metered_worst(worst: Cost, budget: Budget) -> Cost {
    Cost {
        instructions: worst.instructions.min(budget.instructions),
        helper_calls: worst.helper_calls.min(budget.helper_calls),
        bytes: worst.bytes.min(budget.bytes),
        words: worst.words.min(budget.instructions),
        slow: worst.slow.min(budget.instructions),
    }
}

/// What a call weighs at most that never pauses, in instructions.
fn unpaused_weight(worst: &Cost) -> u64 {
    let helpers = worst.words.saturating_add(worst.helper_calls);
    let slow = worst.slow.saturating_mul(u64::from(SLOW_WEIGHT));
    let helpers = helpers.saturating_mul(UNPAUSED_HELPER_WEIGHT);
    worst.instructions.saturating_add(helpers).saturating_add(slow)
}

fn accept(stepper: Stepper, worst: Cost, metered: bool) -> Verified {
    let Stepper { mut program, limits, mut facts, .. } = stepper;
    if !facts.undefined.is_empty() {
        facts.undefined.iter().for_each(|slot| define(&mut program.code[*slot]));
        let mut liveness = Liveness::new(&program);
        facts.live =
            iter::repeat_with(|| liveness.settle(u32::MAX)).flatten().next().unwrap_or_default();
    }
    let charged = metered || unpaused_weight(&worst) > limits.unpaused_max;
    let charges = charged.then(|| Charges::of(&program));
    let ops = predecode(&program, &facts.reached, charges.as_ref());
    let second = Instruction::SecondHalf;
    let seen = |(code, reached): &(&Instruction, &bool)| !**reached && **code != second;
    let unreached = program.code.iter().zip(&facts.reached).filter(seen).count();
    Verified {
        fused: fuse(&ops, charges.as_ref()),
        ops,
        limits,
        worst,
        metered,
        start_cost: charges.as_ref().map_or(0, |charges| charges.start(0)),
        charges,
        frames: facts.of_all.frames,
        context_bytes: u32::try_from(facts.of_all.context_bytes).unwrap_or(u32::MAX),
        unreached,
        places: facts.places,
        meetings: facts.meetings,
        live: facts.live.registers,
        identity: VERIFIED.fetch_add(1, Ordering::Relaxed),
        program,
    }
}

/// A copy of what holds nothing becomes a zero.
fn define(instruction: &mut Instruction) {
    if let Instruction::Alu { src, .. } = instruction {
        *src = Operand::Immediate(0);
    }
}

fn refusal(stepper: &Stepper, slot: Option<usize>, problem: Problem) -> Box<Refusal> {
    let program = &stepper.program;
    let at = |slot: usize| program.code.get(slot).map(|code| disassemble(*code));
    Box::new(Refusal {
        program: program.name.clone(),
        slot,
        instruction: slot.and_then(at).unwrap_or_default(),
        line: slot.and_then(|slot| program.line_at(slot)).cloned(),
        problem,
    })
}
