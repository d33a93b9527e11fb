//! State that nobody can reach any more, freed a little at a time.

use super::records::Chunk;
use super::{Kept, States};

/// One place more is freed at a time for each of so many: however fast state is made and erased, what waits
/// here stays a few times what is made between two times.
const PLACES_PER_PLACE: usize = 512;

/// Chunks that are to be freed. Giving one of them back to the system takes some microseconds, all at once
/// may take longer than anybody shall wait.
#[derive(Debug, Default)]
pub(in crate::call) struct Erased {
    all: Vec<Vec<Chunk>>,
    /// Places of chunks in all of these.
    places: usize,
}

impl Erased {
    /// Takes state that is erased.
    pub(in crate::call) fn add(&mut self, mut states: States) {
        for kept in &mut states.declared.kept {
            match kept {
                Kept::Array(records) | Kept::Counters(records) => self.push(records.take_chunks()),
                Kept::Map(map) => map.take_chunks().into_iter().for_each(|all| self.push(all)),
                Kept::Locks(locks) => self.push(locks.take_chunks()),
                Kept::Elsewhere => {}
            }
        }
    }

    fn push(&mut self, chunks: Vec<Chunk>) {
        self.places += chunks.len();
        self.all.push(chunks);
    }

    /// Frees some of it; whether there was anything.
    pub(in crate::call) fn free_some(&mut self) -> bool {
        if self.is_empty() {
            return false;
        }
        for _ in 0..=self.places / PLACES_PER_PLACE {
            match self.all.last_mut().map(Vec::pop) {
                // One that nobody has written to has nothing to be freed.
                Some(Some(_chunk)) => self.places -= 1,
                Some(None) => drop(self.all.pop()),
                None => break,
            }
        }
        true
    }

    /// Whether nothing is left to be freed.
    pub(in crate::call) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }
}
