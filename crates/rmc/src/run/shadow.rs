//! The shadow state of the checked interpreter: for every register and stack byte, whether it was written, and whether
//! it is a number, an address or the handle of a state. Also the program's charges, which it computes independently.

use alloc::vec::Vec;

use super::{FaultKind, Request};
use crate::cost::Charges;
use crate::decode::Area;
use crate::isa::Register;
use crate::limits::{FRAME_BYTES, FRAMES_MAX};
use crate::program::Program;

/// What a register holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ShadowValue {
    Nothing,
    Number,
    Address(Area),
    Handle,
}

/// What a byte of the stack holds: nothing, part of a number, or that byte of a handle or of an address in one of the
/// areas, whatever the address is.
const NOTHING: u8 = 0;
const NUMBER: u8 = 1;
const HANDLE: u8 = 8;
const ADDRESS: [(Area, u8); 5] = [
    (Area::Constants, 16),
    (Area::Own, 24),
    (Area::Shared, 32),
    (Area::Context, 40),
    (Area::Stack, 48),
];

#[derive(Clone, Debug)]
pub(crate) struct Shadow {
    pub(super) registers: [ShadowValue; Register::COUNT],
    kept: [[ShadowValue; 4]; FRAMES_MAX],
    stack: Vec<u8>,
    pub(super) charges: Charges,
}

impl Shadow {
    /// At the start of a call.
    pub(super) fn new(program: &Program) -> Self {
        let mut registers = [ShadowValue::Nothing; Register::COUNT];
        registers[1] = ShadowValue::Address(Area::Context);
        registers[2] = ShadowValue::Number;
        registers[10] = ShadowValue::Address(Area::Stack);
        let stack = alloc::vec![NOTHING; FRAMES_MAX * FRAME_BYTES as usize];
        let kept = [[ShadowValue::Nothing; 4]; FRAMES_MAX];
        Self { registers, kept, stack, charges: Charges::of(program) }
    }

    /// Reads a register, which must be initialised.
    pub(super) fn held(&self, register: Register) -> Result<ShadowValue, FaultKind> {
        match self.registers[register.index()] {
            ShadowValue::Nothing => Err(FaultKind::Uninitialised),
            held => Ok(held),
        }
    }

    /// Checks that a register holds a number.
    pub(super) fn number(&self, register: Register) -> Result<(), FaultKind> {
        match self.held(register)? {
            ShadowValue::Number => Ok(()),
            _ => Err(FaultKind::AddressAsNumber),
        }
    }

    /// Checks that a register holds an address, and that `address`, made from it, is still of its area.
    pub(super) fn address(&self, register: Register, address: u64) -> Result<Area, FaultKind> {
        match self.held(register)? {
            ShadowValue::Address(area) if Area::of(address) == Some(area) => Ok(area),
            ShadowValue::Address(_) => Err(FaultKind::OutOfBounds { address, length: 0 }),
            _ => Err(FaultKind::NumberAsAddress),
        }
    }

    /// Checks that bytes of the stack are in live frames.
    fn living(address: u64, length: usize, depth: usize) -> Result<(usize, usize), FaultKind> {
        let from = address as u32 as usize;
        let end = (depth + 1) * FRAME_BYTES as usize;
        if from + length > end {
            return Err(FaultKind::OutOfBounds { address, length: length as u32 });
        }
        Ok((from, from + length))
    }

    /// What a load finds in memory. Only the stack can hold anything but numbers.
    pub(super) fn loaded(
        &self,
        area: Area,
        address: u64,
        length: usize,
        depth: usize,
    ) -> Result<ShadowValue, FaultKind> {
        if area != Area::Stack {
            return Ok(ShadowValue::Number);
        }
        let (from, to) = Self::living(address, length, depth)?;
        let bytes = &self.stack[from..to];
        if bytes.contains(&NOTHING) {
            return Err(FaultKind::Uninitialised);
        }
        if bytes.iter().all(|byte| *byte == NUMBER) {
            return Ok(ShadowValue::Number);
        }
        let whole = |first: u8| {
            length == 8 && bytes.iter().zip(first..).all(|(byte, expected)| *byte == expected)
        };
        if whole(HANDLE) {
            return Ok(ShadowValue::Handle);
        }
        let of = ADDRESS.iter().find(|(_, first)| whole(*first));
        of.map(|(area, _)| ShadowValue::Address(*area)).ok_or(FaultKind::AddressAsNumber)
    }

