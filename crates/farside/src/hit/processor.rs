//! What the hit path asks of the processor: its counter, and a pause in a loop that waits for another thread.
//!
//! | what | who changes it | when |
//! | --- | --- | --- |
//! | the counter | the processor | any time; it is only read |

#[cfg(not(any(loom, shuttle)))]
use farside_base::waiting::LOCK_SPINS;

#[cfg(loom)]
pub(crate) fn pause(_tries: u32) {
    loom::thread::yield_now();
}

#[cfg(shuttle)]
pub(crate) fn pause(_tries: u32) {
    shuttle::thread::yield_now();
}

#[cfg(not(any(loom, shuttle)))]
pub(crate) fn pause(tries: u32) {
    if tries < LOCK_SPINS {
        std::hint::spin_loop();
    } else {
        std::thread::yield_now();
    }
}

/// Whether this processor has a counter.
pub(crate) const HAS_COUNTER: bool = cfg!(all(target_arch = "x86_64", not(miri)));

/// The processor's counter. It may be read some instructions early, by less than a microsecond: an
/// interrupt restarts speculated instructions.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[allow(unsafe_code, reason = "this file is a home of unsafe code; see the reason below")]
#[inline(always)]
pub(crate) fn counter() -> u64 {
    // SAFETY: reads a register; every x86-64 processor has the instruction.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// There is none.
#[cfg(not(all(target_arch = "x86_64", not(miri))))]
pub(crate) fn counter() -> u64 {
    0
}
