//! The folder in which the ports of one user have their names: a Unix socket for each listening port.
//!
//! The folder belongs to the user, and no other user may enter it (mode 700), so another user can
//! neither take a name, nor connect to one, nor fill its queue. It is found by the same rule for all
//! users, whatever the environment of a process, so that all processes of a user agree:
//!
//! 1. the folder named by `FARSIDE_RUNTIME_DIR`, if that is set (or [`ShmOptions::folder`]), and no
//!    other;
//! 2. else the first of `/tmp/farside-UID` and `/run/user/UID/farside` that exists and is valid;
//! 3. else the first of these that can be created.
//!
//! The second is for a machine on which another user has taken the first one. Owner and mode are
//! checked on an open descriptor, and the folder itself is never reached through a symbolic link. Each
//! folder and link on the path to it from the root is checked as well, like `StrictModes` of sshd:
//! another user that may write one of them could replace this folder ([`crate::parents`]).
//!
//! A process that is killed leaves its sockets there. The kernel knows that they are dead (`connect`
//! with a socket of another type reports so without disturbing a live listener), and the next process
//! that listens removes all of them, so that they do not accumulate. Listening and removing happen
//! under a lock of the folder itself, which the kernel releases when its holder dies. A socket of
//! another host seems dead, so a folder on a file system that hosts may share is refused.
//!
//! [`ShmOptions::folder`]: crate::ShmOptions

use crate::control::pause;
use crate::parents;
use farside_fabric::{FabricError, user};
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::fs::{AtFlags, CWD, Dir, FileType, FlockOperation, Mode, OFlags, Stat};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The setting that names the folder.
const SETTING: &str = "FARSIDE_RUNTIME_DIR";

/// Most bytes of a listen name.
pub(crate) const NAME_BYTES_MAX: usize = 80;

/// How often, a millisecond apart, the lock is tried. It is held for a few system calls, so this limit
/// is reached only if its holder was stopped just then.
const LOCK_TRIES: u32 = 2000;

/// The folder, opened and found right.
pub(crate) struct NamesFolder {
    path: PathBuf,
    descriptor: OwnedFd,
}

/// Holds the lock of the folder.
struct Lock(OwnedFd);

impl Drop for Lock {
    fn drop(&mut self) {
        // Also releases it for a child that was forked meanwhile.
        let _ = rustix::fs::flock(&self.0, FlockOperation::Unlock);
    }
}

fn system(what: &'static str) -> impl Fn(Errno) -> FabricError {
    move |reason| FabricError::System(what, reason.into())
}

/// Returns the candidates for the folder, the preferred one first.
fn places(given: Option<&Path>) -> Result<Vec<PathBuf>, FabricError> {
    if user::is_unmapped().map_err(|reason| FabricError::System("user of this process", reason))? {
        return Err(FabricError::NotPermitted(user::why_unmapped()));
    }
    let setting = std::env::var_os(SETTING).filter(|text| !text.is_empty()).map(PathBuf::from);
    match given.map(Path::to_owned).or(setting) {
        Some(path) if path.is_absolute() && path.file_name().is_some() => Ok(vec![path]),
        Some(path) => {
            let text = format!("{SETTING} is `{}`: name a folder from the root on", path.display());
            let reason = io::Error::new(io::ErrorKind::InvalidInput, text);
            Err(FabricError::System("folder of names", reason))
        }
        None => {
            let user = user::own();
            Ok(vec![
                PathBuf::from(format!("/tmp/farside-{user}")),
                PathBuf::from(format!("/run/user/{user}/farside")),
            ])
        }
    }
}

impl NamesFolder {
    /// Returns the folder of this user, or the `given` one; created if there is none.
    ///
    /// # Errors
    /// `NotPermitted` if what exists is not a folder of this user alone, `System`.
    pub(crate) fn open(given: Option<&Path>) -> Result<Self, FabricError> {
        let places = places(given)?;
        if let Ok(Some(found)) = Self::first(&places) {
            return Ok(found);
        }
        let mut worst = None;
        for path in &places {
            match Self::make(path) {
                Ok(folder) => return Ok(folder),
                Err(reason) => worst = worst.or(Some(reason)),
            }
        }
        Err(worst.unwrap_or(FabricError::Unknown("folder of names")))
    }

