//! What a half wants done: work requests and receives, as values without borrows. The runtime turns
//! them into work of the fabric, in order, and empties the lists; they keep their room, so that
//! nothing is allocated once they have been as long as they get.

use super::half::Peer;
use alloc::vec::Vec;
use core::ops::Range;
use farside_base::{LocalSlice, Operation, RemoteSlice, Source};

/// A half's name for one of its requests or receives; comes back when it is completed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Name(pub u32);

/// Where the bytes of a request are, within [`Effects`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Bytes {
    Inline { start: u32, end: u32 },
    Gather { start: u32, end: u32 },
}

impl Bytes {
    const fn range(start: u32, end: u32) -> Range<usize> {
        start as usize..end as usize
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Action {
    Write { source: Bytes, to: RemoteSlice, immediate: Option<u32> },
    Read { into: Bytes, from: RemoteSlice },
    FetchAdd { at: RemoteSlice, add: u64, into: LocalSlice },
    Send { source: Bytes, immediate: Option<u32> },
}

/// One work request.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Request {
    /// To whom.
    pub peer: Peer,
    /// The half's name for it.
    pub name: Name,
    /// Whether its success is to be told.
    pub signalled: bool,
    /// Whether it starts only after earlier READs and atomics to that peer have completed.
    pub fence: bool,
    action: Action,
}

/// A WRITE of inline bytes that is to be posted at once: of one message, or of several that lie side
/// by side.
#[derive(Clone, Debug)]
pub struct Record {
    bytes: [u8; Self::BYTES_MAX],
    /// Which of them are used.
    start: usize,
    end: usize,
    bytes_max: usize,
    /// Whether there is a message, which may have no bytes.
    filled: bool,
    to: RemoteSlice,
    immediate: Option<u32>,
}

impl Record {
    /// Most bytes of one.
    pub const BYTES_MAX: usize = 2048;

    /// An empty one for at most so many bytes.
    pub fn new(bytes_max: usize) -> Self {
        let to = RemoteSlice { region: farside_base::RemoteRegionId(0), offset: 0 };
        let bytes_max = bytes_max.min(Self::BYTES_MAX);
        let bytes = [0; Self::BYTES_MAX];
        Self { bytes, start: 0, end: 0, bytes_max, filled: false, to, immediate: None }
    }

    /// Whether nothing is in it.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        !self.filled
    }

    /// Empties it.
    #[inline]
    pub const fn clear(&mut self) {
        self.filled = false;
    }

    /// Puts a message above those that it has, padded before it to eight bytes, between two words;
    /// false when it does not lie there, or is too long.
    #[inline]
    pub(super) fn above(
        &mut self,
        before: u64,
        message: &[u8],
        behind: u64,
        to: RemoteSlice,
    ) -> bool {
        let padded = message.len().next_multiple_of(8);
        let start = if self.filled { self.end } else { 0 };
        let end = start + padded + 16;
        let next = self.to.offset + (start - self.start) as u64;
        if (self.filled && !self.adjoins(to, next)) || end > self.bytes_max {
            return false;
        }
        if !self.frame(start..end, before, message, behind) {
            return false;
        }
        if !self.filled {
            (self.filled, self.start, self.to, self.immediate) = (true, 0, to, None);
        }
        self.end = end;
        true
    }

    /// Puts a message below those that it has, its last word upon the first one of the lowest, padded
    /// before it to eight bytes, behind a zero; false when it does not lie there, or is too long.
    #[inline]
    pub(super) fn below(&mut self, message: &[u8], behind: u64, to: RemoteSlice) -> bool {
        let bytes = message.len().next_multiple_of(8) + 16;
        let end = if self.filled { self.start + 8 } else { self.bytes_max };
        let first = (self.to.offset + 8).wrapping_sub(bytes as u64);
        if self.filled && !self.adjoins(to, first) {
            return false;
        }
        let Some(start) = end.checked_sub(bytes) else { return false };
        if !self.frame(start..end, 0, message, behind) {
            return false;
        }
        if !self.filled {
            (self.filled, self.end, self.immediate) = (true, end, None);
        }
        (self.start, self.to) = (start, to);
        true
    }

    #[inline]
    fn adjoins(&self, to: RemoteSlice, offset: u64) -> bool {
        self.immediate.is_none() && to.region == self.to.region && to.offset == offset
    }

    /// A word, zeroes, a message against the word behind it.
    #[inline]
    fn frame(&mut self, range: Range<usize>, before: u64, message: &[u8], behind: u64) -> bool {
        let Some(place) = self.bytes.get_mut(range) else { return false };
        let Some((place, last)) = place.split_last_chunk_mut() else { return false };
        *last = behind.to_le_bytes();
        let padded = place.len().checked_sub(message.len());
        let Some((head, body)) = padded.and_then(|padded| place.split_at_mut_checked(padded))
        else {
            return false;
        };
        // Padding is shorter than a word: the message covers what of this is not padding.
        if let Some((word, padding)) = head.split_first_chunk_mut() {
            *word = before.to_le_bytes();
            for byte in padding {
                *byte = 0;
            }
        }
        body.copy_from_slice(message);
        true
    }

