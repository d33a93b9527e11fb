//! The messages in flight that still need their source.

use super::half::Sending;

/// Up to 64 messages with sources in use, completed in any order.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(super) struct Window {
    /// The oldest message that may still be in use.
    first: u64,
    /// The next message's number.
    next: u64,
    /// Bit `number % 64`: in use.
    busy: u64,
}

impl Window {
    /// The capacity in messages.
    pub(super) const MESSAGES: u32 = 64;

    /// Whether there is room for one more.
    #[inline]
    pub(super) const fn has_room(&self) -> bool {
        self.next - self.first < Self::MESSAGES as u64
    }

    /// The index of the next message in staging memory: its number modulo the window.
    #[inline]
    pub(super) const fn next_place(&self) -> u32 {
        (self.next % Self::MESSAGES as u64) as u32
    }

    /// Adds a message with a source that stays in use. Requires room.
    #[inline]
    pub(super) const fn take(&mut self) -> Sending {
        self.busy |= 1 << (self.next % Self::MESSAGES as u64);
        self.next += 1;
        Sending(self.next - 1)
    }

    /// Adds a message with a source that is free already.
    #[inline]
    pub(super) const fn take_done(&mut self) -> Sending {
        self.next += 1;
        if self.busy == 0 {
            self.first = self.next;
        }
        Sending(self.next - 1)
    }

    /// Completes the message at this index.
    #[inline]
    pub(super) const fn done(&mut self, place: u32) {
        self.busy &= !(1 << (place % Self::MESSAGES));
        while self.first < self.next && self.busy & (1 << (self.first % 64)) == 0 {
            self.first += 1;
        }
    }

    /// Frees all sources: the peer is gone.
    pub(super) const fn clear(&mut self) {
        self.busy = 0;
        self.first = self.next;
    }

    /// Whether a message's source is free.
    #[inline]
    pub(super) const fn is_done(&self, sending: Sending) -> bool {
        sending.0 < self.first
            || (sending.0 < self.next && self.busy & (1 << (sending.0 % 64)) == 0)
    }

    /// Whether no source is in use.
    #[inline]
    pub(super) const fn is_empty(&self) -> bool {
        self.busy == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_become_free_in_any_order() {
        let mut window = Window::default();
        let all: [Sending; 3] = core::array::from_fn(|_| window.take());
        window.done(1);
        assert_eq!(all.map(|one| window.is_done(one)), [false, true, false]);
        window.done(0);
        assert_eq!(all.map(|one| window.is_done(one)), [true, true, false]);
        assert!(!window.is_done(Sending(3)), "not taken yet");
        let free = window.take_done();
        assert!(window.is_done(free) && !window.is_empty());
        window.done(2);
        assert!(window.is_empty());
    }

    #[test]
    fn it_is_full_at_its_size_and_has_room_again() {
        let mut window = Window::default();
        for _ in 0..Window::MESSAGES {
            assert!(window.has_room());
            window.take();
        }
        assert!(!window.has_room());
        window.done(5);
        assert!(!window.has_room(), "the oldest is still in use");
        window.done(0);
        assert!(window.has_room());
        assert_eq!(window.next_place(), 0);
    }
}
