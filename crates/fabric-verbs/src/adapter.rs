//! Words and bytes of a region at the adapter, for its owner.

use crate::ffi::AdapterMemory;
use farside_base::{Memory, OutOfBounds};
use std::fmt;
use std::sync::{Arc, Weak};

/// Halves of a word, low and high, in the order of this machine's bytes.
const LOW: u64 = if cfg!(target_endian = "little") { 0 } else { 4 };
const HIGH: u64 = 4 - LOW;

/// Tries to load a word in one piece: its high half changes once in 4 GiB of what it counts.
const TRIES: u32 = 64;

/// The device memory of a region while that is registered; out of bounds after that.
pub(crate) struct Adapter(Weak<AdapterMemory>);

impl Adapter {
    pub(crate) fn new(memory: &Arc<AdapterMemory>) -> Self {
        Self(Arc::downgrade(memory))
    }

    fn memory(&self) -> Result<Arc<AdapterMemory>, OutOfBounds> {
        self.0.upgrade().ok_or(OutOfBounds)
    }
}

/// Returns one half of a word.
fn half(memory: &AdapterMemory, at: u64) -> Result<u32, OutOfBounds> {
    let mut bytes = [0; 4];
    memory.copy_out(at, &mut bytes).map_err(|_| OutOfBounds)?;
    Ok(u32::from_ne_bytes(bytes))
}

fn set_half(memory: &AdapterMemory, at: u64, half: u32) -> Result<(), OutOfBounds> {
    memory.copy_in(at, &half.to_ne_bytes()).map_err(|_| OutOfBounds)
}

const fn aligned(offset: u64) -> Result<(), OutOfBounds> {
    if offset.is_multiple_of(8) { Ok(()) } else { Err(OutOfBounds) }
}

impl Memory for Adapter {
    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), OutOfBounds> {
        self.memory()?.copy_out(offset, out).map_err(|_| OutOfBounds)
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), OutOfBounds> {
        self.memory()?.copy_in(offset, bytes).map_err(|_| OutOfBounds)
    }

    fn clear(&self, offset: u64, bytes: u64) -> Result<(), OutOfBounds> {
        const ZEROES: [u8; 256] = [0; 256];
        let memory = self.memory()?;
        let end = offset.checked_add(bytes).filter(|end| *end <= memory.bytes());
        let end = end.ok_or(OutOfBounds)?;
        let mut at = offset;
        while at < end {
            let step = (end - at).min(ZEROES.len() as u64);
            memory.copy_in(at, &ZEROES[..step as usize]).map_err(|_| OutOfBounds)?;
            at += step;
        }
        Ok(())
    }

    /// The halves belong together when the high one is the same before and after the low one.
    fn load_word(&self, offset: u64) -> Result<u64, OutOfBounds> {
        aligned(offset)?;
        let memory = self.memory()?;
        let mut high = half(&memory, offset + HIGH)?;
        for _ in 0..TRIES {
            let low = half(&memory, offset + LOW)?;
            let again = half(&memory, offset + HIGH)?;
            if again == high {
                return Ok(u64::from(high) << 32 | u64::from(low));
            }
            high = again;
        }
        Err(OutOfBounds)
    }

    /// Stores the low half first: `Capabilities::device_words` is false, and documents what peers may
    /// see.
    fn store_word(&self, offset: u64, word: u64) -> Result<(), OutOfBounds> {
        aligned(offset)?;
        let memory = self.memory()?;
        set_half(&memory, offset + LOW, word as u32)?;
        set_half(&memory, offset + HIGH, (word >> 32) as u32)
    }
}

impl fmt::Debug for Adapter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.upgrade() {
            Some(memory) => write!(f, "Adapter({} B)", memory.bytes()),
            None => f.write_str("Adapter(ended)"),
        }
    }
}
