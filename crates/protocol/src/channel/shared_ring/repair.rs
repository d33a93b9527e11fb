//! What dead senders leave in a ring: stretches that they have reserved and nobody will ever fill.
//!
//! Only a sender knows what it has reserved. When one has died, nothing of it lands any more, and
//! what it can have reserved lies before the head as it is then, the *limit*. Whenever the receiver
//! stands at a *gap* before the limit, a position with nothing whole there, it asks every living
//! sender for its smallest position from there on:
//!
//! ```text
//! receiver                                     each living sender
//!   query = gap | tag                    ->      starts no FETCH_ADD from now on,
//!                                                until those under way have come back, then
//!   answer                               <-      its smallest position >= gap | tag
//! ```
//! A FETCH_ADD after the answer adds to a head that is at the limit or beyond. So from the gap to
//! the smallest of all answers and the limit nothing belongs to anyone living: the receiver passes
//! it. There a living sender's record begins, which will come, or be asked about anew should that
//! sender die too.
//!
//! A sender that connects later has reserved nothing before it was welcomed, which is beyond the
//! limit. A death while a query is out takes the dead from those who are waited for, and the limit
//! is looked up anew when the query has ended. At most one query to a sender is unanswered at a
//! time, so its tag of three bits tells it from the one before.

use super::super::canary::{Canary, Mutant};
use super::super::effects::{Effects, Name, Told};
use super::super::half::{Own, Peer, PeerRegions, own as reach};
use super::super::shape::Shape;
use super::{ANSWERS, HEAD, POSITION_MAX, QUERY, TAG, WELCOME, WORD, Words};
use crate::wire::Violation;
use alloc::vec;
use alloc::vec::Vec;
use farside_base::{Memory, RemoteSlice};

/// The name of words to senders, whose success nobody waits for.
const WORDS: Name = Name(1);

/// What the receiver knows of one number.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
struct Sender {
    regions: Option<PeerRegions>,
    /// Of the last query to it.
    tag: u64,
    /// Its answer is to come.
    awaited: bool,
}

/// A query that is out.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Query {
    gap: u64,
    /// The limit at the time.
    limit: u64,
    /// The smallest answer so far.
    smallest: u64,
}

/// The senders of a ring by number, and the search for what the dead among them have left.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Repair {
    words: Words,
    senders: Vec<Sender>,
    /// What the dead have reserved lies before.
    limit: u64,
    /// A sender has died since the limit was looked up.
    stale: bool,
    query: Option<Query>,
    /// What has not come before this position belongs to nobody living.
    vacant: u64,
    /// At this position a living sender's record begins, if it is before the limit.
    owned: bool,
}

impl Repair {
    pub(super) fn new(shape: &Shape) -> Self {
        Self {
            words: Words::of(shape),
            senders: vec![Sender::default(); usize::from(shape.peers_max)],
            limit: 0,
            stale: false,
            query: None,
            vacant: 0,
            owned: false,
        }
    }

    /// A sender is there: it is told its number, and may reserve from then on.
    pub(super) fn connected<M: Memory>(
        &mut self,
        peer: Peer,
        regions: PeerRegions,
        own: Own<'_, M>,
        effects: &mut Effects,
    ) -> Result<(), Violation> {
        let Some(sender) = self.senders.get_mut(usize::from(peer.0)) else {
            return Err(Violation("more senders than the ring was made for"));
        };
        // An answer of the one who had this number before.
        let answer = ANSWERS + WORD * u64::from(peer.0);
        reach(match self.words.tail_apart {
            true => own.counters.store_word(answer, 0),
            false => own.bells.store_word(answer, 0),
        })?;
        *sender = Sender { regions: Some(regions), ..Sender::default() };
        let place = RemoteSlice { region: regions.bells, offset: WELCOME };
        let number = (u64::from(peer.0) + 1).to_le_bytes();
        effects.write_inline(peer, WORDS, Told::No, &[&number], place, None);
        Ok(())
    }

    /// A sender has died.
    pub(super) fn lost(&mut self, peer: Peer) {
        if let Some(sender) = self.senders.get_mut(usize::from(peer.0))
            && sender.regions.is_some()
        {
            *sender = Sender::default();
            self.stale = true;
        }
    }

    /// Whether this number is that of a living sender.
    pub(super) fn is_connected(&self, peer: Peer) -> bool {
        self.senders.get(usize::from(peer.0)).is_some_and(|sender| sender.regions.is_some())
    }

    /// Whether a record can name this sender.
    #[inline]
    pub(super) const fn has_number(&self, peer: Peer) -> bool {
        (peer.0 as usize) < self.senders.len()
    }

    /// Whether nothing of the dead lies at this position or beyond.
    #[inline]
    pub(super) const fn is_idle(&self, position: u64) -> bool {
        position >= self.limit && !self.stale
    }

    /// Nothing whole is at `gap`. How far, from there on, what has not come will never come.
    pub(super) fn vacant<M: Memory>(
        &mut self,
        gap: u64,
        canary: Canary,
        own: Own<'_, M>,
        effects: &mut Effects,
    ) -> Result<Option<u64>, Violation> {
        if !self.all_answered(canary, own)? {
            return Ok(None);
        }
        if self.stale {
            let head = reach(match self.words.head_apart {
                true => own.counters.load_word(HEAD),
                false => own.bells.load_word(HEAD),
            })?;
            if head > POSITION_MAX || !head.is_multiple_of(WORD) {
                return Err(Violation("a head that no ring has"));
            }
            // Whoever owned the position may have died.
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

    /// Asks every living sender; false when there is none.
    fn ask(&mut self, gap: u64, effects: &mut Effects) -> bool {
        for (number, sender) in (0..).zip(&mut self.senders) {
            let Some(regions) = sender.regions else {
                continue;
            };
            sender.tag = (sender.tag + 1) & TAG;
            sender.awaited = true;
            let place = RemoteSlice { region: regions.bells, offset: QUERY };
            let word = (gap | sender.tag).to_le_bytes();
            effects.write_inline(Peer(number), WORDS, Told::No, &[&word], place, None);
            self.query = Some(Query { gap, limit: self.limit, smallest: self.limit });
        }
        self.query.is_some()
    }

    /// Looks for the answers that are to come. False when one is missing.
    fn all_answered<M: Memory>(
        &mut self,
        canary: Canary,
        own: Own<'_, M>,
    ) -> Result<bool, Violation> {
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
            if !canary.is(Mutant::RepairSkipsLiving) {
                // One before the gap stops the ring, as a sender can that lies.
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
