//! Liveness of registers and stack slots, by backward data-flow analysis.
//!
//! Dead values are dropped at join points, so that more paths are pruned. There a wrong result costs only precision: a
//! dropped register cannot be read, a dropped slot is any number. The compiler relies on it for soundness: it does not
//! compute dead registers.
//!
//! Only accesses to the stack through R10 itself are seen; those through other addresses are not.
//!
//! A second analysis finds the registers whose numbers can decide a verdict: *strongly live* variables (Nielson,
//! Nielson, Hankin: Principles of Program Analysis, exercise 2.4; their complement are *faint* variables). A number
//! matters where it is compared, or becomes an address, a length, the argument or result of a function, or a word
//! that the stack keeps; a sum matters if what it is assigned to does. Counts, sums and hashes of data do not, so
//! abstract states that differ in these alone are the same state. A comparison that decides only whether such a
//! number is assigned (a conditional move: the greater of two, a bit of a checksum) does not make its operands
//! matter: nothing else is control-dependent on it (Weiser: Program slicing, 1984).

use alloc::vec::Vec;

use crate::decode::{register_bit, uses};
use crate::helpers::{Argument, Extent, Helper};
use crate::isa::{Instruction, Register, Size};
use crate::limits::FRAME_BYTES;
use crate::program::Program;

/// The registers and stack slots that an instruction reads and writes, and its successors.
struct Flow {
    read: u16,
    written: u16,
    /// Registers that matter here, and those that matter if what is written matters afterwards, as bits.
    decides: u16,
    passes: u16,
    /// Bits of the slots of the stack.
    loaded: u64,
    stored: u64,
    /// The next slot and the target of its jump; the end of the code if there is none.
    next: [u32; 2],
    /// How many slots it jumps over, if it is the jump of a conditional move.
    skipped: u32,
}

/// Most slots of a conditional move: a jump over instructions that only compute.
const SKIPPED_MAX: usize = 4;

/// Slots that an instruction jumps over, if it is a conditional move.
fn skipped(slot: usize, code: &[Instruction]) -> u32 {
    let Instruction::JumpIf { .. } = code[slot] else { return 0 };
    let target = code[slot].jump_target(slot).and_then(|at| usize::try_from(at).ok());
    let Some(over) = target.and_then(|target| code.get(slot + 1..target)) else { return 0 };
    let computes = |code: &Instruction| {
        matches!(
            code,
            Instruction::Alu { .. }
                | Instruction::Bytes { .. }
                | Instruction::LoadWide { .. }
                | Instruction::SecondHalf
        )
    };
    if over.len() <= SKIPPED_MAX && over.iter().all(computes) { over.len() as u32 } else { 0 }
}

impl Flow {
    fn of(slot: usize, program: &Program) -> Self {
        let code = &program.code;
        let instruction = code[slot];
        let (read, written) = uses(instruction);
        let outer = instruction == Instruction::Exit && program.function_at(slot) == Some(0);
        let (decides, passes) = matters(instruction, outer);
        let (loaded, stored) = stack(instruction);
        let behind = instruction.falls_through().then(|| slot + instruction.slots());
        let target = instruction.jump_target(slot).and_then(|at| usize::try_from(at).ok());
        let next = |next: Option<usize>| next.map_or(code.len(), |at| at.min(code.len())) as u32;
        let next = [next(behind), next(target)];
        let skipped = skipped(slot, code);
        Self { read, written, decides, passes, loaded, stored, next, skipped }
    }
}

/// Rounds over a program after which everything counts as live.
const ROUNDS_MAX: u32 = 64;

/// The live registers and stack slots at each slot.
#[derive(Debug, Default)]
pub(super) struct Live {
    /// Bits of registers.
    pub(super) registers: Vec<u16>,
    /// Strongly live registers, as bits.
    pub(super) strongly: Vec<u16>,
    /// Bits of slots of the stack of the running frame, the lowest first.
    pub(super) stack: Vec<u64>,
}

/// The analysis in progress, by rounds over the program from its end.
pub(super) struct Liveness {
    flows: Vec<Flow>,
    /// Targets of back edges: not yet final when their predecessor is visited.
    heads: Vec<bool>,
    /// The result so far. Nothing is live after the last slot.
    live: Live,
    rounds: u32,
}

