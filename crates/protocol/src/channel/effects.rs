//! The actions that a half requests: work requests and receives, as values without borrows. The runtime turns them
//! into work of the fabric, in order, and clears the lists. They keep their capacity, so that nothing is allocated
//! once they have reached their maximum length.

use alloc::vec::Vec;
use core::ops::Range;
use farside_base::{LocalSlice, Operation, RemoteSlice, Source};

/// The number of a peer of a half, below `Shape::peers_max`. For a half with one peer it is [`Peer::ONLY`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Peer(pub u16);

impl Peer {
    /// The peer of a half with only one.
    pub const ONLY: Self = Self(0);
}

/// A half's identifier of one of its requests or receives; returned with its completion.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Name(pub u32);

/// A range of a list of [`Effects`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Span {
    start: u32,
    end: u32,
}

impl Span {
    #[inline]
    fn of<T>(self, list: &[T]) -> &[T] {
        list.get(self.start as usize..self.end as usize).unwrap_or_default()
    }
}

/// The location of a request's bytes: in the list of bytes or of slices.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum BytesLocation {
    Inline(Span),
    Gather(Span),
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum RequestVerb {
    Write { source: BytesLocation, to: RemoteSlice, immediate: Option<u32> },
    Read { into: Span, from: RemoteSlice },
    FetchAdd { at: RemoteSlice, add: u64, into: LocalSlice },
    Send { source: BytesLocation, immediate: Option<u32> },
}

/// One work request.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct PostRequest {
    /// Its target.
    pub peer: Peer,
    /// The half's name for it.
    pub name: Name,
    /// Whether its success is reported by a completion.
    pub signalled: bool,
    /// Whether it starts only after earlier READs and atomics to that peer have completed.
    pub fence: bool,
    action: RequestVerb,
}

/// A WRITE of inline bytes to be posted at once: of one message, or of several adjacent ones.
#[derive(Clone, Debug)]
pub struct InlineWrite {
    bytes: [u8; Self::BYTES_MAX],
    /// The range of used bytes.
    start: usize,
    end: usize,
    bytes_max: usize,
    /// Whether there is a message, which may be empty.
    filled: bool,
    to: RemoteSlice,
    immediate: Option<u32>,
}

impl InlineWrite {
    /// The maximum size of a record in bytes.
    pub const BYTES_MAX: usize = 2048;

    /// Creates an empty record for at most `bytes_max` bytes.
    pub fn new(bytes_max: usize) -> Self {
        let to = RemoteSlice { region: farside_base::RemoteRegionId(0), offset: 0 };
        let bytes_max = bytes_max.min(Self::BYTES_MAX);
        let bytes = [0; Self::BYTES_MAX];
        Self { bytes, start: 0, end: 0, bytes_max, filled: false, to, immediate: None }
    }

    /// Whether it has no message.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        !self.filled
    }

    /// Empties it.
    #[inline]
    pub const fn clear(&mut self) {
        self.filled = false;
    }

    /// Adds a message above the present ones, padded before it to eight bytes, between two words; false if it is not
    /// adjacent, or too long.
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

    /// Adds a message below the present ones; false if it is not adjacent, or too long. Its last word replaces the
    /// first one of the lowest; it is padded before it to eight bytes, after a zero.
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

    /// Builds a word, zeroes, and a message directly before the word that follows it.
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
        // Padding is shorter than a word: the message overwrites the rest of this one.
        if let Some((word, padding)) = head.split_first_chunk_mut() {
            *word = before.to_le_bytes();
            for byte in padding {
                *byte = 0;
            }
        }
        body.copy_from_slice(message);
        true
    }

    /// Adds a message with immediate data, which must be the only one; false if there is another one, or this is too
    /// long.
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

    /// The operation for the fabric.
    #[inline]
    pub fn operation(&self) -> Operation<'_> {
        let source = Source::Inline(self.bytes());
        Operation::Write { source, to: self.to, immediate: self.immediate }
    }
}

