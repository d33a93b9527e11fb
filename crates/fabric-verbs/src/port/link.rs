//! One link of a port: its queue pair, its requests in flight, and how it ends.

use crate::ffi::{QueuePair, QueuePairHandle};
use crate::token::Token;
use crate::wire::QueuePairEnd;
use farside_base::{CompletionKind, CompletionStatus, LinkId, ReceiveQueueId, WorkId};
use std::collections::VecDeque;

/// Most links of a port at a time: the low bits of a link's number are its table index, the rest,
/// except the highest, how often the entry was used. The highest bit marks receives in `wr_id`.
pub(super) const PLACE_BITS: u32 = 12;
const PLACES_MAX: usize = 1 << PLACE_BITS;
const AGES: u32 = 1 << (31 - PLACE_BITS);

pub(super) fn place_of(link: LinkId) -> usize {
    (link.0 as usize) & (PLACES_MAX - 1)
}

fn age_of(link: LinkId) -> u32 {
    link.0 >> PLACE_BITS
}

/// A request in flight.
#[derive(Clone, Copy, Debug)]
pub(super) struct RequestEntry {
    pub(super) id: WorkId,
    pub(super) bytes: u32,
    pub(super) kind: CompletionKind,
    /// Signaled by the program.
    pub(super) signalled: bool,
    /// The work request is signaled: the adapter reports its success.
    pub(super) told: bool,
    /// It is an atomic on a word that is not aligned.
    pub(super) misaligned: bool,
    /// It takes a receive of the peer.
    pub(super) takes_receive: bool,
    /// Not a request of the program: it checks whether those before it are done.
    pub(super) probe: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum LinkState {
    /// This side has dialled.
    Connecting,
    /// The peer has dialled, and this program was asked.
    Requested,
    Up,
    /// A request failed, or the link is lost: posted requests are flushed. `first` is how the first of
    /// them completes, once.
    Down {
        first: Option<CompletionStatus>,
    },
}

pub(super) struct VerbsLink {
    pub(super) id: LinkId,
    pub(super) token: Token,
    pub(super) state: LinkState,
    pub(super) pair: Option<QueuePair>,
    pub(super) handle: Option<QueuePairHandle>,
    /// The number of the queue pair.
    pub(super) pair_number: u32,
    pub(super) own: Option<QueuePairEnd>,
    pub(super) peer: Option<QueuePairEnd>,
    pub(super) from: String,
    pub(super) queue: Option<ReceiveQueueId>,
    /// Oldest first; the number of the first is `first`.
    pub(super) in_flight: VecDeque<RequestEntry>,
    pub(super) first: u32,
    /// Completions that wait to be polled.
    pub(super) unpolled: u32,
    /// How many of those in flight the adapter will report (signaled).
    pub(super) told: u32,
    /// How many in a row at the end it will not report (unsignaled).
    pub(super) untold: u32,
    /// How many are no requests of the program's.
    pub(super) asks: u32,
    /// When something was posted to an idle link, or was done, in ticks.
    pub(super) since: u64,
    /// A list was begun that the adapter's doorbell has not announced.
    pub(super) begun: bool,
    pub(super) trouble: Option<String>,
    /// `Lost` was reported.
    pub(super) lost: bool,
    /// This adapter has refused a request of the peer's, or ended the connection without a reason.
    pub(super) spoilt: Option<Spoilt>,
    /// The peer's fabric reports that its adapter has refused a request of this side's.
    pub(super) refused_there: bool,
}

/// Why this adapter ended a connection.
pub(super) struct Spoilt {
    /// In ticks.
    pub(super) since: u64,
    /// The reason, if the adapter reported one.
    pub(super) words: Option<String>,
}

impl VerbsLink {
    pub(super) fn new(id: LinkId, token: Token, state: LinkState) -> Self {
        Self {
            id,
            token,
            state,
            pair: None,
            handle: None,
            pair_number: 0,
            own: None,
            peer: None,
            from: String::new(),
            queue: None,
            in_flight: VecDeque::new(),
            first: 0,
            unpolled: 0,
            told: 0,
            untold: 0,
            asks: 0,
            since: 0,
            begun: false,
            trouble: None,
            lost: false,
            spoilt: None,
            refused_there: false,
        }
    }

    /// Takes a queue pair, and room for its requests.
    pub(super) fn equip(&mut self, pair: QueuePair, queue: ReceiveQueueId, requests: u32) {
        self.handle = Some(pair.handle());
        self.pair_number = pair.number();
        self.pair = Some(pair);
        self.queue = Some(queue);
        self.in_flight.reserve(requests as usize + 1);
    }

    /// Returns whether another request of the program's has room.
    #[inline]
    pub(super) fn has_room(&self, outstanding_max: u32) -> bool {
        self.in_flight.len() as u32 - self.asks + self.unpolled < outstanding_max
    }

    /// Returns the `wr_id` of the next request.
    #[inline]
    pub(super) fn next_request(&self) -> u64 {
        let number = self.first.wrapping_add(self.in_flight.len() as u32);
        u64::from(self.id.0) << 32 | u64::from(number)
    }

    /// Records a request that is posted to the adapter now.
    #[inline]
    pub(super) fn note(&mut self, entry: RequestEntry, ticks: u64) {
        if self.in_flight.is_empty() {
            self.since = ticks;
        }
        self.asks += u32::from(entry.probe);
        if entry.told {
            self.told += 1;
            self.untold = 0;
        } else {
            self.untold += 1;
        }
        self.in_flight.push_back(entry);
    }

