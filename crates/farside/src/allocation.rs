//! Allocates and frees global memory: the calls of a session.

use crate::config::{AllocationHint, AllocationSpec, Durability};
use crate::operation::OperationKind;
use crate::session::{AccessKind, Buffer, LinePiece, Session};
use crate::{Error, ErrorCode, GlobalAddress, NodeId};
use farside_base::NodeSet;
use farside_protocol::allocate::Hint;

impl Session {
    /// Allocates zeroed memory, at this node if possible, in lines of the node's default size.
    ///
    /// *Guarantees*: zeroed; shares no line with any other allocation. *Units*: bytes, rounded up to a
    /// multiple of 8. *Blocks* for one round trip when another node allocates. *Cost*: the home sets a tag
    /// for each line and zeroes previously used memory; beyond 256 lines or 128 KiB it does so in slices,
    /// and serves its peers and other sessions between them. *Source*: 004 §2.1 `Malloc`.
    ///
    /// # Errors
    /// `ZeroSize`, `TooLarge`, `OutOfMemory`, `NodeClosed`.
    pub fn alloc(&mut self, bytes: u64) -> Result<GlobalAddress, Error> {
        self.alloc_with(bytes, AllocationSpec::default())
    }

    /// As [`alloc`](Self::alloc), at the home of `near`.
    ///
    /// # Errors
    /// As `alloc`, and `NodeLost` or `ForeignAddress` for the home of `near`.
    pub fn alloc_near(&mut self, bytes: u64, near: GlobalAddress) -> Result<GlobalAddress, Error> {
        let hint = AllocationHint::Near(near);
        self.alloc_with(bytes, AllocationSpec::new(hint))
    }

    /// As [`alloc`](Self::alloc), at `node`.
    ///
    /// # Errors
    /// As `alloc`, and `NodeLost` or `ForeignAddress` for `node`.
    pub fn alloc_on(&mut self, bytes: u64, node: NodeId) -> Result<GlobalAddress, Error> {
        let hint = AllocationHint::On(node);
        self.alloc_with(bytes, AllocationSpec::new(hint))
    }

    /// As [`alloc`](Self::alloc), with a placement hint and a line size.
    ///
    /// # Errors
    /// As `alloc_on`.
    pub fn alloc_with(&mut self, bytes: u64, spec: AllocationSpec) -> Result<GlobalAddress, Error> {
        self.blocking().run(self.alloc_with_async(bytes, spec))
    }

    /// The awaitable twin of [`alloc`](Self::alloc).
    ///
    /// # Errors
    /// As `alloc`.
    pub async fn alloc_async(&mut self, bytes: u64) -> Result<GlobalAddress, Error> {
        self.alloc_with_async(bytes, AllocationSpec::default()).await
    }

    /// The awaitable twin of [`alloc_near`](Self::alloc_near).
    ///
    /// # Errors
    /// As `alloc_near`.
    pub async fn alloc_near_async(
        &mut self,
        bytes: u64,
        near: GlobalAddress,
    ) -> Result<GlobalAddress, Error> {
        let hint = AllocationHint::Near(near);
        self.alloc_with_async(bytes, AllocationSpec::new(hint)).await
    }

    /// The awaitable twin of [`alloc_on`](Self::alloc_on).
    ///
    /// # Errors
    /// As `alloc_on`.
    pub async fn alloc_on_async(
        &mut self,
        bytes: u64,
        node: NodeId,
    ) -> Result<GlobalAddress, Error> {
        let hint = AllocationHint::On(node);
        self.alloc_with_async(bytes, AllocationSpec::new(hint)).await
    }