    /// Returns the folder, if there is one.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub(crate) fn find(given: Option<&Path>) -> Result<Option<Self>, FabricError> {
        Self::first(&places(given)?)
    }

    fn first(places: &[PathBuf]) -> Result<Option<Self>, FabricError> {
        let mut wrong = None;
        for path in places {
            match Self::existing(path) {
                Ok(None) => {}
                Ok(found) => return Ok(found),
                Err(reason) => wrong = wrong.or(Some(reason)),
            }
        }
        wrong.map_or(Ok(None), Err)
    }

    fn make(path: &Path) -> Result<Self, FabricError> {
        match rustix::fs::mkdirat(CWD, path, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(reason) => {
                let text = format!(
                    "{}: {}; set {SETTING} to a folder of your own",
                    path.display(),
                    io::Error::from(reason)
                );
                let kind = io::Error::from(reason).kind();
                return Err(FabricError::System("folder of names", io::Error::new(kind, text)));
            }
        }
        Self::existing(path)?.ok_or(FabricError::Unknown("folder of names"))
    }

    /// Opens and checks it; `None` if nothing exists.
    fn existing(path: &Path) -> Result<Option<Self>, FabricError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let descriptor = match rustix::fs::openat(CWD, path, flags, Mode::empty()) {
            Ok(descriptor) => descriptor,
            Err(Errno::NOENT) => return Ok(None),
            Err(Errno::LOOP | Errno::NOTDIR) => {
                return Err(wrong(path, "is a link or a file, or below one"));
            }
            Err(Errno::ACCESS) => {
                let stat = rustix::fs::statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW);
                return Err(match stat {
                    Ok(stat) => wrong(path, &format!("belongs to user {}", stat.st_uid)),
                    Err(_) => wrong(path, "cannot be reached"),
                });
            }
            Err(reason) => return Err(system("folder of names")(reason)),
        };
        let stat = rustix::fs::fstat(&descriptor).map_err(system("folder of names"))?;
        if stat.st_uid != user::own() {
            return Err(wrong(path, &format!("belongs to user {}", stat.st_uid)));
        }
        let mode = Mode::from_raw_mode(stat.st_mode).bits() & 0o777;
        if mode != 0o700 {
            let text = format!("has mode {mode:03o}, so that others may have names in it");
            return Err(wrong(path, &text));
        }
        let kind = rustix::fs::fstatfs(&descriptor).map_err(system("folder of names"))?.f_type;
        if let Some(name) = parents::shared_between_hosts(kind) {
            let text = format!(
                "is on a file system that hosts may share ({name}), where names of other hosts are not \
                 told from those of ended processes"
            );
            return Err(misplaced(path, &text));
        }
        if let Some(fault) = parents::judge(path).map_err(system("folder of names"))? {
            return Err(misplaced(path, &format!("can be replaced by others: {fault}")));
        }
        Ok(Some(Self { path: path.to_owned(), descriptor }))
    }

    /// Returns the address of one of its sockets: by its path if that fits, since programs that clean
    /// `/tmp` recognize live sockets by it, otherwise by the descriptor.
    fn address(&self, file: &[u8]) -> Result<SocketAddrUnix, FabricError> {
        let path = self.path.join(OsStr::from_bytes(file));
        let through = || {
            let folder = format!("/proc/self/fd/{}", self.descriptor.as_raw_fd());
            SocketAddrUnix::new(Path::new(&folder).join(OsStr::from_bytes(file)))
        };
        SocketAddrUnix::new(&path).or_else(|_| through()).map_err(system("address of a name"))
    }

    /// Binds a socket to a name, after removing the sockets of killed processes.
    ///
    /// # Errors
    /// `AddressInUse`, `System`.
    pub(crate) fn bind(self, socket: OwnedFd, name: &str) -> Result<Listener, FabricError> {
        let file = file_of(name);
        let lock = self.lock()?;
        self.sweep();
        match rustix::net::bind(&socket, &self.address(&file)?) {
            Ok(()) => {}
            Err(Errno::ADDRINUSE) => return Err(FabricError::AddressInUse(name.to_owned())),
            Err(reason) => return Err(system("bind")(reason)),
        }
        let inode = self.inode(&file);
        drop(lock);
        Ok(Listener { socket, folder: self, file, inode })
    }

    /// Returns the address of a name, to connect to.
    pub(crate) fn address_of(&self, name: &str) -> Result<SocketAddrUnix, FabricError> {
        self.address(&file_of(name))
    }

    /// The names at which processes listen.
    pub(crate) fn names(&self) -> Vec<String> {
        let live = self.files().into_iter().filter(|file| self.is_live(file));
        let mut names: Vec<_> = live.filter_map(|file| name_of(&file)).collect();
        names.sort();
        names
    }

    fn lock(&self) -> Result<Lock, FabricError> {
        // Its own description: two threads of a process do not share a lock.
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let own = rustix::fs::openat(&self.descriptor, ".", flags, Mode::empty())
            .map_err(system("folder of names"))?;
        for _ in 0..LOCK_TRIES {
            match rustix::fs::flock(&own, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Lock(own)),
                Err(Errno::WOULDBLOCK) => pause(Duration::from_millis(1)),
                Err(Errno::INTR) => {}
                Err(reason) => return Err(system("lock of the folder of names")(reason)),
            }
        }
        let text = format!(
            "a process holds the lock of {} and does not run: continue or end it",
            self.path.display()
        );
        let reason = io::Error::new(io::ErrorKind::TimedOut, text);
        Err(FabricError::System("lock of the folder of names", reason))
    }

    /// Removes the sockets of dead processes. Called under the lock.
    fn sweep(&self) {
        for file in self.files() {
            if self.is_dead(&file) {
                // Should it stay, the next listener finds it again.
                let _ = rustix::fs::unlinkat(&self.descriptor, &file[..], AtFlags::empty());
            }
        }
    }

    /// Returns the sockets in the folder.
    fn files(&self) -> Vec<Vec<u8>> {
        let Ok(entries) = Dir::read_from(&self.descriptor) else {
            return Vec::new();
        };
        let names = entries.flatten().map(|entry| entry.file_name().to_bytes().to_vec());
        names.filter(|file| self.stat(file).is_some()).collect()
    }

    fn stat(&self, file: &[u8]) -> Option<Stat> {
        let stat = rustix::fs::statat(&self.descriptor, file, AtFlags::SYMLINK_NOFOLLOW).ok()?;
        (FileType::from_raw_mode(stat.st_mode) == FileType::Socket).then_some(stat)
    }

    fn inode(&self, file: &[u8]) -> Option<u64> {
        self.stat(file).map(|stat| stat.st_ino)
    }

    /// Returns whether no process has a socket at this name any more. A live one is found before its type is
    /// compared, and notices nothing.
    fn is_dead(&self, file: &[u8]) -> bool {
        self.probe(file) == Some(Errno::CONNREFUSED)
    }

    /// Whether a process has one, as far as the kernel tells. A listener may have removed a dead one meanwhile.
    pub(crate) fn is_live(&self, file: &[u8]) -> bool {
        !matches!(self.probe(file), Some(Errno::CONNREFUSED | Errno::NOENT))
    }

    /// Why a socket of another type does not connect there: a live one is found before its type is compared, and
    /// is not disturbed.
    fn probe(&self, file: &[u8]) -> Option<Errno> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let address = self.address(file).ok()?;
        let probe = rustix::net::socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None);
        rustix::net::connect(&probe.ok()?, &address).err()
    }
}

