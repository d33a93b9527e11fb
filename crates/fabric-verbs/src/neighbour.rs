//! Repeats the kernel's neighbour discovery at once after a link outage.
//!
//! While a network device has no carrier, the kernel drops its neighbour entries and starts discovery
//! (ARP, NDP) for peers to which something is sent. These requests are lost, and the next one follows
//! only after a second, even if the carrier returns meanwhile. So when a port is up again, incomplete
//! entries are deleted by netlink: the next packet then starts discovery at once. That needs
//! `CAP_NET_ADMIN`; without it, discovery takes that second.

use rustix::fd::OwnedFd;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

// linux/netlink.h, linux/rtnetlink.h, linux/neighbour.h
const DONE: u16 = 3;
const ERROR: u16 = 2;
const DELETE: u16 = 29;
const GET: u16 = 30;
const REQUEST: u16 = 1;
const DUMP: u16 = 0x300;
const INCOMPLETE: u16 = 1;
const FAILED: u16 = 0x20;
const DESTINATION: u16 = 1;
const HEADER_BYTES: usize = 16;
const ENTRY_BYTES: usize = 12;
const FAMILY_IPV4: u8 = 2;
const FAMILY_IPV6: u8 = 10;
/// More than the kernel puts into one reply.
const ANSWER_BYTES: usize = 64 << 10;
/// Most replies that are read.
const ANSWERS_MAX: usize = 1024;

/// An incomplete neighbour entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Unknown {
    device: [u8; 4],
    address: IpAddr,
}

/// Deletes the incomplete neighbour entries of these addresses. Returns how many.
///
/// # Errors
/// Errors of the kernel: mostly that this process lacks the capability.
pub(crate) fn forget_questions(peers: &BTreeSet<IpAddr>) -> io::Result<usize> {
    let socket = open()?;
    send(&socket, &message(GET, REQUEST | DUMP, &[0; ENTRY_BYTES]))?;
    let mut unknown = Vec::new();
    let mut answer = vec![0; ANSWER_BYTES];
    for _ in 0..ANSWERS_MAX {
        let (bytes, _) = rustix::net::recv(&socket, &mut answer[..], RecvFlags::empty())?;
        if !take(&answer[..bytes.min(ANSWER_BYTES)], &mut unknown) {
            break;
        }
    }
    unknown.retain(|entry| peers.contains(&entry.address));
    for entry in &unknown {
        // No acknowledgement is requested: a process without the capability fails silently.
        send(&socket, &message(DELETE, REQUEST, &entry.body()))?;
    }
    Ok(unknown.len())
}

fn open() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC;
    let (family, kind) = (AddressFamily::NETLINK, SocketType::RAW);
    // Protocol zero: NETLINK_ROUTE.
    Ok(rustix::net::socket_with(family, kind, flags, None)?)
}

fn send(socket: &OwnedFd, bytes: &[u8]) -> io::Result<()> {
    let kernel = SocketAddrNetlink::new(0, 0);
    rustix::net::sendto(socket, bytes, SendFlags::empty(), &kernel)?;
    Ok(())
}

fn message(kind: u16, flags: u16, body: &[u8]) -> Vec<u8> {
    let length = (HEADER_BYTES + body.len()) as u32;
    let mut bytes = length.to_ne_bytes().to_vec();
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(flags.to_ne_bytes());
    // Sequence number and port id, which are not needed here.
    bytes.extend([0; 8]);
    bytes.extend(body);
    bytes
}

impl Unknown {
    /// Encodes it for a request.
    fn body(&self) -> Vec<u8> {
        let (family, address) = match self.address {
            IpAddr::V4(address) => (FAMILY_IPV4, address.octets().to_vec()),
            IpAddr::V6(address) => (FAMILY_IPV6, address.octets().to_vec()),
        };
        let mut bytes = vec![family, 0, 0, 0];
        bytes.extend(self.device);
        bytes.extend([0; 4]);
        bytes.extend((4 + address.len() as u16).to_ne_bytes());
        bytes.extend(DESTINATION.to_ne_bytes());
        bytes.extend(address);
        bytes
    }