    /// Takes a message with immediate data, which is alone; false when it has another one, or this is
    /// too long.
    #[inline]
    pub(super) fn fill(&mut self, message: &[u8], to: RemoteSlice, immediate: u32) -> bool {
        let fits = !self.filled && message.len() <= self.bytes_max;
        let place = self.bytes.get_mut(..message.len()).filter(|_| fits);
        let Some(place) = place else { return false };
        place.copy_from_slice(message);
        (self.filled, self.start, self.end) = (true, 0, message.len());
        (self.to, self.immediate) = (to, Some(immediate));
        true
    }

    #[inline]
    fn bytes(&self) -> &[u8] {
        self.bytes.get(self.start..self.end).unwrap_or_default()
    }

    /// What it asks of the fabric.
    #[inline]
    pub fn operation(&self) -> Operation<'_> {
        let source = Source::Inline(self.bytes());
        Operation::Write { source, to: self.to, immediate: self.immediate }
    }
}

/// One receive to be posted.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Posting {
    /// From whom; without meaning where all peers share the receives.
    pub peer: Peer,
    /// The half's name for it.
    pub name: Name,
    /// Where the message goes.
    pub into: LocalSlice,
}

/// How a request is treated: told when it succeeded, or only when it failed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Told {
    /// Its success comes back as a completion.
    Yes,
    /// Only its failure does.
    No,
}

/// Everything that a half wants done, in order.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Effects {
    requests: Vec<Request>,
    slices: Vec<LocalSlice>,
    bytes: Vec<u8>,
    postings: Vec<Posting>,
    /// Most bytes of one request made of several.
    joined_bytes_max: u32,
}

impl Effects {
    /// Nothing, with room for a batch. WRITEs without immediate of inline bytes that lie one behind
    /// the other become one WRITE of up to `inline_bytes_max` bytes: its bytes land in the order in
    /// which those of the WRITEs would.
    pub fn new(inline_bytes_max: u32) -> Self {
        Self {
            joined_bytes_max: inline_bytes_max,
            requests: Vec::with_capacity(256),
            slices: Vec::with_capacity(512),
            bytes: Vec::with_capacity(8192),
            postings: Vec::with_capacity(256),
        }
    }

    /// The requests, in the order in which they are to be posted.
    #[inline]
    pub fn requests(&self) -> &[Request] {
        &self.requests
    }

    /// The receives, to be posted before the requests.
    #[inline]
    pub fn postings(&self) -> &[Posting] {
        &self.postings
    }

    /// What a request of [`Self::requests`] asks of the fabric.
    #[inline]
    pub fn operation<'a>(&'a self, request: &'a Request) -> Operation<'a> {
        match request.action {
            Action::Write { source, to, immediate } => {
                Operation::Write { source: self.source(source), to, immediate }
            }
            Action::Read { into, from } => Operation::Read { into: self.slices(into), from },
            Action::FetchAdd { at, add, into } => Operation::FetchAdd { at, add, into },
            Action::Send { source, immediate } => {
                Operation::Send { source: self.source(source), immediate }
            }
        }
    }

