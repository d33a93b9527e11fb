//! Access of a machine to memory that peers may change.

/// The access passes the end of the memory, or a word is not 8-byte aligned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OutOfBounds;

impl core::fmt::Display for OutOfBounds {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("the access passes the end of the memory, or a word is not 8-byte aligned")
    }
}

impl core::error::Error for OutOfBounds {}

/// A range of memory that peers may change at any time: copies and whole words, never a slice.
///
/// *Order.* [`load_word`](Self::load_word) is an acquire and [`store_word`](Self::store_word) a release: a
/// load that sees a store also makes visible what the storing thread had done before, and what a fabric
/// with `byte_order` placed before. Copies have no order among themselves and may tear between aligned
/// words.
pub trait Memory {
    /// Copies bytes out.
    ///
    /// # Errors
    /// If they pass the end; nothing is copied then.
    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), OutOfBounds>;

    /// Copies bytes in.
    ///
    /// # Errors
    /// If they pass the end; nothing is copied then.
    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), OutOfBounds>;

    /// Sets bytes to zero.
    ///
    /// # Errors
    /// If they pass the end; nothing is set then.
    fn clear(&self, offset: u64, bytes: u64) -> Result<(), OutOfBounds>;

    /// Loads an aligned 64-bit word.
    ///
    /// # Errors
    /// If it passes the end or is misaligned.
    fn load_word(&self, offset: u64) -> Result<u64, OutOfBounds>;

    /// Stores an aligned 64-bit word.
    ///
    /// # Errors
    /// If it passes the end or is misaligned.
    fn store_word(&self, offset: u64, word: u64) -> Result<(), OutOfBounds>;

    /// Hints that these bytes will be read once a peer has written them. They may then be transferred
    /// together with neighbouring bytes that are being polled. Only a hint: bytes past the end are ignored.
    fn expect_read(&self, _offset: u64, _bytes: usize) {}
}
