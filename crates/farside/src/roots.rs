//! Named roots: how programs that share a cluster find each other's data.
//!
//! The names are in a directory in global memory, in pages of [`DIRECTORY_BYTES`]. Its home is the node with
//! state that has the lowest number, or else the member that was admitted first among those that lend memory;
//! it creates the first page when it is asked for it. Each entry is within one line, so that it is read and
//! written atomically; entries are changed under the lock of the first page's header.
//!
//! *Lifetime*: names in memory of a node with state are kept with it; others are lost with the member that is the
//! directory's home, as the memory of that home is. The directory of the next holder is empty.

use crate::engine::{DIRECTORY_BYTES, DIRECTORY_LINE_SIZE};
use crate::operation::OperationKind;
use crate::session::{Deadline, LinePiece, Session, Timed};
use crate::typed::{GlobalSlice, Pod};
use crate::{AllocationHint, AllocationSpec, Error, ErrorCode, GlobalAddress};
use farside_base::waiting::HOLDER_INTERVAL;
use farside_base::{LineSize, NodeId};
use std::time::Instant;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// The maximum length of a root's name.
pub const ROOT_NAME_MAX: usize = 64;
/// Bytes of an entry; a line has a whole number of them.
const ENTRY_BYTES: u64 = 128;
/// Entries of a page, after its header, which is as large as an entry.
const ENTRIES: u64 = DIRECTORY_BYTES / ENTRY_BYTES - 1;

/// The header of a page.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct Header {
    /// In the first page: the number of changes of the directory.
    version: u64,
    /// The address of the next page; zero if there is none.
    next: u64,
}

/// The entry of a root; all zero when unused.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct RootEntry {
    name_bytes: u64,
    name: [u8; ROOT_NAME_MAX],
    address: u64,
    bytes: u64,
}

const _: () = assert!(size_of::<RootEntry>() as u64 <= ENTRY_BYTES);
const _: () = assert!((LineSize::DEFAULT.bytes() as u64).is_multiple_of(ENTRY_BYTES));

impl RootEntry {
    const UNUSED: Self = Self { name_bytes: 0, name: [0; ROOT_NAME_MAX], address: 0, bytes: 0 };

    fn new(name: &str, root: Root) -> Self {
        let mut entry = Self::UNUSED;
        entry.name[..name.len()].copy_from_slice(name.as_bytes());
        entry.name_bytes = name.len() as u64;
        (entry.address, entry.bytes) = (root.address.to_bits(), root.bytes);
        entry
    }

    fn is(&self, name: &str) -> bool {
        let bytes = usize::try_from(self.name_bytes).ok().and_then(|bytes| self.name.get(..bytes));
        bytes == Some(name.as_bytes())
    }

    fn root(&self) -> Result<Root, Error> {
        let address = GlobalAddress::from_bits(self.address);
        let address = address.map_err(|_| Error::new(ErrorCode::ProtocolViolation))?;
        Ok(Root { address, bytes: self.bytes, is_new: false })
    }
}

/// A named piece of global memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Root {
    /// Its first byte.
    pub address: GlobalAddress,
    /// Its size.
    pub bytes: u64,
    /// Whether this call has created it.
    pub is_new: bool,
}

impl Root {
    /// The memory as an array of as many values as it has room for.
    pub fn array<T: Pod>(&self) -> GlobalSlice<T> {
        let len = self.bytes / (size_of::<T>() as u64).max(1);
        GlobalSlice::new(self.address, usize::try_from(len).unwrap_or(usize::MAX))
    }
}

/// The result of a search: the root's entry if it exists, and otherwise an unused one or the last page.
struct RootSearch {
    root: Option<(GlobalAddress, Root)>,
    unused: Option<GlobalAddress>,
    last: GlobalAddress,
}

impl Session {
    /// Returns the root of this name; waits until a session of any node has created it.
    ///
    /// *Guarantees*: everything that the creator wrote before it published the root is visible. Roots live
    /// as long as the member that was admitted first of those that lend memory: with it the names are gone.
    /// *Blocks* until the root exists; bound it by [`with_timeout`](Self::with_timeout). *Cost*: reads of
    /// the directory, which stay cached until it changes.
    ///
    /// # Errors
    /// `BadConfiguration` if the name is not 1 to 64 bytes long; `TimedOut` if no session has created it in
    /// time; `OutOfMemory` if no member lends memory; and as [`read`](Self::read).
    ///
    /// # Examples
    /// ```
    /// # use farside::{Config, Node};
    /// # fn main() -> Result<(), farside::Error> {
    /// # let mut config = Config::new(format!("roots-{}", std::process::id()));
    /// # config.memory_bytes = 1 << 20;
    /// # config.cache_bytes = 1 << 20;
    /// let node = Node::create(&config)?;
    /// let mut session = node.session()?;
    /// let counters = session.root_or_create("counters", 64)?; // in any process of the cluster
    /// session.fetch_add(counters.address, 1)?;
    /// assert_eq!(session.root("counters")?.address, counters.address);
    /// # Ok(())
    /// # }
    /// ```
    pub fn root(&mut self, name: &str) -> Result<Root, Error> {
        check(name)?;
        let found = self.timed().await_root(name);
        found.map_err(|error| match error.code {
            ErrorCode::TimedOut if error.detail.is_empty() => {
                Error { detail: format!("looking for the root {name:?}"), ..error }
            }
            _ => error,
        })
    }

