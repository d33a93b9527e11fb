//! Memory of the model: bytes that can be compared and hashed.

use farside_base::{Memory, OutOfBounds};
use std::cell::RefCell;
use std::hash::{Hash, Hasher};

/// A region. A mirrored one maps its bytes at two consecutive ranges of addresses.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::model) struct Bytes {
    bytes: RefCell<Vec<u8>>,
    turns: usize,
}

impl Hash for Bytes {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.bytes.borrow().hash(state);
    }
}

impl Bytes {
    pub(in crate::model) fn new(bytes: u64, mirrored: bool) -> Self {
        Self { bytes: RefCell::new(vec![0; bytes as usize]), turns: 1 + usize::from(mirrored) }
    }

    fn check(&self, offset: u64, bytes: u64) -> Result<(), OutOfBounds> {
        let all = (self.bytes.borrow().len() * self.turns) as u64;
        let fits = offset <= all && bytes <= all - offset;
        if fits { Ok(()) } else { Err(OutOfBounds) }
    }

    fn at(&self, offset: u64) -> usize {
        offset as usize % self.bytes.borrow().len()
    }
}

impl Memory for Bytes {
    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), OutOfBounds> {
        self.check(offset, out.len() as u64)?;
        for (place, byte) in (offset..).zip(out) {
            let at = self.at(place);
            *byte = self.bytes.borrow()[at];
        }
        Ok(())
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), OutOfBounds> {
        self.check(offset, bytes.len() as u64)?;
        for (place, byte) in (offset..).zip(bytes) {
            let at = self.at(place);
            self.bytes.borrow_mut()[at] = *byte;
        }
        Ok(())
    }

    fn clear(&self, offset: u64, bytes: u64) -> Result<(), OutOfBounds> {
        self.check(offset, bytes)?;
        self.write(offset, &vec![0; bytes as usize])
    }

    fn load_word(&self, offset: u64) -> Result<u64, OutOfBounds> {
        let mut word = [0; 8];
        if !offset.is_multiple_of(8) {
            return Err(OutOfBounds);
        }
        self.read(offset, &mut word)?;
        Ok(u64::from_le_bytes(word))
    }

    fn store_word(&self, offset: u64, word: u64) -> Result<(), OutOfBounds> {
        if !offset.is_multiple_of(8) {
            return Err(OutOfBounds);
        }
        self.write(offset, &word.to_le_bytes())
    }
}
