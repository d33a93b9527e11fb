//! A log device on persistent memory: files of a DAX file system, written by stores.

use super::device::{LogDevice, Medium, Promise, Segment};
use super::file::{FileDevice, HEADER};
use super::folder::inspect_folder;
use crate::canary;
use crate::{Error, ErrorCode};
use farside_fabric_shm::{PERSISTENT_LINE, PersistentMapping};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::Path;

/// Segments that stay mapped.
const MAPPED_MAX: usize = 4;

/// Mapped persistent memory. A seam for tests: programs use [`PersistentDevice::open`].
#[doc(hidden)]
pub trait PersistentMemory: Send {
    /// Copies bytes out.
    ///
    /// # Errors
    /// `InvalidInput` outside of it.
    fn load(&mut self, at: u64, out: &mut [u8]) -> io::Result<()>;
    /// Copies bytes in; they may be lost without power.
    ///
    /// # Errors
    /// `InvalidInput` outside of it.
    fn store(&mut self, at: u64, bytes: &[u8]) -> io::Result<()>;
    /// Begins to write lines back.
    ///
    /// # Errors
    /// `InvalidInput` outside of it.
    fn write_back(&mut self, at: u64, bytes: u64) -> io::Result<()>;
    /// Returns once what was written back is kept.
    fn fence(&mut self);
}

impl PersistentMemory for PersistentMapping {
    fn load(&mut self, at: u64, out: &mut [u8]) -> io::Result<()> {
        Self::load(self, at, out)
    }

    fn store(&mut self, at: u64, bytes: &[u8]) -> io::Result<()> {
        Self::store(self, at, bytes)
    }

    fn write_back(&mut self, at: u64, bytes: u64) -> io::Result<()> {
        Self::write_back(self, at, bytes)
    }

    fn fence(&mut self) {
        Self::fence(self);
    }
}

/// Maps a file.
type Mapper = Box<dyn FnMut(&File) -> io::Result<Box<dyn PersistentMemory>> + Send>;

/// A segment that is mapped.
struct Mapped {
    segment: Segment,
    memory: Box<dyn PersistentMemory>,
    /// Bytes of the file that were stored and not written back.
    dirty: Vec<Range<u64>>,
}

/// Keeps a log in files of a DAX file system on persistent memory. A commit stores the bytes, writes their cache lines
/// back (`clwb`, else `clflushopt`, else `clflush`) and passes a fence; it makes no system call, except to map a
/// segment that is used first.
///
/// *Durability*: survives the process; a loss of power too, if the persistence domain of the memory is known
/// ([`inspect_folder`](super::inspect_folder)). The form of the folder is that of
/// [`FileDevice`](super::FileDevice), which opens it too.
///
/// # Example
/// ```
/// use farside::ErrorCode;
/// use farside::durable::{DurableLog, DurableLogOptions, PersistentDevice};
///
/// let folder = std::env::temp_dir().join(format!("persistent-{}", std::process::id()));
/// match PersistentDevice::open(&folder) {
///     Ok(device) => {
///         let (log, _) = DurableLog::on(Box::new(device), &DurableLogOptions::default())?;
///         assert!(log.promise().survives_process);
///     }
///     // The folder is not on persistent memory.
///     Err(error) => assert_eq!(error.code, ErrorCode::BadConfiguration),
/// }
/// # std::fs::remove_dir_all(&folder).ok();
/// # Ok::<(), farside::Error>(())
/// ```
pub struct PersistentDevice {
    files: FileDevice,
    promise: Promise,
    mapper: Mapper,
    /// The one that was used last is the last.
    mapped: Vec<Mapped>,
}

impl std::fmt::Debug for PersistentDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PersistentDevice").field("files", &self.files).finish_non_exhaustive()
    }
}

impl PersistentDevice {
    /// Opens the log of a folder, which is made if it does not exist.
    ///
    /// # Errors
    /// `BadConfiguration` if the folder is not on a file system with DAX, or the processor cannot write cache lines
    /// back: nothing weaker is used instead, and the folder may have an empty log, which
    /// [`FileDevice`](super::FileDevice) opens. Those of [`FileDevice::open`](super::FileDevice::open).
    pub fn open(folder: &Path) -> Result<Self, Error> {
        let mapper = |file: &File| {
            let mapping = PersistentMapping::map(file)?;
            Ok(Box::new(mapping) as Box<dyn PersistentMemory>)
        };
        let mut device = Self::with_memory(folder, Box::new(mapper))?;
        device.promise.survives_power &= inspect_folder(folder)?.promise.survives_power;
        Ok(device)
    }

