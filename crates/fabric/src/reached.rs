//! A peer's memory that this processor reaches by loads.

use crate::{Arena, OutOfBounds};
use std::fmt;
use std::sync::atomic::{Ordering, fence};

/// An imported region in place, to be read and never changed.
///
/// *Visibility*: loads show what the owner and its peers have stored there, in the order of copies out
/// of an [`Arena`]; load the notification (a completion, a word) first. *Trust*: the owner may change
/// it at any time, so copy what is checked before using it. It stays valid memory after the link was
/// closed or the region was deregistered, with whatever the owner stores there then.
#[derive(Clone)]
pub struct Reached(Arena);

impl Reached {
    /// Wraps memory that this process has mapped, maybe for reading only.
    pub const fn new(arena: Arena) -> Self {
        Self(arena)
    }

    /// Returns the bytes of it.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies bytes out.
    ///
    /// # Errors
    /// When they pass the end; nothing is copied then.
    #[inline]
    pub fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), OutOfBounds> {
        self.0.read(offset, out)
    }

    /// Loads an aligned word; later loads see whatever was stored before it was.
    ///
    /// # Errors
    /// When it passes the end or is not aligned.
    #[inline(always)]
    pub fn load_word(&self, offset: u64) -> Result<u64, OutOfBounds> {
        // A load with an order of its own is not guaranteed to work on read-only mappings.
        let word = self.0.load(offset, Ordering::Relaxed)?;
        fence(Ordering::Acquire);
        Ok(word)
    }

    /// Loads an aligned word after all earlier loads, such as copies of the bytes that it guards.
    ///
    /// # Errors
    /// When it passes the end or is not aligned.
    #[inline(always)]
    pub fn load_word_after(&self, offset: u64) -> Result<u64, OutOfBounds> {
        fence(Ordering::Acquire);
        self.0.load(offset, Ordering::Relaxed)
    }
}

impl fmt::Debug for Reached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Reached({} B)", self.len())
    }
}
