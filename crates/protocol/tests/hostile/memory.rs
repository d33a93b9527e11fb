//! Memory of a half under attack: an access outside of it panics.

use farside_base::{Memory, OutOfBounds};
use std::cell::RefCell;

/// Bytes, mapped twice in a row if mirrored.
#[derive(Debug)]
pub(crate) struct Strict {
    bytes: RefCell<Vec<u8>>,
    length: u64,
}

impl Strict {
    pub(crate) fn new(bytes: u64, mirrored: bool) -> Self {
        let length = if mirrored { 2 * bytes } else { bytes };
        Self { bytes: RefCell::new(vec![0; bytes as usize]), length }
    }

    pub(crate) fn len(&self) -> u64 {
        self.length
    }

    fn each(&self, offset: u64, bytes: u64, mut then: impl FnMut(usize, &mut u8)) {
        let end = offset.checked_add(bytes).expect("an access wraps around");
        assert!(end <= self.length, "an access of {bytes} bytes at {offset} of {}", self.length);
        let mut all = self.bytes.borrow_mut();
        let length = all.len();
        for at in 0..bytes as usize {
            then(at, &mut all[(offset as usize + at) % length]);
        }
    }
}

impl Memory for Strict {
    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), OutOfBounds> {
        self.each(offset, out.len() as u64, |at, byte| out[at] = *byte);
        Ok(())
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), OutOfBounds> {
        self.each(offset, bytes.len() as u64, |at, byte| *byte = bytes[at]);
        Ok(())
    }

    fn clear(&self, offset: u64, bytes: u64) -> Result<(), OutOfBounds> {
        self.each(offset, bytes, |_, byte| *byte = 0);
        Ok(())
    }

    fn load_word(&self, offset: u64) -> Result<u64, OutOfBounds> {
        assert!(offset.is_multiple_of(8), "a word at {offset}");
        let mut word = [0; 8];
        self.read(offset, &mut word)?;
        Ok(u64::from_le_bytes(word))
    }

    fn store_word(&self, offset: u64, word: u64) -> Result<(), OutOfBounds> {
        assert!(offset.is_multiple_of(8), "a word at {offset}");
        self.write(offset, &word.to_le_bytes())
    }
}
