//! The hit path of locks: a lock is one compare-and-swap on the caller's thread, and so is its unlock. No
//! machine, mutex, system call or allocation.
//!
//! The lock machine lends lines whose locks are unused (`farside_protocol::lock`, "Loans"). The engine puts
//! a loan into the cell of its line; sessions lock and unlock there, one at a time. The engine takes the
//! loan back before it passes the machine any event that names the line. A second reader or an upgrade finds
//! the lock held, goes through the engine, and so ends the loan.
//!
//! **Contention within the node.** A session that finds a conflicting lock held on loan spins for its budget
//! before it asks the engine, so threads of one node hand a lock over in its cell (barging: any of them may
//! get it). A session that has used up its budget queues at the machine and is the next holder. That ends the
//! loan; the cell is then marked as contended until the machine's queue is empty, when the line is lent again
//! at once. Meanwhile sessions spin here before they queue, so that the queue does become empty: the textbook
//! form is a mutex with a starvation mode. A message of another node removes the mark, since its requests
//! are only in the machine's queue; it comes back when sessions of this node alone wait there.
//!
//! | what | who changes it | when |
//! | --- | --- | --- |
//! | a state's `LENT` | the engine alone | `lend` sets it, `take_back` clears it |
//! | a state's `HELD` and count | any session, by compare-and-swap | `lock` and `unlock`, only while lent |
//! | | the engine | with `LENT` |
//! | a cell's holder | the session that raised the count | once, right after it did |
//! | | the engine | `lend` clears it |
//! | a cell's line, token, end, bytes | the engine alone | `lend`, while nothing is lent |
//! | a cell's first count, candidate | the engine alone; sessions read the candidate, as a hint | any time |
//!
//! **No state repeats.** Each grant and each loan increments the count, which has 62 bits: centuries of
//! grants. So when a compare-and-swap of a state succeeds, the cell has not changed since the state was
//! loaded, and what was read of it in between belongs to this loan. (The holder is stored next to the
//! state, not in it, to leave these bits to the count.)
//!
//! **No holder is lost.** The state is changed by read-modify-writes only, so `take_back` sees whether the
//! lock is held at that moment. The session that holds it has then incremented the count, and has stored
//! its name or is about to: `take_back` waits for this one store, as other accesses wait for a copy under a
//! tag's busy bit. A holder stored for an earlier grant of the loan has another stamp; those of earlier
//! loans are cleared.
//!
//! **No lock is unlocked twice.** A session that finds itself as the holder for the state's count holds the
//! lock; only itself and the engine end that. If its compare-and-swap fails, the engine has taken the loan
//! back, and the lock is in the machine.
//!
//! **Order.** Locking acquires what the previous holder released, also if that was done by the engine: the
//! state is lent by a release store, after the machine has seen the unlock.

use crate::hit::processor::pause;
use farside_base::LineAddress;
use farside_protocol::lock::{Loan, Mode, Range};

use std::sync::Arc;
// Counters that order nothing: excluded from the model's search.
use std::sync::atomic::AtomicU64 as Count;
use std::sync::atomic::Ordering::Relaxed;

#[cfg(loom)]
use loom::sync::atomic::{AtomicU64, Ordering};
#[cfg(shuttle)]
use shuttle::sync::atomic::{AtomicU64, Ordering};
#[cfg(not(any(loom, shuttle)))]
use std::sync::atomic::{AtomicU64, Ordering};

/// Maximum lines of a node that are lent at a time; one per hash value.
pub(crate) const CELLS: usize = 4_096;

/// How many more unlocks a line needs before it is lent again, if another session requested its held lock
/// during the last loan.
const UNLOCKS_IN_DISPUTE: u64 = 7;
const UNLOCKS_MASK: u64 = 63;
/// In place of that number: sessions of this node wait at the machine, and no others.
const CONTENDED: u64 = 32;

const LENT: u64 = 1;
const HELD: u64 = 2;
/// One increment of the count.
const COUNT: u64 = 4;

const STAMP_SHIFT: u32 = 54;
const TOLD: u64 = 1 << 53;
const SESSION_SHIFT: u32 = 33;
const SESSION_MASK: u64 = 0xf_ffff;
const WRITE: u64 = 1 << 32;
const START_SHIFT: u32 = 16;
const OFFSET_MASK: u64 = 0xffff;

const _: () = assert!(UNLOCKS_IN_DISPUTE < CONTENDED && CONTENDED <= UNLOCKS_MASK);
const _: () = assert!(farside_base::LineSize::MIN.bytes() as u64 == UNLOCKS_MASK + 1);
const _: () = assert!(farside_base::LineSize::MAX.bytes() as u64 == OFFSET_MASK + 1);
const _: () = assert!((farside_base::Limits::DEFAULT.sessions_max as u64) < SESSION_MASK);

