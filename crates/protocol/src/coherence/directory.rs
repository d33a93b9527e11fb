//! What a home knows at rest: who holds each of its lines.

use super::Level;
use crate::Table;
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::hash::{Hash, Hasher};
use core::slice;
use farside_base::{Grant, LineAddress, NodeId};

/// One node's copy.
pub(super) type Copy = (NodeId, Grant);

/// Who holds a line that is not the home's alone. Sixteen bytes, for there is one per shared line.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Holders {
    Owner(NodeId, Grant),
    One(Copy),
    /// Two or more, by rising node; a node at most once.
    Many(Box<CopyList>),
    /// The owner died.
    Lost,
}

const _: () = assert!(size_of::<Holders>() <= 24);

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
struct CopyList(Vec<Copy>);

/// The directory of one home. A line without entry is `UnShared`.
#[derive(Debug, Default)]
pub(super) struct Directory {
    lines: Table<LineAddress, Holders>,
    /// Emptied lists, to be used again.
    #[expect(clippy::vec_box, reason = "the boxes themselves are what is reused")]
    spare: Vec<Box<CopyList>>,
}

impl Directory {
    pub(super) fn with_capacity(lines: usize) -> Self {
        Self { lines: Table::with_capacity(lines), spare: Vec::new() }
    }

    /// Makes room for `lines` entries in all.
    pub(super) fn reserve(&mut self, lines: usize) {
        self.lines.reserve(lines);
    }

    /// How many lines are not `UnShared`.
    pub(super) fn len(&self) -> usize {
        self.lines.len()
    }

    /// The level of the home itself that an entry implies.
    pub(super) fn level(&self, line: LineAddress) -> Level {
        match self.lines.get(line) {
            None => Level::Dirty,
            Some(Holders::One(_) | Holders::Many(_)) => Level::Shared,
            Some(Holders::Owner(..) | Holders::Lost) => Level::Invalid,
        }
    }

    pub(super) fn owner(&self, line: LineAddress) -> Option<Copy> {
        match self.lines.get(line) {
            Some(Holders::Owner(node, grant)) => Some((*node, *grant)),
            Some(Holders::One(_) | Holders::Many(_) | Holders::Lost) | None => None,
        }
    }

    pub(super) fn is_lost(&self, line: LineAddress) -> bool {
        matches!(self.lines.get(line), Some(Holders::Lost))
    }

    /// The sharers by rising node; none when the line is owned, lost or the home's alone.
    pub(super) fn sharers(&self, line: LineAddress) -> &[Copy] {
        match self.lines.get(line) {
            Some(Holders::One(copy)) => slice::from_ref(copy),
            Some(Holders::Many(list)) => &list.0,
            Some(Holders::Owner(..) | Holders::Lost) | None => &[],
        }
    }

    pub(super) fn is_sharer(&self, line: LineAddress, copy: Copy) -> bool {
        self.sharers(line).contains(&copy)
    }

    /// Adds a sharer to a line that is shared or the home's alone; a node's older grant goes.
    pub(super) fn add_sharer(&mut self, line: LineAddress, copy: Copy) {
        let Some(holders) = self.lines.get_mut(line) else {
            self.lines.insert(line, Holders::One(copy));
            return;
        };
        match holders {
            Holders::Many(list) => match list.0.binary_search_by_key(&copy.0, |other| other.0) {
                Ok(place) => list.0[place] = copy,
                Err(place) => list.0.insert(place, copy),
            },
            Holders::One(other) if other.0 != copy.0 => {
                let mut list = self.spare.pop().unwrap_or_default();
                list.0.extend([*other, copy]);
                list.0.sort_unstable_by_key(|copy| copy.0);
                *holders = Holders::Many(list);
            }
            Holders::One(_) | Holders::Owner(..) | Holders::Lost => *holders = Holders::One(copy),
        }
    }

    /// Takes a sharer out; false when `node` is none.
    pub(super) fn remove_sharer(&mut self, line: LineAddress, node: NodeId) -> bool {
        let Some(place) = self.sharers(line).iter().position(|copy| copy.0 == node) else {
            return false;
        };
        match self.lines.get_mut(line) {
            Some(Holders::Many(list)) if list.0.len() > 2 => {
                list.0.remove(place);
            }
            Some(Holders::Many(list)) => {
                let other = list.0[1 - place];
                self.set(line, Some(Holders::One(other)));
            }
            Some(_) | None => self.set(line, None),
        }
        true
    }

    pub(super) fn set_owner(&mut self, line: LineAddress, (node, grant): Copy) {
        self.set(line, Some(Holders::Owner(node, grant)));
    }

    pub(super) fn set_lost(&mut self, line: LineAddress) {
        self.set(line, Some(Holders::Lost));
    }

    /// Makes the line the home's alone.
    pub(super) fn clear(&mut self, line: LineAddress) {
        self.set(line, None);
    }

    fn set(&mut self, line: LineAddress, holders: Option<Holders>) {
        let former = match holders {
            Some(holders) => self.lines.insert(line, holders),
            None => self.lines.remove(line),
        };
        if let Some(Holders::Many(mut list)) = former {
            list.0.clear();
            self.spare.push(list);
        }
    }

    /// The lines of which `node` is owner or sharer, into `lines`.
    pub(super) fn lines_of(&self, node: NodeId, lines: &mut Vec<LineAddress>) {
        let holds = |holders: &Holders| match holders {
            Holders::Owner(owner, _) => *owner == node,
            Holders::One(copy) => copy.0 == node,
            Holders::Many(list) => list.0.iter().any(|copy| copy.0 == node),
            Holders::Lost => false,
        };
        lines.extend(self.lines.iter().filter(|(_, holders)| holds(holders)).map(|(line, _)| line));
    }

    #[cfg(test)]
    pub(super) fn memory(&self) -> usize {
        let lists = self.lines.iter().filter_map(|(_, holders)| match holders {
            Holders::Many(list) => Some(list),
            Holders::Owner(..) | Holders::One(_) | Holders::Lost => None,
        });
        let copies: usize = lists.chain(&self.spare).map(|list| 1 + list.0.capacity()).sum();
        self.lines.capacity() + copies
    }

    /// What must hold between two steps, given the last grant that was made.
    pub(super) fn invariants(&self, last: Grant) -> Result<(), &'static str> {
        for (_, holders) in self.lines.iter() {
            match holders {
                Holders::Owner(_, grant) | Holders::One((_, grant)) if *grant > last => {
                    return Err("a holder has a grant that was never made");
                }
                Holders::Many(list) => many_invariants(&list.0, last)?,
                Holders::Owner(..) | Holders::One(_) | Holders::Lost => {}
            }
        }
        Ok(())
    }
}

fn many_invariants(copies: &[Copy], last: Grant) -> Result<(), &'static str> {
    if copies.len() < 2 {
        return Err("a list of sharers has fewer than two");
    }
    if !copies.is_sorted_by(|one, next| one.0 < next.0) {
        return Err("a node is twice in a list of sharers");
    }
    if copies.iter().any(|copy| copy.1 > last) {
        return Err("a sharer has a grant that was never made");
    }
    Ok(())
}

impl Clone for Directory {
    /// Without the spare lists.
    fn clone(&self) -> Self {
        Self { lines: self.lines.clone(), spare: Vec::new() }
    }
}

impl PartialEq for Directory {
    fn eq(&self, other: &Self) -> bool {
        self.lines == other.lines
    }
}

impl Eq for Directory {}

impl Hash for Directory {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.lines.hash(state);
    }
}
