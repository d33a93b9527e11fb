//! Memory mapped twice in a row: one memfd, whose end is followed by its beginning.
//!
//! | who | may do | when |
//! | --- | --- | --- |
//! | [`Mirror::new`] | reserve address space and map into it | before other code knows of it |
//! | holders of the arena over it | read, write, atomics | until it and its clones are dropped |
//! | [`Mirror::drop`] | return the address space, once | when the last of those is dropped |
//!
//! The two mappings are different addresses of the same bytes. They are accessed by atomics and
//! assembly, which the language allows to access one byte under two names.

use std::io;

/// The address space of both mappings.
#[cfg(target_os = "linux")]
pub(super) struct Mirror {
    base: *mut std::ffi::c_void,
    /// Of both mappings.
    bytes: usize,
}

#[cfg(target_os = "linux")]
// SAFETY: owns address space, given back once in `drop`.
unsafe impl Send for Mirror {}
#[cfg(target_os = "linux")]
// SAFETY: has no methods that change it by `&self`.
unsafe impl Sync for Mirror {}

#[cfg(target_os = "linux")]
impl Mirror {
    /// Maps at least `bytes` and at least a page, twice.
    pub(super) fn new(bytes: usize) -> io::Result<Self> {
        use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
        use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous};
        let none = io::ErrorKind::OutOfMemory;
        let page = rustix::param::page_size();
        let turn = bytes.max(1).checked_next_multiple_of(page).ok_or(none)?;
        let both = turn.checked_mul(2).ok_or(none)?;
        let memory = memfd_create("farside-mirror", MemfdFlags::CLOEXEC)?;
        ftruncate(&memory, turn as u64)?;
        // SAFETY: the kernel chooses an unused address.
        let base = unsafe {
            mmap_anonymous(std::ptr::null_mut(), both, ProtFlags::empty(), MapFlags::PRIVATE)
        }?;
        // From here on a failure returns the address space.
        let mirror = Self { base, bytes: both };
        let (rights, flags) =
            (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::FIXED);
        for start in [0, turn] {
            // SAFETY: replaces a part of the address space that `mirror` owns; no other code knows it.
            unsafe { mmap(base.byte_add(start), turn, rights, flags, &memory, 0) }?;
        }
        Ok(mirror)
    }

    /// Returns the start of the first mapping, and the bytes of both.
    pub(super) fn place(&self) -> (*mut u8, usize) {
        (self.base.cast(), self.bytes)
    }
}

#[cfg(target_os = "linux")]
impl Drop for Mirror {
    fn drop(&mut self) {
        // SAFETY: reserved by `new` at this address and size; arenas over it hold it, so none is left.
        let unmapped = unsafe { rustix::mm::munmap(self.base, self.bytes) };
        debug_assert!(unmapped.is_ok());
    }
}

/// Not supported on this platform.
#[cfg(not(target_os = "linux"))]
pub(super) enum Mirror {}

#[cfg(not(target_os = "linux"))]
impl Mirror {
    pub(super) fn new(_bytes: usize) -> io::Result<Self> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(super) fn place(&self) -> (*mut u8, usize) {
        match *self {}
    }
}

#[cfg(all(test, target_os = "linux", not(miri)))]
mod tests {
    use crate::Arena;
    use std::sync::atomic::Ordering;

    #[test]
    fn the_end_goes_on_at_the_beginning() {
        let arena = Arena::mirrored(5000).unwrap();
        let turn = arena.len() / 2;
        assert!((5000..5000 + 65_536).contains(&turn));
        let data: Vec<u8> = (0..200).map(|at| at as u8 + 1).collect();
        let joint = turn as u64 - 77;
        arena.write(joint, &data).unwrap();
        let mut back = vec![0; 200];
        arena.read(joint, &mut back).unwrap();
        assert_eq!(back, data);
        arena.read(0, &mut back[..123]).unwrap();
        assert_eq!(back[..123], data[77..]);
        arena.store(turn as u64 + 4096, 7, Ordering::Release).unwrap();
        assert_eq!(arena.fetch_add(4096, 1), Ok(7));
        assert_eq!(arena.load(turn as u64 + 4096, Ordering::Acquire), Ok(8));
        assert!(arena.write(2 * turn as u64 - 1, &[0; 2]).is_err(), "two turns and no more");
    }

    #[test]
    fn address_space_is_given_back() {
        for _ in 0..100 {
            // A thousand times the available space, if it were kept.
            drop(Arena::mirrored(1 << 40).unwrap());
        }
        assert!(Arena::mirrored(0).is_ok_and(|arena| !arena.is_empty()));
        assert!(Arena::mirrored(usize::MAX).is_err());
        assert!(Arena::mirrored(usize::MAX / 4).is_err());
    }
}
