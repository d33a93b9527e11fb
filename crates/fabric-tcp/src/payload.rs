//! Payloads of requests and answers: segments of arena memory, in order.

use farside_fabric::Arena;
use std::collections::vec_deque;

/// Local bytes of a request or an answer.
pub(crate) struct Segment {
    pub(crate) arena: Arena,
    pub(crate) offset: u64,
    pub(crate) bytes: u32,
}

/// The rest of a large payload: an iterator of segments, with offset and length in each.
pub(crate) struct PayloadSegments<'a> {
    first: Option<&'a Segment>,
    segments: vec_deque::Iter<'a, Segment>,
    skip: u64,
    pub(crate) left: u64,
}

impl<'a> PayloadSegments<'a> {
    /// `left` bytes of these segments, after `skip`.
    pub(crate) fn new(segments: vec_deque::Iter<'a, Segment>, skip: u64, left: u64) -> Self {
        Self { first: None, segments, skip, left }
    }

    /// `left` bytes of this segment, after `skip`.
    pub(crate) fn one(segment: Option<&'a Segment>, skip: u64, left: u64) -> Self {
        Self { first: segment, segments: vec_deque::Iter::default(), skip, left }
    }

    /// Nothing.
    pub(crate) fn none() -> Self {
        Self::one(None, 0, 0)
    }
}

impl<'a> Iterator for PayloadSegments<'a> {
    type Item = (&'a Segment, u64, usize);

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        while self.left > 0 {
            let segment = self.first.take().or_else(|| self.segments.next())?;
            let bytes = u64::from(segment.bytes);
            if self.skip >= bytes {
                self.skip -= bytes;
                continue;
            }
            let from = std::mem::take(&mut self.skip);
            let count = (bytes - from).min(self.left);
            self.left -= count;
            return Some((segment, from, count as usize));
        }
        None
    }
}
