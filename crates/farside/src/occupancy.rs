//! How many members a cluster has, for a process that does not join it.

use crate::boot::rendezvous_name;
use crate::node::fabric_error;
use crate::registered::not_reached;
use crate::{Error, ErrorCode};
use farside_fabric::{Fabric, LinkEvent, PortSpec};
use farside_protocol::member::{Answer, AskOccupancy};
use std::time::{Duration, Instant};

/// How many members a cluster has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Occupancy {
    /// Members that are alive, as far as its coordinator knows.
    pub members: usize,
    /// How many there can be at a time ([`Limits::nodes_max`](crate::Limits::nodes_max) of its founder).
    pub members_max: usize,
}

/// Asks the coordinator of a cluster how many members it has, without joining.
///
/// *Blocks* for one round trip, at most `timeout`.
///
/// # Errors
/// `NoSuchCluster`; `TimedOut` when the coordinator does not answer (it is stopped, say); `NotPermitted`;
/// `ProtocolViolation` when it is of another build.
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
        LinkEvent::Refused { reason, .. } => match Answer::decode(&reason) {
            Ok(Answer::Occupancy(occupancy)) => Ok(Occupancy {
                members: occupancy.members.into(),
                members_max: occupancy.members_max.into(),
            }),
            Ok(Answer::Refusal(refusal)) => Err(Error::with(refusal.code, refusal.text)),
            _ => Err(ErrorCode::ProtocolViolation.into()),
        },
        LinkEvent::NotReached { link, why } => Err(not_reached(why, port.trouble(link))),
        _ => Err(ErrorCode::NoSuchCluster.into()),
    }
}
