//! Writes the result files of commands (`-o`, `--write-back`, `--history`, `--plot`, `--out`).
//!
//! A regular file keeps its owner, mode and links, and is replaced atomically: a crash leaves the old or the new
//! contents. If a replacement would change one of these, the file is written in place: a file with further hard links
//! or extended attributes, or in a folder in which this process cannot create a file of the same owner. A symbolic
//! link stays one, and its target is written, or created if it is missing. A device or a FIFO is written directly.

use crate::failure::Failure;
use rustix::fs::listxattr_query;
use std::fs::{File, Metadata, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

/// Maximum number of candidate names for a temporary file or folder.
const NAMES_MAX: u32 = 100;

/// Writes a result to a path. *Blocks* on the file, and on the reader of a FIFO.
///
/// # Errors
/// The system's, with the path; a directory, a FIFO that no process reads, and the file that is this
/// command's standard output are refused.
pub fn write(path: &Path, bytes: &[u8]) -> Result<(), Failure> {
    write_with(path, |out| out.write_all(bytes))
}

/// Writes a result as [`write`](write()), piece by piece by `contents`.
pub fn write_with(
    path: &Path,
    contents: impl FnOnce(&mut File) -> io::Result<()>,
) -> Result<(), Failure> {
    let written = match std::fs::metadata(path) {
        Ok(old) if old.is_dir() => Err(refused("is a directory: name a file")),
        Ok(old) if !old.is_file() => write_through(path, &old, contents),
        Ok(old) if is_standard_output(&old) => {
            Err(refused("is the standard output of this command: name another file"))
        }
        Ok(old) => write_over(path, &old, contents),
        Err(error) if error.kind() == ErrorKind::NotFound => match std::fs::read_link(path) {
            Ok(_) => File::create(path).and_then(|mut file| contents(&mut file)),
            Err(_) => Replacement::of(path.to_owned(), None)
                .and_then(|replacement| replacement.write(contents)),
        },
        Err(error) => Err(error),
    };
    written.map_err(|e| Failure::system(format!("{}: {e}", path.display())))
}

fn refused(text: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidInput, text)
}

/// Returns whether standard output is redirected to a file.
fn is_standard_output(file: &Metadata) -> bool {
    let out = rustix::fs::fstat(std::io::stdout());
    out.is_ok_and(|out| (out.st_dev, out.st_ino) == (file.dev(), file.ino()))
}

/// Writes to a device or a FIFO.
fn write_through(
    path: &Path,
    old: &Metadata,
    contents: impl FnOnce(&mut File) -> io::Result<()>,
) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true);
    if old.file_type().is_fifo() {
        // Without O_NONBLOCK, opening a FIFO without a reader would wait for one (fifo(7)).
        let nonblocking = i32::try_from(rustix::fs::OFlags::NONBLOCK.bits());
        options.custom_flags(nonblocking.unwrap_or_default());
    }
    let mut file = match options.open(path) {
        Err(error) if error.raw_os_error() == Some(rustix::io::Errno::NXIO.raw_os_error()) => {
            return Err(refused("no process reads it: start its reader first"));
        }
        opened => opened?,
    };
    rustix::io::ioctl_fionbio(&file, false)?;
    contents(&mut file)
}

/// Writes an existing regular file.
fn write_over(
    path: &Path,
    old: &Metadata,
    contents: impl FnOnce(&mut File) -> io::Result<()>,
) -> io::Result<()> {
    let has_attributes = listxattr_query(path).is_ok_and(|bytes| bytes > 0);
    let target = std::fs::canonicalize(path).ok().filter(|target| is_same(target, old));
    let target = target.filter(|_| old.nlink() == 1 && !has_attributes);
    let replacement = target.and_then(|target| Replacement::of(target, Some(old)).ok());
    match replacement {
        Some(replacement) => replacement.write(contents),
        None => write_in_place(path, contents),
    }
}

fn is_same(path: &Path, file: &Metadata) -> bool {
    let found = std::fs::symlink_metadata(path);
    found.is_ok_and(|found| (found.dev(), found.ino()) == (file.dev(), file.ino()))
}

/// Overwrites a file in place and truncates it to the new length.
fn write_in_place(
    path: &Path,
    contents: impl FnOnce(&mut File) -> io::Result<()>,
) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).open(path)?;
    contents(&mut file)?;
    let length = io::Seek::stream_position(&mut file)?;
    file.set_len(length)
}

/// A temporary file in the folder of the file that it will replace; deleted on drop unless renamed.
struct Replacement {
    file: File,
    part: PathBuf,
    path: PathBuf,
    mode: Option<u32>,
}

