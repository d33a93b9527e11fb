//! Tables in memory of zeros that is touched only when used: a cache of large lines uses little of them.
//!
//! | what | who changes it | when |
//! | --- | --- | --- |
//! | the elements | as the element's type says: all are atomics | any time |
//! | the memory | its table | allocated by `new`, freed by `drop` |

#[cfg(not(any(loom, shuttle)))]
use std::ptr::NonNull;

#[cfg(loom)]
use loom::sync::atomic::AtomicU64;
#[cfg(shuttle)]
use shuttle::sync::atomic::AtomicU64;
#[cfg(not(any(loom, shuttle)))]
use std::sync::atomic::AtomicU64;

/// A slice with all elements zero, in memory that is touched only when used; `None` if this process has no
/// room for it. The allocator writes all zeros of elements with an alignment over 16 B: those need a [`SparseTable`].
#[cfg(not(any(loom, shuttle)))]
#[allow(unsafe_code, reason = "this file is a home of unsafe code; see the reasons below")]
pub(super) fn zeroed<T: AllZero>(count: usize) -> Option<Box<[T]>> {
    let layout = std::alloc::Layout::array::<T>(count).ok()?;
    if layout.size() == 0 {
        return Some(Box::default());
    }
    // SAFETY: the layout has a size over zero.
    let memory = unsafe { std::alloc::alloc_zeroed(layout) };
    let first = std::ptr::NonNull::new(memory.cast::<T>())?;
    let slice = std::ptr::NonNull::slice_from_raw_parts(first, count);
    // SAFETY: allocated with the layout of `[T]` of this length, which has no other owner, and `AllZero` promises
    // that zero bytes are a value of the type.
    Some(unsafe { Box::from_raw(slice.as_ptr()) })
}

/// A [`zeroed`] slice at the start of a processor's cache line.
#[cfg(not(any(loom, shuttle)))]
#[derive(Debug)]
pub(super) struct SparseTable<T> {
    first: NonNull<T>,
    count: usize,
    memory: NonNull<[AtomicU64]>,
}

#[cfg(not(any(loom, shuttle)))]
#[allow(unsafe_code, reason = "this file is a home of unsafe code; see the reasons below")]
impl<T: AllZero> SparseTable<T> {
    pub(super) fn new(count: usize) -> Option<Self> {
        let bytes = count.checked_mul(size_of::<T>())?.checked_add(align_of::<T>())?;
        let memory = Box::leak(zeroed::<AtomicU64>(bytes.div_ceil(size_of::<AtomicU64>()))?);
        let skipped = memory.as_ptr().align_offset(align_of::<T>());
        let memory = NonNull::from(memory);
        // SAFETY: there is an alignment more than the elements take, and `skipped` is less than one.
        let first = unsafe { memory.cast::<AtomicU64>().add(skipped).cast() };
        Some(Self { first, count, memory })
    }
}

#[cfg(not(any(loom, shuttle)))]
#[allow(unsafe_code, reason = "this file is a home of unsafe code; see the reason below")]
impl<T> std::ops::Deref for SparseTable<T> {
    type Target = [T];

    #[inline(always)]
    fn deref(&self) -> &[T] {
        // SAFETY: aligned, within the memory, which lives as long as self, and initialized: `new` asks for `AllZero`.
        unsafe { NonNull::slice_from_raw_parts(self.first, self.count).as_ref() }
    }
}

#[cfg(not(any(loom, shuttle)))]
#[allow(unsafe_code, reason = "this file is a home of unsafe code; see the reason below")]
impl<T> Drop for SparseTable<T> {
    fn drop(&mut self) {
        // SAFETY: leaked by `new`, freed once; no element needs a drop, as all are made of atomics.
        drop(unsafe { Box::from_raw(self.memory.as_ptr()) });
    }
}

#[cfg(not(any(loom, shuttle)))]
#[allow(unsafe_code, reason = "this file is a home of unsafe code; see the reasons below")]
// SAFETY: owns its elements.
unsafe impl<T: Send> Send for SparseTable<T> {}
#[cfg(not(any(loom, shuttle)))]
#[allow(unsafe_code, reason = "this file is a home of unsafe code; see the reasons below")]
// SAFETY: as above.
unsafe impl<T: Sync> Sync for SparseTable<T> {}

#[cfg(any(loom, shuttle))]
#[derive(Debug)]
pub(super) struct SparseTable<T>(Box<[T]>);

#[cfg(any(loom, shuttle))]
impl<T> SparseTable<T> {
    pub(super) fn new(_count: usize) -> Option<Self> {
        Some(Self(Box::new([])))
    }
}

#[cfg(any(loom, shuttle))]
impl<T> std::ops::Deref for SparseTable<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.0
    }
}

/// Modelled atomics are no plain bytes; the models use tags only.
#[cfg(any(loom, shuttle))]
pub(super) fn zeroed<T: AllZero>(_count: usize) -> Option<Box<[T]>> {
    Some(Box::new([]))
}

/// Types made of atomics only, for which all bytes zero is a value.
pub(super) trait AllZero {}
impl AllZero for AtomicU64 {}
impl AllZero for u32 {}
impl AllZero for u8 {}
