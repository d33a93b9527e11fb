//! Lines of persistent memory that are newer in the last-level cache.

use farside_base::Random;
use std::collections::BTreeMap;
use std::ops::RangeInclusive;

/// Written lines, of which a random one is evicted when there are too many.
#[derive(Clone, Default, Debug)]
pub(super) struct DirtyLines {
    lines: Vec<u64>,
    places: BTreeMap<u64, usize>,
}

impl DirtyLines {
    pub(super) fn contains(&self, line: u64) -> bool {
        self.places.contains_key(&line)
    }

    pub(super) fn len(&self) -> usize {
        self.lines.len()
    }

    /// Returns the lines of a range, in rising order.
    pub(super) fn within(&self, range: &RangeInclusive<u64>) -> Vec<u64> {
        if range.is_empty() {
            return Vec::new();
        }
        self.places.range(range.clone()).map(|(line, _)| *line).collect()
    }

    /// Adds a line. Returns the line that is evicted for it.
    pub(super) fn insert(&mut self, line: u64, lines_max: u32, random: &mut Random) -> Option<u64> {
        if self.contains(line) {
            return None;
        }
        self.places.insert(line, self.lines.len());
        self.lines.push(line);
        if self.lines.len() <= lines_max as usize {
            return None;
        }
        let at = random.index(self.lines.len());
        let evicted = self.lines.get(at).copied()?;
        self.remove(evicted);
        Some(evicted)
    }

    pub(super) fn remove(&mut self, line: u64) -> bool {
        let Some(at) = self.places.remove(&line) else {
            return false;
        };
        self.lines.swap_remove(at);
        if let Some(moved) = self.lines.get(at) {
            self.places.insert(*moved, at);
        }
        true
    }
}
