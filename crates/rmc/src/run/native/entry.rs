//! The one place where machine code is mapped and entered.
//!
//! | who | may touch | when |
//! | --- | --- | --- |
//! | [`Mapping::new`] | the mapping's bytes | until they become executable, after which nobody writes them |
//! | machine code | [`Frame`], the machine's registers, and the memory of the call that its areas name | during [`enter`] |
//! | machine code | memory of lent [`Region`]s, reading | during [`enter`] |
//! | everybody else | none of these | during [`enter`]: the driver holds them by `&mut` |
//!
//! What machine code touches is in bounds because the verifier has proven it of the program that the code
//! was made of (memory of the call), or because the code compares first (regions).

#![allow(unsafe_code, reason = "the home of unsafe code in this crate")]

use core::ffi::c_void;
use core::marker::PhantomData;
use core::mem::offset_of;
use core::ptr::NonNull;

use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};

use super::super::machine::Registers;
use super::Area;

/// Host memory that machine code may load words from.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Region<'a> {
    base: *const u8,
    /// Offsets below it have a whole word.
    words: u64,
    lifetime: PhantomData<&'a [u8]>,
}

impl<'a> Region<'a> {
    /// Bytes that nobody changes.
    pub fn of(bytes: &'a [u8]) -> Self {
        Self {
            base: bytes.as_ptr(),
            words: (bytes.len() as u64).saturating_sub(7),
            lifetime: PhantomData,
        }
    }

    /// Memory that others may change meanwhile, such as that of an arena.
    ///
    /// # Safety
    ///
    /// All of it can be read for the lifetime.
    pub const unsafe fn new(base: *const u8, bytes: usize) -> Self {
        Self { base, words: (bytes as u64).saturating_sub(7), lifetime: PhantomData }
    }
}

/// What machine code works on. Its offsets are part of the code.
#[repr(C)]
pub(super) struct Frame<'a> {
    /// R0 and so on, in the machine.
    registers: *mut u64,
    pub(super) meter: i64,
    /// What turns an address of an area into one of the processor, by the area's number.
    areas: [u64; 8],
    regions: *const Region<'a>,
    region_count: u64,
    /// Where the code has left.
    pub(super) slot: u64,
    lifetime: PhantomData<&'a mut [u64]>,
}

pub(super) const REGISTERS: i32 = offset_of!(Frame<'static>, registers) as i32;
pub(super) const METER: i32 = offset_of!(Frame<'static>, meter) as i32;
pub(super) const AREAS: i32 = offset_of!(Frame<'static>, areas) as i32;
pub(super) const REGIONS: i32 = offset_of!(Frame<'static>, regions) as i32;
pub(super) const REGION_COUNT: i32 = offset_of!(Frame<'static>, region_count) as i32;
pub(super) const SLOT: i32 = offset_of!(Frame<'static>, slot) as i32;
/// Bytes of a region's row, as a shift.
pub(super) const REGION_SHIFT: u8 = 4;

const _: () = assert!(size_of::<Region<'static>>() == 1 << REGION_SHIFT);
const _: () = assert!(offset_of!(Region<'static>, base) == 0);
const _: () = assert!(offset_of!(Region<'static>, words) == 8);

/// Where the areas of a call start.
pub(super) struct Starts {
    pub(super) constants: *const u8,
    pub(super) own: *mut u8,
    pub(super) shared: *mut u8,
    pub(super) context: *const u8,
    pub(super) stack: *mut u8,
}

impl<'a> Frame<'a> {
    pub(super) fn new(
        registers: &'a mut Registers,
        meter: i64,
        starts: &Starts,
        regions: &'a [Region<'a>],
    ) -> Self {
        let by = |area: Area, start: *const u8| (start as u64).wrapping_sub(area.base());
        let mut areas = [0; 8];
        areas[Area::Constants as usize] = by(Area::Constants, starts.constants);
        areas[Area::Own as usize] = by(Area::Own, starts.own);
        areas[Area::Shared as usize] = by(Area::Shared, starts.shared);
        areas[Area::Context as usize] = by(Area::Context, starts.context);
        areas[Area::Stack as usize] = by(Area::Stack, starts.stack);
        Self {
            registers: registers.as_mut_ptr(),
            meter,
            areas,
            regions: regions.as_ptr(),
            region_count: regions.len() as u64,
            slot: 0,
            lifetime: PhantomData,
        }
    }
}

/// Executable memory.
#[derive(Debug)]
pub(super) struct Mapping {
    start: NonNull<c_void>,
    bytes: usize,
}

// SAFETY: nobody writes the mapping after `new`, so it may be read and executed anywhere.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Executable memory with this code, never writable at the same time.
    pub(super) fn new(code: &[u8]) -> Option<Self> {
        let bytes = code.len().next_multiple_of(4_096);
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping, where the system chooses, overlaps nothing.
        let start =
            unsafe { mmap_anonymous(core::ptr::null_mut(), bytes, protection, MapFlags::PRIVATE) };
        let mapping = Self { start: NonNull::new(start.ok()?)?, bytes };
        // SAFETY: the mapping is at least as long as the code, writable, and nobody else's yet.
        unsafe {
            core::ptr::copy_nonoverlapping(
                code.as_ptr(),
                mapping.start.as_ptr().cast(),
                code.len(),
            );
        }
        let executable = MprotectFlags::READ | MprotectFlags::EXEC;
        // SAFETY: these are exactly the pages of our mapping, and nobody holds a reference to them.
        unsafe { mprotect(mapping.start.as_ptr(), bytes, executable) }.ok()?;
        Some(mapping)
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: these are exactly the pages of our mapping; `enter` borrows it while code runs.
        let _ = unsafe { munmap(self.start.as_ptr(), self.bytes) };
    }
}

/// Runs code of a mapping from `place` on until it leaves. The driver sees to it that the mapping was made
/// of the program that the frame's registers belong to, and that all areas are as long as it was verified
/// for.
#[inline]
pub(super) fn enter(mapping: &Mapping, frame: &mut Frame<'_>, place: u32) {
    let target = mapping.start.as_ptr().wrapping_byte_add(place as usize);
    // SAFETY: the mapping starts with the code that `compile` puts first, which has this signature, keeps
    // what the convention wants kept, and touches what the table above says.
    unsafe {
        let code: extern "sysv64" fn(*mut Frame<'_>, *const c_void) =
            core::mem::transmute(mapping.start.as_ptr());
        code(frame, target);
    }
}
