//! What a durable log in a folder can promise, found by a probe.
//!
//! A folder is on persistent memory if a temporary file in it can be mapped as [`PersistentDevice`] maps segments: by
//! `MAP_SYNC`. Whether caches are in the persistence domain is read from sysfs; what cannot be found out is reported
//! as unknown, with the reason.
//!
//! [`PersistentDevice`]: super::PersistentDevice

use super::device::{Medium, Promise};
use super::file::{failed, medium};
use crate::Error;
use farside_fabric_shm::PersistentMapping;
use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Bytes of the temporary file that is mapped.
const PROBE_BYTES: u64 = 4096;

/// Which parts of a machine keep their bytes without power.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
#[non_exhaustive]
pub enum PersistenceDomain {
    /// The memory controller and the DIMMs; caches do not (ADR).
    MemoryController,
    /// The processors' caches too (eADR).
    Caches,
    /// Not known, because of this.
    Unknown(String),
}

impl fmt::Display for PersistenceDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::MemoryController => f.write_str("memory controller; caches lose their bytes"),
            Self::Caches => f.write_str("caches and memory controller"),
            Self::Unknown(reason) => write!(f, "not known: {reason}"),
        }
    }
}

/// Whether files of a folder can be mapped as persistent memory.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
#[non_exhaustive]
pub enum FolderMapping {
    /// They can: a store is kept once its cache lines are written back.
    Synchronous,
    /// They cannot, because of this.
    Refused(String),
    /// Not tried, because of this.
    NotTried(String),
}

impl fmt::Display for FolderMapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Synchronous => f.write_str("yes, by MAP_SYNC"),
            Self::Refused(reason) => write!(f, "no: {reason}"),
            Self::NotTried(reason) => write!(f, "not tried: {reason}"),
        }
    }
}

/// What was found out about a folder.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
#[non_exhaustive]
pub struct FolderReport {
    /// What a log in it promises, on the best device that it permits:
    /// [`PersistentDevice`](super::PersistentDevice) if [`mapping`](Self::mapping) is `Synchronous`, else
    /// [`FileDevice`](super::FileDevice).
    pub promise: Promise,
    /// Whether its files can be mapped as persistent memory.
    pub mapping: FolderMapping,
    /// What keeps bytes there without power; `None` unless it is persistent memory.
    pub domain: Option<PersistenceDomain>,
}

/// Returns what a log in an existing folder promises, as [`inspect_folder`] finds it out.
///
/// # Errors
/// `System` if the folder cannot be inspected.
pub fn promise_of(folder: &Path) -> Result<Promise, Error> {
    inspect_folder(folder).map(|report| report.promise)
}

/// Finds out what a log in an existing folder can promise, by mapping a temporary file without a name in it.
///
/// *Guarantees*: the folder is unchanged. Persistent memory that only the boot options or the firmware's memory map
/// declare (provider `e820` in sysfs) counts as lost with the power: it may be DRAM.
///
/// *Cost*: some system calls; it may block for the file system.
///
/// # Errors
/// `System` if the folder cannot be inspected.
///
/// # Example
/// ```
/// use farside::durable::{FolderMapping, Medium, inspect_folder};
///
/// let report = inspect_folder(&std::env::temp_dir())?;
/// let is_persistent = report.mapping == FolderMapping::Synchronous;
/// assert_eq!(is_persistent, report.promise.medium == Medium::PersistentMemory);
/// # Ok::<(), farside::Error>(())
/// ```
pub fn inspect_folder(folder: &Path) -> Result<FolderReport, Error> {
    inspect_with(folder, Path::new("/sys"), &mut |file| PersistentMapping::map(file).map(|_| ()))
}