    #[inline]
    fn source(&self, bytes: Bytes) -> Source<'_> {
        match bytes {
            Bytes::Inline { start, end } => {
                Source::Inline(self.bytes.get(Bytes::range(start, end)).unwrap_or_default())
            }
            Bytes::Gather { .. } => Source::Gather(self.slices(bytes)),
        }
    }

    #[inline]
    fn slices(&self, bytes: Bytes) -> &[LocalSlice] {
        match bytes {
            Bytes::Inline { .. } => &[],
            Bytes::Gather { start, end } => {
                self.slices.get(Bytes::range(start, end)).unwrap_or_default()
            }
        }
    }

    /// Adds a record that could not be posted at once.
    pub fn keep(&mut self, peer: Peer, record: &Record) {
        let source = self.inline(&[record.bytes()]);
        let action = Action::Write { source, to: record.to, immediate: record.immediate };
        self.push(peer, Name(0), Told::No, action);
    }

    /// Forgets the first `count` requests, which have been posted; of all of them the memory behind
    /// them too.
    #[inline]
    pub fn posted(&mut self, count: usize) {
        if count >= self.requests.len() {
            self.requests.clear();
            self.slices.clear();
            self.bytes.clear();
        } else {
            self.requests.drain(..count);
        }
    }

    /// Forgets the requests to a peer that is gone: another one may get its number.
    pub fn forget(&mut self, peer: Peer) {
        self.requests.retain(|request| request.peer != peer);
        if self.requests.is_empty() {
            self.posted(0);
        }
    }

    /// Forgets the receives, which have been posted.
    #[inline]
    pub fn receives_posted(&mut self) {
        self.postings.clear();
    }

    /// Whether nothing is to be done.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty() && self.postings.is_empty()
    }

    /// A source made of `parts`, copied now, to be sent inline.
    #[inline]
    fn inline(&mut self, parts: &[&[u8]]) -> Bytes {
        let start = self.bytes.len() as u32;
        for part in parts {
            self.bytes.extend_from_slice(part);
        }
        Bytes::Inline { start, end: self.bytes.len() as u32 }
    }

    /// A source made of slices of local regions, empty ones left out.
    #[inline]
    fn gather(&mut self, parts: &[&[LocalSlice]]) -> Bytes {
        let start = self.slices.len() as u32;
        for part in parts {
            self.slices.extend(part.iter().filter(|slice| slice.bytes > 0));
        }
        Bytes::Gather { start, end: self.slices.len() as u32 }
    }

    #[inline]
    fn push(&mut self, peer: Peer, name: Name, told: Told, action: Action) {
        let signalled = told == Told::Yes;
        self.requests.push(Request { peer, name, signalled, fence: false, action });
    }

    /// WRITE of `parts`, inline.
    #[inline]
    pub(super) fn write_inline(
        &mut self,
        peer: Peer,
        name: Name,
        told: Told,
        parts: &[&[u8]],
        to: RemoteSlice,
        immediate: Option<u32>,
    ) {
        if immediate.is_none() && told == Told::No && self.join(peer, parts, to) {
            return;
        }
        let source = self.inline(parts);
        self.push(peer, name, told, Action::Write { source, to, immediate });
    }

    /// Adds to the last request a WRITE that goes on where that one ends.
    #[inline]
    fn join(&mut self, peer: Peer, parts: &[&[u8]], to: RemoteSlice) -> bool {
        let here = self.bytes.len() as u32;
        let Some(last) = self.requests.last_mut() else {
            return false;
        };
        let Action::Write {
            source: Bytes::Inline { start, end },
            to: RemoteSlice { region, offset },
            immediate: None,
        } = &mut last.action
        else {
            return false;
        };
        let joined = *end - *start;
        let more: usize = parts.iter().map(|part| part.len()).sum();
        let fits = *end == here
            && last.peer == peer
            && !last.signalled
            && *region == to.region
            && *offset + u64::from(joined) == to.offset
            && more as u64 + u64::from(joined) <= u64::from(self.joined_bytes_max);
        if fits {
            *end = here + more as u32;
            for part in parts {
                self.bytes.extend_from_slice(part);
            }
        }
        fits
    }

    /// WRITE of slices of local regions.
    #[inline]
    pub(super) fn write_gather(
        &mut self,
        peer: Peer,
        name: Name,
        told: Told,
        parts: &[&[LocalSlice]],
        to: RemoteSlice,
        immediate: Option<u32>,
    ) {
        let source = self.gather(parts);
        self.push(peer, name, told, Action::Write { source, to, immediate });
    }

    /// SEND of `parts`, inline.
    #[inline]
    pub(super) fn send_inline(
        &mut self,
        peer: Peer,
        name: Name,
        told: Told,
        parts: &[&[u8]],
        immediate: Option<u32>,
    ) {
        let source = self.inline(parts);
        self.push(peer, name, told, Action::Send { source, immediate });
    }

    /// SEND of slices of local regions.
    #[inline]
    pub(super) fn send_gather(
        &mut self,
        peer: Peer,
        name: Name,
        told: Told,
        parts: &[&[LocalSlice]],
        immediate: Option<u32>,
    ) {
        let source = self.gather(parts);
        self.push(peer, name, told, Action::Send { source, immediate });
    }

    /// READ.
    #[inline]
    pub(super) fn read(&mut self, peer: Peer, name: Name, into: LocalSlice, from: RemoteSlice) {
        self.read_scatter(peer, name, &[into], from);
    }

    /// READ into slices of local regions, one after the other, empty ones left out.
    #[inline]
    pub(super) fn read_scatter(
        &mut self,
        peer: Peer,
        name: Name,
        into: &[LocalSlice],
        from: RemoteSlice,
    ) {
        let into = self.gather(&[into]);
        self.push(peer, name, Told::Yes, Action::Read { into, from });
    }

    /// FETCH_ADD.
    #[inline]
    pub(super) fn fetch_add(
        &mut self,
        peer: Peer,
        name: Name,
        at: RemoteSlice,
        add: u64,
        into: LocalSlice,
    ) {
        self.push(peer, name, Told::Yes, Action::FetchAdd { at, add, into });
    }

    /// Posts a receive.
    #[inline]
    pub(super) fn receive(&mut self, peer: Peer, name: Name, into: LocalSlice) {
        self.postings.push(Posting { peer, name, into });
    }
}
