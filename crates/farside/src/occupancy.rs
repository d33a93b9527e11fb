//! The number of members of a cluster, for a process that does not join it.

use crate::boot::rendezvous_name;
use crate::node::fabric_error;
use crate::registered::not_reached;
use crate::{Error, ErrorCode};
use farside_fabric::{Fabric, LinkEvent, PortSpec};
use farside_protocol::member::{AskOccupancy, HelloAnswer};
use std::time::{Duration, Instant};

/// The number of members of a cluster.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Occupancy {
    /// Members alive, as far as its coordinator knows.
    pub members: usize,
    /// The maximum at a time ([`Limits::nodes_max`](crate::Limits::nodes_max) of its founder).
    pub members_max: usize,
}

/// Asks the coordinator of a cluster for its number of members, without joining.
///
/// *Blocks* for one round trip, at most `timeout`.
///
/// # Errors
/// `NoSuchCluster`; `TimedOut` if the coordinator does not answer (it is stopped, say); `NotPermitted`;
/// `ProtocolViolation` if it runs another build.
pub fn occupancy(
    fabric: &dyn Fabric,
    cluster: &str,
    timeout: Duration,
) -> Result<Occupancy, Error> {
    let deadline = Instant::now() + timeout;
    let mut port = fabric.open(&PortSpec::default()).map_err(fabric_error)?;
    let queue = port.create_receive_queue(1).map_err(fabric_error)?;
    let link = port.connect(&rendezvous_name(cluster), &AskOccupancy.encode(), queue);
    link.map_err(fabric_error)?;
    let mut events = Vec::new();
    while events.is_empty() {
        if Instant::now() > deadline {
            return Err(ErrorCode::TimedOut.into());
        }
        crate::wait::tick();
        port.link_events(&mut events);
    }
    match events.remove(0) {
        LinkEvent::Refused { reason, .. } => match HelloAnswer::decode(&reason) {
            Ok(HelloAnswer::Occupancy(occupancy)) => Ok(Occupancy {
                members: occupancy.members.into(),
                members_max: occupancy.members_max.into(),
            }),
            Ok(HelloAnswer::Refusal(refusal)) => Err(Error::with(refusal.code, refusal.text)),
            _ => Err(ErrorCode::ProtocolViolation.into()),
        },
        LinkEvent::NotReached { link, why } => Err(not_reached(why, port.trouble(link))),
        _ => Err(ErrorCode::NoSuchCluster.into()),
    }
}
