//! A question to a name, by a process that is no member: a request for a link whose answer is all it needs.

use crate::registered::not_reached;
use crate::{Error, ErrorCode};
use farside_fabric::{Fabric, FabricError, LinkEvent, NotReached, Port, PortSpec};

/// The detail when the link ends without an answer.
const NOT_ANSWERED: &str = "the coordinator closed the connection before it answered: it has ended, or its \
    process has no descriptor left; raise its RLIMIT_NOFILE";

/// A question that was asked; dropping it closes its link.
pub(crate) struct Inquiry {
    port: Box<dyn Port>,
}

/// Why a question has no answer.
pub(crate) struct Unanswered {
    pub(crate) error: Error,
    /// Another attempt may succeed at once. The asked process may have ended, or its listener was full and
    /// evicted this connection in favour of another one.
    pub(crate) may_pass: bool,
}

impl Inquiry {
    /// Asks the process that listens at a name.
    ///
    /// # Errors
    /// `NoSuchCluster`, `NotPermitted`, `FabricLacks`, `System`.
    pub(crate) fn ask(fabric: &dyn Fabric, name: &str, hello: &[u8]) -> Result<Self, Unanswered> {
        let mut port = fabric.open(&PortSpec::default()).map_err(fabric_error)?;
        let queue = port.create_receive_queue(1).map_err(fabric_error)?;
        port.connect(name, hello, queue).map_err(|error| match error {
            FabricError::PeerLost => Unanswered::ended(),
            error => fabric_error(error).into(),
        })?;
        Ok(Self { port })
    }

    /// The answer, once it has arrived; an acceptance leaves the link open.
    pub(crate) fn poll(&mut self) -> Option<Result<Vec<u8>, Unanswered>> {
        let mut events = Vec::new();
        self.port.link_events(&mut events);
        Some(match events.into_iter().next()? {
            LinkEvent::Connected { reply, .. } => Ok(reply),
            LinkEvent::Refused { reason, .. } => Ok(reason),
            LinkEvent::NotReached { link, why } => {
                let trouble = self.port.trouble(link);
                Err(match why {
                    NotReached::NotPermitted => not_reached(why, trouble).into(),
                    _ => Unanswered {
                        error: Error::with(ErrorCode::NoSuchCluster, trouble.unwrap_or_default()),
                        may_pass: why == NotReached::HungUp,
                    },
                })
            }
            _ => Err(Unanswered::ended()),
        })
    }

    /// Whether the link of an accepted question was lost.
    pub(super) fn is_lost(&mut self) -> bool {
        let mut events = Vec::new();
        self.port.link_events(&mut events);
        events.iter().any(|event| matches!(event, LinkEvent::Lost { .. }))
    }
}

impl Unanswered {
    fn ended() -> Self {
        Self { error: Error::with(ErrorCode::NoSuchCluster, NOT_ANSWERED), may_pass: true }
    }
}

impl From<Error> for Unanswered {
    fn from(error: Error) -> Self {
        // The coordinator died or changed meanwhile, or a free number is not settled yet.
        use ErrorCode::{Busy, Isolated, NodeClosed};
        let may_pass = matches!(error.code, NodeClosed | Busy | Isolated);
        Self { error, may_pass }
    }
}

/// The error of a node's operation for an error of the control path.
pub(crate) fn fabric_error(error: FabricError) -> Error {
    let code = match &error {
        FabricError::Lacks(_) | FabricError::Limit(_) => ErrorCode::FabricLacks,
        FabricError::AddressInUse(_) => ErrorCode::NameTaken,
        FabricError::NoListener(_) => ErrorCode::NoSuchCluster,
        FabricError::NotPermitted(_) => ErrorCode::NotPermitted,
        FabricError::PeerLost => ErrorCode::NodeLost,
        _ => ErrorCode::System,
    };
    Error::with(code, error.to_string())
}
