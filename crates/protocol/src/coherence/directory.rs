//! The directory of a home: the holders of each line at rest.
//!
//! Lines are dense offsets of the home's memory, so the directory consists of pages: 64 neighbouring lines of one
//! size, eight bytes each. A page exists while at least one of its lines is held by another node. A line with one
//! holder takes those eight bytes and its part of the page's table entry, at any load; a line with several has its
//! list in [`Copies`].

use super::Level;
use super::copies::{Copies, Copy, List, is_far, node_of};
use crate::Table;
use crate::table::hash_in_any_order;
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::fmt;
use core::hash::{Hash, Hasher};
use core::slice;
use farside_base::{Grant, LineAddress, NodeId};

const PAGE_LINES_LOG2: u32 = 6;
const PAGE_LINES: usize = 1 << PAGE_LINES_LOG2;

/// The lines of a page. Zero: only the home has the line.
#[derive(Clone, Debug)]
struct Page {
    entries: [u64; PAGE_LINES],
    used: u32,
}

const KIND_SHIFT: u32 = 61;
const OWNER: u64 = 1;
const SHARER: u64 = 2;
const LIST: u64 = 3;
const LOST: u64 = 4;

/// The holders of a line that other nodes hold or that is lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Holders {
    /// A packed copy.
    Owner(u64),
    /// A packed copy.
    One(u64),
    /// Two or more, by ascending node number; at most one copy per node.
    Many(List),
    /// The owner died.
    Lost,
}

impl Holders {
    const fn from_bits(bits: u64) -> Option<Self> {
        let low = bits & ((1 << KIND_SHIFT) - 1);
        match bits >> KIND_SHIFT {
            OWNER => Some(Self::Owner(low)),
            SHARER => Some(Self::One(low)),
            LIST => Some(Self::Many(List::from_bits(low))),
            LOST => Some(Self::Lost),
            _ => None,
        }
    }

    const fn to_bits(self) -> u64 {
        match self {
            Self::Owner(copy) => OWNER << KIND_SHIFT | copy,
            Self::One(copy) => SHARER << KIND_SHIFT | copy,
            Self::Many(list) => LIST << KIND_SHIFT | list.to_bits(),
            Self::Lost => LOST << KIND_SHIFT,
        }
    }
}

/// The directory of one home. A line without an entry is `UnShared`.
#[derive(Default)]
pub(super) struct Directory {
    /// By the bits of a page's first line.
    pages: Table<u64, Box<Page>>,
    /// Empty pages, kept for reuse.
    #[expect(clippy::vec_box, reason = "the boxes themselves are what is reused")]
    spare: Vec<Box<Page>>,
    copies: Copies,
    len: usize,
}

/// To which nodes a home has lent a line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum LentTo {
    /// To none.
    Not,
    /// To one or more sharers.
    Shared,
    /// To its owner.
    Owned(Copy),
    /// To an owner that died.
    Lost,
}

/// The page of a line, by the bits of its first line, and the line's index in it.
#[inline]
const fn place(line: LineAddress) -> (u64, usize) {
    let (bits, line_log2) = (line.to_bits(), line.line_size().log2());
    let first = bits & !((1 << (line_log2 + PAGE_LINES_LOG2)) - 1);
    (first, (bits >> line_log2) as usize % PAGE_LINES)
}

impl Directory {
    /// The number of lines that are not `UnShared`.
    pub(super) const fn len(&self) -> usize {
        self.len
    }

    #[inline]
    fn holders(&self, line: LineAddress) -> Option<Holders> {
        let (page, at) = place(line);
        Holders::from_bits(self.pages.get(page)?.entries[at])
    }

    /// The nodes to which the line is lent.
    #[inline]
    pub(super) fn lent(&self, line: LineAddress) -> LentTo {
        match self.holders(line) {
            None => LentTo::Not,
            Some(Holders::One(_) | Holders::Many(_)) => LentTo::Shared,
            Some(Holders::Owner(copy)) => LentTo::Owned(self.copies.unpack(copy)),
            Some(Holders::Lost) => LentTo::Lost,
        }
    }