impl Replacement {
    /// Creates the temporary file, with the owner and group of the old file.
    fn of(path: PathBuf, old: Option<&Metadata>) -> io::Result<Self> {
        if path.file_name().is_none() {
            return Err(refused("names no file"));
        }
        // No other user can open it before it has the mode of the replaced file.
        let mode = if old.is_some() { 0o600 } else { 0o666 };
        let (part, file) = create_new(|number| {
            // A short name, which the file system accepts even if the name of `path` has the maximum length.
            let name = format!(".farside-{}-{number}.part", std::process::id());
            let part = path.with_file_name(name);
            let file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&part);
            file.map(|file| (part, file))
        })?;
        let created = Self { file, part, path, mode: old.map(Metadata::mode) };
        if let Some(old) = old {
            let new = created.file.metadata()?;
            if (new.uid(), new.gid()) != (old.uid(), old.gid()) {
                fchown(&created.file, Some(old.uid()), Some(old.gid()))?;
            }
        }
        Ok(created)
    }

    /// Writes the contents and renames the file to its final name.
    fn write(mut self, contents: impl FnOnce(&mut File) -> io::Result<()>) -> io::Result<()> {
        contents(&mut self.file)?;
        if let Some(mode) = self.mode {
            self.file.set_permissions(Permissions::from_mode(mode))?;
        }
        self.file.sync_all()?;
        std::fs::rename(&self.part, &self.path)
    }
}

impl Drop for Replacement {
    fn drop(&mut self) {
        // After the rename no file has this name.
        let _ = std::fs::remove_file(&self.part);
    }
}

/// Calls `create` with one number after the other, until the name with that number does not exist yet.
fn create_new<T>(mut create: impl FnMut(u32) -> io::Result<T>) -> io::Result<T> {
    for number in 0..NAMES_MAX {
        match create(number) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            created => return created,
        }
    }
    Err(io::Error::new(ErrorKind::AlreadyExists, "no name is free for a temporary file"))
}

/// A folder for intermediate files that only this user can open; deleted on drop.
#[derive(Debug)]
pub struct TemporaryFolder(PathBuf);

