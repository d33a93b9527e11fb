//! Hash consing of abstract numbers: states refer to sets of numbers by index, so that they are small to copy.
//!
//! A memo table keeps the results of each slot by its operands: unrolled loops compute mostly the same ones.

use alloc::vec::Vec;

use super::scalar::Scalar;

/// The index of a set of numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Id(u32);

impl Id {
    /// The set of all numbers, at the same index in every table.
    pub(super) const UNKNOWN: Self = Self(0);
    /// No set.
    const NONE: Self = Self(u32::MAX);

    /// Stores a link among results.
    pub(super) fn of_link(link: u32) -> Self {
        Self(link)
    }

    pub(super) fn as_link(self) -> u32 {
        self.0
    }
}

/// The kind of computation of a slot, part of the key of a memo.
#[derive(Clone, Copy)]
pub(super) enum ComputationKind {
    /// A result of two numbers.
    Result,
    /// The refinement of two numbers on both paths of a jump.
    Jump,
    /// The same for two offsets, which a jump compares as signed: one path may come with addresses and another with
    /// numbers.
    JumpOfOffsets,
}

/// The operands and results of a computation at a slot.
#[derive(Clone, Copy)]
struct Memo {
    key: u32,
    a: Id,
    b: Id,
    results: Computed,
}

/// The results of one computation.
pub(super) type Computed = [Id; 4];

const NO_MEMO: Memo = Memo { key: u32::MAX, a: Id::NONE, b: Id::NONE, results: [Id::NONE; 4] };

/// Rows of the tables of recent computations and sets. What was overwritten is computed or interned again.
const ROWS: usize = 256;
/// Sets before unreferenced ones are collected: some 5 MB. Low enough that the sets of one more stretch of code fit
/// into the capacity that the growing table has then.
const FULL: usize = 60_000;

/// All sets of numbers of a proof.
pub(super) struct Interned {
    scalars: Vec<Scalar>,
    /// Recently interned sets, by hash.
    recent: Vec<Id>,
    memos: Vec<Memo>,
    /// The result of each slot without operands: an immediate, or what is loaded or returned.
    sources: Vec<Id>,
    full: usize,
    /// The smallest value of `full`.
    full_least: usize,
}

impl Interned {
    pub(super) fn new() -> Self {
        Self::full_at(FULL)
    }

    /// A table that is full with `full` sets.
    pub(super) fn full_at(full: usize) -> Self {
        let mut scalars = Vec::with_capacity(64);
        scalars.push(Scalar::UNKNOWN);
        let recent = alloc::vec![Id::UNKNOWN; ROWS];
        let memos = alloc::vec![NO_MEMO; ROWS];
        Self { scalars, recent, memos, sources: Vec::new(), full, full_least: full }
    }

    /// Removes all sets.
    pub(super) fn clear(&mut self) {
        self.scalars.truncate(1);
        self.recent.fill(Id::UNKNOWN);
        self.memos.fill(NO_MEMO);
        self.sources.clear();
        self.full = self.full_least;
    }

    /// The set of an index, without link.
    #[inline]
    pub(super) fn get(&self, id: Id) -> &Scalar {
        &self.scalars[id.0 as usize]
    }

    /// Interns a set, without its link, and returns its index.
    pub(super) fn intern(&mut self, scalar: &Scalar) -> Id {
        let scalar = Scalar { link: 0, ..*scalar };
        let parts = [scalar.most, scalar.signed_least as u64, scalar.bits.mask];
        let hash = parts.iter().fold(scalar.least, |hash, part| hash.rotate_left(21) ^ part);
        let row = row(hash);
        let known = self.recent[row];
        if *self.get(known) == scalar {
            return known;
        }
        let id = Id(self.scalars.len() as u32);
        self.scalars.push(scalar);
        self.recent[row] = id;
        id
    }

    /// Looks up a computation of two numbers at a slot.
    #[inline]
    pub(super) fn computed(
        &self,
        at: usize,
        kind: ComputationKind,
        a: Id,
        b: Id,
    ) -> Option<Computed> {
        let (key, row) = place(at, kind, a, b);
        let memo = &self.memos[row];
        (memo.key == key && memo.a == a && memo.b == b).then_some(memo.results)
    }

    pub(super) fn compute(
        &mut self,
        at: usize,
        kind: ComputationKind,
        (a, b): (Id, Id),
        results: Computed,
    ) {
        let (key, row) = place(at, kind, a, b);
        self.memos[row] = Memo { key, a, b, results };
    }

    /// Looks up the result of a slot without operands.
    #[inline]
    pub(super) fn source(&self, at: usize) -> Option<Id> {
        self.sources.get(at).copied().filter(|id| *id != Id::NONE)
    }

    pub(super) fn is_source(&mut self, at: usize, id: Id) {
        if self.sources.len() <= at {
            self.sources.resize(at + 1, Id::NONE);
        }
        self.sources[at] = id;
    }

    /// Whether it is time for [`Interned::keep`].
    pub(super) fn is_full(&self) -> bool {
        self.scalars.len() > self.full
    }

