//! Copies in assembly, which moves any alignment as fast and of which the compiler knows nothing.
//!
//! | who | may do | when |
//! | --- | --- | --- |
//! | the copies | load and store exactly the bytes that their callers guarantee | as [`super`] says |
//! | everything else here | hints, which change no memory | always |

use super::word::{ArenaMemory, Private, Word, copy_twice};
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

/// The widest moves that the processor executes well; [`UNKNOWN`] until the first copy has checked.
/// Cached here since the standard library's check takes longer than a short copy.
static WIDEST: AtomicU8 = AtomicU8::new(UNKNOWN);
const UNKNOWN: u8 = 0;
/// 16 bytes.
const SSE2: u8 = 1;
/// 32 bytes.
const AVX: u8 = 2;
/// A cache line.
const WHOLE_LINE: u8 = 3;

fn widest() -> u8 {
    // Processors that have AVX-512 without AVX-VNNI lower their frequency for it.
    if is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avxvnni") {
        WHOLE_LINE
    } else if is_x86_feature_detected!("avx") {
        AVX
    } else {
        SSE2
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

#[inline(always)]
fn known_widest() -> u8 {
    match WIDEST.load(Ordering::Relaxed) {
        UNKNOWN => first_look(),
        known => known,
    }
}

#[cold]
#[inline(never)]
fn first_look() -> u8 {
    let widest = widest();
    WIDEST.store(widest, Ordering::Relaxed);
    widest
}

/// Not inlined: the wide registers that it uses must not be the caller's.
///
/// # Safety
/// Both sides are valid for `bytes`, of which there are more than 64.
#[inline(never)]
pub(super) unsafe fn fetch_long(from: *const u8, to: *mut u8, bytes: usize) {
    // SAFETY: the caller's; the processor has the instructions.
    unsafe {
        match known_widest() {
            WHOLE_LINE => copy_lines(from, to, bytes),
            AVX => copy_avx(from, to, bytes),
            _ => copy_sse2(from, to, bytes),
        }
    }
}

/// Call it only where nothing is in wide registers.
///
/// # Safety
/// Both sides are valid for `bytes`, a multiple of 64 and not zero; `to` is one too.
#[inline(always)]
pub(super) unsafe fn place_lines(from: *const u8, to: *mut u8, bytes: usize) {
    // SAFETY: the caller's; the processor has the instructions.
    unsafe {
        match known_widest() {
            WHOLE_LINE => place_lines_whole(from, to, bytes),
            AVX => place_lines_avx(from, to, bytes),
            _ => place_lines_sse2(from, to, bytes),
        }
    }
}

/// Four lines at a time, then one by one.
///
/// # Safety
/// As [`place_lines`]; the processor has AVX-512.
#[inline(always)]
pub(super) unsafe fn place_lines_whole(from: *const u8, to: *mut u8, bytes: usize) {
    // SAFETY: touches just these bytes, of which there are `left` and 256 more in the first
    // loop and `left` in the second; the stack is not used.
    unsafe {
        lines!(
            "sub {left}, 256"
            "jb 3f"
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
            "jae 2b"
            "3:"
            "add {left}, 256"
            "jz 5f"
            "4:"
            "vmovdqu64 zmm16, [{from}]"
            "add {from}, 64"
            "vmovdqu64 [{to}], zmm16"
            "add {to}, 64"
            "sub {left}, 64"
            "jnz 4b"
            "5:",
            from = inout(reg) from => _,
            to = inout(reg) to => _,
            left = inout(reg) bytes => _,
        );
    }
}

/// # Safety
/// As [`place_lines`]; the processor has AVX.
#[inline(always)]
pub(super) unsafe fn place_lines_avx(from: *const u8, to: *mut u8, bytes: usize) {
    // SAFETY: touches just these bytes; for the rest as `copy_128`.
    unsafe {
        asm!(
            "2:",
            "vmovdqu ymm0, [{from}]",
            "vmovdqu ymm1, [{from} + 32]",
            "vmovdqu [{to}], ymm0",
            "vmovdqu [{to} + 32], ymm1",
            "add {from}, 64",
            "add {to}, 64",
            "sub {left}, 64",
            "jnz 2b",
            "vzeroupper",
            from = inout(reg) from => _,
            to = inout(reg) to => _,
            left = inout(reg) bytes => _,
            out("xmm0") _,
            out("xmm1") _,
            options(nostack)
        );
    }
}

/// # Safety
/// As [`place_lines`].
#[inline(always)]
pub(super) unsafe fn place_lines_sse2(from: *const u8, to: *mut u8, bytes: usize) {
    // SAFETY: touches just these bytes; the stack is not used.
    unsafe {
        asm!(
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
            "jnz 2b",
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
            copy_twice::<ArenaMemory, Private, Sixteen>(from, to, 32);
            copy_avx_loop(from.add(skip), to.add(skip), bytes - skip);
        }
    }
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

/// Brings the line at `at` here to be read.
#[inline(always)]
pub(crate) fn expect_read(at: *const u8) {
    // SAFETY: a hint, which changes no memory and never faults.
    unsafe {
        asm!("prefetcht0 byte ptr [{at}]", at = in(reg) at, options(nostack, preserves_flags));
    }
}

/// Brings the line at `at` here to be written. A processor that knows no such hint does nothing.
#[inline(always)]
pub(crate) fn expect_write(at: *const u8) {
    // SAFETY: a hint, which changes no memory and never faults.
    unsafe {
        asm!("prefetchw byte ptr [{at}]", at = in(reg) at, options(nostack, preserves_flags));
    }
}

/// Moves the line at `at` to where other processors find it sooner. A processor that knows no
/// such hint does nothing.
#[inline(always)]
pub(crate) fn expect_read_elsewhere(at: *const u8) {
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
    // of all wide registers are lost, on which no caller of `fetch_long` or `place_pieces` relies.
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