/// The same with another mapping of files, and another `/sys`.
fn inspect_with(
    folder: &Path,
    sysfs: &Path,
    map: &mut dyn FnMut(&File) -> io::Result<()>,
) -> Result<FolderReport, Error> {
    let medium = medium(folder)?;
    let mapping = match medium {
        Medium::File => probe(folder, map),
        Medium::MemoryFile => FolderMapping::NotTried("a file system in memory".to_owned()),
        _ => FolderMapping::NotTried("a network file system".to_owned()),
    };
    if mapping != FolderMapping::Synchronous {
        return Ok(FolderReport { promise: Promise::of(medium), mapping, domain: None });
    }
    let device = std::fs::metadata(folder).map_err(|error| failed("inspect", folder, &error))?;
    let domain = domain(sysfs, device.dev());
    let mut promise = Promise::of(Medium::PersistentMemory);
    promise.survives_power &= !matches!(domain, PersistenceDomain::Unknown(_));
    Ok(FolderReport { promise, mapping, domain: Some(domain) })
}

/// Maps a temporary file of a folder.
fn probe(folder: &Path, map: &mut dyn FnMut(&File) -> io::Result<()>) -> FolderMapping {
    let file = match unnamed(folder) {
        Ok(file) => file,
        Err(error) => {
            let text = format!("cannot make a temporary file there ({error})");
            return FolderMapping::NotTried(text);
        }
    };
    match file.set_len(PROBE_BYTES).and_then(|()| map(&file)) {
        Ok(()) => FolderMapping::Synchronous,
        Err(error) if error.kind() == io::ErrorKind::Unsupported => {
            FolderMapping::Refused(error.to_string())
        }
        Err(error) => FolderMapping::NotTried(format!("cannot map a temporary file ({error})")),
    }
}

/// Makes a file without a name, which ends with its descriptor.
#[cfg(target_os = "linux")]
fn unnamed(folder: &Path) -> io::Result<File> {
    use rustix::fs::{Mode, OFlags};
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    Ok(File::from(rustix::fs::open(folder, flags, Mode::RUSR | Mode::WUSR)?))
}

#[cfg(not(target_os = "linux"))]
fn unnamed(_: &Path) -> io::Result<File> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Returns the persistence domain of a block device. That of memory that is only declared by boot options or the memory map
/// of the firmware is `Unknown`.
fn domain(sysfs: &Path, device: u64) -> PersistenceDomain {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let name = format!("{major}:{minor}");
    let unknown = |text: String| PersistenceDomain::Unknown(text);
    let Ok(path) = sysfs.join("dev/block").join(&name).canonicalize() else {
        return unknown(format!("sysfs has no block device {name}"));
    };
    let Some(region) = ancestor(&path, "region") else {
        let text =
            format!("block device {name} is in no region of persistent memory (mapped by dm?)");
        return unknown(text);
    };
    let bus = ancestor(&region, "ndbus");
    let provider = bus.and_then(|bus| line(&bus.join("provider")));
    let is_declared = provider.as_deref() == Some("e820");
    match line(&region.join("persistence_domain")).as_deref() {
        _ if is_declared => {
            unknown("declared by the memory map or memmap=, and may be DRAM".to_owned())
        }
        Some("cpu_cache") => PersistenceDomain::Caches,
        Some("memory_controller") => PersistenceDomain::MemoryController,
        Some(other) if !other.is_empty() => unknown(format!("the kernel says {other:?}")),
        _ => unknown("the kernel does not say it".to_owned()),
    }
}

/// Returns the innermost folder of a path whose name is `prefix` and a number.
fn ancestor(path: &Path, prefix: &str) -> Option<PathBuf> {
    let is_it = |folder: &&Path| {
        let name = folder.file_name().and_then(|name| name.to_str());
        let number = name.and_then(|name| name.strip_prefix(prefix));
        number.is_some_and(|digits| digits.parse::<u32>().is_ok())
    };
    path.ancestors().find(is_it).map(Path::to_owned)
}

/// Returns a short file without the space around it.
fn line(path: &Path) -> Option<String> {
    std::fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

#[cfg(all(test, target_os = "linux"))]
#[path = "folder_tests.rs"]
mod tests;
