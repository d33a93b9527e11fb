//! A copy of a log that its process keeps itself, beside those in memory of other processes.
//!
//! ```text
//! 0         identity: version, number of the copy, checksum
//! 4 Ki      the copy, as in memory that is lent
//! ```

use super::device::Promise;
use super::file::{FIELDS, FileLock, HEADER, encoded, failed, fields, medium};
use crate::runtime::random;
use crate::{Error, ErrorCode};
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// What an address of a copy in a file begins with.
const SCHEME: &str = "file:";
/// The first bytes of the file: the last two are the version.
const IDENTITY: &[u8; 16] = b"farside copy0001";
const ZEROS: usize = 1 << 20;

/// A copy that the process of the log keeps itself.
pub trait LocalCopy: Send {
    /// Returns its address, for errors.
    fn address(&self) -> &str;

    /// Returns a number that no other copy has, on any machine. It does not change.
    fn id(&self) -> u64;

    /// Returns what a sync means.
    fn promise(&self) -> Promise;

    /// Returns its length in bytes. All before it can be read.
    ///
    /// # Errors
    /// `System`.
    fn bytes(&self) -> Result<u64, Error>;

    /// Makes it at least this long, with zeros that are kept, so that writes there change no metadata.
    ///
    /// # Errors
    /// `LogFull` without space; `System`.
    fn reserve(&mut self, upto: u64) -> Result<(), Error>;

    /// Reads bytes, which are zero after its end.
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
    _lock: FileLock,
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
        let copied = file.try_clone().map_err(|error| failed("open", path, &error))?;
        let lock = FileLock::take(copied, path)?;
        let folder = match path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => Path::new("."),
        };
        let mut header = vec![0; HEADER as usize + 1];
        let length = read_upto(&file, 0, &mut header);
        let length = length.map_err(|error| failed("read", path, &error))?;
        let id = if is_new(&header[..length]) {
            random()
        } else if header[..12] == IDENTITY[..12] {
            fields(IDENTITY, &header, path)?[0]
        } else {
            return foreign("is no copy of a log");
        };
        // Also one that was there: a sync of its maker may have failed, or the maker may have ended before it.
        write_identity(&file, folder, id).map_err(|error| failed("write", path, &error))?;
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

    fn bytes(&self) -> Result<u64, Error> {
        let found = self.file.metadata();
        let length = found.map_err(|error| failed("inspect", &self.path, &error))?.len();
        Ok(length.saturating_sub(HEADER))
    }

    fn reserve(&mut self, upto: u64) -> Result<(), Error> {
        let (zeros, end) = (vec![0; ZEROS], HEADER.saturating_add(upto));
        let before = self.bytes()?.saturating_add(HEADER);
        if before >= end {
            return Ok(());
        }
        let fill = || {
            let mut at = before;
            while at < end {
                let bytes = (end - at).min(ZEROS as u64);
                self.file.write_all_at(&zeros[..bytes as usize], at)?;
                at += bytes;
            }
            self.file.sync_all()
        };
        fill()
            .inspect_err(|_| {
                // A later call tries it again. If this fails too, the copy is longer and has bytes that are zero.
                let _ = self.file.set_len(before);
            })
            .map_err(|error| match error.kind() {
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

/// Whether a file is empty, or its maker has ended within its first page.
fn is_new(bytes: &[u8]) -> bool {
    let is_zero = |bytes: &[u8]| bytes.iter().all(|byte| *byte == 0);
    let torn = bytes.len() < FIELDS && bytes.iter().zip(IDENTITY).all(|(byte, own)| byte == own);
    torn || bytes.len() <= HEADER as usize && is_zero(bytes)
}

/// Writes the first page of a copy, and makes it and the file's name durable.
fn write_identity(file: &File, folder: &Path, id: u64) -> io::Result<()> {
    let mut page = vec![0; HEADER as usize];
    page[..FIELDS].copy_from_slice(&encoded(IDENTITY, [id, 0, 0]));
    file.write_all_at(&page, 0)?;
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
