//! Accesses that are begun and polled: a session for whoever serves many at a time, must not block, and
//! keeps no futures.
//!
//! What is at hand is done at once by [`Session::read_hit`] and its like. What is not becomes an
//! [`Access`], a value that is polled until it has ended and says by a waker when it is worth looking
//! again. It allocates nothing: its bytes wait in the session's slots.

use super::{CALL_SLOTS, Piece, Session, one_line};
use crate::operation::Kind;
use crate::{Error, ErrorCode, GlobalAddress};
use std::ops::Range;
use std::task::Waker;

/// What an access does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum What {
    /// As [`Session::read`].
    Read,
    /// As [`Session::write`] and until all of it is visible to all, so that its own failure is known.
    Write,
    /// As [`Session::write`]: waited for only while as many are in flight as may be.
    Post,
    /// An atomic of a word, behind all earlier writes.
    Word(Kind),
}

/// An access that has begun.
#[derive(Debug)]
pub(crate) struct Access {
    what: What,
    address: GlobalAddress,
    bytes: usize,
    /// Bytes whose operations have begun, from the front.
    begun: usize,
    /// Its operations under way, oldest first.
    flying: [Option<(usize, Piece)>; CALL_SLOTS],
    result: u64,
    failure: Option<Error>,
}

/// What became of a piece that was to begin.
enum Piecemeal {
    /// It is done or under way.
    Begun,
    /// It waits until this slot's operation has ended.
    Behind(usize),
    Failed(Error),
}

impl Access {
    fn next(&self) -> Result<Piece, Error> {
        let beyond = || Error::at(ErrorCode::OutOfBounds, self.address);
        let address = self.address.checked_add(self.begun as u64).ok_or_else(beyond)?;
        let room = address.line_size().bytes() - address.offset_in_line();
        Ok(Piece { address, at: self.begun, bytes: room.min(self.bytes - self.begun) })
    }

    /// The piece's bytes of the buffer, which atomics have none of.
    fn part(&self, piece: Piece) -> Range<usize> {
        match self.what {
            What::Word(_) => 0..0,
            _ => piece.at..piece.at + piece.bytes,
        }
    }

    /// Whether another operation of it may be under way.
    fn may_fly(&self) -> bool {
        self.flying[CALL_SLOTS - 1].is_none()
    }

    fn end(&mut self) -> Result<u64, Error> {
        self.failure.take().map_or(Ok(self.result), Err)
    }
}

impl Session {
    /// Reads if that needs no waiting, for the memory or for this session's own writes.
    #[inline]
    pub(crate) fn read_hit(&mut self, address: GlobalAddress, out: &mut [u8]) -> bool {
        if !self.pending.is_empty() {
            return false;
        }
        let lines = match one_line(address, out.len()) {
            true => self.lines.read(address, out, false).then_some(1),
            false => self.lines.read_lines(address, out),
        };
        lines.inspect(|lines| self.hits(*lines)).is_some()
    }

    /// Writes within a line if that needs no waiting.
    #[inline]
    pub(crate) fn write_hit(&mut self, address: GlobalAddress, bytes: &[u8]) -> bool {
        let done = self.pending.is_empty()
            && one_line(address, bytes.len())
            && self.lines.write(address, bytes, false);
        if done {
            self.hit();
        }
        done
    }

    /// Changes a word by an atomic if that needs no waiting, and tells the value before.
    #[inline]
    pub(crate) fn word_hit(&mut self, address: GlobalAddress, kind: Kind) -> Option<u64> {
        if !self.is_settled() || !address.offset().is_multiple_of(8) {
            return None;
        }
        let change = |word: u64| match kind {
            Kind::FetchAdd(add) => word.wrapping_add(add),
            Kind::CompareSwap(expected, new) if word == expected => new,
            Kind::Swap(new) => new,
            _ => word,
        };
        let before = self.lines.update(address, change)?;
        self.hit();
        Some(before)
    }

    /// Whether nothing is under way and no failure waits to be told, after a look.
    pub(crate) fn settle(&mut self) -> bool {
        self.reap();
        self.is_settled()
    }

    /// Begins an access of so many bytes; [`Self::poll`] goes on with it. A session has one at a time.
    ///
    /// # Errors
    /// `ZeroSize`, `TooLarge`, `Misaligned`.
    pub(crate) fn begin(
        &self,
        what: What,
        address: GlobalAddress,
        bytes: usize,
    ) -> Result<Access, Error> {
        self.check_size(address, bytes)?;
        if matches!(what, What::Word(_)) && !address.offset().is_multiple_of(8) {
            return Err(Error::at(ErrorCode::Misaligned, address));
        }
        let flying = [None; CALL_SLOTS];
        Ok(Access { what, address, bytes, begun: 0, flying, result: 0, failure: None })
    }

    /// Goes on with an access: how it has ended, or nothing, and `waker` will be woken when it is worth
    /// looking again. Its bytes come from `buffer` or go there, the same each time. Never blocks.
    ///
    /// # Errors
    /// Those of [`read`](Self::read) and, of [`What::Word`], the first failure of an earlier write. A
    /// [`What::Post`] is told later, as by [`write`](Self::write).
    pub(crate) fn poll(
        &mut self,
        access: &mut Access,
        buffer: &mut [u8],
        waker: &Waker,
    ) -> Option<Result<u64, Error>> {
        loop {
            self.reap();
            self.land(access, buffer);
            let behind = self.begin_pieces(access, buffer);
            let oldest = access.flying[0].map(|(slot, _)| slot);
            let Some(slot) = oldest.or(behind) else {
                return Some(access.end());
            };
            if !self.ends_meanwhile(slot, waker) {
                return None;
            }
        }
    }

