//! Lines requested ahead of their use (prefetch), and the calls on several ranges.
//!
//! A line is requested ahead by an operation that no call waits for, [`OperationKind::Prefetch`], in a slot
//! after those of calls and writes. It brings the line as a miss does, and nothing else: bytes are read and
//! written later, in program order, by the accesses themselves, and these report errors. A line that is recalled
//! or evicted before its use is fetched again by the access.
//!
//! **Window.** An access that waits requests the lines that follow, if they are within the next
//! [`prefetch_slots`](super::prefetch_slots) lines, and within a quarter of what the cache can hold: a line that
//! was requested ahead is used before the replacement order reaches it. From then on it looks again whenever it
//! has passed half of these lines. The engine drops a request for a line in transition.

use super::access::Ahead;
use super::{CALL_SLOTS, LinePiece, Session, pieces};
use crate::operation::OperationKind;
use crate::{Error, GlobalAddress};
use farside_protocol::coherence::Want;

/// The share of the cache's lines of a size that one session may request ahead.
const CACHE_SHARE: usize = 4;

/// Serves parts in order by `$hit`, which returns whether it could, or else by `$slow`, which is likely to wait if
/// `$waits`. From then on, it requests the lines of the parts that follow.
macro_rules! in_order {
    ($session:ident, $parts:ident, $want:expr, $at:ident => $hit:expr, $waits:expr, $slow:expr) => {{
        let mut deadline = $session.next_deadline();
        let mut ahead = Ahead::NONE;
        for $at in 0..$parts.len() {
            $session.deadline = Some(deadline);
            let hit = $hit;
            if ahead.is_due($at, !hit && $waits) {
                let rest = $parts.iter().enumerate().skip($at);
                let rest = rest.flat_map(|(part, (address, bytes))| {
                    pieces(*address, bytes.len()).map(move |piece| Ok((part, piece?)))
                });
                $session.fetch_ahead($want, &mut ahead, rest);
            }
            if !hit {
                $slow?;
            }
            deadline = $session.last_deadline();
        }
        Ok(())
    }};
}

