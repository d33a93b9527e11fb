//! The user of this process, and which user numbers reported by the kernel are that user.
//!
//! In a user namespace the kernel reports every user that is not mapped there as one number
//! (`overflowuid`, usually 65534). That number is no identity: two processes that have it may belong to
//! two users.

use std::io::{self, ErrorKind};
use std::sync::OnceLock;

/// The default if the kernel does not report it.
const OVERFLOW_UID: u32 = 65_534;
/// Numbers that a user can have: all of 32 bits but the last, which means no user.
const USERS: u64 = u32::MAX as u64;

/// Returns the number of this process's user. *Cost*: a system call.
pub fn own() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Returns whether the kernel reports this process's user as the number of unmapped users, so that it
/// is indistinguishable from others. *Cost*: reads two files of `/proc`, once for each process.
///
/// # Errors
/// There is no descriptor or memory to read that; it may succeed later.
pub fn is_unmapped() -> io::Result<bool> {
    static UNMAPPED: OnceLock<Option<u32>> = OnceLock::new();
    let unmapped = match UNMAPPED.get() {
        Some(known) => *known,
        None => {
            let overflow_uid = read("/proc/sys/kernel/overflowuid")?;
            let uid_map = read("/proc/self/uid_map")?;
            let found = unmapped_number(overflow_uid.as_deref(), uid_map.as_deref());
            *UNMAPPED.get_or_init(|| found)
        }
    };
    Ok(unmapped == Some(own()))
}

/// Returns `None` if there is no such file.
fn read(path: &str) -> io::Result<Option<String>> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::PermissionDenied) => {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Returns whether `user`, as reported by the kernel, is this process's user, as far as that is known.
pub fn is_own(user: u32) -> bool {
    user == own() && is_unmapped().is_ok_and(|unmapped| !unmapped)
}

/// Returns why a process with an unmapped user is refused, with the remedy.
pub fn why_unmapped() -> String {
    format!(
        "this process runs as user {}, the number of all users that its user namespace does not map: run it as a \
         user that the namespace maps",
        own()
    )
}

/// Returns the number of unmapped users; `None` if every user is mapped, and if the kernel has no user
/// namespaces.
fn unmapped_number(overflow_uid: Option<&str>, uid_map: Option<&str>) -> Option<u32> {
    let number = overflow_uid.and_then(|text| text.trim().parse().ok());
    let Some(uid_map) = uid_map else {
        // If only this file is missing there are no user namespaces; if both are, nothing is known.
        return if number.is_some() { None } else { Some(OVERFLOW_UID) };
    };
    // Lines of the first number inside, the first outside, and how many; they never overlap.
    let counts = uid_map.lines().filter_map(|line| line.split_whitespace().nth(2));
    let mapped: u64 = counts.filter_map(|count| count.parse::<u64>().ok()).sum();
    (mapped < USERS).then(|| number.unwrap_or(OVERFLOW_UID))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_that_a_partial_map_leaves_out_have_one_number() {
        let table = [
            (Some("65534\n"), Some("         0          0 4294967295\n"), None),
            (Some("65534\n"), Some("0 0 1000\n1000 1000 4294966295\n"), None),
            (Some("65534\n"), None, None),
            (Some("65534\n"), Some("         0     100000      65536\n"), Some(65_534)),
            (Some("65534\n"), Some(""), Some(65_534)),
            (Some("99\n"), Some("0 1000 1\n"), Some(99)),
            (None, None, Some(65_534)),
            (Some("x"), Some("x y z"), Some(65_534)),
        ];
        for (overflow_uid, uid_map, number) in table {
            assert_eq!(unmapped_number(overflow_uid, uid_map), number, "{uid_map:?}");
        }
    }
}
