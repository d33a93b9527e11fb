//! The copies of an arena: how bytes are moved that other threads may change meanwhile.
//!
//! | who | may do | when |
//! | --- | --- | --- |
//! | a [`ArenaMemory`] side | load and store by [`Word`]'s shared accesses | always, also while others do |
//! | a [`Private`] side | load and store as the compiler likes | while its caller has it borrowed |
//! | [`fetch_long`], [`place_pieces`] | assembly on both sides | as the stricter of its sides |
//!
//! No access touches a byte outside the bytes that were asked for. Short copies are inlined, since the
//! call would cost more than they do. `rep movsb` is not used: it was slower at every size in cache,
//! and thirty times slower if the sides are not aligned alike.
//!
//! Bytes that are [`place`]d in an arena may be read meanwhile, and changed as soon as they are there.
//! So the stores come in rising address order, none overlaps another, and each is at a multiple of its
//! size: no byte is written twice, no store crosses a cache line, and no word is stored by halves. On
//! x86-64, which shows stores to all processors in their order (and does not reorder them if they are
//! no string or non-temporal stores), no byte is seen before those below it. The language keeps the
//! order too: it moves no assembly block that may touch memory past another. Bytes that are [`fetch`]ed
//! out of an arena are read only when all are there.

mod word;

pub(super) use word::{ArenaMemory, CopySide, Private};
use word::{Word, copy_twice};

/// Copies `bytes` bytes out of an arena: up to 64 by a few overlapping moves in line, more by a loop
/// of them. A copy of 8 bytes is one load and one store.
///
/// # Safety
/// `from` is readable memory of an arena and `to` borrowed and writable, for `bytes`.
#[inline(always)]
pub(super) unsafe fn fetch(from: *const u8, to: *mut u8, bytes: usize) {
    // SAFETY: the caller's; each arm moves exactly the bytes there are.
    unsafe {
        if bytes == 8 {
            Private::store(to, ArenaMemory::load::<u64>(from));
        } else if bytes > 64 {
            fetch_long(from, to, bytes);
        } else if bytes > 32 {
            copy_twice::<ArenaMemory, Private, Sixteen>(from, to, 32);
            let last = bytes - 32;
            copy_twice::<ArenaMemory, Private, Sixteen>(from.add(last), to.add(last), 32);
        } else if bytes >= 16 {
            copy_twice::<ArenaMemory, Private, Sixteen>(from, to, bytes);
        } else if bytes > 8 {
            copy_twice::<ArenaMemory, Private, u64>(from, to, bytes);
        } else if bytes >= 4 {
            copy_twice::<ArenaMemory, Private, u32>(from, to, bytes);
        } else if bytes >= 2 {
            copy_twice::<ArenaMemory, Private, u16>(from, to, bytes);
        } else if bytes == 1 {
            Private::store(to, ArenaMemory::load::<u8>(from));
        }
    }
}

/// Copies `bytes` bytes into an arena in rising order, as the header of this file says: an aligned
/// word, and whole sixteens up to a cache line, inline; everything else by a call.
///
/// # Safety
/// `from` is readable and of the kind that its side says, `to` is writable memory of an arena, for
/// `bytes`.
#[inline(always)]
pub(super) unsafe fn place<F: CopySide>(from: *const u8, to: *mut u8, bytes: usize) {
    let corners = to.addr() | bytes;
    // SAFETY: the caller's; each arm moves exactly the bytes there are. The sixteens are at multiples
    // of 16, since `to` and `bytes` are.
    unsafe {
        if bytes == 8 && corners & 7 == 0 {
            ArenaMemory::store(to, F::load::<u64>(from));
        } else if bytes > 64 || corners & 15 != 0 {
            place_pieces(from, to, bytes);
        } else if bytes > 32 {
            copy_twice::<F, ArenaMemory, Sixteen>(from, to, 32);
            ArenaMemory::store(to.add(32), F::load::<Sixteen>(from.add(32)));
            if bytes > 48 {
                ArenaMemory::store(to.add(48), F::load::<Sixteen>(from.add(48)));
            }
        } else if bytes > 16 {
            copy_twice::<F, ArenaMemory, Sixteen>(from, to, 32);
        } else if bytes > 0 {
            ArenaMemory::store(to, F::load::<Sixteen>(from));
        }
    }
}