    /// Takes the oldest request out.
    #[inline]
    pub(super) fn pop(&mut self) -> Option<RequestEntry> {
        let entry = self.in_flight.pop_front()?;
        self.first = self.first.wrapping_add(1);
        self.told -= u32::from(entry.told);
        self.asks -= u32::from(entry.probe);
        Some(entry)
    }

    /// Returns how many requests are older than the one of this number; `None` if that is not in
    /// flight.
    #[inline]
    pub(super) fn older_than(&self, number: u32) -> Option<usize> {
        let older = number.wrapping_sub(self.first) as usize;
        (older < self.in_flight.len()).then_some(older)
    }

    pub(super) fn is_down(&self) -> bool {
        matches!(self.state, LinkState::Down { .. })
    }
}

/// The links of a port, by table index.
#[derive(Default)]
pub(super) struct Links {
    places: Vec<LinkSlot>,
    /// Free entries, longest free first.
    free: VecDeque<usize>,
}

struct LinkSlot {
    /// The number of the entry's current or last link.
    last: LinkId,
    link: Option<Box<VerbsLink>>,
}

impl Links {
    /// Adds a link, unless the table is full.
    pub(super) fn add(&mut self, token: Token, state: LinkState) -> Option<&mut VerbsLink> {
        let at = match self.free.pop_front() {
            Some(at) => {
                let age = (age_of(self.places[at].last) + 1) % AGES;
                self.places[at].last = LinkId(age << PLACE_BITS | at as u32);
                at
            }
            None if self.places.len() < PLACES_MAX => {
                let at = self.places.len();
                self.places.push(LinkSlot { last: LinkId(at as u32), link: None });
                at
            }
            None => return None,
        };
        let place = &mut self.places[at];
        let link = Box::new(VerbsLink::new(place.last, token, state));
        Some(place.link.insert(link))
    }

    #[inline]
    pub(super) fn find(&mut self, id: LinkId) -> Option<&mut VerbsLink> {
        let link = self.places.get_mut(place_of(id))?.link.as_deref_mut()?;
        (link.id == id).then_some(link)
    }

    pub(super) fn look(&self, id: LinkId) -> Option<&VerbsLink> {
        let link = self.places.get(place_of(id))?.link.as_deref()?;
        (link.id == id).then_some(link)
    }

    /// Returns whether there was such a link, which is closed.
    pub(super) fn is_gone(&self, id: LinkId) -> bool {
        let place = self.places.get(place_of(id));
        place.is_some_and(|place| {
            let present = place.link.is_some() && place.last == id;
            !present && age_of(id) <= age_of(place.last)
        })
    }

    pub(super) fn remove(&mut self, id: LinkId) -> Option<Box<VerbsLink>> {
        let at = place_of(id);
        self.find(id)?;
        self.free.push_back(at);
        self.places[at].link.take()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &VerbsLink> {
        self.places.iter().filter_map(|place| place.link.as_deref())
    }

    /// Returns the first link at or after table index `from`, and the index behind it: walks the links while they
    /// change, without an allocation.
    pub(super) fn next_from(&self, from: usize) -> Option<(LinkId, usize)> {
        let rest = self.places.get(from..)?;
        let at = from + rest.iter().position(|place| place.link.is_some())?;
        Some((self.places[at].last, at + 1))
    }

    pub(super) fn by_token(&mut self, token: Token) -> Option<&mut VerbsLink> {
        let mut links = self.places.iter_mut().filter_map(|place| place.link.as_deref_mut());
        links.find(|link| link.token == token)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_once_and_those_before_are_gone() {
        let mut links = Links::default();
        let first = links.add(Token(1), LinkState::Up).unwrap().id;
        let second = links.add(Token(2), LinkState::Up).unwrap().id;
        assert!(!links.is_gone(first) && links.find(first).is_some());
        assert!(links.remove(first).is_some() && links.remove(first).is_none());
        assert!(links.is_gone(first) && links.find(first).is_none());
        let third = links.add(Token(3), LinkState::Up).unwrap().id;
        assert!(third != first && third != second);
        assert!(links.is_gone(first) && !links.is_gone(third));
        assert!(!links.is_gone(LinkId(u32::MAX)) && !links.is_gone(LinkId(first.0 + 1000)));
        assert_eq!(links.by_token(Token(3)).map(|link| link.id), Some(third));
    }

    #[test]
    fn older_requests_are_counted_over_the_end_of_numbers() {
        let mut links = Links::default();
        let link = links.add(Token(1), LinkState::Up).unwrap();
        link.first = u32::MAX - 1;
        let entry = RequestEntry {
            id: WorkId(1),
            bytes: 0,
            kind: CompletionKind::Write,
            signalled: false,
            told: false,
            misaligned: false,
            takes_receive: false,
            probe: false,
        };
        for _ in 0..4 {
            link.note(entry, 1);
        }
        assert_eq!(link.older_than(u32::MAX), Some(1));
        assert_eq!(link.older_than(1), Some(3));
        assert_eq!(link.older_than(2), None);
        assert_eq!(link.older_than(u32::MAX - 2), None);
        assert!(link.has_room(5) && !link.has_room(4));
    }
}
