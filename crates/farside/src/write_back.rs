//! Write-back of owned lines on request.

use crate::operation::OperationKind;
use crate::session::{AccessKind, Buffer, Session};
use crate::{Error, GlobalAddress};

impl Session {
    /// Writes the lines of a range that this node owns back to their homes.
    ///
    /// *Guarantees*: when it returns, the homes have everything that this session wrote to the range
    /// before, and that other sessions of this node had fenced: the death of this node loses none of it. If
    /// another node has taken a line from this one meanwhile, the line is fetched from there if it is still
    /// cached here; otherwise that node's death may lose it. This node keeps copies for reading, and needs
    /// the home again for its next write.
    /// *Blocks* until the homes have answered, up to 8 lines at a time. *Cost*: one round trip to the home,
    /// with the bytes of an owned line in the request (more if the line is pinned or being recalled: the home recalls it);
    /// one round trip for any other line, cached here or not (and a recall where another node owns it), because only the
    /// home knows its state; nothing for memory of this home, without state. The
    /// next write of each line is one round trip. At a home with state the bytes are durable when it returns.
    ///
    /// # Errors
    /// `ZeroSize`, `TooLarge`; the first failure of an earlier write; `NodeLost` and `NodeLeft` when a home is gone;
    /// `LineLost` when a node died that had taken a line (overwrite the whole line); `WritesLost` as for
    /// [`fence`](Self::fence); `Unallocated` when the memory was freed; `ForeignAddress` for memory that no member ever lent; `TimedOut`.
    pub fn write_back(&mut self, address: GlobalAddress, bytes: usize) -> Result<(), Error> {
        let what = AccessKind::Ordered(OperationKind::WriteBack);
        self.report_loss()?;
        self.access(what, address, bytes, Buffer::NONE)?;
        self.report_loss()
    }

    /// The awaitable twin of [`write_back`](Self::write_back).
    ///
    /// # Errors
    /// As `write_back`.
    pub async fn write_back_async(
        &mut self,
        address: GlobalAddress,
        bytes: usize,
    ) -> Result<(), Error> {
        let what = AccessKind::Ordered(OperationKind::WriteBack);
        self.report_loss()?;
        self.access_async(what, address, bytes, Buffer::NONE).await?;
        self.report_loss()
    }
}
