//! Maps and enters machine code; no other module does.
//!
//! | who | may touch | when |
//! | --- | --- | --- |
//! | [`Mapping::new`] | the mapping's bytes | until they become executable; they are never written afterwards |
//! | machine code | [`NativeFrame`], frames of the machine, and the memory of the call that its areas name | during [`enter`], but not while it calls [`help`] |
//! | machine code | memory of lent [`NativeRegion`]s, reading | during [`enter`] |
//! | [`Driver::help`] | the driver, and registers and meter of [`NativeFrame`] | while machine code calls [`help`] |
//! | all other code | none of these | during [`enter`], which has the driver |
//!
//! What machine code touches is in bounds because the verifier has proven it of the program that the code
//! was made of (memory of the call), or because the code compares first (regions).

#![allow(unsafe_code, reason = "the home of unsafe code in this crate")]

use core::ffi::c_void;
use core::marker::PhantomData;
use core::mem::{MaybeUninit, offset_of};
use core::ptr::NonNull;

use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};

use super::super::machine::{Registers, SavedFrame as Kept};
use crate::decode::Area;

/// Host memory that machine code may load words from.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct NativeRegion<'a> {
    base: *const u8,
    /// Offsets below it have a whole word.
    words: u64,
    lifetime: PhantomData<&'a [u8]>,
}

// SAFETY: it refers to memory that can be read from any thread for its lifetime: immutably borrowed bytes, or memory
// for which the caller of `NativeRegion::new` has promised it.
unsafe impl Send for NativeRegion<'_> {}
// SAFETY: as above.
unsafe impl Sync for NativeRegion<'_> {}

impl<'a> NativeRegion<'a> {
    /// A region of which nothing may be loaded.
    const NOTHING: Self = Self { base: core::ptr::null(), words: 0, lifetime: PhantomData };

    /// A region of bytes that do not change.
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
    /// All of it can be read for the lifetime, from any thread.
    pub const unsafe fn new(base: *const u8, bytes: usize) -> Self {
        Self { base, words: (bytes as u64).saturating_sub(7), lifetime: PhantomData }
    }
}

/// How machine code ended, in RDX.
pub(super) const RETURNED: u64 = 0;
pub(super) const LEFT: u64 = 1;
pub(super) const ENDED: u64 = 2;

/// What machine code works on. Its offsets are part of the code.
#[repr(C)]
pub(super) struct NativeFrame<'a> {
    /// The meter, while it is not in the processor's register.
    meter: MaybeUninit<i64>,
    /// Calls of helpers and bytes that are left.
    left: [i64; 2],
    /// The region of which a word was loaded last, and its number.
    last: NativeRegion<'a>,
    last_number: u64,
    /// Offsets below it have a whole word, and so has every offset up to [`ROOM`] further.
    last_inner: u64,
    /// The machine's present frame.
    kept: *mut Kept,
    /// What is added to an address of an area to get a native one, by the area's number. Only set for the areas that
    /// the program has.
    areas: [MaybeUninit<u64>; 8],
    /// The machine's registers, while they are not in the processor's.
    registers: MaybeUninit<Registers>,
    regions: *const NativeRegion<'a>,
    region_count: u64,
    /// Registers of the processor that an instruction borrows.
    borrowed: MaybeUninit<u64>,
    /// Where the code leaves.
    slot: MaybeUninit<u64>,
    help: extern "sysv64" fn(*mut NativeFrame<'a>, u64) -> u64,
}

/// A frame and its driver in one structure, so that the address of one gives that of the other.
#[repr(C)]
struct FrameWithDriver<'a, D> {
    frame: NativeFrame<'a>,
    driver: D,
}

