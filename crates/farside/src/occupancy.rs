//! The number of members of a cluster, for a process that does not join it.

use crate::engine::{Inquiry, rendezvous_name};
use crate::{Error, ErrorCode};
use farside_fabric::Fabric;
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
    let hello = AskOccupancy.encode();
    let asked = Inquiry::ask(fabric, &rendezvous_name(cluster), &hello);
    let mut asked = asked.map_err(|unanswered| unanswered.error)?;
    let answer = loop {
        match asked.poll() {
            Some(answer) => break answer.map_err(|unanswered| unanswered.error)?,
            None if Instant::now() > deadline => return Err(ErrorCode::TimedOut.into()),
            None => crate::wait::tick(),
        }
    };
    match HelloAnswer::decode(&answer) {
        Ok(HelloAnswer::Occupancy(occupancy)) => Ok(Occupancy {
            members: occupancy.members.into(),
            members_max: occupancy.members_max.into(),
        }),
        Ok(HelloAnswer::Refusal(refusal)) => Err(Error::with(refusal.code, refusal.text)),
        _ => Err(ErrorCode::ProtocolViolation.into()),
    }
}