impl TemporaryFolder {
    /// Creates it in the system's folder for temporary files.
    ///
    /// # Errors
    /// The system's, with that folder.
    pub fn new() -> Result<Self, Failure> {
        let base = std::env::temp_dir();
        // An existing folder belongs to another process, which may have guessed the name.
        let created = create_new(|number| {
            let path = base.join(format!("farside-{}-{number}", std::process::id()));
            let mut builder = std::fs::DirBuilder::new();
            std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700).create(&path)?;
            Ok(Self(path))
        });
        created.map_err(|e| Failure::system(format!("{}: {e}", base.display())))
    }

    /// Creates it beside a folder, which it can become by [`rename`](Self::rename).
    ///
    /// # Errors
    /// The system's, with that folder; if it exists and is not empty.
    pub fn beside(folder: &Path) -> Result<Self, Failure> {
        let created = match std::fs::read_dir(folder).map(|mut entries| entries.next().is_some()) {
            Ok(true) => Err(refused("is not empty: name a new folder")),
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
            _ if folder.file_name().is_none() => Err(refused("names no folder")),
            _ => create_new(|number| {
                let name = format!(".farside-{}-{number}.part", std::process::id());
                let path = folder.with_file_name(name);
                std::fs::create_dir(&path)?;
                Ok(Self(path))
            }),
        };
        created.map_err(|e| Failure::system(format!("{}: {e}", folder.display())))
    }

    /// Gives it the name of a folder that does not exist or is empty.
    ///
    /// # Errors
    /// The system's, with that folder.
    pub fn rename(self, folder: &Path) -> Result<(), Failure> {
        let renamed = std::fs::rename(&self.0, folder);
        renamed.map_err(|e| Failure::system(format!("{}: {e}", folder.display())))
    }

    /// Returns its path.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TemporaryFolder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsString;
    use std::io::Read;

    fn folder() -> TemporaryFolder {
        TemporaryFolder::new().unwrap()
    }

    fn names(folder: &TemporaryFolder) -> Vec<OsString> {
        let entries = std::fs::read_dir(folder.path()).unwrap();
        entries.map(|entry| entry.unwrap().file_name()).collect()
    }

    #[test]
    fn new_file_is_created_with_the_usual_mode() {
        let folder = folder();
        let (path, usual) = (folder.path().join("new"), folder.path().join("usual"));
        File::create(&usual).unwrap();
        write(&path, b"one").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"one");
        let mode = |path: &Path| std::fs::metadata(path).unwrap().mode();
        assert_eq!(mode(&path), mode(&usual));
        assert_eq!(names(&folder).len(), 2);
    }

    #[test]
    fn regular_file_keeps_its_mode_and_is_replaced_atomically() {
        let folder = folder();
        let path = folder.path().join("file");
        std::fs::write(&path, b"old and longer").unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(0o4640)).unwrap();
        let mut old = File::open(&path).unwrap();
        write(&path, b"new").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"new");
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o7777, 0o4640);
        let mut before = Vec::new();
        old.read_to_end(&mut before).unwrap();
        assert_eq!(before, b"old and longer");
        assert_eq!(names(&folder), ["file"]);
    }

    #[test]
    fn temporary_folder_takes_the_place_of_an_empty_one() {
        let base = folder();
        let name = base.path().join("out");
        for is_there in [false, true] {
            let new = TemporaryFolder::beside(&name).unwrap();
            std::fs::write(new.path().join("part-0"), b"rows").unwrap();
            assert!(!name.join("part-0").exists());
            let path = new.path().to_owned();
            new.rename(&name).unwrap();
            assert!(name.join("part-0").exists() && !path.exists(), "{is_there}");
            std::fs::remove_file(name.join("part-0")).unwrap();
        }
        // Nothing is left of one that is dropped, and no folder with contents is replaced.
        drop(TemporaryFolder::beside(&name).unwrap());
        assert_eq!(names(&base), ["out"]);
        std::fs::write(name.join("kept"), b"").unwrap();
        let refused = TemporaryFolder::beside(&name).unwrap_err().to_string();
        assert!(refused.contains("out: is not empty"), "{refused}");
        let late = TemporaryFolder::new().unwrap();
        assert!(late.rename(&name).is_err() && name.join("kept").exists());
        assert!(TemporaryFolder::beside(Path::new("/")).is_err());
    }

    #[test]
    fn hard_links_keep_naming_one_file() {
        let folder = folder();
        let (path, other) = (folder.path().join("file"), folder.path().join("other"));
        std::fs::write(&path, b"old and longer").unwrap();
        std::fs::hard_link(&path, &other).unwrap();
        write(&path, b"new").unwrap();
        assert_eq!(std::fs::read(&other).unwrap(), b"new");
        assert_eq!(std::fs::metadata(&path).unwrap().nlink(), 2);
    }

    #[test]
    fn symbolic_links_stay_links_with_and_without_a_target() {
        let folder = folder();
        let (link, target) = (folder.path().join("link"), folder.path().join("target"));
        std::os::unix::fs::symlink("target", &link).unwrap();
        for contents in [&b"first"[..], b"second"] {
            write(&link, contents).unwrap();
            assert_eq!(std::fs::read_link(&link).unwrap(), Path::new("target"));
            assert_eq!(std::fs::read(&target).unwrap(), contents);
        }
        let looped = folder.path().join("loop");
        std::os::unix::fs::symlink("loop", &looped).unwrap();
        assert!(write(&looped, b"").unwrap_err().to_string().contains("loop"));
        assert_eq!(std::fs::read_link(&looped).unwrap(), Path::new("loop"));
    }

    #[test]
    fn fifo_is_written_with_a_reader_and_refused_without() {
        let folder = folder();
        let path = folder.path().join("fifo");
        let made = rustix::fs::mkfifoat(rustix::fs::CWD, &path, 0o600.into());
        made.unwrap();
        let refused = write(&path, b"bytes").unwrap_err().to_string();
        assert!(refused.contains("fifo: no process reads it"), "{refused}");
        let bytes = vec![7; 1 << 20];
        let read = std::thread::scope(|scope| {
            // A FIFO that is opened for reading and writing does not block (fifo(7)).
            let mut reader = OpenOptions::new().read(true).write(true).open(&path).unwrap();
            let length = bytes.len();
            let reader = scope.spawn(move || {
                let mut read = vec![0; length];
                reader.read_exact(&mut read).unwrap();
                read
            });
            write(&path, &bytes).unwrap();
            reader.join().unwrap()
        });
        assert_eq!(read, bytes);
        assert!(std::fs::symlink_metadata(&path).unwrap().file_type().is_fifo());
    }

    #[test]
    fn device_is_written_and_stays_a_device() {
        let folder = folder();
        let path = folder.path().join("null");
        let device = rustix::fs::makedev(1, 3);
        let kind = rustix::fs::FileType::CharacterDevice;
        if rustix::fs::mknodat(rustix::fs::CWD, &path, kind, 0o600.into(), device).is_err() {
            // Only a privileged user creates device nodes.
            return;
        }
        // A file system with `nodev` refuses to open it; it must stay a device anyway.
        let _ = write(&path, b"bytes");
        assert!(std::fs::symlink_metadata(&path).unwrap().file_type().is_char_device());
        assert_eq!(names(&folder), ["null"]);
    }

    #[test]
    fn longest_name_is_written() {
        let folder = folder();
        let path = folder.path().join("n".repeat(255));
        for contents in [&b"first"[..], b"second"] {
            write(&path, contents).unwrap();
            assert_eq!(std::fs::read(&path).unwrap(), contents);
        }
    }

    #[test]
    fn directory_is_refused_by_name() {
        let folder = folder();
        let refused = write(folder.path(), b"").unwrap_err().to_string();
        assert!(refused.ends_with("is a directory: name a file"), "{refused}");
    }

    #[test]
    fn failed_write_leaves_the_file_unchanged() {
        let folder = folder();
        let path = folder.path().join("file");
        std::fs::write(&path, b"old").unwrap();
        let failed = write_with(&path, |file| {
            file.write_all(b"half")?;
            Err(ErrorKind::StorageFull.into())
        });
        assert!(failed.is_err());
        assert_eq!(std::fs::read(&path).unwrap(), b"old");
        assert_eq!(names(&folder), ["file"]);
    }
}
