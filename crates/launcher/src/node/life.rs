//! One membership of a node, from joining to leaving or isolation.

use super::plan::Plan;
use crate::agent::Line;
use farside::{ErrorCode, Node};
use farside_bootstrap::Admission;
use farside_command::failure::Failure;
use farside_command::host_fabric;
use farside_fabric::Fabric;
use std::net::SocketAddr;
use std::sync::Arc;

/// One membership of a node, with its fabric.
pub(super) struct Life {
    pub(super) node: Node,
    /// The address at which others reach it.
    pub(super) address: SocketAddr,
    /// The peers that may connect to it.
    pub(super) admission: Option<Admission>,
    pub(super) fabric: Arc<dyn Fabric>,
}

impl Life {
    /// Tries once to found or join.
    pub(super) fn begin(plan: &Plan, founds: bool) -> Result<Self, Failure> {
        let ((fabric, address), admission) = host_fabric::open_for(&plan.options)?;
        let node = match founds {
            true => Node::create_on(&plan.config, Arc::clone(&fabric)),
            false => Node::join_on(&plan.config, Arc::clone(&fabric)),
        };
        let node = node.map_err(|error| unjoined(plan, error))?;
        Ok(Self { node, address, admission, fabric })
    }
}

/// Returns why a node did not become a member; if it found no cluster, with the error of each host.
pub(super) fn unjoined(plan: &Plan, error: farside::Error) -> Failure {
    let failure = Failure::from(error);
    let searched = failure.is(ErrorCode::NoSuchCluster);
    let (true, Failure::Operation { number, name, text }) = (searched, failure.clone()) else {
        return failure;
    };
    let security = &plan.options.security;
    let refusals = plan.options.hosts.iter().filter_map(|host| Line::connect(host, security).err());
    let text = refusals.fold(text, |text, refusal| format!("{text} {refusal}."));
    Failure::Operation { number, name, text }
}
