//! The memory interface of the table: the session of the facade, and a test double that chooses
//! interleavings and deaths by seed.

use farside::{AllocationSpec, Error, GlobalAddress, NodeId, Session};

/// A node, and how often it has lost writes that were not durable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct LossMark {
    pub(super) node: NodeId,
    pub(super) write_losses: u32,
}

/// One program order over a global memory.
///
/// Guarantees that the table relies on: a read or write of bytes of one line is atomic; reads take effect
/// in program order; a write takes effect at any time up to the next `fence` of its session, in any order
/// with writes to other lines; a failed fence has ended all earlier writes too; `atomic` is one step. It
/// does not rely on `atomic` ordering earlier writes.
///
/// In memory of nodes with state, a crash returns each line to its last durable bytes. A fence without
/// an error has made durable what this node wrote at the present `loss_mark`, and no other node
/// sees what is not durable.
pub(super) trait Space {
    fn read(&mut self, at: GlobalAddress, out: &mut [u8]) -> Result<(), Error>;
    fn write(&mut self, at: GlobalAddress, bytes: &[u8]) -> Result<(), Error>;
    fn fence(&mut self) -> Result<(), Error>;
    fn atomic<R>(
        &mut self,
        at: GlobalAddress,
        bytes: usize,
        change: impl FnOnce(&mut [u8]) -> R,
    ) -> Result<R, Error>;
    fn alloc(&mut self, bytes: u64, spec: AllocationSpec) -> Result<GlobalAddress, Error>;
    fn free(&mut self, at: GlobalAddress) -> Result<(), Error>;
    fn loss_mark(&mut self) -> LossMark;
}

impl Space for Session {
    #[inline]
    fn read(&mut self, at: GlobalAddress, out: &mut [u8]) -> Result<(), Error> {
        Session::read(self, at, out)
    }

    #[inline]
    fn write(&mut self, at: GlobalAddress, bytes: &[u8]) -> Result<(), Error> {
        Session::write(self, at, bytes)
    }

    #[inline]
    fn fence(&mut self) -> Result<(), Error> {
        Session::fence(self)
    }

    #[inline]
    fn atomic<R>(
        &mut self,
        at: GlobalAddress,
        bytes: usize,
        change: impl FnOnce(&mut [u8]) -> R,
    ) -> Result<R, Error> {
        Session::atomic(self, at, bytes, change)
    }

    fn alloc(&mut self, bytes: u64, spec: AllocationSpec) -> Result<GlobalAddress, Error> {
        self.alloc_with(bytes, spec)
    }

    fn free(&mut self, at: GlobalAddress) -> Result<(), Error> {
        Session::free(self, at)
    }

    #[inline]
    fn loss_mark(&mut self) -> LossMark {
        LossMark { node: self.id().node(), write_losses: self.write_losses() }
    }
}
