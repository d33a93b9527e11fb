//! Memory of a half in a test.

extern crate std;

use core::cell::RefCell;
use farside_base::{Memory, OutOfBounds};
use std::vec::Vec;

/// Plain memory.
#[derive(Debug)]
pub(in super::super) struct Plain(RefCell<Vec<u8>>);

impl Plain {
    pub(super) fn new(bytes: u64) -> Self {
        Self(RefCell::new(std::vec![0; bytes as usize]))
    }

    fn within<T>(
        &self,
        offset: u64,
        bytes: u64,
        then: impl FnOnce(&mut [u8]) -> T,
    ) -> Result<T, OutOfBounds> {
        let end = offset.checked_add(bytes).ok_or(OutOfBounds)?;
        let mut all = self.0.borrow_mut();
        let slice = all.get_mut(offset as usize..end as usize).ok_or(OutOfBounds)?;
        Ok(then(slice))
    }
}

impl Memory for Plain {
    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), OutOfBounds> {
        self.within(offset, out.len() as u64, |slice| out.copy_from_slice(slice))
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), OutOfBounds> {
        self.within(offset, bytes.len() as u64, |slice| slice.copy_from_slice(bytes))
    }

    fn clear(&self, offset: u64, bytes: u64) -> Result<(), OutOfBounds> {
        self.within(offset, bytes, |slice| slice.fill(0))
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
