//! A log device on files of a folder.

use super::device::{LogDevice, Medium, Promise, Segment};
use crate::runtime::random;
use crate::{Error, ErrorCode};
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use xxhash_rust::xxh64::xxh64;

/// Bytes before the first position of a segment.
pub(super) const HEADER: u64 = 4096;
/// The first bytes of files: the last two are the version.
const IDENTITY: &[u8; 16] = b"farside log 0001";
const SEGMENT: &[u8; 16] = b"farside seg 0001";
/// Bytes of a header that mean something.
pub(super) const FIELDS: usize = 48;
/// Zeros are written in pieces of this length.
const ZEROS: usize = 1 << 20;

/// Keeps a log in a folder: one file a segment, named by its first position, written in place once it was filled with
/// zeros, so that a sync has no metadata to write. One segment that was trimmed is kept to be used again.
///
/// *Durability*: see [`promise`](LogDevice::promise), which names the file system's kind. One process at a time uses a
/// folder; a second one is refused.
#[derive(Debug)]
pub struct FileDevice {
    folder: PathBuf,
    id: u64,
    medium: Medium,
    /// The segment that was used last.
    open: Option<(Segment, File)>,
    _lock: FileLock,
}

/// Excludes other users of a folder or a file.
#[derive(Debug)]
pub(super) struct FileLock(File);

impl FileLock {
    /// Locks a file, for the use of a folder or of the file.
    ///
    /// # Errors
    /// `StateInUse` while another process has the lock; `System`.
    pub(super) fn take(file: File, used: &Path) -> Result<Self, Error> {
        match file.try_lock() {
            Ok(()) => Ok(Self(file)),
            Err(TryLockError::WouldBlock) => {
                let text = format!("another process uses {}", used.display());
                Err(Error::with(ErrorCode::StateInUse, text))
            }
            Err(TryLockError::Error(error)) => Err(failed("lock", used, &error)),
        }
    }
}

impl Drop for FileLock {
    fn drop(&mut self) {
        // A child that has not executed its program yet has the descriptor too.
        let _ = self.0.unlock();
    }
}

impl FileDevice {
    /// Opens the log of a folder, which is made if it does not exist.
    ///
    /// # Errors
    /// `StateInUse` while another process uses the folder; `StateForeign` if it has files of something else or of another
    /// version; `LogDamaged`; `System`.
    pub fn open(folder: &Path) -> Result<Self, Error> {
        std::fs::create_dir_all(folder).map_err(|error| failed("make", folder, &error))?;
        // What an earlier process has renamed or made may not be on the disk yet.
        let parent =
            folder.canonicalize().ok().and_then(|folder| Some(folder.parent()?.to_owned()));
        for folder in std::iter::once(folder).chain(parent.as_deref()) {
            let synced = File::open(folder).and_then(|folder| folder.sync_all());
            synced.map_err(|error| failed("sync", folder, &error))?;
        }
        let lock = folder.join("lock");
        let file = OpenOptions::new().create(true).append(true).open(&lock);
        let file = file.map_err(|error| failed("open", &lock, &error))?;
        let lock = FileLock::take(file, folder)?;
        let (id, medium) = (identity(folder)?, medium(folder)?);
        Ok(Self { folder: folder.to_owned(), id, medium, open: None, _lock: lock })
    }

    fn path(&self, begin: u64) -> PathBuf {
        self.folder.join(format!("{begin:016x}.segment"))
    }

    fn spare(&self) -> PathBuf {
        self.folder.join("spare")
    }

    /// The file of a segment, open.
    pub(super) fn file(&mut self, segment: Segment) -> Result<&File, Error> {
        if self.open.as_ref().is_none_or(|(open, _)| *open != segment) {
            let path = self.path(segment.begin);
            let file = OpenOptions::new().read(true).write(true).open(&path);
            self.open = Some((segment, file.map_err(|error| failed("open", &path, &error))?));
        }
        match &self.open {
            Some((_, file)) => Ok(file),
            None => Err(ErrorCode::System.into()),
        }
    }

    /// The error of a device that has failed.
    fn device_failed(&self, what: &str, segment: Segment, error: &io::Error) -> Error {
        let text = format!("{what} {}: {error}", self.path(segment.begin).display());
        Error::with(ErrorCode::DeviceFailed, text)
    }

