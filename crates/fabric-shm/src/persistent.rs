//! A file of persistent memory, mapped: stores, write-back of cache lines, fences, without system calls.
//!
//! | who | may do | when |
//! | --- | --- | --- |
//! | the owner of a [`PersistentMapping`] | load | while no store runs: `&self` |
//! | the owner of a [`PersistentMapping`] | store | alone: `&mut self`; the caller excludes other processes |
//! | the owner of a [`PersistentMapping`] | write cache lines back, fence | always; neither changes a byte |
//! | [`PersistentMapping::drop`] | unmap, once | at its end |
//!
//! A file that another process shortens ends an access in SIGBUS, as does memory that the machine reports as broken.

use rustix::fd::AsFd;
use rustix::mm::{MapFlags, ProtFlags};
use std::fs::File;
use std::io;
use std::ptr::NonNull;

/// Bytes of a cache line, the unit of a write-back.
pub const PERSISTENT_LINE: u64 = 64;

/// The instruction that writes a cache line back, found at run time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum WriteBack {
    /// The line stays in the cache.
    #[cfg(target_arch = "x86_64")]
    Clwb,
    /// It leaves the cache; several are in flight.
    #[cfg(target_arch = "x86_64")]
    ClflushOpt,
    /// It leaves the cache, one after the other.
    #[cfg(target_arch = "x86_64")]
    Clflush,
}

#[cfg(target_arch = "x86_64")]
impl WriteBack {
    /// The best one of this processor first; all that it has.
    fn all() -> Vec<Self> {
        use std::arch::x86_64::{__cpuid, __cpuid_count};
        let has = |bit: u32| __cpuid(0).eax >= 7 && __cpuid_count(7, 0).ebx >> bit & 1 == 1;
        let found = [(Self::Clwb, has(24)), (Self::ClflushOpt, has(23)), (Self::Clflush, true)];
        found.into_iter().filter_map(|(one, is_found)| is_found.then_some(one)).collect()
    }
}

#[cfg(not(target_arch = "x86_64"))]
impl WriteBack {
    /// None: `dc cvap` of aarch64 is not used yet.
    fn all() -> Vec<Self> {
        Vec::new()
    }
}

/// A mapped file of which each store is persistent once its cache lines were written back and a fence has passed.
#[derive(Debug)]
pub struct PersistentMapping {
    base: NonNull<u8>,
    bytes: usize,
    line: WriteBack,
}

// SAFETY: the mapping belongs to the process, not to a thread; `&self` only reads.
unsafe impl Send for PersistentMapping {}

impl PersistentMapping {
    /// Maps all of a file, by `MAP_SHARED_VALIDATE | MAP_SYNC`: the file system has its blocks on the medium before a
    /// store can reach them.
    ///
    /// # Errors
    /// `Unsupported` if the file is not on a DAX file system, or the processor has no instruction that writes lines
    /// back; other errors of the operating system.
    pub fn map(file: &File) -> io::Result<Self> {
        let line = WriteBack::all().first().copied().ok_or_else(|| {
            io::Error::new(io::ErrorKind::Unsupported, "no write-back of cache lines")
        })?;
        Self::with(file, MapFlags::SHARED_VALIDATE | MapFlags::SYNC, line)
    }

