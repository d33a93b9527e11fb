//! Locks in words of remote memory: the words, and what a client concludes from reading them.
//!
//! Clients change the words by remote atomics alone; no program of the memory's owner takes part.
//!
//! ```text
//!               63   46 45      12 11      1     0
//! spinlock     | owner |  token   |  beat  |   held    |
//!               63             12 11      1     0
//! ticket lock  |     ticket      |  beat  | abandoned |   and a word that counts the tickets that were taken
//! ```
//! A holder raises the beat to renew its lease. A client that has seen the same word for a lease and an eighth
//! ([`LeaseWatch`]) concludes that the lease is over: the eighth allows for clocks that run at different rates.

/// Lowest bit: a spinlock is held; a ticket lock was passed on for a client whose lease was over.
const FLAG: u64 = 1;
const BEAT_SHIFT: u32 = 1;
const BEAT_MASK: u64 = (1 << 11) - 1;
const NUMBER_SHIFT: u32 = 12;
const TOKEN_MASK: u64 = (1 << 34) - 1;
const OWNER_SHIFT: u32 = 46;
/// Bits of a word of a slot that count its grants.
const GRANTS_BITS: u32 = 16;

const fn with_next_beat(word: u64) -> u64 {
    let beat = ((word >> BEAT_SHIFT) + 1) & BEAT_MASK;
    word & !(BEAT_MASK << BEAT_SHIFT) | beat << BEAT_SHIFT
}

/// The word of a spinlock; zero at first.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SpinWord(pub u64);

impl SpinWord {
    /// Whether a client has the lock.
    pub const fn is_held(self) -> bool {
        self.0 & FLAG != 0
    }

    /// Returns the token of its last holder.
    pub const fn token(self) -> u64 {
        self.0 >> NUMBER_SHIFT & TOKEN_MASK
    }

    /// Returns the word of the next holder, which the upper bits of its number name; `None` if the tokens are used up.
    pub fn taken_by(self, client: u64) -> Option<Self> {
        let (owner, token) = (client >> OWNER_SHIFT, self.token() + 1);
        (token <= TOKEN_MASK).then_some(Self(owner << OWNER_SHIFT | token << NUMBER_SHIFT | FLAG))
    }

    /// Returns the word with another lease of its holder.
    pub const fn renewed(self) -> Self {
        Self(with_next_beat(self.0))
    }

    /// Returns the word of the free lock.
    pub const fn freed(self) -> Self {
        Self(self.0 & !FLAG)
    }
}

/// The word of a ticket lock that names the ticket which is served; zero at first.
///
/// Only the client with this ticket renews or passes on, so the word names its owner.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct TicketWord(pub u64);

impl TicketWord {
    /// Tickets, the first of which is zero.
    pub const TICKETS_MAX: u64 = 1 << (64 - NUMBER_SHIFT);

    const fn serving(ticket: u64) -> Self {
        Self(ticket << NUMBER_SHIFT)
    }

    /// Returns the ticket that is served.
    pub const fn ticket(self) -> u64 {
        self.0 >> NUMBER_SHIFT
    }

    /// Whether a ticket before this one was skipped, and no holder has unlocked since.
    pub const fn is_abandoned(self) -> bool {
        self.0 & FLAG != 0
    }

    /// Returns the word with another lease of its holder.
    pub const fn renewed(self) -> Self {
        Self(with_next_beat(self.0))
    }

    /// Returns the word after its holder has unlocked.
    pub const fn passed_on(self) -> Self {
        Self::serving(self.ticket() + 1)
    }

    /// Returns the word after its ticket was skipped: the lease of its client is over.
    pub const fn skipped(self) -> Self {
        Self(self.passed_on().0 | FLAG)
    }

    /// Returns the word after its ticket was skipped, whose client has left the queue without the lock.
    pub const fn left(self) -> Self {
        Self(self.passed_on().0 | self.0 & FLAG)
    }
}

/// The word of a slot of a queue lock, which the tickets that are congruent modulo the number of slots share.
///
/// It is a hint: it saves requests and leases, and no lock depends on it. Its lower bits count grants (FETCH_ADD of
/// [`GRANT`](Self::GRANT)); the others name the last ticket whose client has left. A carry of the count names a
/// ticket that was served long ago.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SlotWord(pub u64);

impl SlotWord {
    /// What a grant adds.
    pub const GRANT: u64 = 1;

    /// Whether the client of this ticket has left.
    pub const fn has_left(self, ticket: u64) -> bool {
        self.0 >> GRANTS_BITS == (ticket + 1) << GRANTS_BITS >> GRANTS_BITS
    }