/// A session's index in the engine's table.
pub(crate) type Place = u32;

/// A lock on loan.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct LentLock {
    /// The session's index.
    pub(crate) place: Place,
    /// The locked bytes of the line.
    pub(crate) range: Range,
    /// The lock mode.
    pub(crate) mode: Mode,
}

impl LentLock {
    /// Whether two locks exclude each other.
    pub(crate) const fn conflicts(self, other: Self) -> bool {
        (matches!(self.mode, Mode::Write) || matches!(other.mode, Mode::Write))
            && self.range.overlaps(other.range)
    }

    /// Encodes it in one word, stamped with the low bits of the grant's count.
    #[inline(always)]
    fn word(self, state: u64) -> u64 {
        let Range { start, bytes } = self.range;
        (state / COUNT) << STAMP_SHIFT
            | TOLD
            | u64::from(self.place) << SESSION_SHIFT
            | if self.mode == Mode::Write { WRITE } else { 0 }
            | u64::from(start) << START_SHIFT
            | u64::from(bytes - 1)
    }

    /// The holder in `state`, if the word has the stamp of that grant.
    fn of_word(word: u64, state: u64) -> Option<Self> {
        if word & TOLD == 0 || word >> STAMP_SHIFT << STAMP_SHIFT != (state / COUNT) << STAMP_SHIFT
        {
            return None;
        }
        Some(Self {
            place: (word >> SESSION_SHIFT & SESSION_MASK) as Place,
            range: Range {
                start: (word >> START_SHIFT & OFFSET_MASK) as u32,
                bytes: (word & OFFSET_MASK) as u32 + 1,
            },
            mode: if word & WRITE == 0 { Mode::Read } else { Mode::Write },
        })
    }
}

/// The result of taking a loan back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Returned {
    /// The number of tokens used.
    pub(crate) used: u32,
    /// The holder of the lock, with the last of them.
    pub(crate) held: Option<LentLock>,
}

/// One cache line of the processor, for one lent line.
#[repr(align(64))]
#[derive(Debug)]
struct Cell {
    /// `LENT`, `HELD` and the count.
    state: AtomicU64,
    /// The line; zero before the first loan.
    line: AtomicU64,
    /// The token of a grant minus its count, wrapping.
    token: AtomicU64,
    /// The state's count after the last grant of the loan.
    end: AtomicU64,
    /// Bytes of the line that can be locked.
    bytes: AtomicU64,
    holder: AtomicU64,
    /// The count when the loan began.
    first: AtomicU64,
    /// The line that was last unlocked without being lent; its low bits count the further unlocks it needs
    /// before it is lent, or are [`CONTENDED`].
    candidate: AtomicU64,
}

impl Cell {
    fn new() -> Self {
        let zero = || AtomicU64::new(0);
        Self {
            state: zero(),
            line: zero(),
            token: zero(),
            end: zero(),
            bytes: zero(),
            holder: zero(),
            first: zero(),
            candidate: zero(),
        }
    }

    /// Whether the loan has a token left for a grant in this state, and covers the bytes.
    #[inline(always)]
    fn grants(&self, state: u64, Range { start, bytes }: Range) -> bool {
        state < self.end.load(Ordering::Relaxed)
            && u64::from(start) + u64::from(bytes) <= self.bytes.load(Ordering::Relaxed)
    }

    /// Engine: ends the loan, if there is one.
    fn take_back(&self) -> Option<Returned> {
        if self.state.load(Ordering::Relaxed) & LENT == 0 {
            return None;
        }
        let state = self.state.fetch_and(!(LENT | HELD), Ordering::AcqRel);
        let used = state / COUNT - self.first.load(Ordering::Relaxed);
        let held = (state & HELD != 0).then(|| self.holder_of(state));
        if held.is_some() {
            let line = self.line.load(Ordering::Relaxed);
            self.candidate.store(line | UNLOCKS_IN_DISPUTE, Ordering::Relaxed);
        }
        Some(Returned { used: used as u32, held })
    }

    /// The holder of a state that was held; it may still have to store its name.
    fn holder_of(&self, state: u64) -> LentLock {
        let mut tries = 0_u32;
        loop {
            if let Some(held) = LentLock::of_word(self.holder.load(Ordering::Acquire), state) {
                return held;
            }
            tries += 1;
            pause(tries);
        }
    }
}

/// The lent lines of a node. Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct LockCells(Arc<[Cell]>);

impl LockCells {
    /// Nothing is lent.
    pub(crate) fn new(cells: usize) -> Self {
        Self((0..cells.next_power_of_two()).map(|_| Cell::new()).collect::<Vec<_>>().into())
    }

    #[inline(always)]
    fn cell(&self, line: LineAddress) -> &Cell {
        let hash = (line.to_bits() >> 6).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48;
        &self.0[hash as usize & (self.0.len() - 1)]
    }

