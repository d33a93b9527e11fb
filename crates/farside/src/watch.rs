//! Waiting for a change: of a word of global memory, or of the membership.
//!
//! A thread that waits for a word keeps a cached copy of its line, so that checking it costs no message. A
//! write by another node invalidates the copy first; the engine then wakes the threads that watch the line.
//! Sessions of the same node write an owned line without the engine, so a waiting thread also checks the
//! word at least every [`WORD_INTERVAL`].

use crate::engine::Watched;
use crate::node::Node;
use crate::session::{Session, Timed};
use crate::wait::{Core, Parker};
use crate::{Error, ErrorCode, GlobalAddress};
use farside_base::waiting::{PARK_MAX, UNCACHED_INTERVAL, WORD_INTERVAL};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Waker;
use std::time::{Duration, Instant};

impl Core {
    /// Polls the engine until `done` or until `until`; parks while it is idle. A change of `watched` and
    /// every `check` end a park.
    pub(crate) fn watch(
        &self,
        watched: Watched,
        (until, check): (Option<Instant>, Duration),
        parker: &Arc<Parker>,
        done: impl Fn() -> bool,
    ) {
        let waker = Waker::from(Arc::clone(parker));
        let sleep = |left: Option<Duration>| {
            parker.reset();
            self.engine().watches().register(watched, &waker);
            // Registered first: a change from here on wakes this thread.
            if !done() {
                self.park(parker, Some(left.map_or(check, |left| left.min(check))));
            }
            self.engine().watches().forget(&waker);
        };
        self.drive(until, &done, sleep);
        self.drove();
    }
}

impl Node {
    /// The number of steps of the membership machine so far.
    pub(crate) fn member_steps(&self) -> u64 {
        self.core().member_steps.load(Ordering::SeqCst)
    }

    /// The error of all calls if this node is no longer a member.
    pub(crate) fn closed_with(&self) -> Option<ErrorCode> {
        self.core().engine().closed_with()
    }

    /// Waits until the membership machine has made another step than `seen`, or until `until`.
    pub(crate) fn watch_members(&self, seen: u64, until: Option<Instant>, parker: &Arc<Parker>) {
        let changed = || self.member_steps() != seen;
        self.core().watch(Watched::Members, (until, PARK_MAX), parker, changed);
    }
}

impl Session {
    /// Waits until a word of memory meets a condition, and returns it.
    ///
    /// *Guarantees*: the returned value met the condition when it was read; a value that the word has only
    /// for a moment may be missed. Orders like a [`fence`](Self::fence) before it. *Units*: 8 bytes,
    /// little-endian, 8-byte aligned. *Blocks* until then: this thread spins for the node's spin budget,
    /// then sleeps. *Cost*: one miss for each write of another node to the line, and nothing in between; a
    /// write by a session of the same node is noticed after at most 1 ms.
    ///
    /// # Errors
    /// `Misaligned`, `TimedOut`, and those of [`read`](Self::read) and `fence`.
    ///
    /// # Examples
    /// ```
    /// # use farside::{Config, Node};
    /// # fn main() -> Result<(), farside::Error> {
    /// # let mut config = Config::new(format!("wait-until-{}", std::process::id()));
    /// # config.memory_bytes = 1 << 20;
    /// # config.cache_bytes = 1 << 20;
    /// let node = Node::create(&config)?;
    /// let (mut writer, mut reader) = (node.session()?, node.session()?);
    /// let word = writer.alloc(8)?;
    /// let waiting = std::thread::spawn(move || reader.wait_until(word, |value| value >= 3));
    /// for value in 1..=3 {
    ///     writer.write_u64(word, value)?;
    /// }
    /// assert_eq!(waiting.join().unwrap()?, 3);
    /// # Ok(())
    /// # }
    /// ```
    pub fn wait_until(
        &mut self,
        address: GlobalAddress,
        condition: impl FnMut(u64) -> bool,
    ) -> Result<u64, Error> {
        let mut session = self.timed();
        let deadline = session.deadline();
        let value = session.wait_word(address, deadline, condition)?;
        value.ok_or_else(|| Error::at(ErrorCode::TimedOut, address))
    }

    /// Waits until a word of memory has another value than `old`, and returns that; as
    /// [`wait_until`](Self::wait_until).
    ///
    /// # Errors
    /// As `wait_until`.
    pub fn wait_for_change(&mut self, address: GlobalAddress, old: u64) -> Result<u64, Error> {
        self.wait_until(address, |value| value != old)
    }
}

impl Timed<'_> {
    /// Waits until a word meets a condition; `None` if that takes until `until`.
    pub(crate) fn wait_word(
        &mut self,
        address: GlobalAddress,
        until: Option<Instant>,
        condition: impl FnMut(u64) -> bool,
    ) -> Result<Option<u64>, Error> {
        // Only a copy is invalidated by a change.
        let was_off = self.direct.set_off(true);
        let word = self.wait_copy(address, until, condition);
        self.direct.set_off(was_off);
        word
    }

    fn wait_copy(
        &mut self,
        address: GlobalAddress,
        until: Option<Instant>,
        mut condition: impl FnMut(u64) -> bool,
    ) -> Result<Option<u64>, Error> {
        if !address.offset().is_multiple_of(8) {
            return Err(Error::at(ErrorCode::Misaligned, address));
        }
        self.fence()?;
        let mut had_copy = true;
        loop {
            let value = self.read_u64(address)?;
            if condition(value) {
                return Ok(Some(value));
            }
            let now = Instant::now();
            if until.is_some_and(|until| now >= until) {
                return Ok(None);
            }
            let lines = Arc::clone(self.lines());
            let copy = || {
                let mut word = [0; 8];
                lines.read(address, &mut word, false).then(|| u64::from_le_bytes(word))
            };
            let (core, parker) = (Arc::clone(&self.core), Arc::clone(&self.parker));
            let watched = Watched::Line(address.line());
            let has_copy = copy().is_some();
            if has_copy {
                core.watch(watched, (until, WORD_INTERVAL), &parker, || copy() != Some(value));
            } else if !had_copy {
                let again = until
                    .map_or(now + UNCACHED_INTERVAL, |until| until.min(now + UNCACHED_INTERVAL));
                core.watch(watched, (Some(again), UNCACHED_INTERVAL), &parker, || copy().is_some());
            }
            had_copy = has_copy;
        }
    }
}