/// Moves words of 1, 2, 4, 8, 16 and 32 bytes up to the first cache line, whole lines, and words of 32
/// to 1 bytes, each at a multiple of its size.
///
/// # Safety
/// As [`place`]; a private source allows shared accesses as well.
#[inline(never)]
unsafe fn place_pieces(from: *const u8, to: *mut u8, bytes: usize) {
    let mut run = RemainingCopy { from, to, left: bytes };
    // SAFETY: the caller's; a run moves no more than what is left of it.
    unsafe {
        if !to.addr().is_multiple_of(LINE) {
            // A word too long for the rest ends the climb, and so do all longer ones.
            let _ = run.climb::<u8>()
                && run.climb::<u16>()
                && run.climb::<u32>()
                && run.climb::<u64>()
                && run.climb::<Sixteen>()
                && run.climb_by_half_line();
        }
        if run.left >= LINE {
            let bytes = run.left / LINE * LINE;
            place_lines(run.from, run.to, bytes);
            run.advance(bytes);
        }
        if run.left > 0 {
            run.half_line();
            run.rest::<Sixteen>();
            run.rest::<u64>();
            run.rest::<u32>();
            run.rest::<u16>();
            run.rest::<u8>();
        }
    }
}

/// Bytes of a cache line, which no store of [`place`] crosses.
const LINE: usize = 64;

/// The rest of a copy.
struct RemainingCopy {
    from: *const u8,
    to: *mut u8,
    left: usize,
}

impl RemainingCopy {
    /// Moves one word if that makes the address a multiple of twice its size, so that the next larger
    /// word starts there; false if the rest is too short for that.
    ///
    /// # Safety
    /// As [`place`], for what is left.
    #[inline(always)]
    unsafe fn climb<W: Word>(&mut self) -> bool {
        let size = size_of::<W>();
        if self.to.addr() & size == 0 {
            return true;
        }
        // SAFETY: the caller's.
        unsafe { self.rest_if::<W>(self.left >= size) }
    }

    /// # Safety
    /// As [`place`], for what is left.
    #[inline(always)]
    unsafe fn climb_by_half_line(&mut self) -> bool {
        // SAFETY: the caller's.
        self.to.addr() & (LINE / 2) == 0 || unsafe { self.half_line() }
    }

    /// Moves 32 bytes if as many are left. Returns whether they were.
    ///
    /// # Safety
    /// As [`place`], for what is left.
    #[inline(always)]
    unsafe fn half_line(&mut self) -> bool {
        let enough = self.left >= LINE / 2;
        // SAFETY: the caller's.
        unsafe { self.rest_if::<Sixteen>(enough) && self.rest_if::<Sixteen>(enough) }
    }

    /// Moves one word if there are bytes for one.
    ///
    /// # Safety
    /// As [`place`], for what is left.
    #[inline(always)]
    unsafe fn rest<W: Word>(&mut self) {
        // SAFETY: the caller's.
        unsafe { self.rest_if::<W>(self.left >= size_of::<W>()) };
    }

    /// Moves one word if `enough`.
    ///
    /// # Safety
    /// As [`place`], for what is left, which is a word at least if `enough`.
    #[inline(always)]
    unsafe fn rest_if<W: Word>(&mut self, enough: bool) -> bool {
        if enough {
            // SAFETY: the caller's.
            unsafe {
                ArenaMemory::store(self.to, ArenaMemory::load::<W>(self.from));
                self.advance(size_of::<W>());
            }
        }
        enough
    }