    /// Returns the word after the client of this ticket has left.
    pub const fn left_by(self, ticket: u64) -> Self {
        Self((ticket + 1) << GRANTS_BITS)
    }
}

/// Finds out that the lease of a holder is over: its word stays the same for a lease and an eighth.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct LeaseWatch {
    patience_ns: u64,
    /// The word that was seen last, and when it was seen first.
    seen: Option<(u64, u64)>,
}

impl LeaseWatch {
    /// Begins to watch a word.
    pub const fn new(lease_ns: u64) -> Self {
        Self { patience_ns: lease_ns.saturating_add(lease_ns / 8), seen: None }
    }

    /// Takes the word as a READ has returned it, which ended now; whether it was the same for long enough. It is replaced
    /// by a compare-and-swap, which fails if it has changed meanwhile.
    pub const fn is_over(&mut self, word: u64, now_ns: u64) -> bool {
        if let Some((before, since_ns)) = self.seen
            && before == word
        {
            return now_ns.saturating_sub(since_ns) >= self.patience_ns;
        }
        self.seen = Some((word, now_ns));
        false
    }
}

/// A client that waits until its ticket is served.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct TicketWait {
    ticket: u64,
    watch: LeaseWatch,
    /// When the last READ began that did not find it served: it was not then.
    unserved_ns: u64,
}

/// What a client does after a READ of the word of a ticket lock.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum TicketStep {
    /// It has the lock, and its lease began then, if that is not over.
    Served {
        /// Before any other client could see its ticket served.
        since_ns: u64,
    },
    /// Its ticket was skipped: it takes another.
    Overtaken,
    /// It replaces the word by that of the next ticket: the client of this one is dead, or stopped for its lease.
    Skip(TicketWord),
    /// It waits for this many others.
    Wait(u64),
}

impl TicketWait {
    /// Begins to wait with a ticket, which was requested then.
    pub const fn new(ticket: u64, requested_ns: u64, lease_ns: u64) -> Self {
        Self { ticket, watch: LeaseWatch::new(lease_ns), unserved_ns: requested_ns }
    }

    /// Takes the word as a READ has returned it, which began and ended at these times. The first may be posted with the
    /// FETCH_ADD of the ticket, in any order: a word never names an earlier ticket than before.
    pub const fn step(&mut self, word: TicketWord, began_ns: u64, ended_ns: u64) -> TicketStep {
        if word.ticket() == self.ticket {
            return TicketStep::Served { since_ns: self.unserved_ns };
        }
        if word.ticket() > self.ticket {
            return TicketStep::Overtaken;
        }
        self.unserved_ns = began_ns;
        if self.watch.is_over(word.0, ended_ns) {
            return TicketStep::Skip(word.skipped());
        }
        TicketStep::Wait(self.ticket - word.ticket())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_keep_their_fields_apart() {
        let first = SpinWord(0).taken_by(u64::MAX).unwrap();
        assert!(first.is_held() && first.token() == 1);
        let mut renewed = first;
        for _ in 0..=BEAT_MASK {
            renewed = renewed.renewed();
            assert!(renewed.is_held() && renewed.token() == 1);
        }
        assert_eq!(renewed, first);
        assert!(!first.freed().is_held() && first.freed().token() == 1);
        let second = first.freed().taken_by(0).unwrap();
        assert_eq!((second.token(), second.is_held()), (2, true));
        assert_eq!(SpinWord(TOKEN_MASK << NUMBER_SHIFT).taken_by(1), None);

        let last = TicketWord::serving(TicketWord::TICKETS_MAX - 2);
        assert_eq!(last.skipped().ticket(), TicketWord::TICKETS_MAX - 1);
        let skipped = TicketWord(0).renewed().skipped();
        assert!(skipped.is_abandoned() && skipped.renewed().is_abandoned());
        assert!(skipped.left().is_abandoned() && !skipped.passed_on().is_abandoned());
        assert_eq!(skipped.left().ticket(), 2);

        assert!(!SlotWord(0).has_left(0) && !SlotWord(SlotWord::GRANT).has_left(0));
        let left = SlotWord(77).left_by(5);
        assert!(left.has_left(5) && SlotWord(left.0 + SlotWord::GRANT).has_left(5));
        assert!(!left.has_left(4) && !left.has_left(6));
    }

    #[test]
    fn lease_is_over_after_the_same_word_for_a_lease_and_an_eighth() {
        let mut watch = LeaseWatch::new(800);
        assert!(!watch.is_over(1, 0) && !watch.is_over(1, 899) && watch.is_over(1, 900));
        assert!(!watch.is_over(2, 901) && !watch.is_over(1, 5000) && !watch.is_over(1, 5899));
    }
}