    /// The awaitable twin of [`alloc_with`](Self::alloc_with).
    ///
    /// # Errors
    /// As `alloc_with`.
    pub async fn alloc_with_async(
        &mut self,
        bytes: u64,
        spec: AllocationSpec,
    ) -> Result<GlobalAddress, Error> {
        if bytes == 0 {
            return Err(Error::new(ErrorCode::ZeroSize));
        }
        if bytes > self.core.limits.allocation_bytes_max {
            return Err(Error::new(ErrorCode::TooLarge));
        }
        let line_size = spec.line_size.unwrap_or(self.core.line_size);
        let class = line_size.class();
        let mut call = self.enter();
        // Several attempts: the known free memory of other nodes may be out of date, and their states are not known.
        let (mut full, mut not_kept) = (NodeSet::EMPTY, NodeSet::EMPTY);
        loop {
            let chosen = call.choose_home(spec, bytes, (&full, &not_kept));
            let node = chosen.map_err(|error| match error.code {
                // A home that would do and is full is what the caller has to know of.
                ErrorCode::OutOfMemory | ErrorCode::NoState if full != NodeSet::EMPTY => {
                    ErrorCode::OutOfMemory.into()
                }
                ErrorCode::OutOfMemory if not_kept != NodeSet::EMPTY => ErrorCode::NoState.into(),
                _ => error,
            })?;
            let address = GlobalAddress::new(node, line_size, 0)
                .map_err(|_| Error::new(ErrorCode::BadLineSize))?;
            let any = matches!(spec.hint, AllocationHint::Default | AllocationHint::Remote);
            let elsewhere = any && spec.durability == Durability::Volatile;
            let needs = spec.durability.needs();
            let allocate = OperationKind::Allocate { node, bytes, class, elsewhere, needs };
            match call.call(allocate, LinePiece::empty(address), &[]).await {
                Ok(bits) => {
                    return GlobalAddress::from_bits(bits)
                        .map_err(|_| Error::new(ErrorCode::ProtocolViolation));
                }
                Err(error) if error.code == ErrorCode::OutOfMemory && any && full.insert(node) => {}
                Err(error) if error.code == ErrorCode::NoState && any && not_kept.insert(node) => {}
                Err(error) => {
                    return Err(Error { address: None, ..error });
                }
            }
        }
    }

    fn choose_home(
        &self,
        spec: AllocationSpec,
        bytes: u64,
        refused: (&NodeSet, &NodeSet),
    ) -> Result<NodeId, Error> {
        let named = |node| match spec.durability {
            Durability::Volatile => Ok(node),
            _ if self.core.engine().has_state(node) => Ok(node),
            _ => Err(Error::with(ErrorCode::NoState, format!("{node} has none"))),
        };
        let hint = match spec.hint {
            // Named nodes are asked directly, whatever is known of their memory.
            AllocationHint::Near(address) => {
                let refusal = self.core.engine().refusal_at(address.line());
                let refusal = refusal.filter(|code| *code != ErrorCode::HomeAway); // it waits
                return refusal.map_or(named(address.home()), |code| Err(Error::at(code, address)));
            }
            AllocationHint::On(node) => return named(node),
            AllocationHint::Default => Hint::Default,
            AllocationHint::Local => Hint::Local,
            AllocationHint::Remote => Hint::Remote,
        };
        Ok(self.core.engine().choose_home((hint, spec.durability), bytes, refused)?)
    }

    /// Frees an allocation.
    ///
    /// *Guarantees*: when it returns, every cached copy is invalidated and every access fails with
    /// `Unallocated`; the memory is reused only after that. Waits for earlier writes of this session.
    /// *Blocks* for the recall of all copies. *Cost*: one round trip to the home, and one from it to each
    /// holder of a line; the home works in slices of 256 lines, as for `alloc`.
    ///
    /// # Errors
    /// `NotAnAllocation` for anything but a live address that `alloc` returned; `NodeLost`.
    pub fn free(&mut self, address: GlobalAddress) -> Result<(), Error> {
        let free = AccessKind::Ordered(OperationKind::Free);
        self.access(free, address, 1, Buffer::NONE).map(drop)
    }

    /// The awaitable twin of [`free`](Self::free).
    ///
    /// # Errors
    /// As `free`.
    pub async fn free_async(&mut self, address: GlobalAddress) -> Result<(), Error> {
        let free = AccessKind::Ordered(OperationKind::Free);
        self.access_async(free, address, 1, Buffer::NONE).await.map(drop)
    }
}