impl Liveness {
    pub(super) fn new(program: &Program) -> Self {
        let code = &program.code;
        let flows: Vec<Flow> = (0..code.len()).map(|slot| Flow::of(slot, program)).collect();
        let mut heads = alloc::vec![false; code.len() + 1];
        for (slot, flow) in flows.iter().enumerate() {
            let back = flow.next.into_iter().filter(|next| *next as usize <= slot);
            back.for_each(|next| heads[next as usize] = true);
        }
        let live = Live {
            registers: alloc::vec![0; code.len() + 1],
            strongly: alloc::vec![0; code.len() + 1],
            stack: alloc::vec![0; code.len() + 1],
        };
        Self { flows, heads, live, rounds: 0 }
    }

    /// Visits about `slots` slots, one round at least. Returns the result when it is found.
    pub(super) fn settle(&mut self, slots: u32) -> Option<Live> {
        let mut seen = 0;
        while seen < slots as usize {
            if self.rounds >= ROUNDS_MAX {
                // The limit is reached: treating everything as live is sound.
                let slots = self.flows.len();
                let registers = alloc::vec![u16::MAX; slots];
                let strongly = registers.clone();
                return Some(Live { registers, strongly, stack: alloc::vec![u64::MAX; slots] });
            }
            self.rounds += 1;
            if !self.round() {
                return Some(core::mem::take(&mut self.live));
            }
            seen += self.flows.len();
        }
        None
    }

    /// Whether it has changed a slot that was visited before.
    fn round(&mut self) -> bool {
        let (Live { registers, strongly, stack }, mut changed) = (&mut self.live, false);
        for (slot, flow) in self.flows.iter().enumerate().rev() {
            let [behind, target] = flow.next.map(|next| next as usize);
            let after = registers[behind] | registers[target];
            let before = after & !flow.written | flow.read;
            let held_after = stack[behind] | stack[target];
            let held_before = held_after & !flow.stored | flow.loaded;
            let strong_after = strongly[behind] | strongly[target];
            let passed = if strong_after & flow.written == 0 { 0 } else { flow.passes };
            let over = slot + 1..slot + 1 + flow.skipped as usize;
            let moves = |at: usize| strongly[at + 1] & self.flows[at].written != 0;
            let is_faint = flow.skipped > 0 && !over.into_iter().any(moves);
            let decides = if is_faint { 0 } else { flow.decides };
            let strong_before = strong_after & !flow.written | decides | passed;
            let found = (before, strong_before, held_before);
            changed |= self.heads[slot] && found != (registers[slot], strongly[slot], stack[slot]);
            (registers[slot], strongly[slot], stack[slot]) = found;
        }
        changed
    }
}

/// The stack slots of which an instruction reads all eight bytes, and those that it writes, as bits, for accesses
/// through R10.
fn stack(instruction: Instruction) -> (u64, u64) {
    let whole = |offset: i16| {
        let at = i64::from(FRAME_BYTES) + i64::from(offset);
        let slot = u32::try_from(at / 8).ok().filter(|slot| at % 8 == 0 && *slot < u64::BITS);
        slot.map_or(0, |slot| 1 << slot)
    };
    match instruction {
        Instruction::Load { size: Size::Double, base: Register::R10, offset, .. } => {
            (whole(offset), 0)
        }
        Instruction::Store { size: Size::Double, base: Register::R10, offset, .. } => {
            (0, whole(offset))
        }
        _ => (0, 0),
    }
}

const _: () = assert!(FRAME_BYTES / 8 == u64::BITS, "a bit for each slot of a frame");

/// The registers that matter to an instruction, and those that matter if its result does, as bits. `outer` is whether
/// it belongs to the program's own function, which may return any number.
fn matters(instruction: Instruction, outer: bool) -> (u16, u16) {
    match instruction {
        Instruction::Alu { .. } | Instruction::Bytes { .. } => (0, uses(instruction).0),
        // In memory, only numbers in whole words of the stack are tracked.
        Instruction::Store { size: Size::Double, .. } => (uses(instruction).0, 0),
        Instruction::Store { base, .. } | Instruction::Atomic { base, .. } => {
            (register_bit(base), 0)
        }
        Instruction::CallHelper { number } => {
            let Some(helper) = Helper::with_number(number) else { return (uses(instruction).0, 0) };
            let arguments = helper.arguments.iter().zip(1..);
            let of = |(argument, register): (&Argument, u8)| match argument {
                Argument::Number | Argument::Region => 0,
                Argument::Readable(Extent::Argument { index, .. })
                | Argument::Writable(Extent::Argument { index, .. }) => 1 << register | 2 << index,
                _ => 1 << register,
            };
            (arguments.map(of).fold(0, |bits, argument| bits | argument), 0)
        }
        Instruction::Exit if outer => (0, 0),
        _ => (uses(instruction).0, 0),
    }
}
