//! Copies by relaxed atomics, which must be aligned: for other processors, and for Miri.
//!
//! | who | may do | when |
//! | --- | --- | --- |
//! | the copies | load and store exactly the bytes that their callers guarantee | as [`super`] says |

use super::word::Word;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

/// No such hint here.
pub(crate) fn expect_read(_at: *const u8) {}

/// No such hint here.
pub(crate) fn expect_write(_at: *const u8) {}

/// No such hint here.
pub(crate) fn expect_read_elsewhere(_at: *const u8) {}

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
pub(super) unsafe fn fetch_long(from: *const u8, to: *mut u8, bytes: usize) {
    let mut at = 0;
    // SAFETY: `at` stays below `bytes`; a private side allows shared accesses as well.
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

/// # Safety
/// Both sides are valid for `bytes`, a multiple of 64 and not zero; `to` is one too.
pub(super) unsafe fn place_lines(from: *const u8, to: *mut u8, bytes: usize) {
    for at in (0..bytes).step_by(8) {
        // SAFETY: `bytes` is a multiple of 8 too.
        unsafe { u64::load_shared(from.add(at)).store_shared(to.add(at)) };
    }
}