    /// Removes all sets but these, and updates their indices.
    pub(super) fn keep<'a>(&mut self, ids: impl Iterator<Item = &'a mut Id>) {
        let mut kept = Self::full_at(self.full_least);
        let mut moved = alloc::vec![Id::NONE; self.scalars.len()];
        moved[0] = Id::UNKNOWN;
        for id in ids {
            let to = &mut moved[id.0 as usize];
            if *to == Id::NONE {
                *to = Id(kept.scalars.len() as u32);
                kept.scalars.push(self.scalars[id.0 as usize]);
            }
            *id = *to;
        }
        kept.full = kept.full_least.max(kept.scalars.len() * 2);
        *self = kept;
    }
}

#[inline]
fn place(at: usize, kind: ComputationKind, a: Id, b: Id) -> (u32, usize) {
    let key = (at as u32) << 2 | kind as u32;
    (key, row(u64::from(key) ^ u64::from(a.0) << 20 ^ u64::from(b.0) << 40))
}

#[inline]
fn row(hashed: u64) -> usize {
    (hashed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as usize
}

/// Both of a pair, or [`Id::NONE`] twice where there is none.
pub(super) fn pair(ids: Option<(Id, Id)>) -> (Id, Id) {
    ids.unwrap_or((Id::NONE, Id::NONE))
}

/// What [`pair`] was made of.
#[inline]
pub(super) fn unpair(a: Id, b: Id) -> Option<(Id, Id)> {
    (a != Id::NONE).then_some((a, b))
}

#[cfg(test)]
mod tests {
    use super::super::explore::{Explored, Explorer};
    use super::super::live::Liveness;
    use super::super::step::Stepper;
    use super::super::{Cost, Verification, Verified, structure, verify};
    use super::*;
    use crate::Limits;
    use crate::assembler::assemble;
    use crate::library::ENTRIES;
    use crate::program::{Program, load};
    use alloc::boxed::Box;
    use alloc::format;
    use alloc::string::String;

    const LIMITS: Limits = Limits { walked_max: 1 << 20, ..Limits::DEFAULT };
    const TURNS: u64 = 60_000;
    /// Instructions of an iteration, and how many of them make a new set.
    const INSTRUCTIONS: u64 = 5;
    const SETS: u64 = 3;

    /// A counting loop that keeps a number of 0 to 15 on the stack, which then gives the offset of an 8-byte store:
    /// at most `beyond` after the end of its frame.
    fn counts(beyond: i64) -> Program {
        let text = format!(
            ".program counts\n\
             r6 = *(u8 *)(r1 + 0)\nr6 &= 15\n*(u64 *)(r10 - 8) = r6\nr7 = 0\n\
             again:\nr7 += 1\nr8 = r7\nr8 *= 3\nr8 ^= 0x5a5a5a\nif r7 != {TURNS} goto again\n\
             r6 = *(u64 *)(r10 - 8)\nr1 = r10\nr1 += {}\nr1 += r6\n\
             *(u64 *)(r1 + 0) = r7\nr0 = r6\nexit\n",
            beyond - 8 - 15
        );
        assemble(&text).unwrap()
    }

    fn verdict(program: &Program, limits: &Limits, full: usize) -> String {
        let mut verification =
            Verification::with_numbers(program.clone(), limits, Interned::full_at(full));
        let verdict = core::iter::repeat_with(|| verification.step(u32::MAX)).flatten().next();
        match verdict.unwrap() {
            Ok(verified) => format!("{:?}", Verified { identity: 0, ..verified }),
            Err(refusal) => format!("{refusal:?}"),
        }
    }

    #[test]
    fn more_sets_than_there_is_room_for_are_forgotten_but_those_in_use() {
        let program = counts(0);
        let mut liveness = Liveness::new(&program);
        let mut stepper = Box::new(Stepper::new(program, &LIMITS, Interned::new()));
        stepper.facts.meetings = structure::meeting_points(&stepper.program);
        stepper.facts.live = liveness.settle(u32::MAX).unwrap();
        let mut explorer = Explorer::new(stepper);
        let Ok(Some(Explored::Closed(worst))) = explorer.explore(u32::MAX) else {
            panic!("it has an end");
        };
        let instructions = 4 + TURNS * INSTRUCTIONS + 7;
        assert_eq!(worst, Cost { instructions, ..Cost::default() });
        // It was full more than once, and never had more than it may, or twice what was in use.
        assert!(TURNS * SETS > 2 * FULL as u64);
        let known = &explorer.stepper.known;
        assert!(known.scalars.len() <= FULL + 8, "{}", known.scalars.len());
        assert!(known.scalars.capacity() <= 2 * FULL, "{}", known.scalars.capacity());
        assert_eq!(known.full, FULL);
    }

    #[test]
    fn what_was_known_before_sets_were_forgotten_is_known_behind() {
        assert!(!verify(counts(0), &LIMITS).unwrap().metered());
        let refusal = verify(counts(1), &LIMITS).unwrap_err();
        assert_eq!(refusal.instruction, "*(u64 *)(r1 + 0) = r7");
    }

    #[test]
    fn verdicts_are_the_same_however_little_room_there_is() {
        for entry in ENTRIES {
            for program in load(entry.object, &Limits::DEFAULT).unwrap() {
                let expected = verdict(&program, &Limits::DEFAULT, FULL);
                for full in [1, 40, 300] {
                    let found = verdict(&program, &Limits::DEFAULT, full);
                    assert!(found == expected, "{} with {full}: {found}", program.name);
                }
            }
        }
    }
}