    fn with(file: &File, flags: MapFlags, line: WriteBack) -> io::Result<Self> {
        let length = file.metadata()?.len();
        let bytes = usize::try_from(length).map_err(|_| io::ErrorKind::OutOfMemory)?.max(1);
        let (none, rights) = (std::ptr::null_mut(), ProtFlags::READ | ProtFlags::WRITE);
        // SAFETY: the kernel chooses an unused address.
        let base = unsafe { rustix::mm::mmap(none, bytes, rights, flags, file.as_fd(), 0) };
        let base = base.map_err(|error| match error {
            // Kernels without MAP_SHARED_VALIDATE answer INVAL.
            rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::INVAL => {
                io::Error::new(io::ErrorKind::Unsupported, "MAP_SYNC is refused")
            }
            error => error.into(),
        })?;
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { base, bytes: length as usize, line })
    }

    /// Returns the bytes of the file.
    pub const fn bytes(&self) -> u64 {
        self.bytes as u64
    }

    /// Checks a range; returns its beginning.
    fn at(&self, at: u64, bytes: usize) -> io::Result<usize> {
        let begin = usize::try_from(at).map_err(|_| io::ErrorKind::InvalidInput)?;
        let end = begin.checked_add(bytes).ok_or(io::ErrorKind::InvalidInput)?;
        if end > self.bytes { Err(io::ErrorKind::InvalidInput.into()) } else { Ok(begin) }
    }

    /// Copies bytes out.
    ///
    /// # Errors
    /// `InvalidInput` outside of the file.
    pub fn load(&self, at: u64, out: &mut [u8]) -> io::Result<()> {
        let at = self.at(at, out.len())?;
        // SAFETY: the range is mapped, and `out` is not in it; no store runs meanwhile (table).
        unsafe { self.base.as_ptr().add(at).copy_to_nonoverlapping(out.as_mut_ptr(), out.len()) };
        Ok(())
    }

    /// Copies bytes in. They are in a cache until they were written back.
    ///
    /// # Errors
    /// `InvalidInput` outside of the file.
    pub fn store(&mut self, at: u64, bytes: &[u8]) -> io::Result<()> {
        let at = self.at(at, bytes.len())?;
        // SAFETY: the range is mapped and `bytes` is not in it; `&mut self` excludes other accesses (table).
        unsafe { self.base.as_ptr().add(at).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        Ok(())
    }

    /// Copies bytes in past the caches, by non-temporal stores of 8 bytes; what is no whole word of the file is stored
    /// and written back. Ended by [`fence`](Self::fence), as a write-back.
    ///
    /// # Errors
    /// `InvalidInput` outside of the file.
    pub fn store_non_temporal(&mut self, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.at(at, bytes.len())?;
        let head = ((8 - at % 8) % 8).min(bytes.len() as u64);
        let (first, rest) = bytes.split_at(head as usize);
        let (words, last) = rest.split_at(rest.len() / 8 * 8);
        let tail = at + head + words.len() as u64;
        for (at, part) in [(at, first), (tail, last)] {
            if !part.is_empty() {
                self.store(at, part)?;
                self.write_back(at, part.len() as u64)?;
            }
        }
        self.store_words(at + head, words)
    }

    /// Stores whole words at a multiple of 8.
    #[cfg(target_arch = "x86_64")]
    fn store_words(&mut self, at: u64, words: &[u8]) -> io::Result<()> {
        let begin = self.at(at, words.len())?;
        let words = words.chunks_exact(8).map(|word| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(word);
            i64::from_ne_bytes(bytes)
        });
        for (number, word) in words.enumerate() {
            // SAFETY: the range is mapped (`at`), and a multiple of 8 from a base aligned to pages; `&mut self` excludes
            // other accesses (table); all x86_64 processors have the instruction.
            unsafe {
                let to = self.base.as_ptr().add(begin + 8 * number);
                std::arch::x86_64::_mm_stream_si64(to.cast::<i64>(), word);
            }
        }
        Ok(())
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn store_words(&mut self, at: u64, words: &[u8]) -> io::Result<()> {
        self.store(at, words)?;
        self.write_back(at, words.len() as u64)
    }

    /// Begins to write the lines of a range back; [`fence`](Self::fence) ends it.
    ///
    /// # Errors
    /// `InvalidInput` outside of the file.
    pub fn write_back(&self, at: u64, bytes: u64) -> io::Result<()> {
        let length = usize::try_from(bytes).map_err(|_| io::ErrorKind::InvalidInput)?;
        let end = self.at(at, length)? + length;
        // The base is aligned to pages, so a line begins within the mapping.
        let begin = at as usize / PERSISTENT_LINE as usize * PERSISTENT_LINE as usize;
        for line in (begin..end).step_by(PERSISTENT_LINE as usize) {
            // SAFETY: `line` is below the mapped length.
            self.write_line_back(unsafe { self.base.as_ptr().add(line) });
        }
        Ok(())
    }

    #[cfg(target_arch = "x86_64")]
    fn write_line_back(&self, line: *mut u8) {
        use std::arch::asm;
        // SAFETY: the line is mapped, the processor has the instruction (`all`), and it changes no byte. The compiler
        // takes it for an access to memory, so that no store moves behind it.
        unsafe {
            match self.line {
                WriteBack::Clwb => {
                    asm!("clwb [{}]", in(reg) line, options(nostack, preserves_flags))
                }
                WriteBack::ClflushOpt => {
                    asm!("clflushopt [{}]", in(reg) line, options(nostack, preserves_flags));
                }
                WriteBack::Clflush => {
                    asm!("clflush [{}]", in(reg) line, options(nostack, preserves_flags));
                }
            }
        }
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn write_line_back(&self, _: *mut u8) {
        match self.line {}
    }

    /// Returns once all lines that this thread has written back are in the domain that keeps its bytes without power.
    pub fn fence(&self) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the instruction changes nothing; all processors have it.
        unsafe {
            std::arch::asm!("sfence", options(nostack, preserves_flags));
        }
    }
}

impl Drop for PersistentMapping {
    fn drop(&mut self) {
        // SAFETY: mapped by `with` with this length, and no reference into it remains.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.bytes.max(1)) };
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
#[path = "persistent_tests.rs"]
mod tests;
