//! A node with state that ends or leaves and returns, with driven nodes.

use crate::engine::Keeps;
use crate::wait::Drive;
use crate::{AllocationHint, AllocationSpec, Config, Error, ErrorCode, GlobalAddress};
use crate::{Joining, Node};
use farside_base::{Generation, NodeId};
use farside_fabric::{Fabric, MemFabric};
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

/// Polls after which a test fails: far more than any of them needs.
const POLLS_MAX: usize = 1 << 14;

struct StateCluster {
    config: Config,
    fabric: Arc<dyn Fabric>,
    nodes: Vec<Node>,
}

impl StateCluster {
    fn found(name: &str, nodes_max: u16, keeps: Keeps) -> Self {
        let mut config = Config::new(name);
        (config.memory_bytes, config.cache_bytes) = (1 << 20, 1 << 16);
        config.limits.nodes_max = nodes_max;
        config.return_timeout_ns = 0;
        let fabric: Arc<dyn Fabric> = Arc::new(MemFabric::new());
        let founder = Node::create_with(&config, Arc::clone(&fabric), Drive::Caller, keeps);
        Self { config, fabric, nodes: vec![founder.unwrap()] }
    }

    /// Joins another node; `Busy` is repeated, as by `Node::join`.
    fn join(&mut self, keeps: Keeps) -> Result<&Node, Error> {
        let start =
            |cluster: &Self| Joining::start_keeping(&cluster.config, cluster.fabric.clone(), keeps);
        let mut joining = start(self)?;
        for _ in 0..POLLS_MAX {
            self.settle_once();
            match joining.poll() {
                Ok(Some(node)) => {
                    self.nodes.push(node);
                    self.settle();
                    return Ok(self.nodes.last().unwrap());
                }
                Err(error) if error.code == ErrorCode::Busy => joining = start(self)?,
                waits => assert!(waits?.is_none()),
            }
        }
        panic!("the cluster does not answer");
    }

    fn settle_once(&self) {
        for node in &self.nodes {
            node.progress();
        }
    }

    fn settle(&self) {
        while self.nodes.iter().map(Node::progress).fold(false, |any, busy| any | busy) {}
    }

    fn finish<F: Future>(&self, future: F) -> F::Output {
        let mut future = pin!(future);
        for _ in 0..POLLS_MAX {
            if let Poll::Ready(output) = poll(&mut future) {
                return output;
            }
            self.settle_once();
        }
        panic!("the operation does not end");
    }

    /// Allocates at a node, by the founder.
    fn alloc(&self, home: NodeId) -> GlobalAddress {
        let spec = AllocationSpec::new(AllocationHint::On(home));
        let mut session = self.nodes[0].session().unwrap();
        self.finish(session.alloc_with_async(4_096, spec)).unwrap()
    }

    /// The free memory of a node, as reported to the founder.
    fn free_bytes(&self, node: NodeId) -> u64 {
        self.settle();
        let members = self.nodes[0].members();
        let member = members.iter().find(|member| member.node == node).unwrap();
        assert!(member.alive && member.memory_free_bytes > 0);
        member.memory_free_bytes
    }

    /// Reads a word by each node that is left.
    fn read(&self, at: GlobalAddress) -> Vec<Result<u64, ErrorCode>> {
        let read = |node: &Node| {
            let (mut session, mut bytes) = (node.session().unwrap(), [0; 8]);
            let done = self.finish(session.read_async(at, &mut bytes));
            done.map(|()| u64::from_le_bytes(bytes)).map_err(|error| error.code)
        };
        self.nodes.iter().map(read).collect()
    }

    fn write(&self, at: GlobalAddress, value: u64) {
        let mut session = self.nodes[0].session().unwrap();
        self.finish(session.write_async(at, &value.to_le_bytes())).unwrap();
        self.finish(session.fence_async()).unwrap();
    }

    /// Ends the last node, as in a crash or by a leave.
    fn end_last(&mut self, leaves: bool) {
        let node = self.nodes.pop().unwrap();
        if leaves {
            let mut leaving = node.start_leaving();
            let left = (0..POLLS_MAX).find_map(|_| {
                self.settle_once();
                leaving.poll()
            });
            left.unwrap().unwrap();
        } else {
            drop(node);
        }
        (0..16).for_each(|_| self.settle());
    }
}

fn poll<F: Future>(future: &mut Pin<&mut F>) -> Poll<F::Output> {
    future.as_mut().poll(&mut Context::from_waker(Waker::noop()))
}

fn known(node: u16, generation: u16) -> Keeps {
    Keeps::Known { node: NodeId(node), generation: Generation(generation), names: false }
}