    /// Returns an entry of the kernel's table if it is incomplete or failed.
    fn of(body: &[u8]) -> Option<Self> {
        let (entry, mut attributes) = body.split_at_checked(ENTRY_BYTES)?;
        let state = u16::from_ne_bytes([entry[8], entry[9]]);
        if state & (INCOMPLETE | FAILED) == 0 {
            return None;
        }
        let device = [entry[4], entry[5], entry[6], entry[7]];
        while let Some((head, _)) = attributes.split_first_chunk::<4>() {
            let length = usize::from(u16::from_ne_bytes([head[0], head[1]]));
            let value = attributes.get(4..length)?;
            if u16::from_ne_bytes([head[2], head[3]]) == DESTINATION {
                let address = match entry[0] {
                    FAMILY_IPV4 => Ipv4Addr::from(<[u8; 4]>::try_from(value).ok()?).into(),
                    FAMILY_IPV6 => Ipv6Addr::from(<[u8; 16]>::try_from(value).ok()?).into(),
                    _ => return None,
                };
                return Some(Self { device, address });
            }
            attributes = attributes.get(length.next_multiple_of(4)..)?;
        }
        None
    }
}

/// Takes the entries of one reply. Returns false if it was the last.
fn take(mut answer: &[u8], unknown: &mut Vec<Unknown>) -> bool {
    while let Some((head, _)) = answer.split_first_chunk::<HEADER_BYTES>() {
        let length = u32::from_ne_bytes([head[0], head[1], head[2], head[3]]) as usize;
        let kind = u16::from_ne_bytes([head[4], head[5]]);
        let body = answer.get(HEADER_BYTES..length);
        let (Some(body), false) = (body, kind == DONE || kind == ERROR) else {
            return false;
        };
        unknown.extend(Unknown::of(body));
        let Some(rest) = answer.get(length.next_multiple_of(4)..) else {
            return true;
        };
        answer = rest;
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(state: u16, address: IpAddr) -> Vec<u8> {
        let mut body = Unknown { device: [7, 0, 0, 0], address }.body();
        body[8..10].copy_from_slice(&state.to_ne_bytes());
        message(28, 0, &body)
    }

    #[test]
    fn questions_without_an_answer_are_told_from_neighbours() {
        let four: IpAddr = Ipv4Addr::new(10, 77, 0, 1).into();
        let six: IpAddr = Ipv6Addr::LOCALHOST.into();
        let mut answer = entry(2, Ipv4Addr::new(10, 77, 0, 9).into());
        for (state, address) in [(INCOMPLETE, four), (FAILED, six), (0x80, six)] {
            answer.extend(entry(state, address));
        }
        let mut unknown = Vec::new();
        assert!(take(&answer, &mut unknown));
        let device = [7, 0, 0, 0];
        let expected = [four, six].map(|address| Unknown { device, address });
        assert_eq!(unknown, expected);
        assert!(!take(&message(DONE, 0, &[0; 4]), &mut unknown));
    }

    #[test]
    fn an_answer_that_is_cut_short_or_wrong_is_no_entry() {
        let whole = entry(INCOMPLETE, Ipv4Addr::LOCALHOST.into());
        for length in 0..whole.len() {
            let (mut unknown, mut cut) = (Vec::new(), whole[..length].to_vec());
            take(&cut, &mut unknown);
            if length >= 4 {
                cut[..4].copy_from_slice(&(length as u32).to_ne_bytes());
                take(&cut, &mut unknown);
            }
            assert!(unknown.is_empty(), "{length}");
        }
        for byte in 0..whole.len() {
            for value in [0, 1, 255] {
                let mut wrong = whole.clone();
                wrong[byte] = value;
                take(&wrong, &mut Vec::new());
            }
        }
    }

    #[test]
    fn the_kernel_answers() {
        // Without addresses nothing is deleted.
        assert_eq!(forget_questions(&BTreeSet::new()).ok(), Some(0));
    }
}
