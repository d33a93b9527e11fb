//! Memory for large regions: whole pages of their own, huge ones if the system agrees, touched by
//! several threads before the adapter pins them one by one.
//!
//! | who | may do | when |
//! | --- | --- | --- |
//! | [`anonymous`], [`map_device`] | map, advise, touch | before other code knows of the memory |
//! | holders of the arena over it | read, write, atomics | until it and its clones are dropped |
//! | [`Pages::drop`] | unmap, once | when the last of those is dropped |

use farside_fabric::Arena;
use std::ffi::c_void;
use std::fs::OpenOptions;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

/// Bytes of a huge page.
pub(crate) const HUGE_PAGE_BYTES: usize = 2 << 20;
/// Bytes from which on several threads touch the pages.
const SHARED_WORK_BYTES: usize = 64 << 20;
/// Most threads that touch.
const THREADS_MAX: usize = 8;

/// A mapping.
struct Pages {
    start: *mut c_void,
    bytes: usize,
}

// SAFETY: owns a mapping, given back once in `drop`.
unsafe impl Send for Pages {}
// SAFETY: has no methods on `&self`.
unsafe impl Sync for Pages {}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: mapped by `anonymous` at this address and size; arenas over it are gone.
        unsafe { libc::munmap(self.start, self.bytes) };
    }
}

/// Allocates zeroed memory of this process alone.
///
/// # Errors
/// `OutOfMemory` if there is none.
pub(crate) fn anonymous(bytes: usize) -> io::Result<Arena> {
    let none = io::ErrorKind::OutOfMemory;
    // A huge page more, so that one can begin at the beginning.
    let mapped = bytes.checked_add(HUGE_PAGE_BYTES).ok_or(none)?;
    let (rights, flags) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: the kernel chooses an unused address.
    let start = unsafe { libc::mmap(null_mut(), mapped, rights, flags, -1, 0) };
    if start == libc::MAP_FAILED {
        return Err(none.into());
    }
    let pages = Pages { start, bytes: mapped };
    let skipped = start.addr().next_multiple_of(HUGE_PAGE_BYTES) - start.addr();
    // SAFETY: within the mapping, which is larger by a huge page.
    let base = unsafe { start.cast::<u8>().add(skipped) };
    // SAFETY: advice about the mapping's own pages; a refusal means small ones.
    unsafe { libc::madvise(base.cast(), bytes, libc::MADV_HUGEPAGE) };
    touch(base, bytes);
    let base = NonNull::new(base).ok_or(none)?;
    // SAFETY: aligned, readable and writable, and `pages` keeps it.
    Ok(unsafe { Arena::from_raw(base, bytes, Arc::new(pages)) })
}

/// Maps the start of a device file or file, shared with other mappings; for persistent memory its
/// character device (`/dev/dax0.0`), in multiples of its alignment, mostly 2 MiB.
///
/// # Errors
/// Errors of the system: no such file, not permitted, `EINVAL` for a size that the device refuses.
pub fn map_device(path: &Path, bytes: usize) -> io::Result<Arena> {
    let file = OpenOptions::new().read(true).write(true).open(path)?;
    let rights = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: the kernel chooses an unused address; the mapping outlives the descriptor.
    let start =
        unsafe { libc::mmap(null_mut(), bytes, rights, libc::MAP_SHARED, file.as_raw_fd(), 0) };
    if start == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    let pages = Pages { start, bytes };
    let base = NonNull::new(start.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
    // SAFETY: page-aligned, readable and writable, and `pages` keeps it. A file that is truncated
    // meanwhile ends this process, as with every mapping.
    Ok(unsafe { Arena::from_raw(base, bytes, Arc::new(pages)) })
}

/// Populates pages, with several threads if there are many.
fn touch(base: *mut u8, bytes: usize) {
    if bytes < SHARED_WORK_BYTES {
        return populate(base.expose_provenance(), bytes);
    }
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(THREADS_MAX);
    let part = bytes.div_ceil(threads).next_multiple_of(HUGE_PAGE_BYTES);
    let start = base.expose_provenance();
    std::thread::scope(|scope| {
        for offset in (0..bytes).step_by(part) {
            scope.spawn(move || populate(start + offset, part.min(bytes - offset)));
        }
    });
}

fn populate(start: usize, bytes: usize) {
    let start = std::ptr::with_exposed_provenance_mut(start);
    // SAFETY: pages of a mapping that no other code knows. An older kernel refuses; then the pages are
    // allocated as the adapter pins them.
    unsafe { libc::madvise(start, bytes, libc::MADV_POPULATE_WRITE) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering;

    #[test]
    fn a_file_is_mapped_and_shared() {
        let path = std::env::temp_dir().join(format!("farside-pages-{}", std::process::id()));
        std::fs::write(&path, [7; 8192]).unwrap();
        let (one, other) = (map_device(&path, 8192).unwrap(), map_device(&path, 8192).unwrap());
        std::fs::remove_file(&path).unwrap();
        assert_eq!(one.load(8, Ordering::Acquire), Ok(u64::from_ne_bytes([7; 8])));
        one.store(4096, 9, Ordering::Release).unwrap();
        assert_eq!(other.load(4096, Ordering::Acquire), Ok(9));
        assert!(map_device(&path, 8192).is_err(), "no such file any more");
    }

    #[test]
    fn large_memory_is_zeroed_aligned_and_whole() {
        for bytes in [HUGE_PAGE_BYTES, 3 * HUGE_PAGE_BYTES + 4096, SHARED_WORK_BYTES + 8] {
            let arena = anonymous(bytes).unwrap();
            assert_eq!(arena.len(), bytes);
            assert!(arena.at(0, 1).unwrap().addr().is_multiple_of(HUGE_PAGE_BYTES));
            for at in [0, (bytes as u64 - 8) & !7] {
                assert_eq!(arena.load(at, Ordering::Acquire), Ok(0));
                arena.store(at, 7, Ordering::Release).unwrap();
            }
        }
        assert!(anonymous(usize::MAX - 1).is_err());
        assert!(anonymous(1 << 60).is_err());
    }
}