    /// The home's own level that an entry implies.
    #[inline]
    pub(super) fn level(&self, line: LineAddress) -> Level {
        match self.holders(line) {
            None => Level::Dirty,
            Some(Holders::One(_) | Holders::Many(_)) => Level::Shared,
            Some(Holders::Owner(_) | Holders::Lost) => Level::Invalid,
        }
    }

    #[inline]
    pub(super) fn owner(&self, line: LineAddress) -> Option<Copy> {
        match self.lent(line) {
            LentTo::Owned(copy) => Some(copy),
            LentTo::Not | LentTo::Shared | LentTo::Lost => None,
        }
    }

    pub(super) fn is_lost(&self, line: LineAddress) -> bool {
        self.holders(line) == Some(Holders::Lost)
    }

    /// The sharers by ascending node number; none if the line is owned, lost or `UnShared`.
    pub(super) fn sharers(&self, line: LineAddress) -> Sharers<'_> {
        self.sharers_of(self.holders(line))
    }

    fn sharers_of(&self, holders: Option<Holders>) -> Sharers<'_> {
        let (one, many): (_, &[u64]) = match holders {
            Some(Holders::One(copy)) => (Some(copy), &[]),
            Some(Holders::Many(list)) => (None, self.copies.of(list)),
            Some(Holders::Owner(_) | Holders::Lost) | None => (None, &[]),
        };
        Sharers { one, many: many.iter(), copies: &self.copies }
    }

    pub(super) fn is_sharer(&self, line: LineAddress, copy: Copy) -> bool {
        self.sharers(line).any(|sharer| sharer == copy)
    }

    /// Adds a sharer to a line that is shared or `UnShared`; replaces the node's older grant.
    pub(super) fn add_sharer(&mut self, line: LineAddress, copy: Copy) {
        self.change(line, |copies, holders| {
            let added = copies.pack(copy);
            Some(match holders {
                Some(Holders::Many(list)) => Holders::Many(match copies.find(list, copy.0) {
                    Ok(at) => {
                        copies.replace(list, at, added);
                        list
                    }
                    Err(at) => copies.insert(list, at, added),
                }),
                Some(Holders::One(other)) if node_of(other) != copy.0 => {
                    Holders::Many(copies.pair(other, added))
                }
                Some(Holders::One(former) | Holders::Owner(former)) => {
                    copies.free(former);
                    Holders::One(added)
                }
                Some(Holders::Lost) | None => Holders::One(added),
            })
        });
    }

    /// Removes a sharer; false if `node` is not one.
    pub(super) fn remove_sharer(&mut self, line: LineAddress, node: NodeId) -> bool {
        let mut is_out = true;
        self.change(line, |copies, holders| match holders {
            Some(Holders::One(copy)) if node_of(copy) == node => {
                copies.free(copy);
                None
            }
            Some(Holders::Many(list)) => match copies.find(list, node) {
                Ok(at) if list.len() > 2 => Some(Holders::Many(copies.remove(list, at))),
                Ok(at) => {
                    let (gone, other) = (copies.of(list)[at], copies.of(list)[1 - at]);
                    copies.free(gone);
                    copies.dissolve(list);
                    Some(Holders::One(other))
                }
                Err(_) => {
                    is_out = false;
                    holders
                }
            },
            Some(Holders::One(_) | Holders::Owner(_) | Holders::Lost) | None => {
                is_out = false;
                holders
            }
        });
        is_out
    }

    pub(super) fn set_owner(&mut self, line: LineAddress, owner: Copy) {
        self.change(line, |copies, holders| {
            drop_holders(copies, holders);
            Some(Holders::Owner(copies.pack(owner)))
        });
    }

    pub(super) fn set_lost(&mut self, line: LineAddress) {
        self.change(line, |copies, holders| {
            drop_holders(copies, holders);
            Some(Holders::Lost)
        });
    }

    /// Makes the line `UnShared`.
    pub(super) fn clear(&mut self, line: LineAddress) {
        self.change(line, |copies, holders| {
            drop_holders(copies, holders);
            None
        });
    }

    /// Replaces the eight bytes of a line by the result of `change`, and adds a page if needed. One look-up if the
    /// page exists.
    #[inline]
    fn change(
        &mut self,
        line: LineAddress,
        change: impl FnOnce(&mut Copies, Option<Holders>) -> Option<Holders>,
    ) {
        let (first, at) = place(line);
        let Some(page) = self.pages.get_mut(first) else {
            let bits = change(&mut self.copies, None).map_or(0, Holders::to_bits);
            return self.open_page(first, at, bits);
        };
        let former = page.entries[at];
        let bits = change(&mut self.copies, Holders::from_bits(former)).map_or(0, Holders::to_bits);
        page.entries[at] = bits;
        match (former == 0, bits == 0) {
            (true, false) => (self.len, page.used) = (self.len + 1, page.used + 1),
            (false, true) => (self.len, page.used) = (self.len - 1, page.used - 1),
            (true, true) | (false, false) => {}
        }
        if page.used == 0 {
            self.close_page(first);
        }
    }

    #[inline(never)]
    fn open_page(&mut self, first: u64, at: usize, bits: u64) {
        if bits != 0 {
            let blank = || Box::new(Page { entries: [0; PAGE_LINES], used: 0 });
            let mut page = self.spare.pop().unwrap_or_else(blank);
            (page.entries[at], page.used) = (bits, 1);
            self.pages.insert(first, page);
            self.len += 1;
        }
    }

    #[inline(never)]
    fn close_page(&mut self, first: u64) {
        if let Some(empty) = self.pages.remove(first) {
            self.spare.push(empty);
        }
    }

    /// All lines that are not `UnShared`, in unspecified order.
    fn iter(&self) -> impl Iterator<Item = (LineAddress, Holders)> + '_ {
        self.pages.iter().flat_map(|(first, page)| {
            let first = LineAddress::from_bits(first);
            page.entries.iter().zip(0..).filter_map(move |(bits, at)| {
                let holders = Holders::from_bits(*bits)?;
                Some((first?.checked_add(at)?, holders))
            })
        })
    }

    /// Collects the lines with an owner in `lines`.
    pub(super) fn owned_lines(&self, lines: &mut Vec<LineAddress>) {
        let owned = self.iter().filter(|(_, holders)| matches!(holders, Holders::Owner(_)));
        lines.extend(owned.map(|(line, _)| line));
    }

    /// Collects the lost lines in `lines`.
    pub(super) fn lost_lines(&self, lines: &mut Vec<LineAddress>) {
        let lost = self.iter().filter(|(_, holders)| *holders == Holders::Lost);
        lines.extend(lost.map(|(line, _)| line));
    }

    /// Collects in `lines` the lines of which `node` is owner or sharer.
    pub(super) fn lines_of(&self, node: NodeId, lines: &mut Vec<LineAddress>) {
        let holds = |holders: Holders| match holders {
            Holders::Owner(copy) | Holders::One(copy) => node_of(copy) == node,
            Holders::Many(list) => self.copies.find(list, node).is_ok(),
            Holders::Lost => false,
        };
        lines.extend(self.iter().filter(|(_, holders)| holds(*holders)).map(|(line, _)| line));
    }

    #[cfg(test)]
    pub(super) fn memory(&self) -> usize {
        let pages = (self.pages.len() + self.spare.len()) * PAGE_LINES;
        self.pages.capacity() + pages + self.copies.memory()
    }

    /// The size in bytes of all its memory, including the allocator's header of each page.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        let places = self.pages.capacity() / 3 * 4 * size_of::<Option<(u64, Box<Page>)>>();
        let pages = (self.pages.len() + self.spare.len()) * (size_of::<Page>() + 16);
        places + pages + self.spare.capacity() * size_of::<Box<Page>>() + self.copies.memory() * 8
    }

    /// Checks the invariants between two steps; `last` is the last grant that was made.
    pub(super) fn invariants(&self, last: Grant) -> Result<(), &'static str> {
        let (mut lines, mut far, mut lists) = (0, 0, 0);
        for (_, holders) in self.iter() {
            lines += 1;
            let copies: &[u64] = match &holders {
                Holders::Owner(copy) | Holders::One(copy) => slice::from_ref(copy),
                Holders::Many(list) => self.copies.of(*list),
                Holders::Lost => &[],
            };
            far += copies.iter().filter(|copy| is_far(**copy)).count();
            lists += usize::from(copies.len() > 1);
            if matches!(holders, Holders::Many(_)) && copies.len() < 2 {
                return Err("a list of sharers has fewer than two");
            }
            if !copies.is_sorted_by(|one, next| node_of(*one) < node_of(*next)) {
                return Err("a node is twice in a list of sharers");
            }
            if copies.iter().any(|copy| self.copies.unpack(*copy).1 > last) {
                return Err("a holder has a grant that was never made");
            }
        }
        if lines != self.len {
            return Err("a directory has more or fewer lines than it thinks");
        }
        if (far, lists) != self.copies.used() {
            return Err("a directory has lost room, or uses some twice");
        }
        Ok(())
    }

    /// A comparable form of an entry: kind and copies.
    fn contents(&self, holders: Holders) -> (u64, Option<Copy>, Sharers<'_>) {
        let owner = match holders {
            Holders::Owner(copy) => Some(self.copies.unpack(copy)),
            Holders::One(_) | Holders::Many(_) | Holders::Lost => None,
        };
        (holders.to_bits() >> KIND_SHIFT, owner, self.sharers_of(Some(holders)))
    }
}

