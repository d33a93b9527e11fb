//! A buffer of bytes to be sent.

/// A queue of bytes that keeps its memory, so that nothing is allocated or cleared after warm-up.
#[derive(Default)]
pub(crate) struct Staged {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
}

/// Capacity that is kept while the queue is empty.
const KEPT_MAX: usize = 256 << 10;

impl Staged {
    /// Returns the queued bytes, oldest first.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    pub(crate) fn len(&self) -> usize {
        self.end - self.start
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns room for `count` further bytes, all of which the caller fills.
    #[inline]
    pub(crate) fn room(&mut self, count: usize) -> &mut [u8] {
        if self.bytes.len() - self.end < count {
            self.make_room(count);
        }
        let room = &mut self.bytes[self.end..self.end + count];
        self.end += count;
        room
    }

    #[cold]
    fn make_room(&mut self, count: usize) {
        self.bytes.copy_within(self.start..self.end, 0);
        self.end -= self.start;
        self.start = 0;
        let needed = self.end + count;
        if self.bytes.len() < needed {
            self.bytes.resize(needed.next_power_of_two(), 0);
        }
    }

    /// Appends bytes.
    #[inline]
    pub(crate) fn extend(&mut self, bytes: &[u8]) {
        self.room(bytes.len()).copy_from_slice(bytes);
    }

    /// Removes sent bytes.
    pub(crate) fn gone(&mut self, count: usize) {
        self.start += count;
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
            if self.bytes.len() > KEPT_MAX {
                self.bytes = Vec::new();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_go_in_the_order_in_which_they_came() {
        let (mut staged, mut next_in, mut next_out) = (Staged::default(), 0_u8, 0_u8);
        for round in 0..2000_usize {
            for place in staged.room(round * 7 % 300) {
                *place = next_in;
                next_in = next_in.wrapping_add(1);
            }
            let count = (round * 13 % 310).min(staged.len());
            for byte in &staged.bytes()[..count] {
                assert_eq!(*byte, next_out);
                next_out = next_out.wrapping_add(1);
            }
            staged.gone(count);
        }
        staged.extend(b"end");
        assert!(staged.bytes().ends_with(b"end") && !staged.is_empty());
    }
}