    /// The same over other memory. For tests.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    #[doc(hidden)]
    pub fn with_memory(folder: &Path, mut mapper: Mapper) -> Result<Self, Error> {
        let files = FileDevice::open(folder)?;
        let path = folder.join("identity");
        let probed = File::options().read(true).write(true).open(&path);
        probed.and_then(|file| mapper(&file)).map_err(|error| match error.kind() {
            io::ErrorKind::Unsupported => {
                let text = format!(
                    "the folder {} is not on persistent memory ({error}): mount a file system with -o dax on a \
                     namespace in mode fsdax (ndctl list), or keep the log in files",
                    folder.display()
                );
                Error::with(ErrorCode::BadConfiguration, text)
            }
            _ => Error::with(ErrorCode::System, format!("cannot map {}: {error}", path.display())),
        })?;
        let promise = Promise::of(Medium::PersistentMemory);
        Ok(Self { files, promise, mapper, mapped: Vec::new() })
    }

    /// The mapping of a segment.
    fn mapping(&mut self, segment: Segment) -> Result<&mut Mapped, Error> {
        if let Some(at) = self.mapped.iter().position(|one| one.segment == segment) {
            let one = self.mapped.remove(at);
            self.mapped.push(one);
        } else {
            let file = self.files.file(segment)?;
            let memory = (self.mapper)(file).map_err(|error| {
                let text = format!("cannot map the segment at {}: {error}", segment.begin);
                Error::with(ErrorCode::System, text)
            })?;
            // What is not written back yet stays.
            if self.mapped.len() >= MAPPED_MAX
                && let Some(at) = self.mapped.iter().position(|one| one.dirty.is_empty())
            {
                self.mapped.remove(at);
            }
            self.mapped.push(Mapped { segment, memory, dirty: Vec::new() });
        }
        self.mapped.last_mut().ok_or_else(|| ErrorCode::System.into())
    }
}

/// The error of memory that has failed.
fn device_failed(what: &str, segment: Segment, error: &dyn std::fmt::Display) -> Error {
    let text = format!("{what} the segment at {}: {error}", segment.begin);
    Error::with(ErrorCode::DeviceFailed, text)
}

/// The error of persistent memory that has failed.
pub(super) fn device_failure(what: &str, error: &dyn std::fmt::Display) -> Error {
    Error::with(ErrorCode::DeviceFailed, format!("{what} persistent memory: {error}"))
}

impl Mapped {
    fn store(&mut self, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.memory.store(at, bytes)?;
        let end = at + bytes.len() as u64;
        match self.dirty.last_mut() {
            Some(last) if last.end == at => last.end = end,
            _ => self.dirty.push(at..end),
        }
        Ok(())
    }

    fn sync(&mut self) -> io::Result<()> {
        for range in std::mem::take(&mut self.dirty) {
            let mut bytes = range.end - range.start;
            if canary::mutant!(canary::nodes(), PersistentNotWrittenBack) {
                continue;
            }
            if canary::mutant!(canary::nodes(), PersistentLastLineNotWrittenBack) {
                let last = (range.end - 1) / PERSISTENT_LINE * PERSISTENT_LINE;
                bytes = last.saturating_sub(range.start);
            }
            if bytes > 0 {
                self.memory.write_back(range.start, bytes)?;
            }
        }
        if !canary::mutant!(canary::nodes(), PersistentNotFenced) {
            self.memory.fence();
        }
        Ok(())
    }
}

impl LogDevice for PersistentDevice {
    fn promise(&self) -> Promise {
        self.promise
    }

    fn log_id(&self) -> u64 {
        self.files.log_id()
    }

    fn segments(&mut self) -> Result<Vec<Segment>, Error> {
        self.files.segments()
    }

    fn create(&mut self, segment: Segment) -> Result<(), Error> {
        self.files.create(segment)
    }

    fn write(&mut self, segment: Segment, at: u64, bytes: &[u8]) -> Result<(), Error> {
        let place = HEADER + (at - segment.begin);
        let mapped = self.mapping(segment);
        let mapped = mapped.map_err(|error| Error { code: ErrorCode::DeviceFailed, ..error })?;
        mapped.store(place, bytes).map_err(|error| device_failed("store to", segment, &error))
    }

    fn sync(&mut self, segment: Segment) -> Result<(), Error> {
        match self.mapped.iter_mut().find(|one| one.segment == segment) {
            Some(mapped) => {
                mapped.sync().map_err(|error| device_failed("write back", segment, &error))
            }
            // Nothing was stored to it since it was synced.
            None => Ok(()),
        }
    }

    fn read(&mut self, segment: Segment, at: u64, out: &mut [u8]) -> Result<(), Error> {
        let place = HEADER + (at - segment.begin);
        let mapped = self.mapping(segment)?;
        mapped.memory.load(place, out).map_err(|error| {
            let text = format!("the segment at {} is too short: {error}", segment.begin);
            Error::with(ErrorCode::LogTruncated, text)
        })
    }

    fn remove(&mut self, segment: Segment) -> Result<(), Error> {
        self.mapped.retain(|one| one.segment != segment);
        self.files.remove(segment)
    }
}
