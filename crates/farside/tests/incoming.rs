//! Members on their way in whose processes do not answer, because they are stopped or get no processor: they
//! hold up nothing else.
#![forbid(unsafe_code)]

use farside::{AllocationHint, AllocationSpec, Config, Node};
use farside_base::{LinkId, RegionToken, RemoteRegionId};
use farside_fabric::{Fabric, FabricError, Port, PortSpec};
use farside_fabric_shm::ShmFabric;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(30);

/// A fabric whose peers answer no import until they are let.
struct Silent {
    inner: Arc<dyn Fabric>,
    answers: Arc<AtomicBool>,
}

struct SilentPort {
    inner: Box<dyn Port>,
    answers: Arc<AtomicBool>,
}

impl Fabric for Silent {
    farside_fabric::forward!(control);

    fn open(&self, spec: &PortSpec) -> Result<Box<dyn Port>, FabricError> {
        let inner = self.inner.open(spec)?;
        Ok(Box::new(SilentPort { inner, answers: Arc::clone(&self.answers) }))
    }
}

impl Port for SilentPort {
    farside_fabric::forward!(
        post,
        post_receives,
        poll,
        link_events,
        arm,
        disarm,
        waiter,
        create_receive_queue,
        connect,
        accept,
        refuse,
        close,
        path,
        address,
        destroy_receive_queue,
        trouble,
        reach
    );

    fn import(&mut self, _: LinkId, _: &RegionToken) -> Result<RemoteRegionId, FabricError> {
        panic!("an import that waits for a peer")
    }

    fn try_import(
        &mut self,
        link: LinkId,
        token: &RegionToken,
    ) -> Result<Option<RemoteRegionId>, FabricError> {
        match self.answers.load(Ordering::SeqCst) {
            true => self.inner.try_import(link, token),
            false => Ok(None),
        }
    }
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::yield_now();
    }
}

/// A coordinator to which a member's process does not answer, the switch that lets it, and the member.
fn silent(name: &str) -> (Node, Arc<AtomicBool>, Node) {
    let cluster = format!("admission-{name}-{}", std::process::id());
    let config = Config { memory_bytes: 2 << 20, cache_bytes: 4 << 20, ..Config::new(cluster) };
    let answers = Arc::new(AtomicBool::new(false));
    let inner: Arc<dyn Fabric> = Arc::new(ShmFabric::new().unwrap());
    let fabric = Silent { inner, answers: Arc::clone(&answers) };
    let founder = Node::create_on(&config, Arc::new(fabric)).unwrap();
    let member = Node::join(&config).unwrap();
    (founder, answers, member)
}

#[test]
fn coordinator_goes_on_while_a_member_on_its_way_in_does_not_answer() {
    let (founder, answers, member) = silent("goes-on");
    let mut here = founder.session().unwrap();
    here.set_timeout(Some(PATIENCE));
    let address = here.alloc_with(
        64,
        AllocationSpec { hint: AllocationHint::Local, ..AllocationSpec::default() },
    );
    let address = address.unwrap();
    here.write_u64(address, 7).unwrap();
    here.fence().unwrap();
    let mut there = member.session().unwrap();
    there.set_timeout(Some(PATIENCE));
    let read = std::thread::scope(|scope| {
        let reader = scope.spawn(|| there.read_u64(address));
        assert_eq!(here.read_u64(address), Ok(7));
        answers.store(true, Ordering::SeqCst);
        reader.join().unwrap()
    });
    assert_eq!(read, Ok(7));
}

#[test]
fn member_that_ends_on_its_way_in_is_gone() {
    let (founder, _, member) = silent("ends");
    let alive = || founder.members().iter().filter(|member| member.alive).count();
    until("it is known", || alive() == 2);
    drop(member);
    until("it is gone", || alive() == 1);
}
