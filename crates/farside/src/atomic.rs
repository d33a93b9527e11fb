//! Atomic operations of a session: on words, on a line, over several lines.
//!
//! They run at the node that holds the line, under the line's tag, so that adapter and processor atomics
//! never mix. Each has the order of a fence: earlier writes of the session are visible before it.

use crate::engine::GATE_TAKEN;
use crate::hit::{Claim, Lines, TagValue};
use crate::operation::{OperationKind, WordOperation};
use crate::session::{AccessKind, Ahead, Buffer, LinePiece, Session, pieces};
use crate::{Error, ErrorCode, GlobalAddress};
use farside_protocol::coherence::{Level, Want};
use std::sync::Arc;

/// Bytes of an `atomic` call that fit on the stack.
const STACK: usize = 512;

macro_rules! word_atomics {
    ($(
        $(#[$doc:meta])*
        fn $name:ident, $twin:ident($($arg:ident),*) -> $word:ident => $change:ident;
    )*) => {$(
        $(#[$doc])*
        ///
        /// *Guarantees*: atomic against every access of every node; orders like a
        /// [`fence`](Self::fence) before it. *Units*: an integer, little-endian, aligned to its size.
        /// *Blocks* until this node owns the line. *Cost*: a locked instruction on an owned line, else
        /// one request to the home. *Source*: 004 §4.1.
        ///
        /// # Errors
        /// `Misaligned`, those of [`read`](Self::read), and the first failure of an earlier write.
        #[inline]
        pub fn $name(&mut self, address: GlobalAddress, $($arg: $word),*) -> Result<$word, Error> {
            let change = WordOperation::$change($($arg.into()),*);
            match self.word_hit(address, size_of::<$word>(), |word| change.apply(word)) {
                Some(before) => Ok(before as $word),
                None => {
                    let before = self.word_blocking(change, address, size_of::<$word>());
                    before.map(|before| before as $word)
                }
            }
        }

        #[doc = concat!("The awaitable twin of [`", stringify!($name), "`](Self::", stringify!($name), ").")]
        ///
        /// # Errors
        #[doc = concat!("As `", stringify!($name), "`.")]
        pub async fn $twin(&mut self, address: GlobalAddress, $($arg: $word),*) -> Result<$word, Error> {
            let change = OperationKind::Word(WordOperation::$change($($arg.into()),*));
            let what = AccessKind::Ordered(change);
            let before = self.access_async(what, address, size_of::<$word>(), Buffer::NONE).await;
            before.map(|before| before as $word)
        }
    )*};
}

impl Session {
    word_atomics! {
        /// Adds to a word of 8 bytes, wrapping, and returns the previous value.
        fn fetch_add, fetch_add_async(add) -> u64 => FetchAdd;

        /// Replaces a word of 8 bytes if it has the expected value, and returns the previous value in either
        /// case.
        fn compare_swap, compare_swap_async(expected, new) -> u64 => CompareSwap;

        /// Replaces a word of 8 bytes and returns the previous value.
        fn swap, swap_async(new) -> u64 => Swap;

        /// Adds to a word of 4 bytes, wrapping, and returns the previous value.
        ///
        /// ```
        /// # use farside::{Config, Node};
        /// # fn main() -> Result<(), farside::Error> {
        /// # let config = Config::new(format!("words-{}", std::process::id()));
        /// # let node = Node::create(&config.memory_bytes(1 << 20).cache_bytes(1 << 20))?;
        /// # let mut session = node.session()?;
        /// let counters = session.alloc_array::<u32>(2)?;
        /// counters.write(&mut session, 0, &[u32::MAX, 7])?;
        /// assert_eq!(session.fetch_add_u32(counters.address_of(0)?, 2)?, u32::MAX);
        /// assert_eq!(counters.to_vec(&mut session)?, [1, 7]);
        /// # Ok(())
        /// # }
        /// ```
        fn fetch_add_u32, fetch_add_u32_async(add) -> u32 => FetchAdd;

        /// Replaces a word of 4 bytes if it has the expected value, and returns the previous value in either
        /// case.
        fn compare_swap_u32, compare_swap_u32_async(expected, new) -> u32 => CompareSwap;

        /// Replaces a word of 4 bytes and returns the previous value.
        fn swap_u32, swap_u32_async(new) -> u32 => Swap;
    }

    #[cold]
    fn word_blocking(
        &mut self,
        change: WordOperation,
        address: GlobalAddress,
        bytes: usize,
    ) -> Result<u64, Error> {
        let change = OperationKind::Word(change);
        self.access(AccessKind::Ordered(change), address, bytes, Buffer::NONE)
    }

    /// Runs `change` on bytes of one line as one atomic step, and returns what it returns.
    ///
    /// *Guarantees*: no other access to the line takes effect in between; orders like a
    /// [`fence`](Self::fence) before it. Keep `change` short: other accesses to the line wait. A panic in
    /// it leaves the bytes unchanged. *Blocks* until this node owns the line. *Cost*: as
    /// [`fetch_add`](Self::fetch_add), and two copies of the bytes. *Source*: 004 §4.1 `Atomic`.
    ///
    /// # Errors
    /// `LineSpanning` when the bytes cross a line (use [`write_atomic`](Self::write_atomic)), and as
    /// `fetch_add`.
    #[inline]
    pub fn atomic<R>(
        &mut self,
        address: GlobalAddress,
        bytes: usize,
        change: impl FnOnce(&mut [u8]) -> R,
    ) -> Result<R, Error> {
        if self.is_settled()
            && bytes > 0
            && bytes <= address.line_size().bytes() - address.offset_in_line()
        {
            let lines = Arc::clone(self.lines());
            if let Some(claim) = lines.claim(address, bytes, false) {
                let result = change_line(&claim, address, bytes, change);
                drop(claim);
                self.hit();
                return acknowledged(&lines, address, result);
            }
        }
        self.blocking().run(self.atomic_async(address, bytes, change))
    }

    /// The awaitable twin of [`atomic`](Self::atomic); `change` itself must not block.
    ///
    /// # Errors
    /// As `atomic`.
    pub async fn atomic_async<R>(
        &mut self,
        address: GlobalAddress,
        bytes: usize,
        change: impl FnOnce(&mut [u8]) -> R,
    ) -> Result<R, Error> {
        self.check_size(address, bytes)?;
        if bytes > address.line_size().bytes() - address.offset_in_line() {
            return Err(Error::at(ErrorCode::LineSpanning, address));
        }
        let mut call = self.enter();
        call.writes_ended().await?;
        let piece = LinePiece { address, at: 0, bytes };
        let lines = Arc::clone(call.lines());
        loop {
            call.pin(Want::Write, &[piece], &[]).await?;
            let claim = match claim_pinned(&lines, piece) {
                Ok(claim) => claim,
                Err(error) => {
                    call.unpin_lost(error)?;
                    continue;
                }
            };
            if lines.is_trusted() {
                let result = change_line(&claim, address, bytes, change);
                drop(claim);
                return acknowledged(&lines, address, result);
            }
            drop(claim);
            call.unpin();
        }
    }

    /// Reads bytes of any number of lines as one atomic snapshot.
    ///
    /// *Guarantees*: no write of another session, in whole or in part, comes between the lines.
    /// *Blocks* like [`read`](Self::read). *Cost*: as `read` if the lines are cached and unchanged
    /// meanwhile; otherwise the lines are requested in windows as by [`prefetch_read`](Self::prefetch_read), and
    /// pinned at this node one after the other.
    ///
    /// # Errors
    /// As `read`; `CacheFull` when the lines cannot all be cached at a time.
    pub fn read_atomic(&mut self, address: GlobalAddress, out: &mut [u8]) -> Result<(), Error> {
        self.blocking().run(self.read_atomic_async(address, out))
    }

    /// The awaitable twin of [`read_atomic`](Self::read_atomic).
    ///
    /// # Errors
    /// As `read_atomic`.
    pub async fn read_atomic_async(
        &mut self,
        address: GlobalAddress,
        out: &mut [u8],
    ) -> Result<(), Error> {
        self.check_size(address, out.len())?;
        let parts = pieces(address, out.len()).collect::<Result<Vec<_>, _>>()?;
        let mut call = self.enter();
        call.writes_ended().await?;
        if let [only] = parts.as_slice() {
            let deadline = call.in_flight.deadline;
            call.deadline = Some(deadline);
            return call.read_async(only.address, out).await;
        }
        let lines = Arc::clone(call.lines());
        if snapshot(&lines, &parts, out) && lines.is_trusted() {
            return Ok(());
        }
        'pinned: loop {
            call.pin(Want::Read, &parts, &[]).await?;
            while !snapshot(&lines, &parts, out) {
                // A writer of this node holds one of the lines, or the home of one has died.
                let lost = |part: &LinePiece| check_pinned(&lines, *part, Level::Shared).err();
                if let Some(error) = parts.iter().find_map(lost) {
                    call.unpin_lost(error)?;
                    continue 'pinned;
                }
                std::hint::spin_loop();
            }
            if lines.is_trusted() {
                return Ok(());
            }
            call.unpin();
        }
    }

    /// Writes bytes of any number of lines in one atomic step.
    ///
    /// *Guarantees*: every [`read_atomic`](Self::read_atomic) sees all of it or nothing; a plain read sees
    /// each line whole. Visible to all when it returns; earlier writes of the session are visible before
    /// it. *Blocks* until this node owns all the lines. *Cost*: one request per line that is not owned,
    /// in windows as by [`prefetch_write`](Self::prefetch_write); the lines are pinned one after the other in
    /// address order (which excludes deadlock).
    ///
    /// # Errors
    /// As [`write`](Self::write), but reported by this call; nothing is written then. `LineLost` also if it
    /// covers a lost line and others: `write` heals lines one at a time, which a reader of all of them
    /// would see. `CacheFull` if the cache cannot hold all the lines at a time.
    pub fn write_atomic(&mut self, address: GlobalAddress, bytes: &[u8]) -> Result<(), Error> {
        self.blocking().run(self.write_atomic_async(address, bytes))
    }

    /// The awaitable twin of [`write_atomic`](Self::write_atomic).
    ///
    /// # Errors
    /// As `write_atomic`.
    pub async fn write_atomic_async(
        &mut self,
        address: GlobalAddress,
        bytes: &[u8],
    ) -> Result<(), Error> {
        self.check_size(address, bytes.len())?;
        let parts = pieces(address, bytes.len()).collect::<Result<Vec<_>, _>>()?;
        let mut call = self.enter();
        call.writes_ended().await?;
        let lines = Arc::clone(call.lines());
        let healing = if parts.len() == 1 { bytes } else { &[] };
        loop {
            call.pin(Want::Write, &parts, healing).await?;
            // In address order: two writers of this node cannot wait for each other.
            let claims = parts
                .iter()
                .map(|part| claim_pinned(&lines, *part))
                .collect::<Result<Vec<Claim<'_>>, Error>>();
            let claims = match claims {
                Ok(claims) => claims,
                Err(error) => {
                    call.unpin_lost(error)?;
                    continue;
                }
            };
            if !lines.is_trusted() {
                drop(claims);
                call.unpin();
                continue;
            }
            for (part, claim) in parts.iter().zip(&claims) {
                claim.write(part.address.offset_in_line(), &bytes[part.at..part.at + part.bytes]);
            }
            drop(claims);
            return acknowledged(&lines, address, ());
        }
    }
}

/// The result of a change that took effect, unless this node was removed meanwhile.
fn acknowledged<R>(lines: &Lines, address: GlobalAddress, result: R) -> Result<R, Error> {
    if lines.is_removed() { Err(Error::at(ErrorCode::NodeClosed, address)) } else { Ok(result) }
}

fn change_line<R>(
    claim: &Claim<'_>,
    address: GlobalAddress,
    bytes: usize,
    change: impl FnOnce(&mut [u8]) -> R,
) -> R {
    let mut stack = [0; STACK];
    let mut heap = Vec::new();
    let copy = match stack.get_mut(..bytes) {
        Some(copy) => copy,
        None => {
            heap.resize(bytes, 0);
            heap.as_mut_slice()
        }
    };
    claim.read(address.offset_in_line(), copy);
    let result = change(copy);
    claim.write(address.offset_in_line(), copy);
    result
}

/// Takes the busy bit of a line that is pinned at this node; waits for local writers only.
fn claim_pinned(lines: &Lines, piece: LinePiece) -> Result<Claim<'_>, Error> {
    let mut tries = 0_u32;
    loop {
        if let Some(claim) = lines.claim_pinned(piece.address, piece.bytes, piece.continues()) {
            return Ok(claim);
        }
        check_pinned(lines, piece, Level::Dirty)?;
        tries += 1;
        if tries < 64 {
            std::hint::spin_loop();
        } else {
            std::thread::yield_now();
        }
    }
}