/// Returns the names at which ports of this user listen, in order; not those whose file is named by a
/// hash. Calls the kernel twice for each.
///
/// # Errors
/// `NotPermitted` if the user's folder is not valid, `System`.
pub fn listening() -> Result<Vec<String>, FabricError> {
    Ok(NamesFolder::find(None)?.map(|folder| folder.names()).unwrap_or_default())
}

/// Returns the path of the user's folder, for display.
pub(crate) fn folder() -> String {
    let found = NamesFolder::find(None).ok().flatten();
    found.map_or_else(|| "no folder".to_owned(), |found| found.path.display().to_string())
}

/// Refuses a folder, with the remedy.
fn wrong(path: &Path, what: &str) -> FabricError {
    let path = path.display();
    FabricError::NotPermitted(format!(
        "{path} {what}; names of ports need a folder of user {} with mode 700: remove {path} (as its \
         owner or as root), or set {SETTING} to a folder of your own in every process",
        user::own()
    ))
}

/// Refuses the location of a folder, with the remedy.
fn misplaced(path: &Path, what: &str) -> FabricError {
    FabricError::NotPermitted(format!(
        "{} {what}; names of ports need a folder of user {} with mode 700 that no other user or host can \
         change: set {SETTING} to one in every process",
        path.display(),
        user::own()
    ))
}

/// A socket that is bound to a name, and frees the name when dropped.
pub(crate) struct Listener {
    socket: OwnedFd,
    folder: NamesFolder,
    file: Vec<u8>,
    inode: Option<u64>,
}

impl Drop for Listener {
    fn drop(&mut self) {
        // While this socket lives no other process removes the file, so a file of its inode number is
        // its own.
        if self.inode.is_some() && self.folder.inode(&self.file) == self.inode {
            let folder = &self.folder.descriptor;
            let _ = rustix::fs::unlinkat(folder, &self.file[..], AtFlags::empty());
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> rustix::fd::BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Returns the file of a listen name: the name itself, with `%XX` for characters that a file name
/// cannot have and for `%`, or a hash if that is too long.
fn file_of(name: &str) -> Vec<u8> {
    let mut file = Vec::with_capacity(name.len());
    for (at, byte) in name.bytes().enumerate() {
        match byte {
            b'/' | b'%' | 0 => file.extend(format!("%{byte:02X}").bytes()),
            b'.' if at == 0 => file.extend(b"%2E"),
            byte => file.push(byte),
        }
    }
    match file.len() {
        // No socket can be at the folder itself.
        0 => b"%".to_vec(),
        1..=NAME_BYTES_MAX => file,
        _ => format!("%h{:032x}", hash(name.as_bytes())).into_bytes(),
    }
}

/// Returns the listen name of a file; `None` for a hash, and for files that are none of ours.
fn name_of(file: &[u8]) -> Option<String> {
    let mut name = Vec::with_capacity(file.len());
    let mut rest = file.iter().copied();
    while let Some(byte) = rest.next() {
        name.push(match byte {
            b'%' => {
                let digits = [rest.next()?, rest.next()?];
                u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?
            }
            byte => byte,
        });
    }
    String::from_utf8(name).ok().filter(|name| file_of(name) == file)
}

/// FNV-1a of 128 bits. All names are the user's own, so a collision is of no use to an attacker.
fn hash(bytes: &[u8]) -> u128 {
    const BASIS: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    bytes.iter().fold(BASIS, |hash, byte| (hash ^ u128::from(*byte)).wrapping_mul(PRIME))
}
