//! The frame that a link is receiving: its header, and where the bytes of its body are stored.
//!
//! *Words and order of a WRITE*: bytes are stored in rising order by `Arena::write`. A cut of the
//! stream never tears an aligned word: up to seven bytes of an incomplete word are carried over. Bytes
//! of READs and messages, and of WRITEs to relaxed-ordering regions, may also be received directly from
//! the socket into their memory, since their order is not promised.

use crate::queues::{PortQueues, PostedReceive};
use crate::wire::{HEADER_MAX, RequestHeader, Short};
use farside_base::RegionId;
use farside_fabric::Arena;

/// The decoder's state: the position within the current frame.
pub(crate) struct Incoming {
    pub(crate) header: [u8; HEADER_MAX],
    pub(crate) have: usize,
    pub(crate) body: IncomingBody,
    /// Most of the last body could be received directly.
    pub(crate) long: bool,
}

/// The kind of body that follows the last header.
pub(crate) enum IncomingBody {
    None,
    Drop { left: usize },
    Write(IncomingWrite),
    Message { request: RequestHeader, posted: PostedReceive, at: u64, left: usize },
    Bytes { left: usize, last: bool },
    Control { short: Short, bytes: Vec<u8> },
}

/// A WRITE that is being received.
pub(crate) struct IncomingWrite {
    pub(crate) request: RequestHeader,
    pub(crate) region: RegionId,
    pub(crate) arena: Arena,
    /// The region has relaxed ordering: neither order nor whole words are promised.
    pub(crate) relaxed: bool,
    pub(crate) receive: Option<PostedReceive>,
    /// The offset of the next byte, carried ones included.
    pub(crate) at: u64,
    pub(crate) left: usize,
    pub(crate) carry: [u8; 8],
    pub(crate) carried: usize,
}

impl Incoming {
    pub(crate) fn new() -> Self {
        Self { header: [0; HEADER_MAX], have: 0, body: IncomingBody::None, long: false }
    }

    /// Returns whether the next body is likely to be received directly.
    pub(crate) fn expects_long(&self) -> bool {
        self.long
    }

    /// Discards what is still to arrive for a deregistered region. Returns whether a request was in
    /// flight.
    pub(crate) fn end_region(&mut self, ended: RegionId, queues: &mut PortQueues) -> bool {
        match &mut self.body {
            IncomingBody::Write(writing) if writing.region == ended => {
                let left = writing.left;
                if let Some(posted) = writing.receive.take() {
                    queues.give_back(posted);
                }
                self.body = IncomingBody::Drop { left };
                true
            }
            _ => false,
        }
    }

    /// Returns the receive of an incomplete message to its queue when the link ends.
    pub(crate) fn end(&mut self, queues: &mut PortQueues) {
        let posted = match std::mem::replace(&mut self.body, IncomingBody::None) {
            IncomingBody::Write(writing) => writing.receive,
            IncomingBody::Message { posted, .. } => Some(posted),
            _ => None,
        };
        if let Some(posted) = posted {
            queues.give_back(posted);
        }
    }
}

impl IncomingWrite {
    /// Stores as many of `bytes` as make whole words, and carries the rest.
    #[inline]
    pub(crate) fn land(&mut self, bytes: &[u8]) {
        self.left -= bytes.len();
        if self.relaxed {
            self.put(bytes);
            return;
        }
        let mut bytes = bytes;
        while self.carried > 0 && !bytes.is_empty() {
            self.carry[self.carried] = bytes[0];
            self.carried += 1;
            bytes = &bytes[1..];
            let end = self.at + self.carried as u64;
            if end.is_multiple_of(8) {
                self.put_carry();
            }
        }
        let end = self.at + self.carried as u64 + bytes.len() as u64;
        let whole = if self.left == 0 || self.carried > 0 {
            bytes.len()
        } else {
            bytes.len().saturating_sub((end % 8) as usize)
        };
        if self.carried == 0 {
            let (now, later) = bytes.split_at(whole);
            self.put(now);
            self.carry[..later.len()].copy_from_slice(later);
            self.carried = later.len();
        }
        if self.left == 0 {
            self.put_carry();
        }
    }

    fn put_carry(&mut self) {
        let (carry, carried) = (self.carry, std::mem::take(&mut self.carried));
        self.put(&carry[..carried]);
    }

    fn put(&mut self, bytes: &[u8]) {
        // Bounds were checked when the request began, and memory does not shrink.
        let _ = self.arena.write(self.at, bytes);
        self.at += bytes.len() as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::FrameKind;

    /// However a WRITE is cut, every byte lands once, and an aligned word at once.
    #[test]
    fn cuts_tear_no_words() {
        let data: Vec<u8> = (1..=200).collect();
        for start in 0..9_u64 {
            for cut in 1..20 {
                for length in [0, 1, 7, 8, 9, 64, 193] {
                    let arena = Arena::heap(256);
                    let request = RequestHeader {
                        kind: FrameKind::Write,
                        flags: 0,
                        bytes: length as u32,
                        sequence: 0,
                        acknowledged: 0,
                        region: 0,
                        immediate: 0,
                        key: 0,
                        offset: start,
                        value: 0,
                        operands: [0; 4],
                    };
                    let mut writing = IncomingWrite {
                        request,
                        region: RegionId(0),
                        arena: arena.clone(),
                        relaxed: false,
                        receive: None,
                        at: start,
                        left: length,
                        carry: [0; 8],
                        carried: 0,
                    };
                    for piece in data[..length].chunks(cut) {
                        writing.land(piece);
                        for at in (0..248).step_by(8) {
                            let inside = at >= start && at + 8 <= start + length as u64;
                            let mut word = [0; 8];
                            arena.read(at, &mut word).unwrap();
                            let some = word.iter().filter(|byte| **byte != 0).count();
                            assert!(!inside || some == 0 || some == 8, "torn at {at}: {word:?}");
                        }
                    }
                    let mut back = vec![0; 256];
                    arena.read(0, &mut back).unwrap();
                    let (from, to) = (start as usize, start as usize + length);
                    assert_eq!(back[from..to], data[..length], "{start} {cut} {length}");
                    assert!(back[..from].iter().chain(&back[to..]).all(|byte| *byte == 0));
                }
            }
        }
    }
}
