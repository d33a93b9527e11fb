//! Erased state, freed a few chunks at a time.

use super::records::Chunk;
use super::{Kept, States};

/// Chunks waiting per additional chunk freed at once. So the backlog stays within a few times what is erased
/// between two calls.
const PLACES_PER_PLACE: usize = 512;

/// Chunks to be freed. Returning one to the system takes some microseconds; all at once would delay calls too long.
#[derive(Debug, Default)]
pub(crate) struct Erased {
    all: Vec<Vec<Chunk>>,
    /// Number of chunks in all of these.
    places: usize,
}

impl Erased {
    /// Adds erased state.
    pub(crate) fn add(&mut self, mut states: States) {
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

    /// Frees some chunks; returns whether there were any.
    pub(crate) fn free_some(&mut self) -> bool {
        if self.is_empty() {
            return false;
        }
        for _ in 0..=self.places / PLACES_PER_PLACE {
            match self.all.last_mut().map(Vec::pop) {
                // A chunk that was never written is empty and costs nothing.
                Some(Some(_chunk)) => self.places -= 1,
                Some(None) => drop(self.all.pop()),
                None => break,
            }
        }
        true
    }

    /// Whether nothing is left to free.
    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }
}
