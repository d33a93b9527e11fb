//! Clusters of one name that meet.
//!
//! `--found-alone` may found a cluster although another one of the name runs behind a broken link. The two never
//! merge. So a member looks now and then whether the hosts of `--join` that are no members of its own cluster
//! belong to another one, and answers those that ask it.

use super::Life;
use super::founding::{Answer, waiting_name};
use super::settings::Plan;
use crate::failure::Failure;
use farside_base::{LinkId, ReceiveQueueId};
use farside_bootstrap::Endpoint;
use farside_fabric::{FabricError, LinkEvent, Port, PortSpec};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// How often other hosts are asked.
const PERIOD: Duration = Duration::from_secs(2);

/// A host that belongs to another cluster of the name.
pub(super) struct Other {
    pub(super) host: String,
    pub(super) cluster_id: u64,
}

/// What a member knows of hosts that are no members of its cluster.
pub(super) struct Others {
    port: Box<dyn Port>,
    queue: ReceiveQueueId,
    cluster_id: u64,
    asked: Vec<(LinkId, Endpoint)>,
    ask_at: Instant,
    told: BTreeSet<(String, u64)>,
}

impl Others {
    /// # Errors
    /// The name where this node answers is taken.
    pub(super) fn open(plan: &Plan, life: &Life) -> Result<Self, Failure> {
        let failed = |error: FabricError| Failure::system(error.to_string());
        let spec = PortSpec { listen: Some(waiting_name(plan)) };
        let mut port = life.fabric.open(&spec).map_err(failed)?;
        let queue = port.create_receive_queue(1).map_err(failed)?;
        let (cluster_id, ask_at) = (life.node.cluster_id(), Instant::now());
        Ok(Self { port, queue, cluster_id, asked: Vec::new(), ask_at, told: BTreeSet::new() })
    }

    /// Answers, asks when it is time, and returns hosts of other clusters that were not known before.
    pub(super) fn poll(&mut self, plan: &Plan, life: &Life) -> Vec<Other> {
        let (mut events, mut found) = (Vec::new(), Vec::new());
        self.port.link_events(&mut events);
        for event in events {
            if let LinkEvent::Requested { link, .. } = event {
                let answer = Answer::Member { cluster_id: self.cluster_id, address: life.address };
                // The requester may be gone already; then the answer is not needed.
                let _ = self.port.refuse(link, answer.to_string().as_bytes());
                continue;
            }
            let Some(at) = self.asked.iter().position(|(link, _)| *link == event.link()) else {
                continue;
            };
            let (_, host) = self.asked.swap_remove(at);
            if let LinkEvent::Refused { reason, .. } = event
                && let Some(Answer::Member { cluster_id, .. }) = Answer::read(&reason)
                && cluster_id != self.cluster_id
                && self.told.insert((host.to_string(), cluster_id))
            {
                found.push(Other { host: host.to_string(), cluster_id });
            }
        }
        if self.asked.is_empty() && Instant::now() >= self.ask_at {
            self.ask(plan, life);
        }
        found
    }

    fn ask(&mut self, plan: &Plan, life: &Life) {
        self.ask_at = Instant::now() + PERIOD;
        let members = life.node.members().into_iter().filter(|member| member.alive);
        let known: Vec<Endpoint> =
            members.filter_map(|member| member.host).map(Endpoint::from).collect();
        for host in plan.options.hosts.iter().filter(|host| !known.contains(host)) {
            if plan.is_own(host, life.address) {
                continue;
            }
            let to = format!("{host}/{}", waiting_name(plan));
            if let Ok(link) = self.port.connect(&to, &[], self.queue) {
                self.asked.push((link, host.clone()));
            }
        }
    }
}