    /// Whether every earlier write of this session has ended; the first failure of one is told then.
    /// Otherwise `waker` will be woken.
    ///
    /// # Errors
    /// As [`fence`](Self::fence).
    pub(crate) fn poll_fence(&mut self, waker: &Waker) -> Option<Result<(), Error>> {
        loop {
            self.reap();
            if self.pending.is_empty() && !self.asks_for_standing() {
                return Some(self.fenced());
            }
            let Some(write) = self.pending.first() else {
                continue; // no slot was free: the failure says so
            };
            if !self.ends_meanwhile(write.slot, waker) {
                return None;
            }
        }
    }

    /// Whether nothing of this session is under way any more, nor what was abandoned; otherwise `waker`
    /// will be woken. A failure of a write has nobody left to hear it.
    pub(crate) fn poll_idle(&mut self, waker: &Waker) -> bool {
        if self.poll_fence(waker).is_none() {
            return false;
        }
        loop {
            let slots = &self.slots.slots;
            for slot in &slots[..CALL_SLOTS] {
                if slot.is_abandoned() && slot.outcome().is_some() {
                    slot.recycle();
                }
            }
            let Some(busy) = slots[..CALL_SLOTS].iter().position(|slot| !slot.is_free()) else {
                return true;
            };
            if !self.ends_meanwhile(busy, waker) {
                return false;
            }
        }
    }

    /// Leaves an access that may not have ended: what it has begun may yet take effect.
    pub(crate) fn abandon(&mut self, access: &mut Access) {
        for (slot, _) in access.flying.iter_mut().filter_map(Option::take) {
            let ended = self.slots.slots[slot].abandon();
            self.core.abandoned(&self.slots, slot, ended);
        }
    }

    /// Has `waker` woken at the end of a slot's operation; true when it has ended already.
    fn ends_meanwhile(&self, slot: usize, waker: &Waker) -> bool {
        self.slots.slots[slot].watch(waker)
    }

    /// Takes what has ended of an access.
    fn land(&mut self, access: &mut Access, buffer: &mut [u8]) {
        let mut kept = 0;
        for at in 0..CALL_SLOTS {
            let Some((slot, piece)) = access.flying[at].take() else { break };
            if self.slots.slots[slot].outcome().is_none() {
                access.flying[kept] = Some((slot, piece));
                kept += 1;
                continue;
            }
            let ended = self.take_result(slot, piece, |bytes| {
                if access.what == What::Read
                    && let Some(part) = buffer.get_mut(access.part(piece))
                {
                    part.copy_from_slice(bytes);
                }
            });
            match ended {
                Ok(result) => access.result = result,
                Err(error) => {
                    access.failure.get_or_insert(error);
                }
            }
        }
    }

    /// Begins what can begin of an access; the slot that the next piece waits for, if it does.
    fn begin_pieces(&mut self, access: &mut Access, buffer: &mut [u8]) -> Option<usize> {
        while access.failure.is_none() && access.begun < access.bytes {
            let begun = access.next().and_then(|piece| {
                let lacks = || Error::at(ErrorCode::NodeFailed, piece.address);
                let part = buffer.get_mut(access.part(piece)).ok_or_else(lacks)?;
                Ok((piece, self.begin_piece(access, piece, part)))
            });
            match begun {
                Ok((piece, Piecemeal::Begun)) => access.begun += piece.bytes,
                Ok((_, Piecemeal::Behind(slot))) => return Some(slot),
                Ok((_, Piecemeal::Failed(error))) | Err(error) => access.failure = Some(error),
            }
        }
        None
    }

    fn begin_piece(&mut self, access: &mut Access, piece: Piece, part: &mut [u8]) -> Piecemeal {
        let (address, continues) = (piece.address, piece.continues());
        let newest = |session: &Self| {
            let mut writes = session.pending.iter().rev();
            writes.find(|write| write.address.line() == address.line()).map(|write| write.slot)
        };
        let (hit, kind) = match access.what {
            What::Read if self.own_write(piece, part) => return Piecemeal::Begun,
            What::Read | What::Write if newest(self).is_some() => {
                return Piecemeal::Behind(newest(self).unwrap_or(0));
            }
            What::Read => (self.lines.read(address, part, continues), Kind::Read),
            What::Write => (self.lines.write(address, part, continues), Kind::Write),
            What::Post if newest(self).is_none() && self.lines.write(address, part, continues) => {
                (true, Kind::Write)
            }
            What::Post if self.may_write_more() => {
                self.missed();
                self.start_write(piece, part);
                return Piecemeal::Begun;
            }
            What::Post | What::Word(_) if !self.pending.is_empty() => {
                return Piecemeal::Behind(self.pending[0].slot);
            }
            What::Post => (false, Kind::Write),
            What::Word(kind) => {
                if let Err(error) = self.fenced() {
                    return Piecemeal::Failed(error);
                }
                let before = self.word_hit(address, kind);
                access.result = before.unwrap_or(0);
                match before {
                    Some(_) => return Piecemeal::Begun,
                    None => (false, kind),
                }
            }
        };
        if hit {
            self.hit();
            return Piecemeal::Begun;
        }
        let free = if access.may_fly() { self.free_call_slot() } else { None };
        let Some(slot) = free else {
            // Its own oldest operation, or one that was abandoned.
            return Piecemeal::Behind(access.flying[0].map_or(0, |(slot, _)| slot));
        };
        self.missed();
        self.fill(slot, kind, piece, part);
        if let Some(place) = access.flying.iter_mut().find(|place| place.is_none()) {
            *place = Some((slot, piece));
        }
        self.launch(slot);
        Piecemeal::Begun
    }
}