    /// Reads the segment of a file from its header.
    fn header(&self, path: &Path) -> Result<Segment, Error> {
        let file = File::open(path).map_err(|error| failed("open", path, &error))?;
        let length = file.metadata().map_err(|error| failed("read", path, &error))?.len();
        let mut header = [0; FIELDS];
        let read = file.read_exact_at(&mut header, 0);
        match read {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => {
                return Err(truncated(path, length, HEADER));
            }
            Err(error) => return Err(failed("read", path, &error)),
        }
        let [id, begin, bytes] = fields(SEGMENT, &header, path)?;
        if id != self.id {
            let text = format!("{} is of another log", path.display());
            return Err(Error::with(ErrorCode::StateForeign, text));
        }
        let segment = Segment { begin, bytes };
        if !segment.is_possible() {
            let text = format!("{} has {bytes} positions from {begin} on", path.display());
            return Err(Error::with(ErrorCode::LogDamaged, text));
        }
        if length != HEADER + bytes {
            return Err(truncated(path, length, HEADER + bytes));
        }
        Ok(segment)
    }

    /// Makes the file of a segment under a name that is not yet of a segment.
    fn fill(&self, path: &Path, segment: Segment) -> io::Result<()> {
        let length = HEADER + segment.bytes;
        let spare = self.spare();
        // A device that did not keep the file before has it zeroed.
        let is_reused = std::fs::metadata(&spare).is_ok_and(|spare| spare.len() == length)
            && std::fs::rename(&spare, path).is_ok();
        let file = OpenOptions::new().create(true).truncate(!is_reused).write(true).open(path)?;
        if !is_reused {
            let zeros = vec![0; ZEROS];
            let mut rest = length;
            while rest > 0 {
                let bytes = rest.min(ZEROS as u64);
                (&file).write_all(&zeros[..bytes as usize])?;
                rest -= bytes;
            }
        }
        file.write_all_at(&encoded(SEGMENT, [self.id, segment.begin, segment.bytes]), 0)?;
        file.sync_all()
    }
}

impl LogDevice for FileDevice {
    fn promise(&self) -> Promise {
        Promise::of(self.medium)
    }

    fn log_id(&self) -> u64 {
        self.id
    }

    fn segments(&mut self) -> Result<Vec<Segment>, Error> {
        let mut segments = Vec::new();
        for path in entries(&self.folder)? {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            match name.strip_suffix(".segment") {
                Some(digits) => {
                    let segment = self.header(&path)?;
                    if u64::from_str_radix(digits, 16) != Ok(segment.begin) {
                        let text = format!("{} begins at {}", path.display(), segment.begin);
                        return Err(Error::with(ErrorCode::LogDamaged, text));
                    }
                    segments.push(segment);
                }
                None if ["lock", "identity", "spare", "new"].contains(&name) => {}
                None => {
                    let text = format!("{} is no file of a log", path.display());
                    return Err(Error::with(ErrorCode::StateForeign, text));
                }
            }
        }
        segments.sort_unstable();
        Ok(segments)
    }

    fn create(&mut self, segment: Segment) -> Result<(), Error> {
        let (new, path) = (self.folder.join("new"), self.path(segment.begin));
        let made = self.fill(&new, segment).and_then(|()| {
            std::fs::rename(&new, &path)?;
            File::open(&self.folder)?.sync_all()
        });
        made.map_err(|error| {
            let _ = std::fs::remove_file(&new);
            match error.kind() {
                ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge => {
                    let text = format!("{} of {} B: {error}", path.display(), segment.bytes);
                    Error::with(ErrorCode::LogFull, text)
                }
                _ => failed("make", &path, &error),
            }
        })
    }

    fn write(&mut self, segment: Segment, at: u64, bytes: &[u8]) -> Result<(), Error> {
        let place = HEADER + (at - segment.begin);
        let opened =
            self.file(segment).map_err(|error| Error { code: ErrorCode::DeviceFailed, ..error });
        let written = opened?.write_all_at(bytes, place);
        written.map_err(|error| self.device_failed("write", segment, &error))
    }

    fn sync(&mut self, segment: Segment) -> Result<(), Error> {
        let opened =
            self.file(segment).map_err(|error| Error { code: ErrorCode::DeviceFailed, ..error });
        let synced = opened?.sync_data();
        synced.map_err(|error| self.device_failed("sync", segment, &error))
    }

    fn read(&mut self, segment: Segment, at: u64, out: &mut [u8]) -> Result<(), Error> {
        let place = HEADER + (at - segment.begin);
        let path = self.path(segment.begin);
        self.file(segment)?.read_exact_at(out, place).map_err(|error| match error.kind() {
            ErrorKind::UnexpectedEof => truncated(&path, place, HEADER + segment.bytes),
            _ => failed("read", &path, &error),
        })
    }

    fn remove(&mut self, segment: Segment) -> Result<(), Error> {
        self.open = None;
        let path = self.path(segment.begin);
        let renamed = match std::fs::rename(&path, self.spare()) {
            // By an earlier call, which could not sync it.
            Err(error) if error.kind() == ErrorKind::NotFound && self.spare().is_file() => Ok(()),
            renamed => renamed,
        };
        let moved = renamed.and_then(|()| {
            // Segments are removed in order: a hole would be taken for damage.
            File::open(&self.folder)?.sync_all()
        });
        moved.map_err(|error| failed("remove", &path, &error))
    }
}