    /// Returns the root of this name if it exists.
    ///
    /// *Blocks* for the directory's lines that are not cached.
    ///
    /// # Errors
    /// As [`root`](Self::root).
    pub fn try_root(&mut self, name: &str) -> Result<Option<Root>, Error> {
        check(name)?;
        let mut session = self.timed();
        let (_, directory) = session.directory()?;
        Ok(session.find(directory, name)?.root.map(|(_, root)| root))
    }

    /// Returns the root of this name, or allocates zeroed memory for it and creates it.
    ///
    /// *Guarantees*: one of the sessions that call this at the same time creates it
    /// ([`Root::is_new`]), and all get the same memory. An existing root may have another size. To
    /// initialize memory before others see it, [`publish_root`](Self::publish_root) it. *Blocks* for the
    /// lock of the directory and the allocation.
    ///
    /// # Errors
    /// As [`root`](Self::root), [`alloc`](Self::alloc) and [`lock_write`](Self::lock_write).
    pub fn root_or_create(&mut self, name: &str, bytes: u64) -> Result<Root, Error> {
        self.root_or_create_with(name, bytes, AllocationSpec::default())
    }

    /// As [`root_or_create`](Self::root_or_create), with a placement hint and a line size.
    ///
    /// # Errors
    /// As `root_or_create`.
    pub fn root_or_create_with(
        &mut self,
        name: &str,
        bytes: u64,
        spec: AllocationSpec,
    ) -> Result<Root, Error> {
        let mut session = self.timed();
        if let Some(root) = session.try_root(name)? {
            return Ok(root);
        }
        let address = session.alloc_with(bytes, spec)?;
        let Err(error) = session.publish_root(name, address, bytes) else {
            return Ok(Root { address, bytes, is_new: true });
        };
        match error.code {
            ErrorCode::RootExists => {
                // The root matters more than an error of freeing what it does not need.
                let _ = session.until(None).free(address);
                session.root(name)
            }
            // The root may have been created, and name it.
            _ => Err(error),
        }
    }

    /// Creates a root that names this memory.
    ///
    /// *Guarantees*: all earlier writes of this session are visible to sessions that get the root.
    /// *Blocks* for the lock of the directory.
    ///
    /// # Errors
    /// `RootExists`; and as [`root`](Self::root) and [`lock_write`](Self::lock_write).
    pub fn publish_root(
        &mut self,
        name: &str,
        address: GlobalAddress,
        bytes: u64,
    ) -> Result<(), Error> {
        check(name)?;
        let root = Root { address, bytes, is_new: false };
        self.change_directory(|session, directory| {
            loop {
                let found = session.find(directory, name)?;
                if found.root.is_some() {
                    let detail = format!("the name is {name:?}");
                    return Err(Error::with(ErrorCode::RootExists, detail));
                }
                let at = match found.unused {
                    Some(at) => at,
                    None => session.add_page(found.last)?,
                };
                if session.use_entry(at, &RootEntry::new(name, root))? {
                    return Ok(());
                }
            }
        })
    }

    /// Removes a root, and returns what it named. The memory stays allocated.
    ///
    /// *Blocks* for the lock of the directory.
    ///
    /// # Errors
    /// As [`publish_root`](Self::publish_root).
    pub fn remove_root(&mut self, name: &str) -> Result<Option<Root>, Error> {
        check(name)?;
        self.change_directory(|session, directory| {
            let Some((at, root)) = session.find(directory, name)?.root else {
                return Ok(None);
            };
            session.write_value(at, &RootEntry::UNUSED)?;
            Ok(Some(root))
        })
    }