/// One receive to be posted.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Posting {
    /// Its sender; meaningless if all peers share the receives.
    pub peer: Peer,
    /// The half's name for it.
    pub name: Name,
    /// The destination of the message.
    pub into: LocalSlice,
}

/// Whether the success of a request is reported, or only its failure.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Notify {
    /// Its success is reported by a completion.
    Yes,
    /// Only its failure is reported.
    No,
}

/// All actions that a half requests, in order.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Effects {
    requests: Vec<PostRequest>,
    slices: Vec<LocalSlice>,
    bytes: Vec<u8>,
    postings: Vec<Posting>,
    /// The maximum size in bytes of a request joined from several.
    joined_bytes_max: u32,
}

impl Effects {
    /// Creates empty lists, with capacity for a batch. Adjacent WRITEs of inline bytes without immediate data are
    /// joined into one WRITE of up to `inline_bytes_max` bytes: its bytes land in the same order as those of the
    /// WRITEs would.
    pub fn new(inline_bytes_max: u32) -> Self {
        Self {
            joined_bytes_max: inline_bytes_max,
            requests: Vec::with_capacity(256),
            slices: Vec::with_capacity(512),
            bytes: Vec::with_capacity(8192),
            postings: Vec::with_capacity(256),
        }
    }

    /// The requests, in the order of posting.
    #[inline]
    pub fn requests(&self) -> &[PostRequest] {
        &self.requests
    }

    /// The receives, to be posted before the requests.
    #[inline]
    pub fn postings(&self) -> &[Posting] {
        &self.postings
    }

    /// The operation of a request of [`Self::requests`] for the fabric.
    #[inline]
    pub fn operation<'a>(&'a self, request: &'a PostRequest) -> Operation<'a> {
        match request.action {
            RequestVerb::Write { source, to, immediate } => {
                Operation::Write { source: self.source(source), to, immediate }
            }
            RequestVerb::Read { into, from } => {
                Operation::Read { into: into.of(&self.slices), from }
            }
            RequestVerb::FetchAdd { at, add, into } => Operation::FetchAdd { at, add, into },
            RequestVerb::Send { source, immediate } => {
                Operation::Send { source: self.source(source), immediate }
            }
        }
    }