#[test]
fn addresses_of_a_node_with_state_are_valid_again_when_it_returns() {
    for (name, leaves) in [("returns-after-death", false), ("returns-after-leave", true)] {
        let mut cluster = StateCluster::found(name, 4, Keeps::Nothing);
        cluster.join(Keeps::Nothing).unwrap();
        let state = cluster.join(Keeps::New).unwrap();
        let (id, memory) = (state.id(), state.memory());
        assert_eq!(
            (id, memory.map(|memory| memory.generation())),
            (NodeId(2), Some(Generation(0)))
        );
        let at = cluster.alloc(id);
        let free = cluster.free_bytes(id);
        cluster.write(at, 7);
        assert_eq!(cluster.read(at), [Ok(7); 3]);
        for _ in 0..2 {
            cluster.end_last(leaves);
            assert_eq!(cluster.read(at), [Err(ErrorCode::HomeAway); 2], "{name}");
            let returned = cluster.join(known(2, 0)).unwrap();
            assert_eq!((returned.id(), returned.memory()), (id, memory));
            assert_eq!(cluster.read(at), [Err(ErrorCode::Unallocated); 3], "{name}");
            assert_eq!(cluster.alloc(id), at, "its memory is as at its first start");
            let direct = cluster.nodes[1].stats().direct_reads;
            assert_eq!(cluster.read(at), [Ok(0); 3], "{name}");
            assert!(cluster.nodes[1].stats().direct_reads > direct, "{name}");
            assert_eq!(cluster.free_bytes(id), free, "{name}");
            cluster.write(at, 8);
            assert_eq!(cluster.read(at), [Ok(8); 3], "{name}");
        }
    }
}

#[test]
fn operations_in_flight_fail_with_home_away_and_locks_are_void() {
    let mut cluster = StateCluster::found("state-in-flight", 4, Keeps::Nothing);
    let id = cluster.join(Keeps::New).unwrap().id();
    let at = cluster.alloc(id);
    let mut session = cluster.nodes[0].session().unwrap();
    let mut waiter = cluster.nodes[0].session().unwrap();
    cluster.finish(session.lock_write_async(at, 8)).unwrap();
    let mut bytes = [0; 8];
    {
        session.set_direct_reads(false);
        let mut read = pin!(session.read_async(at, &mut bytes));
        let mut lock = pin!(waiter.lock_write_async(at, 8));
        assert!(poll(&mut read).is_pending() && poll(&mut lock).is_pending());
        cluster.end_last(false);
        assert_eq!(cluster.finish(read).unwrap_err().code, ErrorCode::HomeAway);
        assert_eq!(cluster.finish(lock).unwrap_err().code, ErrorCode::HomeAway);
    }
    let spec = AllocationSpec::new(AllocationHint::On(id));
    let refused = cluster.finish(session.alloc_with_async(64, spec));
    assert_eq!(refused.unwrap_err().code, ErrorCode::HomeAway);
    cluster.join(known(id.0, 0)).unwrap();
    assert_eq!(cluster.alloc(id), at);
    cluster.finish(waiter.lock_write_async(at, 8)).unwrap();
}

#[test]
fn founder_with_state_returns_to_its_cluster_and_founds_one_with_its_memory() {
    let mut cluster = StateCluster::found("state-founds", 4, Keeps::New);
    assert_eq!(cluster.nodes[0].id(), NodeId(2));
    assert_eq!(cluster.join(Keeps::Nothing).unwrap().id(), NodeId(0));
    let at = cluster.alloc(NodeId(2));
    cluster.nodes.swap(0, 1);
    cluster.end_last(false);
    assert_eq!(cluster.read(at), [Err(ErrorCode::HomeAway)]);
    cluster.join(known(2, 0)).unwrap();
    assert_eq!(cluster.read(at), [Err(ErrorCode::Unallocated); 2]);
    let cluster = StateCluster::found("state-founds-again", 4, known(3, 5));
    let memory = cluster.nodes[0].memory().unwrap();
    assert_eq!((memory.node(), memory.generation()), (NodeId(3), Generation(5)));
    assert_eq!(cluster.alloc(NodeId(3)).memory(), memory);
}

#[test]
fn state_that_does_not_fit_is_refused() {
    let mut cluster = StateCluster::found("state-refused", 4, known(3, 5));
    let code =
        |cluster: &mut StateCluster, keeps| cluster.join(keeps).map(Node::id).unwrap_err().code;
    assert_eq!(code(&mut cluster, known(3, 4)), ErrorCode::StateForeign);
    assert_eq!(code(&mut cluster, known(4, 0)), ErrorCode::BadConfiguration);
    let founded = |keeps| {
        let config = Config::new("state-invalid").memory_bytes(0);
        let fabric: Arc<dyn Fabric> = Arc::new(MemFabric::new());
        Node::create_with(&config, fabric, Drive::Caller, keeps).map(|node| node.id())
    };
    assert_eq!(founded(Keeps::New).unwrap_err().code, ErrorCode::BadConfiguration);
    assert_eq!(founded(Keeps::Nothing).unwrap(), NodeId(0));
}
