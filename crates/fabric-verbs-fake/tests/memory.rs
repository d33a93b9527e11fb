//! Registration of memory: the access of peers, whether it is pinned, and what the device must support
//! for it.

mod node;

use farside_base::{Access, RegionKind};
use farside_fabric::{Fabric, RegionSpec};
use farside_fabric_verbs::{OpenError, VerbsFabric};
use farside_fabric_verbs_fake::Odd;
use node::{FakeNode, alone, connect, options, works};

const ON_DEMAND: u32 = 1 << 6;
const RELAXED: u32 = 1 << 20;
/// Sends, receives, WRITEs, READs, atomics and shared receives.
const PAGED: u64 = 0x3f;

#[test]
fn order_is_given_up_where_that_is_asked_for_and_nowhere_else() {
    let (_one, fake) = alone();
    let node = FakeNode::new("near");
    assert_eq!(fake.registered(RELAXED), 0);
    let access = Access::WRITE.with(Access::RELAXED_ORDERING);
    let spec = RegionSpec { bytes: 64, access, kind: RegionKind::Memory };
    let region = node.fabric.register(&spec).expect("a region");
    assert_eq!(fake.registered(RELAXED), 1);
    node.fabric.deregister(region.id).expect("its end");
    assert_eq!(fake.registered(RELAXED), 0);
}

#[test]
fn memory_is_pinned_unless_told_otherwise() {
    let (_one, fake) = alone();
    fake.say(Odd::OnDemand, PAGED);
    let (mut near, mut far) = (FakeNode::new("near"), FakeNode::new("far"));
    assert_eq!(fake.registered(ON_DEMAND), 0);
    assert!(!near.fabric.choice().on_demand_paging && near.fabric.facts().on_demand.is_had());
    let (link, _, region) = connect(&mut near, &mut far);
    works(&mut near, &mut far, link, region);
}

#[test]
fn memory_is_paged_on_demand_where_that_is_asked_for() {
    let (_one, fake) = alone();
    fake.say(Odd::OnDemand, PAGED);
    let mut paged = options();
    paged.on_demand_paging = true;
    let mut near = FakeNode::with("near", paged);
    assert_eq!(fake.registered(ON_DEMAND), 1);
    assert!(near.fabric.choice().on_demand_paging);
    assert!(near.fabric.describe().contains("paged on demand"));
    let mut far = FakeNode::new("far");
    let (link, _, region) = connect(&mut near, &mut far);
    works(&mut near, &mut far, link, region);
    let spec = RegionSpec { bytes: 64, access: Access::READ, kind: RegionKind::Memory };
    let region = near.fabric.register(&spec).expect("a region");
    assert_eq!(fake.registered(ON_DEMAND), 2);
    near.fabric.deregister(region.id).expect("its end");
    assert_eq!(fake.registered(ON_DEMAND), 1);
}

#[test]
fn a_device_without_on_demand_paging_is_refused_by_name() {
    let (_one, fake) = alone();
    let refused = || {
        let mut paged = options();
        paged.on_demand_paging = true;
        match VerbsFabric::open(paged) {
            Err(OpenError::Lacks { what, .. }) => what,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(refused(), "on-demand paging");
    fake.say(Odd::OnDemand, PAGED & !(1 << 4));
    assert_eq!(refused(), "on-demand paging of atomics");
    fake.say(Odd::OnDemand, PAGED & !(1 << 5));
    assert_eq!(refused(), "on-demand paging of shared receive queues");
    // Without atomics their paging is not required.
    fake.say(Odd::AtomicCap, 0);
    fake.say(Odd::OnDemand, PAGED & !(1 << 4));
    let mut paged = options();
    paged.on_demand_paging = true;
    VerbsFabric::open(paged).expect("the rest");
}
