//! The sender of mailboxes that readers READ.

use super::super::checksum::checksum;
use super::super::effects::{Name, Notify, Peer};
use super::super::half::{Checked, OwnRegions, Step, own as reach};
use super::super::kind::Kind;
use super::super::shape::{Shape, Signal};
use super::super::store::{PullSender, Store};
use super::{Boxes, ReadSlotForm, SIGNALS, WORD, bell_of};
use farside_base::{Memory, RemoteSlice};

/// The name of every notice.
const NOTICE: Name = Name(0);

/// The sender half of the read slot channels except the indirect one.
///
/// *Cost*: a copy into the mailbox unless the message was built there, and no request except a notice per reader if
/// there are notices. No allocation.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct ReadMailboxSender {
    form: ReadSlotForm,
    slot_bits: u32,
    boxes: Boxes,
    /// Its positions are numbers of messages.
    store: Store,
}

impl ReadMailboxSender {
    pub(in super::super) fn new(kind: Kind, shape: &Shape, regions: OwnRegions) -> Self {
        let form = ReadSlotForm::of(kind);
        Self {
            form,
            slot_bits: shape.slot_bits(),
            boxes: Boxes::new(form.header(), shape),
            store: Store::new(shape, regions, (1, u64::from(shape.slots))),
        }
    }
}

impl PullSender for ReadMailboxSender {
    fn store(&mut self) -> &mut Store {
        &mut self.store
    }

    fn store_ref(&self) -> &Store {
        &self.store
    }

    fn record(&self, _: u32) -> u64 {
        1
    }

    fn offset(&self) -> u64 {
        self.boxes.message(self.store.head)
    }

    fn start<M: Memory>(&mut self, _: Peer, step: &mut Step<'_, M>) -> Checked<u64> {
        if self.form == ReadSlotForm::Detached && self.store.living().next().is_none() {
            // Readers may write outside their own words, and the last ones are gone.
            for slot in 0..self.boxes.slots {
                reach(self.store.bells.store(slot * WORD, 0, step.own))?;
            }
        }
        Ok(self.store.head)
    }

    fn ring<M: Memory>(&self, bytes: u32, step: &mut Step<'_, M>) -> Checked {
        let Step { own, effects } = step;
        let head = self.store.head;
        let (bell, slot) = (bell_of(head, bytes), self.boxes.slot(head));
        match self.form {
            ReadSlotForm::Detached => reach(self.store.bells.store(slot * WORD, bell, *own)),
            ReadSlotForm::Inlined => {
                let (mailbox, message) = (self.boxes.mailbox(head), self.boxes.message(head));
                let sum = reach(checksum(bell, own.buffer, message, bytes))?;
                reach(own.buffer.store_word(mailbox + WORD, sum))?;
                reach(own.buffer.store_word(mailbox, bell))
            }
            ReadSlotForm::Notify => {
                for (peer, to) in self.store.living() {
                    match self.store.shape.signal {
                        Signal::Message => {
                            let notice = (bytes << self.slot_bits) | slot as u32;
                            effects.send_inline(peer, NOTICE, Notify::No, &[], Some(notice));
                        }
                        Signal::Word => {
                            let word = bell.to_le_bytes();
                            let offset = SIGNALS + slot * WORD;
                            let at = RemoteSlice { region: to.bells, offset };
                            effects.write_inline(peer, NOTICE, Notify::No, &[&word], at, None);
                        }
                    }
                }
                Ok(())
            }
        }
    }
}
