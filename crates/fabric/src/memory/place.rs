//! Placement of memory on NUMA nodes: pages that are elsewhere are moved, and what cannot be moved is an error.
//!
//! | who | may do | when |
//! | --- | --- | --- |
//! | the kernel, for `move_pages` | read the addresses, write one status for each | during the call |
//!
//! `move_pages` changes where the bytes are, and neither the bytes nor their addresses.

use std::io;

/// Most pages of one system call.
pub(super) const PAGES: usize = 1024;

/// Moves the pages at these addresses that are on none of the nodes to the first one.
pub(super) fn place_pages(addresses: &[*mut u8], nodes: &[u32]) -> io::Result<()> {
    let first = nodes.first().and_then(|node| i32::try_from(*node).ok());
    let first = first.ok_or(io::ErrorKind::InvalidInput)?;
    let is_there = |at: &i32| u32::try_from(*at).is_ok_and(|at| nodes.contains(&at));
    let now = move_pages(addresses, None)?;
    let elsewhere: Vec<*mut u8> = addresses
        .iter()
        .zip(&now)
        .filter(|(_, at)| !is_there(at))
        .map(|(address, _)| *address)
        .collect();
    if elsewhere.is_empty() {
        return Ok(());
    }
    let moved = move_pages(&elsewhere, Some(first))?;
    match moved.iter().find(|at| !is_there(at)) {
        None => Ok(()),
        Some(at) if *at < 0 => Err(io::Error::from_raw_os_error(-at)),
        Some(at) => Err(io::Error::other(format!("a page stays on node {at}"))),
    }
}

/// Moves pages of this process to a node, or only asks; returns the node of each, or a negative error number.
fn move_pages(addresses: &[*mut u8], node: Option<i32>) -> io::Result<Vec<i32>> {
    /// Only pages that no other process has mapped.
    const MOVE: libc::c_int = 1 << 1;
    let targets = node.map(|node| vec![node; addresses.len()]);
    let targets = targets.as_ref().map_or(std::ptr::null(), |targets| targets.as_ptr());
    let mut found = vec![-libc::ENOENT; addresses.len()];
    // SAFETY: the kernel reads one address and one target for each page, and writes one status; all three arrays have
    // that many. The addresses are not accessed, and moving a page changes nothing that a program can observe.
    let result = unsafe {
        libc::syscall(
            libc::SYS_move_pages,
            0,
            addresses.len(),
            addresses.as_ptr(),
            targets,
            found.as_mut_ptr(),
            MOVE,
        )
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(found) }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::super::Arena;
    use super::*;

    /// The node on which the first page is.
    fn node_of(arena: &Arena) -> io::Result<i32> {
        let at = arena.at(0, 1).map_err(|_| io::ErrorKind::InvalidInput)?;
        arena.fetch_add(0, 0).map_err(|_| io::ErrorKind::InvalidInput)?;
        Ok(move_pages(&[at], None)?[0])
    }

    #[test]
    fn pages_are_placed_or_an_error_is_returned() {
        let arena = Arena::heap(5 * 4096 + 100);
        arena.write(4096, b"bytes").unwrap();
        let here = match node_of(&arena) {
            Ok(node) => u32::try_from(node).unwrap(),
            Err(reason) => {
                // The system forbids the question: it must not be answered by silence.
                assert_eq!(arena.place(&[0]).unwrap_err().raw_os_error(), reason.raw_os_error());
                return;
            }
        };
        arena.place(&[here]).unwrap();
        arena.place(&[1023, here]).unwrap();
        let mut bytes = [0; 5];
        arena.read(4096, &mut bytes).unwrap();
        assert_eq!(&bytes, b"bytes");
        let refused = arena.place(&[1023]).unwrap_err();
        assert!(refused.raw_os_error().is_some(), "no machine has that node: {refused}");
        assert_eq!(arena.place(&[]).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        arena.part(64, 1).unwrap().place(&[here]).unwrap();
    }
}
