//! Builds programs instruction by instruction, with forward labels.

use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;

use crate::helpers::Call;
use crate::isa::{AluOp, Condition, Instruction, Operand, Register, Size, Wide, Width, encode};
use crate::program::{Function, Program, SourcePosition, StateDeclaration};

/// A place in the code.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct Label(usize);

/// Why a program cannot be built.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum BuildError {
    /// A label is used but not placed.
    Unplaced(Label),
    /// A label is placed twice.
    PlacedTwice(Label),
    /// A conditional jump reaches 32,767 slots at most.
    TooFar {
        /// The slot that jumps.
        slot: usize,
    },
    /// The instruction has no encoding.
    NoSuchForm {
        /// Its slot.
        slot: usize,
    },
}

impl fmt::Display for BuildError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unplaced(label) => write!(out, "label {} is not placed: place it", label.0),
            Self::PlacedTwice(label) => write!(out, "label {} is placed twice", label.0),
            Self::TooFar { slot } => {
                write!(out, "slot {slot}: a conditional jump reaches 32,767 slots at most")
            }
            Self::NoSuchForm { slot } => {
                write!(out, "slot {slot}: the instruction set has no such combination")
            }
        }
    }
}

impl core::error::Error for BuildError {}

/// Builds a program. Methods append one instruction each.
#[derive(Clone, Debug, Default)]
pub struct Builder {
    program: Program,
    /// Slot of each label, once it is placed.
    places: Vec<Option<usize>>,
    /// Slots that jump to or call a label.
    uses: Vec<(usize, Label)>,
    twice: Option<Label>,
}

impl Builder {
    /// An empty program.
    pub fn new(name: &str) -> Self {
        let mut builder = Self::default();
        builder.program.name = name.into();
        builder.program.functions.push(Function { name: name.into(), start: 0, end: 0 });
        builder
    }

    /// How many slots there are so far.
    pub fn slots(&self) -> usize {
        self.program.code.len()
    }

    /// Creates a label that is not placed yet.
    pub fn label(&mut self) -> Label {
        self.places.push(None);
        Label(self.places.len() - 1)
    }

    /// Puts a label before the next instruction.
    pub fn place(&mut self, label: Label) -> &mut Self {
        let slot = self.slots();
        match self.places.get_mut(label.0) {
            Some(place @ None) => *place = Some(slot),
            _ => self.twice = Some(label),
        }
        self
    }

    /// Starts another function here, with a label that calls it.
    pub fn function(&mut self, name: &str, label: Label) -> &mut Self {
        let start = self.slots();
        self.program.functions.push(Function { name: name.into(), start, end: start });
        self.place(label)
    }

    /// Sets the source line of the next instructions.
    pub fn line(&mut self, file: &Arc<str>, line: u32) -> &mut Self {
        let slot = self.slots();
        self.program.lines.retain(|before| before.slot != slot);
        self.program.lines.push(SourcePosition { slot, file: file.clone(), line });
        self
    }

    /// Any instruction.
    pub fn push(&mut self, instruction: Instruction) -> &mut Self {
        self.program.code.push(instruction);
        if instruction.slots() == 2 {
            self.program.code.push(Instruction::SecondHalf);
        }
        self
    }

    /// `dst = dst op src`, 64 bits.
    pub fn alu(&mut self, op: AluOp, dst: Register, src: Operand) -> &mut Self {
        self.push(Instruction::Alu { width: Width::Double, op, dst, src })
    }

    /// `dst = dst op src`, 32 bits.
    pub fn alu_word(&mut self, op: AluOp, dst: Register, src: Operand) -> &mut Self {
        self.push(Instruction::Alu { width: Width::Word, op, dst, src })
    }

    /// `dst = src`.
    pub fn copy(&mut self, dst: Register, src: Register) -> &mut Self {
        self.alu(AluOp::Move, dst, Operand::Register(src))
    }

    /// `dst = value`, in one slot if it fits.
    pub fn set(&mut self, dst: Register, value: i64) -> &mut Self {
        match i32::try_from(value) {
            Ok(short) => self.alu(AluOp::Move, dst, Operand::Immediate(short)),
            Err(_) => self.load_wide(dst, Wide::Value(value as u64)),
        }
    }

    /// A wide load.
    pub fn load_wide(&mut self, dst: Register, value: Wide) -> &mut Self {
        self.push(Instruction::LoadWide { dst, value })
    }

    /// `dst = *(base + offset)`.
    pub fn load(&mut self, size: Size, dst: Register, base: Register, offset: i16) -> &mut Self {
        self.push(Instruction::Load { size, signed: false, dst, base, offset })
    }

