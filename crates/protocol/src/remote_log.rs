//! How a reader of a log in remote memory closes a place whose writer has died.
//!
//! The reader does not know how long the place is. It marks the first word as closing, then those behind it, in order, up
//! to a record or the end of what was reserved: no writer commits there any more. Then it stores the length in the first
//! word. Others may do the same at the same time, or continue where one has stopped.
//!
//! A word behind the first must not be marked before the one in front of it: a record that is committed meanwhile would
//! have its own bytes changed.

/// What the first word of a place says.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum PlaceState {
    /// Nothing was decided: free, reserved, or being written.
    Open,
    /// Some reader closes the place.
    Closing,
    /// Nothing, for this many bytes.
    Void(u64),
    /// Perhaps a record, which takes this many bytes.
    Record(u64),
    /// No first word: bytes of a record that was not committed.
    Other,
}

/// What a [`HoleCloser`] wants to be done.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum CloseStep {
    /// Replace the word at a position by *closing* if it is open, then call [`HoleCloser::marked`].
    Mark(u64),
    /// Find out whether a whole record of this many bytes is at a position, then call [`HoleCloser::checked`].
    Check(u64, u64),
    /// Replace the word at the position, if it is *closing*, by that of nothing for this many bytes: the place is decided.
    Seal(u64, u64),
    /// The place was decided by another program.
    Decided,
}

/// Closes one place.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct HoleCloser {
    granule: u64,
    first: u64,
    end: u64,
    step: CloseStep,
}

impl HoleCloser {
    /// Begins with the place at `first`. No place that begins at `end` or behind it was reserved a lease ago.
    pub const fn new(first: u64, end: u64, granule: u64) -> Self {
        Self { granule, first, end, step: CloseStep::Mark(first) }
    }

    /// Returns what is to be done.
    pub const fn step(&self) -> CloseStep {
        self.step
    }

    /// Continues after a mark: `was` is what the word said before.
    pub fn marked(&mut self, was: PlaceState) {
        let CloseStep::Mark(at) = self.step else {
            return;
        };
        self.step = match was {
            PlaceState::Open | PlaceState::Closing => self.after(at),
            _ if at == self.first => CloseStep::Decided,
            PlaceState::Void(_) => self.seal(at),
            PlaceState::Record(bytes) => CloseStep::Check(at, bytes),
            PlaceState::Other => self.after(at),
        };
    }

    /// Continues after a check.
    pub fn checked(&mut self, is_record: bool) {
        if let CloseStep::Check(at, _) = self.step {
            self.step = if is_record { self.seal(at) } else { self.after(at) };
        }
    }

    fn after(&self, at: u64) -> CloseStep {
        let next = at + self.granule;
        if next < self.end { CloseStep::Mark(next) } else { self.seal(next) }
    }

    fn seal(&self, next: u64) -> CloseStep {
        CloseStep::Seal(self.first, next - self.first)
    }
}