/// Checks that a pinned line still has its level; it loses that only if its home dies.
fn check_pinned(lines: &Lines, piece: LinePiece, level: Level) -> Result<(), Error> {
    if lines.here(piece.address.line()).0.level >= level {
        Ok(())
    } else {
        Err(Error::at(ErrorCode::NodeLost, piece.address))
    }
}

/// Copies all lines between two checks of all tags; false if one of them changed or is not cached.
fn snapshot(lines: &Lines, parts: &[LinePiece], out: &mut [u8]) -> bool {
    let mut seen: Vec<TagValue> = Vec::with_capacity(parts.len());
    for part in parts {
        let look = lines.spot(part.address.line()).and_then(|spot| {
            spot.look(part.address.offset_in_line(), part.bytes, part.continues())
        });
        match look {
            Some(value) => seen.push(value),
            None => return false,
        }
    }
    for part in parts {
        match lines.spot(part.address.line()) {
            Some(spot) => {
                spot.copy_out(
                    part.address.offset_in_line(),
                    &mut out[part.at..part.at + part.bytes],
                );
            }
            None => return false,
        }
    }
    parts.iter().zip(seen).all(|(part, seen)| {
        lines.spot(part.address.line()).is_some_and(|spot| spot.tag.unchanged(seen))
    })
}

