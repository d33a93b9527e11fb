//! The copies behind an arena: how bytes are moved that others may change meanwhile.
//!
//! | who | may do | when |
//! | --- | --- | --- |
//! | a [`Shared`] side | load and store by [`Word`]'s shared accesses | always, whoever else does |
//! | a [`Private`] side | load and store as the compiler likes | while its caller has it borrowed |
//! | [`copy_long`] | assembly on both sides | as the stricter of its sides |
//!
//! No access touches a byte outside the bytes that were asked for. Short copies are in line, since
//! the call would cost more than they do. `rep movsb` is used nowhere: it was slower at every size
//! in cache, and thirty times slower where the sides are not aligned alike.

/// Memory on one side of a copy.
///
/// # Safety
/// `load` and `store` touch exactly the bytes of `W` at the place, at any alignment.
pub(super) unsafe trait Side {
    /// # Safety
    /// The place is readable for a `W`.
    unsafe fn load<W: Word>(from: *const u8) -> W;

    /// # Safety
    /// The place is writable for a `W`.
    unsafe fn store<W: Word>(to: *mut u8, word: W);
}

/// Memory of an arena: only [`Word`]'s shared accesses.
pub(super) struct Shared;

/// Memory that the caller borrowed for this copy: the compiler may see through these, so that a
/// short read ends in a register.
pub(super) struct Private;

// SAFETY: `Word` promises the same.
unsafe impl Side for Shared {
    #[inline(always)]
    unsafe fn load<W: Word>(from: *const u8) -> W {
        // SAFETY: the caller's.
        unsafe { W::load_shared(from) }
    }

    #[inline(always)]
    unsafe fn store<W: Word>(to: *mut u8, word: W) {
        // SAFETY: the caller's.
        unsafe { word.store_shared(to) }
    }
}

