//! How a machine looks at memory that peers may change.

/// The access passes the end of the memory, or a word is not 8-byte aligned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OutOfBounds;

/// A stretch of memory that others may change at any time: copies and whole words, never a slice.
///
/// *Order.* [`load_word`](Self::load_word) is an acquire and [`store_word`](Self::store_word) a
/// release: whoever loads what another stored sees what that one had done before, and what a fabric
/// with `byte_order` placed before. Copies have no order among themselves and may tear between
/// aligned words.
pub trait Memory {
    /// Copies bytes out.
    ///
    /// # Errors
    /// When they pass the end; nothing is copied then.
    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), OutOfBounds>;

    /// Copies bytes in.
    ///
    /// # Errors
    /// When they pass the end; nothing is copied then.
    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), OutOfBounds>;

    /// Sets bytes to zero.
    ///
    /// # Errors
    /// When they pass the end; nothing is set then.
    fn clear(&self, offset: u64, bytes: u64) -> Result<(), OutOfBounds>;

    /// Loads an aligned 64-bit word.
    ///
    /// # Errors
    /// When it passes the end or is misaligned.
    fn load_word(&self, offset: u64) -> Result<u64, OutOfBounds>;

    /// Stores an aligned 64-bit word.
    ///
    /// # Errors
    /// When it passes the end or is misaligned.
    fn store_word(&self, offset: u64, word: u64) -> Result<(), OutOfBounds>;

    /// Hints that these bytes will be read once somebody has written them, so that they may come
    /// beside others that are looked at. No more than a hint: bytes past the end are ignored.
    fn expect_read(&self, _offset: u64, _bytes: usize) {}
}