    /// Runs `change` under the lock of the directory, and counts a change if it succeeds.
    fn change_directory<R>(
        &mut self,
        change: impl FnOnce(&mut Timed<'_>, GlobalAddress) -> Result<R, Error>,
    ) -> Result<R, Error> {
        let mut session = self.timed();
        let deadline = session.deadline();
        let (_, directory) = session.directory()?;
        let mut guard = session.lock_write(directory, 8)?;
        let mut locked = guard.until(deadline);
        let changed = change(&mut locked, directory)
            .and_then(|result| locked.fetch_add(directory, 1).map(|_| result));
        drop(locked);
        // A lock that is not released in time would be held for ever.
        guard.deadline = Some(Deadline::Never);
        let unlocked = guard.unlock();
        let result = changed?;
        match unlocked {
            // The directory's home, which has state, has returned meanwhile, without its locks.
            Err(error) if matches!(error.code, ErrorCode::HomeAway | ErrorCode::NotLocked) => {}
            unlocked => unlocked?,
        }
        Ok(result)
    }
}

/// The parts of these calls.
impl Timed<'_> {
    fn await_root(&mut self, name: &str) -> Result<Root, Error> {
        loop {
            let (holder, directory) = self.directory()?;
            let version = self.read_u64(directory)?;
            if let Some((_, root)) = self.find(directory, name)?.root {
                return Ok(root);
            }
            let (check, deadline) = (Some(Instant::now() + HOLDER_INTERVAL), self.deadline());
            let until = check.min(deadline.or(check));
            self.wait_word(directory, until, |now| now != version)?;
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                let detail = format!("no session has created the root {name:?} at node {holder}");
                return Err(Error::with(ErrorCode::TimedOut, detail));
            }
        }
    }

    /// The home and the first page of the directory.
    fn directory(&mut self) -> Result<(NodeId, GlobalAddress), Error> {
        loop {
            let found = self.directory_now();
            let is_away = found.as_ref().is_err_and(|error| error.code == ErrorCode::HomeAway);
            let home = self.core.engine().membership().directory_home();
            if !is_away || home == self.directory_asked {
                return found;
            }
        }
    }

    fn directory_now(&mut self) -> Result<(NodeId, GlobalAddress), Error> {
        let holder = self.core.engine().membership().directory_home();
        self.directory_asked = holder;
        let none =
            || Error::with(ErrorCode::OutOfMemory, "no member lends memory for the names of roots");
        let holder = holder.ok_or_else(none)?;
        if let Some((known, directory)) = self.directory
            && known == holder
            && self.core.engine().refusal_at(directory.line()).is_none()
        {
            return Ok((holder, directory));
        }
        let address = GlobalAddress::new(holder, DIRECTORY_LINE_SIZE, 0)
            .map_err(|_| Error::new(ErrorCode::ProtocolViolation))?;
        let session: &mut Session = self;
        let blocking = session.blocking();
        let mut call = session.enter();
        let directory = OperationKind::Directory { node: holder };
        let bits = blocking.run(call.call(directory, LinePiece::empty(address), &[]))?;
        drop(call);
        let directory =
            GlobalAddress::from_bits(bits).map_err(|_| Error::new(ErrorCode::ProtocolViolation))?;
        self.directory = Some((holder, directory));
        Ok((holder, directory))
    }

    fn find(&mut self, directory: GlobalAddress, name: &str) -> Result<RootSearch, Error> {
        let mut found = RootSearch { root: None, unused: None, last: directory };
        loop {
            let page = found.last;
            for index in 1..=ENTRIES {
                let at = part(page, index * ENTRY_BYTES)?;
                let entry: RootEntry = self.read_value(at)?;
                if entry.is(name) {
                    found.root = Some((at, entry.root()?));
                    return Ok(found);
                }
                if entry.name_bytes == 0 {
                    found.unused.get_or_insert(at);
                }
            }
            let header: Header = self.read_value(page)?;
            match GlobalAddress::from_bits(header.next) {
                Ok(next) if header.next != 0 => found.last = next,
                _ => return Ok(found),
            }
        }
    }

    /// Adds a page after the last one, at the same home; returns its first entry.
    fn add_page(&mut self, last: GlobalAddress) -> Result<GlobalAddress, Error> {
        let hint = AllocationHint::Near(last);
        let spec = AllocationSpec::new(hint).line_size(Some(DIRECTORY_LINE_SIZE));
        let page = self.alloc_with(DIRECTORY_BYTES, spec)?;
        let next = part(last, std::mem::offset_of!(Header, next) as u64)?;
        let other = self.compare_swap(next, 0, page.to_bits())?;
        match GlobalAddress::from_bits(other) {
            Ok(other) if other.to_bits() != 0 => {
                self.free(page)?;
                part(other, ENTRY_BYTES)
            }
            _ => part(page, ENTRY_BYTES),
        }
    }

    /// Fills an entry unless it is used: the lock ends with its home, which may have returned since the search.
    fn use_entry(&mut self, at: GlobalAddress, entry: &RootEntry) -> Result<bool, Error> {
        let bytes = entry.as_bytes();
        self.atomic(at, bytes.len(), |old| {
            let is_unused = old.starts_with(RootEntry::UNUSED.name_bytes.as_bytes());
            if is_unused {
                old.copy_from_slice(bytes);
            }
            is_unused
        })
    }
}

fn part(page: GlobalAddress, offset: u64) -> Result<GlobalAddress, Error> {
    page.checked_add(offset).ok_or_else(|| Error::at(ErrorCode::OutOfBounds, page))
}

fn check(name: &str) -> Result<(), Error> {
    if (1..=ROOT_NAME_MAX).contains(&name.len()) {
        return Ok(());
    }
    let detail =
        format!("root name {name:?}: 1 to {ROOT_NAME_MAX} bytes, and it has {}", name.len());
    Err(Error::with(ErrorCode::BadConfiguration, detail))
}