    /// `*(base + offset) = src`.
    pub fn store(&mut self, size: Size, base: Register, offset: i16, src: Operand) -> &mut Self {
        self.push(Instruction::Store { size, base, offset, src })
    }

    /// Goes to a label.
    pub fn jump(&mut self, to: Label) -> &mut Self {
        self.uses.push((self.slots(), to));
        self.push(Instruction::Jump { offset: 0 })
    }

    /// Jumps to a label if the condition holds, 64 bits.
    pub fn jump_if(
        &mut self,
        condition: Condition,
        dst: Register,
        src: Operand,
        to: Label,
    ) -> &mut Self {
        self.uses.push((self.slots(), to));
        let width = Width::Double;
        self.push(Instruction::JumpIf { width, condition, dst, src, offset: 0 })
    }

    /// Appends a jump or call with the offset of a label.
    pub fn push_to(&mut self, instruction: Instruction, to: Label) -> &mut Self {
        self.uses.push((self.slots(), to));
        self.push(instruction)
    }

    /// Calls a helper.
    pub fn call(&mut self, helper: Call) -> &mut Self {
        self.push(Instruction::CallHelper { number: helper as u32 })
    }

    /// Calls a function.
    pub fn call_function(&mut self, to: Label) -> &mut Self {
        self.uses.push((self.slots(), to));
        self.push(Instruction::CallFunction { offset: 0 })
    }

    /// Ends the function or program.
    pub fn exit(&mut self) -> &mut Self {
        self.push(Instruction::Exit)
    }

    /// Gives the program another name.
    pub fn name(&mut self, name: &str) -> &mut Self {
        self.program.name = name.into();
        if let Some(function) = self.program.functions.first_mut() {
            function.name = name.into();
        }
        self
    }

    /// Appends constant data; the offset of its first byte.
    pub fn constants(&mut self, bytes: &[u8]) -> u32 {
        let offset = self.program.constants.len();
        self.program.constants.extend_from_slice(bytes);
        offset as u32
    }

    /// Appends variables of each queue pair, or shared ones; the offset of their first byte.
    pub fn variables(&mut self, shared: bool, bytes: &[u8]) -> u32 {
        let variables = &mut self.program.variables;
        let place = if shared { &mut variables.shared } else { &mut variables.own };
        let offset = place.len();
        place.extend_from_slice(bytes);
        offset as u32
    }

    /// Declares a state; its handle.
    pub fn state(&mut self, declaration: StateDeclaration) -> u32 {
        self.program.states.push(declaration);
        self.program.states.len() as u32 - 1
    }

    /// The handle of the state with this name.
    pub fn state_named(&self, name: &str) -> Option<u32> {
        let at = self.program.states.iter().position(|state| state.name == name)?;
        u32::try_from(at).ok()
    }

    /// Name of the function at a label, for messages.
    pub fn name_of(&self, label: Label) -> Option<String> {
        let slot = (*self.places.get(label.0)?)?;
        let function = self.program.functions.iter().find(|function| function.start == slot)?;
        Some(function.name.clone())
    }

    /// The program, with all labels resolved.
    pub fn build(mut self) -> Result<Program, BuildError> {
        if let Some(label) = self.twice {
            return Err(BuildError::PlacedTwice(label));
        }
        for (slot, label) in &self.uses {
            let to = self.places.get(label.0).copied().flatten();
            let to = to.ok_or(BuildError::Unplaced(*label))?;
            let distance = to as i64 - (*slot as i64 + 1);
            let far = BuildError::TooFar { slot: *slot };
            match &mut self.program.code[*slot] {
                Instruction::Jump { offset } | Instruction::CallFunction { offset } => {
                    *offset = i32::try_from(distance).map_err(|_| far)?;
                }
                Instruction::JumpIf { offset, .. } => {
                    *offset = i16::try_from(distance).map_err(|_| far)?;
                }
                _ => return Err(BuildError::NoSuchForm { slot: *slot }),
            }
        }
        for (slot, instruction) in self.program.code.iter().enumerate() {
            if *instruction != Instruction::SecondHalf && encode(*instruction).is_err() {
                return Err(BuildError::NoSuchForm { slot });
            }
        }
        let end = self.program.code.len();
        let functions = &mut self.program.functions;
        for at in 0..functions.len() {
            functions[at].end = functions.get(at + 1).map_or(end, |next| next.start);
        }
        Ok(self.program)
    }
}
