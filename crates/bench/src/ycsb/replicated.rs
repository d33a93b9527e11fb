//! A hash table in memory that survives its nodes: the state of each node is in copies in memory that this process lends.
//!
//! The copies are in another process than the node, so a killed node loses nothing, and in one process of one machine, so
//! that the loss of this machine would lose all. A copy takes up memory only where the node's log was written.

use super::table_cluster::{RECORD_BYTES, TableCluster, node_spec};
use crate::policies::copy_bytes;
use farside::GlobalAddress;
use farside::fabrics::{self, Fabric};
use farside::onesided::{LendOptions, MemoryServer, RegionKind};
use farside_command::failure::Failure;
use farside_launcher::cluster::Cluster;
use farside_launcher::hosts::Hosts;
use farside_launcher::worker::{Command, NodeSpec};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Copies of each node's memory.
const COPIES: u16 = 2;
/// Least memory of a node: each of its bytes is in the memory, the image of the log, and the copies.
const MEMORY_BYTES_MIN: u64 = 8 << 20;
/// Cache of a node.
const CACHE_BYTES: u64 = 32 << 20;

/// Returns why no nodes with copies are started on these hosts, or `None` if they are.
pub(crate) fn why_not_replicated(hosts: &Hosts) -> Option<&'static str> {
    match hosts {
        Hosts::Agents(..) => Some(
            "the nodes are at agents, and this command keeps copies of memory for nodes of its own machine only; lend \
             memory on other hosts with `farside lend --exclusive`, and start nodes with `farside node --state-copies`",
        ),
        _ if hosts.fabric() == "verbs" => Some(
            "over verbs all memory of the copies, more than twenty times that of the nodes, would be pinned; leave out \
             --fabric, or use --fabric tcp",
        ),
        Hosts::Machine | Hosts::Loopback(_) => None,
    }
}

/// A cluster of nodes with copies, with a distributed hash table in their memory.
pub(crate) struct ReplicatedTable {
    /// Ends before the copies.
    pub(crate) table: TableCluster,
    specs: Vec<NodeSpec>,
    _copies: Vec<MemoryServer>,
}

/// A node that was killed, and a process that has been started in its place with its state.
pub(crate) struct Restarted {
    /// The number of the killed node, and of the new one.
    pub(crate) nodes: [u16; 2],
    /// How the killed process ended.
    pub(crate) how: String,
    /// When it was killed.
    pub(crate) at: Instant,
    /// The time from then on until the new process was a member.
    pub(crate) joined: Duration,
}

impl ReplicatedTable {
    pub(crate) const COPIES: u16 = COPIES;

    /// Starts `nodes` nodes with memory for `records` records and copies of it, and has the last one create a table over
    /// all of them.
    ///
    /// # Errors
    /// Those of lending memory, and of the nodes.
    pub(crate) fn start(
        hosts: &Hosts,
        what: &str,
        (nodes, threads): (u16, u16),
        records: u64,
        seed: u64,
    ) -> Result<Self, Failure> {
        let memory_bytes =
            MEMORY_BYTES_MIN + records.saturating_mul(RECORD_BYTES) / u64::from(nodes);
        let memory_bytes = memory_bytes.next_multiple_of(1 << 20);
        let fabric = match hosts.listen(IpAddr::V4(Ipv4Addr::LOCALHOST))? {
            Some((fabric, _)) => fabric,
            None => fabrics::shared_memory()?,
        };
        let spec = node_spec(hosts, what, (nodes, threads), (memory_bytes, CACHE_BYTES));
        let (mut copies, mut specs) = (Vec::new(), Vec::new());
        for node in 0..nodes {
            let lent = lend_copies(&fabric, &format!("{what}-copy-{node}"), memory_bytes)?;
            let state_copies = lent.iter().map(|copy| copy.address().to_owned()).collect();
            specs.push(NodeSpec { state_copies, ..spec.clone() });
            copies.extend(lent);
        }
        let cluster = Cluster::start_each(hosts, &specs)?;
        let creator = cluster.workers_count() - 1;
        let table = TableCluster::create(cluster, (creator, true), threads, seed)?;
        Ok(Self { table, specs, _copies: copies })
    }

    /// Returns the memory of a node.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.specs.first().map_or(0, |spec| spec.memory_bytes)
    }

    /// Returns the address of the table's root.
    ///
    /// # Errors
    /// `Failure::System` if a worker has returned something else.
    pub(crate) fn root(&self) -> Result<GlobalAddress, Failure> {
        let root = self.table.root;
        GlobalAddress::from_bits(root)
            .map_err(|_| Failure::system(format!("{root:#x} is no address")))
    }

    /// Kills the node that is home of the table's root, starts a process in its place with the same copies, and has it open
    /// the table at the same address.
    ///
    /// # Errors
    /// Those of a node that joins with a state; those of opening the table.
    pub(crate) fn kill_and_restart(&mut self) -> Result<Restarted, Failure> {
        let killed = self.root()?.home().0;
        let (cluster, root) = (&mut self.table.cluster, self.table.root);
        let victim = cluster.living().into_iter().find(|index| cluster.node(*index) == killed);
        let victim = victim
            .ok_or_else(|| Failure::system(format!("node {killed} of the root has no worker")))?;
        let at = Instant::now();
        let how = cluster.kill(victim)?;
        cluster.restart(victim, &self.specs[victim])?;
        let joined = at.elapsed();
        cluster.ask(victim, Command::OpenTable { root })?;
        Ok(Restarted { nodes: [killed, cluster.node(victim)], how, at, joined })
    }
}

/// Lends memory for the copies of one node's memory.
fn lend_copies(
    fabric: &Arc<dyn Fabric>,
    name: &str,
    memory_bytes: u64,
) -> Result<Vec<MemoryServer>, Failure> {
    let options = LendOptions::default().exclusive(true).kind(RegionKind::Sparse);
    let bytes = copy_bytes(memory_bytes)?;
    let lend = |copy| {
        let name = format!("{name}-{copy}-{}", std::process::id());
        Ok(MemoryServer::lend(fabric, &name, bytes, &options)?)
    };
    (0..COPIES).map(lend).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use farside_command::settings::{Places, WorkerFabric};

    #[test]
    fn nodes_with_copies_are_of_this_machine() {
        let hosts = |fabric, on: &[&str]| {
            let on = on.iter().map(|agent| agent.parse().unwrap()).collect();
            Hosts::of(&Places { fabric, on, ..Places::default() }).unwrap()
        };
        let why = |fabric, on: &[&str]| why_not_replicated(&hosts(fabric, on));
        assert_eq!(why(None, &[]), None);
        assert_eq!(why(Some(WorkerFabric::Tcp), &[]), None);
        assert!(why(Some(WorkerFabric::Verbs), &[]).unwrap().contains("pinned"));
        assert!(why(None, &["127.0.0.1:1"]).unwrap().contains("at agents"));
        assert!(why(Some(WorkerFabric::Verbs), &["127.0.0.1:1"]).unwrap().contains("at agents"));
    }
}
