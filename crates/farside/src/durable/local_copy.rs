//! A copy of a log that its process keeps itself, beside those in memory of other processes.
//!
//! ```text
//! 0         identity: version, number of the copy, checksum
//! 4 Ki      the copy, as in memory that is lent
//! ```

use super::device::Promise;
use super::file::{FolderLock, HEADER, encoded, failed, fields, medium};
use crate::runtime::random;
use crate::{Error, ErrorCode};
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// What an address of a copy in a file begins with.
const SCHEME: &str = "file:";
/// The first bytes of the file: the last two are the version.
const IDENTITY: &[u8; 16] = b"farside copy0001";
const ZEROS: usize = 64 << 10;

/// A copy that the process of the log keeps itself. Its bytes are zero where none were written.
pub trait LocalCopy: Send {
    /// Returns its address, for errors.
    fn address(&self) -> &str;

    /// Returns a number that no other copy has, on any machine. It does not change.
    fn id(&self) -> u64;

    /// Returns what a sync means.
    fn promise(&self) -> Promise;

    /// Makes room for bytes up to a place, so that writes there change no metadata.
    ///
    /// # Errors
    /// `LogFull` without space; `System`.
    fn reserve(&mut self, upto: u64) -> Result<(), Error>;

    /// Reads bytes.
    ///
    /// # Errors
    /// `System`.
    fn read(&mut self, place: u64, out: &mut [u8]) -> Result<(), Error>;

    /// Writes bytes, which may be lost until [`sync`](Self::sync).
    ///
    /// # Errors
    /// `DeviceFailed`.
    fn write(&mut self, place: u64, bytes: &[u8]) -> Result<(), Error>;

    /// Returns once all that was written is kept.
    ///
    /// # Errors
    /// `DeviceFailed`.
    fn sync(&mut self) -> Result<(), Error>;
}

/// Returns the path of an address `file:PATH`.
pub(super) fn path_of(address: &str) -> Option<&Path> {
    address.strip_prefix(SCHEME).map(Path::new)
}

/// A copy in a file, which one process uses at a time.
#[derive(Debug)]
pub(super) struct FileCopy {
    address: String,
    path: PathBuf,
    id: u64,
    promise: Promise,
    file: File,
    _lock: FolderLock,
}

impl FileCopy {
    /// Opens the copy in a file, which is made if it does not exist.
    ///
    /// # Errors
    /// `StateInUse` while another process uses the file; `StateForeign` if it is something else, or of another version;
    /// `LogDamaged`; `System`.
    pub(super) fn open(path: &Path) -> Result<Self, Error> {
        let foreign = |what: &str| {
            let text = format!("{} {what}", path.display());
            Err(Error::with(ErrorCode::StateForeign, text))
        };
        match std::fs::metadata(path) {
            Ok(found) if !found.is_file() => return foreign("is no regular file"),
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(failed("inspect", path, &error)),
        }
        let opened =
            OpenOptions::new().create(true).truncate(false).read(true).write(true).open(path);
        let file = opened.map_err(|error| failed("open", path, &error))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let text = format!("another process uses {}", path.display());
                return Err(Error::with(ErrorCode::StateInUse, text));
            }
            Err(TryLockError::Error(error)) => return Err(failed("lock", path, &error)),
        }
        let copied = file.try_clone().map_err(|error| failed("open", path, &error))?;
        let lock = FolderLock(copied);
        let folder = match path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => Path::new("."),
        };
        let mut header = vec![0; HEADER as usize];
        let length =
            read_upto(&file, 0, &mut header).map_err(|error| failed("read", path, &error))?;
        // Also one whose maker ended before it had written all of the header.
        let is_new = length < HEADER as usize || header.iter().all(|byte| *byte == 0);
        let is_ours = |at: usize| header[at] == 0 || IDENTITY.get(at) == Some(&header[at]);
        let id = if is_new && (0..IDENTITY.len()).all(is_ours) {
            let id = random();
            let made = make(&file, folder, id);
            made.map_err(|error| failed("make", path, &error))?;
            id
        } else if header[..12] == IDENTITY[..12] {
            fields(IDENTITY, &header, path)?[0]
        } else {
            return foreign("is no copy of a log");
        };
        let promise = Promise::of(medium(folder)?);
        let address = format!("{SCHEME}{}", path.display());
        Ok(Self { address, path: path.to_owned(), id, promise, file, _lock: lock })
    }

    fn device_failed(&self, what: &str, error: &io::Error) -> Error {
        let text = format!("{what} {}: {error}", self.path.display());
        Error::with(ErrorCode::DeviceFailed, text)
    }
}

impl LocalCopy for FileCopy {
    fn address(&self) -> &str {
        &self.address
    }

    fn id(&self) -> u64 {
        self.id
    }

    fn promise(&self) -> Promise {
        self.promise
    }

    fn reserve(&mut self, upto: u64) -> Result<(), Error> {
        let (zeros, end) = (vec![0; ZEROS], HEADER.saturating_add(upto));
        let fill = || {
            let mut at = self.file.metadata()?.len();
            if at >= end {
                return Ok(());
            }
            while at < end {
                let bytes = (end - at).min(ZEROS as u64);
                self.file.write_all_at(&zeros[..bytes as usize], at)?;
                at += bytes;
            }
            self.file.sync_all()
        };
        fill().map_err(|error| match error.kind() {
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge => {
                let text = format!("{} of {end} B: {error}", self.path.display());
                Error::with(ErrorCode::LogFull, text)
            }
            _ => failed("extend", &self.path, &error),
        })
    }

    fn read(&mut self, place: u64, out: &mut [u8]) -> Result<(), Error> {
        let read = read_upto(&self.file, HEADER.saturating_add(place), out);
        let length = read.map_err(|error| failed("read", &self.path, &error))?;
        out[length..].fill(0);
        Ok(())
    }

    fn write(&mut self, place: u64, bytes: &[u8]) -> Result<(), Error> {
        let written = self.file.write_all_at(bytes, HEADER.saturating_add(place));
        written.map_err(|error| self.device_failed("write", &error))
    }

    fn sync(&mut self) -> Result<(), Error> {
        self.file.sync_data().map_err(|error| self.device_failed("sync", &error))
    }
}

/// Writes the header of a new copy.
fn make(file: &File, folder: &Path, id: u64) -> io::Result<()> {
    let mut header = vec![0; HEADER as usize];
    let fields = encoded(IDENTITY, [id, 0, 0]);
    header[..fields.len()].copy_from_slice(&fields);
    file.write_all_at(&header, 0)?;
    file.sync_all()?;
    File::open(folder)?.sync_all()
}

/// Reads as many bytes as there are.
fn read_upto(file: &File, at: u64, out: &mut [u8]) -> io::Result<usize> {
    let mut done = 0;
    while done < out.len() {
        match file.read_at(&mut out[done..], at + done as u64) {
            Ok(0) => break,
            Ok(bytes) => done += bytes,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}
