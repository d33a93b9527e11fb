//! Repair of a ring after the death of a sender: finds the stretches that it has reserved and that will never be
//! filled.
//!
//! Only a sender knows its reservations. When one has died, none of its WRITEs lands any more, and all its
//! reservations are before the current head, the *limit*. Whenever the receiver arrives at a *gap* before the limit,
//! a position without a complete message, it asks every living sender for its smallest reserved position from there
//! on:
//!
//! ```text
//! receiver                                     each living sender
//!   query = gap | tag                    ->      starts no FETCH_ADD from now on,
//!                                                until those in flight have completed, then
//!   answer                               <-      its smallest position >= gap | tag
//! ```
//! A FETCH_ADD after the answer adds to a head that is at the limit or beyond. So no living sender owns any position
//! from the gap to the smallest of all answers and the limit: the receiver skips that stretch. After it begins the
//! record of a living sender, which will arrive, or be queried again if that sender dies too.
//!
//! A sender that connects later reserves nothing before it is welcomed, which is beyond the limit. If a sender dies
//! while a query is outstanding, its answer is no longer awaited, and the limit is read again when the query has
//! ended. At most one query to a sender is unanswered at a time, so its tag of three bits distinguishes it from the
//! previous one.

use super::super::canary::{ChannelMutant, mutant};
use super::super::effects::{Effects, Name, Notify, Peer};
use super::super::half::{Checked, Own, PeerRegions, Step, own as reach};
use super::super::shape::Shape;
use super::{ANSWERS, HEAD, POSITION_MAX, QUERY, RingWords, TAG, WELCOME, WORD};
use crate::wire::Violation;
use alloc::vec;
use alloc::vec::Vec;
use farside_base::{Memory, Planted, RemoteSlice};

/// The name of WRITEs of words to senders, which need no completion.
const WORDS: Name = Name(1);

/// The receiver's state of one sender number.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
struct SenderRepair {
    regions: Option<PeerRegions>,
    /// The tag of the last query to it.
    tag: u64,
    /// Its answer is outstanding.
    awaited: bool,
}

/// An outstanding query.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Query {
    gap: u64,
    /// The limit at its start.
    limit: u64,
    /// The smallest answer so far.
    smallest: u64,
}

/// The senders of a ring by number, and the search for reservations of dead ones.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Repair {
    words: RingWords,
    senders: Vec<SenderRepair>,
    /// All reservations of dead senders are before this position.
    limit: u64,
    /// A sender has died since the limit was read.
    stale: bool,
    query: Option<Query>,
    /// Missing messages before this position belong to no living sender.
    vacant: u64,
    /// A living sender's record begins at `vacant`, if that is before the limit.
    owned: bool,
    pub(super) mutant: Planted<ChannelMutant>,
}

impl Repair {
    pub(super) fn new(shape: &Shape) -> Self {
        Self {
            words: RingWords::of(shape),
            senders: vec![SenderRepair::default(); usize::from(shape.peers_max)],
            limit: 0,
            stale: false,
            query: None,
            vacant: 0,
            owned: false,
            mutant: Planted::NONE,
        }
    }

    /// Connects a sender: it is sent its number, and may reserve from then on.
    pub(super) fn connected(
        &mut self,
        peer: Peer,
        regions: PeerRegions,
        step: &mut Step<'_, impl Memory>,
    ) -> Checked {
        let Step { own, effects } = step;
        let Some(sender) = self.senders.get_mut(usize::from(peer.0)) else {
            return Err(Violation("more senders than the ring was made for"));
        };
        // Clears an answer of the previous sender with this number.
        let answer = ANSWERS + WORD * u64::from(peer.0);
        reach(match self.words.tail_apart {
            true => own.counters.store_word(answer, 0),
            false => own.bells.store_word(answer, 0),
        })?;
        *sender = SenderRepair { regions: Some(regions), ..SenderRepair::default() };
        let place = RemoteSlice { region: regions.bells, offset: WELCOME };
        let number = (u64::from(peer.0) + 1).to_le_bytes();
        effects.write_inline(peer, WORDS, Notify::No, &[&number], place, None);
        Ok(())
    }

