//! The sender of a read ring.

use super::super::canary::mutant;
use super::super::checksum::checksum;
use super::super::effects::{Effects, Name, Notify, Peer};
use super::super::half::{Checked, Completed, OwnRegions, Step, own as reach};
use super::super::kind::Kind;
use super::super::ring_layout::RingLayout;
use super::super::shape::{Shape, Signal};
use super::super::store::{PullSender, Store};
use super::{ReadRingForm, SIGNALS, WORD, layout, notices_max, sequence};
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use farside_base::{Memory, RemoteSlice};

/// A notice that its reader is not known to have processed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Notice {
    /// Its number among all notices to this reader.
    number: u64,
    head: u64,
    /// It has consumed its receive, or needs none.
    arrived: bool,
}

/// The notices to one reader.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
struct Notices {
    /// The announced head.
    told: u64,
    /// The number of notices.
    count: u64,
    /// Notices not acknowledged, or not arrived: if they may overtake each other, one can be late when everything
    /// that it announces has been processed.
    open: VecDeque<Notice>,
}

/// The sender half of a read ring channel.
///
/// *Cost*: a copy into the ring unless the message was built there, and no request except a notice per reader and
/// batch if there are notices. No allocation.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct ReadRingSender {
    form: ReadRingForm,
    ring: RingLayout,
    store: Store,
    /// The head at the end of the last batch (detached, notify).
    flushed: u64,
    /// By reader.
    notices: Vec<Notices>,
    notices_max: u32,
}

impl ReadRingSender {
    pub(in super::super) fn new(kind: Kind, shape: &Shape, regions: OwnRegions) -> Self {
        let form = ReadRingForm::of(kind, shape);
        let readers = if form == ReadRingForm::Notify { shape.peers_max } else { 0 };
        let notices_max = notices_max(shape);
        let notices = || Notices {
            open: VecDeque::with_capacity(notices_max as usize),
            ..Notices::default()
        };
        Self {
            form,
            ring: layout(form, shape),
            store: Store::new(shape, regions, (WORD, shape.ring_bytes - form.beside())),
            flushed: 0,
            notices: (0..readers).map(|_| notices()).collect(),
            notices_max,
        }
    }

    /// Announces the head to every reader that does not know it, as far as they have receives or words; returns
    /// whether one has none left.
    fn notify(&mut self, effects: &mut Effects) -> bool {
        let head = self.flushed;
        let mut waits = false;
        for (peer, to) in self.store.living() {
            let Some(notices) = self.notices.get_mut(usize::from(peer.0)) else { break };
            let tail = self.store.tail_of(peer).unwrap_or(0);
            let over = |notice: &Notice| notice.arrived && notice.head <= tail;
            while notices.open.front().is_some_and(over) {
                notices.open.pop_front();
            }
            if notices.told >= head {
                continue;
            }
            if notices.open.len() >= self.notices_max as usize {
                waits = true;
                continue;
            }
            let number = notices.count;
            let slot = number % u64::from(self.notices_max);
            let name = Name(slot as u32);
            match self.store.shape.signal {
                Signal::Message => {
                    let notice = (head / WORD) as u32;
                    effects.send_inline(peer, name, Notify::Yes, &[], Some(notice));
                }
                Signal::Word => {
                    let word = head.to_le_bytes();
                    let at = RemoteSlice { region: to.bells, offset: SIGNALS + slot * WORD };
                    effects.write_inline(peer, name, Notify::No, &[&word], at, None);
                }
            }
            notices.told = head;
            notices.count += 1;
            // Words are read in order of their offsets: a reader that acknowledges one has read it.
            let arrived =
                self.store.shape.signal == Signal::Word || mutant!(self.store, LateNoticeForgotten);
            notices.open.push_back(Notice { number, head, arrived });
        }
        waits
    }
}

impl PullSender for ReadRingSender {
    fn store(&mut self) -> &mut Store {
        &mut self.store
    }

    fn store_ref(&self) -> &Store {
        &self.store
    }

    fn record(&self, bytes: u32) -> u64 {
        self.form.record(bytes)
    }

    fn offset(&self) -> u64 {
        self.ring.offset(self.store.head) + self.form.header()
    }

    /// New readers begin at the announced head.
    fn start<M: Memory>(&mut self, peer: Peer, _: &mut Step<'_, M>) -> Checked<u64> {
        let start = match self.form {
            ReadRingForm::Detached | ReadRingForm::Notify => self.flushed,
            ReadRingForm::Inlined | ReadRingForm::Prefetched => self.store.head,
        };
        if let Some(notices) = self.notices.get_mut(usize::from(peer.0)) {
            (notices.told, notices.count) = (start, 0);
            notices.open.clear();
        }
        Ok(start)
    }

    fn acknowledged(&mut self, effects: &mut Effects) {
        self.notify(effects);
    }

    fn notified(&mut self, completed: Completed) {
        let Some(notices) = self.notices.get_mut(usize::from(completed.peer.0)) else { return };
        // Few enough are open to be distinguished by their numbers.
        let all = u64::from(self.notices_max);
        let mine = |notice: &&mut Notice| notice.number % all == u64::from(completed.name.0);
        if let Some(notice) = notices.open.iter_mut().find(mine) {
            notice.arrived = true;
        }
    }

    /// Stores the bells that complete the message (001 figure 3).
    fn ring<M: Memory>(&self, bytes: u32, step: &mut Step<'_, M>) -> Checked {
        let (own, head) = (step.own, self.store.head);
        let (at, next) = (self.ring.offset(head), head + self.form.record(bytes));
        let bell = match self.form {
            ReadRingForm::Detached | ReadRingForm::Notify | ReadRingForm::Inlined => {
                u64::from(bytes) + 1
            }
            ReadRingForm::Prefetched => {
                let bell = (sequence(head) << 24) | u64::from(bytes);
                let sum = reach(checksum(bell, own.buffer, at + self.form.header(), bytes))?;
                reach(own.buffer.store_word(at + WORD, sum))?;
                bell
            }
        };
        let unset = !mutant!(self.store, NextBellNotUnset);
        if self.form.beside() > 0 && unset {
            reach(own.buffer.store_word(self.ring.offset(next), 0))?;
        }
        reach(own.buffer.store_word(at, bell))
    }

    fn flush<M: Memory>(&mut self, step: &mut Step<'_, M>) {
        if self.flushed == self.store.head {
            return;
        }
        self.flushed = self.store.head;
        match self.form {
            ReadRingForm::Detached => {
                let stored = self.store.bells.store(0, self.flushed, step.own);
                debug_assert!(stored.is_ok(), "the plan has this word");
            }
            ReadRingForm::Notify => {
                if self.notify(step.effects) {
                    // The next `advance` detects and reports the same violation.
                    let _ = self.store.look(step.own);
                    self.notify(step.effects);
                }
            }
            ReadRingForm::Inlined | ReadRingForm::Prefetched => {}
        }
    }
}