/// Frees the storage of a line's entry outside its eight bytes; the caller must replace the entry.
fn drop_holders(copies: &mut Copies, holders: Option<Holders>) {
    match holders {
        Some(Holders::Owner(copy) | Holders::One(copy)) => copies.free(copy),
        Some(Holders::Many(list)) => {
            for at in 0..list.len() {
                let copy = copies.of(list)[at];
                copies.free(copy);
            }
            copies.dissolve(list);
        }
        Some(Holders::Lost) | None => {}
    }
}

/// The sharers of a line, by ascending node number.
#[derive(Clone)]
pub(super) struct Sharers<'a> {
    one: Option<u64>,
    many: slice::Iter<'a, u64>,
    copies: &'a Copies,
}

impl Iterator for Sharers<'_> {
    type Item = Copy;

    fn next(&mut self) -> Option<Copy> {
        let bits = self.one.take().or_else(|| self.many.next().copied())?;
        Some(self.copies.unpack(bits))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let len = usize::from(self.one.is_some()) + self.many.len();
        (len, Some(len))
    }
}

impl ExactSizeIterator for Sharers<'_> {}

impl Clone for Directory {
    /// Without the spare pages.
    fn clone(&self) -> Self {
        let (pages, copies) = (self.pages.clone(), self.copies.clone());
        Self { pages, spare: Vec::new(), copies, len: self.len }
    }
}

