//! Members that are being linked, with processes that do not answer because they are stopped or not
//! scheduled: nothing else waits for them.
#![forbid(unsafe_code)]

use farside::{AllocationHint, AllocationSpec, Config, ErrorCode, Node};
use farside_base::{LinkId, RegionToken, RemoteRegionId};
use farside_fabric::{Fabric, FabricError, Port, PortSpec};
use farside_fabric_shm::ShmFabric;
use farside_testkit::until;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(30);

/// The behaviour of peers.
#[derive(Default)]
struct Peers {
    /// They answer imports.
    answers: AtomicBool,
    /// They have not answered in time.
    is_late: AtomicBool,
    /// They are inside a copy into memory of the node.
    copies: AtomicBool,
}

/// A fabric with peers that answer no import until they are allowed to.
struct Silent {
    inner: Arc<dyn Fabric>,
    peers: Arc<Peers>,
}

struct SilentPort {
    inner: Box<dyn Port>,
    peers: Arc<Peers>,
}

impl Fabric for Silent {
    farside_fabric::forward!(control);

    fn open(&self, spec: &PortSpec) -> Result<Box<dyn Port>, FabricError> {
        let inner = self.inner.open(spec)?;
        Ok(Box::new(SilentPort { inner, peers: Arc::clone(&self.peers) }))
    }
}

impl Port for SilentPort {
    farside_fabric::forward!(
        common,
        post,
        post_receives,
        poll,
        link_events,
        arm,
        waiter,
        connect,
        close
    );

    fn import(&mut self, _: LinkId, _: &RegionToken) -> Result<RemoteRegionId, FabricError> {
        panic!("an import that waits for a peer")
    }

    fn try_import(
        &mut self,
        link: LinkId,
        token: &RegionToken,
    ) -> Result<Option<RemoteRegionId>, FabricError> {
        match self.peers.answers.load(Ordering::SeqCst) {
            true => self.inner.try_import(link, token),
            false if self.peers.is_late.load(Ordering::SeqCst) => Err(FabricError::PeerLost),
            false => Ok(None),
        }
    }

    fn may_land(&mut self, _: LinkId) -> bool {
        self.peers.copies.load(Ordering::SeqCst)
    }
}

/// A coordinator to which a member's process does not answer, the behaviour of that process, and the
/// member.
fn silent(name: &str) -> (Node, Arc<Peers>, Node) {
    let cluster = format!("incoming-{name}-{}", std::process::id());
    let config = Config::new(cluster).memory_bytes(2 << 20).cache_bytes(4 << 20);
    let peers = Arc::new(Peers::default());
    let inner: Arc<dyn Fabric> = Arc::new(ShmFabric::new().unwrap());
    let fabric = Silent { inner, peers: Arc::clone(&peers) };
    let founder = Node::create_on(&config, Arc::new(fabric)).unwrap();
    let member = Node::join(&config).unwrap();
    (founder, peers, member)
}

#[test]
fn coordinator_continues_while_an_incoming_member_is_silent() {
    let (founder, peers, member) = silent("goes-on");
    let mut here = founder.session().unwrap();
    here.set_timeout(Some(PATIENCE));
    let address = here.alloc_with(64, AllocationSpec::new(AllocationHint::Local));
    let address = address.unwrap();
    here.write_u64(address, 7).unwrap();
    here.fence().unwrap();
    let mut there = member.session().unwrap();
    there.set_timeout(Some(PATIENCE));
    let read = std::thread::scope(|scope| {
        let reader = scope.spawn(|| there.read_u64(address));
        assert_eq!(here.read_u64(address), Ok(7));
        peers.answers.store(true, Ordering::SeqCst);
        reader.join().unwrap()
    });
    assert_eq!(read, Ok(7));
}

#[test]
fn incoming_member_that_ends_is_removed() {
    let (founder, _, member) = silent("ends");
    let alive = || founder.members().iter().filter(|member| member.alive).count();
    until("it is known", || alive() == 2);
    drop(member);
    until("it is gone", || alive() == 1);
}

/// It had imported the regions of the coordinator, and may be stopped while it writes there.
#[test]
fn memory_that_an_incoming_member_may_write_is_quarantined() {
    let (founder, peers, member) = silent("writes");
    let alive = || founder.members().iter().filter(|member| member.alive).count();
    until("it is known", || alive() == 2);
    peers.copies.store(true, Ordering::SeqCst);
    peers.is_late.store(true, Ordering::SeqCst);
    until("it is removed", || alive() == 1);
    assert_eq!(founder.stats().quarantined_members, 1);
    peers.copies.store(false, Ordering::SeqCst);
    until("its copy has ended", || founder.stats().quarantined_members == 0);
    // The member takes its closed link for the end of the founder, and finds itself removed.
    let closed = member.wait_for_members(3, PATIENCE).map_err(|error| error.code);
    assert_eq!(closed, Err(ErrorCode::NodeClosed));
    assert!(founder.session().is_ok());
}