    /// Session: locks a range of a lent, unheld line and returns the token. Does not wait.
    ///
    /// `trusted` says whether this node is a member; it is called after the load of the state. The state
    /// has not changed when the lock succeeds, so the lock was free, and taken, at that moment.
    #[inline(always)]
    pub(crate) fn lock(
        &self,
        line: LineAddress,
        held: LentLock,
        trusted: impl FnOnce() -> bool,
    ) -> Option<u64> {
        let cell = self.cell(line);
        let seen = cell.state.load(Ordering::Acquire);
        if seen & (LENT | HELD) != LENT
            || cell.line.load(Ordering::Relaxed) != line.to_bits()
            || !cell.grants(seen, held.range)
            || !trusted()
        {
            return None;
        }
        let token = cell.token.load(Ordering::Relaxed).wrapping_add(seen / COUNT);
        let now = (seen | HELD) + COUNT;
        cell.state.compare_exchange(seen, now, Ordering::SeqCst, Ordering::Relaxed).ok()?;
        cell.holder.store(held.word(now), Ordering::Release);
        Some(token)
    }

    /// Session: whether a lock that was not granted on loan will probably be soon: another session of this node
    /// holds a conflicting one on loan, or the line is about to be lent again. A hint.
    pub(crate) fn is_contended(&self, line: LineAddress, wanted: LentLock) -> bool {
        let cell = self.cell(line);
        if cell.candidate.load(Ordering::Relaxed) == line.to_bits() | CONTENDED {
            return true;
        }
        let state = cell.state.load(Ordering::Acquire);
        if cell.line.load(Ordering::Relaxed) != line.to_bits() {
            return false;
        }
        match state & (LENT | HELD) {
            0 => false,
            LENT => cell.grants(state, wanted.range),
            _ => {
                // A holder that has not stored its name is not known to conflict, but it probably does.
                let holder = LentLock::of_word(cell.holder.load(Ordering::Relaxed), state);
                holder.is_none_or(|held| held.conflicts(wanted) && held.place != wanted.place)
            }
        }
    }

    /// Session: unlocks exactly what it holds on loan; false if it holds no such lock (any more).
    #[inline(always)]
    pub(crate) fn unlock(&self, line: LineAddress, held: LentLock) -> bool {
        let cell = self.cell(line);
        let seen = cell.state.load(Ordering::Relaxed);
        seen & (LENT | HELD) == LENT | HELD
            && cell.line.load(Ordering::Relaxed) == line.to_bits()
            && cell.holder.load(Ordering::Relaxed) == held.word(seen)
            && cell
                .state
                .compare_exchange(seen, seen & !HELD, Ordering::SeqCst, Ordering::Relaxed)
                .is_ok()
    }

    /// Engine: marks a line that is not lent as contended: sessions of this node wait for it, and no others.
    pub(crate) fn contend(&self, line: LineAddress) {
        self.cell(line).candidate.store(line.to_bits() | CONTENDED, Ordering::Relaxed);
    }

    /// Engine: removes that mark, if the line has it.
    pub(crate) fn dispute(&self, line: LineAddress) {
        let cell = self.cell(line);
        if cell.candidate.load(Ordering::Relaxed) == line.to_bits() | CONTENDED {
            cell.candidate.store(line.to_bits() | UNLOCKS_IN_DISPUTE, Ordering::Relaxed);
        }
    }

    /// Engine: removes that mark from all lines; for rare sweeps.
    pub(crate) fn dispute_all(&self) {
        let marked =
            |cell: &&Cell| cell.candidate.load(Ordering::Relaxed) & UNLOCKS_MASK == CONTENDED;
        self.0.iter().filter(marked).for_each(|cell| cell.candidate.store(0, Ordering::Relaxed));
    }

    /// Engine: whether to lend a line that was just unlocked. It is lent if it was also the last line
    /// unlocked in its cell, so that lines used once cost no loans (after some more unlocks if sessions
    /// dispute it, at once if they are all of this node), and if the lock of the line now in the cell is not
    /// held.
    pub(crate) fn wants(&self, line: LineAddress) -> bool {
        let cell = self.cell(line);
        let candidate = cell.candidate.load(Ordering::Relaxed);
        if candidate == line.to_bits() || candidate == line.to_bits() | CONTENDED {
            return cell.state.load(Ordering::Relaxed) & HELD == 0;
        }
        let again = candidate & !UNLOCKS_MASK == line.to_bits();
        let next = if again { candidate - 1 } else { line.to_bits() };
        cell.candidate.store(next, Ordering::Relaxed);
        false
    }