/// The paths of a folder.
fn entries(folder: &Path) -> Result<Vec<PathBuf>, Error> {
    let listed = std::fs::read_dir(folder).and_then(|entries| {
        entries.map(|entry| entry.map(|entry| entry.path())).collect::<io::Result<Vec<_>>>()
    });
    listed.map_err(|error| failed("list", folder, &error))
}

/// The number of the log of a folder; a new one if the folder has no log.
fn identity(folder: &Path) -> Result<u64, Error> {
    let path = folder.join("identity");
    match std::fs::read(&path) {
        Ok(bytes) => {
            let [id, ..] = fields(IDENTITY, &bytes, &path)?;
            return Ok(id);
        }
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(failed("read", &path, &error)),
    }
    let is_ours = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str());
        ["lock", "identity.new"].map(Some).contains(&name)
    };
    if let Some(other) = entries(folder)?.iter().find(|path| !is_ours(path)) {
        let text = format!("{} has no log, and has {}", folder.display(), other.display());
        return Err(Error::with(ErrorCode::StateForeign, text));
    }
    let (id, new) = (random(), folder.join("identity.new"));
    let made = File::create(&new).and_then(|file| {
        (&file).write_all(&encoded(IDENTITY, [id, 0, 0]))?;
        file.sync_all()?;
        std::fs::rename(&new, &path)?;
        File::open(folder)?.sync_all()
    });
    made.map_err(|error| failed("make", &path, &error))?;
    Ok(id)
}

/// The header of a file.
pub(super) fn encoded(magic: &[u8; 16], words: [u64; 3]) -> [u8; FIELDS] {
    let mut out = [0; FIELDS];
    out[..16].copy_from_slice(magic);
    for (at, word) in words.into_iter().enumerate() {
        out[16 + 8 * at..24 + 8 * at].copy_from_slice(&word.to_le_bytes());
    }
    let checksum = xxh64(&out[..FIELDS - 8], 0);
    out[FIELDS - 8..].copy_from_slice(&checksum.to_le_bytes());
    out
}

/// The words of the header of a file.
pub(super) fn fields(magic: &[u8; 16], header: &[u8], path: &Path) -> Result<[u64; 3], Error> {
    let word = |at: usize| {
        let bytes = header.get(at..at + 8)?;
        Some(u64::from_le_bytes(bytes.try_into().ok()?))
    };
    if header.get(..12) == Some(&magic[..12]) && header.get(12..16) != Some(&magic[12..]) {
        let text = format!("{} is of another version of Farside", path.display());
        return Err(Error::with(ErrorCode::StateForeign, text));
    }
    let checksum = header.get(..FIELDS - 8).map(|fields| xxh64(fields, 0));
    match (word(16), word(24), word(32), checksum) {
        (Some(first), Some(second), Some(third), Some(checksum))
            if header[..16] == *magic && word(FIELDS - 8) == Some(checksum) =>
        {
            Ok([first, second, third])
        }
        _ => {
            let text = format!("the header of {}", path.display());
            Err(Error::with(ErrorCode::LogDamaged, text))
        }
    }
}

fn truncated(path: &Path, bytes: u64, expected: u64) -> Error {
    let text = format!("{} has {bytes} B of {expected}", path.display());
    Error::with(ErrorCode::LogTruncated, text)
}

pub(super) fn failed(what: &str, path: &Path, error: &io::Error) -> Error {
    Error::with(ErrorCode::System, format!("cannot {what} {}: {error}", path.display()))
}

/// The medium of a folder for files, which are not mapped.
#[cfg(target_os = "linux")]
pub(super) fn medium(folder: &Path) -> Result<Medium, Error> {
    /// Numbers of statfs(2): tmpfs, ramfs; NFS, SMB, CIFS, SMB2, Ceph, FUSE, 9P.
    const MEMORY: [u64; 2] = [0x0102_1994, 0x8584_58f6];
    const NETWORK: [u64; 7] =
        [0x6969, 0x517b, 0xff53_4d42, 0xfe53_4d42, 0x00c3_6400, 0x6573_5546, 0x0102_1997];
    let system = rustix::fs::statfs(folder);
    let system = system.map_err(|error| failed("inspect", folder, &error.into()))?;
    Ok(match u64::from(system.f_type as u32) {
        number if MEMORY.contains(&number) => Medium::MemoryFile,
        number if NETWORK.contains(&number) => Medium::NetworkFile,
        _ => Medium::File,
    })
}

/// The medium of a folder, which other systems do not tell.
#[cfg(not(target_os = "linux"))]
pub(super) fn medium(_: &Path) -> Result<Medium, Error> {
    Ok(Medium::File)
}
