//! The number of members of a cluster, for a process that does not join it.

use crate::engine::{Inquiry, occupancy_request, read_occupancy, rendezvous_name};
use crate::{Error, ErrorCode};
use farside_fabric::Fabric;
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
    let asked = Inquiry::ask(fabric, &rendezvous_name(cluster), &occupancy_request());
    let mut asked = asked.map_err(|unanswered| unanswered.error)?;
    loop {
        match asked.poll() {
            Some(answer) => {
                let answer = answer.map_err(|unanswered| unanswered.error)?;
                let (members, members_max) = read_occupancy(&answer)?;
                return Ok(Occupancy { members, members_max });
            }
            None if Instant::now() > deadline => return Err(ErrorCode::TimedOut.into()),
            None => crate::wait::tick(),
        }
    }
}
