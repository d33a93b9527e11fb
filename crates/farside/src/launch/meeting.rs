//! The meeting of launched processes: none continues before each has opened its node.
//!
//! The founder's process listens at a name of the launch. Every other process asks there again and again,
//! and is refused until each rank has asked; then it is accepted, and closes its link. The founder continues
//! when every accepted link is closed, so no process waits for an answer of one that has left.

use super::LaunchedProcess;
use crate::node::Node;
use crate::registered::control;
use crate::wait::{pause, tick};
use crate::{Error, ErrorCode, NodeId};
use farside_base::{LinkId, ReceiveQueueId};
use farside_fabric::{FabricError, LinkEvent, Port, PortSpec};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// The delay before a refused process asks again.
const ASK_AGAIN: Duration = Duration::from_millis(2);
/// The node of the process that founded the cluster.
const FOUNDER: NodeId = NodeId(0);

/// Waits until every process of the launch has opened its node.
///
/// # Errors
/// `TimedOut` after the deadline.
pub(super) fn meet(process: &LaunchedProcess, node: &Node, deadline: Instant) -> Result<(), Error> {
    let name = format!("farside.{}.launched", process.cluster);
    let fabric = &**node.fabric();
    let listen = (node.id() == FOUNDER).then(|| name.clone());
    let mut port = fabric.open(&PortSpec { listen }).map_err(|error| control(&error))?;
    let queue = port.create_receive_queue(1).map_err(|error| control(&error))?;
    if node.id() == FOUNDER {
        return Meeting::new(process.size).serve(&mut *port, queue, deadline);
    }
    let founder = node.members().into_iter().find(|member| member.node == FOUNDER);
    let host = founder.and_then(|member| member.host);
    let to = host.map_or_else(|| name.clone(), |host| format!("{host}/{name}"));
    while !ask(&mut *port, queue, &to, process.rank, deadline)? {
        pause(ASK_AGAIN);
    }
    Ok(())
}

/// Returns whether the founder accepts this rank.
fn ask(
    port: &mut dyn Port,
    queue: ReceiveQueueId,
    to: &str,
    rank: u32,
    deadline: Instant,
) -> Result<bool, Error> {
    check(deadline)?;
    let link = match port.connect(to, &rank.to_le_bytes(), queue) {
        Ok(link) => link,
        Err(FabricError::NoListener(_) | FabricError::PeerLost) => return Ok(false),
        Err(error) => return Err(control(&error)),
    };
    let mut events = Vec::new();
    loop {
        port.link_events(&mut events);
        if let Some(event) = events.drain(..).find(|event| event.link() == link) {
            let accepted = matches!(event, LinkEvent::Connected { .. });
            port.close(link);
            return Ok(accepted);
        }
        check(deadline)?;
        tick();
    }
}

fn check(deadline: Instant) -> Result<(), Error> {
    match Instant::now() > deadline {
        true => Err(Error::with(ErrorCode::TimedOut, "a process of the launch has not joined")),
        false => Ok(()),
    }
}

/// The founder's side.
struct Meeting {
    /// Processes, with this one.
    size: usize,
    /// Ranks that have asked.
    asked: BTreeSet<u32>,
    /// Ranks by their accepted links.
    accepted: BTreeMap<LinkId, u32>,
    /// Ranks that were accepted, and have closed their links.
    done: BTreeSet<u32>,
}

impl Meeting {
    fn new(size: u32) -> Self {
        let (asked, done) = (BTreeSet::new(), BTreeSet::new());
        Self { size: size as usize, asked, accepted: BTreeMap::new(), done }
    }

    fn serve(
        mut self,
        port: &mut dyn Port,
        queue: ReceiveQueueId,
        deadline: Instant,
    ) -> Result<(), Error> {
        let mut events = Vec::new();
        while self.done.len() + 1 < self.size {
            port.link_events(&mut events);
            for event in events.drain(..) {
                self.see(port, queue, &event);
            }
            check(deadline)?;
            tick();
        }
        Ok(())
    }

    fn see(&mut self, port: &mut dyn Port, queue: ReceiveQueueId, event: &LinkEvent) {
        match event {
            LinkEvent::Requested { link, hello } => {
                let rank = <[u8; 4]>::try_from(&hello[..]).map(u32::from_le_bytes);
                let rank = rank.ok().filter(|rank| (*rank as usize) < self.size);
                self.asked.extend(rank);
                match rank.filter(|_| self.asked.len() + 1 >= self.size) {
                    Some(rank) if port.accept(*link, &[], queue).is_ok() => {
                        self.accepted.insert(*link, rank);
                    }
                    Some(_) => {} // it has gone, and asks again
                    None => {
                        let _ = port.refuse(*link, &[]); // as above
                    }
                }
            }
            other => self.done.extend(self.accepted.remove(&other.link())),
        }
    }
}