    /// Notes the death of a sender.
    pub(super) fn lost(&mut self, peer: Peer) {
        if let Some(sender) = self.senders.get_mut(usize::from(peer.0))
            && sender.regions.is_some()
        {
            *sender = SenderRepair::default();
            self.stale = true;
        }
    }

    /// Whether a living sender has this number.
    pub(super) fn is_connected(&self, peer: Peer) -> bool {
        self.senders.get(usize::from(peer.0)).is_some_and(|sender| sender.regions.is_some())
    }

    /// Whether a record can name this sender.
    #[inline]
    pub(super) const fn has_number(&self, peer: Peer) -> bool {
        (peer.0 as usize) < self.senders.len()
    }

    /// Whether dead senders have no reservation at this position or beyond.
    #[inline]
    pub(super) const fn is_idle(&self, position: u64) -> bool {
        position >= self.limit && !self.stale
    }

    /// Handles a gap: returns the position up to which missing messages will never arrive, once it is known.
    pub(super) fn vacant<M: Memory>(
        &mut self,
        gap: u64,
        step: &mut Step<'_, M>,
    ) -> Checked<Option<u64>> {
        let Step { own, effects } = step;
        if !self.all_answered(*own)? {
            return Ok(None);
        }
        if self.stale {
            let head = reach(match self.words.head_apart {
                true => own.counters.load_word(HEAD),
                false => own.bells.load_word(HEAD),
            })?;
            if head > POSITION_MAX || !head.is_multiple_of(WORD) {
                return Err(Violation("an invalid head"));
            }
            // The sender that owned the position may have died.
            (self.limit, self.stale, self.owned) = (head, false, false);
        }
        if gap >= self.limit || (self.owned && gap == self.vacant) {
            return Ok(None);
        }
        if gap >= self.vacant && !self.ask(gap, effects) {
            self.vacant = self.limit;
        }
        Ok(Some(self.vacant).filter(|vacant| *vacant > gap))
    }

    /// Queries every living sender; false if there is none.
    fn ask(&mut self, gap: u64, effects: &mut Effects) -> bool {
        for (number, sender) in (0..).zip(&mut self.senders) {
            let Some(regions) = sender.regions else {
                continue;
            };
            sender.tag = (sender.tag + 1) & TAG;
            sender.awaited = true;
            let place = RemoteSlice { region: regions.bells, offset: QUERY };
            let word = (gap | sender.tag).to_le_bytes();
            effects.write_inline(Peer(number), WORDS, Notify::No, &[&word], place, None);
            self.query = Some(Query { gap, limit: self.limit, smallest: self.limit });
        }
        self.query.is_some()
    }

    /// Polls the outstanding answers. False if one is missing.
    fn all_answered<M: Memory>(&mut self, own: Own<'_, M>) -> Checked<bool> {
        let Some(query) = &mut self.query else {
            return Ok(true);
        };
        let mut missing = false;
        for (number, sender) in (0..).zip(&mut self.senders).filter(|(_, one)| one.awaited) {
            let answer = ANSWERS + WORD * number;
            let word = reach(match self.words.tail_apart {
                true => own.counters.load_word(answer),
                false => own.bells.load_word(answer),
            })?;
            if word & TAG != sender.tag {
                missing = true;
                continue;
            }
            sender.awaited = false;
            if !mutant!(self, RepairSkipsLiving) {
                // An answer below the gap stops the ring, which a lying sender can do anyway.
                query.smallest = query.smallest.min(word & !TAG).max(query.gap);
            }
        }
        if !missing {
            self.vacant = self.vacant.max(query.smallest);
            self.owned = query.smallest < query.limit;
            self.query = None;
        }
        Ok(!missing)
    }
}
