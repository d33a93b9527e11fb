//! Who gets the result of an allocation or a free.

use farside_base::{NodeId, OperationId, Ticket};

/// The recipient of the result of an allocation or a free.
#[derive(Clone, Copy, Debug)]
pub(super) enum Requester {
    Operation(OperationId),
    Node(NodeId, Ticket),
    /// A dead node: its allocation is freed again.
    Dead,
}