    /// Engine: ends the loan in the cell of `line`, whichever line it is of.
    pub(crate) fn make_room(&self, line: LineAddress) -> Option<(LineAddress, Returned)> {
        let cell = self.cell(line);
        let returned = cell.take_back()?;
        LineAddress::from_bits(cell.line.load(Ordering::Relaxed)).map(|line| (line, returned))
    }

    /// Engine: lends a line, in an empty cell.
    pub(crate) fn lend(&self, line: LineAddress, loan: Loan) {
        let cell = self.cell(line);
        let count = cell.state.load(Ordering::Relaxed) / COUNT + 1;
        debug_assert_eq!(cell.state.load(Ordering::Relaxed) & (LENT | HELD), 0, "lent already");
        cell.line.store(line.to_bits(), Ordering::Relaxed);
        cell.token.store(loan.first.0.wrapping_sub(count), Ordering::Relaxed);
        cell.end.store((count + u64::from(loan.tokens)) * COUNT, Ordering::Relaxed);
        cell.bytes.store(loan.bytes.into(), Ordering::Relaxed);
        cell.first.store(count, Ordering::Relaxed);
        cell.candidate.store(0, Ordering::Relaxed);
        cell.holder.store(0, Ordering::Relaxed);
        cell.state.store((count * COUNT) | LENT, Ordering::Release);
    }

    /// Engine: ends the loan of a line, if it is lent.
    pub(crate) fn take_back(&self, line: LineAddress) -> Option<Returned> {
        let cell = self.cell(line);
        if cell.line.load(Ordering::Relaxed) != line.to_bits() {
            return None;
        }
        cell.take_back()
    }

    /// Engine: the lent lines, in no particular order; for rare sweeps.
    pub(crate) fn lent(&self) -> impl Iterator<Item = LineAddress> + '_ {
        let lent = |cell: &&Cell| cell.state.load(Ordering::Relaxed) & LENT != 0;
        let line = |cell: &Cell| LineAddress::from_bits(cell.line.load(Ordering::Relaxed));
        self.0.iter().filter(lent).filter_map(line)
    }

    /// Engine: whether a line is lent and its lock held, perhaps by this session. Exact for a session that
    /// locks nothing meanwhile.
    pub(crate) fn may_be_held_by(&self, line: LineAddress, place: Place) -> bool {
        let cell = self.cell(line);
        let state = cell.state.load(Ordering::Acquire);
        let word = cell.holder.load(Ordering::Relaxed);
        state & HELD != 0 && LentLock::of_word(word, state).is_none_or(|held| held.place == place)
    }
}

/// How many locks a session holds; each count has one writer.
#[derive(Debug, Default)]
pub(crate) struct LockCounts {
    /// Session: locks granted on loan.
    pub(crate) hits: Count,
    /// Session: unlocks on loan.
    unlocks: Count,
    /// Engine: its locks on loan that have moved to the machine.
    taken: Count,
    /// Engine: its locks and requests in the machine, less those moved; wrapping.
    others: Count,
}

impl LockCounts {
    /// Session: counts a lock on loan.
    #[inline(always)]
    pub(crate) fn locked(&self) {
        add(&self.hits, 1);
    }

    /// Session: counts an unlock.
    #[inline(always)]
    pub(crate) fn unlocked(&self) {
        add(&self.unlocks, 1);
    }

    /// Locks held and awaited, on loan or not. Exact for the session's own thread.
    #[inline(always)]
    pub(crate) fn all(&self) -> u64 {
        self.hits_less_unlocks().wrapping_add(self.others.load(Relaxed))
    }

    /// Engine, for the session's own thread: locks held on loan.
    pub(crate) fn on_loan(&self) -> u64 {
        self.hits_less_unlocks().wrapping_sub(self.taken.load(Relaxed))
    }

    #[inline(always)]
    fn hits_less_unlocks(&self) -> u64 {
        self.hits.load(Relaxed).wrapping_sub(self.unlocks.load(Relaxed))
    }

    /// Engine: counts a lock on loan that moved to the machine, so that [`all`](Self::all) is unchanged.
    pub(crate) fn took(&self) {
        add(&self.taken, 1);
    }

    /// Engine: sets the number of locks and requests that the machine counts for the session.
    pub(crate) fn set_machine(&self, locks: u32) {
        self.others.store(u64::from(locks).wrapping_sub(self.taken.load(Relaxed)), Relaxed);
    }
}

/// For counts with one writer at a time.
#[inline(always)]
pub(crate) fn add(count: &Count, more: u64) {
    count.store(count.load(Relaxed).wrapping_add(more), Relaxed);
}

/// Makes locking and unlocking order like a fence: later reads do not precede earlier writes. On x86 the
/// compare-and-swap does.
#[inline(always)]
pub(crate) fn order() {
    #[cfg(not(target_arch = "x86_64"))]
    std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
}

#[cfg(test)]
#[path = "lock_hit_tests.rs"]
mod tests;