impl Session {
    /// Pins all the lines at this node until the call ends, from a moment at which the cache is trusted.
    /// Lost lines are filled with `healing`, which is empty or the bytes to be written.
    ///
    /// While a home is away, nothing is held.
    async fn pin(&mut self, want: Want, parts: &[LinePiece], healing: &[u8]) -> Result<(), Error> {
        self.check_room(parts)?;
        loop {
            match self.pin_all(want, parts, healing).await {
                Err(error) if error.code == ErrorCode::HomeAway => {
                    self.await_home(parts[0].address).await?;
                }
                pinned => return pinned,
            }
        }
    }

    async fn pin_all(
        &mut self,
        want: Want,
        parts: &[LinePiece],
        healing: &[u8],
    ) -> Result<(), Error> {
        // A call that pins repeatedly holds the gate already.
        while parts.len() > 1 && !self.in_flight.gated {
            self.in_flight.gated =
                self.call(OperationKind::Gate, parts[0], &[]).await? == GATE_TAKEN;
        }
        loop {
            let mut ahead = Ahead::NONE;
            for (at, part) in parts.iter().enumerate() {
                if ahead.is_due(at, parts.len() > 1) {
                    let rest = (at..).zip(&parts[at..]).map(|(at, part)| Ok((at, *part)));
                    self.fetch_ahead(want, &mut ahead, rest);
                }
                let part_healing = healing.get(part.at..part.at + part.bytes).unwrap_or_default();
                self.call(OperationKind::Pin(want), *part, part_healing).await?;
                self.in_flight.pinned.push(part.address.line());
            }
            if self.lines().is_trusted() {
                return Ok(());
            }
            // The next call waits until this node may trust its cache again, or learns that it was removed.
            self.unpin();
        }
    }

    /// Unpins all lines, of which one went with its home, if that will return.
    fn unpin_lost(&mut self, error: Error) -> Result<(), Error> {
        let error = self.name_loss(error);
        match error.code {
            ErrorCode::HomeAway => self.unpin(),
            _ => return Err(error),
        }
        Ok(())
    }

    fn unpin(&mut self) {
        let pinned = &mut self.in_flight.pinned;
        self.core.with_engine(|engine| {
            for line in pinned.drain(..) {
                engine.unpin(line);
            }
            engine.follow_up();
        });
    }

    /// Whether the cache can hold all the lines at a time.
    fn check_room(&self, parts: &[LinePiece]) -> Result<(), Error> {
        match self.lines().have_room(parts.iter().map(|part| part.address.line())) {
            true => Ok(()),
            false => Err(Error::at(ErrorCode::CacheFull, parts[0].address)),
        }
    }
}