    #[inline]
    fn source(&self, bytes: BytesLocation) -> Source<'_> {
        match bytes {
            BytesLocation::Inline(span) => Source::Inline(span.of(&self.bytes)),
            BytesLocation::Gather(span) => Source::Gather(span.of(&self.slices)),
        }
    }

    /// Adds a record that could not be posted at once.
    pub fn keep(&mut self, peer: Peer, record: &InlineWrite) {
        let source = self.inline(&[record.bytes()]);
        let action = RequestVerb::Write { source, to: record.to, immediate: record.immediate };
        self.push(peer, Name(0), Notify::No, action);
    }

    /// Removes the first `count` requests, which have been posted; if no request is left, also clears their bytes.
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

    /// Removes the requests to a peer that is gone: its number may be reused.
    pub fn forget(&mut self, peer: Peer) {
        self.requests.retain(|request| request.peer != peer);
        if self.requests.is_empty() {
            self.posted(0);
        }
    }

    /// Removes the receives, which have been posted.
    #[inline]
    pub fn receives_posted(&mut self) {
        self.postings.clear();
    }

    /// Whether there is no action.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty() && self.postings.is_empty()
    }

    /// Copies `parts` into an inline source.
    #[inline]
    fn inline(&mut self, parts: &[&[u8]]) -> BytesLocation {
        let start = self.bytes.len() as u32;
        for part in parts {
            self.bytes.extend_from_slice(part);
        }
        BytesLocation::Inline(Span { start, end: self.bytes.len() as u32 })
    }

    /// Builds a source of slices of local regions, without empty ones.
    #[inline]
    fn gather(&mut self, parts: &[&[LocalSlice]]) -> Span {
        let start = self.slices.len() as u32;
        for part in parts {
            self.slices.extend(part.iter().filter(|slice| slice.bytes > 0));
        }
        Span { start, end: self.slices.len() as u32 }
    }

    #[inline]
    fn push(&mut self, peer: Peer, name: Name, told: Notify, action: RequestVerb) {
        let signalled = told == Notify::Yes;
        self.requests.push(PostRequest { peer, name, signalled, fence: false, action });
    }

    /// Adds a WRITE of `parts`, inline.
    #[inline]
    pub(super) fn write_inline(
        &mut self,
        peer: Peer,
        name: Name,
        told: Notify,
        parts: &[&[u8]],
        to: RemoteSlice,
        immediate: Option<u32>,
    ) {
        if immediate.is_none() && told == Notify::No && self.join(peer, parts, to) {
            return;
        }
        let source = self.inline(parts);
        self.push(peer, name, told, RequestVerb::Write { source, to, immediate });
    }

    /// Extends the last request by a WRITE that begins at its end.
    #[inline]
    fn join(&mut self, peer: Peer, parts: &[&[u8]], to: RemoteSlice) -> bool {
        let here = self.bytes.len() as u32;
        let Some(last) = self.requests.last_mut() else {
            return false;
        };
        let RequestVerb::Write {
            source: BytesLocation::Inline(Span { start, end }),
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

    /// Adds a WRITE of slices of local regions.
    #[inline]
    pub(super) fn write_gather(
        &mut self,
        peer: Peer,
        name: Name,
        told: Notify,
        parts: &[&[LocalSlice]],
        to: RemoteSlice,
        immediate: Option<u32>,
    ) {
        let source = BytesLocation::Gather(self.gather(parts));
        self.push(peer, name, told, RequestVerb::Write { source, to, immediate });
    }

    /// Adds a SEND of `parts`, inline.
    #[inline]
    pub(super) fn send_inline(
        &mut self,
        peer: Peer,
        name: Name,
        told: Notify,
        parts: &[&[u8]],
        immediate: Option<u32>,
    ) {
        let source = self.inline(parts);
        self.push(peer, name, told, RequestVerb::Send { source, immediate });
    }

    /// Adds a SEND of slices of local regions.
    #[inline]
    pub(super) fn send_gather(
        &mut self,
        peer: Peer,
        name: Name,
        told: Notify,
        parts: &[&[LocalSlice]],
        immediate: Option<u32>,
    ) {
        let source = BytesLocation::Gather(self.gather(parts));
        self.push(peer, name, told, RequestVerb::Send { source, immediate });
    }

    /// Adds a READ.
    #[inline]
    pub(super) fn read(&mut self, peer: Peer, name: Name, into: LocalSlice, from: RemoteSlice) {
        self.read_scatter(peer, name, &[into], from);
    }

    /// Adds a READ into consecutive slices of local regions, without empty ones.
    #[inline]
    pub(super) fn read_scatter(
        &mut self,
        peer: Peer,
        name: Name,
        into: &[LocalSlice],
        from: RemoteSlice,
    ) {
        let into = self.gather(&[into]);
        self.push(peer, name, Notify::Yes, RequestVerb::Read { into, from });
    }

    /// Adds a FETCH_ADD.
    #[inline]
    pub(super) fn fetch_add(
        &mut self,
        peer: Peer,
        name: Name,
        at: RemoteSlice,
        add: u64,
        into: LocalSlice,
    ) {
        self.push(peer, name, Notify::Yes, RequestVerb::FetchAdd { at, add, into });
    }

    /// Adds a receive.
    #[inline]
    pub(super) fn receive(&mut self, peer: Peer, name: Name, into: LocalSlice) {
        self.postings.push(Posting { peer, name, into });
    }
}
