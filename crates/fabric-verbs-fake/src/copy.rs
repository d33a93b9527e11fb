//! Copies between memory that threads of the program change at the same time.
//!
//! | who | may do | when |
//! | --- | --- | --- |
//! | the fake adapter | copy between addresses that its tables of regions have checked | under the world's lock |
//! | the program's threads | load and store the same bytes by atomics | always |

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// Copies in rising order, whole aligned words of the target at once; words of the source too if both
/// sides are aligned alike.
///
/// # Safety
/// Both ranges are readable and writable for that many bytes, and other threads access them by atomics
/// only.
pub(crate) unsafe fn copy(mut to: *mut u8, mut from: *const u8, mut bytes: usize) {
    while bytes > 0 {
        // SAFETY: within both ranges; words are used only if the target is aligned.
        unsafe {
            let step = if to.addr().is_multiple_of(8) && bytes >= 8 {
                (*to.cast::<AtomicU64>()).store(word(from), Ordering::Release);
                8
            } else {
                let byte = (*from.cast::<AtomicU8>()).load(Ordering::Acquire);
                (*to.cast::<AtomicU8>()).store(byte, Ordering::Release);
                1
            };
            to = to.add(step);
            from = from.add(step);
            bytes -= step;
        }
    }
}

/// # Safety
/// Eight bytes are readable there, and other threads access them by atomics only.
unsafe fn word(from: *const u8) -> u64 {
    if from.addr().is_multiple_of(8) {
        // SAFETY: aligned, and as promised.
        return unsafe { (*from.cast::<AtomicU64>()).load(Ordering::Acquire) };
    }
    let mut bytes = [0; 8];
    for (at, byte) in bytes.iter_mut().enumerate() {
        // SAFETY: as promised.
        *byte = unsafe { (*from.add(at).cast::<AtomicU8>()).load(Ordering::Acquire) };
    }
    u64::from_ne_bytes(bytes)
}
