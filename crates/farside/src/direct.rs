//! Direct reads: reading a line of another home without its processor, where this processor reaches that
//! memory by loads.
//!
//! A reader uses the home's own tag of the line as its local sessions do: it loads the tag, copies the bytes,
//! and loads the tag again. Equal tags, not busy and at [`Level::Shared`] or above, mean that the home's bytes
//! were the latest of the line throughout. Anything else is left to the protocol: an owner elsewhere, a line
//! in transition, memory that is not allocated. Nothing is registered at the home and nothing is cached.
//!
//! **Removal.** After its copy, the reader checks that neither it nor the home has been removed, by the fence
//! words of both. A member stores the fence word of another before it reclaims anything of it. A home whose
//! memory ends first says so in a word behind its tags, since its bytes and its fence word may be zeroed then.
//!
//! [`Level::Shared`]: farside_protocol::coherence::Level::Shared

use crate::hit::processor::pause;
use crate::hit::{Lines, TagValue, end_word, is_member, tag_offset};
use crate::mutex::locked;
use farside_base::{GlobalAddress, MemoryId, NodeId};
use farside_fabric::{Reached, SharedWord};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// How often a read is tried while the home changes the line; then the protocol answers.
const TRIES: u32 = 64;

/// The memory of another home, which this processor reaches by loads.
#[derive(Debug)]
pub(crate) struct DirectHome {
    memory: MemoryId,
    tags: Reached,
    bytes: Reached,
    /// The home's fence word.
    fence: SharedWord,
    /// Its home has state: a line that it may write is not durable.
    is_logged: bool,
}

impl DirectHome {
    pub(crate) const fn new(
        memory: MemoryId,
        tags: Reached,
        bytes: Reached,
        fence: SharedWord,
    ) -> Self {
        Self { memory, tags, bytes, fence, is_logged: false }
    }

    /// The same of a home with state.
    pub(crate) fn logged(self, is_logged: bool) -> Self {
        Self { is_logged, ..self }
    }

    /// Whether the home lets other nodes read bytes of a line with this tag.
    fn permits(
        &self,
        tag: TagValue,
        address: GlobalAddress,
        bytes: usize,
        continues: bool,
    ) -> bool {
        let (size, offset) = (address.line_size(), address.offset_in_line());
        tag.allows_read(size, offset, bytes, continues) && !(self.is_logged && tag.may_change())
    }

    /// Whether the home is a member and its memory has not ended, checked after the copy. The word of the end
    /// comes last: it is set before the fence word is zeroed.
    fn is_there(&self) -> bool {
        is_member(|order| self.fence.load(order))
            && self.tags.load_word_after(end_word(self.tags.len())) == Ok(0)
    }

    /// Whether its home seems to have the latest bytes of a piece of a line.
    fn allows(&self, address: GlobalAddress, bytes: usize, continues: bool) -> bool {
        let line = address.line();
        let seen = self.tags.load_word(tag_offset(line));
        seen.is_ok_and(|seen| self.permits(TagValue::from_bits(seen), address, bytes, continues))
    }

    /// Copies bytes of one line out if its home has the latest; all bytes from `address` on are in one line.
    fn read(&self, lines: &Lines, address: GlobalAddress, out: &mut [u8], continues: bool) -> bool {
        let line = address.line();
        let (at, start) = (tag_offset(line), address.offset());
        for tries in 1..=TRIES {
            let Ok(seen) = self.tags.load_word(at) else {
                return false;
            };
            let tag = TagValue::from_bits(seen);
            if tag.busy() {
                pause(tries);
                continue;
            }
            if !self.permits(tag, address, out.len(), continues) {
                return false;
            }
            if self.bytes.read(start, out).is_err() {
                return false;
            }
            if self.tags.load_word_after(at) == Ok(seen) {
                return lines.is_trusted() && self.is_there();
            }
            pause(tries);
        }
        false
    }
}

/// The homes that the sessions of a node may read directly.
#[derive(Debug, Default)]
pub(crate) struct DirectHomes {
    /// Rises with each change of the list.
    epoch: AtomicU64,
    by_node: Mutex<Vec<Option<Arc<DirectHome>>>>,
}

impl DirectHomes {
    /// Adds the memory of a home; engine only.
    pub(crate) fn open(&self, home: DirectHome) {
        let place = usize::from(home.memory.node().0);
        let mut by_node = locked(&self.by_node);
        if by_node.len() <= place {
            by_node.resize(place + 1, None);
        }
        by_node[place] = Some(Arc::new(home));
        self.epoch.fetch_add(1, Ordering::Release);
    }

    /// Removes the memory of a home that is no longer a member; engine only.
    pub(crate) fn close(&self, node: NodeId) {
        let closed = locked(&self.by_node).get_mut(usize::from(node.0)).and_then(Option::take);
        if closed.is_some() {
            self.epoch.fetch_add(1, Ordering::Release);
        }
    }

    /// The number of homes.
    pub(crate) fn count(&self) -> usize {
        locked(&self.by_node).iter().flatten().count()
    }
}

/// A session's own list of the homes, so that a read takes no lock and counts no reference.
///
/// It keeps the memory of a home that was removed mapped until the session's next direct read.
#[derive(Debug)]
pub(crate) struct DirectReader {
    homes: Arc<DirectHomes>,
    epoch: u64,
    is_off: bool,
    by_node: Vec<Option<Arc<DirectHome>>>,
}

impl DirectReader {
    pub(crate) fn new(homes: &Arc<DirectHomes>) -> Self {
        Self { homes: Arc::clone(homes), epoch: 0, is_off: false, by_node: Vec::new() }
    }

    /// Switches direct reads off or on; returns whether they were off.
    pub(crate) const fn set_off(&mut self, is_off: bool) -> bool {
        std::mem::replace(&mut self.is_off, is_off)
    }

    /// Copies bytes of one line of another home out, if it can be read directly and the home has the latest.
    #[inline]
    pub(crate) fn read(
        &mut self,
        lines: &Lines,
        address: GlobalAddress,
        out: &mut [u8],
        continues: bool,
    ) -> bool {
        self.refresh();
        self.home(address).is_some_and(|home| home.read(lines, address, out, continues))
    }

    /// Whether a read of these bytes of a line is likely to succeed.
    pub(crate) fn allows(&self, address: GlobalAddress, bytes: usize, continues: bool) -> bool {
        self.home(address).is_some_and(|home| home.allows(address, bytes, continues))
    }

    #[inline]
    fn home(&self, address: GlobalAddress) -> Option<&DirectHome> {
        let memory = address.line().memory();
        let home = self.by_node.get(usize::from(memory.node().0))?.as_deref();
        home.filter(|home| home.memory == memory && !self.is_off)
    }

    /// Notes homes that came or went.
    #[inline]
    pub(crate) fn refresh(&mut self) {
        if self.homes.epoch.load(Ordering::Acquire) != self.epoch {
            self.copy_homes();
        }
    }

    #[cold]
    fn copy_homes(&mut self) {
        let by_node = locked(&self.homes.by_node);
        self.epoch = self.homes.epoch.load(Ordering::Acquire);
        self.by_node.clone_from(&by_node);
    }
}