    /// # Safety
    /// No more than what is left.
    #[inline(always)]
    unsafe fn advance(&mut self, bytes: usize) {
        // SAFETY: the caller's: at most one past the end of either side.
        unsafe {
            self.from = self.from.add(bytes);
            self.to = self.to.add(bytes);
        }
        self.left -= bytes;
    }
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
use x86_64::{Sixteen, fetch_long, place_lines};
#[cfg(all(target_arch = "x86_64", not(miri)))]
pub(super) use x86_64::{expect_read, expect_read_elsewhere, expect_write};

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod x86_64;

#[cfg(not(all(target_arch = "x86_64", not(miri))))]
use portable::{Sixteen, fetch_long, place_lines};
#[cfg(not(all(target_arch = "x86_64", not(miri))))]
pub(super) use portable::{expect_read, expect_read_elsewhere, expect_write};

#[cfg(not(all(target_arch = "x86_64", not(miri))))]
mod portable;

#[cfg(all(test, target_arch = "x86_64", not(miri)))]
mod tests {
    use super::*;

    /// The properties of every width of copy, whichever is fastest on this processor.
    fn check(copy: unsafe fn(*const u8, *mut u8, usize)) {
        let pattern: Vec<u8> = (0..2048).map(|at| (at * 11 + at / 256) as u8).collect();
        for bytes in (64..600).chain([639, 640, 767, 768, 769, 1023, 1024, 1500]) {
            for (source, target) in [(0, 0), (1, 2), (16, 8), (31, 33), (5, 63)] {
                let mut out = vec![0xee; 2048];
                let to = out[target..target + bytes].as_mut_ptr();
                // SAFETY: both slices have `bytes` bytes, over 63.
                unsafe { copy(pattern[source..].as_ptr(), to, bytes) };
                assert_eq!(out[target..target + bytes], pattern[source..source + bytes]);
                let beside = out[..target].iter().chain(&out[target + bytes..]);
                assert!(beside.copied().all(|byte| byte == 0xee));
            }
        }
    }

    #[test]
    fn copies_of_every_width_are_exact() {
        check(|from, to, bytes| {
            // SAFETY: the caller's.
            unsafe { x86_64::copy_sse2(from, to, bytes) }
        });
        if is_x86_feature_detected!("avx") {
            check(|from, to, bytes| {
                // SAFETY: the caller's, and the processor has AVX.
                unsafe { x86_64::copy_avx(from, to, bytes) }
            });
        }
        if is_x86_feature_detected!("avx512f") {
            check(|from, to, bytes| {
                // SAFETY: the caller's, and the processor has AVX-512.
                unsafe { x86_64::copy_lines(from, to, bytes) }
            });
        }
    }

    /// Bytes that start at a line, and an untouched line after them.
    fn check_lines(copy: unsafe fn(*const u8, *mut u8, usize)) {
        #[repr(align(64))]
        struct AlignedBytes([u8; 2048]);
        let pattern: Vec<u8> = (0..2048).map(|at| (at * 13 + at / 256) as u8).collect();
        for bytes in (LINE..=1600).step_by(LINE) {
            for source in [0, 5, 32] {
                let mut out = AlignedBytes([0xee; 2048]);
                // SAFETY: both slices have `bytes` bytes, whole lines.
                unsafe { copy(pattern[source..].as_ptr(), out.0.as_mut_ptr(), bytes) };
                assert_eq!(out.0[..bytes], pattern[source..source + bytes]);
                assert!(out.0[bytes..].iter().all(|byte| *byte == 0xee));
            }
        }
    }

    #[test]
    fn lines_of_every_width_are_exact() {
        check_lines(|from, to, bytes| {
            // SAFETY: the caller's.
            unsafe { x86_64::place_lines_sse2(from, to, bytes) }
        });
        if is_x86_feature_detected!("avx") {
            check_lines(|from, to, bytes| {
                // SAFETY: the caller's, and the processor has AVX.
                unsafe { x86_64::place_lines_avx(from, to, bytes) }
            });
        }
        if is_x86_feature_detected!("avx512f") {
            check_lines(|from, to, bytes| {
                // SAFETY: the caller's, and the processor has AVX-512.
                unsafe { x86_64::place_lines_whole(from, to, bytes) }
            });
        }
    }
}