// SAFETY: an unaligned access touches just its bytes.
unsafe impl Side for Private {
    #[inline(always)]
    unsafe fn load<W: Word>(from: *const u8) -> W {
        // SAFETY: the caller's; nobody else changes what the caller borrowed.
        unsafe { from.cast::<W>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn store<W: Word>(to: *mut u8, word: W) {
        // SAFETY: the caller's; nobody else looks at what the caller borrowed exclusively.
        unsafe { to.cast::<W>().write_unaligned(word) }
    }
}

/// What one instruction moves: 1, 2, 4, 8 or 16 bytes, of which any value is valid.
///
/// # Safety
/// The shared accesses touch exactly `size_of::<Self>()` bytes, at any alignment, and are no
/// accesses of the abstract machine that could race: assembly or relaxed atomics. An aligned one of
/// 8 bytes or fewer is not torn.
pub(super) unsafe trait Word: Copy {
    /// # Safety
    /// The place is readable for these bytes.
    unsafe fn load_shared(from: *const u8) -> Self;

    /// # Safety
    /// The place is writable for these bytes.
    unsafe fn store_shared(self, to: *mut u8);
}

/// Moves the `bytes` bytes as two words, of which the first starts at the start and the second
/// ends at the end.
///
/// # Safety
/// Both sides are valid for `bytes`, of which there are one to two words.
#[inline(always)]
unsafe fn copy_twice<F: Side, T: Side, W: Word>(from: *const u8, to: *mut u8, bytes: usize) {
    let last = bytes - size_of::<W>();
    // SAFETY: the caller's; `last` and a word more are the `bytes` bytes.
    unsafe {
        let (first, second) = (F::load::<W>(from), F::load::<W>(from.add(last)));
        T::store(to, first);
        T::store(to.add(last), second);
    }
}

/// Copies `bytes` bytes: up to 64 by a few overlapping moves in line, more by a loop of them.
/// A copy of 8 bytes is one load and one store.
///
/// # Safety
/// `from` is readable and `to` writable for `bytes`, and each is of the kind that its side says.
#[inline(always)]
pub(super) unsafe fn copy<F: Side, T: Side>(from: *const u8, to: *mut u8, bytes: usize) {
    // SAFETY: the caller's; each arm moves just the bytes there are.
    unsafe {
        if bytes == 8 {
            T::store(to, F::load::<u64>(from));
        } else if bytes > 64 {
            copy_long(from, to, bytes);
        } else if bytes > 32 {
            copy_twice::<F, T, Sixteen>(from, to, 32);
            copy_twice::<F, T, Sixteen>(from.add(bytes - 32), to.add(bytes - 32), 32);
        } else if bytes >= 16 {
            copy_twice::<F, T, Sixteen>(from, to, bytes);
        } else if bytes > 8 {
            copy_twice::<F, T, u64>(from, to, bytes);
        } else if bytes >= 4 {
            copy_twice::<F, T, u32>(from, to, bytes);
        } else if bytes >= 2 {
            copy_twice::<F, T, u16>(from, to, bytes);
        } else if bytes == 1 {
            T::store(to, F::load::<u8>(from));
        }
    }
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
use x86_64::{Sixteen, copy_long};
#[cfg(all(target_arch = "x86_64", not(miri)))]
pub(super) use x86_64::{expect_read_elsewhere, expect_write};

/// Assembly, which moves any alignment as fast and of which the compiler knows nothing.
#[cfg(all(target_arch = "x86_64", not(miri)))]
mod x86_64 {
    use super::{Shared, Word};
    use std::arch::{asm, is_x86_feature_detected};
    use std::sync::atomic::{AtomicU8, Ordering};

    pub(super) type Sixteen = std::arch::x86_64::__m128i;

    macro_rules! words {
        ($($word:ty: $register:ident $load:literal $store:literal;)*) => {$(
            // SAFETY: one instruction each, of the size that it names.
            unsafe impl Word for $word {
                #[inline(always)]
                unsafe fn load_shared(from: *const u8) -> Self {
                    let word;
                    // SAFETY: reads these bytes, which the caller vouches for.
                    unsafe {
                        asm!(
                            $load,
                            from = in(reg) from,
                            word = out($register) word,
                            options(nostack, preserves_flags, readonly)
                        );
                    }
                    word
                }

                #[inline(always)]
                unsafe fn store_shared(self, to: *mut u8) {
                    // SAFETY: writes these bytes, which the caller vouches for.
                    unsafe {
                        asm!(
                            $store,
                            to = in(reg) to,
                            word = in($register) self,
                            options(nostack, preserves_flags)
                        );
                    }
                }
            }
        )*};
    }

    words! {
        u8: reg_byte "mov {word}, byte ptr [{from}]" "mov byte ptr [{to}], {word}";
        u16: reg "movzx {word:e}, word ptr [{from}]" "mov word ptr [{to}], {word:x}";
        u32: reg "mov {word:e}, dword ptr [{from}]" "mov dword ptr [{to}], {word:e}";
        u64: reg "mov {word}, qword ptr [{from}]" "mov qword ptr [{to}], {word}";
        Sixteen: xmm_reg "movdqu {word}, xmmword ptr [{from}]" "movdqu xmmword ptr [{to}], {word}";
    }

    /// The widest moves that the processor does well; [`UNKNOWN`] until the first copy has looked.
    /// Kept here since a look at what the standard library knows takes longer than a short copy.
    static WIDEST: AtomicU8 = AtomicU8::new(UNKNOWN);
    const UNKNOWN: u8 = 0;
    /// 16 bytes.
    const SSE2: u8 = 1;
    /// 32 bytes.
    const AVX: u8 = 2;
    /// A cache line.
    const LINE: u8 = 3;

    fn widest() -> u8 {
        // Processors that have AVX-512 without AVX-VNNI lower their frequency for it.
        if is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avxvnni") {
            LINE
        } else if is_x86_feature_detected!("avx") {
            AVX
        } else {
            SSE2
        }
    }

    /// Not inlined: the wide registers that it uses must not be the caller's.
    ///
    /// # Safety
    /// Both sides are valid for `bytes`, of which there are more than 64.
    #[inline(never)]
    pub(super) unsafe fn copy_long(from: *const u8, to: *mut u8, bytes: usize) {
        // SAFETY: the caller's; the processor has the instructions.
        unsafe {
            match WIDEST.load(Ordering::Relaxed) {
                LINE => copy_lines(from, to, bytes),
                AVX => copy_avx(from, to, bytes),
                SSE2 => copy_sse2(from, to, bytes),
                _ => copy_first(from, to, bytes),
            }
        }
    }

    /// # Safety
    /// As [`copy_long`].
    #[cold]
    #[inline(never)]
    unsafe fn copy_first(from: *const u8, to: *mut u8, bytes: usize) {
        WIDEST.store(widest(), Ordering::Relaxed);
        // SAFETY: the caller's.
        unsafe { copy_long(from, to, bytes) }
    }

    /// # Safety
    /// Both sides are valid for `bytes`, of which there are at least 64; the processor has AVX.
    #[inline(always)]
    pub(super) unsafe fn copy_avx(from: *const u8, to: *mut u8, bytes: usize) {
        // SAFETY: the caller's; `skip` is below 32.
        unsafe {
            if bytes <= 128 {
                copy_128(from, to, bytes);
            } else if bytes <= 256 {
                copy_256(from, to, bytes);
            } else {
                // Stores that cross cache lines cost most, so the loop starts where none does.
                let skip = to.addr().wrapping_neg() & 31;
                super::copy_twice::<Shared, Shared, Sixteen>(from, to, 32);
                copy_avx_loop(from.add(skip), to.add(skip), bytes - skip);
            }
        }
    }

    /// The upper sixteen wide registers: no code without AVX-512 uses them, so the lower ones, and
    /// what others pay for their upper halves, stay as they are.
    macro_rules! lines {
        ($($line:literal)*, $($operands:tt)*) => {
            asm!(
                $($line,)*
                $($operands)*
                out("zmm16") _,
                out("zmm17") _,
                out("zmm18") _,
                out("zmm19") _,
                options(nostack)
            )
        };
    }

    /// # Safety
    /// Both sides are valid for `bytes`, of which there are at least 64; the processor has AVX-512.
    #[inline(always)]
    pub(super) unsafe fn copy_lines(from: *const u8, to: *mut u8, bytes: usize) {
        // SAFETY: the caller's; `skip` is below 64.
        unsafe {
            if bytes <= 128 {
                copy_two_lines(from, to, bytes);
            } else if bytes <= 256 {
                copy_two_lines(from, to, 128);
                copy_two_lines(from.add(bytes - 128), to.add(bytes - 128), 128);
            } else if bytes <= 512 {
                copy_four_lines(from, to);
                copy_four_lines(from.add(bytes - 256), to.add(bytes - 256));
            } else {
                // Stores that cross cache lines cost most, so the loop starts where none does.
                let skip = to.addr().wrapping_neg() & 63;
                copy_two_lines(from, to, 64);
                copy_many_lines(from.add(skip), to.add(skip), bytes - skip);
            }
        }
    }

    /// # Safety
    /// Both sides are valid for `bytes`, which are 64 to 128; the processor has AVX-512.
    #[inline(always)]
    unsafe fn copy_two_lines(from: *const u8, to: *mut u8, bytes: usize) {
        // SAFETY: touches the first and the last 64 bytes; the stack is not used.
        unsafe {
            lines!(
                "vmovdqu64 zmm16, [{from}]"
                "vmovdqu64 zmm17, [{from} + {bytes} - 64]"
                "vmovdqu64 [{to}], zmm16"
                "vmovdqu64 [{to} + {bytes} - 64], zmm17",
                from = in(reg) from,
                to = in(reg) to,
                bytes = in(reg) bytes,
            );
        }
    }

    /// # Safety
    /// Both sides are valid for 256 bytes; the processor has AVX-512.
    #[inline(always)]
    unsafe fn copy_four_lines(from: *const u8, to: *mut u8) {
        // SAFETY: touches just these bytes; the stack is not used.
        unsafe {
            lines!(
                "vmovdqu64 zmm16, [{from}]"
                "vmovdqu64 zmm17, [{from} + 64]"
                "vmovdqu64 zmm18, [{from} + 128]"
                "vmovdqu64 zmm19, [{from} + 192]"
                "vmovdqu64 [{to}], zmm16"
                "vmovdqu64 [{to} + 64], zmm17"
                "vmovdqu64 [{to} + 128], zmm18"
                "vmovdqu64 [{to} + 192], zmm19",
                from = in(reg) from,
                to = in(reg) to,
            );
        }
    }

    /// The last four lines first, then four at a time from the start, the last of which may overlap.
    ///
    /// # Safety
    /// Both sides are valid for `bytes`, of which there are at least 256; the processor has AVX-512.
    #[inline(always)]
    unsafe fn copy_many_lines(from: *const u8, to: *mut u8, bytes: usize) {
        // SAFETY: touches just these bytes; the stack is not used.
        unsafe {
            lines!(
                "vmovdqu64 zmm16, [{from} + {left} - 256]"
                "vmovdqu64 zmm17, [{from} + {left} - 192]"
                "vmovdqu64 zmm18, [{from} + {left} - 128]"
                "vmovdqu64 zmm19, [{from} + {left} - 64]"
                "vmovdqu64 [{to} + {left} - 256], zmm16"
                "vmovdqu64 [{to} + {left} - 192], zmm17"
                "vmovdqu64 [{to} + {left} - 128], zmm18"
                "vmovdqu64 [{to} + {left} - 64], zmm19"
                "sub {left}, 256"
                "jbe 3f"
                "2:"
                "vmovdqu64 zmm16, [{from}]"
                "vmovdqu64 zmm17, [{from} + 64]"
                "vmovdqu64 zmm18, [{from} + 128]"
                "vmovdqu64 zmm19, [{from} + 192]"
                "vmovdqu64 [{to}], zmm16"
                "vmovdqu64 [{to} + 64], zmm17"
                "vmovdqu64 [{to} + 128], zmm18"
                "vmovdqu64 [{to} + 192], zmm19"
                "add {from}, 256"
                "add {to}, 256"
                "sub {left}, 256"
                "ja 2b"
                "3:",
                from = inout(reg) from => _,
                to = inout(reg) to => _,
                left = inout(reg) bytes => _,
            );
        }
    }

    /// Brings the line at `at` here to be written. A processor that knows no such hint does nothing.
    #[inline(always)]
    pub(in crate::memory) fn expect_write(at: *const u8) {
        // SAFETY: a hint, which changes no memory and never faults.
        unsafe {
            asm!("prefetchw byte ptr [{at}]", at = in(reg) at, options(nostack, preserves_flags));
        }
    }

    /// Moves the line at `at` to where other processors find it sooner. A processor that knows no
    /// such hint does nothing.
    #[inline(always)]
    pub(in crate::memory) fn expect_read_elsewhere(at: *const u8) {
        // SAFETY: a hint, which changes no memory and never faults.
        unsafe {
            asm!("cldemote byte ptr [{at}]", at = in(reg) at, options(nostack, preserves_flags));
        }
    }

    /// # Safety
    /// Both sides are valid for `bytes`, which are 64 to 128; the processor has AVX.
    #[inline(always)]
    unsafe fn copy_128(from: *const u8, to: *mut u8, bytes: usize) {
        // SAFETY: touches the first and the last 64 bytes; the stack is not used. The upper halves
        // of all wide registers are lost, on which no caller of `copy_long` relies.
        unsafe {
            asm!(
                "vmovdqu ymm0, [{from}]",
                "vmovdqu ymm1, [{from} + 32]",
                "vmovdqu ymm2, [{from} + {bytes} - 64]",
                "vmovdqu ymm3, [{from} + {bytes} - 32]",
                "vmovdqu [{to}], ymm0",
                "vmovdqu [{to} + 32], ymm1",
                "vmovdqu [{to} + {bytes} - 64], ymm2",
                "vmovdqu [{to} + {bytes} - 32], ymm3",
                "vzeroupper",
                from = in(reg) from,
                to = in(reg) to,
                bytes = in(reg) bytes,
                out("xmm0") _,
                out("xmm1") _,
                out("xmm2") _,
                out("xmm3") _,
                options(nostack, preserves_flags)
            );
        }
    }

    /// # Safety
    /// Both sides are valid for `bytes`, which are 128 to 256; the processor has AVX.
    #[inline(always)]
    unsafe fn copy_256(from: *const u8, to: *mut u8, bytes: usize) {
        // SAFETY: touches the first and the last 128 bytes; for the rest as `copy_128`.
        unsafe {
            asm!(
                "vmovdqu ymm0, [{from}]",
                "vmovdqu ymm1, [{from} + 32]",
                "vmovdqu ymm2, [{from} + 64]",
                "vmovdqu ymm3, [{from} + 96]",
                "vmovdqu ymm4, [{from} + {bytes} - 128]",
                "vmovdqu ymm5, [{from} + {bytes} - 96]",
                "vmovdqu ymm6, [{from} + {bytes} - 64]",
                "vmovdqu ymm7, [{from} + {bytes} - 32]",
                "vmovdqu [{to}], ymm0",
                "vmovdqu [{to} + 32], ymm1",
                "vmovdqu [{to} + 64], ymm2",
                "vmovdqu [{to} + 96], ymm3",
                "vmovdqu [{to} + {bytes} - 128], ymm4",
                "vmovdqu [{to} + {bytes} - 96], ymm5",
                "vmovdqu [{to} + {bytes} - 64], ymm6",
                "vmovdqu [{to} + {bytes} - 32], ymm7",
                "vzeroupper",
                from = in(reg) from,
                to = in(reg) to,
                bytes = in(reg) bytes,
                out("xmm0") _,
                out("xmm1") _,
                out("xmm2") _,
                out("xmm3") _,
                out("xmm4") _,
                out("xmm5") _,
                out("xmm6") _,
                out("xmm7") _,
                options(nostack, preserves_flags)
            );
        }
    }

    /// The last 64 bytes first, then 64 at a time from the start, the last of which may overlap.
    ///
    /// # Safety
    /// Both sides are valid for `bytes`, of which there are at least 64.
    #[inline(always)]
    pub(super) unsafe fn copy_sse2(from: *const u8, to: *mut u8, bytes: usize) {
        // SAFETY: touches just these bytes; the stack is not used.
        unsafe {
            asm!(
                "movdqu {a}, [{from} + {left} - 64]",
                "movdqu {b}, [{from} + {left} - 48]",
                "movdqu {c}, [{from} + {left} - 32]",
                "movdqu {d}, [{from} + {left} - 16]",
                "movdqu [{to} + {left} - 64], {a}",
                "movdqu [{to} + {left} - 48], {b}",
                "movdqu [{to} + {left} - 32], {c}",
                "movdqu [{to} + {left} - 16], {d}",
                "sub {left}, 64",
                "jbe 3f",
                "2:",
                "movdqu {a}, [{from}]",
                "movdqu {b}, [{from} + 16]",
                "movdqu {c}, [{from} + 32]",
                "movdqu {d}, [{from} + 48]",
                "movdqu [{to}], {a}",
                "movdqu [{to} + 16], {b}",
                "movdqu [{to} + 32], {c}",
                "movdqu [{to} + 48], {d}",
                "add {from}, 64",
                "add {to}, 64",
                "sub {left}, 64",
                "ja 2b",
                "3:",
                from = inout(reg) from => _,
                to = inout(reg) to => _,
                left = inout(reg) bytes => _,
                a = out(xmm_reg) _,
                b = out(xmm_reg) _,
                c = out(xmm_reg) _,
                d = out(xmm_reg) _,
                options(nostack)
            );
        }
    }

    /// The same with 128 bytes at a time.
    ///
    /// # Safety
    /// Both sides are valid for `bytes`, of which there are at least 128; the processor has AVX.
    #[inline(always)]
    unsafe fn copy_avx_loop(from: *const u8, to: *mut u8, bytes: usize) {
        // SAFETY: touches just these bytes; for the rest as `copy_128`.
        unsafe {
            asm!(
                "vmovdqu ymm0, [{from} + {left} - 128]",
                "vmovdqu ymm1, [{from} + {left} - 96]",
                "vmovdqu ymm2, [{from} + {left} - 64]",
                "vmovdqu ymm3, [{from} + {left} - 32]",
                "vmovdqu [{to} + {left} - 128], ymm0",
                "vmovdqu [{to} + {left} - 96], ymm1",
                "vmovdqu [{to} + {left} - 64], ymm2",
                "vmovdqu [{to} + {left} - 32], ymm3",
                "sub {left}, 128",
                "jbe 3f",
                "2:",
                "vmovdqu ymm0, [{from}]",
                "vmovdqu ymm1, [{from} + 32]",
                "vmovdqu ymm2, [{from} + 64]",
                "vmovdqu ymm3, [{from} + 96]",
                "vmovdqu [{to}], ymm0",
                "vmovdqu [{to} + 32], ymm1",
                "vmovdqu [{to} + 64], ymm2",
                "vmovdqu [{to} + 96], ymm3",
                "add {from}, 128",
                "add {to}, 128",
                "sub {left}, 128",
                "ja 2b",
                "3:",
                "vzeroupper",
                from = inout(reg) from => _,
                to = inout(reg) to => _,
                left = inout(reg) bytes => _,
                out("xmm0") _,
                out("xmm1") _,
                out("xmm2") _,
                out("xmm3") _,
                options(nostack)
            );
        }
    }
}

#[cfg(not(all(target_arch = "x86_64", not(miri))))]
use portable::{Sixteen, copy_long};
#[cfg(not(all(target_arch = "x86_64", not(miri))))]
pub(super) use portable::{expect_read_elsewhere, expect_write};

/// Relaxed atomics, which must be aligned.
#[cfg(not(all(target_arch = "x86_64", not(miri))))]
mod portable {
    use super::Word;
    use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

    /// No such hint here.
    pub(in crate::memory) fn expect_write(_at: *const u8) {}

    /// No such hint here.
    pub(in crate::memory) fn expect_read_elsewhere(_at: *const u8) {}

    /// Two words of 8 bytes.
    #[derive(Clone, Copy)]
    #[repr(C)]
    pub(super) struct Sixteen([u64; 2]);

    macro_rules! words {
        ($($word:ty: $atomic:ty;)*) => {$(
            // SAFETY: an aligned atomic, or single bytes.
            unsafe impl Word for $word {
                #[inline(always)]
                unsafe fn load_shared(from: *const u8) -> Self {
                    if from.addr().is_multiple_of(align_of::<$atomic>()) {
                        // SAFETY: readable, as the caller says, and aligned.
                        return unsafe { (*from.cast::<$atomic>()).load(Ordering::Relaxed) };
                    }
                    let mut bytes = [0; size_of::<Self>()];
                    for (at, byte) in bytes.iter_mut().enumerate() {
                        // SAFETY: readable, as the caller says; a byte is always aligned.
                        *byte = unsafe { (*from.add(at).cast::<AtomicU8>()).load(Ordering::Relaxed) };
                    }
                    Self::from_ne_bytes(bytes)
                }

                #[inline(always)]
                unsafe fn store_shared(self, to: *mut u8) {
                    if to.addr().is_multiple_of(align_of::<$atomic>()) {
                        // SAFETY: writable, as the caller says, and aligned.
                        return unsafe { (*to.cast::<$atomic>()).store(self, Ordering::Relaxed) };
                    }
                    for (at, byte) in self.to_ne_bytes().into_iter().enumerate() {
                        // SAFETY: writable, as the caller says; a byte is always aligned.
                        unsafe { (*to.add(at).cast::<AtomicU8>()).store(byte, Ordering::Relaxed) };
                    }
                }
            }
        )*};
    }

    words! {
        u8: AtomicU8;
        u16: AtomicU16;
        u32: AtomicU32;
        u64: AtomicU64;
    }

    // SAFETY: two words of 8 bytes, one after the other.
    unsafe impl Word for Sixteen {
        #[inline(always)]
        unsafe fn load_shared(from: *const u8) -> Self {
            // SAFETY: the caller's.
            unsafe { Self([u64::load_shared(from), u64::load_shared(from.add(8))]) }
        }

        #[inline(always)]
        unsafe fn store_shared(self, to: *mut u8) {
            // SAFETY: the caller's.
            unsafe {
                self.0[0].store_shared(to);
                self.0[1].store_shared(to.add(8));
            }
        }
    }

    /// # Safety
    /// Both sides are valid for `bytes`, of which there are more than 64.
    pub(super) unsafe fn copy_long(from: *const u8, to: *mut u8, bytes: usize) {
        let mut at = 0;
        // SAFETY: `at` stays below `bytes`; a private side bears shared accesses as well.
        unsafe {
            while at + 8 <= bytes {
                u64::load_shared(from.add(at)).store_shared(to.add(at));
                at += 8;
            }
            while at < bytes {
                u8::load_shared(from.add(at)).store_shared(to.add(at));
                at += 1;
            }
        }
    }
}

#[cfg(all(test, target_arch = "x86_64", not(miri)))]
mod tests {
    use super::*;

    /// What every width of copy must do, whichever this processor does best.
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
}
