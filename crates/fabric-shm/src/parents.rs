//! Checks whether another user can replace a folder, by its parents, like `StrictModes` of sshd.
//!
//! Each folder from the root down, and each link that is followed, must belong to root or to this user.
//! A folder that others may write must be sticky, so that they can rename and remove only their own
//! entries.

use farside_fabric::user;
use rustix::fd::OwnedFd;
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};

/// Links that are followed, as by the kernel.
const LINKS_MAX: u32 = 40;

/// Checks all folders and links on the path to `path`, which is absolute, but not its last component.
/// Returns the fault of the first of them that another user could change; `None` if there is none.
///
/// # Errors
/// Those of the kernel.
pub(crate) fn judge(path: &Path) -> rustix::io::Result<Option<String>> {
    let mut left = components(path.parent().unwrap_or(path));
    let (mut folder, mut at) = (open(CWD, OsStr::new("/"))?, PathBuf::from("/"));
    let root = rustix::fs::fstat(&folder)?;
    // A namespace of users may have no number for root, which owns the root of its files.
    let trusted = |owner: u32| [0, root.st_uid, user::own()].contains(&owner);
    if let Some(fault) = fault_of(&root, &at, trusted) {
        return Ok(Some(fault));
    }
    let mut links = 0;
    while let Some(name) = left.pop_front() {
        let stat = rustix::fs::statat(&folder, &name, AtFlags::SYMLINK_NOFOLLOW)?;
        let entry = at.join(&name);
        if let Some(fault) = fault_of(&stat, &entry, trusted) {
            return Ok(Some(fault));
        }
        if FileType::from_raw_mode(stat.st_mode) != FileType::Symlink {
            folder = open(&folder, &name)?;
            at = entry;
            continue;
        }
        links += 1;
        if links > LINKS_MAX {
            return Err(Errno::LOOP);
        }
        let target = rustix::fs::readlinkat(&folder, &name, Vec::new())?.into_bytes();
        let target = PathBuf::from(OsString::from_vec(target));
        if target.is_absolute() {
            (folder, at) = (open(CWD, OsStr::new("/"))?, PathBuf::from("/"));
        }
        let mut first = components(&target);
        first.append(&mut left);
        left = first;
    }
    Ok(None)
}

/// Returns the names to walk, in order; the root is the start.
fn components(path: &Path) -> VecDeque<OsString> {
    let names = path.components().filter_map(|component| match component {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some(OsString::from("..")),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    });
    names.collect()
}

fn open(folder: impl rustix::fd::AsFd, name: &OsStr) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(folder, name.as_bytes(), flags, Mode::empty())
}

/// Returns why another user can change the target of a folder or a link.
fn fault_of(stat: &Stat, path: &Path, trusted: impl Fn(u32) -> bool) -> Option<String> {
    let (mode, path) = (Mode::from_raw_mode(stat.st_mode), path.display());
    if !trusted(stat.st_uid) {
        return Some(format!("{path} belongs to user {}", stat.st_uid));
    }
    let is_link = FileType::from_raw_mode(stat.st_mode) == FileType::Symlink;
    let writable = mode.intersects(Mode::WGRP | Mode::WOTH) && !mode.contains(Mode::SVTX);
    (writable && !is_link).then(|| {
        let mode = mode.bits() & 0o777;
        format!("{path} has mode {mode:03o}, so that they may write it (chmod go-w {path})")
    })
}

/// Returns the name of a file system that several hosts may have mounted, by its type as reported by
/// `statfs`. FUSE and 9p are not among them: virtual machines and sandboxes have their own root on
/// those, and the kernel does not report what they are backed by.
pub(crate) fn shared_between_hosts(kind: impl Into<i128>) -> Option<&'static str> {
    // Types are 32 bits, which some processors extend by their sign.
    let name = match kind.into() & 0xffff_ffff {
        0x6969 => "nfs",
        0x517b | 0xff53_4d42 | 0xfe53_4d42 => "smb",
        0x00c3_6400 => "ceph",
        0x0bd0_0bd0 => "lustre",
        0x4750_4653 => "gpfs",
        0x0116_1970 => "gfs2",
        0x7461_636f => "ocfs2",
        0x2003_0528 => "orangefs",
        0x1983_0326 => "beegfs",
        0x5346_414f | 0x6b41_4653 => "afs",
        0x7375_7245 => "coda",
        0x564c => "ncp",
        0x786f_4256 => "vboxsf",
        0x00c0_ffee => "hostfs",
        _ => return None,
    };
    Some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_systems_of_several_hosts_are_told_from_those_of_one() {
        let nfs = 0x6969;
        let smb = i64::from(0xff53_4d42_u32.cast_signed());
        assert_eq!(
            (shared_between_hosts(nfs), shared_between_hosts(smb)),
            (Some("nfs"), Some("smb"))
        );
        let (tmpfs, ext4, overlay, xfs, btrfs) =
            (0x0102_1994, 0xef53, 0x794c_7630, 0x5846_5342, 0x9123_683e_u32);
        let (fuse, plan9) = (0x6573_5546, 0x0102_1997);
        for kind in [tmpfs, ext4, overlay, xfs, btrfs, fuse, plan9] {
            assert_eq!(shared_between_hosts(kind), None, "{kind:x}");
        }
    }
}