macro_rules! offsets {
    ($($name:ident $($field:ident).+;)*) => {
        $(pub(super) const $name: i32 = offset_of!(NativeFrame<'static>, $($field).+) as i32;)*
    };
}

offsets! {
    METER meter;
    CALLS_LEFT left;
    LAST_BASE last.base;
    LAST_WORDS last.words;
    LAST_NUMBER last_number;
    LAST_INNER last_inner;
    KEPT kept;
    AREAS areas;
    REGISTERS registers;
    REGIONS regions;
    REGION_COUNT region_count;
    BORROWED borrowed;
    SLOT slot;
    HELP help;
}

pub(super) const BYTES_LEFT: i32 = CALLS_LEFT + 8;

/// Greatest distance in bytes of words that are checked together.
pub(super) const ROOM: i64 = 128;

/// Registers that machine code stores.
const STORED: usize = 11;
/// Bytes of a region's row, as a shift.
pub(super) const REGION_SHIFT: u8 = 4;
const _: () = assert!(size_of::<NativeRegion<'static>>() == 1 << REGION_SHIFT);
const _: () = assert!(offset_of!(NativeRegion<'static>, base) == 0);
const _: () = assert!(offset_of!(NativeRegion<'static>, words) == 8);

/// Layout of a frame of the machine: its size, and the offsets of the return slot and of R6.
pub(super) const KEPT_BYTES: i32 = size_of::<Kept>() as i32;
pub(super) const KEPT_BACK: i32 = offset_of!(Kept, back) as i32;
pub(super) const KEPT_R6: i32 = offset_of!(Kept, kept) as i32;

/// What machine code returns.
#[repr(C)]
struct Ended {
    /// The result of the program, or the slot at which the code has left.
    value: u64,
    how: u64,
}

/// The inputs of machine code. They must not move while the code runs.
pub(super) struct Start {
    /// The code of the slot to continue at; `None` at the start of a program.
    pub(super) place: Option<u32>,
    pub(super) meter: i64,
    /// Calls of helpers and bytes that are left.
    pub(super) left: [i64; 2],
    pub(super) depth: usize,
    pub(super) frames: *mut Kept,
    /// Constants and variables, if the program has any.
    pub(super) data: Option<Data>,
    pub(super) context: *const u8,
    pub(super) context_bytes: u64,
    pub(super) stack: *mut u8,
}

/// Constants and variables of a program.
pub(super) struct Data {
    pub(super) constants: *const u8,
    pub(super) own: *mut u8,
    pub(super) shared: *mut u8,
}

/// Carries out operations without code.
pub(super) trait Driver {
    /// The registers to continue with.
    fn registers(&self) -> &Registers;

    /// Calls the helper at a slot, given the helper calls and bytes left. Returns false if that ends the run.
    fn help(&mut self, slot: usize, registers: &mut Registers, left: &mut [i64; 2]) -> bool;

    /// Stores the helper calls and bytes left when the code has ended.
    fn left(&mut self, left: [i64; 2]);

    /// Stores the slot at which the code has left before the end of the program, and the registers.
    fn stopped(&mut self, slot: usize, depth: usize, meter: i64, registers: &Registers);
}

/// How machine code has ended.
pub(super) enum NativeExit {
    /// The program has, with this result.
    Returned(u64),
    /// The driver has ended it.
    Stopped,
    /// The next operation has no code.
    Left,
}

/// Executable memory.
#[derive(Debug)]
pub(super) struct Mapping {
    start: NonNull<c_void>,
    bytes: usize,
    /// Where the code starts that a start of a program enters by.
    first: usize,
}

// SAFETY: the mapping is not written after `new`, so any thread may read and execute it.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Executable memory with this code, never writable at the same time.
    pub(super) fn new(code: &[u8], first: usize) -> Option<Self> {
        let bytes = code.len().next_multiple_of(4_096);
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping, where the system chooses, overlaps nothing.
        let start =
            unsafe { mmap_anonymous(core::ptr::null_mut(), bytes, protection, MapFlags::PRIVATE) };
        let mapping = Self { start: NonNull::new(start.ok()?)?, bytes, first };
        // SAFETY: the mapping is at least as long as the code, writable, and not shared yet.
        unsafe {
            core::ptr::copy_nonoverlapping(
                code.as_ptr(),
                mapping.start.as_ptr().cast(),
                code.len(),
            );
        }
        let executable = MprotectFlags::READ | MprotectFlags::EXEC;
        // SAFETY: these are exactly the pages of our mapping, and no reference to them exists.
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

/// Runs code of a mapping until it ends. The driver sees to it that the mapping was
/// made of the program that its registers belong to, and that all areas are as long as it was verified for.
#[inline(always)]
pub(super) fn enter<'a, D: Driver, T>(
    mapping: &Mapping,
    start: Start,
    driver: D,
    regions: &'a [NativeRegion<'a>],
    ended: impl FnOnce(NativeExit, &mut D) -> T,
) -> T {
    let last = regions.first().copied().unwrap_or(NativeRegion::NOTHING);
    let frame = NativeFrame {
        meter: MaybeUninit::uninit(),
        left: start.left,
        last,
        last_number: 0,
        last_inner: last.words.saturating_sub(ROOM as u64),
        kept: start.frames.wrapping_add(start.depth),
        areas: [MaybeUninit::uninit(); 8],
        registers: MaybeUninit::uninit(),
        regions: regions.as_ptr(),
        region_count: regions.len() as u64,
        borrowed: MaybeUninit::uninit(),
        slot: MaybeUninit::uninit(),
        help: help::<D>,
    };
    let mut whole = FrameWithDriver { frame, driver };
    if let Some(data) = start.data {
        data.name(&mut whole.frame.areas);
    }
    name(&mut whole.frame.areas, Area::Context, start.context);
    name(&mut whole.frame.areas, Area::Stack, start.stack);
    let (from, place) = match start.place {
        Some(place) => {
            whole.frame.registers.write(*whole.driver.registers());
            (0, place as usize)
        }
        None => (mapping.first, 0),
    };
    let code = mapping.start.as_ptr().wrapping_byte_add(from);
    let target = mapping.start.as_ptr().wrapping_byte_add(place);
    // SAFETY: both places of the mapping start with code that `compile` has put there for this signature.
    // It preserves the registers that the convention requires, and accesses only what the table above lists.
    let end = unsafe {
        let code: extern "sysv64" fn(*mut NativeFrame<'a>, *const c_void, i64, u64) -> Ended =
            core::mem::transmute(code);
        code((&raw mut whole).cast(), target, start.meter, start.context_bytes)
    };
    let FrameWithDriver { frame, driver } = &mut whole;
    if end.how == RETURNED {
        driver.left(frame.left);
        return ended(NativeExit::Returned(end.value), driver);
    }
    let depth = (frame.kept as usize - start.frames as usize) / size_of::<Kept>();
    // SAFETY: the code that leaves has just stored the meter and all registers.
    let (meter, registers) = unsafe { (frame.meter.assume_init(), settled(&mut frame.registers)) };
    driver.stopped(end.value as usize, depth, meter, registers);
    driver.left(frame.left);
    ended(if end.how == ENDED { NativeExit::Stopped } else { NativeExit::Left }, driver)
}

/// Sets the address of an area.
fn name(areas: &mut [MaybeUninit<u64>; 8], area: Area, start: *const u8) {
    areas[area as usize].write((start as u64).wrapping_sub(area.base()));
}

impl Data {
    /// Apart, because most programs have none.
    #[inline(never)]
    fn name(self, areas: &mut [MaybeUninit<u64>; 8]) {
        name(areas, Area::Constants, self.constants);
        name(areas, Area::Own, self.own);
        name(areas, Area::Shared, self.shared);
    }
}

/// Registers of a frame, those of the program and those that are always zero.
///
/// # Safety
///
/// Machine code has stored R0 to R10.
unsafe fn settled(registers: &mut MaybeUninit<Registers>) -> &mut Registers {
    let first = registers.as_mut_ptr().cast::<u64>();
    for at in STORED..size_of::<Registers>() / 8 {
        // SAFETY: it is within the array.
        unsafe { first.add(at).write(0) };
    }
    // SAFETY: the caller guarantees it for R0 to R10, and the rest was written just now.
    unsafe { registers.assume_init_mut() }
}

/// What machine code calls for a helper; zero when that ends the run.
extern "sysv64" fn help<D: Driver>(frame: *mut NativeFrame<'_>, slot: u64) -> u64 {
    // SAFETY: machine code passes on what it got from `enter`, which is a whole of this type and stays alive
    // and untouched meanwhile. The driver holds no reference into the frame. All registers have been stored
    // before the call.
    let (driver, registers, left) = unsafe {
        let whole = &mut *frame.cast::<FrameWithDriver<'_, D>>();
        let NativeFrame { registers, left, .. } = &mut whole.frame;
        (&mut whole.driver, settled(registers), left)
    };
    u64::from(driver.help(slot as usize, registers, left))
}