    /// Records a store, or returns why it is not permitted.
    pub(super) fn stored(
        &mut self,
        area: Area,
        address: u64,
        length: usize,
        held: ShadowValue,
        depth: usize,
    ) -> Result<(), FaultKind> {
        let out = FaultKind::OutOfBounds { address, length: length as u32 };
        match (area, held) {
            (_, ShadowValue::Nothing) => return Err(FaultKind::Uninitialised),
            (Area::Constants | Area::Context, _) => return Err(out),
            (Area::Own | Area::Shared, ShadowValue::Number) => return Ok(()),
            (Area::Own | Area::Shared, _) => return Err(FaultKind::AddressAsNumber),
            (Area::Stack, _) => {}
        }
        let (from, to) = Self::living(address, length, depth)?;
        let first = match held {
            ShadowValue::Number => {
                self.stack[from..to].fill(NUMBER);
                return Ok(());
            }
            ShadowValue::Address(of) => {
                ADDRESS.iter().find(|(area, _)| *area == of).map_or(NOTHING, |(_, first)| *first)
            }
            ShadowValue::Handle | ShadowValue::Nothing => HANDLE,
        };
        if length != 8 {
            return Err(FaultKind::AddressAsNumber);
        }
        for (byte, mark) in self.stack[from..to].iter_mut().zip(first..) {
            *byte = mark;
        }
        Ok(())
    }

    /// Checks a span that a helper reads.
    pub(super) fn readable(
        &self,
        register: Register,
        address: u64,
        length: usize,
        depth: usize,
    ) -> Result<(), FaultKind> {
        let area = self.address(register, address)?;
        match self.loaded(area, address, length, depth) {
            Ok(ShadowValue::Number) => Ok(()),
            Ok(_) => Err(FaultKind::AddressAsNumber),
            Err(kind) => Err(kind),
        }
    }

    /// Checks a span that a helper writes.
    pub(super) fn writable(
        &self,
        register: Register,
        address: u64,
        length: usize,
        depth: usize,
    ) -> Result<(), FaultKind> {
        match self.address(register, address)? {
            Area::Stack => Self::living(address, length, depth).map(|_| ()),
            Area::Own | Area::Shared => Ok(()),
            Area::Constants | Area::Context => {
                Err(FaultKind::OutOfBounds { address, length: length as u32 })
            }
        }
    }

    /// Records the return of a helper.
    pub(super) fn called(&mut self, request: &Request) {
        if let Some(span) = request.output
            && Area::of(span.address) == Some(Area::Stack)
        {
            let from = span.address as u32 as usize;
            let to = (from + span.length as usize).min(self.stack.len());
            if let Some(bytes) = self.stack.get_mut(from..to) {
                bytes.fill(NUMBER);
            }
        }
        self.clobber();
    }

    /// Calls destroy R1 to R5 and give R0.
    pub(super) fn clobber(&mut self) {
        self.registers[0] = ShadowValue::Number;
        self.registers[1..6].fill(ShadowValue::Nothing);
    }

    /// A function is entered at this depth.
    pub(super) fn enter(&mut self, depth: usize) {
        self.kept[depth].copy_from_slice(&self.registers[6..10]);
        self.registers[0] = ShadowValue::Nothing;
        self.registers[6..10].fill(ShadowValue::Nothing);
        let from = depth * FRAME_BYTES as usize;
        self.stack[from..from + FRAME_BYTES as usize].fill(NOTHING);
    }

    /// The function at this depth is left.
    pub(super) fn leave(&mut self, depth: usize) {
        self.registers[1..6].fill(ShadowValue::Nothing);
        self.registers[6..10].copy_from_slice(&self.kept[depth]);
        let from = depth * FRAME_BYTES as usize;
        self.stack[from..from + FRAME_BYTES as usize].fill(NOTHING);
    }
}