impl Session {
    /// Requests the lines of a range ahead of reads of it.
    ///
    /// A hint: returns at once and reports no error; what is wrong is reported by the read. Requests those of the
    /// first lines that this node cannot read yet: at most
    /// [`Limits::credits_per_class`](crate::Limits::credits_per_class) lines, 64, and a quarter of the cache's. A
    /// session has no more requests of this kind in flight; [`read`](Self::read) and
    /// [`read_vectored`](Self::read_vectored) request further lines themselves. *Guarantees*: changes no order of
    /// accesses: a read returns the bytes of its own time. *Blocks* on no message. *Cost*: a tag check a line;
    /// one request to the home for each line that is missing. *Source*: software prefetching as by Mowry, Lam and
    /// Gupta, ASPLOS 1992, with a bound.
    ///
    /// The memory should be allocated: while a prefetch of memory that is not is in flight, reads of it
    /// may fail with `Unallocated` though it has been allocated since.
    ///
    /// ```
    /// # use farside::{Config, Node};
    /// # fn main() -> Result<(), farside::Error> {
    /// # let config = Config::new(format!("prefetch-{}", std::process::id()));
    /// # let config = config.memory_bytes(1 << 20).cache_bytes(1 << 20).direct_reads(false);
    /// let (home, node) = (Node::create(&config)?, Node::join(&config)?);
    /// let table = home.session()?.alloc(4096)?; // 8 lines
    /// let mut session = node.session()?;
    /// session.prefetch_read(table, 4096);
    /// assert_eq!(node.stats().prefetches, 8);
    /// // ... compute something, while the lines are in flight
    /// session.read(table, &mut [0; 4096])?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn prefetch_read(&mut self, address: GlobalAddress, bytes: usize) {
        self.prefetch(Want::Read, address, bytes);
    }

    /// Requests ownership of the lines of a range, ahead of writes or atomics.
    ///
    /// As [`prefetch_read`](Self::prefetch_read). Other nodes lose their copies of the lines, and the death of
    /// this node before they are written back loses them, as if they had been written.
    pub fn prefetch_write(&mut self, address: GlobalAddress, bytes: usize) {
        self.prefetch(Want::Write, address, bytes);
    }

    fn prefetch(&mut self, want: Want, address: GlobalAddress, bytes: usize) {
        let rest = pieces(address, bytes).map(|piece| Ok((0, piece?)));
        let mut ahead = Ahead::NONE;
        self.fetch_ahead(want, &mut ahead, rest);
    }

    /// Requests those of the next lines that this node lacks, within the window. Each piece comes with its place
    /// in the access.
    pub(crate) fn fetch_ahead(
        &mut self,
        want: Want,
        ahead: &mut Ahead,
        rest: impl Iterator<Item = Result<(usize, LinePiece), Error>>,
    ) {
        self.direct.refresh();
        let slots = self.first_prefetch_slot()..self.slots.slots.len();
        let (first, count) = (slots.start, slots.len());
        let mut free = slots.filter(|slot| self.frees(*slot));
        let requested = std::mem::replace(ahead, Ahead { again: usize::MAX, end: usize::MAX }).end;
        let (mut seen, mut filled, mut last) = (0, 0_u64, None);
        for (place, piece) in rest.map_while(Result::ok) {
            let line = piece.address.line();
            if last.replace(line) == Some(line) {
                continue;
            }
            let window = match Some(line.memory()) == self.lines.memory() {
                true => count,
                false => count.min(self.lines.frames(line.line_size()) / CACHE_SHARE),
            };
            if seen <= window / 2 {
                ahead.again = place;
            }
            let lacks = place >= requested && self.lacks(want, piece);
            let slot = if lacks && seen < window { free.next() } else { None };
            if seen == window || lacks && slot.is_none() {
                ahead.end = place;
                break;
            }
            seen += 1;
            if let Some(slot) = slot {
                self.fill(slot, OperationKind::Prefetch(want), piece, &[]);
                self.slots.slots[slot].submit();
                self.slots.slots[slot].abandon(); // no call takes its result
                filled |= 1 << (slot - first);
            }
        }
        if ahead.end == usize::MAX {
            ahead.again = usize::MAX; // all is requested
        }
        if filled != 0 {
            self.core.with_engine(|engine| {
                for slot in (0..count).filter(|slot| filled >> slot & 1 != 0) {
                    engine.issue(self.slots.operation(first + slot));
                }
            });
        }
    }

    /// The first of the slots for lines that are requested ahead.
    pub(super) fn first_prefetch_slot(&self) -> usize {
        CALL_SLOTS + self.core.limits.writes_in_flight_max as usize
    }

    /// Whether an access to the piece would miss.
    fn lacks(&self, want: Want, piece: LinePiece) -> bool {
        let (address, bytes) = (piece.address, piece.bytes);
        self.lines.here(address.line()).0.level < want.level()
            && !(want == Want::Read && self.direct.allows(address, bytes, piece.continues()))
    }

    /// Reads several ranges, as separate [`read`](Self::read)s in order, whose misses overlap.
    ///
    /// *Cost*: as `read`; the lines of parts that follow a miss are requested with it, as by
    /// [`prefetch_read`](Self::prefetch_read), so a window of misses costs one round trip.
    ///
    /// ```
    /// # use farside::{Config, Node};
    /// # fn main() -> Result<(), farside::Error> {
    /// # let config = Config::new(format!("vectored-{}", std::process::id()));
    /// # let node = Node::create(&config.memory_bytes(1 << 20).cache_bytes(1 << 20))?;
    /// # let mut session = node.session()?;
    /// let (name, age) = (session.alloc(3)?, session.alloc(1)?);
    /// session.write_vectored(&[(name, b"Ada"), (age, &[36])])?;
    /// let (mut name_bytes, mut age_bytes) = ([0; 3], [0; 1]);
    /// session.read_vectored(&mut [(name, &mut name_bytes), (age, &mut age_bytes)])?;
    /// assert_eq!((&name_bytes, age_bytes), (b"Ada", [36]));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As `read`; earlier parts have been read then.
    pub fn read_vectored(&mut self, parts: &mut [(GlobalAddress, &mut [u8])]) -> Result<(), Error> {
        in_order!(self, parts, Want::Read, at =>
            self.read_hit(parts[at].0, parts[at].1),
            true,
            self.read_blocking(parts[at].0, parts[at].1)
        )
    }

    /// Writes several ranges, as separate [`write`](Self::write)s in order, whose misses overlap.
    ///
    /// *Cost*: as `write`; a write that waits for earlier ones also requests the lines of the parts that follow, as
    /// by [`prefetch_write`](Self::prefetch_write).
    ///
    /// # Errors
    /// As `write`; earlier parts are in flight then.
    pub fn write_vectored(&mut self, parts: &[(GlobalAddress, &[u8])]) -> Result<(), Error> {
        in_order!(self, parts, Want::Write, at =>
            self.write_hit(parts[at].0, parts[at].1),
            !self.may_write_more(),
            self.write_slow(parts[at].0, parts[at].1)
        )
    }

    /// The awaitable twin of [`read_vectored`](Self::read_vectored).
    ///
    /// # Errors
    /// As `read_vectored`.
    pub async fn read_vectored_async(
        &mut self,
        parts: &mut [(GlobalAddress, &mut [u8])],
    ) -> Result<(), Error> {
        in_order!(self, parts, Want::Read, at =>
            self.read_hit(parts[at].0, parts[at].1),
            true,
            self.read_async(parts[at].0, parts[at].1).await
        )
    }

    /// The awaitable twin of [`write_vectored`](Self::write_vectored).
    ///
    /// # Errors
    /// As `write_vectored`.
    pub async fn write_vectored_async(
        &mut self,
        parts: &[(GlobalAddress, &[u8])],
    ) -> Result<(), Error> {
        in_order!(self, parts, Want::Write, at =>
            self.write_hit(parts[at].0, parts[at].1),
            !self.may_write_more(),
            self.write_async(parts[at].0, parts[at].1).await
        )
    }
}