impl PartialEq for Directory {
    fn eq(&self, other: &Self) -> bool {
        let same = |(line, holders): (LineAddress, Holders)| {
            let (kind, owner, sharers) = self.contents(holders);
            other.holders(line).is_some_and(|holders| {
                let others = other.contents(holders);
                (kind, owner) == (others.0, others.1) && sharers.eq(others.2)
            })
        };
        self.len == other.len && self.iter().all(same)
    }
}

impl Eq for Directory {}

impl Hash for Directory {
    fn hash<H: Hasher>(&self, state: &mut H) {
        hash_in_any_order(self.iter(), state, |(line, holders), entry| {
            let (kind, owner, sharers) = self.contents(*holders);
            (line, kind, owner).hash(entry);
            sharers.for_each(|copy| copy.hash(entry));
        });
    }
}

impl fmt::Debug for Directory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut entries: Vec<_> = self.iter().collect();
        entries.sort_unstable_by_key(|(line, _)| *line);
        let mut map = f.debug_map();
        for (line, holders) in entries {
            let (_, owner, sharers) = self.contents(holders);
            match owner {
                Some(owner) => map.entry(&line, &format_args!("owner {owner:?}")),
                None if holders == Holders::Lost => map.entry(&line, &format_args!("lost")),
                None => map.entry(&line, &sharers.collect::<Vec<_>>()),
            };
        }
        map.finish()
    }
}
